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
from coopstreams.tasks.promised_times import Advances
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

    `times`: by task and timed topic, the times that the task would promise to the
    topic's readers. `sources`: the sources of each of these tasks, whose ends are
    fetched after the times were known. `answered`: whether the brokers were asked, with
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
        """Return the times that a task promises that has read its sources up to these
        offsets, by timed topic. Empty: it is not silent.
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

    def make_sure(self, silent: Mapping[TaskId, Sequence[TopicPartition]]) -> None:
        """Ask for the ends of the sources of silent tasks that have something to
        promise. A separate thread asks, because brokers may not answer.
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

        A task has one time for all its sources, so of several sources the one that is
        furthest counts.
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
                for each in self._follower.whole(source)
            ),
            key=lambda each: each.time,
            default=Awaited(source.partition, ALL_GROUPS, NO_STREAM_TIME),
        )
