"""The simulated programs: topologies with their settings, the records written for them,
and the known results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from random import Random
from typing import Any

from coopstreams import (
    KStream,
    StreamsBuilder,
    Topology,
    serdes,
)
from tests.simulation import topologies
from tests.simulation.answers import (
    Alone,
    Answer,
    Complete,
    Counted,
    Either,
    Final,
    LastCounts,
    LastRows,
    Latest,
    Matched,
    Ordered,
    Paired,
    Parted,
    Sessions,
    Settled,
    SettledInCache,
    SettledOuter,
    SettledOuterInCache,
    Silent,
    Stepwise,
    Written,
)
from tests.simulation.one_partition import TOPICS, apart
from tests.simulation.topologies import KEYS, PARTITIONS

APPLICATION = "sim"
IDLE = "max.task.idle.ms"
CACHE = "statestore.cache.max.bytes"


Writes = Callable[[Random, int, int], Written]
"""Takes the number of the record, which rises, and the time in milliseconds."""


@dataclass(frozen=True, eq=False)
class Program:
    """A topology that writes to `out`.

    `calls`: the ways in which its calls can be made, each of which is given to `build`
    first; then `at_once`, too, is given to it, which is the same without calls, or else
    `at_once_alone` is built.
    """

    build: Callable[..., None]
    write: Writes
    answer: type[Answer]
    """The class of the program's expected results."""
    stores: tuple[str, ...] = ()
    """The stores whose rows at the end are known, under exactly-once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that its answer needs, which are not drawn."""
    loose: type[Answer] | None = None
    """The class where some updates of a row are not forwarded: with a record cache, or
    where its topic is compacted ahead of the group; None: the same.
    """
    tables: tuple[str, ...] = ()
    """The source topics that are read as tables."""
    gone: tuple[str, ...] = ()
    """The stores whose rows are unknown then: every update counts in them."""
    untimed: bool = False
    """Whether the timestamps in its stores depend on which of two topics is read first.
    """
    partitions: int = 1
    """The least number of partitions of its source topics: where it is one, silence
    means nothing.
    """
    calls: Mapping[str, Any] = field(default_factory=dict)
    at_once: Callable[..., Any] | None = None
    at_once_alone: Callable[[StreamsBuilder], None] | None = None
    in_one_partition: Callable[[StreamsBuilder], None] | None = None
    """Builds the same without repartition topics: its results are expected, where it
    gets all records in the order of births (`one_partition`).
    """
    direct: tuple[str, ...] = ()
    """The topics that its tasks read beside repartition topics in that order."""

    def topology(self, calls: str = "", *, newer: bool = False) -> Topology:
        """Return the topology, its calls made in a way of `calls`. A newer version
        reads one more topic, which renumbers the other sub-topologies.
        """
        builder = StreamsBuilder(APPLICATION)
        if newer:
            builder.stream("added", key=serdes.raw, value=serdes.raw).to("elsewhere")
        if self.calls:
            self.build(self.calls[calls or next(iter(self.calls))], builder)
        else:
            self.build(builder)
        return builder.build()

    def answering(self) -> Topology:
        """Return the topology that gives the expected results in one task."""
        builder = StreamsBuilder(APPLICATION)
        if self.in_one_partition is not None:
            self.in_one_partition(builder)
        elif self.at_once_alone is not None:
            self.at_once_alone(builder)
        elif self.calls:
            self.build(self.at_once, builder)
        else:
            self.build(builder)
        return builder.build()

    @property
    def driven(self) -> Mapping[str, Any]:
        """The settings of the one task that gives the expected results: it has all
        records in order, and forwards every update.
        """
        return {
            name: value
            for name, value in self.settings.items()
            if name not in (IDLE, CACHE)
        }

    @cached_property
    def topics(self) -> int:
        """The number of its source topics."""
        return len(self.topology().source_topics)

    @cached_property
    def repartitions(self) -> bool:
        """Whether it has a repartition topic."""
        return len(self.topology().subtopologies) > 1

    @cached_property
    def purges(self) -> bool:
        """Whether instances delete records of its internal topics."""
        return self.repartitions or any(
            store.retention_ms is not None
            for part in self.topology().subtopologies
            for store in part.stores
        )


