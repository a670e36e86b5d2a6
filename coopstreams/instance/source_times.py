"""The times of the source partitions in front of timed topics, as the group's commits
state them, and whether a partition is really silent: see `promised_times`.

A reader that gets no records may be cut off from the broker, or its thread may have
stood still, while others write to the partition and go on. So before a task promises,
it asks the cluster where its sources end, *after* it has looked at the times of the
other partitions. Records behind these ends were written later than the records of those
times. The end is the high watermark: records of an open transaction may still come, and
nothing is promised before the transaction has ended.
"""

from __future__ import annotations

import logging
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
from coopstreams.tasks.promised_times import Advances, read_time_of
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.tasks.time_waits import HeldBack, held_back
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.keys import ALL_GROUPS
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""How long the times from the commits are used before they are computed again. For a
hundred partitions of eight key ranges that takes 1.5 ms, and 0.15 ms more for each
partition that has committed since.
"""


HELD_LOOK_EVERY_S = 0.1
"""The same time while partitions may be held back: meanwhile a partition reads on by at
most `max.time.skew.ms`.
"""


@dataclass
class Question:
    """One round of asking where the sources of silent tasks end.

    `times`: by task and topic, the times that the task would promise: to the readers of
    a timed topic, or to itself of a topic of the user. `sources`: the silent sources of
    each of these tasks, whose ends are fetched after the times were known. `answered`: whether the brokers were asked, with
    or without success.
    """

    times: Mapping[TaskId, Mapping[str, int]]
    sources: Mapping[TaskId, Sequence[TopicPartition]]
    answered: bool = False
    _ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ask(self, cluster: Log) -> None:
        """Fetch the ends of the sources. If the brokers do not answer, nothing is
        promised.
        """
        every = {source for some in self.sources.values() for source in some}
        try:
            self._ends = cluster.end_offsets(every)
        except CoopStreamsError as error:
            log.debug("cannot see where silent partitions end: %s; asking again", error)
        finally:
            self.answered = True

    def promised(
        self,
        task: TaskId,
        read: Mapping[TopicPartition, int],
    ) -> Mapping[str, int]:
        """Return the times that a task promises that has read its silent sources up to
        these offsets, by topic. Empty: they are not silent.
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
        """Begin without any known time. `idle_ms`: how long a source has to be silent
        before its task promises times.

        `most_skew_ms`: see `max.time.skew.ms`; None: any skew is allowed.
        """
        self.idle_s = idle_ms / 1000
        """How long a partition is silent until its task promises. Units: seconds."""
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
        """For each timed topic, the key groups of its writers with the least time."""

    def look(self, subtopologies: Iterable[int]) -> None:
        """Take in the times of the source partitions of these sub-topologies, if it is
        time.
        """
        now = self._host.now()
        if now < self._look_at:
            return
        self._look_at = now + self.look_every_s
        resolved = self._resolved()
        topics = {
            topic
            for number in subtopologies
            for topic in resolved.programs[number].timed_sinks
        }
        for topic in topics:
            reached = self._reached_by_writers(resolved, topic)
            self._slowest[topic] = min(reached, key=lambda each: each.time)
            times = self._times_beside(resolved, topic)
            times |= _by_partition(topic, reached)
            self._of.setdefault(topic, Advances()).look(times, now)

    def _times_beside(
        self, resolved: ResolvedTopology, topic: str
    ) -> dict[TopicPartition, int]:
        """Return the times of the other topics that the readers of a timed topic take
        in the order of births with it: of the writers of other timed topics, and how far
        topics of the user were read.
        """
        reader = next(
            program
            for program in resolved.programs.values()
            if topic in program.timed_sources
        )
        times: dict[TopicPartition, int] = {}
        for other in reader.subtopology.topics if reader.in_birth_order else ():
            if other in reader.timed_sources:
                reached = self._reached_by_writers(resolved, other)
            else:
                count = resolved.topics.tasks[reader.subtopology.id]
                operator = read_time_of(other)
                reached = [
                    self._reached(TopicPartition(other, partition), operator)
                    for partition in range(count)
                ]
            times |= _by_partition(other, reached)
        return times

    def _reached_by_writers(
        self, resolved: ResolvedTopology, topic: str
    ) -> list[Awaited]:
        """Return what each source partition of the writers of a timed topic has reached
        on the way to it.
        """
        number, program = next(
            (number, program)
            for number, program in resolved.programs.items()
            if topic in program.timed_sinks
        )
        return [
            self._reached_in(program.subtopology.topics, partition, topic)
            for partition in range(resolved.topics.tasks[number])
        ]

    @property
    def bounded(self) -> bool:
        """Whether a partition may be held back because it is too far ahead."""
        return self._most_skew_ms is not None

    def held_back(
        self,
        read: Mapping[str, int],
        before: HeldBack | None,
    ) -> HeldBack | None:
        """Return why a source partition is not read on: it is too far ahead of the
        slowest. None: it is read.

        `read`: the times that its records have reached on the way to each timed topic.
        `before`: the result of the last call for the partition.
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

    def make_sure(
        self,
        silent: Mapping[TaskId, Sequence[TopicPartition]],
        own: Mapping[TaskId, Mapping[TopicPartition, int]],
    ) -> None:
        """Ask for the ends of the sources of silent tasks that have something to
        promise. A separate thread asks, because brokers may not answer.

        `own`: the silent topics of the user that tasks read in the order of births, and
        the times that they may promise.
        """
        now = self._host.now()
        if self._question is not None or now < self._ask_at:
            return
        times: dict[TaskId, Mapping[str, int]] = {
            task: new for task in silent if (new := self._promised(task))
        }
        for task, known in own.items():
            times[task] = {source.topic: time for source, time in known.items()}
        if times:
            self._ask_at = now + LOOK_EVERY_S
            sources = {**silent, **{task: [*known] for task, known in own.items()}}
            self._question = question = Question(times, sources)
            self._host.thread(lambda: question.ask(self._log), "ends").start()

    def sure(self) -> Question | None:
        """Return an answered question, once; None: there is none."""
        question = self._question
        if question is None or not question.answered:
            return None
        self._question = None
        return question

    def _promised(self, task: TaskId) -> dict[str, int]:
        """Return the times that a task may promise, by timed topic, where its partition
        has not reached them yet.
        """
        now = self._host.now()
        found: dict[str, int] = {}
        for topic in self._resolved().programs[task.subtopology].timed_sinks:
            at = TopicPartition(topic, task.partition)
            known = self._of.get(topic)
            if known is None:
                continue
            time = known.promised(at, now, self.idle_s)
            if time > known.time(at):
                found[topic] = time
        return found

    def _reached_in(
        self,
        sources: Iterable[str],
        partition: int,
        topic: str,
    ) -> Awaited:
        """Return the least time that the key ranges of a source partition have reached
        on the way to a timed topic, and the first of those key ranges.

        A task has one time for all its sources, so of several sources the one that is
        furthest counts.
        """
        return max(
            (
                self._reached(TopicPartition(each, partition), store_id(topic))
                for each in sources
            ),
            key=lambda each: each.time,
        )

    def _reached(self, source: TopicPartition, operator: int) -> Awaited:
        """Return the least time that an operator has in the commits of the key ranges
        of a source partition, and the first of those key ranges.
        """
        return min(
            (
                Awaited(
                    source.partition,
                    each.key_range.groups,
                    dict(each.segment.operator_times).get(operator, NO_STREAM_TIME)
                    if isinstance(each, Winner)
                    else NO_STREAM_TIME,
                )
                for each in self._follower.whole(source)
            ),
            key=lambda each: each.time,
            default=Awaited(source.partition, ALL_GROUPS, NO_STREAM_TIME),
        )


def _by_partition(topic: str, reached: Iterable[Awaited]) -> dict[TopicPartition, int]:
    """Return these times by source partition. Those of different topics are apart."""
    return {TopicPartition(topic, each.partition): each.time for each in reached}
