"""The stream time of an operator when its task is opened again: exactly where the task
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart
from coopstreams.tasks.incarnation import store_times
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from tests.durations import ms
from tests.tasks.called import SOURCE, TOPICS, Gate, until
from tests.tasks.engine import EXACTLY, Engine

HOUR_MS = 3_600_000
HALVES = KeyRange.split(2)
MINE, OTHER = (
    next(key for key in (b"a", b"b", b"c", b"d", b"e") if key_hash(key) in half)
    for half in HALVES
)
TOLD, PASSED_OVER = b"1", b"0"
"""A value that passes the filter, and one that does not."""


def closing(*, filtered: bool = True) -> Topology:
    """Count the records, those that pass a filter, in windows of ten milliseconds; emit
    on close.
    """
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    if filtered:
        stream = stream.filter(lambda _, value: value == TOLD)
    windows = (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=10))
        .emit_strategy("on_window_close")
    )
    counts = windows.count(store="counts", retention=ms(HOUR_MS)).to_stream()
    counts.select_key(lambda window, _: window.key, key=serdes.raw).to("out")
    return builder.build()


def over_restarts(
    engine: Engine,
    ranges: list[KeyRange],
    batches: Sequence[Sequence[tuple[bytes | None, bytes, int]]],
) -> Columns:
    """Return the results after each batch was processed by tasks of its own."""
    for again in batches:
        engine.write("in", again)
        tasks = [engine.open(key_range) for key_range in ranges]
        engine.settle()
        for task in tasks:
            engine.close(task)
    engine.stop()
    return engine.read("out")


@pytest.mark.parametrize("ranges", [[WHOLE], HALVES], ids=["whole", "halves"])
def test_an_operator_behind_a_filter_goes_on_at_its_own_time(
    ranges: list[KeyRange],
) -> None:
    """Its time is neither that of the partition nor that of the task's rows."""
    engine = Engine(closing(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    engine.start()
    engine.write(
        "in", [(MINE, TOLD, 0), (OTHER, TOLD, 50), (OTHER, PASSED_OVER, HOUR_MS)]
    )
    out = over_restarts(
        engine,
        ranges,
        (
            [],
            [(MINE, TOLD, 5), (MINE, TOLD, 55), (OTHER, TOLD, 100)],
            [(OTHER, TOLD, 150)],
        ),
    )
    told = [
        (key, serdes.int64.decode(value or b""), timestamp)
        for key, value, timestamp in zip(
            out.keys, out.values, out.timestamps, strict=True
        )
    ]
    assert sorted(told) == sorted(
        [(MINE, 1, 0), (OTHER, 1, 50), (MINE, 1, 55), (OTHER, 1, 100)]
    ), "5 is late"


@pytest.mark.parametrize("ranges", [[WHOLE], HALVES], ids=["whole", "halves"])
@pytest.mark.parametrize(
    "first", [[(MINE, TOLD, 0)], []], ids=["after another", "first of all"]
)
def test_a_record_that_was_dropped_closes_no_window_over_a_restart(
    ranges: list[KeyRange], first: list[tuple[bytes, bytes, int]]
) -> None:
    """A record without a key is dropped: the partition's time, which it has moved, is
    not that of the windows.
    """
    engine = Engine(
        closing(filtered=False), {"in": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    engine.start()
    engine.write("in", [*first, (None, TOLD, HOUR_MS)])
    out = over_restarts(
        engine, ranges, ([], [(MINE, TOLD, 5), (OTHER, TOLD, 50)], [(OTHER, TOLD, 100)])
    )
    told = [
        (key, serdes.int64.decode(value or b""))
        for key, value in zip(out.keys, out.values, strict=True)
    ]
    assert sorted(told) == sorted([(MINE, len(first) + 1), (OTHER, 1)])


def test_an_operator_of_two_topics_goes_on_at_the_time_that_each_had_reached() -> None:
    """The owner of one half has read what the owner of the other has not; of the other
    topic, neither has read any.
    """
    builder = StreamsBuilder("app")
    one, other = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("in", "other")
    )
    merged = one.filter(lambda _, value: value == TOLD).merge(other)
    merged.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts"
    ).to_stream().to("out")
    engine = Engine(
        builder.build(), {"in": 1, "other": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    engine.start()
    engine.write("in", [(OTHER, TOLD, 0), (MINE, TOLD, HOUR_MS)])
    ahead = engine.open(HALVES[0])
    engine.settle()
    engine.close(ahead)
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    assert sorted(key[:1] for key in engine.read("out").keys if key) == sorted(
        [MINE, OTHER]
    )


def test_who_takes_over_from_several_owners_goes_on_at_the_time_of_each() -> None:
    """The owner that is ahead has closed windows that the other owner has not."""
    engine = Engine(closing(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    engine.start()
    behind = engine.open(HALVES[0])
    engine.settle()
    engine.close(behind)
    engine.write("in", [(MINE, TOLD, 0), (OTHER, TOLD, 0), (OTHER, TOLD, 50)])
    ahead = engine.open(HALVES[1])
    engine.settle()
    engine.close(ahead)
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    out = engine.read("out")
    assert sorted(zip(out.keys, out.timestamps, strict=True)) == sorted(
        [(MINE, 0), (OTHER, 0)]
    )


def test_a_store_begins_at_the_time_of_its_operator_where_the_task_is_least_far() -> (
    None
):
    """Below a filter the partition is ahead: an earlier owner's windows would expire
    before they are emitted.
    """
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    for name, received in (
        ("all", stream),
        ("odd", stream.filter(lambda *_: True)),
        ("never", stream.filter(lambda *_: False)),
    ):
        received.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
            store=name
        )
    (part,) = builder.build().subtopologies
    at = TopicPartition("in", 0)
    behind, ahead = (
        Segment(half, position, 99, operator_times=((store_id("odd"), time),))
        for half, position, time in zip(HALVES, (3, 7), (20, 60), strict=True)
    )
    for segments, odd in (
        ((behind, ahead), 20),
        ((replace(behind, position=9), ahead), 60),
    ):
        progress = Progress(
            WHOLE,
            {at: PartitionStart(0, segments, None, claim=False)},
            Author("", 0, ""),
        )
        assert store_times(part, progress) == {"all": 99, "odd": odd, "never": -1}


@pytest.mark.parametrize(("reaches", "counts"), [(True, [1, 1]), (False, [1, 2])])
def test_a_window_is_closed_by_a_record_before_the_restart_only_if_that_reached_it(
    reaches: bool, counts: list[int]
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    received = (
        stream if reaches else stream.filter(lambda _, value: value != b"an hour later")
    )
    windows = TimeWindows(milliseconds=10)
    received.group_by_key().windowed_by(windows).count(store="counts").to_stream().to(
        "out"
    )
    engine = Engine(builder.build(), {"in": 1, "out": 1})
    engine.start()
    engine.write("in", [(b"a", b"", 0), (b"a", b"an hour later", HOUR_MS)])
    task = engine.open(WHOLE)
    engine.settle()
    engine.close(task)
    engine.write("in", [(b"a", b"", 5)])
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    assert [
        serdes.int64.decode(value) for value in engine.read("out").values if value
    ] == counts


@pytest.mark.parametrize("ranges", [[WHOLE], HALVES], ids=["whole", "halves"])
def test_streams_that_are_cogrouped_go_on_each_at_its_own_time(
    ranges: list[KeyRange],
) -> None:
    """The second stream is an hour ahead of the first one, for which the window of 5 is
    still open.
    """

    def counted(_: bytes, _value: bytes, count: int) -> int:
        return count + 1

    def saying(told: bytes) -> Callable[[bytes, bytes], bool]:
        return lambda _, value: value == told

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    one, other = (stream.filter(saying(told)).group_by_key() for told in (b"1", b"2"))
    windows = (
        one.cogroup(counted)
        .cogroup(other, counted)
        .windowed_by(TimeWindows(milliseconds=10))
    )
    counts = windows.aggregate(
        int, value=serdes.int64, store="counts", retention=ms(2 * HOUR_MS)
    ).to_stream()
    counts.select_key(lambda window, _: window.key, key=serdes.raw).to("out")
    engine = Engine(builder.build(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    engine.start()
    out = over_restarts(
        engine,
        ranges,
        (
            [(MINE, b"1", 0), (OTHER, b"2", HOUR_MS)],
            [(MINE, b"1", 5), (OTHER, b"2", 5)],
            [],
        ),
    )
    told = [
        (key, serdes.int64.decode(value or b""))
        for key, value in zip(out.keys, out.values, strict=True)
    ]
    assert sorted(told) == sorted([(MINE, 1), (OTHER, 1), (MINE, 2)])


def answered(gate: Gate) -> Topology:
    """Count the results of calls in windows of ten milliseconds; emit on close."""
    builder = StreamsBuilder("app")
    answers = builder.stream("in", key=serdes.raw, value=serdes.json).map_values_async(
        gate, value=serdes.json
    )
    windows = answers.group_by_key(value=serdes.json).windowed_by(
        TimeWindows(milliseconds=10)
    )
    counts = windows.emit_strategy("on_window_close").count(store="counts").to_stream()
    counts.select_key(lambda window, _: window.key, key=serdes.raw).to("out")
    return builder.build()


def test_a_window_that_closes_before_the_record_that_waits_is_told_before_the_commit_says_so() -> (
    None
):
    """A record of a sibling has closed it, between the last passed record and the
    waiting one.
    """
    gate = Gate(stuck=2)
    engine = Engine(answered(gate), TOPICS, processing_guarantee=EXACTLY)
    task = engine.open(HALVES[0])
    engine.write("in", [(MINE, b"0", 0), (OTHER, b"1", 100), (MINE, b"2", 95)])
    engine.start()
    until(lambda: task.progress.committed_segments(SOURCE)[0].position == 2, engine)
    assert task.progress.committed_segments(SOURCE)[0].stream_time == 100
    until(lambda: list(engine.read("out").keys) == [MINE], engine)
    gate.let_go.set()
    until(lambda: task.progress.committed_segments(SOURCE)[0].position == 3, engine)
    engine.stop()


@pytest.mark.usefixtures("short_drain")
def test_who_takes_over_tells_what_closes_behind_records_that_waited() -> None:
    """A task knows the time before its newest record only from its own records, so its
    position is directly after these. After the sibling's record, the next owner would
    begin at the time of the other range, and drop windows that this one has not
    emitted.
    """
    gate = Gate(stuck=2)
    engine = Engine(answered(gate), TOPICS, processing_guarantee=EXACTLY)
    tasks = [engine.open(half) for half in HALVES]
    engine.write(
        "in",
        [(MINE, b"0", 0), (OTHER, b"1", 100), (OTHER, b"2", 90), (MINE, b"2", 100)],
    )
    engine.start()

    def stand() -> list[tuple[int, int]]:
        return [
            (at.position, at.stream_time)
            for task in tasks
            for at in task.progress.committed_segments(SOURCE)
        ]

    until(lambda: stand() == [(1, 0), (2, 100)], engine)
    for task in tasks:
        engine.close(task)
    gate.let_go.set()
    engine.open(WHOLE)
    engine.write("in", [(OTHER, b"3", 200)])
    until(lambda: sorted(engine.read("out").timestamps) == [0, 100, 100], engine)
    engine.stop()