_UNCACHED = {CACHE: 0}
_ASKING = {"processing.exception.handler": "continue"}
"""Records for which a call fails are dropped."""
_IN_TURN = {IDLE: 60_000}
"""A paused process may get one topic long before the other. Where pairs are kept only
for seconds, it must wait for both topics, or their order is undefined.
"""
_ALL_SPEAK = {"repartition.idle.ms": 1_000_000_000}
"""No partition counts as silent, however long a process stands still: what is late
follows from the records alone.
"""
_SOON_SILENT = {"repartition.idle.ms": 1_000}
_CALLS: Mapping[str, topologies.Asked] = {
    "in order": topologies.in_order,
    "one at a time": partial(topologies.in_order, most=1),
    "in any order": topologies.at_will,
    "for several records": topologies.in_batches,
}
_ANSWERED_CALLS: Mapping[str, topologies.Asked] = {
    "in order": topologies.whatever,
    "one at a time": partial(topologies.whatever, most=1),
    "for several records": topologies.whatever_in_batches,
}
_CALLS_WITH_STATE = {"8 at a time": 8, "one at a time": 1}


def _to(*topics: str, late: bool = False, deletes: bool = False) -> Writes:
    def write(random: Random, number: int, now_ms: int) -> Written:
        lateness = random.choice(_LATENESSES) if late else 0
        value = None if deletes and random.random() < 0.2 else b"%d" % number
        return Written(
            topics[0] if len(topics) == 1 else random.choice(topics),
            random.choice(KEYS).encode(),
            value,
            now_ms - lateness,
        )

    return write


def _apart(*topics: str, latenesses: Sequence[int]) -> Writes:
    """Return what writes records with births that no two source partitions share."""
    write = _to(*topics)

    def write_apart(random: Random, number: int, now_ms: int) -> Written:
        record = write(random, number, now_ms)
        late_ms = random.choice(latenesses)
        return apart(record._replace(timestamp=record.timestamp - late_ms))

    return write_apart


def _beside(keys: Sequence[str], write: Writes) -> Writes:
    """Return what writes records of which those of the right topic have these keys: it
    is read beside a repartition topic that has them.
    """

    def write_beside(random: Random, number: int, now_ms: int) -> Written:
        record = write(random, number, now_ms)
        if record.topic != TOPICS[1]:
            return record
        return record._replace(key=random.choice(keys).encode())

    return write_beside


def _one_apart(latenesses: Sequence[int]) -> Writes:
    """As `_apart`, where the right topic is read beside the repartition topic."""
    write = _beside(_MOVED_KEYS, _to(*TOPICS))

    def write_apart(random: Random, number: int, now_ms: int) -> Written:
        record = write(random, number, now_ms)
        late_ms = random.choice(latenesses)
        return apart(record._replace(timestamp=record.timestamp - late_ms))

    return write_apart


def _in_birth_order(
    build: Callable[[topologies.Way, StreamsBuilder], None],
    way: topologies.Way,
    write: Writes,
    answer: type[Answer],
    stores: tuple[str, ...] = (),
    loose: type[Answer] | None = None,
    direct: tuple[str, ...] = (),
) -> Program:
    """Return a program whose tasks take records in the order of births."""
    return Program(
        partial(build, way),
        write,
        answer,
        stores,
        _ALL_SPEAK,
        loose=loose,
        partitions=PARTITIONS,
        in_one_partition=partial(build, topologies.past),
        direct=direct,
    )


def _as_it_is(stream: KStream[str, str]) -> KStream[str, str]:
    return stream


_LATENESSES = (0, 0, 0, 500, 4_000, 20_000)
_LATE = _to("in", late=True)
_LATE_APART = _apart("in", latenesses=_LATENESSES)
_TWO_APART = _apart(*TOPICS, latenesses=_LATENESSES)
_TWO_LITTLE_LATE = _apart(*TOPICS, latenesses=(0, 0, 0, 500, 2_500))
_LEFT_AND_RIGHT = _to("left", "right")
_MOVED_KEYS = sorted({*topologies.PAIRS.values()})
_ROWS = _to("left", "right", deletes=True)
_WITH_TABLE = _to("in", "in", "table")

