"""Records that wait for calls: results as of a function that does not wait, commits that go on, nothing lost."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.tasks.events import Failed
from coopstreams.topology import serdes
from coopstreams.topology.calls import CallOrder, Retry
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

SOURCE = TopicPartition("in", 0)
TOPICS = {"in": 1, "other": 1, "out": 1}
Called = Callable[[KStream[str, int]], KStream[str, int]]


def until(true: Callable[[], bool], made: Engine) -> None:
    """Move records until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        made.dispatcher.move(0.005)
        assert time.monotonic() < deadline


def done(made: Engine, records: int) -> Callable[[], bool]:
    return lambda: all(
        task.progress.durable(source) >= records for task, _ in made.tasks.values() for source in task.sources[:1]
    )


def program(called: Called) -> Topology:
    """A window, a join and a sink below the call; a filter, a branch and a mapper above it."""
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    other = builder.stream("other", key=serdes.text, value=serdes.json)
    large = read.filter(lambda _, value: value >= 0).split().branch(lambda _, value: value > 1, name="large")
    results = called(large.default_branch(name="small")["large"].map_values(lambda value: value + 1, value=serdes.json))
    results.group_by_key(value=serdes.json).windowed_by(TimeWindows(milliseconds=10, grace=ms(5))).count(
        store="windows"
    ).to_stream().map_values_with_key(lambda key, count: [key.start_ms, count], value=serdes.json).select_key(
        lambda key, _: key.key, key=serdes.text
    ).to("out")
    near = JoinWindows(milliseconds=5, grace=ms(1000))  # how long late records find a match depends on the batches
    results.join(other, lambda one, two: [one, two], windows=near, value=serdes.json).to("out")
    return builder.build()


def played(topology: Topology, records: list[tuple[str, str, int, int]], pieces: int) -> dict[bytes | None, list[Any]]:
    """Return the outputs of each key, in order."""
    made = Engine(topology, TOPICS, threads=2)
    ranges = KeyRange.split(pieces)
    for name in ("in", "other"):  # all there is at the start: the order of the sources is that of their times
        made.write(
            name,
            [(key.encode(), b"%d" % value, timestamp) for topic, key, value, timestamp in records if topic == name],
        )
    made.start()
    for number, each in enumerate(ranges):
        made.open(each, thread=number % 2)
    ends = {name: sum(topic == name for topic, *_ in records) for name in ("in", "other")}

    def over() -> bool:
        while not made.events.empty():
            made.take(made.events.get())
        return all(
            task.progress.position(source).offset >= ends[source.topic]
            for task, _ in made.tasks.values()
            for source in task.sources
        )

    until(over, made)
    made.stop()
    found: dict[bytes | None, list[Any]] = defaultdict(list)
    out = made.read("out")
    for key, value, timestamp in zip(out.keys, out.values, out.timestamps, strict=True):
        found[key].append((value, timestamp))
    return found


@settings(max_examples=15, deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["in", "in", "other"]), st.sampled_from("abcdef"), st.integers(-1, 6), st.integers(0, 60)
        ),
        min_size=1,
        max_size=40,
    ),
    pieces=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(["key", "partition", "none"]),
    most=st.sampled_from([1, 3, 100]),
    seed=st.integers(0, 1000),
)
def test_what_is_below_is_what_a_function_that_does_not_wait_would_give(
    records: list[tuple[str, str, int, int]], pieces: int, order: CallOrder, most: int, seed: int
) -> None:
    latency = random.Random(seed)

    async def later(value: int) -> int:
        await asyncio.sleep(latency.choice([0, 0, 0.001, 0.004]))
        return value * 10

    waiting = program(lambda stream: stream.map_values_async(later, value=serdes.json, order=order, max_in_flight=most))
    at_once = program(lambda stream: stream.map_values(lambda value: value * 10, value=serdes.json))
    assert played(waiting, records, pieces) == played(at_once, records, pieces)


def calls_of(called: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        called, value=serdes.json, **options
    ).group_by_key(value=serdes.json).count(store="counts").to_stream().to("out")
    return builder.build()


