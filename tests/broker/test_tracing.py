"""One trace of a record on Kafka: two sub-topologies, a repartition topic between them,
and an asynchronous call.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.topology.graph.topology import Topology
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.tasks.test_spans import context_of

pytestmark = pytest.mark.broker

TRACE, SENDER = f"{0xABC:032x}", f"{0xDEF:016x}"
PARENT = ("traceparent", f"00-{TRACE}-{SENDER}-01".encode())


async def looked_up(value: str) -> str:
    with trace.get_tracer("a client").start_as_current_span("GET /prices"):
        await asyncio.sleep(0.01)
    return value.upper()


def program(kafka: Kafka, source: str, sink: str) -> Topology:
    builder = StreamsBuilder(kafka.unique("traced"))
    words = builder.stream(source, key=serdes.text, value=serdes.text).map_values_async(
        looked_up, value=serdes.text, name="look-up"
    )
    counts = words.group_by(
        lambda _, value: value, key=serdes.text, name="by-word"
    ).count(store="counts")
    counts.to_stream().to(sink)
    return builder.build()


def test_a_record_and_what_is_made_of_it_are_one_trace(
    kafka: Kafka, tmp_path: Path
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # one for each process: no other test sets it
    source, sink = kafka.topic("in"), kafka.topic("out")
    topology = program(kafka, source, sink)
    settings = kafka.config(tmp_path, http_listen="")

    def traced() -> dict[str, ReadableSpan]:
        spans = exporter.get_finished_spans()
        return {
            span.name: span
            for span in spans
            if f"{context_of(span).trace_id:032x}" == TRACE
        }

    def said() -> str:
        return str(
            [
                (span.name, context_of(span).trace_id)
                for span in exporter.get_finished_spans()
            ]
        )

    kafka.write(source, [(b"k", b"plain")], headers=[("other", b"x")])
    kafka.write(source, [(b"k", b"traced")], headers=[PARENT])
    with CoopStreams(
        topology, settings | {"tracing.ratio": 0, "commit.interval.ms": 100}
    ):
        eventually(lambda: len(read_topic(kafka.bootstrap, sink)) == 2, 120, said)
        eventually(lambda: len(traced()) == 4, 60, said)
    spans = traced()
    repartition = f"process {topology.application_id}-by-word-repartition"
    assert spans.keys() == {
        f"process {source}",
        "call look-up",
        "GET /prices",
        repartition,
    }
    # The only other span is the client's own, of the untraced record.
    assert [
        span.name
        for span in exporter.get_finished_spans()
        if span not in spans.values()
    ] == ["GET /prices"]

    def above(name: str) -> str:
        parent = spans[name].parent
        assert parent is not None
        return next(
            (
                other
                for other, span in spans.items()
                if context_of(span).span_id == parent.span_id
            ),
            "the sender",
        )

    assert above(f"process {source}") == "the sender"
    assert above("call look-up") == f"process {source}"
    assert above("GET /prices") == "call look-up"
    assert above(repartition) == f"process {source}"
    [headers] = [
        record.headers
        for record in read_topic(kafka.bootstrap, sink)
        if record.key == b"TRACED"
    ]
    assert (
        headers["traceparent"]
        == f"00-{TRACE}-{span_id(spans[repartition])}-01".encode()
    )


def span_id(span: ReadableSpan) -> str:
    return f"{context_of(span).span_id:016x}"
