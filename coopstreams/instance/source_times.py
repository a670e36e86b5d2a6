"""The times of the source partitions in front of timed topics, as the group's commits
tell them: see `promises`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coopstreams.commit.follower import Follower
from coopstreams.commit.view import Winner
from coopstreams.common.host import Host
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.tasks.promises import Advances
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

LOOK_EVERY_S = 0.5
"""How long what the commits said is used: those of a hundred partitions take a
millisecond to look at.
"""


class SourceTimes:
    """The times of the writers of each timed topic. Used by the control thread only."""

    def __init__(
        self,
        follower: Follower,
        resolved: Callable[[], ResolvedTopology],
        idle_ms: int,
        host: Host,
    ) -> None:
        self.idle_s = idle_ms / 1000
        """How long a partition is silent before it promises."""
        self._follower = follower
        self._resolved = resolved
        self._host = host
        self._look_at = 0.0
        self._of: dict[str, Advances] = {}

    def look(self, subtopologies: Iterable[int]) -> None:
        """Take in the times of these sub-topologies, if it is time to."""
        now = self._host.now()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        resolved = self._resolved()
        for number in subtopologies:
            program = resolved.programs[number]
            count = resolved.topics.tasks[number]
            for topic in program.timed_sinks:
                times = {
                    partition: self._time(program.subtopology.topics, partition, topic)
                    for partition in range(count)
                }
                self._of.setdefault(topic, Advances()).look(times, now)

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

    def _time(self, sources: Iterable[str], partition: int, topic: str) -> int:
        """Return the least time that the key ranges of a source partition have reached
        on the way to a timed topic.

        With several sources, that of the one that is furthest: a task has one time for
        all of them.
        """
        return max(self._reached(TopicPartition(s, partition), topic) for s in sources)

    def _reached(self, source: TopicPartition, topic: str) -> int:
        operator = store_id(topic)
        return min(
            (
                dict(each.segment.operator_times).get(operator, NO_STREAM_TIME)
                if isinstance(each, Winner)
                else NO_STREAM_TIME
                for each in self._follower.resolve(source, WHOLE)
            ),
            default=NO_STREAM_TIME,
        )
