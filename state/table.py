"""A key-value store of one task: live objects in a write buffer, over the bytes in the
database.

A key is read and deserialised once; operators then change the object in place. A commit
freezes the dirty entries: it serialises them. They are written to the database after
the commit has succeeded.

Invariant: reads see the buffer over the database, and between two commits only the
buffer changes.
Invariant: a key has one entry, in `entries`, so that all changes go to the entry that
will be written.
Relies on: `layout`, and `topology/stores.py`: `TableStore` is what operators may do with
a table, whose entries they change in place.
Turned down: a sorted buffer (a sorted container slows every write; a
scan sorts what it needs), and the exact size of live objects (Python does not tell it):
the buffer is bounded by the number of entries times their average size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, TypeAlias, cast

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.engine import Change, Getter, Rows
from coopstreams.state.layout import GROUP_SHIFT, PREFIXES, TIMESTAMP
from coopstreams.topology.errors import SerdeError, StateError
from coopstreams.topology.keys import KeyGroups, key_hash
from coopstreams.topology.schemas import RegistryUnavailableError, registry_is_away
from coopstreams.topology.serde import reason, within
from coopstreams.topology.stores import SUBSCRIBER_BYTES, Entry, StoreSpec

ENTRY_BYTES = 200
"""The memory of a buffered entry without key and value: the entry, its slots in two
dicts, the object headers.
"""
LIVE_FACTOR = 4
"""The memory of a buffered value (as object and as bytes) for each serialised byte."""
NO_TIMESTAMP = -1
"""The timestamp of an entry without a value."""

_SAMPLE = 64
_AT = attrgetter("at")
_FEW_ROWS = 1000
"""The most rows of a plain key that one read puts into the buffer: a seek costs as much
as ten look-ups.
"""
_MOST_WHOLE = 10_000
"""The most plain keys that are noted as having all their rows in the buffer: a key
without rows takes memory as well.
"""


class PlacedEntry(Entry):
    """An entry that keeps its database key, so that the key is hashed once and not at
    every commit.
    """

    __slots__ = ("at",)

    def __init__(
        self,
        at: bytes,
        value: Any,
        timestamp: int,
        stored: bytes | None,
    ) -> None:
        self.at = at
        self.value = value
        self.timestamp = timestamp
        self.stored = stored
        self.dirty = False
        self.headers = None


@dataclass(frozen=True, slots=True)
class ChangelogBatch:
    """Columns for the changelog of a store: one record for each key, ordered by
    database key.

    Shape: keys are changelog keys (window stores: with the sequence number); the value
    None is a tombstone.
    """

    store: str
    keys: list[bytes]
    values: list[bytes | None]
    timestamps: list[int]


_Columns: TypeAlias = tuple[
    list[bytes], list[bytes | None], list[bytes | None], list[int]
]
"""Database keys, database values, values and timestamps of entries."""


class Table:
    """The key-value store of one task: a `TableStore` of kind `key_value`. One thread.

    Raises:
        SerdeError: a value cannot be serialised, or bytes of the database cannot be
            deserialised; the message names the store.
        StateError: a key belongs to another task.
    """

    _get: Getter
    """Reads a row of the database. Window and session stores have a getter for each
    segment instead.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        self.spec = spec
        self.siblings = database.siblings
        self.guard: AbstractContextManager[Any] = database.guard
        self.entries: dict[bytes, Entry] = {}
        self.frozen: list[Change] = []
        """The frozen changes of the interval, which the next commit writes to the
        database.
        """
        self._database = database
        self._groups = groups
        self._first, self._last = groups
        self._suffix = layout.suffix_bytes(spec)
        self._dirty: dict[bytes, Entry] = {}
        self._latest: list[bytes] = []
        """The store keys that were changed before the last commit."""
        self._average: float = 0.0
        self._decode = spec.value.decode
        self._encode = spec.value.encode
        self._read_back = (
            self._decode
            if any(serde.read_back for serde in within(spec.value))
            else None
        )
        if spec.kind not in layout.SEGMENTED:
            self._get = database.getter(spec.name)

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key from the buffer or the database, and keep it in
        `entries`.

        The value of the entry is None if the store does not have the key.
        """
        entry = self.entries.get(key)
        if entry is None:
            at = self._database_key(key)
            entry = self.entries[key] = self._entry(at, self._get(at))
        return entry

    def insert(self, key: bytes) -> Entry:
        """Return the entry of a key that the database does not have, unless the buffer
        hides its row, and keep it in `entries`. The database is not asked.
        """
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = self._entry(self._database_key(key), None)
        return entry

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry as changed since the last commit. The entry is in `entries`, or
        `scan` has just yielded it.
        """
        entry.dirty = True
        self._dirty[key] = entry
        if key not in self.entries:  # an entry that `scan` yielded is not in `entries`
            self._keep(key, entry)

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return the entries that changed since the last commit, in the order of their
        first change.
        """
        return list(self._dirty.items())

    def scan(
        self,
        start: bytes | None,
        end: bytes | None,
    ) -> Iterator[tuple[bytes, Entry]]:
        """Yield the live entries with start <= key < end in key order. A buffered entry
        hides the database's row.

        Keys added during the iteration are left out; changes of the other entries are
        seen.
        """
        entries = self._buffered()
        buffered = iter(sorted(_between(entries, start, end)))
        waiting = next(buffered, None)
        for key, data in self._stored_rows(start, end):
            while waiting is not None and waiting <= key:
                if waiting != key:
                    yield from _live(entries, waiting)
                waiting = next(buffered, None)
            entry = entries.get(key)
            if entry is None:
                yield key, self._entry(self._database_key(key), data)
            elif entry.value is not None:
                yield key, entry
        while waiting is not None:
            yield from _live(entries, waiting)
            waiting = next(buffered, None)

    def advance(self, stream_time: int) -> None:
        """Do nothing: the rows of a key-value store do not expire."""

    def freeze(self) -> ChangelogBatch | None:
        """Serialise the dirty entries, mark them clean, and return them for the
        changelog; None if there are none.

        A key that was added and deleted since the last commit is left out. If its serde
        asks for it, each value is read back: a value that cannot be read would stop
        each later start.

        Raises:
            SerdeError: a value cannot be serialised. The task's interval is void: call
                `discard`.
        """
        if not self._dirty:
            return None
        dirty = sorted(cast("Iterable[PlacedEntry]", self._dirty.values()), key=_AT)
        self._dirty.clear()
        places, rows, values, timestamps = self._serialised(dirty)
        if not places:
            return None
        self._latest = [place[1:] for place in places]
        self.frozen += self._changes(places, rows)
        sample = rows[:: len(rows) // _SAMPLE + 1]
        self._average = sum(len(row) for row in sample if row is not None) / len(
            sample
        ) + len(places[0])
        return ChangelogBatch(
            self.spec.name,
            self._changelog_keys(self._latest),
            values,
            timestamps,
        )

    def discard(self) -> None:
        """Clear the buffer: the state is again that of the database."""
        self.entries.clear()
        self._dirty.clear()
        self.frozen.clear()
        self._latest = []

    def begin(self, stream_time: int, *, by_birth: bool = False) -> None:
        """Do nothing: only windows depend on the stream time at which a task begins."""

    @property
    def observed(self) -> int:
        """The window start that the store has observed; a key-value store observes
        none.
        """
        return NOTHING_OBSERVED

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return int(len(self.entries) * (ENTRY_BYTES + LIVE_FACTOR * self._average))

    def weigh(self) -> None:
        """Update the average size with the entry that changed last, so that
        `size_bytes` follows growing values.
        """
        newest = next(reversed(self._dirty), None)
        if newest is None or (value := self._dirty[newest].value) is None:
            return
        with suppress(Exception):  # `freeze` reports the error
            size = len(newest) + len(self._encode(value))
            self._average += (size - self._average) / 8 if self._average else size

    def trim(self, share: float) -> None:
        """Remove clean entries until this share of the buffer is left. Entries of the
        latest commit go last.
        """
        excess = len(self.entries) - int(len(self.entries) * share)
        for key in self._latest:
            entry = self.entries.pop(key, None)
            if entry is not None:
                self.entries[key] = entry  # move to the end of the queue
        for key in list(
            islice(
                (key for key, entry in self.entries.items() if not entry.dirty),
                excess,
            )
        ):
            self._forget(key)

    def _buffered(self) -> Mapping[bytes, Entry]:
        """Return the entries that hide rows of the database."""
        return self.entries

    def _keep(self, key: bytes, entry: Entry) -> None:
        """Put an entry into the buffer. Subclasses have indexes of what is there."""
        self.entries[key] = entry

    def _forget(self, key: bytes) -> None:
        """Remove a clean entry from the buffer."""
        del self.entries[key]

    def _database_key(self, key: bytes) -> bytes:
        """Return the database key of a store key.

        Raises:
            StateError: another task has the key.
        """
        group = key_hash(key[: -self._suffix] if self._suffix else key) >> GROUP_SHIFT
        if not self._first <= group <= self._last:
            raise self._stray(PREFIXES[group] + key)
        return PREFIXES[group] + key

    def _stored_rows(self, start: bytes | None, end: bytes | None) -> Rows:
        """Return the rows of the database with start <= key < end."""
        return self._database.scan(self.spec.name, self._groups.numbers, start, end)

    def _changes(self, places: list[bytes], rows: list[bytes | None]) -> list[Change]:
        """Return the changes that the commit will write to the database."""
        return [Change(layout.family_of(self.spec.name), places, rows)]

    def _changelog_keys(self, keys: list[bytes]) -> list[bytes]:
        """Return the keys in the changelog of these store keys."""
        return keys

    def _entry(self, at: bytes, data: bytes | None) -> PlacedEntry:
        """Return the entry of a database key. `data`: its row; None: it has none."""
        if data is None:
            return PlacedEntry(at, None, NO_TIMESTAMP, None)
        stored = data[8:]
        try:
            value = self._decode(stored)
        except Exception as error:
            if registry_is_away(error):
                raise self._not_yet(at[1:], error) from error
            raise SerdeError(
                f'store "{self.spec.name}": the value of key {at[1:]!r} is not of serde {self.spec.value}: '
                f"{reason(error)}. If it was written with another serde or type, go back to that, or start the "
                "application under another application.id."
            ) from error
        return PlacedEntry(at, value, TIMESTAMP.unpack_from(data)[0], stored)

    def _serialised(self, entries: list[PlacedEntry]) -> _Columns:
        """Return changed entries as serialised columns, and mark the entries clean.

        One pass does all the work on an entry, because fetching it into the CPU cache
        costs more than the work.
        """
        encode = self._encode
        read_back = self._read_back
        pack = TIMESTAMP.pack
        columns: _Columns = [], [], [], []
        places, rows, values, timestamps = columns
        add_place = places.append
        add_row = rows.append
        add_value = values.append
        add_timestamp = timestamps.append
        entry = entries[0]
        try:
            for entry in entries:
                entry.dirty = False
                value = entry.value
                row = None
                stored = None
                if value is not None:
                    row = pack(entry.timestamp) + encode(value)
                    stored = row[
                        8:
                    ]  # a copy: orjson's bytes hold 4 KiB however short they are (seen in 3.13)
                    if read_back is not None:
                        read_back(stored)
                elif entry.stored is None:
                    continue  # added and deleted since the last commit
                entry.stored = stored
                add_place(entry.at)
                add_row(row)
                add_value(stored)
                add_timestamp(entry.timestamp)
        except Exception as error:
            away = registry_is_away(error)
            raise (self._not_yet if away else self._unwritable)(
                entry.at[1:],
                error,
            ) from error
        return columns

    def _unwritable(self, key: bytes, error: Exception) -> SerdeError:
        return SerdeError(
            f'store "{self.spec.name}": the value of key {key!r} cannot be written with serde {self.spec.value}: '
            f"{reason(error)}. It was not committed: mend the value or its type, and start again."
        )

    def _not_yet(self, key: bytes, error: Exception) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f'store "{self.spec.name}": the value of key {key!r} cannot be read before the registry has said its '
            f"schema: {reason(error)}"
        )

    def _stray(self, place: bytes) -> StateError:
        return StateError(
            f'store "{self.spec.name}": key {place[1:]!r} is of key group {place[0]}, and this task has '
            f"{self._groups}: it is not the key of the record. A processor with by_key=True has the rows of that key "
            "only. Say by_key=False, and each partition is one task; or send the records to where their new keys "
            "belong: select_key(...).repartition()."
        )


class SubscriberTable(Table):
    """A `TableStore` with the rows of many subscribers for each plain key; keys are
    `subscriber_key(...)`. One thread.

    Turned down: one row for all subscribers of a key. For 60,000 orders from one
    country it is larger than a changelog record may be, and each order would write it
    again.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        super().__init__(database, spec, groups)
        self._of: dict[bytes, set[bytes]] = {}
        """The keys of `entries` by plain key."""
        self._whole: set[bytes] = set()
        """Plain keys whose rows are all in `entries`."""

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key: see `Table.load`."""
        entry = self.entries.get(key)
        if entry is None:
            entry = super().load(key)
            self._note(key)
        return entry

    def of(self, key: bytes) -> Iterator[tuple[bytes, Entry]]:
        """Yield the live rows of a plain key, unordered. Change no row during the
        iteration.
        """
        if key not in self._whole:
            length = len(key) + SUBSCRIBER_BYTES
            found = self._database.beginning_with(self.spec.name, key)
            stored = (
                row
                for row in found
                if len(row[0]) == length + 1 and row[0][1:] not in self.entries
            )
            for at, data in (few := list(islice(stored, _FEW_ROWS))):
                self._keep(at[1:], self._entry(at, data))
            for at, data in stored:
                yield at[1:], self._entry(at, data)
            if len(few) < _FEW_ROWS and len(self._whole) < _MOST_WHOLE:
                self._whole.add(key)
        for row in self._of.get(key, ()):
            entry = self.entries[row]
            if entry.value is not None:
                yield row, entry

    def discard(self) -> None:
        """Clear the buffer: see `Table.discard`."""
        super().discard()
        self._of.clear()
        self._whole.clear()

    def _keep(self, key: bytes, entry: Entry) -> None:
        super()._keep(key, entry)
        self._note(key)

    def _forget(self, key: bytes) -> None:
        super()._forget(key)
        plain = key[:-SUBSCRIBER_BYTES]
        self._whole.discard(plain)
        self._of[plain].discard(key)
        if not self._of[plain]:
            del self._of[plain]

    def _note(self, key: bytes) -> None:
        self._of.setdefault(key[:-SUBSCRIBER_BYTES], set()).add(key)


def _between(
    keys: Iterable[bytes],
    start: bytes | None,
    end: bytes | None,
) -> Iterable[bytes]:
    """Return the keys with start <= key < end, in their order."""
    if start is not None:
        keys = (key for key in keys if key >= start)
    if end is not None:
        keys = (key for key in keys if key < end)
    return keys


def _live(entries: Mapping[bytes, Entry], key: bytes) -> Iterator[tuple[bytes, Entry]]:
    entry = entries.get(key)
    if entry is not None and entry.value is not None:
        yield key, entry
