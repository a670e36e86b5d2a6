"""One reader for all tasks of an instance: each record reaches its task once, whichever
tasks open and close.
"""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.common.host import SYSTEM
from coopstreams.instance import dispatch
from coopstreams.instance.dispatch import FETCH_RECORDS
from coopstreams.log.log import Position
from coopstreams.tasks.events import Closed
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.windows import TimeWindows
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine, counting

LEFT, RIGHT = KeyRange.split(2)
SOURCE = TopicPartition("in", 0)
KEYS = [b"%d" % number for number in range(40)]


def joining() -> Topology:
    builder = StreamsBuilder("app")
    names = builder.table("names", key=serdes.text, value=serdes.text, store="names")
    builder.stream("in", key=serdes.text, value=serdes.text).join(
        names, lambda event, name: f"{event} of {name}", value=serdes.text
    ).to("out")
    return builder.build()


@dataclass(frozen=True)
class Act:
    """An event: records are written and moved, or the task of a range opens or closes."""

    what: str
    number: int


acts = st.lists(
    st.builds(Act, st.just("write"), st.integers(1, 30))
    | st.builds(Act, st.just("move"), st.integers(1, 3))
    | st.builds(Act, st.sampled_from(["toggle", "toggle", "lose"]), st.integers(0, 3)),
    max_size=20,
)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@given(acts=acts, seed=st.integers(0, 1 << 16))
@settings(max_examples=25, deadline=None)
def test_every_record_counts_once_whatever_opens_and_closes(
    guarantee: str, acts: list[Act], seed: int
) -> None:
    made = Engine(
        counting(),
        {"in": 1, "out": 1},
        threads=2,
        interval_s=0.001,
        processing_guarantee=guarantee,
    )
    ranges, rng, written = KeyRange.split(4), random.Random(seed), list[bytes]()

    def toggle(number: int, *, clean: bool) -> None:
        mine = next(
            (
                task
                for task, _ in made.tasks.values()
                if task.id.key_range == ranges[number]
            ),
            None,
        )
        if mine is not None:
            made.close(mine, clean=clean)
        elif clean:
            made.open(ranges[number], thread=number % 2)

    made.start()
    try:
        for act in acts:
            match act.what:
                case "write":
                    keys = rng.choices(KEYS, k=act.number)
                    made.write("in", [(key, b"", 5) for key in keys])
                    written += keys
                case "move":
                    for _ in range(act.number):
                        made.dispatcher.move(0)
                case "toggle":
                    toggle(act.number, clean=True)
                case _ if (
                    guarantee == EXACTLY
                ):  # closed without a commit: at least once would repeat it
                    toggle(act.number, clean=False)
        for number in range(4):
            if not any(
                task.id.key_range == ranges[number] for task, _ in made.tasks.values()
            ):
                made.open(ranges[number], thread=number % 2)
        made.settle()
    finally:
        made.stop()
    assert made.counted() == {
        key: list(range(1, written.count(key) + 1)) for key in set(written)
    }


def merging() -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    left.merge(right).to("out")
    return builder.build()


