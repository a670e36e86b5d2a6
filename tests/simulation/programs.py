"""The simulated programs: topologies with their settings, the records written for them, and the known results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from coopstreams import (
    StreamsBuilder,
    Topology,
    serdes,
)
from tests.simulation import topologies
from tests.simulation.answers import (
    Alone,
    Answer,
    Counted,
    Either,
    Final,
    Latest,
    Matched,
    Ordered,
    Paired,
    Sessions,
    Settled,
    SettledInCache,
    SettledOuter,
    Stepwise,
    Written,
)
from tests.simulation.topologies import KEYS

APPLICATION = "sim"
IDLE = "max.task.idle.ms"
CACHE = "statestore.cache.max.bytes"


Writes = Callable[[Random, int, int], Written]
"""Takes the number of the record, which rises, and the time in milliseconds."""


@dataclass(frozen=True, slots=True)
class Program:
    """A topology that writes to `out`. `settings`: of its processes, and of the one task that gives the expected
    results.
    """

    build: Callable[[StreamsBuilder], None]
    write: Writes
    answer: type[Answer]
    """The class of the program's expected results."""
    stores: tuple[str, ...] = ()
    """The stores whose rows at the end are known, under exactly-once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    at_once: Callable[[StreamsBuilder], None] | None = None
    """The same topology with synchronous functions, if it has asynchronous ones: it gives the expected results."""

    @property
    def driven(self) -> Mapping[str, Any]:
        """The settings of the one task that gives the expected results: it has all records in order, and forwards every
        update.
        """
        return {
            name: value
            for name, value in self.settings.items()
            if name not in (IDLE, CACHE)
        }

    def topology(self, *, newer: bool = False) -> Topology:
        """Return the topology. A newer version reads one more topic, which renumbers the other sub-topologies."""
        builder = StreamsBuilder(APPLICATION)
        if newer:
            builder.stream("added", key=serdes.raw, value=serdes.raw).to("elsewhere")
        self.build(builder)
        return builder.build()

    def answering(self) -> Topology:
        """Return the topology that gives the expected results in one task."""
        return replace(self, build=self.at_once or self.build).topology()


_CACHED = {CACHE: 1 << 20}
"""Each commit forwards only the latest result of each key."""
_ASKING = {"processing.exception.handler": "continue"}
"""Records for which a call fails are dropped."""
_PURGED = {"repartition.purge.interval.ms": 1_000}
"""Frequent enough that a paused process resumes below the log start of its topic."""
_IN_TURN = {IDLE: 60_000}
"""A paused process may get one topic long before the other. Where pairs are kept only for seconds, it must wait for
both topics, or their order is undefined.
"""


def _to(*topics: str, late: bool = False, deletes: bool = False) -> Writes:
    def write(random: Random, number: int, now_ms: int) -> Written:
        lateness = random.choice((0, 0, 0, 500, 4_000, 20_000)) if late else 0
        value = None if deletes and random.random() < 0.2 else b"%d" % number
        return Written(
            topics[0] if len(topics) == 1 else random.choice(topics),
            random.choice(KEYS).encode(),
            value,
            now_ms - lateness,
        )

    return write


PROGRAMS = {
    "a count": Program(topologies.counted, _to("in"), Counted, ("counts",)),
    "a count whose rows expire": Program(
        topologies.lasting, _to("in", late=True), Counted, ("counts",)
    ),
    "a count behind a repartition": Program(
        topologies.recounted, _to("in"), Counted, ("counts",), _PURGED
    ),
    "windows": Program(topologies.windows, _to("in", late=True), Counted, ("counts",)),
    "windows that are soon forgotten": Program(
        topologies.forgotten, _to("in", late=True), Counted
    ),
    "sessions that are soon forgotten": Program(
        topologies.forgotten_sessions, _to("in", late=True), Counted
    ),
    "windows that are emitted at their close": Program(
        topologies.emitted, _to("in", late=True), Counted
    ),
    "filtered windows that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit), _to("in", late=True), Counted
    ),
    "filtered windows that close": Program(
        partial(topologies.filtered, topologies.count_in_windows_that_close),
        _to("in", late=True),
        Counted,
        ("counts",),
    ),
    "filtered sessions": Program(
        partial(topologies.filtered, topologies.count_sessions),
        _to("in", late=True),
        Counted,
        ("counts",),
    ),
    "calls before windows that are emitted at their close": Program(
        partial(topologies.asked_below, topologies.emit, topologies.whatever),
        _to("in", late=True),
        Counted,
        (),
        {},
        topologies.emitted,
    ),
    "merged windows that are emitted at their close": Program(
        partial(topologies.emit_merged, lambda stream: stream),
        _to("left", "right"),
        Counted,
        (),
        _IN_TURN,
    ),
    "calls before merged windows that are emitted at their close": Program(
        partial(topologies.emit_merged, topologies.whatever),
        _to("left", "right"),
        Counted,
        (),
        _IN_TURN,
        partial(topologies.emit_merged, lambda stream: stream),
    ),
    "filtered sessions that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit_sessions),
        _to("in", late=True),
        Sessions,
    ),
    "filtered sliding windows that are emitted at their close": Program(
        partial(topologies.filtered, topologies.emit_sliding),
        _to("in", late=True),
        Counted,
    ),
    "windows that are emitted in silence": Program(
        topologies.emit_in_silence, _to("in"), Final
    ),
    "filtered counts that are held": Program(
        partial(topologies.filtered, topologies.hold),
        _to("in", late=True),
        Counted,
        ("counts",),
    ),
    "a cached count": Program(
        topologies.counted, _to("in"), Latest, ("counts",), _CACHED
    ),
    "cached windows": Program(
        topologies.windows, _to("in", late=True), Latest, ("counts",), _CACHED
    ),
    "cached filtered windows that close": Program(
        partial(topologies.filtered, topologies.count_in_windows_that_close),
        _to("in", late=True),
        Counted,
        ("counts",),
        _CACHED,
    ),
    "cached sessions": Program(
        topologies.sessions, _to("in", late=True), Latest, ("counts",), _CACHED
    ),
    "a cached join of two tables": Program(
        topologies.two_tables,
        _to("left", "right", deletes=True),
        SettledInCache,
        ("joined",),
        _CACHED,
    ),
    "a join of two tables": Program(
        topologies.two_tables, _to("left", "right", deletes=True), Settled, ("joined",)
    ),
    "a cogroup": Program(
        topologies.cogrouped, _to("left", "right"), Counted, ("counts",)
    ),
    "an outer join of two tables": Program(
        topologies.either, _to("left", "right"), SettledOuter, ("joined",)
    ),
    "a table counted by groups": Program(
        topologies.by_group,
        _to("table", deletes=True),
        Stepwise,
        ("rows", "counts"),
        _PURGED,
    ),
    "a foreign-key join": Program(
        topologies.foreign, _to("left", "right"), Settled, ("joined",)
    ),
    "a filtered join with a table of versions": Program(
        topologies.look_up_versions, _to("in", "in", "table"), Matched
    ),
    "windows behind a repartition": Program(
        topologies.windows_elsewhere,
        _to("in", late=True),
        Counted,
        ("counts",),
        _PURGED,
    ),
    "a join behind a repartition": Program(
        topologies.looked_up_elsewhere,
        _to("in", "in", "table"),
        Matched,
        ("rows",),
        _PURGED,
    ),
    "values that are held until punctuations": Program(
        topologies.punctuated, _to("in"), Ordered, (), {}, topologies.passed_on
    ),
    "windows that close": Program(
        topologies.finals, _to("in", late=True), Counted, ("counts",)
    ),
    "sessions": Program(
        topologies.sessions, _to("in", late=True), Counted, ("counts",)
    ),
    "a join of streams": Program(topologies.pairs, _to("left", "right"), Paired),
    "a join with a table": Program(
        topologies.looked_up, _to("in", "in", "table"), Matched, ("rows",)
    ),
    "a join with a global table": Program(
        topologies.everywhere, _to("in", "in", "table"), Matched
    ),
    "a table": Program(topologies.table, _to("in", deletes=True), Ordered, ("rows",)),
    "a table on its source": Program(
        topologies.table,
        _to("in", deletes=True),
        Ordered,
        ("rows",),
        {"topology.optimization": "all"},
    ),
    "calls before a table": Program(
        partial(topologies.asked_table, topologies.in_order),
        _to("in"),
        Ordered,
        ("rows",),
        _ASKING,
        partial(topologies.asked_table, topologies.at_once),
    ),
    "calls in any order before a table": Program(
        partial(topologies.asked_table, topologies.at_will),
        _to("in"),
        Ordered,
        ("rows",),
        _ASKING,
        partial(topologies.asked_table, topologies.at_once),
    ),
    "calls for several records before a table": Program(
        partial(topologies.asked_table, topologies.in_batches),
        _to("in"),
        Ordered,
        ("rows",),
        _ASKING,
        partial(topologies.asked_table, topologies.at_once),
    ),
    "calls before windows": Program(
        partial(
            topologies.asked_below, topologies.count_in_windows, topologies.whatever
        ),
        _to("in", late=True),
        Counted,
        ("counts",),
        {},
        topologies.windows,
    ),
    "calls before windows that close": Program(
        partial(
            topologies.asked_below,
            topologies.count_in_windows_that_close,
            topologies.whatever,
        ),
        _to("in", late=True),
        Counted,
        ("counts",),
        {},
        topologies.finals,
    ),
    "calls before sessions": Program(
        partial(topologies.asked_below, topologies.count_sessions, topologies.whatever),
        _to("in", late=True),
        Counted,
        ("counts",),
        {},
        topologies.sessions,
    ),
    "calls before a join of streams": Program(
        partial(topologies.asked_pairs, topologies.pair, topologies.in_order),
        _to("left", "right"),
        Paired,
        (),
        _ASKING,
        partial(topologies.asked_pairs, topologies.pair, topologies.at_once),
    ),
    "a left join of streams": Program(
        topologies.pairs_or_not, _to("left", "right"), Alone, (), _IN_TURN
    ),
    "an outer join of a filtered stream": Program(
        topologies.pairs_or_either, _to("left", "right"), Either, (), _IN_TURN
    ),
    "a left join of a filtered stream": Program(
        topologies.filtered_pairs_or_not, _to("left", "right"), Alone, (), _IN_TURN
    ),
    "calls before a left join of streams": Program(
        partial(topologies.asked_pairs, topologies.pair_or_not, topologies.in_order),
        _to("left", "right"),
        Alone,
        (),
        _ASKING | _IN_TURN,
        partial(topologies.asked_pairs, topologies.pair_or_not, topologies.at_once),
    ),
    "calls before a join with a table": Program(
        partial(topologies.asked_look_up, topologies.in_order),
        _to("in", "in", "table"),
        Matched,
        ("rows",),
        _ASKING,
        partial(topologies.asked_look_up, topologies.at_once),
    ),
    "calls that keep state": Program(
        topologies.remembered,
        _to("in"),
        Counted,
        ("counts",),
        _ASKING,
        topologies.remembered_at_once,
    ),
}
"""The programs: each seed plays one of them, under each guarantee."""
