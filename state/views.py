"""Views of a store for queries: committed state of owned key ranges, in key order.
Read-only, any thread.

Invariant: a scan sees one moment, between two commits of each task, however long it is
read.
Invariant: a view returns nothing outside the ranges. The caller checks after the read
whether the ranges are still owned. Turned down: reading through the write buffers (a
query would see changes that an abort discards, and would need a lock on the hot path).
Relies on: `database` (what a snapshot of an engine sees), `layout` (the order of keys).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.layout import SESSION_BYTES, TIMESTAMP
from coopstreams.topology.keys import (
    GROUPS,
    KeyRange,
    key_group,
    key_hash,
)
from coopstreams.topology.stores import StoreSpec, check_range

_EVER = -(1 << 63)
_LATEST = (1 << 63) - 1


class StoredRow(NamedTuple):
    """An entry of a store. Shape: `key` is a store key. Units: ms."""

    key: bytes
    value: bytes
    timestamp: int


class Window(NamedTuple):
    """A window of a key. Units: ms."""

    start: int
    value: bytes
    timestamp: int


class Session(NamedTuple):
    """A session of a key; both ends are inclusive. Units: ms."""

    start: int
    end: int
    value: bytes
    timestamp: int


class KeyRangeView:
    """The rows of some key ranges of a store."""

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        ranges: Sequence[KeyRange],
    ) -> None:
        self.spec = spec
        self.ranges = tuple(ranges)
        self._database = database
        self._groups = _groups_of(self.ranges)

    def owns(self, key: bytes) -> bool:
        """Whether a key, without the time of a window, lies in the key ranges of this
        view.
        """
        return key_group(key_hash(key)) in self._groups

    def get(self, key: bytes) -> tuple[bytes, int] | None:
        """Return the value and timestamp of a store key; None if the row does not
        exist, or if its plain key is outside the ranges.
        """
        plain = layout.plain_key(self.spec, key)
        if not self.owns(plain):
            return None
        if self.spec.kind not in layout.SEGMENTED:
            data = self._database.getter(self.spec.name)(
                layout.database_key(plain, key)
            )
        else:
            start = layout.time_of(self.spec.kind, key)
            if start < self._horizons()[key_group(key_hash(plain))]:
                return None
            getter = self._database.segment_getter(
                self.spec.name,
                start // layout.segment_ms(self.spec),
            )
            data = None if getter is None else getter(layout.database_key(plain, key))
        return None if data is None else layout.unpack(data)

    def range(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        reverse: bool = False,
    ) -> Iterator[StoredRow]:
        """Return the entries with first <= key <= last and the prefix, in key order;
        lazily.

        Raises:
            ValueError: `first` comes after `last`.
        """
        check_range(first, last)
        start = first
        end = None if last is None else layout.after(last)
        if prefix:
            start = prefix if start is None else max(start, prefix)
            behind = layout.prefix_end(prefix)
            end = behind if end is None else end if behind is None else min(end, behind)
        return self._rows(start, end, reverse=reverse)

    def fetch(
        self,
        key: bytes,
        from_ms: int,
        to_ms: int,
    ) -> Iterator[Window]:
        """Return the windows of a key with from_ms <= start <= to_ms, in the order of
        their starts; lazily.

        In a `versions` store, the windows are ended versions of a row, and their starts
        are the times at which they ended.

        Raises:
            ValueError: the store is neither a window nor a versions store.
        """
        if self.spec.kind not in ("window", "versions"):
            raise ValueError(f'"{self.spec.name}" is not a window store')
        group = key_group(key_hash(key))
        from_ms = max(from_ms, self._horizons()[group], 0)
        to_ms = min(to_ms, _LATEST)
        if from_ms > to_ms or group not in self._groups:
            return iter(())
        rows = self._database.windows_of(self.spec.name, key, from_ms, to_ms)
        return (
            Window(layout.window_start(row), *layout.unpack(data)) for row, data in rows
        )

    def sessions(
        self,
        key: bytes,
        from_ms: int,
        to_ms: int,
    ) -> Iterator[Session]:
        """Return the sessions of a key that overlap from_ms..to_ms (both inclusive),
        ordered by end; lazily.

        Raises:
            ValueError: the store is not a session store.
        """
        if self.spec.kind != "session":
            raise ValueError(f'"{self.spec.name}" is not a session store')
        group = key_group(key_hash(key))
        from_ms = max(from_ms, self._horizons()[group], 0)
        if group not in self._groups or from_ms > _LATEST:
            return iter(())
        rows = self._database.windows_of(self.spec.name, key, from_ms, _LATEST)
        found = (Session(*_times(row), *layout.unpack(data)) for row, data in rows)
        return (session for session in found if session.start <= to_ms)

    def latest_ms(self) -> int:
        """Return an upper bound (ms, inclusive) for the times of the store's windows or
        sessions; less than 0 if there are none.
        """
        return min(self._database.latest_ms(self.spec.name), _LATEST)

    def approximate_count(self) -> int:
        """Return the number of entries; an estimate if they are more than a thousand."""
        return self._database.count(self.spec.name, self._groups)

    def _rows(
        self,
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool,
    ) -> Iterator[StoredRow]:
        """Return the visible rows with start <= stored key < end."""
        rows = self._database.scan(
            self.spec.name,
            self._groups,
            start,
            end,
            reverse=reverse,
        )
        if self.spec.kind not in layout.SEGMENTED:
            return (StoredRow(key, *layout.unpack(data)) for key, data in rows)
        horizons = self._horizons()
        kind = self.spec.kind
        suffix = layout.suffix_bytes(self.spec)
        if len(set(horizons)) == 1:
            horizon = horizons[0]
            return (
                StoredRow(key, *layout.unpack(data))
                for key, data in rows
                if layout.time_of(kind, key) >= horizon
            )
        return (
            StoredRow(key, *layout.unpack(data))
            for key, data in rows
            if layout.time_of(kind, key) >= horizons[key_group(key_hash(key[:-suffix]))]
        )

    def _horizons(self) -> list[int]:
        """Return the first visible window start of each key group: sibling tasks may
        have observed different starts.
        """
        horizons = [_EVER] * GROUPS
        for run in self._database.checkpoints(self.spec.name):
            if run.observed != NOTHING_OBSERVED:
                horizons[run.first : run.last + 1] = [
                    layout.horizon(self.spec, run.observed)
                ] * (run.last - run.first + 1)
        return horizons


class GlobalView:
    """The current rows of a global table, for queries."""

    def __init__(self, rows: GlobalRows) -> None:
        self._rows = rows

    def get(self, key: bytes) -> tuple[bytes, int] | None:
        """Return the value and timestamp of a key; None if the table does not have it."""
        entry = self._rows.load(key)
        return None if entry.stored is None else (entry.stored, entry.timestamp)

    def range(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        reverse: bool = False,
    ) -> Iterator[StoredRow]:
        """Return the entries with first <= key <= last and the prefix, in key order, as
        of one moment.

        Raises:
            ValueError: `first` comes after `last`.
        """
        check_range(first, last)
        found = [
            row
            for row in self._rows.scan(
                first,
                None if last is None else layout.after(last),
            )
            if row[0].startswith(prefix or b"")
        ]
        return (
            StoredRow(key, entry.stored or b"", entry.timestamp)
            for key, entry in (reversed(found) if reverse else found)
        )

    def approximate_count(self) -> int:
        """Return the number of entries."""
        return len(self._rows.entries)


@lru_cache(maxsize=1024)
def _groups_of(ranges: tuple[KeyRange, ...]) -> frozenset[int]:
    """Return the key groups of some ranges. Cached: a view is made for each batch of
    queries, and reads a key or two.
    """
    return frozenset(
        group for owned in ranges for group in layout.groups_of(owned).numbers
    )


def _times(row: bytes) -> tuple[int, int]:
    """Return start and end of the session that a store key names."""
    end: int = TIMESTAMP.unpack_from(row, len(row) - SESSION_BYTES)[0]
    return layout.window_start(row), end