def test_tasks_do_not_wait_for_records_that_are_held_because_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of the left topic belongs to one task, all of the right one to the other:
    each fills its own queue. Behind a record far ahead of time, what comes of the other
    topic moves no time.
    """
    monkeypatch.setattr(dispatch, "FETCH_RECORDS", 5)
    monkeypatch.setattr(dispatch, "MOST_WAITING", 4)
    made = Engine(
        merging(), {"left": 1, "right": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    topics = {"left": LEFT, "right": RIGHT}
    keys = {
        topic: next(key for key in KEYS if key_hash(key) in key_range)
        for topic, key_range in topics.items()
    }
    for topic, key in keys.items():
        made.write(topic, [(key, b"", 1000)])
    made.start()
    tasks = [made.open(key_range) for key_range in topics.values()]
    made.settle()
    for topic, key in keys.items():
        made.write(topic, [(key, b"", at) for at in range(1, 40)])
    made.dispatcher.move(PATIENCE_S)
    while any(thread.backlog for thread in made.threads):
        time.sleep(0.001)  # now both tasks have looked, and wait
    made.settle()
    made.stop()
    assert [task.processed for task in tasks] == [40, 40]


def test_what_nobody_here_wants_any_more_is_not_read() -> None:
    """Its next owner may have processed and deleted the records: in a repartition
    topic, reading them would be out of range.
    """
    made = Engine(counting(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    made.write("in", [(key, b"", 5) for key in KEYS])
    made.start()
    first = made.open(LEFT)
    made.settle()
    second = made.open(RIGHT)
    assert made.dispatcher.position(SOURCE).offset == 0  # type: ignore[union-attr]
    made.dispatcher.close(second)
    assert made.dispatcher.position(SOURCE) == Position(len(KEYS), 5)
    made.write("in", [(key, b"", 6) for key in KEYS])
    made.threads[0].close((second,), clean=True)
    assert made.events.get(timeout=PATIENCE_S) == Closed(second)
    assert made.dispatcher.move(PATIENCE_S) <= len(KEYS), "only what is new"
    made.settle()
    made.stop()
    mine = [key for key in KEYS if key_hash(key) in LEFT]
    assert first.processed == 2 * len(mine)


def test_a_task_that_opens_below_the_reader_makes_it_go_back_and_its_sibling_repeats_nothing() -> (
    None
):
    made = Engine(counting(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    made.write("in", [(key, b"", 5) for key in KEYS])
    made.start()
    first = made.open(LEFT)
    made.settle()
    assert made.dispatcher.position(SOURCE) is not None
    assert made.dispatcher.position(SOURCE).offset == len(KEYS)  # type: ignore[union-attr]
    made.open(RIGHT)
    assert made.dispatcher.position(SOURCE).offset == 0  # type: ignore[union-attr]
    made.settle()
    made.stop()
    assert first.processed < len(KEYS)
    assert made.counted() == {key: [1] for key in KEYS}


def test_a_task_that_opens_where_the_reader_stands_at_the_end_does_not_wait_for_its_table() -> (
    None
):
    """The reader reports the end of a partition once; a task that is opened later needs
    the report, too.
    """
    made = Engine(
        joining(), {"in": 1, "names": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    key = next(key for key in KEYS if key_hash(key) in RIGHT)
    made.write("names", [(key, b"ann", 1)])
    made.start()
    made.open(LEFT)
    first = made.open(RIGHT)
    made.settle()
    made.close(first)
    late = made.open(RIGHT)  # at the end of both topics, where the reader is
    made.write("in", [(key, b"order", 9)])
    made.settle()
    made.stop()
    assert late.processed == 1
    assert list(made.read("out").values) == [b"order of ann"]


def test_a_partition_is_held_while_a_thread_has_too_much_and_goes_on_afterwards() -> (
    None
):
    most = 1 << 20
    made = Engine(
        counting(),
        {"in": 1, "out": 1},
        processing_guarantee=EXACTLY,
        max_bytes_key_range_cache=most,
    )
    made.write(
        "in",
        [(KEYS[number % len(KEYS)], b"", 5) for number in range(3 * FETCH_RECORDS)],
    )
    made.open(WHOLE)
    taken = [made.dispatcher.move(0) for _ in range(5)]
    assert taken == [FETCH_RECORDS, 0, 0, 0, 0], (
        "the thread does not run yet: one fetch is more than may wait"
    )
    made.start()
    made.settle()
    made.stop()
    assert {key: counts[-1] for key, counts in made.counted().items()} == {
        key: 3 * FETCH_RECORDS // len(KEYS) for key in KEYS
    }


def test_a_task_that_waits_for_its_table_holds_its_stream_and_not_the_table() -> None:
    made = Engine(
        joining(),
        {"in": 1, "names": 1, "out": 1},
        processing_guarantee=EXACTLY,
        max_bytes_key_range_cache=1 << 20,
    )
    events, names = 2 * FETCH_RECORDS, 2 * FETCH_RECORDS
    made.write(
        "names",
        [(KEYS[number % len(KEYS)], b"%d" % number, number) for number in range(names)],
    )
    made.write("in", [(KEYS[0], b"order", names) for _ in range(events)])
    made.start()
    made.open(WHOLE)
    made.settle()
    made.stop()
    last = max(number for number in range(names) if number % len(KEYS) == 0)
    assert set(made.read("out").values) == {b"order of %d" % last}, (
        "all of the table came first"
    )
    assert len(made.read("out")) == events


def test_nothing_is_read_for_a_partition_without_tasks() -> None:
    made = Engine(counting(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    made.start()
    assert not made.dispatcher
    task = made.open(WHOLE)
    assert made.dispatcher
    made.close(task)
    assert not made.dispatcher
    made.write("in", [(b"a", b"", 0)])
    assert made.dispatcher.move(0) == 0
    assert made.dispatcher.position(SOURCE) is None
    made.stop()


def test_the_tasks_that_may_promise_are_those_that_are_open() -> None:
    """They are kept from one change of the tasks to the next: each fetch needs them."""
    builder = StreamsBuilder("app")
    moved = builder.stream("in", key=serdes.raw, value=serdes.raw).group_by(
        lambda _, value: value, key=serdes.raw
    )
    moved.windowed_by(TimeWindows(milliseconds=10)).count(store="counts")
    topology = builder.build()
    (timed,) = topology.subtopologies[1].topics
    made = Engine(topology, {"in": 2, timed: 1}, processing_guarantee=EXACTLY)
    made.start()
    for key_range in LEFT, RIGHT:
        for partition in range(2):
            made.open(key_range, partition)
            assert {route.task for route in made.dispatcher._promising} == {
                task for task, _ in made.tasks.values()
            }
    while made.tasks:
        made.close(next(iter(made.tasks.values()))[0])
        assert {route.task for route in made.dispatcher._promising} == {
            task for task, _ in made.tasks.values()
        }
    made.stop()


def test_a_task_that_has_waited_long_enough_for_its_table_goes_on_by_itself() -> None:
    made = Engine(joining(), {"in": 1, "names": 1, "out": 1}, max_task_idle_ms=50)
    made.start()
    task = made.open(WHOLE)
    made.write("in", [(b"1", b"login", 10)])
    made.settle()
    deadline = time.monotonic() + PATIENCE_S
    while not task.processed and time.monotonic() < deadline:
        time.sleep(0.01)
    made.stop()
    assert task.progress.durable(SOURCE) == 1


def test_a_row_that_is_written_later_still_finds_the_record_that_waits_for_it() -> None:
    made = Engine(
        joining(), {"in": 1, "names": 1, "out": 1}, max_task_idle_ms=3_600_000
    )
    made.start()
    made.open(WHOLE)
    made.write("in", [(b"1", b"login", 10)])
    made.settle()
    made.write("names", [(b"1", b"ann", 5), (b"2", b"bob", 11)])
    made.settle()
    made.stop()
    assert made.read("out").values == [b"login of ann"]


def test_a_batch_is_as_late_as_its_first_record_and_never_comes_before_it_was_made() -> (
    None
):
    drops: dict[str, Any] = {"processing.exception.handler": "continue"}
    made = Engine(counting(), {"in": 1, "out": 1}, **drops)
    now_ms = SYSTEM.wall_ms()
    made.start()
    made.open(WHOLE)

    def measured(timestamps: list[int]) -> tuple[float, float]:
        """Write a batch; return the number of measured ones so far, and their total
        seconds.
        """
        made.write("in", [(b"k", b"", timestamp) for timestamp in timestamps])
        made.settle()
        read = made.metrics.registry.get_sample_value
        name, label = "coopstreams_record_e2e_latency_seconds", {"subtopology": "0"}
        return read(f"{name}_count", label) or 0.0, read(f"{name}_sum", label) or 0.0

    count, seconds = measured([now_ms - 7_000_000, now_ms])
    assert count == 1
    assert seconds >= 7000
    assert measured([now_ms + 3_600_000]) == (2, seconds), "a clock that is ahead"
    assert measured([-1]) == (2, seconds), "a record without a timestamp"
    made.stop()


def test_it_is_behind_while_the_log_has_more_than_was_fetched() -> None:
    """Even while all threads are idle: queries that hold the interpreter delay the
    reader, which is not at the end.
    """
    made = Engine(counting(), {"in": 1, "out": 1})
    assert not made.dispatcher.behind, "nothing is read"
    made.open(WHOLE)
    assert made.dispatcher.behind, "nobody knows yet"
    made.write("in", [(b"k", b"v", 0)] * (FETCH_RECORDS + 1))
    made.dispatcher.move(0)
    assert made.dispatcher.behind
    made.dispatcher.move(0)
    assert not made.dispatcher.behind


def test_a_record_on_which_functions_above_a_window_take_long_is_named() -> None:
    """The control thread runs them, for records of all ranges, and every task of the
    process waits for it.
    """
    begun, go_on = threading.Event(), threading.Event()

    def hangs(_: str, value: str) -> bool:
        begun.set()
        return go_on.wait(PATIENCE_S)

    builder = StreamsBuilder("app")
    passed = builder.stream("in", key=serdes.text, value=serdes.text).filter(hangs)
    passed.group_by_key().windowed_by(TimeWindows(minutes=1)).count(store="counts")
    engine = Engine(builder.build(), {"in": 1})
    engine.start()
    engine.open(LEFT)
    engine.write("in", [(next(key for key in KEYS if key_hash(key) in RIGHT), b"", 0)])
    moving = threading.Thread(target=engine.settle)
    assert engine.dispatcher.asking_for == ""
    moving.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert re.search(
            r"in-0 offset 0 \(.*test_dispatch.py, line \d+, in hangs\)",
            engine.dispatcher.asking_for,
        )
    finally:
        go_on.set()
        moving.join()
    assert engine.dispatcher.asking_for == ""
    engine.stop()
