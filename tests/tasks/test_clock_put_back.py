"""A clock on the wall that is put back, as by a correction: what follows it does not wait until it shows again what it showed."""

from __future__ import annotations

import queue

import pytest

from coopstreams import Processor, ProcessorContext, Record, StreamsBuilder, serdes
from coopstreams.tasks import thread
from coopstreams.tasks.task import wall_clock_ms
from coopstreams.topology.keys import WHOLE
from tests.tasks.engine import PATIENCE_S, Engine

HOUR_MS = 3_600_000


def test_punctuations_go_on_when_the_clock_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Ticking(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            context.schedule(20, "wall_clock", ticks.put)

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).process(Ticking)
    made = Engine(builder.build(), {"in": 1})
    made.open(WHOLE)
    made.start()
    first = ticks.get(timeout=PATIENCE_S)
    monkeypatch.setattr(thread, "wall_clock_ms", lambda: wall_clock_ms() - HOUR_MS)
    while ticks.get(timeout=PATIENCE_S) >= first:
        pass  # it was on its way when the clock was put back
    made.stop()
