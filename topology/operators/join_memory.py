"""The buffers of a stream-stream join: the records of both sides, and those that still wait for a match.

A side keeps one entry for each key and timestamp: the values of the records that had both, in the order of their
arrival. Beside it an index in memory knows the timestamps of each key, so that a probe touches nothing else. Records
that wait are kept by key; in memory they are in the order in which they will be emitted: timestamp, right side before
left, key bytes. A stream that is joined with itself may have one store for both sides: a record comes as a left one
first, meets what was before it, and is kept when it comes as a right one.

Invariant: whatever a join returns for a record depends on records before it alone, never on when a batch or a commit
ends.
Turned down: a row a record with a sequence number (Kafka Streams' `retainDuplicates`): two records of one key and one
millisecond are rare, and a restart would have to find out where the numbers ended.
Source: Kafka Streams `KStreamKStreamJoin`, `KStreamJoinWindow`, `TimestampedKeyAndJoinSide`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, cast

from sortedcontainers import SortedList

from coopstreams.topology.graph.join_nodes import StreamStreamJoin
from coopstreams.topology.stores import TableStore, WindowTableStore, split_window_key, window_key

Pair: TypeAlias = tuple[bytes | None, Any, Any, int]
"""Key, left value, right value, timestamp: what a join has to say."""

Wait: TypeAlias = tuple[int, int, bytes]
"""A record that waits: timestamp, 1 - side, key. In this order they are told of."""

LEFT, RIGHT = 0, 1
_FOREVER = 1 << 63
_NEVER = -1


class SideTimes(Protocol):
    """What a join asks of the program around it."""

    elsewhere: bool
    """Whether records of some keys of the partition are taken by other processes."""

    def stream_time(self, topics: tuple[str, ...]) -> int:
        """Return the largest stream time that any of these topics has reached."""
        ...


class JoinMemory:
    """The memory of one join in one task.

    `shared`: other tasks have the other keys of the partitions; then `topics` (of the left, of the right) tell their
    time.
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
        before, after = windows.before_ms, windows.after_ms
        self._reach = ((before, after), (after, before))
        self._outer = (node.kind != "inner", node.kind == "outer")
        self._sides = [
            _Side(cast(WindowTableStore, stores[spec.name]), windows.retention_ms) for spec in node.stores[:2]
        ]
        self._keeps = (len(self._sides) > 1, True)
        if len(self._sides) == 1:
            self._sides *= 2
        self._waiting = UnmatchedRecords(stores[node.stores[2].name]) if len(node.stores) > 2 else None
        self._topics, self._process, self._shared = topics, process, shared
        self._told = _NEVER
        if self._waiting is not None:
            store = self._waiting.store
            self._gate = store.siblings.setdefault(
                f"gate of {store.spec.name}", EmissionGate((after, before), windows.grace_ms, store.guard)
            )
            self._gate.add(self._waiting.order)

    def take(self, side: int, key: bytes | None, value: Any, timestamp: int, now: int) -> list[Pair]:
        """Return what a record of a side leads to: what waited long enough, then its matches, or itself alone. `now`:
        stream time.
        """
        if key is None:
            return [_pair(side, None, value, None, timestamp)] if self._outer[side] else []
        if self._keeps[side]:
            self._sides[side].put(key, timestamp, value)
        if timestamp == now or (self._shared and now > self._told):
            self._look(now, side)
        told = self.due(now)
        before, after = self._reach[side]
        other = self._sides[1 - side]
        if self._shared:
            other.observe_others(self._process.stream_time(self._topics[1 - side]))
        found = list(other.between(key, max(0, timestamp - before), max(0, timestamp + after)))
        for at, values in found:
            if self._waiting is not None and self._waiting.remove(key, 1 - side, at):
                self._gate.remove((at, side, key))
            told += [_pair(side, key, value, match, max(timestamp, at)) for match in values]
        if not found and self._outer[side]:
            if self._waiting is None or max(0, timestamp + after) < now:
                told.append(_pair(side, key, value, None, timestamp))
            else:
                self._gate.add([(timestamp, 1 - side, key)])
                self._waiting.add(key, side, timestamp, value)
        return told

    def skip(self, now: int) -> None:
        """Let stream time reach this value by a record that is dropped: it moves time but tells of nothing."""
        self._told = max(self._told, now)

    def due(self, now: int) -> list[Pair]:
        """Return the records that have waited until the gate was last opened, and forget them. `now`: stream time.

        A record that another process takes moves time here, too, but opens no gate here: then the time itself does.
        """
        self._told = max(self._told, now)
        if self._waiting is None:
            return []
        if self._process.elsewhere:
            self._gate.look(now)
        told: list[Pair] = []
        for at, order, key in self._gate.closed(self._waiting.order, now):
            told += [_pair(1 - order, key, value, None, at) for value in self._waiting.values(key, 1 - order, at)]
            self._waiting.remove(key, 1 - order, at)
        return told

    def _look(self, now: int, side: int) -> None:
        if self._waiting is not None:
            self._gate.look(now, side)


