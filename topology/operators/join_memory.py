"""Keeps the buffers of a stream-stream join: the records of both sides, and those still
without a match.

Each side keeps one row for each key and timestamp: the values of the records that have
both, in the order of arrival. An index in memory has the timestamps of each key, so
that a search reads only rows that match. Records that wait for a match are stored by
key. In memory they are in the order of emission: timestamp, right side before left, key
bytes. A self-join may have one store for both sides. There, each record is first
searched for as a left record, and stored when it is processed as a right record.

Invariant: the results for a record depend only on the records before it, never on the
end of a batch or a commit. Turned down: a row for each record with a sequence number
(Kafka Streams' `retainDuplicates`): two records of one key and one millisecond are
rare, and a restart would have to find the last number.
Source: Kafka Streams `KStreamKStreamJoin`, `KStreamJoinWindow`,
`TimestampedKeyAndJoinSide`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import (
    Any,
    Protocol,
    TypeAlias,
    cast,
)

from sortedcontainers import SortedList

from coopstreams.topology.graph.join_nodes import StreamStreamJoin
from coopstreams.topology.stores import (
    Entry,
    TableStore,
    WindowTableStore,
    split_window_key,
    window_key,
)

Pair: TypeAlias = tuple[bytes | None, Any, Any, int]
"""A result of a join: key, left value, right value, timestamp."""

Wait: TypeAlias = tuple[int, int, bytes]
"""A record that waits for a match: timestamp, 1 - side, key. Records are emitted in
this order.
"""

LEFT = 0
RIGHT = 1
_FOREVER = 1 << 63
_NEVER = -1


class SideTimes(Protocol):
    """The part of `BoundProgram` that a stream-stream join uses."""

    elsewhere: bool
    """Whether other tasks, at their own speed, process records of some keys of the
    partition.
    """

    def stream_time(self, topics: tuple[str, ...]) -> int:
        """Return the largest stream time that any of these topics has reached."""
        ...


class JoinMemory:
    """The buffers of one join in one task.

    `topics`: the topics of the left and of the right side. `shared`: whether other
    tasks have other keys of the partitions. Then the stream times of `topics` show how
    far their records have come.
    """

    def __init__(
        self,
        node: StreamStreamJoin,
        topics: tuple[tuple[str, ...], tuple[str, ...]],
        stores: Mapping[str, TableStore],
        process: SideTimes,
        shared: bool,
    ) -> None:
        windows = node.windows
        before = windows.before_ms
        after = windows.after_ms
        self._reach = ((before, after), (after, before))
        self._outer = (node.kind != "inner", node.kind == "outer")
        self._sides = [
            _side(cast(WindowTableStore, stores[spec.name]), windows.retention_ms)
            for spec in node.stores[:2]
        ]
        self._keeps = (len(self._sides) > 1, True)
        if len(self._sides) == 1:
            self._sides *= 2
        self._waiting = (
            UnmatchedRecords(stores[node.stores[2].name])
            if len(node.stores) > 2
            else None
        )
        self._topics = topics
        self._process = process
        self._shared = shared
        self._reached = _NEVER
        if self._waiting is not None:
            store = self._waiting.store
            self._gate = store.siblings.setdefault(
                f"gate of {store.spec.name}",
                EmissionGate((after, before), windows.grace_ms, store.guard),
            )
            self._gate.add(self._waiting.order)

    def before(
        self,
        side: int,
        key: bytes | None,
        timestamp: int,
        now: int,
    ) -> list[Pair]:
        """Return and remove the unmatched records to emit before a record's own
        results. Call `take` next. `now`: the stream time.
        """
        if key is None:
            return []
        if timestamp == now or (self._shared and now > self._reached):
            self._gate.look(now, side)
        return self.due(now)

    def take(
        self,
        side: int,
        key: bytes | None,
        value: Any,
        timestamp: int,
        now: int,
    ) -> list[Pair]:
        """Return a record's own results: its matches, or an unmatched result. `now`:
        the stream time.
        """
        if key is None:
            return (
                [_pair(side, None, value, None, timestamp)] if self._outer[side] else []
            )
        if self._keeps[side]:
            self._sides[side].put(key, timestamp, value)
        due: list[Pair] = []
        before, after = self._reach[side]
        other = self._sides[1 - side]
        if other.is_behind:
            other.observe_others(self._process.stream_time(self._topics[1 - side]))
        found = other.between(
            key, max(0, timestamp - before), max(0, timestamp + after)
        )
        for at, values in found:
            if self._waiting is not None and self._waiting.remove(key, 1 - side, at):
                self._gate.remove((at, side, key))
            due += [
                _pair(side, key, value, match, max(timestamp, at)) for match in values
            ]
        if not found and self._outer[side]:
            if self._waiting is None or max(0, timestamp + after) < now:
                due.append(_pair(side, key, value, None, timestamp))
            else:
                self._gate.add([(timestamp, 1 - side, key)])
                self._waiting.add(key, side, timestamp, value)
        return due

    def skip(self, now: int) -> None:
        """Advance stream time to `now` for a dropped record, which has no results."""
        self._reached = max(self._reached, now)

    def due(self, now: int) -> list[Pair]:
        """Return and remove the unmatched records that were due when the gate was last
        opened. `now`: the stream time.

        The task that processes a record opens the gate for all tasks. A task at another
        speed may open it too early or too late for the records that wait here: before
        such a record arrives, after the last record here, or at a later stream time. So
        this method opens the gate as well.
        """
        self._reached = max(self._reached, now)
        if self._waiting is None:
            return []
        if self._process.elsewhere:
            self._gate.open(now)
        due: list[Pair] = []
        for at, order, key in self._gate.closed(self._waiting.order, now):
            self._gate.remove((at, order, key))
            due += [
                _pair(1 - order, key, value, None, at)
                for value in self._waiting.values(key, 1 - order, at)
            ]
            self._waiting.remove(key, 1 - order, at)
        return due


class EmissionGate:
    """The state that decides when records without a match are emitted. All tasks of a
    partition on an instance share one gate.

    Kafka Streams looks for due records only when the first of them could be due. After
    a search it takes the last record examined for the first remaining record, so it
    emits some records later than it could. Thus the waiting records of one key delay
    those of another. The tasks share the gate, so that the number of ranges does not
    change when records are emitted.

    Shape: a waiting record is (timestamp, 1 - side, key), in this order. `reach`: how
    far left and right records look ahead.
    """

    def __init__(
        self,
        reach: tuple[int, int],
        grace_ms: int,
        guard: AbstractContextManager[Any],
    ) -> None:
        self._reach = reach
        self._grace_ms = grace_ms
        self._guard = guard
        self._order: Any = SortedList()
        self._of: tuple[Any, Any] = (SortedList(), SortedList())
        self._first = _FOREVER
        self._opened = -_FOREVER

    def add(self, waiting: Iterable[Wait]) -> None:
        """Add records that wait for a match."""
        with self._guard:
            for wait in waiting:
                if wait not in self._order:
                    self._order.add(wait)
                    self._of[1 - wait[1]].add(wait)
                self._first = min(self._first, wait[0])
                if self._is_closed(wait, self._opened):
                    self._opened = (
                        -_FOREVER
                    )  # the new record is earlier, so it waits for the next look

    def remove(self, wait: Wait) -> None:
        """Remove a record that has found a match or was emitted."""
        with self._guard:
            self._remove(wait)

    def open(self, now: int) -> None:
        """Allow the emission of all records that are due at stream time `now`."""
        with self._guard:
            self._opened = max(self._opened, now)

    def look(self, now: int, side: int) -> None:
        """Allow the emission of the records that are due at stream time `now`, if the
        first of them could be due.

        `side`: the side of the record that advanced stream time.
        """
        with self._guard:
            if self._first + self._reach[side] + self._grace_ms >= now:
                return
            self._opened = max(self._opened, now)
            last = self._order[-1] if self._order else None
            for of in (LEFT, RIGHT):
                while self._of[of] and self._is_closed(self._of[of][0], now):
                    self._remove(self._of[of][0])
            if all(self._of):
                looked = (
                    self._order.index(max(self._of[LEFT][0], self._of[RIGHT][0])) + 1
                )
                last = self._order[min(looked, len(self._order) - 1)]
            self._first = _FOREVER if last is None else last[0]

    def closed(self, waiting: Any, now: int) -> list[Wait]:
        """Return a task's waiting records whose windows have closed and that may be
        emitted.

        `waiting`: the task's waiting records, sorted. `now`: the task's stream time,
        which may lag behind that of another task.
        """
        until = min(now, self._opened)
        nearest = until - self._grace_ms - min(self._reach)
        return [
            wait
            for wait in waiting.irange(None, (nearest, 0, b""), (True, False))
            if self._is_closed(wait, until)
        ]

    def _is_closed(self, wait: Wait, now: int) -> bool:
        return wait[0] + self._reach[1 - wait[1]] + self._grace_ms < now

    def _remove(self, wait: Wait) -> None:
        if wait in self._order:
            self._order.remove(wait)
            self._of[1 - wait[1]].remove(wait)


class _Side(Protocol):
    """The records of one side of a join: the timestamps of each key in memory, the
    values in a window store.

    Shape: the time of a side is the latest timestamp of its own records, and of others
    as far as `observe_others` was told. Rows that the store has expired stay expired:
    siblings may have advanced it beyond the rows of this task. The rows count from
    their own times: one earlier owner may have been ahead of the remaining records of
    another.
    """

    @property
    def is_behind(self) -> bool:
        """Whether records of other tasks are later than the time of this side."""
        ...

    def observe_others(self, stream_time: int) -> None:
        """Advance the time of this side by the records of other tasks, but not beyond
        `stream_time`, this task's own, because other tasks may be ahead.
        """

    def put(self, key: bytes, timestamp: int, value: Any) -> None:
        """Store a record, unless it is already older than the retention. Older records
        are removed when the time of the side has passed them by the retention.
        """

    def between(
        self,
        key: bytes,
        first: int,
        last: int,
    ) -> list[tuple[int, list[Any]]]:
        """Return the timestamps of a key's records from first to last (inclusive,
        ascending), with their values in arrival order.
        """
        ...


def _side(store: WindowTableStore, retention_ms: int) -> _Side:
    """Return the side whose values are in a store."""
    newest = max(_NEVER, store.observed)
    found = [split_window_key(row) for row, _ in store.scan(None, None)]
    of_all: list[int] = store.siblings.setdefault(
        f"newest of {store.spec.name}",
        [_NEVER],
    )
    of_all[0] = max(of_all[0], newest, *(at for _, at in found))
    make = _LiveSide if getattr(store, "rows", None) is None else _NativeSide
    return make(store, retention_ms, newest, of_all, found)


class _NativeSide:
    """A side whose rows and timestamps are in native memory: see `NativeWindowTable`."""

    def __init__(
        self,
        store: WindowTableStore,
        retention_ms: int,
        newest: int,
        of_all: list[int],
        found: Iterable[tuple[bytes, int]],
    ) -> None:
        self._store = store
        native = cast(Any, store)
        self._times = native.rows.side(native.loaded, retention_ms, newest, of_all)
        for key, at in found:
            self._times.know(key, at)
        self.between = self._times.between
        self._put = self._times.put

    @property
    def is_behind(self) -> bool:
        """Whether records of other tasks are later: see `_Side.is_behind`."""
        behind: bool = self._times.is_behind
        return behind

    def observe_others(self, stream_time: int) -> None:
        """Advance the time of this side: see `_Side.observe_others`."""
        if self._times.observe_others(stream_time):
            self._sweep()

    def put(self, key: bytes, timestamp: int, value: Any) -> None:
        """Store a record: see `_Side.put`."""
        if self._put(key, timestamp, value):
            self._sweep()

    def _sweep(self) -> None:
        self._store.advance(self._times.newest)
        self._times.sweep()


class _LiveSide:
    """A side whose rows are entries of the store's write buffer."""

    def __init__(
        self,
        store: WindowTableStore,
        retention_ms: int,
        newest: int,
        of_all: list[int],
        found: Iterable[tuple[bytes, int]],
    ) -> None:
        self._store = store
        self._retention_ms = retention_ms
        self._newest = self._swept = newest
        self._of_all = of_all
        self._times: dict[bytes, list[int]] = {}
        for key, at in found:
            self._times.setdefault(key, []).append(at)
        for times in self._times.values():
            times.sort()

    @property
    def is_behind(self) -> bool:
        """Whether records of other tasks are later: see `_Side.is_behind`."""
        return self._of_all[0] > self._newest

    def observe_others(self, stream_time: int) -> None:
        """Advance the time of this side: see `_Side.observe_others`."""
        self._observe(min(self._of_all[0], stream_time))

    def put(
        self,
        key: bytes,
        timestamp: int,
        value: Any,
    ) -> None:
        """Store a record: see `_Side.put`."""
        self._observe(timestamp)
        if timestamp > self._of_all[0]:
            self._of_all[0] = timestamp
        if timestamp < self._oldest:
            return
        row = window_key(key, timestamp)
        entry = self._entry(row)
        if entry.value is None:
            entry.value = [value]
            insort(self._times.setdefault(key, []), timestamp)
        else:
            # a list of its own: who has read this row still has that of before
            entry.value = [*entry.value, value]
        entry.timestamp = timestamp
        if not entry.dirty:
            self._store.touch(row, entry)

    def between(
        self,
        key: bytes,
        first: int,
        last: int,
    ) -> list[tuple[int, list[Any]]]:
        """Return a key's records: see `_Side.between`."""
        times = self._times.get(key)
        if times is None:
            return []
        begin = bisect_left(times, max(first, self._oldest))
        end = bisect_right(times, last)
        return [(at, self._entry(window_key(key, at)).value) for at in times[begin:end]]

    @property
    def _oldest(self) -> int:
        """The oldest timestamp of records that can still be found."""
        return self._newest - self._retention_ms + 1

    def _entry(self, row: bytes) -> Entry:
        return self._store.entries.get(row) or self._store.load(row)

    def _observe(self, timestamp: int) -> None:
        """Advance the time of this side to `timestamp`; records older than the
        retention are removed.
        """
        if timestamp > self._newest:
            self._newest = timestamp
            if timestamp - self._swept > self._retention_ms:
                self._sweep()

    def _sweep(self) -> None:
        """Remove the timestamps and rows that are older than the retention."""
        self._swept = self._newest
        self._store.advance(self._newest)
        for key, times in list(self._times.items()):
            del times[: bisect_left(times, self._oldest)]
            if not times:
                del self._times[key]


