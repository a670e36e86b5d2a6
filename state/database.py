"""The state of one (sub-topology, partition) on an instance: its stores, with the
checkpoint of each key group.

Sibling tasks share it, each with key groups of its own and from its own thread.
Restores and queries share it as well. A write stores rows and their checkpoints in one
batch.

Stores may be in several engines. Each engine is an `EngineStores`, with the checkpoints
of its own stores: a store in memory is restored from the beginning of its changelog at
every start, while a store on disk continues from its checkpoint.

Invariant: state and checkpoint of a key group change atomically, except for rows that
the changelog brings again. Turned down: one batch over all engines (two engines cannot
share a batch, and need not: each store has its own changelog, and a database may be
behind its changelogs). Turned down: a database for each task (siblings would triple the
memory, and state would have to move when key ranges are cut differently).
Relies on: `layout` (keys, families, when windows have expired), `checkpoints`, and
`slice_versions`, which is told of each change before it is written.
"""

from __future__ import annotations

import logging
from collections.abc import (
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from heapq import merge
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED, Checkpoint, Checkpoints
from coopstreams.state.engine import (
    Bounds,
    Change,
    Engine,
    Getter,
    Ingesting,
    Peeking,
    Rows,
    Scanning,
)
from coopstreams.state.slice_versions import SliceVersions
from coopstreams.topology.keys import ALL_GROUPS, KeyGroups
from coopstreams.topology.stores import StoreSpec

_NONE: Mapping[str, Engine] = MappingProxyType({})


class FamilyRows(NamedTuple):
    """The rows (database key, value) of a family in some key groups, ascending, and the
    version of their slice: see `SliceVersions`. `rows` None: they were not wanted.
    """

    family: str
    version: int
    rows: Rows | None


class Database:
    """The stores of one (sub-topology, partition), in one or several engines.
    Thread-safe: each engine's stores have a lock.

    `apart`: the engines of the stores that are not in `engine`, by store name.

    A store that was written with another shape (kind, segment length, source topic)
    starts empty, and its changelog restores it.
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
        """State that the operators of all sibling tasks share, by name. It lives as
        long as this object.
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
        """Return a function that reads the value of a database key in a key-value
        store.
        """
        return self._of[store].getter(store)

    def segment_getter(self, store: str, segment: int) -> Getter | None:
        """Return a function that reads the value of a database key in a time segment;
        None if the segment does not exist.
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
        """Return the rows (store key, value) with start <= key < end of some key
        groups, in key order, as of now.

        It costs a seek for each group and segment, unless there are few rows. For the
        windows of one key, use `windows_of`.
        """
        return self._of[store].scan(store, groups, start, end, reverse=reverse)

    def beginning_with(self, store: str, key: bytes) -> Rows:
        """Return the rows (database key, value) of a key-value store whose database
        keys begin with that of `key`, as of now. Rows of longer keys that begin with
        the same bytes may be among them.
        """
        return self._of[store].beginning_with(store, key)

    def by_timestamp(
        self,
        store: str,
        groups: Iterable[int],
        first_ms: int,
    ) -> Iterator[tuple[int, bytes]]:
        """Return (timestamp, store key) of the rows of a store with a time to live,
        from the timestamp `first_ms` on.

        Shape: ordered by timestamp, then by key. A row may also be listed under
        timestamps earlier than its own. A deleted row may still be listed.
        """
        return self._of[store].by_timestamp(store, groups, first_ms)

    def windows_of(
        self,
        store: str,
        key: bytes,
        first: int,
        last: int,
    ) -> Rows:
        """Return the rows (store key, value) of a key with first <= time <= last,
        ordered by time, as of now. `key`: the key without the time that store keys end
        with.

        Units: ms; `first` at least 0, `last` below 2^63. The time of a window is its
        start, that of a session or version its end.
        """
        return self._of[store].windows_of(store, key, first, last)

    def latest_ms(self, store: str) -> int:
        """Return an upper bound (ms, inclusive) for the times of a window or session
        store; less than 0 if the store is empty.
        """
        return self._of[store].latest_ms(store)

    def write(
        self,
        changes: Sequence[Change],
        checkpoints: Mapping[str, Sequence[Checkpoint]],
    ) -> None:
        """Write the changes of some stores and their new checkpoints, then drop the
        segments that have expired.

        Raises:
            StateError: no checkpoint was written, and no row except rows that the
                changelog brings again. If the stores are in several engines, some
                engines may have been written completely.
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

    def as_of_now(
        self,
        store: str,
        groups: KeyGroups,
        known: Container[tuple[str, int, KeyGroups]] = (),
    ) -> list[tuple[Checkpoint, list[FamilyRows]]]:
        """Return the checkpoints of some key groups, which lie in one slice, each with
        the rows that the store has there: all of one moment between two writes.

        `known`: families, with version and key groups, whose rows are not wanted.
        """
        return self._of[store].as_of_now(store, groups, known)

    def ingest(
        self,
        store: str,
        checkpoints: Sequence[Checkpoint],
        files: Mapping[str, Sequence[Path]],
    ) -> None:
        """Replace all rows of a store in the key groups of the checkpoints by the rows
        of sorted files, and store the checkpoints.

        `files`: the files by family. They hold keys of these groups alone, and are gone
        afterwards. If the call is interrupted, the groups have no checkpoint, and the
        next restore empties them.
        """
        self._of[store].ingest(store, checkpoints, files)

    def drop(self, groups: KeyGroups) -> None:
        """Delete the keys and checkpoints of these key groups in all stores, in one
        batch of each engine.
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
        """Whether no store has a key or a checkpoint."""
        return all(engine_stores.is_empty() for engine_stores in self._engine_stores)

    def count(self, store: str, groups: frozenset[int]) -> int:
        """Return the number of rows of some key groups of a store; above a thousand, an
        estimate.
        """
        return self._of[store].count(store, groups)

    def close(self) -> None:
        """Close the engines. Idempotent."""
        with ExitStack() as closing:  # all are closed, even if one fails to close
            for engine_stores in self._engine_stores:
                closing.callback(engine_stores.close)


log = logging.getLogger(__name__)

_META = "meta"
_CHECKPOINT = b"checkpoint/"
_SHAPE = b"shape/"
_BATCH = 10_000
FEW = 4
"""The average number of rows of a key group up to which a scan reads all rows with one
iterator and sorts them.
"""
FEW_BYTES = 1 << 20
"""The most bytes of values that a scan with one iterator holds."""
COUNTED = 1000
"""The most rows that `EngineStores.count` counts one by one."""
PIECE = 1024
"""The most rows of one write, if the write may be divided."""


class EngineStores:
    """The stores of a database that are in one engine. Thread-safe: a lock."""

    def __init__(self, engine: Engine, specs: Iterable[StoreSpec]) -> None:
        self._engine = engine
        self._lock = Lock()
        self._versions = SliceVersions()
        self._checkpoints: dict[str, Checkpoints] = {}
        self._segments: dict[str, set[int]] = {}
        self.specs: dict[str, StoreSpec] = {spec.name: spec for spec in specs}
        engine.create(_META)
        self._meta = engine.getter(_META)
        # The checkpoints of all stores: `drop` clears a key range of stores that this
        # version does not have, too.
        for key, data in engine.scan(
            _META,
            _CHECKPOINT,
            layout.prefix_end(_CHECKPOINT),
        ):
            self._checkpoints[key[len(_CHECKPOINT) :].decode()] = Checkpoints.decode(
                data
            )
        found = [
            known
            for family in engine.families()
            if (known := layout.parse_segment_family(family)) is not None
        ]
        for spec in self.specs.values():
            self._segments[spec.name] = {
                segment for store, segment in found if store == spec.name
            }
            self._check_shape(spec)  # first: it drops families of another shape
            if spec.kind not in layout.SEGMENTED:
                engine.create(layout.family_of(spec.name))
            if spec.ttl_ms is not None:
                engine.create(layout.expiry_family(spec.name))
            self._checkpoints.setdefault(spec.name, Checkpoints())

    def getter(self, store: str) -> Getter:
        """Return a function that reads a key: see `Database.getter`."""
        return self._engine.getter(layout.family_of(store))

    def segment_getter(self, store: str, segment: int) -> Getter | None:
        """Return a function that reads a key in a time segment; None if the segment
        does not exist.
        """
        with self._lock:
            return (
                self._engine.getter(layout.segment_family(store, segment))
                if segment in self._segments[store]
                else None
            )

    def checkpoints(self, store: str) -> Checkpoints:
        """Return the checkpoints of a store."""
        with self._lock:
            return self._checkpoints[store]

    def scan(
        self,
        store: str,
        groups: Iterable[int],
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return rows in key order: see `Database.scan`."""
        wanted = frozenset(groups)
        with self._lock:  # no write between the iterators: all see the same moment
            families = self._families(store)
            few = self._few_rows(families, wanted, start, end)
            if few is not None:
                return iter(sorted(few, reverse=reverse))
            bounds = [_bounds(group, start, end) for group in wanted]
            rows = [
                each
                for family in families
                for each in self._scans(family, bounds, reverse=reverse)
            ]
        plain = [_without_group(each) for each in rows]
        return plain[0] if len(plain) == 1 else merge(*plain, reverse=reverse)

    def beginning_with(self, store: str, key: bytes) -> Rows:
        """Return the rows whose keys begin with `key`: see `Database.beginning_with`."""
        first = layout.database_key(key, key)
        with self._lock:
            return self._engine.scan(
                layout.family_of(store),
                first,
                layout.prefix_end(first),
            )

    def by_timestamp(
        self,
        store: str,
        groups: Iterable[int],
        first_ms: int,
    ) -> Iterator[tuple[int, bytes]]:
        """Return rows by their timestamps: see `Database.by_timestamp`."""
        family = layout.expiry_family(store)
        start = layout.TIMESTAMP.pack(max(0, first_ms))
        with self._lock:  # no write between the iterators: all see the same moment
            wanted = frozenset(groups)
            few = self._few_rows([family], wanted, start, None)
            if few is not None:
                rows = [iter(sorted(few))]
            else:
                found = self._scans(
                    family,
                    [_bounds(group, start, None) for group in wanted],
                )
                rows = [_without_group(each) for each in found]
        at = layout.START_BYTES
        return (
            (layout.TIMESTAMP.unpack_from(key)[0], key[at:]) for key, _ in merge(*rows)
        )

    def windows_of(
        self,
        store: str,
        key: bytes,
        first: int,
        last: int,
    ) -> Rows:
        """Return the rows of a key within a time range: see `Database.windows_of`.

        In each segment, the rows of a key are contiguous: this reads one short run of
        each segment in the time range. Versions have no segments.
        """
        spec = self.specs[store]
        place = layout.database_key(key, key)
        rows: list[Rows] = []

        def read(
            family: str,
            since: int,
            until: int,
        ) -> None:
            low = place + layout.TIMESTAMP.pack(since)
            high = layout.prefix_end(place + layout.TIMESTAMP.pack(until))
            rows.append(self._engine.scan(family, low, high))

        with self._lock:  # no write between the iterators: all see the same moment
            if spec.kind not in layout.SEGMENTED:
                read(layout.family_of(store), first, last)
            else:
                length = layout.segment_ms(spec)
                for segment in sorted(self._segments[store]):
                    if first // length <= segment <= last // length:
                        read(
                            layout.segment_family(store, segment),
                            max(first, segment * length),
                            min(last, (segment + 1) * length - 1),
                        )
        size = len(place) + layout.suffix_bytes(
            spec
        )  # rows of longer keys may be in between
        return (
            (at[1:], value)
            for at, value in chain.from_iterable(rows)
            if len(at) == size
        )

    def latest_ms(self, store: str) -> int:
        """Return an upper bound for the times of a store: see `Database.latest_ms`."""
        with self._lock:
            return (max(self._segments[store], default=-1) + 1) * layout.segment_ms(
                self.specs[store]
            ) - 1

    def write(
        self,
        changes: Sequence[Change],
        checkpoints: Mapping[str, Sequence[Checkpoint]],
    ) -> None:
        """Write changes and checkpoints, then drop expired segments: see
        `Database.write`.

        Raises:
            StateError: no checkpoint was written, and no row except those that `_cut`
                allows to be ahead of it.
        """
        with self._lock:
            after = {
                store: self._checkpoints[store].put(new)
                for store, new in checkpoints.items()
            }
            self._write(changes, after)
            for store in after:
                if self.specs[store].kind in layout.SEGMENTED:
                    self._expire(self.specs[store])

    def as_of_now(
        self,
        store: str,
        groups: KeyGroups,
        known: Container[tuple[str, int, KeyGroups]],
    ) -> list[tuple[Checkpoint, list[FamilyRows]]]:
        """Return checkpoints with the rows of their groups: see `Database.as_of_now`."""
        with self._lock:  # no write between the iterators
            return [
                (
                    run,
                    [
                        self._family_rows(family, run.groups, known)
                        for family in self._all_families(store)
                    ],
                )
                for run in self._checkpoints[store].within(groups)
            ]

    def _family_rows(
        self,
        family: str,
        groups: KeyGroups,
        known: Container[tuple[str, int, KeyGroups]],
    ) -> FamilyRows:
        """Return the rows of some key groups of a family, not read if `known` has their
        version.
        """
        version = self._versions.of(family, groups.first)
        rows = (
            None
            if (family, version, groups) in known
            else self._engine.scan(family, *layout.group_bounds(groups))
        )
        return FamilyRows(family, version, rows)

    def ingest(
        self,
        store: str,
        checkpoints: Sequence[Checkpoint],
        files: Mapping[str, Sequence[Path]],
    ) -> None:
        """Replace the rows of some key groups by sorted files: see `Database.ingest`."""
        with self._lock:
            known = self._checkpoints[store]
            for at in checkpoints:
                known = known.without(at.groups)
            families = self._all_families(store)
            # No checkpoint until all files are in: see `Database.ingest`.
            self._write(
                [
                    self._vanishing(family, at.groups)
                    for at in checkpoints
                    for family in families
                ],
                {store: known},
            )
            for family, of_family in files.items():
                self._make(family)
                self._ingest(family, of_family)
            self._write([], {store: known.put(checkpoints)})

    def drop(self, groups: KeyGroups) -> None:
        """Delete key groups of all stores: see `Database.drop`."""
        with self._lock:
            families = [family for family in self._engine.families() if family != _META]
            changes = [
                self._vanishing(family, groups)
                for family in families
                if self._has_keys(family, groups)
            ]
            self._write(
                changes,
                {
                    store: known.without(groups)
                    for store, known in self._checkpoints.items()
                },
            )
            for spec in self.specs.values():
                if spec.kind in layout.SEGMENTED:
                    self._expire(spec)

    def wipe(self, store: str, checkpoint: Checkpoint) -> None:
        """Delete the rows of some key groups and store a checkpoint: see
        `Database.wipe`.
        """
        with self._lock:
            families = [
                family
                for family in self._all_families(store)
                if self._has_keys(family, checkpoint.groups)
            ]
            after = self._checkpoints[store].put([checkpoint])
            self._write(
                [self._vanishing(family, checkpoint.groups) for family in families],
                {store: after},
            )

    def has_keys(self, store: str, groups: KeyGroups) -> bool:
        """Whether these key groups of a store have any key."""
        with self._lock:
            return any(
                self._has_keys(family, groups) for family in self._families(store)
            )

    def is_empty(self) -> bool:
        """Whether no store has a key or a checkpoint."""
        with self._lock:
            families = [family for family in self._engine.families() if family != _META]
            return not any(self._checkpoints.values()) and not any(
                self._has_keys(family, ALL_GROUPS) for family in families
            )

    def count(self, store: str, groups: frozenset[int]) -> int:
        """Return the number of rows of some key groups; above `COUNTED`, their share of
        the engine's estimate.

        RocksDB's estimate counts an overwritten row once for each write, until
        compaction.
        """
        if not groups:
            return 0
        low, high = layout.group_bounds(KeyGroups(min(groups), max(groups)))
        with self._lock:
            families = self._families(store)
            rows = [self._first(family, low, high, COUNTED + 1) for family in families]
            estimate = sum(self._engine.count(family) for family in families)
            kept = sum(run.last - run.first + 1 for run in self._checkpoints[store])
        read = [
            key[0] in groups
            for key, _ in islice(chain.from_iterable(rows), COUNTED + 1)
        ]
        counted = sum(read)  # between the groups there may be others
        return (
            counted
            if len(read) <= COUNTED
            else max(counted, estimate * len(groups) // max(kept, len(groups)))
        )

    def close(self) -> None:
        """Close the engine. Idempotent."""
        with self._lock:
            self._engine.close()

    def _few_rows(
        self,
        families: Sequence[str],
        groups: frozenset[int],
        start: bytes | None,
        end: bytes | None,
    ) -> list[tuple[bytes, bytes]] | None:
        """Return the rows (store key, value) with start <= key < end of some key
        groups, unordered; None if they may be many, or are large.

        An iterator for each group costs more than to read a few rows and to sort them.
        The engine's counts are approximate, so the rows are counted as well.
        """
        most = FEW * len(groups)
        if not groups or sum(self._engine.count(family) for family in families) > most:
            return None
        low, high = layout.group_bounds(KeyGroups(min(groups), max(groups)))
        scans = (self._engine.scan(family, low, high) for family in families)
        rows: list[tuple[bytes, bytes]] = []
        room = FEW_BYTES
        for read, (place, value) in enumerate(chain.from_iterable(scans)):
            if read == most or room < 0:
                return None
            key = place[1:]
            if place[0] in groups and _is_between(key, start, end):
                rows.append((key, value))
                room -= len(value)
        return rows

    def _families(self, store: str) -> list[str]:
        """Return the families of a store: of a segmented one those that have rows."""
        if self.specs[store].kind not in layout.SEGMENTED:
            return [layout.family_of(store)]
        return [
            layout.segment_family(store, segment)
            for segment in sorted(self._segments[store])
        ]

    def _all_families(self, store: str) -> list[str]:
        """Return the families of a store, including its `expiry_family`."""
        expires = self.specs[store].ttl_ms is not None
        return [
            *self._families(store),
            *([layout.expiry_family(store)] if expires else []),
        ]

    def _write(
        self,
        changes: Sequence[Change],
        checkpoints: Mapping[str, Checkpoints],
    ) -> None:
        """Write changes and the checkpoints of these stores in one batch, but for what
        `_cut` lets go ahead. The caller holds the lock.
        """
        for change in changes:
            self._make(change.family)
            self._versions.note(change)
        new = {
            store: known
            for store, known in checkpoints.items()
            if known != self._checkpoints[store]
        }
        meta = Change(
            _META,
            [_checkpoint_key(store) for store in sorted(new)],
            [new[store].encode() for store in sorted(new)],
        )
        ahead, together = self._cut(changes)
        for piece in ahead:
            self._engine.write([piece])
        self._engine.write([*together, meta])
        self._checkpoints.update(new)

    def _cut(self, changes: Sequence[Change]) -> tuple[Iterator[Change], list[Change]]:
        """Return the changes that may be written before the checkpoints, in pieces, and
        the changes that must be written with the checkpoints.

        RocksDB's binding holds the interpreter's lock during a write: a write of 100
        000 rows would stop all other threads for a tenth of a second. After a crash,
        the restore from a checkpoint to the end of the changelog repairs rows that are
        ahead of the checkpoint. So rows without a changelog must be written with the
        checkpoint. The same holds for rows that are read together with others of their
        commit: merged sessions, versions, and rows with the times at which they expire.
        A scan never sees half of a commit, because it waits for the lock.
        """
        ahead: list[Change] = []
        together: list[Change] = []
        for change in changes:
            (
                ahead
                if len(change.keys) > PIECE and self._may_be_ahead(change)
                else together
            ).append(change)
        pieces = (
            Change(
                change.family,
                change.keys[at : at + PIECE],
                change.values[at : at + PIECE],
            )
            for change in ahead
            for at in range(0, len(change.keys), PIECE)
        )
        return pieces, together

    def _may_be_ahead(self, change: Change) -> bool:
        """Return whether a crash may leave this change without its checkpoint."""
        spec = self.specs[layout.store_of(change.family)]
        alone = (
            spec.kind in ("key_value", "window")
            and spec.ttl_ms is None
            and spec.history_ms is None
        )
        return (
            alone and (spec.logged or spec.source is not None) and not change.vanishing
        )

    def _ingest(self, family: str, files: Sequence[Path]) -> None:
        """Bring the rows of sorted files into a family, and remove the files."""
        if isinstance(self._engine, Ingesting):
            self._engine.ingest(family, files)
            return
        from coopstreams.state.sst import (
            read_sst,
        )  # imports RocksDB, which building a topology does not need

        for file in files:
            rows = read_sst(file)
            while batch := list(islice(rows, _BATCH)):
                self._engine.write(
                    [
                        Change(
                            family,
                            [key for key, _ in batch],
                            [value for _, value in batch],
                        )
                    ]
                )
            file.unlink()

    def _make(self, family: str) -> None:
        """Make the family of a time segment, unless it exists."""
        known = layout.parse_segment_family(family)
        if known is not None and known[1] not in self._segments.get(known[0], ()):
            self._engine.create(family)
            self._versions.made(family)
            self._segments.setdefault(known[0], set()).add(known[1])

    def _expire(self, spec: StoreSpec) -> None:
        """Drop the segments that have expired for all key groups.

        A machine that crashes may come back with an older state of all families, but
        without the dropped segments. No window is lost: the changelog was ahead of the
        drop, and after a restore to its end these windows have expired.
        """
        observed = self._checkpoints[spec.name].observed()
        if observed == NOTHING_OBSERVED:
            return
        oldest = layout.horizon(spec, observed) // layout.segment_ms(spec)
        for segment in [
            segment for segment in self._segments[spec.name] if segment < oldest
        ]:
            family = layout.segment_family(spec.name, segment)
            self._engine.drop(family)
            self._versions.dropped(family)
            self._segments[spec.name].discard(segment)

    def _check_shape(self, spec: StoreSpec) -> None:
        """Empty a store that was written with another shape: look-ups would miss its
        keys.
        """
        shape = (
            layout.shape(spec)
            if spec.source is None
            else f"{layout.shape(spec)} of {spec.source}"
        )
        key = _SHAPE + spec.name.encode()
        written = self._meta(key)
        if written == shape.encode():
            return
        if written is not None:
            log.warning(
                'store "%s" was %s and is %s now: it is emptied, its changelog restores it',
                spec.name,
                written.decode(),
                shape,
            )
            # First the checkpoint: else an earlier version, started again, would go on
            # with what is left.
            self._engine.write([Change(_META, [_checkpoint_key(spec.name)], [None])])
            for family in {
                layout.family_of(spec.name),
                layout.expiry_family(spec.name),
                *(
                    layout.segment_family(spec.name, segment)
                    for segment in self._segments[spec.name]
                ),
            }:
                if family in self._engine.families():
                    self._engine.drop(family)
            self._segments[spec.name] = set()
            self._checkpoints.pop(spec.name, None)
        self._engine.write(
            [Change(_META, [_checkpoint_key(spec.name), key], [None, shape.encode()])]
        )

    def _scans(
        self,
        family: str,
        bounds: Sequence[Bounds],
        *,
        reverse: bool = False,
    ) -> list[Rows]:
        """Scan a family between several bounds, in one call if the engine can."""
        if isinstance(self._engine, Scanning):
            return self._engine.scans(family, bounds, reverse=reverse)
        return [self._engine.scan(family, *each, reverse=reverse) for each in bounds]

    def _has_keys(self, family: str, groups: KeyGroups) -> bool:
        return any(True for _ in self._first(family, *layout.group_bounds(groups), 1))

    def _first(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        most: int,
    ) -> Iterable[tuple[bytes, bytes]]:
        """Return the first `most` rows between two keys, in one call if the engine can."""
        if isinstance(self._engine, Peeking):
            return self._engine.first(family, start, end, most)
        return islice(self._engine.scan(family, start, end), most)

    @staticmethod
    def _vanishing(family: str, groups: KeyGroups) -> Change:
        return Change(family, vanishing=[layout.group_bounds(groups)])


def _checkpoint_key(store: str) -> bytes:
    return _CHECKPOINT + store.encode()


def _is_between(
    key: bytes,
    start: bytes | None,
    end: bytes | None,
) -> bool:
    """Return whether start <= key < end; None: no bound."""
    return (start is None or key >= start) and (end is None or key < end)


def _bounds(
    group: int,
    start: bytes | None,
    end: bytes | None,
) -> Bounds:
    """Return the bounds of the database keys of a key group with start <= store key <
    end.
    """
    first, behind = layout.group_bounds(KeyGroups(group, group))
    return first + (start or b""), behind if end is None else first + end


def _without_group(rows: Rows) -> Rows:
    return ((key[1:], value) for key, value in rows)
