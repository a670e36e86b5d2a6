"""Wall-clock punctuations of the tasks of one stream thread, in virtual time."""

from __future__ import annotations

from random import Random

from coopstreams import Processor, ProcessorContext, Record, StreamsBuilder, serdes
from coopstreams.topology.keys import KeyRange
from tests.durations import ms
from tests.simulation.fibers import EPOCH_MS, Machine, Scheduler
from tests.tasks.engine import Engine

HOUR_MS = 3_600_000


def test_a_thread_wakes_for_the_first_punctuation_of_any_of_its_tasks() -> None:
    every_ms, ticks = iter((20, HOUR_MS)), list[int]()

    class Ticking(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            context.schedule(ms(next(every_ms)), "wall_clock", ticks.append)

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).process(Ticking, by_key=False)
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    made = Engine(builder.build(), {"in": 1}, host=machine, interval_s=10.0)
    made.start()
    for half in KeyRange.split(2):
        made.open(half)
    scheduler.run(0.1)
    scheduler.close([machine])
    assert [at - EPOCH_MS for at in ticks] == [20, 40, 60, 80, 100]
