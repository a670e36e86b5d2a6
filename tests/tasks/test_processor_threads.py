"""A processor lives on the stream thread of its task, as in Kafka Streams: what it
opens may belong to that thread.
"""

from __future__ import annotations

import sqlite3
import threading
from random import Random

from coopstreams import Processor, ProcessorContext, Record
from coopstreams.tasks.events import Failed
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from tests.simulation.fibers import Machine, Scheduler
from tests.tasks.engine import EXACTLY, PATIENCE_S, Engine


def test_a_processor_is_made_begins_works_and_is_closed_on_one_thread() -> None:
    threads: list[int] = []

    class Noting(Processor[bytes, bytes, bytes, bytes]):
        def __init__(self) -> None:
            threads.append(threading.get_ident())

        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            super().init(context)
            threads.append(threading.get_ident())
            self.rows = sqlite3.connect(":memory:")

        def process(self, record: Record[bytes, bytes]) -> None:
            threads.append(threading.get_ident())
            self.rows.execute("SELECT 1")

        def close(self) -> None:
            threads.append(threading.get_ident())
            self.rows.close()

    made = Engine(processed(Noting), {"in": 1})
    made.write("in", [(b"k", b"v", 1)])
    made.start()
    task = made.open(WHOLE)
    made.settle()
    made.close(task)
    made.stop()
    assert len(threads) == 4
    assert len({*threads, threading.get_ident()}) == 2


def test_no_transaction_waits_for_a_processor_that_is_slow_to_begin() -> None:
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    open_: list[bool] = []

    class Slow(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            super().init(context)
            open_.append(made.committers[0].begun)

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    made = Engine(
        processed(Slow),
        {"in": 2},
        host=machine,
        interval_s=10.0,
        processing_guarantee=EXACTLY,
    )
    made.write("in", [(b"k", b"v", 1)], partition=0)
    made.open(WHOLE, 0)
    while not made.dispatcher.move(0.01):
        pass
    made.start()
    scheduler.run(1)
    assert made.committers[0].begun
    made.open(WHOLE, 1)
    scheduler.run(2)
    scheduler.close([machine])
    assert open_ == [False, False]


def test_an_error_of_a_processor_that_begins_is_one_of_the_stream_thread() -> None:
    class Failing(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            raise ZeroDivisionError("no model")

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    made = Engine(processed(Failing), {"in": 1})
    made.start()
    made.open(WHOLE)
    event = made.events.get(timeout=PATIENCE_S)
    assert isinstance(event, Failed)
    assert (str(event.error), event.where, event.thread) == (
        "no model",
        "stream thread 0",
        0,
    )


def processed(supplier: type[Processor[bytes, bytes, bytes, bytes]]) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).process(
        supplier, by_key=False
    )
    return builder.build()