PROGRAMS = {
    "a count": Program(
        topologies.counted, _to("in"), Counted, ("counts",), loose=Latest
    ),
    "a count whose rows expire": Program(
        topologies.lasting, _LATE, Counted, ("counts",), loose=Latest
    ),
    "a count behind a repartition": Program(
        topologies.recounted, _to("in"), Counted, ("counts",), loose=Latest
    ),
    "windows": Program(topologies.windows, _LATE, Counted, ("counts",), loose=Latest),
    "windows that are soon forgotten": Program(
        topologies.forgotten, _LATE, Counted, loose=Latest
    ),
    "sessions that are soon forgotten": Program(
        topologies.forgotten_sessions, _LATE, Counted, loose=Latest
    ),
    "windows that are emitted at their close": Program(
        topologies.emitted, _LATE, Counted
    ),
    "filtered windows that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit), _LATE, Counted
    ),
    "filtered windows that close": Program(
        partial(topologies.filtered, topologies.count_in_windows_that_close),
        _LATE,
        Counted,
        ("counts",),
    ),
    "filtered sessions": Program(
        partial(topologies.filtered, topologies.count_sessions),
        _LATE,
        Counted,
        ("counts",),
        loose=Latest,
    ),
    "calls before windows that are emitted at their close": Program(
        partial(topologies.asked_below, topologies.emit),
        _LATE,
        Counted,
        calls=_ANSWERED_CALLS,
        at_once=_as_it_is,
    ),
    "merged windows that are emitted at their close": Program(
        partial(topologies.emit_merged, _as_it_is),
        _LEFT_AND_RIGHT,
        Counted,
        settings=_IN_TURN,
    ),
    "calls before merged windows that are emitted at their close": Program(
        topologies.emit_merged,
        _LEFT_AND_RIGHT,
        Counted,
        settings=_IN_TURN,
        calls=_ANSWERED_CALLS,
        at_once=_as_it_is,
    ),
    "filtered sessions that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit_sessions), _LATE, Sessions
    ),
    "filtered sliding windows that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit_sliding), _LATE, Counted
    ),
    "windows that are emitted in silence": Program(
        topologies.emit_in_silence, _to("in"), Final
    ),
    "filtered counts that are held": Program(
        partial(topologies.filtered, topologies.hold),
        _LATE,
        Counted,
        ("counts",),
        _UNCACHED,
    ),
    "a join of two tables": Program(
        topologies.two_tables,
        _ROWS,
        Settled,
        ("joined",),
        loose=SettledInCache,
        tables=("left", "right"),
    ),
    "a cogroup": Program(
        topologies.cogrouped, _LEFT_AND_RIGHT, Counted, ("counts",), loose=Latest
    ),
    "an outer join of two tables": Program(
        topologies.either,
        _LEFT_AND_RIGHT,
        SettledOuter,
        ("joined",),
        loose=SettledOuterInCache,
        tables=("left", "right"),
    ),
    "a table counted by groups": Program(
        topologies.by_group,
        _to("table", deletes=True),
        Stepwise,
        ("rows", "counts"),
        loose=LastCounts,
        tables=("table",),
        gone=("counts",),
    ),
    "a foreign-key join": Program(
        topologies.foreign,
        _ROWS,
        Settled,
        ("joined",),
        loose=SettledInCache,
        tables=("left", "right"),
        untimed=True,
    ),
    "a filtered join with a table of versions": Program(
        topologies.look_up_versions, _WITH_TABLE, Matched, tables=("table",)
    ),
    "windows behind a repartition": Program(
        topologies.windows_elsewhere, _LATE, Counted, ("counts",), loose=Latest
    ),
    "late windows behind a repartition": Program(
        partial(topologies.grouped_elsewhere, topologies.count_in_windows),
        _LATE,
        Counted,
        ("counts",),
        _ALL_SPEAK,
        loose=Latest,
    ),
    "late windows behind two repartitions": Program(
        partial(topologies.grouped_twice, topologies.count_in_windows),
        _LATE,
        Counted,
        ("counts",),
        _ALL_SPEAK,
        loose=Latest,
    ),
    "windows behind a repartition that are emitted at their close": Program(
        partial(topologies.grouped_elsewhere, topologies.emit),
        _LATE,
        Counted,
        settings=_ALL_SPEAK,
    ),
    "windows behind two repartitions that close": Program(
        partial(topologies.grouped_twice, topologies.count_in_windows_that_close),
        _LATE,
        Counted,
        ("counts",),
        _ALL_SPEAK,
    ),
    "windows behind a repartition with silent partitions": Program(
        partial(topologies.grouped_elsewhere, topologies.count_in_windows),
        _to("in"),
        Counted,
        ("counts",),
        _SOON_SILENT,
        partitions=2,
        loose=Latest,
    ),
    "late windows behind a repartition with silent partitions": Program(
        partial(topologies.grouped_elsewhere, topologies.count_in_windows),
        _LATE,
        Silent,
        settings=_SOON_SILENT,
        partitions=2,
    ),
    "windows behind a repartition that are emitted in silence": Program(
        partial(topologies.grouped_elsewhere, topologies.emit_patiently),
        _to("in"),
        Complete,
        settings=_SOON_SILENT,
        partitions=2,
    ),
    "merged windows behind a repartition that are emitted in silence": Program(
        partial(topologies.merged_elsewhere, topologies.emit_patiently),
        _LEFT_AND_RIGHT,
        Complete,
        settings=_SOON_SILENT | _IN_TURN,
        partitions=2,
    ),
    "windows behind two repartitions that are emitted in silence": Program(
        partial(topologies.grouped_twice, topologies.emit_patiently, dropped=None),
        _to("in"),
        Complete,
        settings=_SOON_SILENT,
        partitions=2,
    ),
    "windows behind a repartition that overlap and are soon forgotten": Program(
        partial(topologies.grouped_elsewhere, topologies.count_and_forget),
        _LATE,
        Counted,
        settings=_ALL_SPEAK,
        loose=Latest,
    ),
    "windows behind a repartition of partitions that keep together": Program(
        partial(topologies.grouped_elsewhere, topologies.count_in_windows),
        _to("in"),
        Counted,
        ("counts",),
        {"repartition.idle.ms": 1_000, "max.time.skew.ms": 500},
        loose=Latest,
    ),
    "sessions behind a repartition": _in_birth_order(
        partial(topologies.moved, topologies.count_sessions),
        topologies.through_one,
        _LATE_APART,
        Sessions,
        ("counts",),
        loose=Latest,
    ),
    "sessions behind two repartitions": _in_birth_order(
        partial(topologies.moved, topologies.count_sessions),
        topologies.through_two,
        _LATE_APART,
        Sessions,
        ("counts",),
        loose=Latest,
    ),
    "sessions behind a repartition that are emitted at their close": _in_birth_order(
        partial(topologies.moved, topologies.emit_sessions),
        topologies.through_one,
        _LATE_APART,
        Sessions,
    ),
    "sliding windows behind a repartition": _in_birth_order(
        partial(topologies.moved, topologies.count_near),
        topologies.through_one,
        _LATE_APART,
        Counted,
        ("counts",),
        loose=Latest,
    ),
    "a count behind a repartition whose rows expire": _in_birth_order(
        partial(topologies.moved, topologies.count_lasting),
        topologies.through_one,
        _LATE_APART,
        Counted,
        ("counts",),
        loose=Latest,
    ),
    "merged windows behind two repartitions that close": _in_birth_order(
        partial(topologies.both_moved, topologies.count_both),
        topologies.through_one,
        _TWO_APART,
        Counted,
        ("counts",),
    ),
    "a left join of streams behind two repartitions": _in_birth_order(
        partial(topologies.both_moved, topologies.pair_both_or_not),
        topologies.through_one,
        _TWO_LITTLE_LATE,
        Parted,
    ),
    "a left join of a stream behind a repartition with one that is not": (
        _in_birth_order(
            partial(topologies.one_moved, topologies.pair_both_or_not),
            topologies.through_one,
            _one_apart(latenesses=(0, 0, 0, 500, 2_500)),
            Parted,
            direct=("right",),
        )
    ),
    "merged windows behind a repartition and beside it that close": _in_birth_order(
        partial(topologies.one_moved, topologies.count_both),
        topologies.through_one,
        _one_apart(latenesses=_LATENESSES),
        Counted,
        direct=("right",),
    ),
    "merged windows beside a repartition that are emitted in silence": Program(
        partial(
            topologies.one_moved,
            topologies.emit_both,
            lambda stream, _: topologies.by_prefix(stream).repartition(name="once"),
        ),
        _beside(["ax", "bx", "cx", "dx"], _to("left", *["right"] * 15)),
        Complete,
        settings=_SOON_SILENT,
        partitions=2,
    ),
    "a join behind a repartition": Program(
        topologies.looked_up_elsewhere,
        _WITH_TABLE,
        Matched,
        ("rows",),
        tables=("table",),
    ),
    "values that are held until punctuations": Program(
        topologies.punctuated,
        _to("in"),
        Ordered,
        at_once_alone=topologies.passed_on,
    ),
    "windows that close": Program(topologies.finals, _LATE, Counted, ("counts",)),
    "sessions": Program(topologies.sessions, _LATE, Counted, ("counts",), loose=Latest),
    "a join of streams": Program(topologies.pairs, _LEFT_AND_RIGHT, Paired),
    "a join with a table": Program(
        topologies.looked_up, _WITH_TABLE, Matched, ("rows",), tables=("table",)
    ),
    "a join with a global table": Program(
        topologies.everywhere, _WITH_TABLE, Matched, tables=("table",)
    ),
    "a table": Program(
        topologies.table,
        _to("in", deletes=True),
        Ordered,
        ("rows",),
        loose=LastRows,
        tables=("in",),
    ),
    "calls before a table": Program(
        topologies.asked_table,
        _to("in"),
        Ordered,
        ("rows",),
        _ASKING,
        loose=LastRows,
        calls=_CALLS,
        at_once=topologies.at_once,
    ),
    "calls before windows": Program(
        partial(topologies.asked_below, topologies.count_in_windows),
        _LATE,
        Counted,
        ("counts",),
        loose=Latest,
        calls=_ANSWERED_CALLS,
        at_once=_as_it_is,
    ),
    "calls before windows that close": Program(
        partial(topologies.asked_below, topologies.count_in_windows_that_close),
        _LATE,
        Counted,
        ("counts",),
        calls=_ANSWERED_CALLS,
        at_once=_as_it_is,
    ),
    "calls before sessions": Program(
        partial(topologies.asked_below, topologies.count_sessions),
        _LATE,
        Counted,
        ("counts",),
        loose=Latest,
        calls=_ANSWERED_CALLS,
        at_once=_as_it_is,
    ),
    "calls before a join of streams": Program(
        partial(topologies.asked_pairs, topologies.pair),
        _LEFT_AND_RIGHT,
        Paired,
        settings=_ASKING,
        calls=_CALLS,
        at_once=topologies.at_once,
    ),
    "a left join of streams": Program(
        topologies.pairs_or_not, _LEFT_AND_RIGHT, Alone, settings=_IN_TURN
    ),
    "an outer join of a filtered stream": Program(
        topologies.pairs_or_either, _LEFT_AND_RIGHT, Either, settings=_IN_TURN
    ),
    "a left join of a filtered stream": Program(
        topologies.filtered_pairs_or_not, _LEFT_AND_RIGHT, Alone, settings=_IN_TURN
    ),
    "calls before a left join of streams": Program(
        partial(topologies.asked_pairs, topologies.pair_or_not),
        _LEFT_AND_RIGHT,
        Alone,
        settings=_ASKING | _IN_TURN,
        calls=_CALLS,
        at_once=topologies.at_once,
    ),
    "calls before a join with a table": Program(
        topologies.asked_look_up,
        _WITH_TABLE,
        Matched,
        ("rows",),
        _ASKING,
        tables=("table",),
        calls=_CALLS,
        at_once=topologies.at_once,
    ),
    "calls that keep state": Program(
        topologies.remembered,
        _to("in"),
        Counted,
        ("counts",),
        _ASKING,
        calls=_CALLS_WITH_STATE,
        at_once_alone=topologies.remembered_at_once,
    ),
}
"""The programs: each seed plays one of them, under each guarantee."""
