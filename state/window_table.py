"""Stores of one task whose keys end with a time: windows, sessions, and the versions of
rows that have ended.

Windows and sessions are spread over time segments, and old ones expire.

The visible windows depend on stream time alone, not on the records written. The store
observes the start of the newest window that the partition's stream time has begun, and
shows windows with `start >= observed - retention + 1`. Kafka Streams observes the
largest start that was put. Both are equal when the newest record was put; but a task
with part of the keys does not see that record, and the result must not depend on the
number of ranges.

In sliding and user-defined windows, and in sessions, the records of a key begin
windows, so stream time does not tell which windows have begun. There, the store
observes the largest start that any task over the database has put, once its own task's
stream time has reached that start. No window starts later than stream time, so the puts
of a task that is ahead do not count too early.

Where records come in the order of births, tasks stand at different births, and what
others have put says nothing. There, the store observes stream time, whatever was put:
visible to a record are the windows that are open at its birth.

Invariant: an expired window is neither loaded, scanned nor written to the database. If
it was dirty, the next commit still forwards and logs it: its last update is a result
like any other.
Relies on: `table` (the write buffer, of which these are subclasses), `layout` (where in
a key its time is, and the horizon).
Turned down: observing stream time itself (a window would expire up to a
window's length earlier than in Kafka Streams).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.engine import Change, Getter, Rows
from coopstreams.state.layout import SESSION_BYTES, TIMESTAMP
from coopstreams.state.table import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    ChangelogBatch,
    PlacedEntry,
    Table,
)
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import Entry, StoreSpec

_EVER = -(1 << 63)
_NEVER = 1 << 63
TIME_BYTES = 240
"""The memory for each distinct time of buffered entries. Windows share times, nearly
each session has one of its own.
"""
KNOWN_BYTES = 60
"""The memory of one time in the times of a key. A key with a long history has
thousands.
"""


@dataclass(slots=True)
class _Times:
    """The times of a plain key's windows, ascending: the bytes at the end of their
    store keys. A plain key is the record's key, without the window.

    Invariant: it has the visible windows that changed since the last commit, and all
    visible windows of the database from the time `read` on.
    """

    known: list[bytes] = field(default_factory=list)
    read: int = _NEVER


class TimedTable(Table):
    """A `TableStore` whose keys end with a time, by which the rows of a plain key are
    found. One thread.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        super().__init__(database, spec, groups)
        self._of_key: dict[bytes, _Times] | None = None
        """The times by plain key, of keys fetched or changed since the last commit.
        None before the first fetch.
        """
        self._known = 0
        """The number of times in all values of `_of_key`."""
        self._horizon = _EVER
        """The earliest visible time: rows before it have expired."""

    def discard(self) -> None:
        """Clear the buffer and the times."""
        super().discard()
        self._of_key = None
        self._known = 0

    def put(
        self,
        key: bytes,
        value: object,
        timestamp: int,
    ) -> None:
        """Set the value of a key; None deletes it."""
        entry = self.entries.get(key) or self.load(key)
        entry.value = value
        entry.timestamp = timestamp
        if not entry.dirty:
            self.touch(key, entry)

    def fetch(
        self,
        key: bytes,
        first: int,
        last: int,
    ) -> list[tuple[bytes, Entry]]:
        """Return the rows of a key with first <= time <= last, in the order of their
        times. `key`: the key without the time that store keys end with.
        """
        first = max(first, self._horizon, 0)
        times = self._times(key, first).known
        rows = [
            key + time
            for time in times[
                bisect_left(times, TIMESTAMP.pack(first)) : bisect_right(
                    times,
                    TIMESTAMP.pack(last),
                )
            ]
        ]
        found = [(row, self.entries.get(row) or self.load(row)) for row in rows]
        return [(row, entry) for row, entry in found if entry.value is not None]

    def trim(self, share: float) -> None:
        """Remove clean entries until this share of the buffer is left."""
        super().trim(share)
        if self._of_key:
            self._note_dirty()

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer and of the times."""
        return (
            super().size_bytes
            + ENTRY_BYTES * len(self._of_key or ())
            + KNOWN_BYTES * self._known
        )

    def _times(self, key: bytes, first: int) -> _Times:
        """Return the times of a key's rows, complete from `first` (ms) on. `key`: the
        key without the time.
        """
        if self._of_key is None:
            self._note_dirty()
        assert self._of_key is not None
        times = self._of_key.get(key)
        if times is None:
            self._database_key(
                key + bytes(self._suffix)
            )  # raises if another task has the key
            times = self._of_key[key] = _Times()
        if first < times.read:
            rows = self._database.windows_of(self.spec.name, key, first, times.read - 1)
            stored = [row[-self._suffix :] for row, _ in rows]
            known = times.known
            before = len(times.known)
            at = (
                before
                if times.read == _NEVER
                else bisect_left(known, TIMESTAMP.pack(times.read))
            )
            known[:at] = (
                sorted({*known[:at], *stored}) if at else stored
            )  # behind `at`, there may be very many
            times.read = first
            self._known += len(known) - before
        return times

    def _note_dirty(self) -> None:
        """Forget the known times of windows, except those of rows that changed since
        the last commit.
        """
        self._of_key = {}
        self._known = 0
        for changed in self._dirty:
            self._note(changed)

    def _note(self, key: bytes) -> None:
        """Add the time of a changed row to the known times of its key: the database may
        not have the row yet.
        """
        assert self._of_key is not None
        plain = key[: -self._suffix]
        time = key[-self._suffix :]
        times = self._of_key.get(plain)
        if times is None:
            times = self._of_key[plain] = _Times()
        at = bisect_left(times.known, time)
        if at == len(times.known) or times.known[at] != time:
            times.known.insert(at, time)
            self._known += 1


class VersionTable(TimedTable):
    """The versions of rows that have ended: a `TableStore` of kind `versions`. One
    thread.

    Shape: keys are `window_key(...)` of the plain key and the version's end.

    Invariant: a version is deleted only if it was old at the last commit. Under
    at-least-once, the changelog may be ahead of the positions, and repeated records
    need versions that were still young then.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        super().__init__(database, spec, groups)
        self.old_ms = NOTHING_OBSERVED
        """Versions that end at this time or before are old. The operator raises it."""
        self._old_at_commit = NOTHING_OBSERVED

    def discard(self) -> None:
        """Clear the buffer: see `Table.discard`. No version counts as old afterwards."""
        super().discard()
        self.old_ms = NOTHING_OBSERVED
        self._old_at_commit = NOTHING_OBSERVED

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry as changed: see `Table.touch`."""
        super().touch(key, entry)
        if self._of_key is not None:
            self._note(key)

    def first_from(self, key: bytes, time: int) -> tuple[bytes, Entry] | None:
        """Return the first version of a key that ended at `time` (ms) or later, with
        its store key; None if there is none.
        """
        time = max(time, 0)
        times = self._times(key, time).known
        for at in range(bisect_left(times, TIMESTAMP.pack(time)), len(times)):
            row = key + times[at]
            entry = self.entries.get(row) or self.load(row)
            if entry.value is not None:
                return row, entry
        return None

    def forget(self, key: bytes) -> None:
        """Delete the committed versions of a key that were old (`old_ms`) at the last
        commit. Their values are not read.
        """
        if self._old_at_commit >= 0:
            for row, data in list(
                self._database.windows_of(self.spec.name, key, 0, self._old_at_commit)
            ):
                if row not in self.entries:
                    self.entries[row] = PlacedEntry(
                        self._database_key(row),
                        None,
                        NO_TIMESTAMP,
                        layout.unpack(data)[0],
                    )
                self.put(row, None, layout.time_of(self.spec.kind, row))

    def freeze(self) -> ChangelogBatch | None:
        """Serialise the dirty entries, and return them for the changelog; None if there
        are none: see `Table.freeze`. The versions that are old (`old_ms`) now may be
        deleted after this call.
        """
        self._old_at_commit = self.old_ms
        return super().freeze()


class VisibleWindows:
    """The windows of a store that a task sees, and the access to them in the database.
    One thread.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        self.segment_ms = layout.segment_ms(spec)
        """The length of a time segment."""
        self._database = database
        self._spec = spec
        self._groups = groups
        self._step_ms = spec.step_ms or spec.window_ms
        self.by_puts = not self._step_ms or spec.lag_ms > 0
        """Whether puts decide which windows are visible."""
        self._newest_of_all = database.siblings.setdefault(
            f"newest window of {spec.name}",
            [NOTHING_OBSERVED],
        )
        """The latest time that any task over the database has put: one cell, written
        under the `guard`.
        """
        self._began = _NEVER
        """The stream time of the operator when the task began."""
        self._by_birth = False
        """Whether stream time is the birth of records, which come in its order."""
        self.reset()

    def reset(self) -> None:
        """Set the observed window start to that of the store's checkpoints, and forget
        what was put since.
        """
        self.observed = NOTHING_OBSERVED
        """The start of the newest window that has begun; it decides which expire."""
        self.horizon = _EVER
        """The earliest visible time: windows before it have expired."""
        self._newest = NOTHING_OBSERVED
        """The latest time that this task has put."""
        self.stored_to = self._database.latest_ms(self._spec.name)
        """No row of a later time is in the database for this task, unless it is in the
        task's buffer, too. So the first record of a new window needs no look-up.
        """
        self._getters: dict[int, Getter] = {}
        self._oldest = 0
        known = self._database.checkpoints(self._spec.name).observed(self._groups)
        self._observe(min(self._began, known))

    def begin(self, stream_time: int, *, by_birth: bool) -> None:
        """Set the stream time at which the operator begins: no later window start
        counts as observed. `by_birth`: whether records come in the order of births.

        A restore gives key groups without windows the observed start of other groups.
        These may have belonged to a task that was ahead, and the remaining records of
        this task would find their windows expired.
        """
        self._began = stream_time
        self._by_birth = by_birth
        self.reset()

    def evicted(self, time: int) -> None:
        """Note that a committed row of this time has left the buffer."""
        self.stored_to = max(self.stored_to, time)

    def put(self, time: int) -> None:
        """Note that a row of this time was put: it may be the newest of all tasks."""
        if time > self._newest:
            self._newest = time
            with self._database.guard:
                self._newest_of_all[0] = max(self._newest_of_all[0], time)

    def advance(self, stream_time: int) -> bool:
        """Advance the stream time; return whether that changes which windows are
        visible.
        """
        observed = self._newest
        if self._by_birth:
            observed = stream_time if self.by_puts else NOTHING_OBSERVED
        elif self.by_puts and observed < (put := self._newest_of_all[0]) <= stream_time:
            observed = put
        if self._step_ms:
            newest = max(0, stream_time - self._spec.lag_ms)
            observed = max(observed, newest - newest % self._step_ms)
        if observed <= self.observed:
            return False
        self._observe(observed)
        return True

    def sweep(self) -> bool:
        """Forget the getters of expired segments; return whether a segment has expired
        since the last call.
        """
        oldest = self.horizon // self.segment_ms
        if oldest <= self._oldest:
            return False
        self._oldest = oldest
        for segment in [each for each in self._getters if each < oldest]:
            del self._getters[segment]
        return True

    def getter(self, time: int) -> Getter | None:
        """Return a function that reads rows of the segment with this time; None if the
        database has no such segment.
        """
        segment = time // self.segment_ms
        getter = self._getters.get(segment)
        if getter is None:
            getter = self._database.segment_getter(self._spec.name, segment)
            if getter is not None:
                self._getters[segment] = getter
        return getter

    def rows(self, start: bytes | None, end: bytes | None) -> Rows:
        """Return the visible rows of the database with start <= key < end."""
        rows = self._database.scan(self._spec.name, self._groups.numbers, start, end)
        kind = self._spec.kind
        horizon = self.horizon
        return (row for row in rows if layout.time_of(kind, row[0]) >= horizon)

    def _observe(self, observed: int) -> None:
        """Set the observed window start, and by it what has expired."""
        if observed != NOTHING_OBSERVED:
            self.observed = observed
            self.horizon = layout.horizon(self._spec, observed)


