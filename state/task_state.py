"""The state of one task: its stores behind their buffers, and the two ways in which an
interval ends.

    changes   serialises the dirty entries, once: for the changelogs, and kept for the database
    commit    writes these same bytes, and with the last of them the changelog offsets that they reach
    discard   clears the buffers; the database was not touched

Invariant: the database gets the same changes as the changelogs, after them: it may be
behind its changelog, never ahead.
Invariant: a checkpoint names the changelog from which the store was restored. If that
topic is recreated meanwhile, the new one has another topic id, and no restore continues
from offsets of the old one.
Relies on: `table` and its subclasses (what is dirty, frozen), `checkpoints`; the
committer calls `changes` and `commit`.
Turned down: writing the database during the interval (an
abort would have to wipe it).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TypeAlias

from coopstreams.state import layout
from coopstreams.state.checkpoints import NEVER_TRUE, NO_TOPIC, Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.expiring_table import ExpiringTable
from coopstreams.state.table import ChangelogBatch, SubscriberTable, Table
from coopstreams.state.window_table import SessionTable, VersionTable, WindowTable
from coopstreams.topology.keys import KeyGroups, KeyRange
from coopstreams.topology.stores import StoreKind, StoreSpec

__all__ = ["ChangelogBatch", "TaskState"]


NO_POSITIONS: Mapping[str, Mapping[KeyRange, int]] = {}
MakeTable: TypeAlias = Callable[[Database, StoreSpec, KeyGroups], Table]
"""A function that makes a store of a task, in place of the usual class."""
NO_TABLES: Mapping[str, MakeTable] = {}

_KINDS: Mapping[StoreKind, type[Table]] = {
    "window": WindowTable,
    "session": SessionTable,
    "versions": VersionTable,
    "subscribers": SubscriberTable,
}


class TaskState:
    """The stores of a task over the database that it shares with its siblings, after
    the restore. One thread.

    Units: `cache_bytes` bounds the buffers of all its stores together, approximately.
    """

    def __init__(
        self,
        database: Database,
        specs: Sequence[StoreSpec],
        key_range: KeyRange,
        cache_bytes: int,
        tables: Mapping[str, MakeTable] = NO_TABLES,
    ) -> None:
        """Make the stores over the database.

        `tables`: the factories of stores that need another class than the usual one, by
        name.
        """
        self._database = database
        self._budget = cache_bytes
        self._tables: dict[str, Table] = {}
        self._groups = (
            layout.groups_of(key_range) if specs else KeyGroups(0, 0)
        )  # without stores, any range will do
        for spec in specs:
            kind = _KINDS.get(
                spec.kind,
                Table if spec.ttl_ms is None else ExpiringTable,
            )
            self._tables[spec.name] = tables.get(spec.name, kind)(
                database,
                spec,
                self._groups,
            )
        self.pasts = frozenset(
            spec.past.name for spec in specs if spec.past is not None
        )
        """The names of the stores that keep ended versions of rows."""
        self._stands: dict[str, list[Checkpoint]] = {}
        """The last written checkpoints by store, without `true_ms`."""
        self.topic_ids = {
            name: self._topic_id(name)
            for name, table in self._tables.items()
            if table.spec.logged or table.spec.source is not None
        }
        """The topic id of the changelog of each store that has one."""

    @property
    def stores(self) -> Mapping[str, Table]:
        """The stores by name, for a program to bind."""
        return self._tables

    def begin(self, times: Mapping[str, int], *, by_birth: bool = False) -> None:
        """Set the stream time at which each store begins: no later window start counts
        as observed. Call it before a program is bound.

        `by_birth`: whether the task takes its records in the order of births.
        """
        for name, table in self._tables.items():
            table.begin(times[name], by_birth=by_birth)

    @property
    def full(self) -> bool:
        """Whether the buffers exceed the budget even without their clean entries, so
        that a commit is due.

        It removes clean entries. Ask between batches only: a removed entry is another
        object when it is loaded again.
        """
        for table in self._tables.values():
            table.weigh()
        return self._make_room()

    def changes(self) -> list[ChangelogBatch]:
        """Return the serialised changes since the last call, one batch for each store
        with changes and a changelog.

        Raises:
            SerdeError: a value cannot be serialised; the message names store and key.
                The interval is void: call `discard`.
        """
        batches = [table.freeze() for table in self._tables.values()]
        return [
            batch
            for batch in batches
            if batch is not None and self._tables[batch.store].spec.logged
        ]

    def commit(
        self,
        checkpoints: Mapping[str, int],
        positions: Mapping[str, Mapping[KeyRange, int]] = NO_POSITIONS,
        true_ms: int = NEVER_TRUE,
    ) -> None:
        """Write all changes that `changes` has serialised since the last commit, and in
        the last batch these checkpoints.

        Shape: `checkpoints`: by store, the changelog offset below which all records of
        this task lie. A store that is left out keeps its checkpoint; a store without
        changelog has none. `positions`, for stores that hold their source topic: for
        each range of the task, the offset of the source topic below which all records
        are done.
        Units: `true_ms` is a time at which no other member could write for this task:
        before the commit was requested.

        Raises:
            StateError: no checkpoint was written. The task cannot be used any more:
                open it again from the log.
        """
        changes = [change for table in self._tables.values() for change in table.frozen]
        stands = self._checkpoints(checkpoints, positions)
        stands |= self._observed(stands)
        moved = {
            name: at for name, at in stands.items() if at != self._stands.get(name)
        }
        if changes or moved:
            self._database.write(
                changes,
                {
                    name: [replace(run, true_ms=true_ms) for run in at]
                    for name, at in moved.items()
                },
            )
        self._stands |= moved
        for table in self._tables.values():
            table.frozen.clear()
        self._make_room()  # last: frozen entries may not be removed

    def confirm(self, true_ms: int) -> None:
        """Write to the checkpoints that the state was true at this time: no other
        member could write for the task until then.

        Without it, a task without changes would look like one that was away, which may
        have missed tombstones that compaction removed.

        Raises:
            StateError: nothing was written. The task cannot be used any more: open it
                again from the log.
        """
        stands = {
            name: self._database.checkpoints(name).within(self._groups)
            for name in self.topic_ids
        }
        self._database.write(
            [],
            {
                name: [replace(run, true_ms=true_ms) for run in at]
                for name, at in stands.items()
            },
        )

    def discard(self) -> None:
        """Discard all changes since the last commit; the database was not touched."""
        for table in self._tables.values():
            table.discard()

    def _checkpoints(
        self,
        offsets: Mapping[str, int],
        positions: Mapping[str, Mapping[KeyRange, int]],
    ) -> dict[str, list[Checkpoint]]:
        """Return the checkpoints of stores at offsets of their changelogs, or of their
        source topics (`positions`). A store that has neither has one at 0.
        """
        unlogged = {
            name: 0
            for name, table in self._tables.items()
            if not table.spec.logged and table.spec.source is None
        }
        whole = {
            name: [
                Checkpoint(
                    *self._groups,
                    at,
                    self._tables[name].observed,
                    topic_id=self.topic_ids.get(name, NO_TOPIC),
                )
            ]
            for name, at in {**offsets, **unlogged}.items()
        }
        return whole | {
            name: [
                Checkpoint(*layout.groups_of(part), at, topic_id=self.topic_ids[name])
                for part, at in parts.items()
            ]
            for name, parts in positions.items()
        }

    def _observed(self, told: Collection[str]) -> dict[str, list[Checkpoint]]:
        """Return new checkpoints for the window stores that are not in `told`, with the
        window starts that they have observed.

        A segment is dropped once it has expired for all key groups, including groups
        without records.
        """
        return {
            name: [
                replace(
                    run,
                    observed=max(run.observed, table.observed),
                    true_ms=NEVER_TRUE,
                )
                for run in self._database.checkpoints(name).within(self._groups)
            ]
            for name, table in self._tables.items()
            if table.spec.kind in layout.SEGMENTED and name not in told
        }

    def _topic_id(self, store: str) -> str:
        """Return the id of the changelog from which a store was restored; `NO_TOPIC` if
        its key groups have different ones.
        """
        ids = {
            run.topic_id
            for run in self._database.checkpoints(store).within(self._groups)
        }
        return ids.pop() if len(ids) == 1 else NO_TOPIC

    def _make_room(self) -> bool:
        """If the buffers exceed the budget, remove clean entries down to half of it;
        return whether that failed.
        """
        size = self._size_bytes()
        if size <= self._budget:
            return False
        if any(table.frozen for table in self._tables.values()):
            # frozen entries are in no database yet, so none may be removed before the
            # commit
            return True
        for table in self._tables.values():
            table.trim(self._budget / 2 / size)
        return self._size_bytes() > self._budget / 2

    def _size_bytes(self) -> int:
        return sum(table.size_bytes for table in self._tables.values())
