"""Records that wait for calls: results as of a synchronous function, continued commits,
no loss.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from coopstreams.tasks.events import Aborted, Failed
from coopstreams.topology import serdes
from coopstreams.topology.calls import CallOrder, Retry
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.schemas import RegistryUnavailableError
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.suppression import until_window_closes
from coopstreams.topology.windows import SessionWindows, TimeWindows
from tests.durations import ms
from tests.tasks.called import (
    SOURCE,
    TOPICS,
    Gate,
    calls_of,
    done,
    finish,
    forwarding,
    numbered,
    played,
    processed,
    runs,
    taking,
    until,
)
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine

Called = Callable[[KStream[str, int]], KStream[str, int]]
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "other"]),
        st.sampled_from("abcdef"),
        st.integers(-1, 6),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=40,
)
"""Topic, key, value and timestamp of each."""
PAUSES = st.lists(st.sampled_from([0, 0, 1, 4]), min_size=1, max_size=20)
NOT_SHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]
"""Each run is slow, and its threads are not deterministic: examples are shortened by
hand.
"""


def counted(builder: StreamsBuilder, called: Called) -> KStream[str, int]:
    """A filter, a branch and a mapper above the call; windows below it. Return the
    results of the call.
    """
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    large = (
        read.filter(lambda _, value: value >= 0)
        .split()
        .branch(lambda _, value: value > 1, name="large")
    )
    results = called(
        large.default_branch(name="small")["large"].map_values(
            lambda value: value + 1, value=serdes.json
        )
    )
    results.group_by_key(value=serdes.json).windowed_by(
        TimeWindows(milliseconds=10, grace=ms(5))
    ).count(store="windows").to_stream().map_values_with_key(
        lambda key, count: [key.start_ms, count], value=serdes.json
    ).select_key(lambda key, _: key.key, key=serdes.text).to("out")
    return results


def program(called: Called) -> Topology:
    """Windows, sessions, joins and sinks below the call."""
    builder = StreamsBuilder("app")
    results = counted(builder, called)
    other = builder.stream("other", key=serdes.text, value=serdes.json)
    grouped = results.group_by_key(value=serdes.json)
    tumbling = TimeWindows(milliseconds=10, grace=ms(5))
    final = (
        grouped.windowed_by(tumbling)
        .count(store="final")
        .suppress(until_window_closes())
    )
    sessions = grouped.windowed_by(SessionWindows(milliseconds=4, grace=ms(3))).reduce(
        max, store="sessions"
    )
    # by key and operator: without an order between these
    for table, name in ((final, "closed"), (sessions, "session")):
        table.to_stream().map_values_with_key(
            lambda window, value: [window.start_ms, window.end_ms, value],
            value=serdes.json,
        ).select_key(partial(_named, name), key=serdes.text).to("out")
    near = JoinWindows(
        milliseconds=5, grace=ms(1000)
    )  # the match of late records depends on the batches
    results.join(
        other, lambda one, two: [one, two], windows=near, value=serdes.json
    ).to("out")
    return builder.build()


def _named(name: str, window: Windowed[str], _: object) -> str:
    return f"{name} {window.key}"


@pytest.mark.ci
@settings(max_examples=15, deadline=None, phases=NOT_SHRUNK)
@given(
    records=RECORDS,
    pieces=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(["key", "partition", "none"]),
    most=st.sampled_from([1, 3, 100]),
    pauses=PAUSES,
)
def test_what_is_below_is_what_a_function_that_does_not_wait_would_give(
    records: list[tuple[str, str, int, int]],
    pieces: int,
    order: CallOrder,
    most: int,
    pauses: list[int],
) -> None:
    later = taking(pauses)
    waiting = program(
        lambda stream: stream.map_values_async(
            later, value=serdes.json, order=order, max_in_flight=most
        )
    )
    at_once = program(
        lambda stream: stream.map_values(lambda value: value * 10, value=serdes.json)
    )
    assert played(waiting, records, pieces) == played(at_once, records, pieces)


def key_program(called: Called) -> Topology:
    """Operators that need only the order of each key: windows with late records, a
    table, a join with it, a sink.
    """
    builder = StreamsBuilder("app")
    results = counted(builder, called)
    results.left_join(
        builder.table("other", key=serdes.text, value=serdes.json),
        lambda one, two: [one, two],
        value=serdes.json,
    ).to("out")
    results.group_by_key(value=serdes.json).reduce(
        lambda a, b: a * 10 + b, store="order"
    ).to_stream().to("out")
    return builder.build()


@pytest.mark.ci
@settings(max_examples=25, deadline=None, phases=NOT_SHRUNK)
@given(
    records=RECORDS,
    pieces=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(["key", "none"]),
    most=st.sampled_from([1, 3, 100]),
    pauses=PAUSES,
)
@example(
    records=[("in", "a", 2, 0), ("other", "a", 1, 1)],
    pieces=1,
    order="key",
    most=100,
    pauses=[50],
)
@example(
    records=[("in", "a", 2, 0), ("in", "a", 3, 1)],
    pieces=1,
    order="none",
    most=100,
    pauses=[50, 0],
)
def test_records_that_pass_others_change_nothing_for_any_key(
    records: list[tuple[str, str, int, int]],
    pieces: int,
    order: CallOrder,
    most: int,
    pauses: list[int],
) -> None:
    later = taking(pauses)
    waiting = key_program(
        lambda stream: stream.map_values_async(
            later, value=serdes.json, order=order, max_in_flight=most
        )
    )
    assert compile_subtopology(waiting, waiting.subtopologies[0]).keys_suffice
    at_once = key_program(
        lambda stream: stream.map_values(lambda value: value * 10, value=serdes.json)
    )
    assert played(waiting, records, pieces) == played(at_once, records, pieces)


@pytest.mark.usefixtures("short_drain")
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("clean", [True, False])
def test_other_keys_pass_a_record_that_waits_and_are_not_called_again(
    guarantee: str, clean: bool
) -> None:
    gate = Gate(stuck=20)
    made = Engine(
        calls_of(gate, max_in_flight=5), TOPICS, processing_guarantee=guarantee
    )
    task = made.open(WHOLE)
    made.write("in", numbered(range(100), keys=10))
    made.start()
    others = tuple((start, start + 8) for start in range(21, 100, 10))
    until(lambda: runs(task) == (20, others), made)
    assert gate.called == Counter(
        {
            number: 1
            for number in range(100)
            if number < 20 or number % 10 or number == 20
        }
    )
    assert gate.most == 5
    assert task.calls is not None
    assert (len(task.calls), task.calls.blocked) == (8, 1), (
        "those of its key wait for it"
    )
    assert (task.calls.under_way, task.calls.not_begun) == (1, 7)
    made.close(task, clean=clean)
    gate.let_go.set()
    task = made.open(WHOLE)
    until(done(made, 100), made)
    assert runs(task) == (100, ())
    made.stop()
    assert {value for value, times in gate.called.items() if times > 1} == {20}
    counted = [
        struct.unpack(">q", value or b"")[0] for value in made.read("out").values
    ]
    assert sorted(counted) == sorted([*range(1, 11)] * 10), (
        "each record of each key once, in its order"
    )


@pytest.mark.ci
def test_where_nothing_may_be_committed_out_of_order_no_more_records_pass_and_what_is_done_stays_done() -> (
    None
):
    """The cluster's policy may change after records have passed others: these stay
    processed.
    """
    gate = Gate(stuck=20)
    made = Engine(calls_of(gate, max_in_flight=5), TOPICS, processing_guarantee=EXACTLY)
    task = made.open(WHOLE)
    made.write("in", numbered(range(50), keys=10))
    made.start()
    passed = tuple((start, start + 8) for start in range(21, 50, 10))
    until(lambda: runs(task) == (20, passed), made)
    made.close(task)
    made.by_key = False
    task = made.open(WHOLE)
    made.write("in", numbered(range(50, 100), keys=10))
    until(lambda: all(gate.called[number] for number in range(51, 53)), made)
    assert runs(task) == (20, passed)
    gate.let_go.set()
    finish(made, 100)
    assert {value for value, times in gate.called.items() if times > 1} == {20}
    counted = [
        struct.unpack(">q", value or b"")[0] for value in made.read("out").values
    ]
    assert sorted(counted) == sorted([*range(1, 11)] * 10), (
        "each record of each key once"
    )
    results = list(zip(made.read("out").keys, counted, strict=True))
    assert results.index((b"k0", 3)) < counted.index(6), (
        "20, the third of its key, before 50 and those behind it"
    )


def test_records_that_need_no_call_do_not_pile_up_behind_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stay in the queue, whose length makes the dispatcher hold the partition."""
    monkeypatch.setattr("coopstreams.tasks.pending_calls.MOST_RECORDS", 30)
    gate = Gate(stuck=0)
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.filter(lambda _, value: value == 0).map_values_async(
        gate, value=serdes.json
    ).to("out")
    made = Engine(builder.build(), TOPICS)
    task = made.open(WHOLE)
    made.write("in", numbered(range(100)))
    made.start()
    until(lambda: gate.called[0] == 1 and task.queues.received(SOURCE) == 100, made)
    assert task.queues.waiting(SOURCE) == 70
    gate.let_go.set()
    finish(made, 100)
    assert len(made.read("out")) == 1


