"""Adds records to sliding and session windows, and finds the windows that close.

Generated code calls these objects once for each record. They change the store and
return the updates in the order in which Kafka Streams forwards them. An error of a user
function ends the work on the record. Sliding windows that were already updated keep the
update, as in Kafka Streams. Sessions are left unchanged, although Kafka Streams has
then deleted the sessions that the record was to extend.

Invariant: a value that is put into another window is a copy, because aggregators may
mutate their aggregate.
Source: Kafka Streams `KStreamSlidingWindowAggregate`, `KStreamSessionWindowAggregate`,
`AbstractKStreamTimeWindowAggregateProcessor`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import (
    SessionTableStore,
    TableStore,
    WindowTableStore,
    session_key,
    window_key,
)
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)

NEVER = 1 << 63
"""A time later than all others."""

UNCHANGEABLE = frozenset({type(None), bool, int, float, str, bytes})


class Update(NamedTuple):
    """A new value of a window, with its key in the store and its old value. `value`
    None: the window is deleted; `old` None: it is new.

    Units: `timestamp` in milliseconds.
    """

    key: bytes
    value: Any
    old: Any
    timestamp: int


ClosedColumns: TypeAlias = tuple[list[bytes], list[bytes], list[int]]
"""Keys, serialised values and timestamps of windows."""
Aggregator: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function `(key, value, aggregate) -> aggregate`."""


def counting(
    _key: Any,
    _value: Any,
    total: int,
) -> int:
    """Return the count raised by one."""
    return total + 1


def added(
    _key: Any,
    one: int,
    other: int,
) -> int:
    """Return the sum of two counts."""
    return one + other


def none() -> None:
    """Return None, the initial value of a reduce."""


def zero() -> int:
    """Return 0, the initial value of a count."""
    return 0


