"""Records that wait for calls, and stream time: commits, windows and their closing."""

from __future__ import annotations

import struct

import pytest

from coopstreams.commit.record import Segment
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms
from tests.tasks.called import (
    SOURCE,
    TOPICS,
    Gate,
    calls_of,
    done,
    finish,
    numbered,
    runs,
    until,
)
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine


def closing(called: Gate) -> Topology:
    """Windows that are emitted on close: at a record's turn, all records before it
    decide what is due.
    """
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        called, value=serdes.json
    ).group_by_key(value=serdes.json).windowed_by(
        TimeWindows(milliseconds=10)
    ).emit_strategy("on_window_close").count(store="counts").to_stream().map_values(
        lambda count: count, value=serdes.int64
    ).select_key(lambda key, _: key.key, key=serdes.text).to("out")
    return builder.build()


@pytest.mark.usefixtures("short_drain")
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_where_time_acts_records_keep_their_order_and_commits_stop_below_the_one_that_waits(
    guarantee: str,
) -> None:
    gate = Gate(stuck=20)
    made = Engine(closing(gate), TOPICS, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    made.write("in", numbered(range(100), keys=100))
    made.start()
    until(lambda: len(gate.called) == 100, made)
    until(lambda: runs(task) == (20, ()), made)
    made.close(task)
    gate.let_go.set()
    task = made.open(WHOLE)
    finish(made, 100)
    assert [gate.called[number] for number in range(100)] == [1] * 20 + [2] * 80
    assert len(made.read("out")) == 90, "the last window is open"


def test_the_stream_time_of_a_commit_is_that_before_the_record_that_waits() -> None:
    """Rows expire and records are late alike after a restart."""
    gate = Gate(stuck=2)
    made = Engine(calls_of(gate), TOPICS)
    task = made.open(WHOLE)
    made.write(
        "in",
        [
            (b"k%d" % number, b"%d" % number, [50, 10, 70, 90][number])
            for number in range(4)
        ],
    )
    made.start()
    until(lambda: runs(task) == (2, ((3, 3),)), made)
    assert task.progress.committed_segments(SOURCE)[0].stream_time == 50
    gate.let_go.set()
    until(done(made, 4), made)
    assert task.progress.committed_segments(SOURCE)[0].stream_time == 90
    made.stop()


@pytest.mark.usefixtures("short_drain")
def test_a_commit_names_a_position_of_which_the_stream_time_is_known() -> None:
    """Between two records of a task is one of a sibling: a new owner of both ranges
    would count windows that close by its time as emitted.
    """
    gate = Gate(stuck=1)
    part, rest = KeyRange.split(2)
    mine, others = (
        [key for i in range(100) if key_hash(key := b"%d" % i) in each]
        for each in (part, rest)
    )
    made = Engine(closing(gate), TOPICS)
    task = made.open(part)
    made.write("in", [(mine[0], b"0", 10), (others[0], b"5", 50), (mine[1], b"1", 60)])
    made.start()
    until(lambda: gate.called[1] == 1, made)
    until(lambda: task.progress.position(SOURCE).offset > 0, made)
    made.close(task)
    (at,) = task.progress.committed_segments(SOURCE)
    assert at == Segment(part, 1, 10, (), at.operator_times)
    assert [time for _, time in at.operator_times] == [10]
    made.stop()


@pytest.mark.usefixtures("short_drain")
def test_a_commit_names_no_time_of_another_source_that_comes_after_the_record_that_waits() -> (
    None
):
    """A new owner would count the windows that close by that time as emitted."""
    gate, other = Gate(stuck=1), TopicPartition("other", 0)
    builder = StreamsBuilder("app")
    read, beside = (
        builder.stream(topic, key=serdes.text, value=serdes.json)
        for topic in ("in", "other")
    )
    read.map_values_async(gate, value=serdes.json).merge(beside).group_by_key(
        value=serdes.json
    ).windowed_by(TimeWindows(milliseconds=10)).emit_strategy(
        "on_window_close"
    ).count().to_stream().to("out")
    part, rest = KeyRange.split(2)
    mine, others = (
        [key for i in range(100) if key_hash(key := b"%d" % i) in each]
        for each in (part, rest)
    )
    made = Engine(builder.build(), TOPICS)
    task = made.open(part)
    made.write("in", [(mine[0], b"1", 10)])
    made.write("other", [(others[0], b"0", 50)])
    made.dispatcher.move(
        0.0
    )  # of both topics before the thread begins: it would take what comes first
    made.start()
    until(lambda: gate.called[1] == 1, made)
    made.write("other", [(mine[0], b"2", 60)])
    made.write("in", [(mine[1], b"3", 61)])
    until(lambda: gate.called[3] == 1, made)
    made.close(task)
    assert task.progress.committed_segments(other) == (Segment(part, 0),)
    gate.let_go.set()
    task = made.open(part)
    until(
        lambda: (
            [
                (at.position, at.stream_time)
                for at in task.progress.committed_segments(other)
            ]
            == [(2, 60)]
        ),
        made,
    )
    made.stop()


def test_a_window_does_not_expire_before_the_records_that_wait_for_it() -> None:
    """A record of another key is years ahead; the waiting one was in time at its place
    in the partition.
    """
    gate = Gate(stuck=1)
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        gate, value=serdes.json
    ).group_by_key().windowed_by(TimeWindows(milliseconds=10, grace=ms(5))).count(
        store="counts"
    ).to_stream().map_values(lambda count: count, value=serdes.int64).select_key(
        lambda key, _: key.key, key=serdes.text
    ).to("out")
    made = Engine(builder.build(), TOPICS)
    task = made.open(WHOLE)
    years = 100_000_000_000
    made.write(
        "in",
        [
            (b"a", b"0", 2),
            (b"a", b"1", 3),
            (b"b", b"2", years),
            (b"b", b"3", 2 * years),
            (b"a", b"4", 4),
        ],
    )
    made.start()
    until(lambda: runs(task) == (1, ((2, 3),)), made)
    gate.let_go.set()
    finish(made, 5)
    out = made.read("out")
    counted = [
        (key, struct.unpack(">q", value or b"")[0])
        for key, value in zip(out.keys, out.values, strict=True)
    ]
    assert counted == [(b"a", 1), (b"b", 1), (b"b", 1), (b"a", 2)], (
        "the last one is late"
    )
