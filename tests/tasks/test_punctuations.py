"""Wall-clock punctuations of the tasks of one stream thread: in virtual time, and when
the wall clock is set back.
"""

from __future__ import annotations

import queue
from random import Random

from coopstreams.common.host import System
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.simulation.fibers import EPOCH_MS, Machine, Scheduler
from tests.tasks.engine import PATIENCE_S, Engine, ticking

HOUR_MS = 3_600_000


def test_a_thread_wakes_for_the_first_punctuation_of_any_of_its_tasks() -> None:
    ticks = list[int]()
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    made = Engine(
        ticking(ticks.append, 20, HOUR_MS), {"in": 1}, host=machine, interval_s=10.0
    )
    made.start()
    for half in KeyRange.split(2):
        made.open(half)
    scheduler.run(0.1)
    scheduler.close([machine])
    assert [at - EPOCH_MS for at in ticks] == [20, 40, 60, 80, 100]


def test_slow_punctuators_of_several_tasks_are_committed_one_by_one() -> None:
    """Together they would outlast the transaction, and again when their tasks are
    opened again.
    """
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    fences: list[int] = []

    def tick(_: int) -> None:
        fences.append(len(made.at_fence))
        machine.sleep(10)

    made = Engine(ticking(tick, *[60_000] * 3), {"in": 3}, host=machine)
    made.start()
    for partition in range(3):
        made.open(WHOLE, partition)
    scheduler.run(100)
    scheduler.close([machine])
    first = fences[0]
    assert fences == [first, first + 1, first + 2]


class Adjusted(System):
    """A machine whose wall clock can be set back."""

    back_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() - self.back_ms


def test_punctuations_go_on_when_the_clock_is_put_back() -> None:
    ticks: queue.SimpleQueue[int] = queue.SimpleQueue()
    host = Adjusted()
    made = Engine(ticking(ticks.put, 20), {"in": 1}, host=host)
    made.open(WHOLE)
    made.start()
    first = ticks.get(timeout=PATIENCE_S)
    host.back_ms = HOUR_MS
    while ticks.get(timeout=PATIENCE_S) >= first:
        pass  # it was on its way when the clock was put back
    made.stop()