class WindowTable(TimedTable):
    """The window store of one task: a `TableStore` of kind `window`. Keys are
    `window_key(...)`. One thread.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        super().__init__(database, spec, groups)
        self._visible = VisibleWindows(database, spec, groups)
        self._horizon = self._visible.horizon
        self._by_start: dict[int, set[bytes]] = {}
        """The keys of `entries` by the times of their windows."""
        self._starts: list[int] = []
        """A heap of these times."""

    def discard(self) -> None:
        """Clear the buffer. The windows that were visible at the last commit are
        visible again.
        """
        super().discard()
        self._by_start = {}
        self._starts = []
        self._visible.reset()
        self._horizon = self._visible.horizon

    def load(self, key: bytes) -> Entry:
        """Return the entry of a window from the buffer or the database.

        The value of the entry is None if there is no such window, or if it has expired.
        """
        entry = self.entries.get(key)
        if entry is None:
            time = layout.time_of(self.spec.kind, key)
            visible = self._visible
            may_be_there = self._horizon <= time <= visible.stored_to
            getter = visible.getter(time) if may_be_there else None
            at = self._database_key(key)
            entry = self._entry(at, None if getter is None else getter(at))
            self._add(key, time, entry)
        return entry

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry as changed: see `Table.touch`."""
        super().touch(key, entry)
        if self._of_key is not None:
            self._note(key)
        if self._visible.by_puts:
            self._visible.put(layout.time_of(self.spec.kind, key))

    def advance(self, stream_time: int) -> None:
        """Advance the stream time: windows older than the retention become invisible."""
        if self._visible.advance(stream_time):
            self._horizon = self._visible.horizon
        elif not self._starts or self._starts[0] >= self._horizon:
            return
        while self._starts and self._starts[0] < self._horizon:
            for key in self._by_start.pop(heappop(self._starts)):
                del self.entries[key]
        if self._visible.sweep():
            self._forget_times()

    def begin(self, stream_time: int, *, by_birth: bool = False) -> None:
        """Set the stream time at which the operator begins: see `VisibleWindows.begin`."""
        self._visible.begin(stream_time, by_birth=by_birth)
        self._horizon = self._visible.horizon

    def trim(self, share: float) -> None:
        """Remove clean entries until this share of the buffer is left."""
        super().trim(share)
        self._starts[:] = sorted(self._by_start)  # a heap

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return super().size_bytes + TIME_BYTES * len(self._by_start)

    @property
    def observed(self) -> int:
        """The start of the newest window that the store has observed; it decides which
        windows expire.
        """
        return self._visible.observed

    def _add(
        self,
        key: bytes,
        start: int,
        entry: Entry,
    ) -> None:
        """Add a live row to the entries, and to those of its window's start."""
        self.entries[key] = entry
        keys = self._by_start.get(start)
        if keys is None:
            keys = self._by_start[start] = set()
            heappush(self._starts, start)
        keys.add(key)

    def _keep(self, key: bytes, entry: Entry) -> None:
        self._add(key, layout.time_of(self.spec.kind, key), entry)

    def _forget(self, key: bytes) -> None:
        """Drop a live row, which is committed: it is read again when it is needed."""
        del self.entries[key]
        start = layout.time_of(self.spec.kind, key)
        self._visible.evicted(start)
        keys = self._by_start[start]
        keys.discard(key)
        if not keys:
            del self._by_start[start]

    def _forget_times(self) -> None:
        """Remove expired windows from the known times of their keys."""
        oldest = TIMESTAMP.pack(self._horizon)
        for key, times in list((self._of_key or {}).items()):
            expired = bisect_left(times.known, oldest)
            self._known -= expired
            del times.known[:expired]
            if not times.known and self._of_key is not None:
                del self._of_key[key]

    def _stored_rows(self, start: bytes | None, end: bytes | None) -> Rows:
        return self._visible.rows(start, end)

    def _changes(self, places: list[bytes], rows: list[bytes | None]) -> list[Change]:
        """Return the changes of these rows (None: deleted), by time segment; rows of
        expired segments are left out.
        """
        segments: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
        # many keys have windows of one start
        of_time: dict[bytes, tuple[list[bytes], list[bytes | None]]] = {}
        segment_ms = self._visible.segment_ms
        time_in = slice(-self._suffix, layout.START_BYTES - self._suffix or None)
        for place, row in zip(places, rows, strict=True):
            found = of_time.get(place[time_in])
            if found is None:
                time = layout.time_of(self.spec.kind, place)
                found = ([], [])
                if time >= self._horizon:
                    found = segments.setdefault(time // segment_ms, found)
                of_time[place[time_in]] = found
            found[0].append(place)
            found[1].append(row)
        return [
            Change(layout.segment_family(self.spec.name, segment), *columns)
            for segment, columns in segments.items()
        ]

    def _changelog_keys(self, keys: list[bytes]) -> list[bytes]:
        end = layout.changelog_key(self.spec.kind, b"")
        return [key + end for key in keys]


class SessionTable(WindowTable):
    """The session store of one task: a `TableStore` of kind `session`. Keys are
    `session_key(...)`. One thread.
    """

    def put(
        self,
        key: bytes,
        value: object,
        timestamp: int,
    ) -> None:
        """Set the value of a session. None deletes the session, and look-ups do not
        find it any more.
        """
        super().put(key, value, timestamp)
        if self._of_key is not None:
            self._note(
                key
            )  # a session that was deleted since the last commit is dirty, so `touch` did not note it
            if value is None:
                times = self._of_key[key[:-SESSION_BYTES]].known
                del times[bisect_left(times, key[-SESSION_BYTES:])]
                self._known -= 1

    def sessions(
        self,
        key: bytes,
        earliest_end: int,
        latest_start: int,
    ) -> list[tuple[bytes, Entry]]:
        """Return the sessions of a key with earliest_end <= end and start <=
        latest_start (ms), ordered by end. `key`: the key without the session's ends.
        """
        earliest_end = max(earliest_end, self._horizon, 0)
        times = self._times(key, earliest_end).known
        latest = TIMESTAMP.pack(max(latest_start, 0))
        rows = [
            key + time
            for time in times[bisect_left(times, TIMESTAMP.pack(earliest_end)) :]
            if time[8:] <= latest
        ]
        found = [(row, self.entries.get(row) or self.load(row)) for row in rows]
        return [(row, entry) for row, entry in found if entry.value is not None]
