"""The simulated topologies: small ones that write to `out`.

Invariant: all processes, and the one task of the expected results, build them alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
    key_value_store,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.topology.calls import CallOptions
from coopstreams.topology.keys import partition_of
from tests.durations import ms
from tests.simulation.answers import (
    GRACE_MS,
    PATIENT_GRACE_MS,
    PATIENT_SIZE_MS,
    SIZE_MS,
)
from tests.simulation.service import AGAIN, TIMEOUT, service, told

KEYS = [f"{letter}{number}" for letter in "abcd" for number in range(4)]
PARTITIONS = 2
"""The source partitions of programs whose answer depends on the order of births."""
PAIRS = {
    key: f"{number}x"
    for partition in range(PARTITIONS)
    for number, key in enumerate(
        key for key in KEYS if partition_of(key.encode(), PARTITIONS) == partition
    )
}
"""Another key for each key: no two keys of a source partition have the same."""
DAY_MS = 86_400_000

Asked: TypeAlias = Callable[[KStream[str, str]], KStream[str, str]]
"""Adds a call to a stream."""
Way: TypeAlias = Callable[[KStream[str, Any], str], KStream[str, Any]]
"""Leads a stream through repartition topics with this name, or past them."""


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    ).to_stream().to("out")


def lasting(builder: StreamsBuilder) -> None:
    count_lasting(builder.stream("in", key=serdes.text, value=serdes.raw))


def recounted(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    grouped = stream.group_by(
        lambda key, value: key[:1] + "x",
        name="by-prefix",
        key=serdes.text,
        value=serdes.raw,
    )
    grouped.count(store="counts").to_stream().to("out")


def windows(builder: StreamsBuilder) -> None:
    count_in_windows(builder.stream("in", key=serdes.text, value=serdes.raw))


def count_in_windows(stream: KStream[str, Any]) -> None:
    stream.group_by_key().windowed_by(
        TimeWindows(milliseconds=SIZE_MS, grace=ms(GRACE_MS))
    ).count(store="counts", retention=ms(DAY_MS)).to_stream().to("out")


def forgotten(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key()
    grouped.windowed_by(TimeWindows(milliseconds=4_000, grace=ms(1_000))).count(
        store="counts"
    ).to_stream().to("out")


def forgotten_sessions(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key()
    grouped.windowed_by(SessionWindows(milliseconds=2_000, grace=ms(1_000))).count(
        store="counts"
    ).to_stream().to("out")


def emitted(builder: StreamsBuilder) -> None:
    emit(builder.stream("in", key=serdes.text, value=serdes.raw))


def _is_odd(_key: str, value: str | bytes) -> bool:
    return int(value) % 2 == 1


def filtered(
    below: Callable[[KStream[str, bytes]], None], builder: StreamsBuilder
) -> None:
    """Keep every second record, so that the stream time of the operators below is not
    that of the partition.
    """
    below(builder.stream("in", key=serdes.text, value=serdes.raw).filter(_is_odd))


def emit(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(
        TimeWindows(milliseconds=4_000, grace=ms(1_000))
    )
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def emit_patiently(stream: KStream[str, Any]) -> None:
    """As `emit`, with more grace than the records of a partition are behind others."""
    windows = stream.group_by_key().windowed_by(
        TimeWindows(milliseconds=PATIENT_SIZE_MS, grace=ms(PATIENT_GRACE_MS))
    )
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def count_and_forget(stream: KStream[str, Any]) -> None:
    """Count in windows that overlap and are soon forgotten."""
    windows = TimeWindows(milliseconds=4_000, advance=ms(2_000), grace=ms(1_000))
    stream.group_by_key().windowed_by(windows).count(store="counts").to_stream().to(
        "out"
    )


def emit_merged(asked: Asked, builder: StreamsBuilder) -> None:
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.text)
        for topic in ("left", "right")
    )
    emit(asked(left).merge(right))


def emit_sessions(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(
        SessionWindows(milliseconds=2_000, grace=ms(2_000))
    )
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def emit_sliding(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(
        SlidingWindows(milliseconds=2_000, grace=ms(3_000))
    )
    windows.emit_strategy("on_window_close").count(store="counts").to_stream().to("out")


def emit_in_silence(builder: StreamsBuilder) -> None:
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.raw, idle_advance=ms(2_000)
    )
    emit(stream.filter(_is_odd))


def hold(stream: KStream[str, Any]) -> None:
    counts = stream.group_by_key().count(store="counts")
    counts.suppress(until_time_limit(ms(3_000)), name="held").to_stream().to("out")


def two_tables(builder: StreamsBuilder) -> None:
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.text, store=topic)
        for topic in ("left", "right")
    )
    joined = left.join(
        right, lambda one, other: f"{one}:{other}", value=serdes.text, store="joined"
    )
    joined.to_stream().to("out")


def by_group(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text, store="rows")
    groups = table.group_by(
        lambda _, value: (f"g{int(value) % 5}", value),
        key=serdes.text,
        value=serdes.text,
        name="groups",
    )
    groups.count(store="counts").to_stream().to("out")


def foreign(builder: StreamsBuilder) -> None:
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.text, store=topic)
        for topic in ("left", "right")
    )
    # An inner join: there an answer that is overtaken may be the only one that deletes
    # a result.
    joined = left.join(
        right,
        lambda one, other: f"{one}:{other}",
        foreign_key=lambda value: KEYS[int(value) % len(KEYS)],
        value=serdes.text,
        store="joined",
        name="foreign",
    )
    joined.to_stream().to("out")


def look_up_versions(builder: StreamsBuilder) -> None:
    table = builder.table(
        "table", key=serdes.text, value=serdes.text, store="rows", history=ms(60_000)
    )
    stream = builder.stream("in", key=serdes.text, value=serdes.text).filter(_is_odd)
    joined = stream.left_join(
        table,
        lambda value, row: f"{value}:{row or ''}",
        value=serdes.text,
        grace=ms(2_000),
        name="waiting",
    )
    joined.to("out")


def finals(builder: StreamsBuilder) -> None:
    count_in_windows_that_close(builder.stream("in", key=serdes.text, value=serdes.raw))


def count_in_windows_that_close(stream: KStream[str, Any]) -> None:
    grouped = stream.group_by_key()
    counts = grouped.windowed_by(
        TimeWindows(milliseconds=4_000, grace=ms(3_000))
    ).count(store="counts", retention=ms(DAY_MS))
    counts.suppress(until_window_closes(), name="closed").to_stream().to("out")


def sessions(builder: StreamsBuilder) -> None:
    count_sessions(builder.stream("in", key=serdes.text, value=serdes.raw))


def count_sessions(stream: KStream[str, Any]) -> None:
    grouped = stream.group_by_key()
    grouped.windowed_by(SessionWindows(milliseconds=4_000, grace=ms(4_000))).count(
        store="counts", retention=ms(DAY_MS)
    ).to_stream().to("out")


def pairs(builder: StreamsBuilder) -> None:
    pair(builder.stream("left", key=serdes.text, value=serdes.text), builder)


def pair(left: KStream[str, str], builder: StreamsBuilder) -> None:
    right = builder.stream("right", key=serdes.text, value=serdes.text)
    windows = JoinWindows(milliseconds=6_000, grace=ms(DAY_MS))
    left.join(
        right,
        lambda one, other: f"{one}:{other}",
        windows=windows,
        value=serdes.text,
        store="pairs",
    ).to("out")


def pair_or_not(left: KStream[str, str], builder: StreamsBuilder) -> None:
    right = builder.stream("right", key=serdes.text, value=serdes.text)
    windows = JoinWindows(milliseconds=2_000, grace=ms(3_000))
    left.left_join(
        right,
        lambda one, other: f"{one}:{other or ''}",
        windows=windows,
        value=serdes.text,
        store="pairs",
    ).to("out")


def filtered_pairs_or_not(builder: StreamsBuilder) -> None:
    pair_or_not(
        builder.stream("left", key=serdes.text, value=serdes.text).filter(_is_odd),
        builder,
    )


def pairs_or_not(builder: StreamsBuilder) -> None:
    pair_or_not(builder.stream("left", key=serdes.text, value=serdes.text), builder)


def looked_up(builder: StreamsBuilder) -> None:
    _look_up(builder.stream("in", key=serdes.text, value=serdes.text), builder)


def _look_up(stream: KStream[str, str], builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text, store="rows")
    stream.left_join(
        table, lambda value, row: f"{value}:{row or ''}", value=serdes.text
    ).to("out")


def everywhere(builder: StreamsBuilder) -> None:
    table = builder.global_table(
        "table", key=serdes.text, value=serdes.text, store="rows"
    )
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.left_join(
        table,
        lambda value, row: f"{value}:{row or ''}",
        on=lambda key, value: key,
        value=serdes.text,
    ).to("out")


def table(builder: StreamsBuilder) -> None:
    table = builder.table("in", key=serdes.text, value=serdes.text, store="rows")
    table.map_values(lambda value: value + "!", value=serdes.text).to_stream().to("out")


def at_once(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.map_values(told, value=serdes.text)


def cogrouped(builder: StreamsBuilder) -> None:
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.raw).group_by_key()
        for topic in ("left", "right")
    )
    table = (
        left.cogroup(_one_more)
        .cogroup(right, _one_more)
        .aggregate(int, value=serdes.int64, store="counts")
    )
    table.to_stream().to("out")


def _one_more(_key: str, _value: bytes, count: int) -> int:
    return count + 1


def either(builder: StreamsBuilder) -> None:
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.text, store=topic)
        for topic in ("left", "right")
    )
    joined = left.outer_join(
        right, lambda one, other: f"{one}:{other}", value=serdes.text, store="joined"
    )
    joined.to_stream().to("out")


def pairs_or_either(builder: StreamsBuilder) -> None:
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.text)
        for topic in ("left", "right")
    )
    windows = JoinWindows(milliseconds=2_000, grace=ms(3_000))
    joined = left.filter(_is_odd).outer_join(
        right,
        lambda one, other: f"{one or ''}:{other or ''}",
        windows=windows,
        value=serdes.text,
        store="pairs",
    )
    joined.to("out")


def looked_up_elsewhere(builder: StreamsBuilder) -> None:
    """Repartition a stream before its join. The keys stay, so the records of a key keep
    their order.
    """
    stream = builder.stream("in", key=serdes.text, value=serdes.text).select_key(
        lambda key, _: key, name="same", key=serdes.text
    )
    _look_up(stream.repartition(name="moved"), builder)


def windows_elsewhere(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    grouped = stream.group_by(
        lambda key, value: key[:1] + "x",
        name="by-prefix",
        key=serdes.text,
        value=serdes.raw,
    )
    grouped.windowed_by(TimeWindows(milliseconds=10_000, grace=ms(DAY_MS))).count(
        store="counts", retention=ms(2 * DAY_MS)
    ).to_stream().to("out")


def by_prefix(stream: KStream[str, Any]) -> KStream[str, Any]:
    return stream.select_key(lambda key, _: key[:1] + "x", key=serdes.text)


def through_one(stream: KStream[str, Any], name: str) -> KStream[str, Any]:
    """Return the stream by the keys of `PAIRS`, behind a repartition topic."""
    by_pair = stream.select_key(lambda key, _: PAIRS[key], key=serdes.text)
    return by_pair.repartition(name=name, key=serdes.text, value=serdes.raw)


def through_two(stream: KStream[str, Any], name: str) -> KStream[str, Any]:
    """Return the stream by the keys of `PAIRS`, behind two repartition topics."""
    first = stream.select_key(lambda key, _: key + "y", key=serdes.text)
    between = first.repartition(name=f"{name}-first", key=serdes.text, value=serdes.raw)
    back = between.select_key(lambda key, _: key[:-1], key=serdes.text)
    return through_one(back, name)


def past(stream: KStream[str, Any], _: str) -> KStream[str, Any]:
    """Return the stream as it is: its records have the keys of `PAIRS`."""
    return stream


def moved(
    count: Callable[[KStream[str, Any]], None],
    way: Way,
    builder: StreamsBuilder,
) -> None:
    """Count a stream that goes this way."""
    count(way(builder.stream("in", key=serdes.text, value=serdes.raw), "moved"))


def both_moved(
    join: Callable[[KStream[str, Any], KStream[str, Any]], None],
    way: Way,
    builder: StreamsBuilder,
) -> None:
    """Join two streams that go this way."""
    left, right = (
        way(builder.stream(topic, key=serdes.text, value=serdes.raw), f"{topic}-moved")
        for topic in ("left", "right")
    )
    join(left, right)


def one_moved(
    join: Callable[[KStream[str, Any], KStream[str, Any]], None],
    way: Way,
    builder: StreamsBuilder,
) -> None:
    """Join a stream that goes this way with one that is read directly."""
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.raw)
        for topic in ("left", "right")
    )
    join(way(left, "left-moved"), right)


def emit_both(left: KStream[str, Any], right: KStream[str, Any]) -> None:
    emit_patiently(left.merge(right))


def count_both(left: KStream[str, Any], right: KStream[str, Any]) -> None:
    count_in_windows_that_close(left.merge(right))


def pair_both_or_not(left: KStream[str, Any], right: KStream[str, Any]) -> None:
    joined = left.left_join(
        right,
        lambda one, other: one + b":" + (other or b""),
        windows=JoinWindows(milliseconds=2_000, grace=ms(3_000)),
        value=serdes.raw,
        store="pairs",
    )
    joined.to("out")


def count_near(stream: KStream[str, Any]) -> None:
    windows = stream.group_by_key().windowed_by(
        SlidingWindows(milliseconds=4_000, grace=ms(4_000))
    )
    windows.count(store="counts", retention=ms(DAY_MS)).to_stream().to("out")


def count_lasting(stream: KStream[str, Any]) -> None:
    kept = Materialized("counts", ttl=ms(2_000))
    stream.group_by_key().count(store=kept).to_stream().to("out")


def grouped_elsewhere(
    count: Callable[[KStream[str, Any]], None], builder: StreamsBuilder
) -> None:
    """Count by other keys, behind a repartition topic."""
    stream = by_prefix(builder.stream("in", key=serdes.text, value=serdes.raw))
    count(stream.repartition(name="once", key=serdes.text, value=serdes.raw))


def merged_elsewhere(
    count: Callable[[KStream[str, Any]], None], builder: StreamsBuilder
) -> None:
    """Count the records of two topics by other keys, behind a repartition topic."""
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.raw)
        for topic in ("left", "right")
    )
    stream = by_prefix(left.merge(right))
    count(stream.repartition(name="once", key=serdes.text, value=serdes.raw))


def grouped_twice(
    count: Callable[[KStream[str, Any]], None],
    builder: StreamsBuilder,
    dropped: bytes | None = b"7",
) -> None:
    """Count by other keys, behind two repartition topics, all but the records of a
    value.
    """
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    first = stream.select_key(lambda key, _: key[:1] + "y", key=serdes.text)
    between = first.repartition(name="once", key=serdes.text, value=serdes.raw)
    second = by_prefix(between.filter(lambda _, value: value != dropped))
    count(second.repartition(name="twice", key=serdes.text, value=serdes.raw))


class _Held(Processor[str, str, str, str]):
    """Holds the values of each key, and forwards them at punctuations."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self._values: KeyValueStore[str, str] = context.store("held")
        context.schedule(ms(2_000), "stream_time", self._pass_on)
        context.schedule(ms(5_000), "wall_clock", self._pass_on)

    def process(self, record: Record[str, str]) -> None:
        held = self._values.get(record.key)
        self._values.put(
            record.key, record.value if held is None else f"{held},{record.value}"
        )

    def _pass_on(self, now_ms: int) -> None:
        for key, held in list(self._values.all()):
            for value in held.split(","):
                self.context.forward(Record(key, value, now_ms))
            self._values.put(key, None)