@pytest.mark.parametrize("each", [10, 100], ids=lambda each: f"1-of-{each}")
def test_records_that_pass_one_that_is_stuck_are_let_go(
    each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of records pass: none is held in memory, and intake continues. Every
    n-th record has the stuck key.
    """
    monkeypatch.setattr("coopstreams.tasks.pending_calls.MOST_RECORDS", 40)
    monkeypatch.setattr("coopstreams.tasks.pending_calls.SPARE_BYTES", 10_000)
    gate = Gate(stuck=0)
    made = Engine(calls_of(gate), TOPICS)
    task = made.open(WHOLE)
    count = 30 * each
    made.start()
    for start in range(0, count, 20):  # the reader brings a few at a time
        end = min(count, start + 20)
        made.write("in", numbered(range(start, end), keys=each))
        until(lambda end=end: task.processed == end - -(-end // each), made)  # type: ignore[misc]
        assert task.calls is not None
        assert sum(taken.held for taken in task.calls._steps) < 40_000
        assert len(task.calls._steps) <= 80
    gate.let_go.set()
    finish(made, count)
    assert len(made.read("out")) == count


@pytest.mark.parametrize("pieces", [1, 2])
def test_batches_have_values_of_many_keys_and_results_any_number(pieces: int) -> None:
    sizes: list[int] = []

    def doubled(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [value * 2 for value in values]

    async def both(value: int) -> list[int]:
        return [value, value]

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.map_batches(doubled, value=serdes.json, max_records=40).to("out")
    read.flat_map_values_async(both, value=serdes.json).group_by_key().reduce(
        lambda a, b: a + b, store="sums"
    ).to_stream().to("out")
    made = Engine(builder.build(), TOPICS)
    for each in KeyRange.split(pieces):
        made.open(each)
    made.write("in", numbered(range(100), keys=50))
    made.start()
    finish(made, 100)
    out = made.read("out")
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for key, value in zip(out.keys, out.values, strict=True):
        found[key].append(int(value or b""))
    for number in range(50):
        assert sorted(found[b"k%d" % number]) == sorted(
            [
                2 * number,
                2 * number + 100,
                number,
                2 * number,
                3 * number + 50,
                4 * number + 100,
            ]
        )
    assert 1 < max(sizes) <= 40


def test_a_generator_runs_to_its_end_within_its_call() -> None:
    """Its code ran on the stream thread, without a time-out, and was not tried again."""
    attempts: list[str] = []

    def pages(value: int) -> Iterator[int]:
        attempts.append(threading.current_thread().name)
        yield value
        if len(attempts) == 1:
            raise ConnectionError
        yield value + 1

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.flat_map_values_async(pages, value=serdes.json, retry=Retry(backoff=ms(1))).to(
        "out"
    )
    made = Engine(builder.build(), TOPICS)
    processed(made, numbered([7]))
    assert made.read("out").values == [b"7", b"8"]
    assert attempts == ["call", "call"]


def test_a_record_may_become_any_number_of_others_with_keys_of_their_own() -> None:
    async def spread(key: str, value: int) -> list[tuple[str, int]]:
        if value == 2:
            return None  # type: ignore[return-value]
        return [(f"{key}{number}", value) for number in range(value)]

    async def spread_values(key: str, value: int) -> list[str]:
        return [key] * value

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.flat_map_async(spread, key=serdes.text, value=serdes.json).to("out")
    read.flat_map_values_with_key_async(spread_values, value=serdes.json).to("other")
    made = Engine(builder.build(), TOPICS, processing_exception_handler="continue")
    task = processed(made, numbered(range(4)))
    out = made.read("out")
    assert list(zip(out.keys, out.values, strict=True)) == [
        (b"k0", b"1"),
        (b"k0", b"3"),
        (b"k1", b"3"),
        (b"k2", b"3"),
    ]
    assert sum(task.tally.failed.values()) == 1, "what it returned are no pairs"
    assert len(made.read("other")) == 6, "what fails at one operator goes on at others"


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
    finish(made, 1)


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


def test_the_next_record_goes_on_when_the_handler_says_so_and_retries_are_counted() -> (
    None
):
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
    task = processed(made, numbered(range(5), keys=5))
    assert sum(task.tally.failed.values()) == 1
    assert task.retries == 4 + 2, (
        "one for each that came right, two for the one that did not"
    )
    assert len(made.read("out")) == 4


def test_functions_above_that_change_their_mind_are_an_error_and_nothing_is_mixed_up() -> (
    None
):
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
    task = processed(made, numbered(range(5)))
    assert sum(task.tally.failed.values()) == 1
    assert [int(value or b"") for value in made.read("out").values] == [0, 1, 3, 4]


def test_a_record_is_tried_again_if_the_registry_was_away_when_its_calls_were_looked_for() -> (
    None
):
    away = [1]

    def decode(data: bytes) -> int:
        if away:
            away.pop()
            raise RegistryUnavailableError("no answer")
        return int(data)

    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder("app")
    read = builder.stream(
        "in",
        key=serdes.text,
        value=Serde("registered", lambda value: b"%d" % value, decode),
    )
    read.map_values_async(same, value=serdes.json).to("out")
    made = Engine(builder.build(), TOPICS, processing_exception_handler="continue")
    made.open(WHOLE)
    made.write("in", numbered(range(2)))
    made.start()
    until(lambda: not made.events.empty(), made)
    event = made.events.get()
    assert isinstance(event, Aborted)
    assert event.held is not None
    assert "no answer" in event.held.why
    made.take(event)
    task = made.open(WHOLE)
    finish(made, 2)
    assert sum(task.tally.failed.values()) == 0
    assert list(made.read("out").values) == [b"0", b"1"]


def test_a_record_may_need_several_calls_and_a_topic_none() -> None:
    async def same(value: Any) -> Any:
        return value

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.flat_map_values(
        lambda value: [value] * value, value=serdes.json
    ).map_values_async(same, value=serdes.json, max_in_flight=2).left_join(
        builder.table("other", key=serdes.text, value=serdes.json),
        lambda left, right: [left, right],
        value=serdes.json,
    ).to("out")
    made = Engine(builder.build(), TOPICS)
    made.open(WHOLE)
    made.write("other", [(b"k", b"9", 0)])
    made.write("in", numbered(range(5)))
    made.start()
    finish(made, 5)
    assert list(made.read("out").values) == [
        b"[%d,9]" % n for n in range(5) for _ in range(n)
    ]


def test_records_whose_calls_fail_go_to_the_topic_of_their_operator() -> None:
    """Other failures go to the handler: here, they would end the application."""

    async def odd_only(value: int) -> int:
        if value % 2 == 0:
            raise ConnectionError(f"no answer for {value}")
        return value

    topology = forwarding(
        odd_only, dead_letters="refused", retry=Retry(times=1, backoff=ms(1))
    )
    made = Engine(topology, TOPICS | {"refused": 1})
    task = processed(made, numbered(range(4)))
    assert list(made.read("out").values) == [b"1", b"3"]
    letters = made.read("refused")
    assert list(letters.values) == [b"0", b"2"]
    assert letters.headers is not None
    assert (
        dict(letters.headers[0] or [])["__coopstreams.errors.message"]
        == b"no answer for 0"
    )
    assert task.tally.dead_letters == 2


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_a_table_on_its_source_waits_behind_calls_with_transaction_markers_between_its_records(
    guarantee: str,
) -> None:
    """Its commits say one offset, which is what its state is; done runs said that more
    was done.
    """
    gate = Gate(3)
    builder = StreamsBuilder("app")
    table = builder.table("other", key=serdes.text, value=serdes.json, store="rows")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        gate, value=serdes.json
    ).join(table, lambda one, two: [one, two], value=serdes.json).to("out")
    made = Engine(
        builder.build().optimized("all"), TOPICS, processing_guarantee=guarantee
    )
    task = made.open(WHOLE)
    writer = made.log.writer("another")
    for number in range(8):
        writer.begin()
        for topic in ("other", "in"):
            writer.append(topic, [b"k"], [b"%d" % number], [number], partitions=0)
        writer.commit(10)
    made.start()
    until(lambda: gate.called[3] == 1 and task.progress.durable(SOURCE) > 4, made)
    for source in task.sources:
        (segment,) = task.progress.committed_segments(source)
        assert segment.runs == ()
    gate.let_go.set()
    finish(made, 15)
    values = made.read("out").values
    assert values == [b"[%d,%d]" % (number, number) for number in range(8)]
