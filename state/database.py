"""The state of one (sub-topology, partition) on an instance: its stores, and how far each key group of them stands.

Sibling tasks share it, each with key groups of its own, from several threads; so do restores and queries. What they
write comes with the checkpoint it stands for, in one batch.

Stores may be in several engines. Each of these is an `EngineStores`, with the checkpoints of its own stores: what is in
memory is restored from the beginning of its changelog at every start, while its neighbour on disk goes on from where it
stands.

Invariant: state and checkpoint of a key group change together or not at all.
Turned down: one batch over all engines (no two of them could agree on one, and nobody needs it: each store has a
changelog of its own, and a database may be behind its changelogs anyhow).
Turned down: a database for each task (siblings would triple the memory, and a re-cut range would have to move).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint, Checkpoints
from coopstreams.state.engine import Change, Engine, Getter, Rows
from coopstreams.state.engine_stores import EngineStores
from coopstreams.topology.stores import StoreSpec

_NONE: Mapping[str, Engine] = MappingProxyType({})


class Database:
    """Stores over an engine. Any thread. `apart`: the engines of those that are in others, by store.

    A store that was written under another shape (kind, segment length, the topic that its checkpoints speak of) starts
    empty: its changelog restores it.
    """

    def __init__(self, engine: Engine, specs: Iterable[StoreSpec], *, apart: Mapping[str, Engine] = _NONE) -> None:
        self.guard = Lock()
        """To be held while `siblings` is used."""
        self.siblings: dict[str, Any] = {}
        """What operators of all tasks share, by name. Nothing of it outlives the object."""
        self.specs: dict[str, StoreSpec] = {spec.name: spec for spec in specs}
        self._engine_stores: list[EngineStores] = []
        self._of: dict[str, EngineStores] = {}
        for each in {id(each): each for each in (engine, *apart.values())}.values():
            stores = [spec for spec in self.specs.values() if apart.get(spec.name, engine) is each]
            engine_stores = EngineStores(each, stores)
            self._engine_stores.append(engine_stores)
            self._of |= {spec.name: engine_stores for spec in stores}

    def getter(self, store: str) -> Getter:
        """Return the function that reads a database key of a key-value store."""
        return self._of[store].getter(store)

    def segment_getter(self, store: str, segment: int) -> Getter | None:
        """Return the function that reads a database key of a time segment; None if there is no such segment."""
        return self._of[store].segment_getter(store, segment)

    def checkpoints(self, store: str) -> Checkpoints:
        """Return where each key group of a store stands."""
        return self._of[store].checkpoints(store)

    def checkpoint(self, store: str, first: int, last: int) -> int | None:
        """Return the changelog offset from which the groups first..last are restored; None: from the beginning."""
        return self.checkpoints(store).offset(first, last)

    def scan(
        self, store: str, groups: Iterable[int], start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Rows:
        """Return the store keys start <= key < end of some key groups with their values, merged in key order, as of
        now.

        It costs an iterator for each group and segment: for the windows of one key there is `windows_of`.
        """
        return self._of[store].scan(store, groups, start, end, reverse=reverse)

    def windows_of(self, store: str, key: bytes, first: int, last: int, *, reverse: bool = False) -> Rows:
        """Return the store keys of a plain key with first <= time <= last, and their values, by time, as of now.

        Units: `first` at least 0, `last` below 2^63; of sessions, the time is the end.
        """
        return self._of[store].windows_of(store, key, first, last, reverse=reverse)

    def write(self, changes: Sequence[Change], checkpoints: Mapping[str, Sequence[Checkpoint]]) -> None:
        """Write what happened to some stores together with the checkpoints it stands for; then drop the segments nobody
        needs.

        Raises:
            StateError: nothing was written; of stores in several engines, some may be written, with their checkpoints,
                and others not.
        """
        if len(self._engine_stores) == 1:
            self._engine_stores[0].write(changes, checkpoints)
            return
        for engine_stores in self._engine_stores:
            here = [change for change in changes if self._of[layout.store_of(change.family)] is engine_stores]
            at = {store: each for store, each in checkpoints.items() if self._of[store] is engine_stores}
            if here or at:
                engine_stores.write(here, at)

    def rows(self, store: str, first: int, last: int) -> list[tuple[str, Rows]]:
        """Return what the groups first..last of a store have in each of its families, by database key, as of now."""
        return self._of[store].rows(store, first, last)

    def ingest(self, store: str, checkpoints: Sequence[Checkpoint], files: Mapping[str, Sequence[Path]]) -> None:
        """Put sorted files (by family) in the place of all keys of a store in the groups of the checkpoints, which is
        where they stand then.

        The files hold keys of these groups alone, and are gone afterwards. If it is interrupted, the groups have no
        checkpoint: they are emptied when they are opened next.
        """
        self._of[store].ingest(store, checkpoints, files)

    def drop(self, first: int, last: int) -> None:
        """Forget the key groups first..last of all stores: keys and checkpoints, in one batch of each engine."""
        for engine_stores in self._engine_stores:
            engine_stores.drop(first, last)

    def wipe(self, store: str, checkpoint: Checkpoint) -> None:
        """Remove all keys of a store in the groups of the checkpoint, which is where they stand now."""
        self._of[store].wipe(store, checkpoint)

    def has_keys(self, store: str, first: int, last: int) -> bool:
        """Whether the groups first..last of a store have any key."""
        return self._of[store].has_keys(store, first, last)

    def is_empty(self) -> bool:
        """Whether there is neither a key nor a checkpoint."""
        return all(engine_stores.is_empty() for engine_stores in self._engine_stores)

    def count(self, store: str) -> int:
        """Return about how many keys a store has."""
        return self._of[store].count(store)

    def close(self) -> None:
        """Let go of the files. Idempotent."""
        with ExitStack() as closing:  # whatever happens to one of them, the others are closed
            for engine_stores in self._engine_stores:
                closing.callback(engine_stores.close)