def punctuated(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    held = key_value_store("held", key=serdes.text, value=serdes.text)
    stream.process(
        _Held, stores=[held], by_key=True, key=serdes.text, value=serdes.text
    ).to("out")


def passed_on(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.text, value=serdes.text).to("out")


def in_batches(stream: KStream[str, str]) -> KStream[str, str]:
    """Call once for records of several keys; each takes its answer from the common
    list.
    """
    return _in_batches(stream, service.ask_together)


def _in_batches(
    stream: KStream[str, str], ask: Callable[[list[str]], Awaitable[list[str]]]
) -> KStream[str, str]:
    return stream.map_batches(
        ask,
        value=serdes.text,
        max_records=4,
        max_wait=ms(50),
        timeout=TIMEOUT,
        retry=AGAIN,
    )


def in_order(stream: KStream[str, str], most: int = 8) -> KStream[str, str]:
    """Call for up to `most` records at a time, those of a key in order."""
    return stream.map_values_with_key_async(
        service.ask_in_order,
        value=serdes.text,
        max_in_flight=most,
        timeout=TIMEOUT,
        retry=AGAIN,
    )


def at_will(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.map_values_async(
        service.ask,
        value=serdes.text,
        max_in_flight=8,
        order="none",
        timeout=TIMEOUT,
        retry=AGAIN,
    )


async def _any_answers(values: list[str]) -> list[str]:
    return [await _any_answer_of(value) for value in values]


async def _any_answer_of(value: str) -> str:
    try:
        return await service.ask(value)
    except ValueError:
        return "nothing is known"


async def _any_answer(key: str, value: str) -> str:
    try:
        return await service.ask_in_order(key, value)
    except ValueError:
        return "nothing is known"


def whatever(stream: KStream[str, str], most: int = 8) -> KStream[str, str]:
    """Give each record an answer: a record without one would advance the time of
    windows, unlike one that fails at once.
    """
    return stream.map_values_with_key_async(
        _any_answer, value=serdes.text, max_in_flight=most, timeout=TIMEOUT, retry=AGAIN
    )


def whatever_in_batches(stream: KStream[str, str]) -> KStream[str, str]:
    """As `whatever`, with one call for several records."""
    return _in_batches(stream, _any_answers)


def asked_table(asked: Asked, builder: StreamsBuilder) -> None:
    answers = asked(builder.stream("in", key=serdes.text, value=serdes.text))
    answers.to_table(store="rows").to_stream().to("out")


def asked_below(
    below: Callable[[KStream[str, str]], None], asked: Asked, builder: StreamsBuilder
) -> None:
    below(asked(builder.stream("in", key=serdes.text, value=serdes.text)))


def asked_pairs(
    below: Callable[[KStream[str, str], StreamsBuilder], None],
    asked: Asked,
    builder: StreamsBuilder,
) -> None:
    below(asked(builder.stream("left", key=serdes.text, value=serdes.text)), builder)


def asked_look_up(asked: Asked, builder: StreamsBuilder) -> None:
    _look_up(asked(builder.stream("in", key=serdes.text, value=serdes.text)), builder)


class _Remembered(Processor[str, str, str, int]):
    """Counts the records of each key that have an answer."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self._known: KeyValueStore[str, int] = context.store("counts")

    def process(self, record: Record[str, str]) -> None:
        told(record.value)
        self._known.put(record.key, count := (self._known.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(count))


async def _remember(record: Record[str, str], context: CallContext[str, int]) -> None:
    """Do the same: puts before a failure have no effect."""
    known = context.store("counts")
    count = (known.get() or 0) + 1
    known.put(count)
    await service.ask_in_order(record.key, record.value)
    context.forward(record.with_value(count))


_KNOWN = key_value_store("counts", key=serdes.text, value=serdes.int64)


def remembered_at_once(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.process(
        _Remembered, stores=[_KNOWN], by_key=True, key=serdes.text, value=serdes.int64
    ).to("out")


def remembered(most: int, builder: StreamsBuilder) -> None:
    """Call with state for up to `most` records at a time."""
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    how = CallOptions(max_in_flight=most, timeout=TIMEOUT, retry=AGAIN)
    stream.process_async(
        _remember, stores=[_KNOWN], key=serdes.text, value=serdes.int64, **how
    ).to("out")
