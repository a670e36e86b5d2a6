"""A paused stream thread processes and punctuates nothing; it takes in records,
commits, and closes tasks.
"""

from __future__ import annotations

import queue
from random import Random
from typing import Any

import pytest

from coopstreams.common.host import System
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from tests.broker.waiting import eventually
from tests.simulation.fibers import EPOCH_MS, Machine, Scheduler
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine, counting, ticking

(WHOLE,) = KeyRange.split(1)
SOURCE = TopicPartition("in", 0)


def made(guarantee: str = EXACTLY) -> Engine:
    return Engine(counting(), {"in": 1, "out": 1}, processing_guarantee=guarantee)


def written(engine: Engine, count: int) -> None:
    engine.write("in", [(b"k", b"", number) for number in range(count)])


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_nothing_is_processed_until_it_goes_on_and_then_everything_once(
    guarantee: str,
) -> None:
    engine = made(guarantee)
    engine.start()
    task = engine.open(WHOLE)
    (thread,) = engine.threads
    written(engine, 10)
    engine.settle()
    eventually(lambda: task.progress.durable(SOURCE) == 10, 30, lambda: "not committed")
    thread.pause(True)
    written(engine, 20)
    engine.settle()
    assert (task.processed, task.progress.durable(SOURCE)) == (10, 10)
    thread.pause(False)
    eventually(
        lambda: task.progress.durable(SOURCE) == 30, 30, lambda: str(task.processed)
    )
    engine.close(task)
    engine.stop()
    assert len(engine.read("out")) == 30


class _HandedOver(queue.Queue[Any]):
    """An inbox whose messages are handled, while `now` is set, before those who put
    them go on.
    """

    now = False

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if self.now:
            self.join()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.unfinished_tasks > self.qsize():
            self.task_done()
        return super().get(block, timeout)


class _Eager(System):
    def inbox(self) -> _HandedOver:
        return _HandedOver()


def test_records_of_the_pause_are_processed_however_soon_the_thread_goes_on() -> None:
    """It was told to go on before it was: a thread that was quick waited for the next
    record.
    """
    engine = Engine(
        counting(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY, host=_Eager()
    )
    engine.start()
    task = engine.open(WHOLE)
    (thread,) = engine.threads
    thread.pause(True)
    written(engine, 10)
    engine.settle()
    _HandedOver.now = True
    thread.pause(False)
    _HandedOver.now = False
    eventually(lambda: task.processed == 10, 30, lambda: str(task.processed))
    engine.close(task)
    engine.stop()


def test_a_task_that_is_closed_while_it_is_paused_leaves_its_records_to_the_next_owner() -> (
    None
):
    engine = made()
    engine.start()
    (thread,) = engine.threads
    thread.pause(True)
    task = engine.open(WHOLE)
    written(engine, 10)
    engine.settle()
    engine.close(task)
    assert len(engine.read("out")) == 0
    thread.pause(False)
    again = engine.open(WHOLE)
    engine.settle()
    engine.close(again)
    engine.stop()
    assert (task.processed, len(engine.read("out"))) == (0, 10)


def test_a_thread_that_ends_while_it_is_paused_commits_and_processes_nothing() -> None:
    engine = made()
    engine.start()
    (thread,) = engine.threads
    task = engine.open(WHOLE)
    thread.pause(True)
    written(engine, 10)
    engine.settle()
    engine.close(task)
    engine.stop()
    assert len(engine.read("out")) == 0


def test_the_wall_clock_punctuates_nothing_while_it_is_paused() -> None:
    ticks = list[int]()
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    engine = Engine(ticking(ticks.append, 20), {"in": 1}, host=machine, interval_s=10.0)
    (thread,) = engine.threads
    engine.start()
    engine.open(WHOLE)
    scheduler.run(0.05)
    thread.pause(True)
    scheduler.run(0.09)
    thread.pause(False)
    scheduler.run(0.13)
    scheduler.close([machine])
    assert [round(at - EPOCH_MS, -1) for at in ticks] == [20, 40, 90, 100, 120]
