"""The thread that looks for topics that have come to match a pattern, every `metadata.max.age.ms`. Without a pattern there is none.

Each process looks for itself. One that is given a task it does not know (the leader of the group has seen a topic before it) looks at
once, and again soon. Until it knows, the task waits.

Invariant: a reading only grows. A topic that is deleted while it is read is an error of the reader, as any source topic.
Turned down: the leader tells the members (a topic that is not known to the process yet cannot be read anyway).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coopstreams.config import Config
from coopstreams.log.log import Log
from coopstreams.tasks.events import Event, Failed, Matched
from coopstreams.tasks.reading import Reading, look_up
from coopstreams.topology.errors import LogError, UnknownTopicError
from coopstreams.topology.nodes import Topology
from coopstreams.topology.patterns import has_patterns, matched, unmatched

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""How soon to look again if there must be something new."""


class Subscription:
    """Looks, and emits `Matched` for what is new."""

    def __init__(self, cluster: Log, built: Topology, config: Config, reading: Reading, emit: Callable[[Event], None]) -> None:
        self._log, self._built, self._config, self._reading, self._emit = cluster, built, config, reading, emit
        self._every_s = config["metadata.max.age.ms"] / 1000
        self._wake = threading.Event()
        self._hurried = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="subscription", daemon=True)

    def start(self) -> None:
        """Begin to look, if there is a pattern."""
        if not has_patterns(self._built):
            return
        for pattern in unmatched(self._reading.topology):
            log.warning('no topic matches "%s" yet: nothing is read by it until one is made; looking every %g s', pattern, self._every_s)
        self._thread.start()

    def hurry(self) -> None:
        """Look at once, and until there is something new. Any thread."""
        self._hurried = True
        self._wake.set()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            while True:
                self._wake.wait(AGAIN_S if self._hurried else self._every_s)
                self._wake.clear()
                if self._stopped:
                    return
                self._look()
        except BaseException as error:  # whatever it is, the control thread must learn of it
            log.debug("the subscription ends", exc_info=True)
            self._emit(Failed(error, "subscription"))

    def _look(self) -> None:
        known = self._reading.topology.source_topics
        try:
            new = set(matched(self._built, self._log.partitions()).source_topics).difference(known)
            if not new:
                return
            self._reading = look_up(self._log, self._built, self._config, known)
        except (LogError, UnknownTopicError) as error:
            log.warning("looking for new topics: %s; trying again", error)
            return
        log.info("new topics match: %s", ", ".join(sorted(new)))
        self._hurried = False
        self._emit(Matched(self._reading))