class EmissionGate:
    """When records without a match are told of: one for all tasks of a partition that an instance has.

    Kafka Streams looks for them only if the first could be due, and takes for the first of the rest the last one it
    looked at; so some come later than they could. What one task has waiting thus holds back another's: so that the
    number of ranges changes nothing, they share it.

    Shape: what waits is (timestamp, 1 - side, key), in this order. `reach`: how far left and right records look ahead.
    """

    def __init__(self, reach: tuple[int, int], grace_ms: int, guard: AbstractContextManager[Any]) -> None:
        self._reach, self._grace_ms, self._guard = reach, grace_ms, guard
        self._order: Any = SortedList()
        self._of: tuple[Any, Any] = (SortedList(), SortedList())
        self._first, self._opened = _FOREVER, _NEVER

    def add(self, waiting: Iterable[Wait]) -> None:
        """Let these wait, too."""
        with self._guard:
            for wait in waiting:
                if wait not in self._order:
                    self._order.add(wait)
                    self._of[1 - wait[1]].add(wait)
                self._first = min(self._first, wait[0])

    def remove(self, wait: Wait) -> None:
        """One has found a match, or was told of."""
        with self._guard:
            self._remove(wait)

    def look(self, now: int, side: int | None = None) -> None:
        """Open the gate for what is due at this stream time, if the record that moved time makes it worth a look.
        `side`: of it, if that is known.
        """
        with self._guard:
            reach = min(self._reach) if side is None else self._reach[side]
            if self._first + reach + self._grace_ms >= now:
                return
            self._opened = now
            last = self._order[-1] if self._order else None
            for of in (LEFT, RIGHT):
                while self._of[of] and self._is_closed(self._of[of][0], now):
                    self._remove(self._of[of][0])
            if all(self._of):
                looked = self._order.index(max(self._of[LEFT][0], self._of[RIGHT][0])) + 1
                last = self._order[min(looked, len(self._order) - 1)]
            self._first = _FOREVER if last is None else last[0]

    def closed(self, waiting: Any, now: int) -> list[Wait]:
        """Return those of a task's waiting records that may be told of. `now`: the task's stream time, which may lag
        behind another's.
        """
        until = min(now, self._opened)
        nearest = until - self._grace_ms - min(self._reach)
        return [wait for wait in waiting.irange(None, (nearest, 0, b""), (True, False)) if self._is_closed(wait, until)]

    def _is_closed(self, wait: Wait, now: int) -> bool:
        return wait[0] + self._reach[1 - wait[1]] + self._grace_ms < now

    def _remove(self, wait: Wait) -> None:
        if wait in self._order:
            self._order.remove(wait)
            self._of[1 - wait[1]].remove(wait)


