"""Rows that cannot be read. One that its serde could not read again is never committed:
the program is mended, and goes on. One whose schema the registry does not say now is
waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import pytest

from coopstreams import Processor, ProcessorContext, Record, key_value_store
from coopstreams.tasks.events import Aborted
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.schemas import RegistryUnavailableError
from coopstreams.topology.serde import Serde
from tests.tasks.called import until
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

SOURCE = TopicPartition("in", 0)


@dataclass
class Ratio:
    won: int
    ratio: float


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_a_mended_program_goes_on_where_a_row_could_not_have_been_read_again(
    guarantee: str,
) -> None:
    unknown = math.nan

    def next_ratio(_: str, games: int, before: Ratio) -> Ratio:
        return Ratio(before.won + 1, (before.won + 1) / games if games else unknown)

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).group_by_key().aggregate(
        lambda: Ratio(0, 0.0), next_ratio, value=serdes.json(Ratio), store="ratios"
    )
    made = Engine(builder.build(), {"in": 1}, processing_guarantee=guarantee)
    made.write("in", [(b"ann", serdes.int64.encode(2), 0)])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    made.write("in", [(b"ann", serdes.int64.encode(0), 1)])
    made.process(task)
    with pytest.raises(
        SerdeError,
        match=r'store "ratios": the value of key b.ann. cannot be written .* \$.ratio is nan',
    ):
        made.committers[0].commit([task])
    made.committers[0].abort()
    task.discard()
    assert made.log.committed("app")[SOURCE][0] == 1
    unknown = -1.0
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    assert made.log.committed("app")[SOURCE][0] == 2
    rows = [
        serdes.json(Ratio).deserialize(row or b"")
        for row in made.read(made.changelog("ratios")).values
    ]
    assert rows == [Ratio(1, 0.5), Ratio(2, -1.0)]


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("handler", ["fail", "continue"])
@pytest.mark.parametrize("history", [None, timedelta(hours=1)])
def test_a_row_is_waited_for_while_the_registry_does_not_say_its_schema(
    guarantee: str, handler: str, history: timedelta | None
) -> None:
    away = False

    def decode(data: bytes) -> str:
        if away:
            raise RegistryUnavailableError("no answer")
        return data.decode()

    builder = StreamsBuilder("app")
    row = Serde("registered", str.encode, decode)
    table = builder.table(
        "rows", key=serdes.text, value=row, store="kept", history=history
    )
    sold = builder.stream("in", key=serdes.text, value=serdes.int64)
    sold.group_by_key().count(store="counts").to_stream().to("counted")
    sold.join(table, lambda pieces, each: f"{pieces} of {each}", value=serdes.text).to(
        "out"
    )
    topics = {"rows": 1, "in": 1, "counted": 1, "out": 1}
    made = Engine(
        builder.build(),
        topics,
        processing_guarantee=guarantee,
        processing_exception_handler=handler,
        interval_s=0.01,
    )
    made.write("rows", [(b"tea", b"one", 0), (b"tea", b"two", 10)])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    made.write("in", [(b"tea", serdes.int64.encode(2), 5)])
    away = True
    made.open(WHOLE)
    made.start()
    until(lambda: not made.events.empty(), made)
    event = made.events.get()
    assert isinstance(event, Aborted)
    assert event.held is not None
    assert "the value of key b'tea" in event.held.why
    assert (
        "cannot be read before the registry has said its schema: no answer"
        in event.held.why
    )
    made.take(event)
    away = False
    task = made.open(WHOLE)
    until(lambda: len(made.read("out")) > 0, made)
    made.stop()
    assert sum(task.tally.failed.values()) == 0
    assert list(made.read("out").values) == [
        b"2 of two" if history is None else b"2 of one"
    ]
    assert made.read("counted").values[-1] == serdes.int64.encode(1)


def test_a_processor_that_reads_a_row_as_it_begins_waits_for_the_registry_too() -> None:
    away = False

    def decode(data: bytes) -> str:
        if away:
            raise RegistryUnavailableError("no answer")
        return data.decode()

    class Remembering(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            super().init(context)
            self.rows = context.store("rows")
            self.known = dict(self.rows.all())

        def process(self, record: Record[str, str]) -> None:
            self.rows.put(record.key, record.value)
            self.context.forward(
                record.with_value(f"{self.known.get(record.key)} -> {record.value}")
            )

    builder = StreamsBuilder("app")
    kept = key_value_store(
        "rows", key=serdes.text, value=Serde("registered", str.encode, decode)
    )
    read = builder.stream("in", key=serdes.text, value=serdes.text)
    read.process(
        Remembering, stores=[kept], by_key=False, key=serdes.text, value=serdes.text
    ).to("out")
    made = Engine(builder.build(), {"in": 1, "out": 1})
    made.write("in", [(b"tea", b"one", 0)])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    made.write("in", [(b"tea", b"two", 1)])
    away = True
    made.start()
    made.open(WHOLE)
    event = made.events.get(timeout=PATIENCE_S)
    assert isinstance(event, Aborted)
    assert event.held is not None
    assert "before the registry has said its schema: no answer" in event.held.why
    made.take(event)
    away = False
    made.open(WHOLE)
    until(lambda: len(made.read("out")) > 1, made)
    made.stop()
    assert list(made.read("out").values) == [b"None -> one", b"one -> two"]
