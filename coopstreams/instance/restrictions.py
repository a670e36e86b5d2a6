"""What forbids dividing sub-topologies of this application by key range, and processing
records out of order.

    accept.range.fetch=false        the cluster's policy: a sub-topology that reads the topic runs with whole partitions
    accept.individual.commit=false  the cluster's policy: all sub-topologies do, and records that wait for calls keep
                                    their order
    allow.individual.commit=false   the application's setting: the same
    ranges.before.windows=false     the application's setting: sub-topologies do that feed windows without a clock

Each member announces which of its sub-topologies may be divided, and the group divides
those that all members allow (`group.active_version`). So members that see a change at
different times agree on the stricter policy in between. The ranges of a partition
become one as in any other rebalance: each is committed and closed before one task opens
them all.

Invariant: individual commits of records done out of order are kept until the
partition's position has passed them: without them, records would be processed twice.
Turned down: the leader reads the policy for all (a leader whose user may not read the
topic would divide what others may not).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from coopstreams.commit.cluster_policy import (
    LOOK_EVERY_S,
    TOPIC,
    Policy,
    PolicyTopic,
)
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.members import Cluster, Runs
from coopstreams.group.slots import Layout
from coopstreams.log.log import Log
from coopstreams.tasks.events import PolicyChanged
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology.errors import AccessDeniedError, LogError, UnknownTopicError
from coopstreams.topology.graph.nodes import SubTopology

log = logging.getLogger(__name__)


class Restrictions:
    """The cluster's policy as last read, and what it restricts. One thread calls
    `look`; any thread may call the other methods.
    """

    def __init__(
        self,
        cluster: Log,
        resolved: Callable[[], ResolvedTopology],
        host: Host = SYSTEM,
        *,
        allowed: bool = True,
    ) -> None:
        """Make it without reading. `allowed`: the application's
        `allow.individual.commit`.
        """
        self._log = cluster
        self._resolved = resolved
        self._host = host
        self.policy = Policy(allowed=allowed)
        self._topic: PolicyTopic | None = None
        self._look_at = 0.0
        self._said = ""

    def look(self) -> PolicyChanged | None:
        """Read the policy if it is time; return what has changed for this application;
        None: nothing.

        While the topic cannot be read, the last policy stays valid.
        """
        if self._host.now() < self._look_at:
            return None
        before = self.policy
        try:
            self.policy = replace(self._read(), allowed=before.allowed)
            self._said = ""
        except (LogError, UnknownTopicError) as error:
            self.close()
            if str(error) != self._said:
                self._said = str(error)
                log.warning(
                    "cannot see what the cluster's policy allows; what was seen last holds: %s",
                    error,
                )
        self._look_at = self._host.now() + LOOK_EVERY_S
        changed = change(self._resolved(), before, self.policy)
        for reason in (
            ()
            if changed is None
            else in_words(restricted(self._resolved(), self.policy))
        ):
            log.info("%s", reason)
        return changed

    def announced(self) -> tuple[Runs, ...]:
        """Return the sub-topologies as this member announces them to the group."""
        return announced(self._resolved(), self.policy)

    def reasons(self, cluster: Cluster, ranges: int) -> list[str]:
        """Return why sub-topologies run with whole partitions that the group would
        otherwise divide, in words.
        """
        threads = {member.id: member.info.threads for member in cluster.members}
        return in_words(
            {
                number: reason
                for number, reason in restricted(self._resolved(), self.policy).items()
                if (partitions := cluster.partitions.get(number))
                and _cuts(Layout(partitions, threads, ranges))
            }
        )

    def close(self) -> None:
        """Stop reading the policy. Idempotent."""
        if self._topic is not None:
            self._topic.close()
            self._topic = None

    def _read(self) -> Policy:
        if self._topic is None:
            try:
                there = TOPIC in self._log.partitions([TOPIC])
            except (
                AccessDeniedError
            ):  # who may not see the topic is as free as if there were none
                there = False
            if not there:
                return Policy()
            self._topic = PolicyTopic(self._log, host=self._host)
        return self._topic.read()


def restricted(resolved: ResolvedTopology, policy: Policy) -> dict[int, str]:
    """Return the divisible sub-topologies that may not be divided by key range, each
    with the reason in words.
    """
    return {
        part.id: reason
        for part in resolved.topology.subtopologies
        if part.divisible and (reason := _reason(part, resolved, policy))
    }


def in_words(whole: Mapping[int, str]) -> list[str]:
    """Return a sentence for each reason, which names all sub-topologies that it
    restricts.
    """
    found: dict[str, list[str]] = {}
    for number, reason in whole.items():
        found.setdefault(reason, []).append(str(number))
    return [
        f"sub-topolog{'y' if len(numbers) == 1 else 'ies'} {', '.join(numbers)} run{'s' * (len(numbers) == 1)} with "
        f"whole partitions: {reason}"
        for reason, numbers in found.items()
    ]


def _reason(
    part: SubTopology,
    resolved: ResolvedTopology,
    policy: Policy,
) -> str:
    """Return why a sub-topology must not be divided, in words; empty: it may be."""
    if forbidden := policy.forbids_ranges(part.topics):
        return forbidden
    if stores := resolved.before_windows.get(part.id):
        return (
            f"its records go through a topic into {', '.join(sorted(stores))}, where those of the key range that reads "
            "a backlog more slowly would be late (ranges.before.windows=true allows it: give the windows as much grace "
            "as ranges can be apart)"
        )
    return ""


def announced(resolved: ResolvedTopology, policy: Policy) -> tuple[Runs, ...]:
    """Return the sub-topologies that a member announces, with whether each may be
    divided by key range.
    """
    whole = restricted(resolved, policy)
    return tuple(
        runs._replace(divisible=runs.divisible and number not in whole)
        for number, runs in enumerate(resolved.announced)
    )


def change(
    resolved: ResolvedTopology,
    before: Policy,
    now: Policy,
) -> PolicyChanged | None:
    """Return the effect of a new policy on an application; None: it has no effect."""
    reordered = before.accepts_individual_commit != now.accepts_individual_commit
    calling = {
        number
        for number, program in resolved.programs.items()
        if program.keys_suffice and program.ahead
    }
    changed = PolicyChanged(
        announced(resolved, before) != announced(resolved, now),
        frozenset(calling if reordered else ()),
    )
    return changed if changed.announced or changed.reopened else None


def _cuts(layout: Layout) -> bool:
    return any(layout.ranges_of(slots) > 1 for slots in layout.counts)