class UnmatchedRecords:
    """The records of a join still without a match: stored by key, and in memory in the
    order of their emission.
    """

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self.order: Any = SortedList(
            (at, 1 - side, key)
            for key, entry in store.scan(None, None)
            for at, side in {row[:2] for row in entry.value}
        )

    def values(
        self,
        key: bytes,
        side: int,
        timestamp: int,
    ) -> list[Any]:
        """Return the values of the records with a key, side and timestamp, in the order
        of arrival.
        """
        return [
            value
            for at, of, value in self.store.load(key).value or ()
            if (at, of) == (timestamp, side)
        ]

    def add(
        self,
        key: bytes,
        side: int,
        timestamp: int,
        value: Any,
    ) -> None:
        """Add a record that has no match."""
        if (timestamp, 1 - side, key) not in self.order:
            self.order.add((timestamp, 1 - side, key))
        self._write(
            key,
            [*(self.store.load(key).value or ()), (timestamp, side, value)],
        )

    def remove(
        self,
        key: bytes,
        side: int,
        timestamp: int,
    ) -> bool:
        """Remove all records with a key, side and timestamp. Return whether there were
        any.
        """
        at = (timestamp, 1 - side, key)
        if at not in self.order:
            return False
        self.order.remove(at)
        self._write(
            key,
            [
                row
                for row in self.store.load(key).value or ()
                if row[:2] != (timestamp, side)
            ],
        )
        return True

    def _write(self, key: bytes, rows: list[tuple[int, int, Any]]) -> None:
        entry = self.store.load(key)
        entry.value = rows or None
        entry.timestamp = max((row[0] for row in rows), default=entry.timestamp)
        if not entry.dirty:
            self.store.touch(key, entry)


def _pair(
    side: int,
    key: bytes | None,
    value: Any,
    other: Any,
    timestamp: int,
) -> Pair:
    return (
        (key, value, other, timestamp)
        if side == LEFT
        else (key, other, value, timestamp)
    )
