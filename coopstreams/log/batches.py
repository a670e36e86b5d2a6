"""Makes batches of a partition's records: extracts timestamps, computes stream times,
hashes keys, splits records by key range.

All readers call `make_batches` with all records that they have read, in offset order,
so the rules cannot differ between logs.

Invariant: a record is in exactly one slot, or in none if its hash is outside all
ranges; every slot gets a batch, so that its position moves. Time marks are in no slot.
Relies on: `compile.timestamps` (comes first), `compile.operator_time`, `clocks` (time
marks).
Turned down: hashing and splitting record by record (three times as slow as a
comprehension of hashes and lists of indexes: measured).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Protocol, TypeAlias, TypeVar

from coopstreams.log import clocks
from coopstreams.log.clocks import Clock, clock_marks_in, marked
from coopstreams.log.log import NO_STREAM_TIME, RecordBatch
from coopstreams.log.time_marks import marks_in
from coopstreams.topology.columns import (
    NO_RECORDS,
    Advances,
    Columns,
    Headers,
    Int64s,
    TopicPartition,
    joined,
)
from coopstreams.topology.compile.births import births_in
from coopstreams.topology.compile.operator_time import (
    OperatorTimeColumns,
    before_and_after,
)
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.keys import (
    GROUPS,
    HASH_BITS,
    KeyRange,
    key_hashes,
    without_suffix,
)

T = TypeVar("T")

_GROUP_SHIFT = HASH_BITS - (GROUPS - 1).bit_length()


class Router(Protocol):
    """A native replacement of `Routes.split`, with the same result for keys that are
    bytes or None.
    """

    def split(self, keys: Sequence[bytes | None], offsets: Int64s) -> list[list[int]]:
        """Return the indexes of each slot's records, ascending."""
        ...


MakeRouter: TypeAlias = Callable[[list[int], list[int], int, int], Router]
"""Makes a router from the hashes at which the slot changes, the slots, the number of
slots (see `_bounds`), and the suffix.
"""


class Routes:
    """The key ranges of one partition: decides which record goes to which slot.

    Shape: slot = index in `ranges`.
    """

    __slots__ = (
        "_bounds",
        "_by_bound",
        "_by_group",
        "_everywhere",
        "_operator_times",
        "_ranges",
        "_router",
        "_suffix",
        "advances",
        "clock",
        "keep_marks",
        "now",
        "time_marks",
        "timestamps",
        "whole",
    )

    def __init__(
        self,
        ranges: Sequence[KeyRange],
        timestamps: TimestampColumn | None = None,
        operator_times: OperatorTimeColumns | None = None,
        *,
        time_marks: bool = False,
        keep_marks: bool = False,
        suffix: int = 0,
        advances: bool = False,
        clock: Clock | None = None,
        router: MakeRouter | None = None,
    ) -> None:
        """Divide the hash space into slots.

        `time_marks`: whether time marks advance time. `keep_marks`: whether they are
        treated as records. `suffix`: the number of bytes at the end of each key that
        are not hashed. `advances`: whether batches say where stream time advanced.
        `clock`: the clock of a timed topic, which replaces all operator times.
        `router`: makes a native router; None: pure Python.

        Raises:
            ValueError: there are no ranges, or two overlap.
        """
        if not ranges:
            raise ValueError(
                "a route needs at least one key range; a partition without key ranges must not be assigned"
            )
        self.timestamps = timestamps
        self.clock = clock
        self.time_marks = time_marks
        self.keep_marks = keep_marks
        self.whole = len(ranges) == 1 and ranges[0].is_whole
        self.advances = advances and (time_marks or not self.whole)
        self.now: list[int] = []
        """The operator times after the records seen since the routes were made. A task
        takes the later of this and its own.
        """
        self._operator_times = operator_times
        self._ranges = list(ranges)
        self._bounds, self._by_bound = _bounds(self._ranges)
        self._everywhere = (
            sum(key_range.end + 1 - key_range.start for key_range in ranges)
            == 1 << HASH_BITS
        )
        self._suffix = suffix
        self._router = (
            None
            if router is None
            else router(self._bounds, self._by_bound, len(self._ranges), suffix)
        )
        self._by_group: list[int] | None = None
        if all(key_range.is_cut_at_groups for key_range in ranges):
            self._by_group = []
            for slot, (start, end) in zip(
                self._by_bound,
                pairwise([0, *self._bounds, 1 << HASH_BITS]),
                strict=True,
            ):
                self._by_group += [slot] * ((end - start) >> _GROUP_SHIFT)

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def first_router(self) -> Router | None:
        """The router that may split records before anything else sees them; None if
        something needs all records first.
        """
        all_seen = (
            self.keep_marks
            or self.timestamps is not None
            or self._operator_times is not None
            or self.clock is not None
        )
        return None if self.whole or all_seen else self._router

    def split(self, columns: Columns) -> list[Columns]:
        """Return the records of each slot, in offset order."""
        if self.whole or not len(columns):
            return [columns] + [NO_RECORDS] * (len(self) - 1)
        return [columns.pick(part) for part in self._indexes(columns)]

    def tell_time(self, columns: Columns) -> None:
        """Set the operator times of records, and advance the partition's operator
        times. Call it in the order of the records.
        """
        if self._operator_times is None:
            return
        told = self._operator_times(columns)
        now = self.now or [NO_STREAM_TIME] * len(told)
        taken = None if self._everywhere or not any(told) else self._taken(columns)
        both = [
            before_and_after(columns.timestamps, operator_time, arrives, taken)
            for arrives, operator_time in zip(told, now, strict=True)
        ]
        columns.operator_times = [before for before, _ in both]
        self.now = [after for _, after in both]

    def tell_clock(self, columns: Columns) -> None:
        """Set the operator times of records between two marks of a timed topic: all are
        its clock.
        """
        assert self.clock is not None
        if self._operator_times is None:
            return
        # The operators are asked once, not for each part between two marks.
        count = len(self.now) or len(self._operator_times(NO_RECORDS))
        self.now = [self.clock.now] * count
        columns.operator_times = [[self.clock.now] * len(columns)] * count

    def reach(self, stream_time: int) -> None:
        """Advance all operator times: a time mark reaches every operator."""
        if self._operator_times is not None:
            now = self.now or [NO_STREAM_TIME] * len(self._operator_times(NO_RECORDS))
            self.now = [max(operator_time, stream_time) for operator_time in now]

    def _taken(self, columns: Columns) -> list[bool]:
        taken = [False] * len(columns)
        for part in self._indexes(columns):
            for i in part:
                taken[i] = True
        return taken

    def _indexes(self, columns: Columns) -> list[list[int]]:
        """Return, for each slot (key range of the partition), the indexes of its
        records.
        """
        if self._router is not None:
            return self._router.split(columns.keys, columns.offsets)
        hashes = key_hashes(without_suffix(columns.keys, self._suffix), columns.offsets)
        if len(self) == 1:
            start = self._ranges[0].start
            end = self._ranges[0].end
            return [[i for i, hash_ in enumerate(hashes) if start <= hash_ <= end]]
        slots: list[list[int]] = [[] for _ in range(len(self) + 1)]
        if self._by_group is not None:
            take = [slots[slot].append for slot in self._by_group]
            for i, hash_ in enumerate(hashes):
                take[hash_ >> _GROUP_SHIFT](i)
        else:
            take = [slots[slot].append for slot in self._by_bound]
            bounds = self._bounds
            for i, hash_ in enumerate(hashes):
                take[bisect_right(bounds, hash_)](i)
        return slots[:-1]


