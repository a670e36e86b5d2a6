"""Deletes records that no task needs any more: processed records of repartition topics,
and expired windows of changelogs.

Brokers delete neither. A repartition topic has no retention, because a task may be
behind for any time. Nor has a changelog of windows: brokers compare a record's event
time with their own clock, and on a backlog they would delete windows that are still
open. A restore would then begin without them, and their results would be too small,
without an error. (Turned down: Kafka Streams' `retention.ms`, the windows' retention
and a day, which is known to delete open windows in this way; and a tombstone for each
expired row, which doubles what is written.)

Invariant: the owner of hash 0 deletes for its siblings: up to the stable offset, and
the windows that have expired by the stream times there. No sibling is at an earlier
position or time.
Relies on: `commit.progress` (the stable offset, and the times named there),
`state.layout` (which rows expired), `log.precondition` (deletes only in the topic that
the task knows).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from coopstreams.instance.task_registry import Standing
from coopstreams.log.log import NO_STREAM_TIME, Log
from coopstreams.log.precondition import Precondition
from coopstreams.state import layout
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import operators_of
from coopstreams.topology.errors import FencedError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

T = TypeVar("T")
STEPS = 10
"""The number of purges of a changelog while as much stream time passes as the changelog
keeps. So it keeps a tenth more than needed, and the brokers get few requests.
"""


class _Turns:
    """The order of deletions. Partitions that failed the last time come last, so that a
    partition without a leader delays no other.
    """

    def __init__(self) -> None:
        self._failed: dict[TopicPartition, None] = {}
        """The partitions that failed the last time, in the order of the attempts."""

    def take(
        self,
        due: Mapping[TopicPartition, T],
        delete: Callable[[TopicPartition, T], None],
    ) -> None:
        """Call `delete` for each partition, with its value in `due`.

        Raises:
            LogError: a deletion failed; the partitions behind it come first the next
            time.
        """
        failed = self._failed
        first = [partition for partition in due if partition not in failed]
        last = [partition for partition in failed if partition in due]
        for partition in (*first, *last):
            failed[partition] = failed.pop(partition, None)
            try:
                delete(partition, due[partition])
            except FencedError as error:
                log.debug("not purged: %s", error)
                return
            del failed[partition]


@dataclass(frozen=True, slots=True)
class Membership:
    """The group membership on which deletions rely.

    A process that is not certainly a member deletes nothing: the certain members do,
    and a reset may have recreated the topics. `sure`: returns whether this process
    certainly is a member under an epoch (`GroupMember.sure`).
    """

    log: Log
    sure: Callable[[int], bool]

    def may_delete(self, topic: str, topic_id: str, task: Task) -> Precondition:
        """Return the precondition of a deletion: the topic has the id that the task
        knows, and the membership goes on.
        """
        return Precondition(
            self.log,
            {topic: topic_id},
            lambda: self.sure(task.epoch),
            f"this process is not certainly in the group any more under epoch {task.epoch}",
        )


class Purge:
    """Deletes processed records of repartition topics for one instance: those below the
    stable offset, in the partitions whose hash 0 it owns.
    """

    def __init__(
        self,
        membership: Membership,
        topics: frozenset[str],
        standing: Callable[[], Standing],
    ) -> None:
        self._membership = membership
        self._topics = topics
        self._standing = standing
        self._deleted: dict[TopicPartition, int] = {}
        self._turns = _Turns()

    def purge(self) -> None:
        """Delete the records that all tasks have processed.

        Raises:
            LogError: the records of a partition are not deleted. The next purge tries
            the other partitions first.
        """
        self._turns.take(self._stable(), self._delete)

    def _delete(self, source: TopicPartition, due: tuple[int, Task]) -> None:
        """Delete what is below the stable offset of `due`, as the task of `due` knows
        it.
        """
        stable, task = due
        topic_id = task.progress.topic_ids.get(source.topic, NO_TOPIC)
        check = self._membership.may_delete(source.topic, topic_id, task)
        self._membership.log.delete_before(source, stable, check)
        self._deleted[source] = stable

    def _stable(self) -> dict[TopicPartition, tuple[int, Task]]:
        """Return the stable offset of each partition that has more records to delete,
        and a task that knows it.
        """
        due: dict[TopicPartition, tuple[int, Task]] = {}
        for task in self._standing().tasks.values():
            for source in task.sources:
                if source.topic in self._topics:
                    stable = task.progress.stable(source)
                    if stable and stable.offset > self._deleted.get(source, 0):
                        due[source] = stable.offset, task
        return due


@dataclass(frozen=True, slots=True)
class _Expired:
    """The rows of a window store that have expired: those dated before `horizon_ms`."""

    horizon_ms: int
    spec: StoreSpec
    task: Task


@dataclass(frozen=True, slots=True)
class WindowStores:
    """The facts about an application's window stores that a purge needs.

    `additional_ms`: how much longer than its store a changelog keeps rows.
    """

    subtopology: Callable[[int], SubTopology]
    changelog: Callable[[StoreSpec], str]
    additional_ms: int


class WindowPurge:
    """Deletes expired windows from changelogs for one instance: those expired by stream
    time, in the partitions whose hash 0 it owns.
    """

    def __init__(
        self,
        membership: Membership,
        stores: WindowStores,
        standing: Callable[[], Standing],
    ) -> None:
        self._membership = membership
        self._stores = stores
        self._standing = standing
        self._operators = cache(self._operators_of)
        self._horizons: dict[TopicPartition, int] = {}
        """The horizon of the last purge of each changelog: older rows were deleted."""
        self._turns = _Turns()

    def purge(self) -> None:
        """Delete the expired rows at the beginning of each changelog.

        Raises:
            LogError: a changelog was not purged. The next purge tries the others first.
        """
        self._turns.take(self._due(), self._delete)

    def _delete(self, changelog: TopicPartition, expired: _Expired) -> None:
        """Delete the records of a changelog below its first one that is not older than
        the horizon.
        """
        cluster = self._membership.log
        # A row's record is not older than the start of its window. So no record below
        # this one is of a window that can still be seen.
        begin = cluster.offset_at(changelog, expired.horizon_ms)
        topic_id = expired.task.state.topic_ids.get(expired.spec.name, NO_TOPIC)
        check = self._membership.may_delete(changelog.topic, topic_id, expired.task)
        cluster.delete_before(changelog, begin, check)
        self._horizons[changelog] = expired.horizon_ms

    def _due(self) -> dict[TopicPartition, _Expired]:
        """Return the changelogs in which enough rows have expired since the last purge."""
        additional_ms = self._stores.additional_ms
        due: dict[TopicPartition, _Expired] = {}
        for task in self._standing().tasks.values():
            for spec, reached in self._reached(task):
                horizon = layout.horizon_at(spec, reached) - additional_ms
                step = (layout.retention_ms(spec) + additional_ms) // STEPS
                changelog = TopicPartition(
                    self._stores.changelog(spec),
                    task.id.partition,
                )
                last = self._horizons.get(changelog, -step)
                if horizon > max(0, last + step):
                    due[changelog] = _Expired(horizon, spec, task)
        return due

    def _reached(self, task: Task) -> Iterator[tuple[StoreSpec, int]]:
        """Yield the window stores of a task that owns hash 0, and the stream time that
        each has reached in all key ranges.

        Only times named in a commit count. An operator without one may be behind the
        partition.
        """
        stable = [task.progress.stable(source) for source in task.sources]
        for spec, operators in self._operators(task.id.subtopology):
            times = [
                time
                for plain in stable
                if plain is not None
                for operator, time in plain.operator_times
                if operator in operators
            ]
            yield spec, max(times, default=NO_STREAM_TIME)

    def _operators_of(self, number: int) -> list[tuple[StoreSpec, frozenset[int]]]:
        """Return the window stores of a sub-topology that have changelogs, each with
        the ids of its operators.
        """
        subtopology = self._stores.subtopology(number)
        windows = [
            spec
            for spec in subtopology.stores
            if spec.logged and spec.kind in layout.SEGMENTED
        ]
        if not windows:
            return []
        operators = operators_of(subtopology)
        return [
            (spec, frozenset(operator.id for operator in operators[spec.name]))
            for spec in windows
        ]
