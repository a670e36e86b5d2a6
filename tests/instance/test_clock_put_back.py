"""A wall clock that is set back: punctuations do not wait until it has caught up."""

from __future__ import annotations

import queue

from coopstreams import Processor, ProcessorContext, Record, StreamsBuilder, serdes
from coopstreams.common.host import System
from coopstreams.topology.keys import WHOLE
from tests.durations import ms
from tests.tasks.engine import PATIENCE_S, Engine

HOUR_MS = 3_600_000


class Adjusted(System):
    """A machine whose clock on the wall can be put back."""

    back_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() - self.back_ms


def test_punctuations_go_on_when_the_clock_is_put_back() -> None:
    ticks: queue.SimpleQueue[int] = queue.SimpleQueue()
    host = Adjusted()

    class Ticking(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            context.schedule(ms(20), "wall_clock", ticks.put)

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).process(Ticking, by_key=False)
    made = Engine(builder.build(), {"in": 1}, host=host)
    made.open(WHOLE)
    made.start()
    first = ticks.get(timeout=PATIENCE_S)
    host.back_ms = HOUR_MS
    while ticks.get(timeout=PATIENCE_S) >= first:
        pass  # it was on its way when the clock was put back
    made.stop()
