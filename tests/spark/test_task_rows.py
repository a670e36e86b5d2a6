"""A task of a backfill has the same results from its rows as a live task from the
records. Without Spark: workers take and return Arrow batches.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.common.config import Config
from coopstreams.spark import plan as planning
from coopstreams.spark.history.arrow_rows import HISTORY, ROUTED, batch, headers_column
from coopstreams.spark.reached_times import operator_times
from coopstreams.spark.routing import Routing
from coopstreams.spark.spark_task import TaskResult, TaskWork
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.graph.partitions import check_partitions
from tests.durations import ms

TOPICS = ["left", "right"]
SETTINGS = {"statestore.cache.max.bytes": 0, "processing.exception.handler": "continue"}
PIECE = 5
"""The rows of a batch of Arrow."""
Rows = list[tuple[bytes, int]]
"""Key and timestamp of the records of a topic, by offset."""
Results = dict[Any, list[tuple[Any, int]]]
"""Value and timestamp of the results of each key, in order."""


def _streams(builder: StreamsBuilder) -> list[KStream[bytes, bytes]]:
    return [builder.stream(topic, key=serdes.raw, value=serdes.raw) for topic in TOPICS]


def final_counts() -> Topology:
    builder = StreamsBuilder("app")
    left, right = _streams(builder)
    windows = (
        left.merge(right)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=5, grace=ms(3)))
        .count(store="counts")
    )
    windows.suppress(until_window_closes()).to_stream().to("out")
    return builder.build()


def counted() -> Topology:
    """A known fold, whose rows are in native memory where it can be."""
    builder = StreamsBuilder("app")
    left, right = _streams(builder)
    left.merge(right).group_by_key().count(store="counts").to_stream().to(
        "out", key=serdes.raw
    )
    return builder.build()


def joined() -> Topology:
    builder = StreamsBuilder("app")
    left, right = _streams(builder)
    windows = JoinWindows(milliseconds=4, grace=ms(3))
    left.outer_join(
        right,
        lambda one, other: b"%s+%s" % (one or b"", other or b""),
        windows=windows,
        value=serdes.raw,
    ).to("out")
    return builder.build()


def failing() -> Topology:
    builder = StreamsBuilder("app")
    left, right = _streams(builder)
    left.merge(right).map_values(
        lambda value: b"%d" % (6 // (value[-1] % 3)), value=serdes.raw
    ).to("out")
    return builder.build()


def value_of(topic: str, offset: int) -> bytes:
    return b"%s %d" % (topic.encode(), offset)


def backfilled(
    topology: Topology,
    logs: dict[str, Rows],
    ranges: int,
    *,
    may_drop: bool = True,
    given: Mapping[str, Any] = SETTINGS,
) -> Results:
    rows = list[dict[str, Any]]()
    for topic, log in logs.items():
        columns = [
            [topic] * len(log),
            [0] * len(log),
            list(range(len(log))),
            [time for _, time in log],
            [key for key, _ in log],
        ]
        values = [value_of(topic, offset) for offset in range(len(log))]
        history = batch(
            HISTORY,
            [*columns, values, pa.nulls(len(log), HISTORY.field("headers").type)],
        )
        for routed in Routing(topology, 0, topic, ranges, may_drop=may_drop)(
            iter([history])
        ):
            rows += routed.to_pylist()
    results: Results = defaultdict(list)
    for row in worked(topology, rows, ranges, given):
        results[row["key"]].append((row["value"], row["timestamp"]))
    return results


def worked(
    topology: Topology,
    rows: list[dict[str, Any]],
    ranges: int,
    given: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yield the output rows of all tasks for rows that are routed to them."""
    config = Config.of({"bootstrap.servers": "nowhere:1", **given}, "app")
    work = TaskWork(topology, 0, ranges, "run", 0, config, outputs="table")
    for task in range(ranges):
        mine = sorted(
            (row for row in rows if row["task"] == task),
            key=lambda row: (row["time"], row["source"], row["offset"]),
        )
        for results in work(_in_pieces(mine)):
            yield from (row for row in results.to_pylist() if row["topic"] is not None)


