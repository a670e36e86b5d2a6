"""Planted bugs of snapshots by the running application: see `planted`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from coopstreams.common.config import Config
from coopstreams.state import snapshot_round
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database, FamilyRows
from coopstreams.state.engine import Change
from coopstreams.state.manifest import Slice
from coopstreams.state.task_state import TaskState
from coopstreams.topology.keys import KeyGroups
from tests.simulation import world as worlds
from tests.simulation.hosts import Hosts
from tests.simulation.shelf import Shelf
from tests.simulation.world import World

_config = World.config


def _with_snapshots(self: World, number: int) -> Config:
    config = _config(self, number)
    return Config(
        {**config.values, "snapshots.interval.ms": 1_000},
        config.client,
    )


def _disk_is_lost(self: Hosts, _: object, down: Sequence[int]) -> None:
    """A process that ended has lost its disk."""
    if down:
        self._lose(self._random.choice(down))


@contextmanager
def _snapshots_always() -> Iterator[None]:
    """Every history has snapshots, which the application alone makes; processes die, and
    start again without their disks.
    """
    events = ("produce", "produce", "produce", "start", "kill", "host", "rest")
    with (
        patch.object(World, "events_that_happen", events),
        patch.object(World, "config", _with_snapshots),
        patch.object(Hosts, "happen", _disk_is_lost),
        patch.object(worlds, "SHELVES", 1.0),
        patch.object(Shelf, "_happen", lambda _: None),
    ):
        yield


@contextmanager
def uncommitted_rows() -> Iterator[None]:
    """A slice has the rows that a task is about to commit."""
    pending: WeakKeyDictionary[Database, list[Change]] = WeakKeyDictionary()
    changes = TaskState.changes
    commit = TaskState.commit
    discard = TaskState.discard
    as_of_now = Database.as_of_now

    def noted(self: TaskState) -> Any:
        batches = changes(self)
        frozen = [one for table in self._tables.values() for one in table.frozen]
        pending.setdefault(self._database, []).extend(frozen)
        return batches

    def committed(self: TaskState, *given: Any) -> None:
        commit(self, *given)
        pending.pop(self._database, None)

    def discarded(self: TaskState) -> None:
        discard(self)
        pending.pop(self._database, None)

    def with_pending(
        self: Database, store: str, groups: KeyGroups, known: Any = ()
    ) -> list[tuple[Checkpoint, list[FamilyRows]]]:
        ahead = pending.get(self, [])
        return [
            (at, [_overlaid(each, at, ahead) for each in families])
            for at, families in as_of_now(self, store, groups, () if ahead else known)
        ]

    with (
        _snapshots_always(),
        patch.multiple(TaskState, changes=noted, commit=committed, discard=discarded),
        patch.object(Database, "as_of_now", with_pending),
    ):
        yield


def _overlaid(of: FamilyRows, at: Checkpoint, changes: Sequence[Change]) -> FamilyRows:
    """Return the rows of a family as they are after these changes."""
    here = [change for change in changes if change.family == of.family]
    if of.rows is None or not here:
        return of
    rows: dict[bytes, bytes | None] = dict(of.rows)
    for change in here:
        rows |= dict(zip(change.keys, change.values, strict=True))
    found = [
        (key, value)
        for key, value in sorted(rows.items())
        if value is not None and at.first <= key[0] <= at.last
    ]
    return of._replace(rows=iter(found))


@contextmanager
def mixed_publishers() -> Iterator[None]:
    """A snapshot has the offsets of one publisher, and the files of another one that
    was there before.
    """

    def mixed(older: Iterable[Slice], newer: Iterable[Slice]) -> tuple[Slice, ...]:
        before = {(each.partition, each.first, each.last): each for each in older}
        return tuple(
            replace(each, files=same.files)
            if (same := before.get((each.partition, each.first, each.last)))
            else each
            for each in newer
        )

    with _snapshots_always(), patch.object(snapshot_round, "merged", mixed):
        yield