class Gate:
    """A function that waits for one value until it is let go, and remembers what it was called with."""

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        self.called: Counter[int] = Counter()
        self.let_go = threading.Event()

    async def __call__(self, value: int) -> int:
        self.called[value] += 1
        while value == self.stuck and not self.let_go.is_set():
            await asyncio.sleep(0.001)
        return value


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_commits_go_on_and_stop_below_the_record_that_waits(guarantee: str) -> None:
    gate = Gate(stuck=20)
    made = Engine(calls_of(gate, max_in_flight=10), TOPICS, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    made.write("in", [(b"k%d" % number, b"%d" % number, number) for number in range(100)])
    made.start()
    until(lambda: task.progress.durable(SOURCE) == 20, made)
    until(lambda: len(gate.called) == 30, made)
    assert (task.calls is not None and len(task.calls), max(gate.called)) == (10, 29), "ten are in flight, no more"
    gate.let_go.set()
    until(done(made, 100), made)
    made.stop()
    assert set(gate.called.values()) == {1}
    assert len(made.read("out")) == 100


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("clean", [True, False])
def test_who_takes_over_calls_again_only_for_what_has_not_been_processed(guarantee: str, clean: bool) -> None:
    gate = Gate(stuck=20)
    made = Engine(calls_of(gate, max_in_flight=50), TOPICS, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    made.write("in", [(b"k%d" % number, b"%d" % number, number) for number in range(60)])
    made.start()
    until(lambda: task.progress.durable(SOURCE) == 20 and len(gate.called) == 60, made)
    made.close(task, clean=clean)
    gate.let_go.set()
    task = made.open(WHOLE)
    until(done(made, 60), made)
    made.stop()
    assert [gate.called[number] for number in range(60)] == [1] * 20 + [2] * 40
    assert [struct.unpack(">q", value or b"")[0] for value in made.read("out").values] == [1] * 60, "each key once"


def test_records_that_need_no_call_do_not_pile_up_behind_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay in the queue, by which the dispatcher holds the partition."""
    monkeypatch.setattr("coopstreams.tasks.pending_calls.MOST_RECORDS", 30)
    gate = Gate(stuck=0)
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.filter(lambda _, value: value == 0).map_values_async(gate, value=serdes.json).to("out")
    made = Engine(builder.build(), TOPICS)
    task = made.open(WHOLE)
    made.write("in", [(b"k", b"%d" % number, number) for number in range(100)])
    made.start()
    until(lambda: gate.called[0] == 1 and task.queues.received(SOURCE) == 100, made)
    assert task.queues.waiting(SOURCE) == 70
    gate.let_go.set()
    until(done(made, 100), made)
    made.stop()
    assert len(made.read("out")) == 1


def test_an_empty_interval_opens_no_transaction() -> None:
    gate = Gate(stuck=0)
    made = Engine(calls_of(gate), TOPICS)
    made.open(WHOLE)
    made.write("in", [(b"k", b"0", 0)])
    made.start()
    until(lambda: gate.called[0] == 1, made)
    for _ in range(20):
        made.dispatcher.move(0.005)
    assert not made.committers[0].begun
    gate.let_go.set()
    until(done(made, 1), made)
    made.stop()


def test_a_call_that_fails_fails_its_record_with_its_place() -> None:
    async def fails(value: int) -> int:
        raise ValueError(f"{value} is a bad number")

    made = Engine(calls_of(fails), TOPICS)
    made.open(WHOLE)
    made.write("in", [(b"k", b"13", 0)])
    made.start()

    def failed() -> bool:
        if made.events.empty():
            return False
        event = made.events.get()
        assert isinstance(event, Failed)
        assert isinstance(event.error, ProcessingError)
        assert "offset 0" in str(event.error)
        assert "13 is a bad number" in str(event.error)
        return True

    until(failed, made)


def test_the_next_record_goes_on_when_the_handler_says_so_and_retries_are_counted() -> None:
    attempts: Counter[int] = Counter()

    async def often_fails(value: int) -> int:
        attempts[value] += 1
        if value == 3 or attempts[value] < 2:
            raise ValueError(value)
        return value

    made = Engine(
        calls_of(often_fails, retry=Retry(times=2, backoff=ms(1))),
        TOPICS,
        processing_exception_handler="continue",
    )
    task = made.open(WHOLE)
    made.write("in", [(b"k%d" % number, b"%d" % number, number) for number in range(5)])
    made.start()
    until(done(made, 5), made)
    made.stop()
    assert sum(task.tally.failed.values()) == 1
    assert task.tally.retries == 4 + 2, "one for each that came right, two for the one that did not"
    assert len(made.read("out")) == 4


def test_functions_above_that_change_their_mind_are_an_error_and_nothing_is_mixed_up() -> None:
    asked: Counter[int] = Counter()

    def sometimes(_: str, value: int) -> bool:
        asked[value] += 1
        return value != 2 or asked[value] > 1

    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.filter(sometimes).map_values_async(same, value=serdes.json).to("out")
    made = Engine(builder.build(), TOPICS, processing_exception_handler="continue")
    task = made.open(WHOLE)
    made.write("in", [(b"k", b"%d" % number, number) for number in range(5)])
    made.start()
    until(done(made, 5), made)
    made.stop()
    assert sum(task.tally.failed.values()) == 1
    assert [int(value or b"") for value in made.read("out").values] == [0, 1, 3, 4]


def test_a_record_may_need_several_calls_and_a_topic_none() -> None:
    async def same(value: Any) -> Any:
        return value

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.flat_map_values(lambda value: [value] * value, value=serdes.json).map_values_async(
        same, value=serdes.json, max_in_flight=2
    ).left_join(
        builder.table("other", key=serdes.text, value=serdes.json), lambda left, right: [left, right], value=serdes.json
    ).to("out")
    made = Engine(builder.build(), TOPICS)
    made.open(WHOLE)
    made.write("other", [(b"k", b"9", 0)])
    made.write("in", [(b"k", b"%d" % number, number) for number in range(5)])
    made.start()
    until(done(made, 5), made)
    made.stop()
    assert list(made.read("out").values) == [b"[%d,9]" % n for n in range(5) for _ in range(n)]
