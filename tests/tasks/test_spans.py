"""Spans of records: which records are traced, unchanged results, and the parents of
results' spans.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from coopstreams.tasks.spans import RecordSpans
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

SOURCE = TopicPartition("in", 0)


class Traced:
    """A program that doubles numbers, with recorded spans."""

    def __init__(self, ratio: float = 0.0) -> None:
        builder = StreamsBuilder("app")
        doubled = builder.stream("in", key=serdes.text, value=serdes.int64).map_values(
            lambda value: 2 * value
        )
        doubled.filter(lambda _, value: 100 // value > 0).to("out", value=serdes.int64)
        topology = builder.build()
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = RecordSpans(
            provider.get_tracer("test"), ratio, "app", TaskId(0, 0, WHOLE)
        )
        self.failures: list[Failure] = []
        program = compile_subtopology(topology, topology.subtopologies[0])
        self.program: BoundProgram = program.bind(
            {}, self.spans.noting(self.failures.append), caching=False
        )

    def process(self, columns: Columns) -> Output:
        self.spans.process(self.program, SOURCE, columns, taken=False)
        return self.program.outputs["out"]

    def done(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def records(
    headers: list[Headers | None] | None, values: list[int] | None = None
) -> Columns:
    values = values or [1] * len(headers or ())
    count = len(values)
    encoded = [serdes.int64.serialize(value) for value in values]
    return Columns(
        [b"k"] * count,
        encoded,
        list(range(count)),
        list(range(count)),
        list(range(count)),
        headers,
    )


def parent(trace: int, *, sampled: bool = True) -> Headers:
    return [
        ("other", b"x"),
        ("traceparent", f"00-{trace:032x}-{7:016x}-0{int(sampled)}".encode()),
    ]


def trace_of(headers: Headers | None) -> Any:
    value = dict(headers or []).get("traceparent")
    return value and value.decode().split("-")


def test_what_is_made_of_a_traced_record_carries_its_span() -> None:
    traced = Traced()
    out = traced.process(records([None, parent(5), parent(6, sampled=False), []]))
    [span] = traced.done()
    assert (span.name, span.parent and span.parent.span_id) == ("process in", 7)
    assert span.attributes is not None
    assert span.attributes["messaging.kafka.offset"] == 1
    assert out.headers is not None
    assert trace_of(out.headers[1]) == [
        "00",
        f"{5:032x}",
        f"{context_of(span).span_id:016x}",
        "01",
    ]
    assert out.headers[1] is not None
    assert out.headers[1][0] == ("other", b"x")
    assert trace_of(out.headers[2])[2] == f"{7:016x}"  # passed on unchanged


@given(
    st.lists(
        st.sampled_from(["none", "sampled", "not", "broken"]), min_size=1, max_size=12
    ),
    st.sampled_from([0, 0.3, 1]),
)
def test_results_are_as_without_spans(kinds: list[str], ratio: float) -> None:
    made: dict[str, Headers | None] = {
        "none": None,
        "sampled": parent(1),
        "not": parent(2, sampled=False),
        "broken": [("traceparent", b"\xff-nonsense"), ("traceparent", None)],
    }
    columns = records([made[kind] for kind in kinds], list(range(1, len(kinds) + 1)))
    traced, plain = Traced(ratio), Traced()
    plain.program.process(SOURCE, columns)
    out, expected = traced.process(columns), plain.program.outputs["out"]
    assert (out.keys, out.values, out.timestamps) == (
        expected.keys,
        expected.values,
        expected.timestamps,
    )
    if not ratio:
        assert len(traced.done()) == kinds.count("sampled")


def test_a_share_of_the_records_without_a_parent_begins_traces() -> None:
    traced = Traced(ratio=0.25)
    for _ in range(10):
        traced.process(records(None, [1] * 7))
    spans = traced.done()
    assert len(spans) == 18
    assert len({context_of(span).trace_id for span in spans}) == 18
    assert all(span.parent is None for span in spans)


def test_a_failure_is_in_the_span_of_its_record() -> None:
    traced = Traced()
    traced.process(records([parent(1), parent(2)], [0, 1]))
    assert [failure.offset for failure in traced.failures] == [0]
    failed, fine = traced.done()
    assert (failed.status.is_ok, fine.status.is_ok) == (False, True)
    assert failed.status.description is not None
    assert (
        "division" in failed.status.description or "modulo" in failed.status.description
    )
    assert [event.name for event in failed.events] == ["exception"]


def test_spans_of_records_that_were_not_processed_end_with_the_task() -> None:
    traced = Traced()
    taken = traced.spans.take(SOURCE, records([parent(1), parent(2)]))
    traced.spans.process(traced.program, SOURCE, taken.slice(0, 1), taken=True)
    traced.spans.close()
    one, other = traced.done()
    assert one.attributes is not None
    assert other.attributes is not None
    assert "coopstreams.given_up" not in one.attributes
    assert other.attributes["coopstreams.given_up"] is True


@pytest.mark.parametrize("ratio", [1.0, 0.0])
def test_a_record_that_waits_for_calls_has_one_span_from_its_coming_to_its_end(
    ratio: float,
) -> None:
    traced = Traced(ratio)
    taken = traced.spans.take(SOURCE, records([parent(1), None]))
    traced.spans.process(traced.program, SOURCE, taken, taken=True)
    assert len(traced.done()) == 1 + int(ratio)
