"""A window store of one task, or a session store: a table of window keys, spread over time segments, in which old windows vanish.

Which windows are visible follows stream time alone, never what happened to be written: the store observes the start of the newest
window that the partition's stream time has begun, and shows windows with `start >= observed - retention + 1`. Kafka Streams observes the
largest start that was put, which is the same when the newest record was put; but a task that has part of the keys does not see
that record, and the result of a topology must not depend on the number of ranges.

Where windows begin by the records of their key (sliding windows, windows of the user), stream time does not tell which have begun. There the
largest start that was put counts, by any of the tasks over the database: each takes in what the others put once its own stream time is
there. No window starts later than stream time, so what a task that is ahead has put does not count too early.

Invariant: an expired window is neither loaded nor scanned nor written to the database. If it was dirty it is still forwarded and
logged with the next commit: its last update is a result like any other.
Turned down: observing stream time itself (a window would vanish up to a window's length before Kafka Streams lets it go).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heappop, heappush

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.engine import Change, Getter, Rows
from coopstreams.state.layout import TIMESTAMP
from coopstreams.state.table import Table
from coopstreams.topology.stores import Entry, StoreSpec

_EVER = -(1 << 63)


class WindowTable(Table):
    """A `WindowStore`: a `TableStore` of kind `window`; keys are `window_key(...)`. One thread."""

    _times: dict[bytes, list[bytes]]
    """The ends of the store keys of a plain key, in order: all of them, buffer and database. For keys that were asked for."""
    _newest: int
    """The latest time of what was put, where that decides what is visible."""
    _newest_of_all: list[int]
    """The same, of all tasks over the database: one cell, written under the `guard`."""

    def __init__(self, database: Database, spec: StoreSpec, first: int, last: int) -> None:
        self._step_ms = spec.step_ms or spec.window_ms
        self._by_puts = not self._step_ms or spec.lag_ms > 0
        self._newest_of_all = database.siblings.setdefault(f"newest window of {spec.name}", [NOTHING_OBSERVED])
        self._segment_ms = layout.segment_ms(spec)
        super().__init__(database, spec, first, last)

    def load(self, key: bytes) -> Entry:
        """Return the entry of a window from the buffer or the database; one with value None if there is none, or if it has expired."""
        entry = self.entries.get(key)
        if entry is None:
            time = layout.time_of(self.spec.kind, key)
            getter = self._segment(time) if time >= self._horizon else None
            at = self._database_key(key)
            entry = self._entry(at, None if getter is None else getter(at))
            self._add(key, time, entry)
        return entry

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry as changed since the last commit: one of `entries`, or one that `scan` has just yielded."""
        super().touch(key, entry)
        if self._by_puts and (time := layout.time_of(self.spec.kind, key)) > self._newest:
            self._newest = time
            with self.guard:
                self._newest_of_all[0] = max(self._newest_of_all[0], time)

    def put(self, key: bytes, value: object, timestamp: int) -> None:
        """Set the value of a window, None: delete it. For stores that `fetch`: it keeps the windows of each key in order."""
        entry = self.entries.get(key) or self.load(key)
        times = self._times_of(key[: -self._suffix])
        time = key[-self._suffix :]
        at = bisect_left(times, time)
        there = at < len(times) and times[at] == time
        if value is None and there:
            del times[at]
        elif value is not None and not there:
            times.insert(at, time)
        entry.value, entry.timestamp = value, timestamp
        if not entry.dirty:
            self.touch(key, entry)

    def fetch(self, key: bytes, first: int, last: int) -> list[tuple[bytes, Entry]]:
        """Return the windows of a plain key with first <= start <= last, by their starts."""
        times = self._times_of(key)
        low = bisect_left(times, TIMESTAMP.pack(max(first, self._horizon, 0)))
        found = (key + time for time in times[low : bisect_right(times, TIMESTAMP.pack(last))])
        return [(row, self.entries.get(row) or self.load(row)) for row in found]

    def advance(self, stream_time: int) -> None:
        """Let the partition's stream time reach this value: windows older than the retention become invisible."""
        observed = self._newest
        if self._by_puts and observed < (put := self._newest_of_all[0]) <= stream_time:
            observed = put
        if self._step_ms:
            newest = max(0, stream_time - self.spec.lag_ms)
            observed = max(observed, newest - newest % self._step_ms)
        if observed > self._observed:
            self._observe(observed)
        elif not self._starts or self._starts[0] >= self._horizon:
            return
        while self._starts and self._starts[0] < self._horizon:
            for key in self._by_start.pop(heappop(self._starts)):
                del self.entries[key]
                self._forget_time(key)
        for segment in [segment for segment in self._getters if (segment + 1) * self._segment_ms <= self._horizon]:
            del self._getters[segment]

    def trim(self, share: float) -> None:
        """Let go of clean entries until this share of the buffer is left."""
        super().trim(share)
        kept = {key[: -self._suffix] for key in self._dirty}
        self._times = {key: times for key, times in self._times.items() if key in kept}

    @property
    def observed(self) -> int:
        """The window start up to which the store has observed stream time."""
        return self._observed

    def _open(self) -> None:
        self._getters: dict[int, Getter] = {}
        self._by_start: dict[int, set[bytes]] = {}
        self._starts: list[int] = []
        self._observed = NOTHING_OBSERVED
        self._newest = NOTHING_OBSERVED
        self._times = {}
        self._horizon = _EVER
        self._observe(self._database.checkpoints(self.spec.name).observed(self._first, self._last))

    def _observe(self, observed: int) -> None:
        if observed != NOTHING_OBSERVED:
            self._observed = observed
            self._horizon = layout.horizon(self.spec, observed)

    def _add(self, key: bytes, start: int, entry: Entry) -> None:
        self.entries[key] = entry
        keys = self._by_start.get(start)
        if keys is None:
            keys = self._by_start[start] = set()
            heappush(self._starts, start)
        keys.add(key)

    def _keep(self, key: bytes, entry: Entry) -> None:
        self._add(key, layout.time_of(self.spec.kind, key), entry)

    def _forget(self, key: bytes) -> None:
        del self.entries[key]
        self._by_start[layout.time_of(self.spec.kind, key)].discard(key)

    def _forget_time(self, key: bytes) -> None:
        times = self._times.get(key[: -self._suffix])
        if times is not None:
            time = key[-self._suffix :]
            at = bisect_left(times, time)
            if at < len(times) and times[at] == time:
                del times[at]
            if not times:
                del self._times[key[: -self._suffix]]

    def _times_of(self, key: bytes) -> list[bytes]:
        """What of a key is dirty was asked for before, so that the database knows all that is not in `_times`."""
        times = self._times.get(key)
        if times is None:
            length = len(key) + self._suffix
            rows = self._stored_rows(key, layout.prefix_end(key)) if key else self._stored_rows(None, None)
            times = self._times[key] = [row[-self._suffix :] for row, _ in rows if len(row) == length]
        return times

    def _segment(self, time: int) -> Getter | None:
        segment = time // self._segment_ms
        getter = self._getters.get(segment)
        if getter is None:
            getter = self._database.segment_getter(self.spec.name, segment)
            if getter is not None:
                self._getters[segment] = getter
        return getter

    def _database_key(self, key: bytes) -> bytes:
        return layout.database_key(key[: -self._suffix], key)

    def _stored_rows(self, start: bytes | None, end: bytes | None) -> Rows:
        horizon = self._horizon
        kind = self.spec.kind
        rows = self._database.scan(self.spec.name, range(self._first, self._last + 1), start, end)
        return (row for row in rows if layout.time_of(kind, row[0]) >= horizon)

    def _changes(self, places: list[bytes], rows: list[bytes | None]) -> list[Change]:
        segments: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
        for place, row in zip(places, rows, strict=True):
            time = layout.time_of(self.spec.kind, place)
            if time >= self._horizon:
                of_segment = segments.setdefault(time // self._segment_ms, ([], []))
                of_segment[0].append(place)
                of_segment[1].append(row)
        return [Change(layout.segment_family(self.spec.name, segment), *columns) for segment, columns in segments.items()]

    def _changelog_keys(self, keys: list[bytes]) -> list[bytes]:
        return [layout.changelog_key(self.spec.kind, key) for key in keys]
