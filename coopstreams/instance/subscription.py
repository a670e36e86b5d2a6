"""The thread that looks for topics that match a pattern, every `metadata.max.age.ms`.
Without a pattern it does not run.

Each process looks on its own. A process that may be behind looks at once, and again
soon. That is so after it was given a task that it does not know (the leader of the
group has seen a topic earlier), and after a failed commit or read (a topic may be
gone).

Invariant: a missing topic counts as gone only after `UNKNOWN_FOR_S`: a broker that has
just started may not know all topics. Turned down: having the leader tell the members (a
process cannot read a topic that it does not know yet anyway).
Relies on: `preflight.resolution` (the new topology), `instance.dispatch` (what becomes
of `Matched`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import UNKNOWN_FOR_S, Log
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.tasks.events import Event, Failed, Matched
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology.errors import CoopStreamsError, LogError, UnknownTopicError
from coopstreams.topology.graph.topic_patterns import matched, unmatched
from coopstreams.topology.graph.topology import Topology

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""The time between two looks after `hurry`."""
HURRY_S = 10.0
"""How long `hurry` has an effect."""
GONE_S = 30.0
"""How long the reader may miss a topic until that is an error. If the topic matched a
pattern, a look removes it from the topology earlier.
"""


class PatternSubscription:
    """The regular look for topics that match an application's patterns. It emits
    `Matched` when matching topics are new or gone.
    """

    def __init__(
        self,
        cluster: Log,
        built: Topology,
        config: Config,
        resolved: ResolvedTopology,
        emit: Callable[[Event], None],
        host: Host = SYSTEM,
        version: LastVersion | None = None,
    ) -> None:
        """Make a subscription that was last resolved to `resolved`. `emit`: called with
        each `Matched` event.

        `version`: as for `resolve_topology`.
        """
        self._host = host
        self._version = version
        self._log = cluster
        self._built = built
        self._config = config
        self._resolved = resolved
        self._emit = emit
        self._every_s = config["metadata.max.age.ms"] / 1000
        self._wake = host.signal()
        self._hurried_until = 0.0
        self._missing: dict[str, float] = {}
        """The topics in the topology that do not exist, and since when."""
        self._unread_since: float | None = None
        """Since when the reader has missed a topic; None: it has missed none since the
        last `Matched`.
        """
        self._stopped = False
        self._thread = host.thread(self._run, "subscription")

    def start(self) -> None:
        """Start the thread, if there is a pattern."""
        if not self._built.has_patterns:
            return
        for pattern in unmatched(self._resolved.topology):
            log.warning(
                'no topic matches "%s" yet: nothing is read by it until one is made; looking every %g s',
                pattern,
                self._every_s,
            )
        self._thread.start()

    def hurry(self) -> None:
        """Look at once, and often in the next seconds."""
        self._hurried_until = self._host.now() + HURRY_S
        self._wake.set()

    def may_cure(self, error: CoopStreamsError) -> bool:
        """Return whether this error of the reader may be a deleted topic that matched a
        pattern. If so, look at once.
        """
        if not self._built.has_patterns or not isinstance(error, UnknownTopicError):
            return False
        since = self._unread_since  # once: the subscription's thread may reset it
        if since is None:
            since = self._unread_since = self._host.now()
            log.info("%s; looking for topics", error)
            self.hurry()
        return self._host.now() - since < GONE_S

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        """Look regularly, until `stop`; any error ends the instance."""
        try:
            while True:
                hurried = self._host.now() < self._hurried_until
                self._wake.wait(
                    min(AGAIN_S, self._every_s) if hurried else self._every_s
                )
                self._wake.clear()
                if self._stopped:
                    return
                self._look()
        except BaseException as error:  # any error: the control thread must get it
            log.debug("the subscription ends", exc_info=True)
            self._emit(Failed(error, "subscription"))

    def _look(self) -> None:
        """Compare the topics that match with those of the topology, once; emit
        `Matched` if some are new or gone. An error is logged: the next look tries
        again.
        """
        known = set(self._resolved.topology.source_topics)
        try:
            there = set(matched(self._built, self._log.partitions()).source_topics)
            now = self._host.now()
            new = there - known
            self._missing = {
                topic: self._missing.get(topic, now) for topic in known - there
            }
            gone = {
                topic
                for topic, since in self._missing.items()
                if now - since >= UNKNOWN_FOR_S
            }
            if self._missing:
                self._hurried_until = now + HURRY_S
            if not new and not gone:
                return
            resolved = resolve_topology(
                self._log,
                self._built,
                self._config,
                self._version,
                known - gone,
            )
        except (LogError, UnknownTopicError) as error:
            log.warning("looking for topics: %s; trying again", error)
            return
        log.info(
            "topics that match a pattern: %s are new, %s are gone",
            ", ".join(sorted(new)) or "none",
            ", ".join(sorted(gone)) or "none",
        )
        self._resolved = resolved
        self._unread_since = None
        self._emit(Matched(resolved))
