"""The state of one task: its stores behind their buffers, and the two ways an interval ends, commit and discard.

    changes   what is dirty becomes bytes, once: for the changelogs, and kept for the database
    commit    these very bytes and the changelog offsets they stand for, in one batch
    discard   the buffers are forgotten; the database was not touched

Invariant: the database gets what the changelogs got, after they got it: it may be behind its changelog, never ahead.
Invariant: whatever it writes stands in the changelogs that it was restored from: made anew meanwhile, they are other
topics, and what was written at their offsets is not continued from.
Turned down: writing the database while an interval goes on (an abort would have to wipe it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coopstreams.state import layout
from coopstreams.state.checkpoints import NEVER_TRUE, NO_TOPIC, Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.table import ChangelogBatch, Table
from coopstreams.state.window_table import SessionTable, WindowTable
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.stores import StoreKind, StoreSpec

__all__ = ["ChangelogBatch", "TaskState"]


NO_POSITIONS: Mapping[str, Mapping[KeyRange, int]] = {}

_KINDS: Mapping[StoreKind, type[Table]] = {"window": WindowTable, "session": SessionTable}


class TaskState:
    """The stores of a task over the database that it shares with its siblings, restored up to where the task begins.
    One thread.

    Units: `cache_bytes` bounds the buffers of all its stores together, about.
    """

    def __init__(self, database: Database, specs: Sequence[StoreSpec], key_range: KeyRange, cache_bytes: int) -> None:
        self._database = database
        self._budget = cache_bytes
        self._tables: dict[str, Table] = {}
        self._first, self._last = layout.groups_of(key_range) if specs else (0, 0)  # without state any cut will do
        for spec in specs:
            self._tables[spec.name] = _KINDS.get(spec.kind, Table)(database, spec, self._first, self._last)
        self._stands: dict[str, list[Checkpoint]] = {}
        """Without the time at which they were true."""
        self.topic_ids = {
            name: self._topic_id(name)
            for name, table in self._tables.items()
            if table.spec.logged or table.spec.source is not None
        }
        """Of the changelog of each store that has one."""

    @property
    def stores(self) -> Mapping[str, Table]:
        """The stores by name, for a program to bind."""
        return self._tables

    @property
    def full(self) -> bool:
        """Whether the buffers are over budget, although what is clean was let go: commit now.

        Ask between batches only: an entry that was let go is not the one that is loaded next.
        """
        for table in self._tables.values():
            table.weigh()
        return self._make_room()

    def changes(self) -> list[ChangelogBatch]:
        """Return what changed since the last call, serialised, a batch for each store with a changelog that has any.

        Raises:
            SerdeError: a value does not become bytes; names store and key. The interval is void: `discard`.
        """
        batches = [table.freeze() for table in self._tables.values()]
        return [batch for batch in batches if batch is not None and self._tables[batch.store].spec.logged]

    def commit(
        self,
        checkpoints: Mapping[str, int],
        positions: Mapping[str, Mapping[KeyRange, int]] = NO_POSITIONS,
        true_ms: int = NEVER_TRUE,
    ) -> None:
        """Write everything `changes` returned since the last commit, with these checkpoints, in one batch.

        Shape: checkpoints by store: the changelog offset below which all records of this task lie. A store that is left
        out keeps the one it has; one without changelog has none. `positions` by store that holds its source topic: the
        offset of the topic below which all records of a range are done, for the ranges of the task.
        Units: `true_ms` is a time at which nobody else could write for this task: before the commit was asked for.

        Raises:
            StateError: nothing was written; the task is of no use any more and is opened again from the log.
        """
        changes = [change for table in self._tables.values() for change in table.frozen]
        moved = {
            name: at for name, at in self._checkpoints(checkpoints, positions).items() if at != self._stands.get(name)
        }
        if changes or moved:
            self._database.write(
                changes, {name: [replace(run, true_ms=true_ms) for run in at] for name, at in moved.items()}
            )
        self._stands |= moved
        for table in self._tables.values():
            table.frozen.clear()
        self._make_room()

    def confirm(self, true_ms: int) -> None:
        """Say of what the database has that it is true at this time, too: nobody else could write for this task until
        then.

        So a task that has nothing to write is not taken for one that was away, and may have missed tombstones that its
        changelog has forgotten.

        Raises:
            StateError: nothing was written; the task is of no use any more and is opened again from the log.
        """
        stands = {name: self._database.checkpoints(name).within(self._first, self._last) for name in self.topic_ids}
        self._database.write([], {name: [replace(run, true_ms=true_ms) for run in at] for name, at in stands.items()})

    def discard(self) -> None:
        """Forget everything since the last commit; the database was not touched."""
        for table in self._tables.values():
            table.discard()

    def _checkpoints(
        self, offsets: Mapping[str, int], positions: Mapping[str, Mapping[KeyRange, int]]
    ) -> dict[str, list[Checkpoint]]:
        unlogged = {
            name: 0 for name, table in self._tables.items() if not table.spec.logged and table.spec.source is None
        }
        whole = {
            name: [
                Checkpoint(
                    self._first,
                    self._last,
                    at,
                    self._tables[name].observed,
                    topic_id=self.topic_ids.get(name, NO_TOPIC),
                )
            ]
            for name, at in {**offsets, **unlogged}.items()
        }
        return whole | {
            name: [Checkpoint(*layout.groups_of(part), at, topic_id=self.topic_ids[name]) for part, at in parts.items()]
            for name, parts in positions.items()
        }

    def _topic_id(self, store: str) -> str:
        """Return which changelog a store was restored from; none, if its key groups do not agree."""
        ids = {run.topic_id for run in self._database.checkpoints(store).within(self._first, self._last)}
        return ids.pop() if len(ids) == 1 else NO_TOPIC

    def _make_room(self) -> bool:
        """Let go of clean entries if the buffers are over budget, down to half of it; return whether that was not
        enough.
        """
        size = self._size_bytes()
        if size <= self._budget:
            return False
        if any(table.frozen for table in self._tables.values()):
            return True  # what is frozen is in no database yet: nothing may be let go before the commit
        for table in self._tables.values():
            table.trim(self._budget / 2 / size)
        return self._size_bytes() > self._budget / 2

    def _size_bytes(self) -> int:
        return sum(table.size_bytes for table in self._tables.values())