def _in_pieces(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), PIECE):
        yield pa.RecordBatch.from_pylist(rows[start : start + PIECE], ROUTED)


def live(topology: Topology, logs: dict[str, Rows], ranges: int) -> Results:
    order = sorted(
        (reached, TOPICS.index(topic), offset, topic, key, time)
        for topic, log in logs.items()
        for offset, ((key, time), reached) in enumerate(
            zip(log, accumulate((time for _, time in log), max), strict=True)
        )
    )
    results: Results = defaultdict(list)
    with TopologyTestDriver(topology, ranges, SETTINGS) as driver:
        for *_, offset, topic, key, time in order:
            driver.input(topic, serdes.raw, serdes.raw).send(
                key, value_of(topic, offset), time
            )
        # Serialised keys: also those of windows.
        for record in driver.output("out", serdes.raw, serdes.raw).records():
            results[record.key].append((record.value, record.timestamp))
    return results


records = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 40)),
    min_size=5,
    max_size=20,
)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "ranges"),
    [(final_counts, 1), (final_counts, 4), (counted, 4), (joined, 1), (failing, 4)],
)
@settings(max_examples=6)
@given(records, records)
def test_a_backfill_makes_of_rows_what_a_live_task_makes_of_records(
    made: Callable[[], Topology], ranges: int, left: Rows, right: Rows
) -> None:
    topology, logs = made(), {"left": left, "right": right}
    assert backfilled(topology, logs, ranges) == live(topology, logs, ranges)


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Return how often functions of Python were called."""
    calls = Counter[str]()
    sys.setprofile(
        lambda frame, event, _: calls.update(
            [frame.f_code.co_qualname] if event == "call" else []
        )
    )
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_where_sources_take_turns_a_batch_of_arrow_is_read_once() -> None:
    logs = {
        topic: [(b"key", 2 * at + number) for at in range(50)]
        for number, topic in enumerate(TOPICS)
    }
    calls = calls_of(lambda: backfilled(counted(), logs, 1))
    rows = sum(map(len, logs.values())) + len(logs)
    assert calls["columns_of"] <= len(logs) + math.ceil(rows / PIECE)


@pytest.mark.parametrize(("may_drop", "times"), [(False, 1), (True, 2)])
def test_only_where_records_may_be_dropped_are_mappers_called_on_the_way_to_tasks_too(
    *, may_drop: bool, times: int
) -> None:
    called: list[bytes] = []

    def same(value: bytes) -> bytes:
        called.append(value)
        return value

    builder = StreamsBuilder("app")
    mapped = builder.stream("left", key=serdes.raw, value=serdes.raw).map_values(
        same, value=serdes.raw
    )
    mapped.group_by_key().windowed_by(
        TimeWindows(milliseconds=5, grace=0)
    ).count().to_stream().to("out")
    log = [(b"k%d" % (at % 7), at) for at in range(100)]
    backfilled(builder.build(), {"left": log}, 4, may_drop=may_drop)
    assert len(called) == times * len(log)


def test_a_question_that_is_asked_behind_a_record_has_its_time_and_not_that_of_the_batch() -> (
    None
):
    """A row that comes too late expires behind its record. Its deletion must not pass
    the row's next update.
    """
    builder = StreamsBuilder("app")
    left = builder.table(
        "left",
        key=serdes.raw,
        value=serdes.raw,
        store=Materialized("rows", ttl=ms(300)),
    )
    right = builder.table("right", key=serdes.raw, value=serdes.raw)
    left.join(
        right,
        lambda one, other: one + other,
        foreign_key=lambda value: value,
        value=serdes.raw,
    )
    topology = builder.build()
    asks = planning.stages(
        topology, check_partitions(topology, {"left": 1, "right": 1}).partitions, 1
    )[0]
    times = [
        1000,
        1001,
        10,
        *range(1003, 1011),
    ]  # the first steps of a task take one and two records
    count = len(times)
    columns = [
        ["left"] * count,
        [0] * count,
        list(range(count)),
        times,
        [b"key"] * count,
        [b"person"] * count,
    ]
    history = batch(HISTORY, [*columns, headers_column(None, count)])
    routed = list(Routing(topology, 0, "left", 1, round=asks.round)(iter([history])))
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    work = TaskWork(
        topology, 0, 1, "run", 0, config, forwarded=asks.forwarded, round=asks.round
    )
    placed = [
        row["time"]
        for made in work(iter(routed))
        for row in made.to_pylist()
        if row["topic"] is not None
    ]
    assert len(placed) > count
    assert placed == sorted(placed)


class Ticks(Processor[bytes, Any, bytes, Any]):
    """Forwards all records, and every ten milliseconds of stream time one of its own."""

    def init(self, context: ProcessorContext[bytes, Any]) -> None:
        super().init(context)
        context.schedule(
            ms(10),
            "stream_time",
            lambda now_ms: context.forward(Record(b"tick", None, now_ms)),
        )

    def process(self, record: Record[bytes, Any]) -> None:
        self.context.forward(record)


def test_a_record_of_a_punctuation_has_the_time_of_the_record_that_made_it_due_and_not_that_of_the_batch() -> (
    None
):
    """Else it would come behind records of later times, and be late for windows."""
    builder = StreamsBuilder("app")
    left, right = _streams(builder)
    moved = left.select_key(lambda _, value: value, key=serdes.raw).repartition(
        name="to-right"
    )
    ticking = right.merge(moved).process(
        Ticks, key=serdes.raw, value=serdes.raw, by_key=True
    )
    left.merge(ticking.repartition(name="to-left")).group_by_key().count()
    topology = builder.build()
    answers = planning.stages(
        topology, check_partitions(topology, {"left": 1, "right": 1}).partitions, 1
    )[1]
    times = list(range(100))
    columns = [["right"] * 100, [0] * 100, times, times, [b"key"] * 100, [b""] * 100]
    history = batch(HISTORY, [*columns, headers_column(None, 100)])
    routed = list(Routing(topology, answers.subtopology, "right", 1)(iter([history])))
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    work = TaskWork(
        topology, answers.subtopology, 1, "run", 0, config, forwarded=answers.forwarded
    )
    rows = [
        row
        for made in work(iter(routed))
        for row in made.to_pylist()
        if row["topic"] is not None
    ]
    assert [row["time"] for row in rows if row["key"] == b"tick"] == times[::10]
    assert [row["time"] for row in rows] == [row["timestamp"] for row in rows]


class Later(Processor[bytes, bytes, bytes, bytes]):
    def process(self, record: Record[bytes, bytes]) -> None:
        self.context.forward(Record(record.key, record.value, record.timestamp + 50))


@pytest.mark.parametrize("latest", [b"a", b"c"])  # keys of two ranges
def test_the_operator_times_at_the_cut_are_the_latest_that_any_task_has_reached(
    latest: bytes,
) -> None:
    """A processor chooses timestamps, of which the tasks of other ranges do not hear."""
    builder = StreamsBuilder("app")
    stream = builder.stream("left", key=serdes.raw, value=serdes.raw).filter(
        lambda key, _: key != b"d"
    )
    moved = stream.process_values(Later, value=serdes.raw, by_key=True).group_by_key()
    moved.windowed_by(TimeWindows(milliseconds=10)).count(store="counts")
    topology, keys = builder.build(), [b"a", b"c", latest, b"d"]
    history = batch(
        HISTORY,
        [
            ["left"] * 4,
            [0] * 4,
            list(range(4)),
            [0, 0, 90, 200],
            keys,
            keys,
            headers_column(None, 4),
        ],
    )
    config = Config.of({"bootstrap.servers": "nowhere:1", **SETTINGS}, "app")

    def reached(ranges: int) -> object:
        rows = [
            row
            for made in Routing(topology, 0, "left", ranges)(iter([history]))
            for row in made.to_pylist()
        ]
        results = list[TaskResult]()
        for task in range(ranges):
            mine = sorted(
                (row for row in rows if row["task"] == task),
                key=lambda row: (row["time"], row["offset"]),
            )
            made = TaskWork(topology, 0, ranges, "run", 0, config)(_in_pieces(mine))
            told = [
                row["result"]
                for each in made
                for row in each.to_pylist()
                if row["result"] is not None
            ]
            results += (msgspec.json.decode(each, type=TaskResult) for each in told)
        return operator_times(results)

    assert reached(4) == reached(1) == {("left", 0): ((store_id("counts"), 140),)}


@pytest.mark.parametrize(("windowed", "updates"), [(False, 7), (True, 100)])
def test_what_feeds_windows_does_without_the_record_cache(
    *, windowed: bool, updates: int
) -> None:
    """Flushed once, at the end, nearly all updates would be late there."""
    builder = StreamsBuilder("app")
    counts = (
        builder.stream("left", key=serdes.raw, value=serdes.raw)
        .group_by_key()
        .count()
        .to_stream()
    )
    moved = (
        counts.select_key(lambda key, _: key[-1:], key=serdes.raw)
        .repartition(name="moved")
        .group_by_key()
    )
    (
        moved.windowed_by(TimeWindows(milliseconds=5, grace=0)) if windowed else moved
    ).count()
    times = list(range(100))
    keys = [b"k%d" % (at % 7) for at in times]
    history = batch(
        HISTORY,
        [
            ["left"] * 100,
            [0] * 100,
            times,
            times,
            keys,
            keys,
            headers_column(None, 100),
        ],
    )
    topology, forwarded = builder.build(), "app-moved-repartition"
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    work = TaskWork(topology, 0, 1, "run", 0, config, forwarded=((forwarded, 1),))
    rows = [
        row
        for made in work(Routing(topology, 0, "left", 1)(iter([history])))
        for row in made.to_pylist()
    ]
    assert sum(row["topic"] == forwarded for row in rows) == updates


def windows_below_a_table(counts: KStream[bytes, int]) -> None:
    windows = (
        counts.group_by_key().windowed_by(TimeWindows(milliseconds=10, grace=0)).count()
    )
    windows.to_stream().to("out")


def a_join_below_a_table(counts: KStream[bytes, int]) -> None:
    windows = JoinWindows(milliseconds=5, grace=0)
    counts.join(
        counts, lambda one, other: one * other, windows=windows, value=serdes.int64
    ).to("out")


def punctuations_below_a_table(counts: KStream[bytes, int]) -> None:
    counts.process(Ticks, key=serdes.raw, value=serdes.int64, by_key=True).to("out")


@pytest.mark.parametrize(
    "write", [windows_below_a_table, a_join_below_a_table, punctuations_below_a_table]
)
def test_what_follows_time_below_a_table_gets_each_update_although_the_record_cache_is_on(
    write: Callable[[KStream[bytes, int]], None],
) -> None:
    """Flushed once, at the end, nearly all updates would be late there."""
    builder = StreamsBuilder("app")
    left, _ = _streams(builder)
    write(left.group_by_key().count().to_stream())
    topology, logs = (
        builder.build(),
        {"left": [(b"k%d" % (at % 7), at) for at in range(100)]},
    )
    assert backfilled(topology, logs, 1, given={}) == live(topology, logs, 1)


def test_a_task_takes_a_batch_of_arrow_in_few_steps() -> None:
    builder, count = StreamsBuilder("app"), 2000
    builder.stream("left", key=serdes.raw, value=serdes.raw).filter(
        lambda _, value: value != b""
    ).to("out")
    topology, times = builder.build(), list(range(count))
    columns = [
        ["left"] * count,
        [0] * count,
        times,
        times,
        [b"key"] * count,
        [b"value"] * count,
    ]
    history = batch(HISTORY, [*columns, pa.nulls(count, HISTORY.field("headers").type)])
    routed = list(Routing(topology, 0, "left", 1)(iter([history])))
    work = TaskWork(
        topology,
        0,
        1,
        "run",
        0,
        Config.of({"bootstrap.servers": "nowhere:1", **SETTINGS}, "app"),
    )
    calls = calls_of(lambda: list(work(iter(routed))))
    assert count / 2 < sum(calls.values()) < 10 * count
    assert calls["Task.step"] < 5
    assert (
        calls["Columns.slice"] <= count.bit_length() + 2
    )  # steps double; one for the records, one for the end
