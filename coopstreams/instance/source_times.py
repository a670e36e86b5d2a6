"""The times of the source partitions in front of timed topics, as the group's commits
tell them, and whether a partition is really silent: see `promised_times`.

A reader that gets nothing may be cut off from the broker, or its thread may have stood
still, while others write to the partition and go on. So before a task promises, the
cluster is asked where its sources end, *after* the others' times were looked at: what
comes behind these ends was written later than the records that those times are of. The
end is the high watermark: what is in an open transaction may still come, and nothing is
promised before it has ended.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field

from coopstreams.commit.follower import Follower
from coopstreams.commit.view import Winner
from coopstreams.common.host import Host
from coopstreams.log.clocks import Awaited
from coopstreams.log.log import NO_STREAM_TIME, Log
from coopstreams.tasks.promised_times import Advances
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.tasks.time_waits import HeldBack, held_back
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.errors import CoopStreamsError
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


@dataclass
class Question:
    """What silent tasks would promise, and where their sources ended after that was
    known.
    """

    times: Mapping[TaskId, Mapping[str, int]]
    sources: Mapping[TaskId, Sequence[TopicPartition]]
    answered: bool = False
    _ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ask(self, log: Log) -> None:
        """Find out where the sources end; if nobody tells, nothing is promised."""
        every = {source for some in self.sources.values() for source in some}
        try:
            self._ends = log.end_offsets(every)
        except CoopStreamsError:
            pass  # it is asked again
        finally:
            self.answered = True

    def promised(
        self,
        task: TaskId,
        read: Mapping[TopicPartition, int],
    ) -> Mapping[str, int]:
        """Return what a task promises that has read its sources up to these offsets: by
        timed topic that it writes to.
        """
        silent = task in self.times and all(
            source in self._ends and read.get(source, -1) >= self._ends[source]
            for source in self.sources[task]
        )
        return self.times[task] if silent else {}


class SourceTimes:
    """The times of the writers of each timed topic. Used by the control thread only."""

    def __init__(
        self,
        log: Log,
        follower: Follower,
        resolved: Callable[[], ResolvedTopology],
        idle_ms: int,
        most_skew_ms: int | None,
        host: Host,
    ) -> None:
        """`most_skew_ms`: see `max.time.skew.ms`; None: any."""
        self.idle_s = idle_ms / 1000
        """How long a partition is silent before it promises."""
        self._log = log
        self._follower = follower
        self._resolved = resolved
        self._host = host
        self._look_at = 0.0
        self._most_skew_ms = most_skew_ms
        self.look_every_s = LOOK_EVERY_S if most_skew_ms is None else HELD_LOOK_EVERY_S
        self._ask_at = 0.0
        self._question: Question | None = None
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
        self,
        read: Mapping[str, int],
        before: HeldBack | None,
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

    def make_sure(self, silent: Mapping[TaskId, Sequence[TopicPartition]]) -> None:
        """Ask where the sources of silent tasks end that have something to promise, on
        a thread of its own: brokers may be away.
        """
        now = self._host.now()
        if self._question is not None or now < self._ask_at:
            return
        times = {task: new for task in silent if (new := self._promised(task))}
        if times:
            self._ask_at = now + LOOK_EVERY_S
            self._question = question = Question(times, silent)
            self._host.thread(lambda: question.ask(self._log), "ends").start()

    def sure(self) -> Question | None:
        """Return the question that was answered, once."""
        question = self._question
        if question is None or not question.answered:
            return None
        self._question = None
        return question

    def _promised(self, task: TaskId) -> dict[str, int]:
        """Return the times that a task may promise whose partition has not reached them
        yet: by timed topic that it writes to.
        """
        now = self._host.now()
        return {
            topic: time
            for topic in self._resolved().programs[task.subtopology].timed_sinks
            if topic in self._of
            and (time := self._of[topic].promised(task.partition, now, self.idle_s))
            > self._of[topic].time(task.partition)
        }

    def _reached_in(
        self,
        sources: Iterable[str],
        partition: int,
        topic: str,
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
