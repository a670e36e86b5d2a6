"""Repairs changelogs in a rebuild from the source: compares a task's state with them,
and writes the differences.

    present       the state that a live task would restore, in a second database: the changelogs up to their ends when
                  the run was planned
    differences   a merge of both in key order
    written       in the transaction of the task: missing or wrong rows, and tombstones for surplus ones

So instances with local state only replay the differences, and nothing else changes: no
topic, no offset, no other range.

Invariant: including the differences, a changelog restores to the rebuilt state; the
part before them is unchanged. Turned down: an emptied changelog with all rows again
(all instances would restore everything, and the differences could not be reported).
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coopstreams.admin.rebuild import finish
from coopstreams.common.config import Config
from coopstreams.opening.restores import Restores
from coopstreams.spark.changelog_rows import Expiry, record_of, visible
from coopstreams.spark.committed_positions import check_stopped
from coopstreams.spark.committed_records import Rebuild
from coopstreams.spark.outbox import Outbox, Seeds, cluster_of
from coopstreams.spark.plan import Stage
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Rows
from coopstreams.state.manifest import Slice, placed
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import SnapshotWriter
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId


@dataclass(slots=True)
class Differences:
    """The result of a store's repair: how many rows of its changelog equalled those
    that follow from the source, and how many were added, changed or deleted. A trial
    run counts the same without writing.
    """

    equal: int = 0
    added: int = 0
    changed: int = 0
    deleted: int = 0

    def __add__(self, other: Differences) -> Differences:
        return Differences(
            self.equal + other.equal,
            self.added + other.added,
            self.changed + other.changed,
            self.deleted + other.deleted,
        )

    @property
    def wrong(self) -> int:
        """The number of rows that differ."""
        return self.added + self.changed + self.deleted

    def __str__(self) -> str:
        return f"{self.equal:,} equal, {self.added:,} added, {self.changed:,} changed, {self.deleted:,} deleted"


def differences(
    found: Rows,
    right: Rows,
    counted: Differences,
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes that turn the found rows into the right ones: key, and row or
    None.

    Both come by ascending key. The rows are counted in `counted`.
    """
    here = next(found, None)
    there = next(right, None)
    while here is not None or there is not None:
        if there is None or (here is not None and here[0] < there[0]):
            assert here is not None
            counted.deleted += 1
            yield here[0], None
            here = next(found, None)
        elif here is None or there[0] < here[0]:
            counted.added += 1
            yield there
            there = next(right, None)
        else:
            if here[1] == there[1]:
                counted.equal += 1
            else:
                counted.changed += 1
                yield there
            here = next(found, None)
            there = next(right, None)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The state of a task as it follows from its source topics.

    Shape: `specs` are all its stores; `horizons` has, for each store, the earliest time
    of the rows that have not expired.
    """

    task: TaskId
    database: Database
    specs: tuple[StoreSpec, ...]
    horizons: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of changelogs by the tasks of one stage (a sub-topology). `stores` are
    those whose changelogs to repair.
    """

    rebuild: Rebuild
    stores: tuple[str, ...]

    @staticmethod
    def of(stage: Stage, rebuild: Rebuild) -> Repair | None:
        """Return the repair of a stage; None if the stage only feeds others."""
        stores = tuple(store for store in stage.stores if store in rebuild.stores)
        return Repair(rebuild, stores) if stores else None

    def write(
        self,
        config: Config,
        rebuilt: Rebuilt,
        expiries: Mapping[str, Expiry],
        expired: Counter[str],
        outbox: Outbox | None,
    ) -> dict[str, Differences]:
        """Write the differences of each store to its changelog, except in a dry run;
        return their counts.

        `outbox`: None in a dry run. `expired`: counts, by store, the rows that are left
        out.

        Raises:
            GroupError: the application runs.
            LogError: a changelog stood still for two minutes, or its retention would
            delete a row at once.
        """
        key_range = self.rebuild.covered(rebuilt.task)
        specs = self._specs(rebuilt)
        result = dict[str, Differences]()
        if key_range is None:
            return result
        with (
            tempfile.TemporaryDirectory(prefix="coopstreams-rebuild-") as folder,
            closing(Database(Rocks(Path(folder)), specs)) as present,
        ):
            self._restore(
                config,
                replace(rebuilt.task, key_range=key_range),
                specs,
                present,
            )
            for spec in specs:
                counted = Differences()
                horizon = rebuilt.horizons[spec.name]
                expiry = expiries[spec.name]
                here = visible(present, spec, key_range, horizon)
                there = visible(rebuilt.database, spec, key_range, horizon)
                # What the changelog still has of them is right as well: the brokers
                # delete it.
                found = expiry.kept(spec, here, Counter())
                right = expiry.kept(spec, there, expired)
                changes = differences(found, right, counted)
                if outbox is None:
                    deque(changes, maxlen=0)
                else:
                    changelog = TopicPartition(
                        changelog_of(config, spec),
                        rebuilt.task.partition,
                    )
                    records = _records(spec, changes, expiry.oldest_ms, changelog.topic)
                    outbox.seed(Seeds(changelog, records))
                result[spec.name] = counted
        # Last, before the caller commits: an application that has begun meanwhile may
        # have restored without these rows.
        check_stopped(config)
        return result

    def export(
        self,
        rebuilt: Rebuilt,
        writer: SnapshotWriter,
    ) -> dict[str, list[Slice]]:
        """Return the state as slices of a snapshot, at the planned ends of the
        changelogs.

        Replaying the differences behind those ends does not change it.
        """
        key_range = self.rebuild.covered(rebuilt.task)
        partition = rebuilt.task.partition
        now_ms = int(time.time() * 1000)
        if key_range is None:
            return {}
        return {
            spec.name: list(
                placed(
                    writer.export(rebuilt.database, spec, partition, key_range),
                    self.rebuild.ends[spec.name],
                    now_ms,
                )
            )
            for spec in self._specs(rebuilt)
        }

    def _specs(self, rebuilt: Rebuilt) -> list[StoreSpec]:
        """Return the stores of a task whose changelogs are repaired."""
        return [spec for spec in rebuilt.specs if spec.name in self.stores]

    def _restore(
        self,
        config: Config,
        task: TaskId,
        specs: Sequence[StoreSpec],
        present: Database,
    ) -> None:
        """Restore the stores of `task` (with the range to rebuild) into `present`, from
        their changelogs up to the planned ends.
        """
        ends = {
            spec.name: {task.key_range: end}
            for spec in specs
            if (end := self.rebuild.ends[spec.name][task.partition])
        }
        with closing(cluster_of(config)) as cluster:
            restoring = Restores(cluster, partial(changelog_of, config))
            with closing(restoring):
                restoring.add(
                    task,
                    [spec for spec in specs if spec.name in ends],
                    present,
                    ends,
                )
                finish(restoring, task, self.stores)


def changelog_of(config: Config, spec: StoreSpec) -> str:
    """Return the changelog topic of a store."""
    return changelog_topic(config["application.id"], spec.name)


def _records(
    spec: StoreSpec,
    changes: Iterator[tuple[bytes, bytes | None]],
    oldest_ms: int,
    changelog: str,
) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Yield the changelog records of changes.

    A tombstone has the current time: with its row's time, compaction could remove the
    tombstone before the row.
    """
    for key, row in changes:
        yield (
            (layout.changelog_key(spec.kind, key), None, int(time.time() * 1000))
            if row is None
            else record_of(spec, key, row, oldest_ms, changelog)
        )
