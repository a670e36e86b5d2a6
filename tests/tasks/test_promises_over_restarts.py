"""Promises of a silent partition when its tasks are opened again: each successor keeps
them, however the key space is cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from tests.durations import ms
from tests.tasks.called import until
from tests.tasks.engine import EXACTLY, Engine

SOURCE = TopicPartition("in", 0)
HALVES = KeyRange.split(2)
MINE, OTHER = (
    next(key for key in (b"a", b"b", b"c", b"d", b"e") if key_hash(key) in half)
    for half in HALVES
)
TIMED = "app-by-value-repartition"


def elsewhere() -> Topology:
    """Count by other keys, in windows behind a repartition topic."""
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    moved = stream.select_key(lambda _, value: value, key=serdes.raw)
    grouped = moved.repartition(
        name="by-value", key=serdes.raw, value=serdes.raw
    ).group_by_key()
    windows = TimeWindows(milliseconds=10, grace=ms(0))
    grouped.windowed_by(windows).count(store="counts").to_stream().to("out")
    return builder.build()


def opened(engine: Engine, key_range: KeyRange) -> Task:
    """Open a task, let it process all that there is, and return it."""
    task = engine.open(key_range)
    engine.settle()
    return task


def promise(engine: Engine, task: Task, time: int) -> None:
    """Have a task promise a time."""
    _, thread = engine.tasks[task.id]
    ends = {SOURCE: engine.log.end_offset(SOURCE)}
    thread.promise(task, ends, {TIMED: time})
    until(lambda: task.program.marks() == {TIMED: time}, engine)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(elsewhere(), {"in": 1, TIMED: 1}, processing_guarantee=EXACTLY)
    engine.start()
    engine.write("in", [(MINE, b"x", 50), (OTHER, b"x", 60)])
    yield engine
    engine.stop()


def test_a_promise_outlives_several_owners(engine: Engine) -> None:
    task = opened(engine, WHOLE)
    promise(engine, task, 200)
    engine.close(task)
    for _ in range(3):
        task = opened(engine, WHOLE)
        assert task.program.marks() == {TIMED: 200}
        engine.close(task)


def test_a_promise_outlives_records_that_are_behind_it(engine: Engine) -> None:
    task = opened(engine, WHOLE)
    promise(engine, task, 200)
    engine.close(task)
    for time in (150, 160):
        engine.write("in", [(MINE, b"x", time)])
        task = opened(engine, WHOLE)
        assert task.program.marks() == {TIMED: 200}
        engine.close(task)


@pytest.mark.parametrize("times", [(100, 200), (200, 100)])
def test_the_promise_of_one_half_holds_for_the_whole(
    engine: Engine, times: tuple[int, int]
) -> None:
    """Both stand at one position, and no record tells what the second has promised."""
    first, second = [opened(engine, half) for half in HALVES]
    promise(engine, first, times[0])
    promise(engine, second, times[1])
    engine.close(first)
    engine.close(second)
    for time in (150, 160):
        engine.write("in", [(MINE, b"x", time)])
        task = opened(engine, WHOLE)
        assert task.program.marks() == {TIMED: 200}
        engine.close(task)


def test_a_promise_at_the_end_is_kept_by_who_comes_there(engine: Engine) -> None:
    """One half stands further than the other, where no more records are."""
    second = opened(engine, HALVES[1])
    promise(engine, second, 200)
    engine.close(second)
    for _ in range(2):
        task = opened(engine, WHOLE)
        assert task.program.marks() == {TIMED: 200}
        engine.close(task)


def test_a_task_whose_records_wait_promises_nothing(engine: Engine) -> None:
    task = opened(engine, WHOLE)
    _, thread = engine.tasks[task.id]
    thread.promise(task, {SOURCE: engine.log.end_offset(SOURCE) + 1}, {TIMED: 200})
    promise(engine, task, 100)
    engine.close(task)