def make_batches(
    partition: TopicPartition,
    columns: Columns,
    routes: Routes | None,
    before: int,
    next_offset: int,
    *,
    at_end: bool,
) -> list[RecordBatch]:
    """Return one batch for each slot of the partition.

    Shape: `columns` has all records that were read, including those outside of all
    ranges. Its stream times are empty, or computed as if nothing had been read before.
    `before` is the stream time before the records.
    """
    steps: list[tuple[int, int]] | None = (
        [] if routes is not None and routes.advances else None
    )
    if routes is not None and routes.clock is not None:
        columns, before = _clocked(partition, columns, routes, routes.clock, before)
    elif marks := marks_in(columns) if routes is None else _marks(columns, routes):
        columns, before = _without_marks(
            partition,
            columns,
            routes,
            before,
            steps,
            marks,
        )
    else:
        before = _tell_time(partition, columns, routes, before, steps)
    slots = [columns] if routes is None else routes.split(columns)
    now = () if routes is None else routes.now
    busy = len(columns) > 0
    clock = (
        NO_STREAM_TIME if routes is None or routes.clock is None else routes.clock.now
    )
    advances = (
        (Advances(*(array("q", column) for column in zip(*steps, strict=True))),)
        if steps
        else ()
    )
    return [
        RecordBatch(
            partition,
            slot,
            part,
            next_offset,
            before,
            at_end,
            now,
            busy,
            advances,
            clock,
        )
        for slot, part in enumerate(slots)
    ]


def _marks(columns: Columns, routes: Routes) -> list[tuple[int, int]]:
    """Return the marks that no task gets, each with its index and time.

    A mark of a timed topic has no time for who reads the topic without its clock: a
    task that still writes the formats of an earlier release (`format_level`).
    """
    if routes.keep_marks:
        return []
    of_clocks = [
        (index, NO_STREAM_TIME)
        for index, name, _ in marked(columns, clocks.HEADER)
        if name == clocks.HEADER
    ]
    return sorted(of_clocks + marks_in(columns)) if of_clocks else marks_in(columns)