class _Side:
    """The records of one stream: which timestamps each key has, in memory, and the values in a window store."""

    def __init__(self, store: WindowTableStore, retention_ms: int) -> None:
        self._store, self._retention_ms = store, retention_ms
        # What the store has forgotten stays forgotten: siblings may have moved it further than the rows of this task
        # say.
        self._newest = self._swept = max(_NEVER, store.observed)
        self._times: dict[bytes, list[int]] = {}
        for row, _ in store.scan(None, None):
            key, at = split_window_key(row)
            self._times.setdefault(key, []).append(at)
            self._newest = max(self._newest, at)
        for times in self._times.values():
            times.sort()
        self._of_all: list[int] = store.siblings.setdefault(f"newest of {store.spec.name}", [_NEVER])
        self._of_all[0] = max(self._of_all[0], self._newest)

    def observe(self, timestamp: int) -> None:
        """Let the newest record of the side be at least this new: what is older than the retention is gone."""
        if timestamp > self._newest:
            self._newest = timestamp
            if timestamp - self._swept > self._retention_ms:
                self._sweep()

    @property
    def _oldest(self) -> int:
        """The oldest timestamp that can still be found."""
        return self._newest - self._retention_ms + 1

    def observe_others(self, stream_time: int) -> None:
        """Count what other tasks have put, as far as this task has come: they may be ahead."""
        self.observe(min(self._of_all[0], stream_time))

    def put(self, key: bytes, timestamp: int, value: Any) -> None:
        """Keep a record, if it is not too old to be found."""
        self.observe(timestamp)
        if timestamp > self._of_all[0]:
            self._of_all[0] = timestamp
        if timestamp < self._oldest:
            return
        row = window_key(key, timestamp)
        entry = self._store.entries.get(row) or self._store.load(row)
        if entry.value is None:
            entry.value = [value]
            insort(self._times.setdefault(key, []), timestamp)
        else:
            entry.value.append(value)
        entry.timestamp = timestamp
        if not entry.dirty:
            self._store.touch(row, entry)

    def between(self, key: bytes, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the timestamps of a key from first to last, inclusive and ascending, with their values in the order of
        arrival.
        """
        times = self._times.get(key)
        if times is None:
            return
        for at in times[bisect_left(times, max(first, self._oldest)) : bisect_right(times, last)]:
            row = window_key(key, at)
            yield at, (self._store.entries.get(row) or self._store.load(row)).value

    def _sweep(self) -> None:
        """Forget the timestamps that nobody can ask for any more."""
        self._swept = self._newest
        self._store.advance(self._newest)
        for key, times in list(self._times.items()):
            del times[: bisect_left(times, self._oldest)]
            if not times:
                del self._times[key]


class UnmatchedRecords:
    """The records without a match so far, by key in a store and in the order of their telling in memory."""

    def __init__(self, store: TableStore) -> None:
        self.store = self._store = store
        self.order: Any = SortedList(
            (at, 1 - side, key)
            for key, entry in store.scan(None, None)
            for at, side in {row[:2] for row in entry.value}
        )

    def first(self) -> int:
        """Return the smallest timestamp."""
        return self.order[0][0] if self.order else _FOREVER

    def values(self, key: bytes, side: int, timestamp: int) -> list[Any]:
        """Return the values of a key, side and timestamp, in the order of arrival."""
        return [value for at, of, value in self._store.load(key).value or () if (at, of) == (timestamp, side)]

    def add(self, key: bytes, side: int, timestamp: int, value: Any) -> None:
        """Let a record wait."""
        if (timestamp, 1 - side, key) not in self.order:
            self.order.add((timestamp, 1 - side, key))
        self._write(key, [*(self._store.load(key).value or ()), (timestamp, side, value)])

    def remove(self, key: bytes, side: int, timestamp: int) -> bool:
        """Let all records of a key, side and timestamp wait no longer; return whether there were any."""
        at = (timestamp, 1 - side, key)
        if at not in self.order:
            return False
        self.order.remove(at)
        self._write(key, [row for row in self._store.load(key).value or () if row[:2] != (timestamp, side)])
        return True

    def _write(self, key: bytes, rows: list[tuple[int, int, Any]]) -> None:
        entry = self._store.load(key)
        entry.value = rows or None
        entry.timestamp = max((row[0] for row in rows), default=entry.timestamp)
        if not entry.dirty:
            self._store.touch(key, entry)


def _pair(side: int, key: bytes | None, value: Any, other: Any, timestamp: int) -> Pair:
    return (key, value, other, timestamp) if side == LEFT else (key, other, value, timestamp)
