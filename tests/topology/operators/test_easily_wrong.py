"""Easily mistaken behaviours of Kafka Streams without a test elsewhere;
docs/semantics.md lists all of them.
"""

from typing import Any

import pytest

from coopstreams import JoinWindows, StreamsBuilder, TimeWindows, serdes
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from tests.durations import ms
from tests.topology.operators.results import outputs


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def two_streams(kind: str, windows: JoinWindows) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.json)
        for topic in ("left", "right")
    )
    getattr(left, kind)(right, pair, windows=windows, value=serdes.json).to("out")
    return builder.build()


def two_tables(joiner: Any) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.json)
        for topic in ("left", "right")
    )
    left.join(right, joiner, value=serdes.json).to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
def test_the_clock_on_the_wall_closes_no_window_and_one_record_far_ahead_closes_all(
    ranges: int,
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.group_by_key().windowed_by(TimeWindows(milliseconds=10)).emit_strategy(
        "on_window_close"
    ).count().to_stream().to("out")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        topic.send("a", 1, 5)
        driver.advance(ms(1_000_000))
        assert driver.outputs() == []
        topic.send("far", 1, 500_000)
        assert [(str(record.key), record.value) for record in driver.outputs()] == [
            ("[a@0/10]", 1)
        ]
        topic.send("a", 1, 400_000)
        assert [(reason, count) for (_, reason), count in driver.dropped.items()] == [
            ("late", 1)
        ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_late_record_of_a_stream_join_meets_what_is_still_kept(ranges: int) -> None:
    """Its window has closed long ago, and no pair comes twice; only unmatched records
    were emitted before.
    """
    events = [
        ("right", "a", "r", 10),
        ("left", "z", 0, 100),
        ("right", "z", 0, 15),
        ("left", "a", "l", 12),
    ]
    assert outputs(
        two_streams("join", JoinWindows(milliseconds=5, grace=ms(50))),
        *events,
        ranges=ranges,
    ) == [("a", ["l", "r"], 12)]


def test_grace_delays_what_has_no_match_and_nothing_else() -> None:
    events = [
        ("left", "a", 1, 0),
        ("right", "a", 2, 3),
        ("left", "b", 3, 4),
        ("left", "z", 0, 14),
        ("left", "z", 0, 15),
    ]
    out = outputs(
        two_streams("left_join", JoinWindows(milliseconds=5, grace=ms(5))), *events
    )
    assert out == [("a", [1, 2], 3), ("b", [3, None], 4)]


def test_what_has_no_match_comes_by_time_side_and_key_before_the_matches_of_the_record_that_let_it_go() -> (
    None
):
    waiting = [
        ("left", "b", 1, 0),
        ("left", "a", 2, 0),
        ("right", "c", 3, 0),
        ("left", "b", 4, 2),
        ("right", "m", 5, 10),
    ]
    out = outputs(
        two_streams("outer_join", JoinWindows(milliseconds=10)),
        *waiting,
        ("left", "m", 6, 20),
    )
    assert out == [
        ("c", [None, 3], 0),
        ("a", [2, None], 0),
        ("b", [1, None], 0),
        ("b", [4, None], 2),
        ("m", [6, 5], 20),
    ]


def test_a_joiner_that_returns_none_deletes_the_row() -> None:
    events = [("left", "a", 1, 0), ("right", "a", 2, 1), ("left", "a", -2, 2)]
    assert outputs(two_tables(lambda left, right: left + right or None), *events) == [
        ("a", 3, 1),
        ("a", None, 2),
    ]


def test_an_answer_of_a_foreign_key_join_is_dropped_if_the_left_row_has_changed_meanwhile() -> (
    None
):
    builder = StreamsBuilder("app")
    orders, people = (
        builder.table(topic, key=serdes.text, value=serdes.text)
        for topic in ("orders", "people")
    )
    orders.join(
        people,
        pair,
        foreign_key=lambda order: order.split(",")[0],
        value=serdes.json,
        name="owner",
    ).to_stream().to("out")
    topology = builder.build()
    asks, answers = (
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    )
    tasks = {
        topic: task
        for part in topology.subtopologies
        for task in [bound(topology, part)]
        for topic in part.topics
    }

    def process(topic: str, *records: tuple[Any, Any]) -> None:
        keys, values = [key for key, _ in records], [value for _, value in records]
        tasks[topic].process(
            TopicPartition(topic, 0),
            Columns(keys, values, [0] * len(keys), range(len(keys)), [0] * len(keys)),
        )

    def taken(topic: str) -> list[tuple[Any, Any]]:
        """The records in a topic, or the outputs."""
        output = next(
            task.outputs[topic] for task in tasks.values() if topic in task.outputs
        )
        records = list(zip(output.keys, output.values, strict=True))
        output.clear()
        return records

    process("people", (b"ann", b"Ann"))
    process("orders", (b"1", b"ann,x"))
    process(asks, *taken(asks))
    on_its_way = taken(answers)
    process("orders", (b"1", b"ann,y"))
    process(answers, *on_its_way)
    assert taken("out") == []
    assert [
        (reason, count) for (_, reason), count in tasks[answers].dropped.items()
    ] == [("stale-answer", 1)]
    process(asks, *taken(asks))
    process(answers, *taken(answers))
    assert taken("out") == [(b"1", b'["ann,y","Ann"]')]


def bound(topology: Topology, part: SubTopology) -> BoundProgram:
    """Return a task's program, without a driver that would carry records further at
    once.
    """
    state = TaskState(Database(Memory(), part.stores), part.stores, WHOLE, 1 << 20)
    return compile_subtopology(topology, part).bind(
        state.stores, lambda failure: None, caching=False
    )
