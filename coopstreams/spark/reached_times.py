"""The times that the tasks of a stage have reached at its end: those of operators, and
the clocks of the tasks that read its timed topics (`timed_topics`).

In Spark, the births of records are a column: the time that orders the rows of a timed
topic, through all stages. A task takes its rows in that order. So before each record
its clock is the record's birth, up to the clock at the end of the topic. Results that
are held until a window closes are thus forwarded on the way.

Invariant: the clock at the end is the one with which live tasks continue: the least
time of all partitions of the stage that writes the topic, which is in their commits. In
a rebuild it is the clock that the reader itself has committed.
Turned down: a clock that comes to its end only behind the last record (all windows of
the history would be held).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coopstreams.commit.record import Segment
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.spark_task import TaskResult
from coopstreams.topology.compile.operator_time import OperatorTimes, latest, store_id
from coopstreams.topology.graph.timed_topics import (
    reads_in_birth_order,
    timed_topics,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange


def operator_times(
    results: Iterable[TaskResult],
) -> dict[tuple[str, int], OperatorTimes]:
    """Return the operator times of each source partition: the latest ones of its tasks.

    Tasks of a partition differ where a processor has chosen timestamps. A task with the
    whole partition would have reached the latest time.
    """
    found: dict[tuple[str, int], OperatorTimes] = {}
    for result in results:
        for topic, times in result.operator_times.items():
            place = topic, result.partition
            found[place] = latest(found.get(place, ()), times)
    return found


@dataclass(slots=True)
class Clocks:
    """The clocks at the ends of the timed topics of a run, known for the stages that
    have ended.
    """

    topology: Topology
    plan: Plan
    _ends: dict[str, int] = field(default_factory=dict)

    def ended(self, stage: Stage, results: Sequence[TaskResult]) -> None:
        """Store the clocks at the ends of the topics that a stage has written."""
        times = operator_times(results)
        for topic, _ in stage.forwarded:
            operator = store_id(topic)
            self._ends[topic] = min(
                max(
                    dict(times.get((source, partition), ())).get(
                        operator,
                        NO_STREAM_TIME,
                    )
                    for source in stage.topics
                )
                for partition in range(stage.partitions)
            )

    def of(self, stage: Stage) -> tuple[int, ...] | None:
        """Return the clock of each task of a stage at the end of its timed topic; None
        if it reads none, or takes the records in the order of births: then its time is
        the birth of the last record.
        """
        timed = timed_topics(self.topology.subtopologies)
        part = self.topology.subtopologies[stage.subtopology]
        if timed.isdisjoint(stage.topics) or reads_in_birth_order(part, timed):
            return None
        (topic,) = timed.intersection(stage.topics)
        rebuild = self.plan.rebuild
        if rebuild is None:
            return (self._ends[topic],) * stage.tasks
        return tuple(
            _committed(rebuild.committed[topic][partition], key_range)
            for partition in range(stage.partitions)
            for key_range in KeyRange.split(stage.ranges)
        )


def _committed(segments: Sequence[Segment], key_range: KeyRange) -> int:
    """Return the time (ms) to which the clocks of all segments in a key range had
    advanced when they were committed: the least of them.
    """
    return min(
        max((time for _, time in each.operator_times), default=NO_STREAM_TIME)
        for each in segments
        if each.key_range.intersect(key_range) is not None
    )
