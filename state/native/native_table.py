"""Stores whose write buffer is rows of numbers in native memory: those of known folds
(`topology.graph.folding`).

A `NativeTable` is a `Table` with the same bytes, but its entries are not live objects:
records are added as columns (`add`), and `load`, `dirty` and `scan` return copies of
rows.

Invariant: for the same records, changelog, database and updates are those of `Table`
and `WindowTable`, which are the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.native.rows import Added, NativeRows
from coopstreams.state.table import ChangelogBatch, PlacedEntry, Table
from coopstreams.state.window_table import WindowTable
from coopstreams.topology.columns import Headers, Int64s
from coopstreams.topology.errors import StateError
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import Entry, StoreSpec


class NativeTable(Table):
    """A `TableStore` of kind `key_value` over native rows. One thread."""

    rows: NativeRows

    def __init__(
        self, database: Database, spec: StoreSpec, groups: KeyGroups, rows: NativeRows
    ) -> None:
        self.rows = rows
        self._row_bytes = rows.row_bytes
        super().__init__(database, spec, groups)

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any] | None,
        timestamps: Int64s,
        before: Int64s | None,
        operator_time: int,
        reduce: Callable[[Any, Any], Any] | None,
        *,
        drops_null_values: bool = False,
        headers: Sequence[Headers | tuple[()]] | None = None,
        updates: bool = False,
    ) -> Added:
        """Add records to their rows, in order.

        `before`: for each, the operator time before it. `headers`: for each, the
        headers to keep with its rows.

        Raises:
            SerdeError: the bytes of a row cannot be deserialised.
        """
        return self.rows.add(
            keys,
            values,
            timestamps,
            before,
            operator_time,
            self._stored,
            reduce,
            drops_null_values=drops_null_values,
            headers=headers,
            updates=updates,
        )

    def load(self, key: bytes) -> Entry:
        """Return a copy of a row of the buffer or the database; its value None means
        that there is no such key.
        """
        at = self._database_key(key)
        found = self.rows.row(key)
        return (
            self._entry(at, self._stored(at))
            if found is None
            else PlacedEntry(at, *found)
        )

    def touch(self, key: bytes, entry: Entry) -> None:
        """Raise: an entry is a copy."""
        raise StateError(
            f'rows of store "{self.spec.name}" change by `add` alone, not that of {key!r} by {entry}'
        )

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return copies of the rows that changed since the last commit, in the order of
        their first change.
        """
        changed = []
        for key, value, timestamp, stored, headers in self.rows.dirty():
            entry = Entry(value, timestamp, stored)
            entry.headers = headers or None
            changed.append((key, entry))
        return changed

    def freeze(self) -> ChangelogBatch | None:
        """Serialise the changed rows, which are then clean; see `Table.freeze`."""
        stray = self.rows.stray(*self._groups)
        if stray is not None:
            raise self._stray(stray)
        (keys, values, timestamps), families = self.rows.freeze(
            self._encoded, *self._times_of_rows()
        )
        self.frozen += [
            Change(
                layout.family_of(self.spec.name)
                if segment is None
                else layout.segment_family(self.spec.name, segment),
                places,
                rows,
            )
            for segment, places, rows in families
        ]
        return (
            ChangelogBatch(self.spec.name, keys, values, timestamps) if keys else None
        )

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return self.rows.size_bytes()

    def weigh(self) -> None:
        """Do nothing: all rows have the same size."""

    def trim(self, share: float) -> None:
        """Remove clean rows until this share of the buffer is left; those of the latest
        commit go last.
        """
        self.rows.trim(len(self.rows) - int(len(self.rows) * share))

    def _open(self) -> None:
        self.rows.clear()
        super()._open()

    def _buffered(self) -> Mapping[bytes, Entry]:
        return {key: self.load(key) for key in self.rows.keys()}  # noqa: SIM118 no mapping

    def _stored(self, place: bytes) -> bytes | None:
        """Return the database value of a row that is not in the buffer."""
        return self._checked(place, self._get(place))

    def _checked(self, place: bytes, data: bytes | None) -> bytes | None:
        if data is not None and len(data) != self._row_bytes:
            self._entry(place, data)  # it names the error in them
        return data

    def _encoded(self, key: bytes, value: Any) -> bytes:
        try:
            return self._encode(value)
        except Exception as error:
            raise self._unwritable(key, error) from error

    def _times_of_rows(self) -> tuple[int, int]:
        """Return the length of a time segment, and the time from which on rows are in
        the database.
        """
        return 1, 0


class NativeWindowTable(NativeTable, WindowTable):
    """A `TableStore` of kind `window` over native rows, of windows that begin by stream
    time. One thread.
    """

    def advance(self, stream_time: int) -> None:
        """Advance the stream time: windows older than the retention become invisible."""
        super().advance(stream_time)
        self.rows.expire(self._horizon)

    def _stored(self, place: bytes) -> bytes | None:
        start = layout.window_start(place)
        getter = self._segment(start) if start >= self._horizon else None
        return None if getter is None else self._checked(place, getter(place))

    def _times_of_rows(self) -> tuple[int, int]:
        return self._segment_ms, self._horizon