def _without_marks(
    partition: TopicPartition,
    columns: Columns,
    routes: Routes | None,
    before: int,
    steps: list[tuple[int, int]] | None,
    marks: Iterable[tuple[int, int]],
) -> tuple[Columns, int]:
    """Return the records without the time marks, and the stream time after both.

    `steps`: see `_tell_time`. `marks`: index and time of each mark.
    """
    # The stream times of a native reader count the timestamps of the marks, too.
    columns = replace(columns, stream_times=())
    parts = list[Columns]()
    for part, mark in _between(columns, marks):
        before = _tell_time(partition, part, routes, before, steps)
        parts.append(part)
        if mark is not None and routes is not None and routes.time_marks:
            at, time = mark
            if steps is not None and time > before:
                steps.append((columns.offsets[at], time))
            before = max(before, time)
            routes.reach(time)
    return joined(parts), before


def _clocked(
    partition: TopicPartition,
    columns: Columns,
    routes: Routes,
    clock: Clock,
    before: int,
) -> tuple[Columns, int]:
    """Return the records of a timed topic without its marks, each with its birth and the
    clock in front of it; and the stream time after them.
    """
    parts = list[Columns]()
    marks = clock_marks_in(columns)
    births, headers = births_in(columns.headers, columns.timestamps)
    columns = replace(columns, stream_times=(), births=births, headers=headers)
    for part, mark in _between(columns, marks):
        before = _tell_time(partition, part, None, before, None)
        routes.tell_clock(part)
        parts.append(part)
        if mark is not None:
            clock.hear(mark[1])
    records = joined(parts)
    if records.headers is not None and not any(records.headers):
        records.headers = None  # only marks had some
    return records, before


def _between(
    columns: Columns,
    marks: Iterable[tuple[int, T]],
) -> Iterator[tuple[Columns, tuple[int, T] | None]]:
    """Yield the records between marks, each time with the mark behind them; None behind
    the last ones.

    `marks`: the index of each mark, ascending, and what it says.
    """
    start = 0
    for mark in marks:
        yield columns.slice(start, mark[0]), mark
        start = mark[0] + 1
    yield columns.slice(start, len(columns)), None


def _tell_time(
    partition: TopicPartition,
    columns: Columns,
    routes: Routes | None,
    before: int,
    steps: list[tuple[int, int]] | None,
) -> int:
    """Set timestamps, stream times and operator times of records; return the stream
    time after them.

    `steps`: a list that takes (offset, new time) of each advance of stream time; None:
    not needed.
    """
    if not len(columns):
        return before
    if routes is not None and routes.timestamps is not None:
        columns.timestamps = routes.timestamps(partition, columns, before)
        columns.stream_times = ()
    times = columns.stream_times = _stream_times(columns, before)
    if steps is not None:
        earlier = chain((before,), times)
        steps += [
            (at, now)
            for at, now, was in zip(columns.offsets, times, earlier, strict=False)
            if now > was
        ]
    if routes is not None:
        routes.tell_time(columns)
    return times[-1]


def slot_batches(
    batch: RecordBatch,
    slots: list[Columns],
    before: int,
) -> list[RecordBatch]:
    """Return a copy of the batch for each slot, with the records of the slot. They were
    split when they were read.

    Shape: `before` is the stream time before all records of the partition. The records
    have stream times as if nothing had been read before; they are raised to `before`.
    """
    for columns in slots:
        if len(columns):
            columns.stream_times = _stream_times(columns, before)
    return [
        replace(batch, slot=slot, columns=columns) for slot, columns in enumerate(slots)
    ]


def raw_columns(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Int64s,
    offsets: Int64s,
    headers: Sequence[Headers | None],
) -> Columns:
    """Return columns for `make_batches`: without stream times; headers None if no
    record has any.
    """
    return Columns(
        keys,
        values,
        timestamps,
        offsets,
        (),
        headers if any(headers) else None,
    )


def stream_times(timestamps: Int64s, before: int) -> Int64s:
    """Return the running maximum of the timestamps, beginning at `before`. Negative
    timestamps do not change it.
    """
    # Sorting sorted timestamps only compares them: a tenth of the price of a running
    # maximum, and the usual case.
    if timestamps[0] >= before and sorted(timestamps) == timestamps:
        return timestamps
    return list(accumulate(timestamps, max, initial=before))[1:]


def _stream_times(columns: Columns, before: int) -> Int64s:
    """Return the stream times of records that follow the stream time `before`. The
    columns may have stream times as if nothing had been read before.
    """
    times = columns.stream_times
    if not len(times):
        return stream_times(columns.timestamps, before)
    return times if times[0] >= before else [max(before, time) for time in times]


def _bounds(ranges: list[KeyRange]) -> tuple[list[int], list[int]]:
    """Return the hashes at which the slot changes, and the slots: the one before the
    first of these hashes, then the one from each of them on.

    The number `len(ranges)` means no slot.
    """
    nobody = len(ranges)
    bounds = [0]
    slots = [nobody, nobody]
    for slot, key_range in sorted(enumerate(ranges), key=lambda item: item[1]):
        if key_range.start < bounds[-1]:
            raise ValueError(
                f"key range {key_range} overlaps another one: a record would be given out twice"
            )
        if key_range.start == bounds[-1]:
            slots[-1] = slot
        else:
            bounds.append(key_range.start)
            slots.append(slot)
        bounds.append(key_range.end + 1)
        slots.append(nobody)
    return bounds, slots