def reducing(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    """Return the aggregator that applies a reducer; the first value is the
    aggregate.
    """
    return lambda _key, value, total: value if total is None else reducer(total, value)


def merging(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    """Return the merger of sessions that applies a reducer."""
    return lambda _key, one, other: other if one is None else reducer(one, other)


def snapshot(value: object, serde: Serde[Any]) -> object:
    """Return the value itself if it is never changed in place, else a copy."""
    return (
        value
        if serde.immutable or value.__class__ in UNCHANGEABLE
        else serde.deserialize(serde.serialize(value))
    )


class Sliding:
    """The sliding windows of all keys of one task."""

    def __init__(
        self,
        store: WindowTableStore,
        windows: SlidingWindows,
        initializer: Callable[[], Any],
        aggregator: Aggregator,
    ) -> None:
        self._store = store
        self._difference = windows.difference_ms
        self._grace = windows.grace_ms
        self._initializer = initializer
        self._aggregator = aggregator
        self._serde = store.spec.value

    def is_late(self, timestamp: int, stream_time: int) -> bool:
        """Return whether all windows that would hold a record are closed."""
        return timestamp + self._difference < stream_time - self._grace

    def update(
        self,
        key_bytes: bytes,
        key: Any,
        value: Any,
        timestamp: int,
        stream_time: int,
        updates: list[Update],
    ) -> None:
        """Add a record to all windows that hold it, and append the changes to
        `updates`.
        """
        record = _Sliding(
            self,
            key_bytes,
            key,
            value,
            timestamp,
            stream_time - self._grace,
            updates,
        )
        if timestamp < self._difference:
            record.early()
        else:
            record.usual()


class _Sliding:
    """The work of adding one record to the sliding windows of its key."""

    def __init__(
        self,
        windows: Sliding,
        key_bytes: bytes,
        key: Any,
        value: Any,
        timestamp: int,
        close_time: int,
        updates: list[Update],
    ) -> None:
        self._of = windows
        self._key_bytes = key_bytes
        self._key = key
        self._value = value
        self._timestamp = timestamp
        self._close_time = close_time
        self._updates = updates

    def usual(self) -> None:
        """Add the record to the windows that hold it, latest first, then create the
        missing windows.

        These are its predecessor's right window, its own left window and its own right
        window, in this order.
        """
        timestamp = self._timestamp
        difference = self._of._difference
        found = self._of._store.fetch(
            self._key_bytes,
            max(0, timestamp - 2 * difference),
            timestamp + 1,
        )
        starts: set[int] = set()
        left: Any = None
        right: tuple[Any, int] | None = None
        has_left = has_right = False
        previous: int | None = None
        for window, entry in reversed(found):
            start = _start(window)
            value = entry.value
            newest = entry.timestamp
            if value is None:
                continue
            starts.add(start)
            if start == timestamp + 1:
                has_right = True
            elif start + difference > timestamp:
                if right is None:
                    right = self._copy(value), newest
                self._add(start, value, newest)
            elif start + difference == timestamp:
                has_left = True
                self._add(start, value, newest)
                if newest >= timestamp:
                    return
                previous = newest
            else:
                left = self._copy(value)
                previous = newest
                break
        self._begin_previous_right(previous, starts)
        if not has_left:
            follows = previous is not None and timestamp - difference <= previous
            self._add(
                timestamp - difference,
                left if follows else self._of._initializer(),
                timestamp,
            )
        if not has_right:
            self._begin_right(right)

    def early(self) -> None:
        """Add the record if it lies less than `difference` after the epoch. All such
        records share the window that begins at 0.
        """
        timestamp = self._timestamp
        found = self._of._store.fetch(self._key_bytes, 0, timestamp + 1)
        starts: set[int] = set()
        combined: tuple[Any, int] | None = None
        right: tuple[Any, int] | None = None
        previous: int | None = None
        for window, entry in found:
            start = _start(window)
            value = entry.value
            newest = entry.timestamp
            if value is None:
                continue
            starts.add(start)
            if start == 0:
                combined = value, newest
                if newest < timestamp:
                    previous = newest
            elif start <= timestamp:
                right = self._copy(value), newest
                self._add(start, value, newest)
        if right is None and combined is not None and combined[1] > timestamp:
            right = self._copy(combined[0]), combined[1]
        if timestamp + 1 not in starts:
            self._begin_right(right)
        self._begin_previous_right(previous, starts)
        self._add(0, *(combined or (self._of._initializer(), timestamp)))

    def _begin_previous_right(self, previous: int | None, starts: set[int]) -> None:
        """Create the window that begins after the previous record, if it is missing and
        holds this record. `previous`: the time of the previous record. `starts`: the
        starts of the existing windows.
        """
        if (
            previous is not None
            and previous + 1 not in starts
            and previous + 1 + self._of._difference >= self._timestamp
        ):
            self._add(previous + 1, self._of._initializer(), self._timestamp)

    def _begin_right(self, right: tuple[Any, int] | None) -> None:
        """Create the window that begins after the record, if a later record lies in it.
        `right`: the window's aggregate and its latest timestamp.
        """
        if right is not None and right[1] > self._timestamp:
            window = window_key(self._key_bytes, self._timestamp + 1)
            self._of._store.put(window, *right)
            self._updates.append(Update(window, right[0], None, right[1]))

    def _add(
        self,
        start: int,
        value: Any,
        newest: int,
    ) -> None:
        if start + self._of._difference < self._close_time:
            return
        window = window_key(self._key_bytes, start)
        old = self._copy(value)
        try:
            new = self._of._aggregator(self._key, self._value, value)
        except Exception:
            entry = self._of._store.load(window)
            if entry.value is value:
                entry.value = old  # it may have been changed in place before the error
            raise
        timestamp = self._timestamp if old is None else max(self._timestamp, newest)
        self._of._store.put(window, new, timestamp)
        self._updates.append(Update(window, self._copy(new), old, timestamp))

    def _copy(self, value: Any) -> Any:
        return snapshot(value, self._of._serde)


class Sessions:
    """The sessions of all keys of one task."""

    def __init__(
        self,
        store: SessionTableStore,
        windows: SessionWindows,
        initializer: Callable[[], Any],
        aggregator: Aggregator,
        merger: Aggregator,
        *,
        forwards: bool,
    ) -> None:
        """Make the sessions over a store. `forwards`: whether updates are forwarded at
        once, so that each has a copy of its value.
        """
        self._store = store
        self._gap = windows.gap_ms
        self._wait = windows.gap_ms + windows.grace_ms
        self._initializer = initializer
        self._aggregator = aggregator
        self._merger = merger
        self._serde = store.spec.value
        self._forwards = forwards

    def update(
        self,
        key_bytes: bytes,
        key: Any,
        value: Any,
        timestamp: int,
        stream_time: int,
        updates: list[Update],
    ) -> bool:
        """Merge the sessions within the gap of a record, add the record, and append the
        changes to `updates`.

        If the session is closed, return False and change nothing.
        """
        store = self._store
        start = timestamp
        end = timestamp
        total = self._initializer()
        absorbed = [
            (row, entry)
            for row, entry in store.sessions(
                key_bytes,
                timestamp - self._gap,
                timestamp + self._gap,
            )
            if entry.value is not None
        ]
        for row, entry in absorbed:
            total = self._merger(key, total, snapshot(entry.value, self._serde))
            start = min(start, _start(row))
            end = max(end, _end(row))
        if end < stream_time - self._wait:
            return False
        total = self._aggregator(key, value, total)  # before any change: it may raise
        if (start, end) != (timestamp, timestamp):
            for row, entry in absorbed:
                old = entry.value
                store.put(row, None, _end(row))
                updates.append(Update(row, None, old, _end(row)))
        row = session_key(key_bytes, start, end)
        store.put(row, total, end)
        if self._forwards:
            total = snapshot(total, self._serde)
        updates.append(Update(row, total, None, end))
        return True

    def in_turn(self, updates: list[Update]) -> Iterator[Update]:
        """Yield the updates of a record in order. While the deletion of a merged
        session is forwarded, its row is missing from the store, as in Kafka Streams.
        This holds even if the merged session has the same window.
        """
        for update in updates:
            entry = self._store.entries.get(update.key)
            if entry is None or update.value is not None:
                yield update
                continue
            value = entry.value
            entry.value = None
            try:
                yield update
            finally:
                entry.value = value


class NativeSessions:
    """The sessions of all keys of one task, with rows in native memory: see `Sessions`.
    No other node looks their rows up.
    """

    def __init__(
        self,
        store: Any,
        windows: SessionWindows,
        initializer: Callable[[], Any],
        aggregator: Aggregator,
        merger: Aggregator,
    ) -> None:
        """Make the sessions over a `NativeSessionTable`."""
        self._store = store
        self._sessions = store.rows.sessions
        self._merge = store.rows.merge
        self._observe = store.observe
        self._loaded = store.loaded
        self._scan = store.scan_sessions
        self._gap = windows.gap_ms
        self._wait = windows.gap_ms + windows.grace_ms
        self._expires = store.spec.retention_ms - windows.gap_ms
        """How far (ms) a record must be behind stream time so that a session near it
        may have expired.
        """
        self._initializer = initializer
        self._aggregator = aggregator
        self._merger = merger
        self._serde = store.spec.value

    def update(
        self,
        key_bytes: bytes,
        key: Any,
        value: Any,
        timestamp: int,
        stream_time: int,
        before: int,
        updates: list[Update] | None,
    ) -> bool:
        """Merge the sessions within the gap of a record, add the record, and append the
        changes to `updates`; None: the record cache holds them back. `before`: the
        stream time before the record, by which sessions have expired.

        If the session is closed, return False and change nothing.
        """
        earliest = timestamp - self._gap
        if before - timestamp >= self._expires and before >= 0:
            self._store.advance(before)
            earliest = max(earliest, self._store.horizon)
        absorbed = self._sessions(
            key_bytes,
            max(earliest, 0),
            timestamp + self._gap,
            self._scan,
        )
        total = self._initializer()
        start = timestamp
        end = timestamp
        for one, first, last in absorbed:
            total = self._merger(key, total, snapshot(one, self._serde))
            start = min(start, first)
            end = max(end, last)
        if end < stream_time - self._wait:
            return False
        total = self._aggregator(key, value, total)  # before any change: it may raise
        absorbs = start != end or start != timestamp
        self._merge(key_bytes, start, end, total, absorbs, self._loaded)
        self._observe(end)
        if updates is not None:
            if absorbs:
                updates += [
                    Update(session_key(key_bytes, first, last), None, one, last)
                    for one, first, last in absorbed
                ]
            total = snapshot(total, self._serde)
            updates.append(Update(session_key(key_bytes, start, end), total, None, end))
        return True


class Closing:
    """The open windows of one task, and the closed windows that have not been forwarded
    yet.

    It starts with the open windows of the store. Windows that closed before a restart
    were forwarded before it. `parts`: for each partition that feeds the task, the parts
    of its range with different earlier owners, and the stream time at which each part
    resumes. `clocked`: whether time is the clock of a timed topic; then rows may be
    newer than the clock (`timed_topics`).
    """

    def __init__(
        self,
        store: TableStore,
        windows: AnyWindows,
        parts: Sequence[Sequence[tuple[KeyRange, int]]] = (),
        *,
        clocked: bool = False,
    ) -> None:
        self._store = store
        self._windows = windows
        self._clocked = clocked
        self._parts = (
            [each for each in parts if each]
            if any(len(each) > 1 for each in parts)
            else []
        )
        self._starts = [[part.start for part, _ in each] for each in self._parts]
        self._open: set[bytes] = set()
        self._waiting: list[tuple[int, int, bytes]] = []
        self.next = NEVER
        """The stream time at which the next window closes."""
        self.resume(-1)

    def add(self, key: bytes) -> None:
        """Add a window that has a value, if it is not open already."""
        if key not in self._open:
            self._open.add(key)
            time = (
                _end(key) if isinstance(self._windows, SessionWindows) else _start(key)
            )
            heappush(self._waiting, (self._closes(key), time, key))
            self.next = self._waiting[0][0]

    def closed(self, stream_time: int) -> list[Update]:
        """Return and remove the windows that are closed, ordered by their starts
        (sessions: by their ends).
        """
        due = []
        while self._waiting and self._waiting[0][0] <= stream_time:
            _, time, key = heappop(self._waiting)
            self._open.discard(key)
            due.append((time, key))
        self.next = self._waiting[0][0] if self._waiting else NEVER
        due.sort()
        entries = (
            (key, self._store.entries.get(key) or self._store.load(key))
            for _, key in due
        )
        return [
            Update(key, entry.value, None, entry.timestamp)
            for key, entry in entries
            if entry.value is not None
        ]

    def resume(self, stream_time: int) -> None:
        """Replace the open windows by those of the store that are not closed at this
        stream time.

        Each part of the range has its own time: the later of the time at which it
        resumes and, except on a clock, its newest row's. If the time at which it
        resumes is unknown, it is the task's.
        """
        self._begin(self._still_open(stream_time))

    def _begin(self, keys: Iterable[bytes]) -> None:
        """Have these windows be the open ones."""
        self._open.clear()
        self._waiting.clear()
        self.next = NEVER
        for key in keys:
            self.add(key)

    def _still_open(self, stream_time: int) -> list[bytes]:
        """Return the windows of the store that are not closed: see `resume`."""
        reached: dict[tuple[int, ...], int] = {}
        rows = []
        for key, entry in self._store.scan(None, None):
            part = self._part_of(key)
            rows.append((key, part))
            newest = -1 if self._clocked else entry.timestamp
            reached[part] = max(reached.get(part, -1), newest)
        for part, newest in reached.items():
            own = max(
                (each[at][1] for each, at in zip(self._parts, part, strict=False)),
                default=-1,
            )
            reached[part] = max(newest, own if own >= 0 else stream_time)
        return [key for key, part in rows if self._closes(key) > reached[part]]

    def _part_of(self, key: bytes) -> tuple[int, ...]:
        """Return, for each partition, the number of the part of the range that has a
        window's key.
        """
        if not self._parts:
            return ()
        hash_ = key_hash(
            key[:-16] if isinstance(self._windows, SessionWindows) else key[:-8]
        )
        return tuple(bisect_right(starts, hash_) - 1 for starts in self._starts)

    def _closes(self, key: bytes) -> int:
        """Return the first stream time (ms) at which the window in a store key is
        closed.
        """
        windows = self._windows
        if isinstance(windows, SessionWindows):
            return _end(key) + windows.gap_ms + windows.grace_ms + 1
        end = windows.end(_start(key)) + windows.grace_ms
        return end + 1 if isinstance(windows, SlidingWindows) else end


class NativeClosing(Closing):
    """The open tumbling or hopping windows of one task, with rows in native memory: see
    `NativeTable`. A window is open from its first record on, without an `add`.
    """

    def __init__(
        self,
        store: Any,
        windows: TimeWindows,
        parts: Sequence[Sequence[tuple[KeyRange, int]]] = (),
        *,
        clocked: bool = False,
    ) -> None:
        """Make the open windows over a `NativeWindowTable`."""
        self._rows = store.rows
        self._loaded = store.loaded
        self._length = windows.size_ms + windows.grace_ms
        self._advance = windows.advance_ms
        super().__init__(store, windows, parts, clocked=clocked)

    def closed(self, stream_time: int) -> list[Update]:
        """Return and remove the windows that are closed: see `Closing.closed`."""
        if stream_time < self.next:
            return []
        found = self._rows.closed(stream_time, self._loaded)
        self._look_ahead(stream_time)
        return [
            Update(key, value, None, timestamp)
            for key, value, timestamp in zip(*found, strict=True)
        ]

    def columns(
        self,
        stream_time: int,
        encode: Callable[[Any], bytes],
        is_row: bool,
    ) -> ClosedColumns | None:
        """Return and remove the windows that are closed, with serialised values; None,
        and they stay, if a value cannot be serialised here. `encode`, `is_row`: see
        `NativeRows.updates`.
        """
        if stream_time < self.next:
            return [], [], []
        found: ClosedColumns | None = self._rows.closed(
            stream_time, self._loaded, encode, is_row
        )
        if found is not None:
            self._look_ahead(stream_time)
        return found

    def _begin(self, keys: Iterable[bytes]) -> None:
        self._rows.reopen(list(keys))
        self._look_ahead(-1)

    def _look_ahead(self, stream_time: int) -> None:
        """Set `next` by the windows that are open, and by those that later records may
        open: their starts are multiples of `advance_ms`.
        """
        ended = (stream_time - self._length) // self._advance
        self.next = (ended + 1) * self._advance + self._length
        first = self._rows.first_open
        if first is not None:
            self.next = min(self.next, first + self._length)


def _start(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big", signed=True)


def _end(key: bytes) -> int:
    return int.from_bytes(key[-16:-8], "big", signed=True)
