"""What is simulated: small topologies, and what is written for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

from coopstreams import (
    CallContext,
    JoinWindows,
    KeyValueStore,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    key_value_store,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.topology.calls import CallOptions
from tests.durations import ms
from tests.simulation.answers import (
    Alone,
    Answer,
    Counted,
    Final,
    Latest,
    Matched,
    Ordered,
    Paired,
    Settled,
    Stepwise,
    Written,
)
from tests.simulation.service import AGAIN, TIMEOUT, service, told

APPLICATION = "sim"
KEYS = [f"{letter}{number}" for letter in "abcd" for number in range(4)]
DAY_MS = 86_400_000
IDLE = "max.task.idle.ms"
CACHE = "statestore.cache.max.bytes"


Writes = Callable[[Random, int, int], Written]
"""Takes the number of the record and what time it is, in milliseconds; the numbers rise."""


@dataclass(frozen=True, slots=True)
class Program:
    """A topology that writes to `out`. `settings`: of its processes, and of the one task whose answer is the right
    one.
    """

    build: Callable[[StreamsBuilder], None]
    write: Writes
    answer: type[Answer]
    """What is known of its results."""
    stores: tuple[str, ...] = ()
    """Those of which it is known what is in them at the end, under exactly-once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    at_once: Callable[[StreamsBuilder], None] | None = None
    """The same topology with functions that do not wait, if there are others; its answer is the right one."""

    @property
    def driven(self) -> Mapping[str, Any]:
        """The settings of the one task whose answer is the right one: it has all records in order, and tells all."""
        return {name: value for name, value in self.settings.items() if name not in (IDLE, CACHE)}

    def topology(self, *, newer: bool = False) -> Topology:
        """Return the topology. A newer version reads one more topic; its other sub-topologies have other numbers."""
        builder = StreamsBuilder(APPLICATION)
        if newer:
            builder.stream("added", key=serdes.raw, value=serdes.raw).to("elsewhere")
        self.build(builder)
        return builder.build()

    def answering(self) -> Topology:
        """Return the topology of which one task gives the right answer."""
        return replace(self, build=self.at_once or self.build).topology()


Asked: TypeAlias = Callable[[KStream[str, str]], KStream[str, str]]
"""Puts a call in the way of a stream."""


