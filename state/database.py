"""The state of one (sub-topology, partition) on an instance: its stores, with the
checkpoint of each key group.

Sibling tasks share it, each with key groups of its own and from its own thread; so do
restores and queries. Each write brings its checkpoints in the same batch.

Stores may be in several engines. Each engine is an `EngineStores`, with the checkpoints
of its own stores: a store in memory is restored from the beginning of its changelog at
every start, while a store on disk continues from its checkpoint.

Invariant: state and checkpoint of a key group change atomically, except for rows that
the changelog brings again. Turned down: one batch over all engines (two engines cannot
share a batch, and need not: each store has its own changelog, and a database may be
behind its changelogs). Turned down: a database for each task (siblings would triple the
memory, and a range that is cut again would have to move).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint, Checkpoints
from coopstreams.state.engine import Change, Engine, Getter, Rows
from coopstreams.state.engine_stores import EngineStores
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import StoreSpec

_NONE: Mapping[str, Engine] = MappingProxyType({})


class Database:
    """Stores over an engine. Any thread. `apart`: by store, the engines of stores that
    are not in `engine`.

    A store that was written with another shape (kind, segment length, the topic of its
    checkpoints) starts empty, and its changelog restores it.
    """

    def __init__(
        self,
        engine: Engine,
        specs: Iterable[StoreSpec],
        *,
        apart: Mapping[str, Engine] = _NONE,
    ) -> None:
        self.guard = Lock()
        """The lock of `siblings`."""
        self.siblings: dict[str, Any] = {}
        """State that operators of all tasks share, by name. It lives as long as the
        object.
        """
        self.specs: dict[str, StoreSpec] = {spec.name: spec for spec in specs}
        self._engine_stores: list[EngineStores] = []
        self._of: dict[str, EngineStores] = {}
        for each in {id(each): each for each in (engine, *apart.values())}.values():
            stores = [
                spec
                for spec in self.specs.values()
                if apart.get(spec.name, engine) is each
            ]
            engine_stores = EngineStores(each, stores)
            self._engine_stores.append(engine_stores)
            self._of |= {spec.name: engine_stores for spec in stores}

    def getter(self, store: str) -> Getter:
        """Return the function that reads a database key of a key-value store."""
        return self._of[store].getter(store)

    def segment_getter(self, store: str, segment: int) -> Getter | None:
        """Return the function that reads a database key of a time segment; None if
        there is no such segment.
        """
        return self._of[store].segment_getter(store, segment)

    def checkpoints(self, store: str) -> Checkpoints:
        """Return the checkpoints of a store."""
        return self._of[store].checkpoints(store)

    def scan(
        self,
        store: str,
        groups: Iterable[int],
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return the store keys start <= key < end of some key groups and their values,
        in key order, as of now.

        It costs a seek for each group and segment, unless there are few rows. For the
        windows of one key, use `windows_of`.
        """
        return self._of[store].scan(store, groups, start, end, reverse=reverse)

    def beginning_with(self, store: str, key: bytes) -> Rows:
        """Return the database keys of a key-value store that begin with that of a plain
        key, and their values, as of now. Those of other plain keys, of which this one
        is the beginning, may be among them.
        """
        return self._of[store].beginning_with(store, key)

    def by_timestamp(
        self, store: str, groups: Iterable[int], first_ms: int
    ) -> Iterator[tuple[int, bytes]]:
        """Return (timestamp, store key) of the rows of a store with a time to live,
        from a timestamp on.

        Shape: ordered by timestamp, then key. A row may be listed under earlier ones,
        too, and a deleted one still is.
        """
        return self._of[store].by_timestamp(store, groups, first_ms)

    def windows_of(self, store: str, key: bytes, first: int, last: int) -> Rows:
        """Return the store keys of a plain key with first <= time <= last, and their
        values, by time, as of now.

        Units: `first` at least 0, `last` below 2^63; the time of a session or version
        is its end.
        """
        return self._of[store].windows_of(store, key, first, last)

    def latest_ms(self, store: str) -> int:
        """Return a time behind which a window or session store has none; less than 0:
        it is empty.
        """
        return self._of[store].latest_ms(store)

    def write(
        self, changes: Sequence[Change], checkpoints: Mapping[str, Sequence[Checkpoint]]
    ) -> None:
        """Write the changes of some stores and their new checkpoints, then drop the
        segments that have expired.

        Raises:
            StateError: no checkpoint was written, and no row but those that the
                changelog brings again; with stores in several engines, some engines may
                be written, with their checkpoints, and others not.
        """
        if len(self._engine_stores) == 1:
            self._engine_stores[0].write(changes, checkpoints)
            return
        for engine_stores in self._engine_stores:
            here = [
                change
                for change in changes
                if self._of[layout.store_of(change.family)] is engine_stores
            ]
            at = {
                store: each
                for store, each in checkpoints.items()
                if self._of[store] is engine_stores
            }
            if here or at:
                engine_stores.write(here, at)

    def rows(self, store: str, groups: KeyGroups) -> list[tuple[str, Rows]]:
        """Return the rows of some key groups of a store, by family, with database keys,
        as of now.
        """
        return self._of[store].rows(store, groups)

    def ingest(
        self,
        store: str,
        checkpoints: Sequence[Checkpoint],
        files: Mapping[str, Sequence[Path]],
    ) -> None:
        """Replace all keys of a store in the groups of the checkpoints by sorted files
        (by family).

        The files hold keys of these groups alone, and are gone afterwards. If it is
        interrupted, the groups have no checkpoint and are emptied when they are opened
        next.
        """
        self._of[store].ingest(store, checkpoints, files)

    def drop(self, groups: KeyGroups) -> None:
        """Delete these key groups of all stores: keys and checkpoints, in one batch of
        each engine.
        """
        for engine_stores in self._engine_stores:
            engine_stores.drop(groups)

    def wipe(self, store: str, checkpoint: Checkpoint) -> None:
        """Delete all keys of a store in the groups of the checkpoint, and store the
        checkpoint.
        """
        self._of[store].wipe(store, checkpoint)

    def has_keys(self, store: str, groups: KeyGroups) -> bool:
        """Whether these key groups of a store have any key."""
        return self._of[store].has_keys(store, groups)

    def is_empty(self) -> bool:
        """Whether there is neither a key nor a checkpoint."""
        return all(engine_stores.is_empty() for engine_stores in self._engine_stores)

    def count(self, store: str, groups: frozenset[int]) -> int:
        """Return the number of rows of some key groups of a store; an estimate if they
        are more than a thousand.
        """
        return self._of[store].count(store, groups)

    def close(self) -> None:
        """Close the engines. Idempotent."""
        with ExitStack() as closing:  # all are closed, even if one fails to close
            for engine_stores in self._engine_stores:
                closing.callback(engine_stores.close)
