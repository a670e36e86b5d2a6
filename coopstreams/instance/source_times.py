"""The times of the source partitions in front of timed topics, as the group's commits
tell them: see `promises`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coopstreams.commit.follower import Follower
from coopstreams.commit.view import Winner
from coopstreams.common.host import Host
from coopstreams.log.clocks import Awaited
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.tasks.promises import Advances
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.tasks.time_waits import HeldBack, held_back
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.keys import ALL_GROUPS, WHOLE
from coopstreams.topology.task_id import TaskId

LOOK_EVERY_S = 0.5
"""How long what the commits said is used: those of a hundred partitions take a
millisecond to look at.
"""


HELD_LOOK_EVERY_S = 0.1
"""The same where partitions are held back: in that time a partition reads
`max.time.skew.ms` at most.
"""


class SourceTimes:
    """The times of the writers of each timed topic. Used by the control thread only."""

    def __init__(
        self,
        follower: Follower,
        resolved: Callable[[], ResolvedTopology],
        idle_ms: int,
        most_skew_ms: int | None,
        host: Host,
    ) -> None:
        """`most_skew_ms`: see `max.time.skew.ms`; None: any."""
        self.idle_s = idle_ms / 1000
        """How long a partition is silent before it promises."""
        self._follower = follower
        self._resolved = resolved
        self._host = host
        self._look_at = 0.0
        self._most_skew_ms = most_skew_ms
        self.look_every_s = LOOK_EVERY_S if most_skew_ms is None else HELD_LOOK_EVERY_S
        self._of: dict[str, Advances] = {}
        self._slowest: dict[str, Awaited] = {}
        """By topic: the key groups whose time is the least."""

    def look(self, subtopologies: Iterable[int]) -> None:
        """Take in the times of these sub-topologies, if it is time to."""
        now = self._host.now()
        if now < self._look_at:
            return
        self._look_at = now + self.look_every_s
        resolved = self._resolved()
        for number in subtopologies:
            program = resolved.programs[number]
            count = resolved.topics.tasks[number]
            for topic in program.timed_sinks:
                reached = [
                    self._reached_in(program.subtopology.topics, partition, topic)
                    for partition in range(count)
                ]
                times = {each.partition: each.time for each in reached}
                self._of.setdefault(topic, Advances()).look(times, now)
                self._slowest[topic] = min(reached, key=lambda each: each.time)

    @property
    def bounded(self) -> bool:
        """Whether a partition may be held back because it is too far ahead."""
        return self._most_skew_ms is not None

    def held_back(
        self, read: Mapping[str, int], before: HeldBack | None
    ) -> HeldBack | None:
        """Return that a source partition is too far ahead of the slowest; None: it may
        be read on.

        `read`: the times that its records have reached on the way to each timed topic.
        """
        if self._most_skew_ms is None:
            return None
        now = self._host.now()
        for topic, time in read.items():
            slowest = self._slowest.get(topic)
            if slowest is not None and (
                held := held_back(time, slowest, self._most_skew_ms, before, now)
            ):
                return held
        return None

    def promised(self, task: TaskId) -> dict[str, int]:
        """Return the times that a task promises, whose partitions are silent: by timed
        topic that it writes to.
        """
        now = self._host.now()
        return {
            topic: self._of[topic].promised(task.partition, now, self.idle_s)
            for topic in self._resolved().programs[task.subtopology].timed_sinks
            if topic in self._of
        }

    def _reached_in(
        self, sources: Iterable[str], partition: int, topic: str
    ) -> Awaited:
        """Return the least time that the key ranges of a source partition have reached
        on the way to a timed topic, and the first of those key ranges.

        With several sources, that of the one that is furthest: a task has one time for
        all of them.
        """
        return max(
            (self._reached(TopicPartition(s, partition), topic) for s in sources),
            key=lambda each: each.time,
        )

    def _reached(self, source: TopicPartition, topic: str) -> Awaited:
        operator = store_id(topic)
        return min(
            (
                Awaited(
                    source.partition,
                    each.key_range.groups,
                    dict(each.segment.operator_times).get(operator, NO_STREAM_TIME)
                    if isinstance(each, Winner)
                    else NO_STREAM_TIME,
                )
                for each in self._follower.resolve(source, WHOLE)
            ),
            key=lambda each: each.time,
            default=Awaited(source.partition, ALL_GROUPS, NO_STREAM_TIME),
        )