def _counted(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(store="counts").to_stream().to("out")


def _lasting(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key()
    grouped.count(store=Materialized("counts", ttl=ms(2_000))).to_stream().to("out")


def _recounted(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    grouped = stream.group_by(lambda key, value: key[:1] + "x", name="by-prefix", key=serdes.text, value=serdes.raw)
    grouped.count(store="counts").to_stream().to("out")


def _windows(builder: StreamsBuilder) -> None:
    _count_in_windows(builder.stream("in", key=serdes.text, value=serdes.raw))


def _count_in_windows(stream: KStream[str, Any]) -> None:
    stream.group_by_key().windowed_by(TimeWindows(milliseconds=10_000, grace=ms(5_000))).count(
        store="counts", retention=ms(DAY_MS)
    ).to_stream().to("out")


def _forgotten(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key()
    grouped.windowed_by(TimeWindows(milliseconds=4_000, grace=ms(1_000))).count(store="counts").to_stream().to("out")


def _forgotten_sessions(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key()
    grouped.windowed_by(SessionWindows(milliseconds=2_000, grace=ms(1_000))).count(store="counts").to_stream().to("out")


def _emitted(builder: StreamsBuilder) -> None:
    _emit(builder.stream("in", key=serdes.text, value=serdes.raw))


def _filtered(below: Callable[[KStream[str, bytes]], None], builder: StreamsBuilder) -> None:
    """Have the operators below see every second record: their times are not that of the partition."""
    below(builder.stream("in", key=serdes.text, value=serdes.raw).filter(lambda _key, value: value[-1:] in b"13579"))


def _emit(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(TimeWindows(milliseconds=4_000, grace=ms(1_000)))
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def _emit_merged(asked: Asked, builder: StreamsBuilder) -> None:
    left, right = (builder.stream(topic, key=serdes.text, value=serdes.text) for topic in ("left", "right"))
    _emit(asked(left).merge(right))


def _emit_sessions(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(SessionWindows(milliseconds=2_000, grace=ms(2_000)))
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def _emit_sliding(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(SlidingWindows(milliseconds=2_000, grace=ms(3_000)))
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def _emit_in_silence(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.raw, idle_advance=ms(2_000))
    _emit(stream.filter(lambda _key, value: value[-1:] in b"13579"))


def _hold(stream: KStream[str, Any]) -> None:
    counts = stream.group_by_key().count(store="counts")
    counts.suppress(until_time_limit(ms(3_000)), name="held").to_stream().to("out")


def _two_tables(builder: StreamsBuilder) -> None:
    left, right = (builder.table(topic, key=serdes.text, value=serdes.text, store=topic) for topic in ("left", "right"))
    joined = left.join(right, lambda one, other: f"{one}:{other}", value=serdes.text, store="joined")
    joined.to_stream().to("out")


def _by_group(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text, store="rows")
    groups = table.group_by(
        lambda _, value: (f"g{int(value) % 5}", value), key=serdes.text, value=serdes.text, name="groups"
    )
    groups.count(store="counts").to_stream().to("out")


def _foreign(builder: StreamsBuilder) -> None:
    left, right = (builder.table(topic, key=serdes.text, value=serdes.text, store=topic) for topic in ("left", "right"))
    # an inner join may keep the result of a foreign key that a row has left: docs/semantics.md, Quirks
    joined = left.left_join(
        right,
        lambda one, other: f"{one}:{other}",
        foreign_key=lambda value: KEYS[int(value) % len(KEYS)],
        value=serdes.text,
        store="joined",
        name="foreign",
    )
    joined.to_stream().to("out")


def _look_up_versions(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text, store="rows", history=ms(60_000))
    stream = builder.stream("in", key=serdes.text, value=serdes.text).filter(lambda _, value: value[-1] in "13579")
    joined = stream.left_join(
        table, lambda value, row: f"{value}:{row or ''}", value=serdes.text, grace=ms(2_000), name="waiting"
    )
    joined.to("out")


def _finals(builder: StreamsBuilder) -> None:
    _count_in_windows_that_close(builder.stream("in", key=serdes.text, value=serdes.raw))


def _count_in_windows_that_close(stream: KStream[str, Any]) -> None:
    grouped = stream.group_by_key()
    counts = grouped.windowed_by(TimeWindows(milliseconds=4_000, grace=ms(3_000))).count(
        store="counts", retention=ms(DAY_MS)
    )
    counts.suppress(until_window_closes(), name="closed").to_stream().to("out")


def _sessions(builder: StreamsBuilder) -> None:
    _count_sessions(builder.stream("in", key=serdes.text, value=serdes.raw))


def _count_sessions(stream: KStream[str, Any]) -> None:
    grouped = stream.group_by_key()
    grouped.windowed_by(SessionWindows(milliseconds=4_000, grace=ms(4_000))).count(
        store="counts", retention=ms(DAY_MS)
    ).to_stream().to("out")


def _pairs(builder: StreamsBuilder) -> None:
    _pair(builder.stream("left", key=serdes.text, value=serdes.text), builder)


def _pair(left: KStream[str, str], builder: StreamsBuilder) -> None:
    right = builder.stream("right", key=serdes.text, value=serdes.text)
    windows = JoinWindows(milliseconds=6_000, grace=ms(DAY_MS))
    left.join(right, lambda one, other: f"{one}:{other}", windows=windows, value=serdes.text, store="pairs").to("out")


def _pair_or_not(left: KStream[str, str], builder: StreamsBuilder) -> None:
    right = builder.stream("right", key=serdes.text, value=serdes.text)
    windows = JoinWindows(milliseconds=2_000, grace=ms(3_000))
    left.left_join(
        right, lambda one, other: f"{one}:{other or ''}", windows=windows, value=serdes.text, store="pairs"
    ).to("out")


def _filtered_pairs_or_not(builder: StreamsBuilder) -> None:
    _pair_or_not(
        builder.stream("left", key=serdes.text, value=serdes.text).filter(lambda _, v: v[-1] in "13579"), builder
    )


def _pairs_or_not(builder: StreamsBuilder) -> None:
    _pair_or_not(builder.stream("left", key=serdes.text, value=serdes.text), builder)


def _looked_up(builder: StreamsBuilder) -> None:
    _look_up(builder.stream("in", key=serdes.text, value=serdes.text), builder)


def _look_up(stream: KStream[str, str], builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text, store="rows")
    stream.left_join(table, lambda value, row: f"{value}:{row or ''}", value=serdes.text).to("out")


def _everywhere(builder: StreamsBuilder) -> None:
    table = builder.global_table("table", key=serdes.text, value=serdes.text, store="rows")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.left_join(table, lambda value, row: f"{value}:{row or ''}", on=lambda key, value: key, value=serdes.text).to(
        "out"
    )


def _table(builder: StreamsBuilder) -> None:
    table = builder.table("in", key=serdes.text, value=serdes.text, store="rows")
    table.map_values(lambda value: value + "!", value=serdes.text).to_stream().to("out")


def _at_once(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.map_values(told, value=serdes.text)


def _in_order(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.map_values_with_key_async(
        service.ask_in_order, value=serdes.text, max_in_flight=8, timeout=TIMEOUT, retry=AGAIN
    )


def _at_will(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.map_values_async(
        service.ask, value=serdes.text, max_in_flight=8, order="none", timeout=TIMEOUT, retry=AGAIN
    )


async def _any_answer(key: str, value: str) -> str:
    try:
        return await service.ask_in_order(key, value)
    except ValueError:
        return "nothing is known"


def _whatever(stream: KStream[str, str]) -> KStream[str, str]:
    """Have an answer about each record: one without would move the time of windows, unlike one that fails at once."""
    return stream.map_values_with_key_async(
        _any_answer, value=serdes.text, max_in_flight=8, timeout=TIMEOUT, retry=AGAIN
    )


def _asked_table(asked: Asked, builder: StreamsBuilder) -> None:
    answers = asked(builder.stream("in", key=serdes.text, value=serdes.text))
    answers.to_table(store="rows").to_stream().to("out")


def _asked_below(below: Callable[[KStream[str, str]], None], asked: Asked, builder: StreamsBuilder) -> None:
    below(asked(builder.stream("in", key=serdes.text, value=serdes.text)))


def _asked_pairs(
    below: Callable[[KStream[str, str], StreamsBuilder], None], asked: Asked, builder: StreamsBuilder
) -> None:
    below(asked(builder.stream("left", key=serdes.text, value=serdes.text)), builder)


def _asked_look_up(asked: Asked, builder: StreamsBuilder) -> None:
    _look_up(asked(builder.stream("in", key=serdes.text, value=serdes.text)), builder)


class _Remembered(Processor[str, str, str, int]):
    """Counts the records of each key about which something is known."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self._known: KeyValueStore[str, int] = context.store("counts")

    def process(self, record: Record[str, str]) -> None:
        told(record.value)
        self._known.put(record.key, count := (self._known.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(count))


async def _remember(record: Record[str, str], context: CallContext[str, int]) -> None:
    """Do the same: what it has put before it fails counts as nothing."""
    known = context.store("counts")
    count = (known.get() or 0) + 1
    known.put(count)
    await service.ask_in_order(record.key, record.value)
    context.forward(record.with_value(count))


_KNOWN = key_value_store("counts", key=serdes.text, value=serdes.int64)


def _remembered_at_once(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.process(_Remembered, stores=[_KNOWN], by_key=True, key=serdes.text, value=serdes.int64).to("out")


def _remembered(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    how = CallOptions(max_in_flight=8, timeout=TIMEOUT, retry=AGAIN)
    stream.process_async(_remember, stores=[_KNOWN], key=serdes.text, value=serdes.int64, **how).to("out")


_CACHED = {CACHE: 1 << 20}
"""Each commit tells the latest result of each key only."""
_ASKING = {"processing.exception.handler": "continue"}
"""Records for which a call fails are dropped."""
_PURGED = {"repartition.purge.interval.ms": 1_000}
"""So often that a process that stood still wakes below the beginning of what it reads."""
_IN_TURN = {IDLE: 60_000}
"""A process that stood still may hear of one topic long before the other. Where pairs are only found for some seconds,
it has to wait for both; which record comes first is not known otherwise.
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
    "a count": Program(_counted, _to("in"), Counted, ("counts",)),
    "a count whose rows expire": Program(_lasting, _to("in", late=True), Counted, ("counts",)),
    "a count behind a repartition": Program(_recounted, _to("in"), Counted, ("counts",), _PURGED),
    "windows": Program(_windows, _to("in", late=True), Counted, ("counts",)),
    "windows that are soon forgotten": Program(_forgotten, _to("in", late=True), Counted),
    "sessions that are soon forgotten": Program(_forgotten_sessions, _to("in", late=True), Counted),
    "windows that are emitted at their close": Program(_emitted, _to("in", late=True), Counted),
    "filtered windows that are emitted at their close": Program(
        partial(_filtered, _emit), _to("in", late=True), Counted
    ),
    "filtered windows that close": Program(
        partial(_filtered, _count_in_windows_that_close), _to("in", late=True), Counted, ("counts",)
    ),
    "filtered sessions": Program(partial(_filtered, _count_sessions), _to("in", late=True), Counted, ("counts",)),
    "calls before windows that are emitted at their close": Program(
        partial(_asked_below, _emit, _whatever), _to("in", late=True), Counted, (), {}, _emitted
    ),
    "merged windows that are emitted at their close": Program(
        partial(_emit_merged, lambda stream: stream), _to("left", "right"), Counted, (), _IN_TURN
    ),
    "calls before merged windows that are emitted at their close": Program(
        partial(_emit_merged, _whatever),
        _to("left", "right"),
        Counted,
        (),
        _IN_TURN,
        partial(_emit_merged, lambda stream: stream),
    ),
    "filtered sessions that are emitted at their close": Program(
        partial(_filtered, _emit_sessions), _to("in", late=True), Counted
    ),
    "filtered sliding windows that are emitted at their close": Program(
        partial(_filtered, _emit_sliding), _to("in", late=True), Counted
    ),
    "windows that are emitted in silence": Program(_emit_in_silence, _to("in"), Final),
    "filtered counts that are held": Program(partial(_filtered, _hold), _to("in", late=True), Counted, ("counts",)),
    "a cached count": Program(_counted, _to("in"), Latest, ("counts",), _CACHED),
    "cached windows": Program(_windows, _to("in", late=True), Latest, ("counts",), _CACHED),
    "cached filtered windows that close": Program(
        partial(_filtered, _count_in_windows_that_close), _to("in", late=True), Counted, ("counts",), _CACHED
    ),
    "cached sessions": Program(_sessions, _to("in", late=True), Latest, ("counts",), _CACHED),
    "a cached join of two tables": Program(
        _two_tables, _to("left", "right", deletes=True), Settled, ("joined",), _CACHED
    ),
    "a join of two tables": Program(_two_tables, _to("left", "right", deletes=True), Settled, ("joined",)),
    "a table counted by groups": Program(_by_group, _to("table", deletes=True), Stepwise, ("rows", "counts"), _PURGED),
    "a foreign-key join": Program(_foreign, _to("left", "right"), Settled, ("joined",)),
    "a filtered join with a table of versions": Program(_look_up_versions, _to("in", "in", "table"), Matched),
    "windows that close": Program(_finals, _to("in", late=True), Counted, ("counts",)),
    "sessions": Program(_sessions, _to("in", late=True), Counted, ("counts",)),
    "a join of streams": Program(_pairs, _to("left", "right"), Paired),
    "a join with a table": Program(_looked_up, _to("in", "in", "table"), Matched, ("rows",)),
    "a join with a global table": Program(_everywhere, _to("in", "in", "table"), Matched),
    "a table": Program(_table, _to("in", deletes=True), Ordered, ("rows",)),
    "a table on its source": Program(
        _table, _to("in", deletes=True), Ordered, ("rows",), {"topology.optimization": "all"}
    ),
    "calls before a table": Program(
        partial(_asked_table, _in_order), _to("in"), Ordered, ("rows",), _ASKING, partial(_asked_table, _at_once)
    ),
    "calls in any order before a table": Program(
        partial(_asked_table, _at_will), _to("in"), Ordered, ("rows",), _ASKING, partial(_asked_table, _at_once)
    ),
    "calls before windows": Program(
        partial(_asked_below, _count_in_windows, _whatever), _to("in", late=True), Counted, ("counts",), {}, _windows
    ),
    "calls before windows that close": Program(
        partial(_asked_below, _count_in_windows_that_close, _whatever),
        _to("in", late=True),
        Counted,
        ("counts",),
        {},
        _finals,
    ),
    "calls before sessions": Program(
        partial(_asked_below, _count_sessions, _whatever), _to("in", late=True), Counted, ("counts",), {}, _sessions
    ),
    "calls before a join of streams": Program(
        partial(_asked_pairs, _pair, _in_order),
        _to("left", "right"),
        Paired,
        (),
        _ASKING,
        partial(_asked_pairs, _pair, _at_once),
    ),
    "a left join of streams": Program(_pairs_or_not, _to("left", "right"), Alone, (), _IN_TURN),
    "a left join of a filtered stream": Program(_filtered_pairs_or_not, _to("left", "right"), Alone, (), _IN_TURN),
    "calls before a left join of streams": Program(
        partial(_asked_pairs, _pair_or_not, _in_order),
        _to("left", "right"),
        Alone,
        (),
        _ASKING | _IN_TURN,
        partial(_asked_pairs, _pair_or_not, _at_once),
    ),
    "calls before a join with a table": Program(
        partial(_asked_look_up, _in_order),
        _to("in", "in", "table"),
        Matched,
        ("rows",),
        _ASKING,
        partial(_asked_look_up, _at_once),
    ),
    "calls that keep state": Program(_remembered, _to("in"), Counted, ("counts",), _ASKING, _remembered_at_once),
}
"""What is played for a seed: one of the programs, under each guarantee."""
