"""OpenTelemetry spans of single records: one trace covers a record and all records that
result from it.

    a record with a sampled `traceparent`  ->  span "process TOPIC"  ->  the records written for it carry the span's
                                                  span "call NODE", for each call of an asynchronous operator

So a reader of a repartition topic or a sink continues the trace. Headers carry the
trace; a row in the record cache has the headers of its last update. Records that the
passing of time emits (a closed window, a suppression, a punctuation) have no headers
and no trace.

Invariant: a task without spans does nothing for them. With spans, the headers of each
record are read, if any record of its batch has headers.
Invariant: a traced record is processed as a batch of its own, so that its span has its
time. Results do not depend on how records are cut into batches. Turned down: a span for
each operator (a statement for each record and operator), spans of batches (a trace is
of one record), the SDK's propagators (sampling would have to know headers of other
forms than W3C's).
Source: https://www.w3.org/TR/trace-context/, OpenTelemetry's semantic conventions for
messaging.
"""

from __future__ import annotations

import re
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import replace
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from coopstreams.calling.lanes import Call
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import Asynchronous
from coopstreams.topology.task_id import TaskId

PARENT = "traceparent"
STATE = "tracestate"
_SAMPLED = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf](-|$)")
_W3C = TraceContextTextMapPropagator()


class RecordSpans:
    """The OpenTelemetry spans of one task's records.

    Its stream thread uses it; `ended` may be called on any thread.
    """

    def __init__(
        self,
        tracer: Tracer,
        ratio: float,
        application: str,
        task: TaskId,
    ) -> None:
        """`ratio`: the share of records without a `traceparent` that begin a trace."""
        self._tracer = tracer
        self._every = round(1 / ratio) if ratio else 0
        self._next = 0
        self._about: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.consumer.group.name": application,
            "coopstreams.task": str(task),
        }
        self._open: dict[tuple[TopicPartition, int], Span] = {}
        """The spans of records that were taken in and not yet processed."""

    def process(
        self,
        program: BoundProgram,
        source: TopicPartition,
        columns: Columns,
        *,
        taken: bool,
    ) -> None:
        """Process records with the program, traced records within their spans.

        `taken`: whether `take` has begun the spans.
        """
        at = 0
        for row in self._taken(source, columns) if taken else self._sampled(columns):
            if at < row:
                program.process(source, columns.slice(at, row))
            at = row + 1
            one = columns.slice(row, at)
            if not taken:
                one = self._begin(source, one, [0])
            with use_span(self._open.pop((source, one.offsets[0])), end_on_exit=True):
                program.process(source, one)
        if at < len(columns):
            program.process(source, columns.slice(at, len(columns)) if at else columns)

    def take(self, source: TopicPartition, columns: Columns) -> Columns:
        """Begin the spans of records that wait for calls before they are processed;
        return the records, with the spans in their headers.
        """
        rows = self._sampled(columns)
        return self._begin(source, columns, rows) if rows else columns

    def call(
        self,
        source: TopicPartition,
        offset: int,
        call: Call,
        node: Asynchronous,
    ) -> None:
        """Begin the span of a call, if its record is traced.

        Spans that the called function opens are children of this span, where the
        context propagates.
        """
        parent = self._open.get((source, offset))
        if parent is None:
            return
        call.span = span = self._tracer.start_span(
            f"call {node.name}",
            set_span_in_context(parent),
            SpanKind.CLIENT,
        )
        if not node.calling.together and node.calling.executor != "process":
            # A batch has many parents, and another process has no access to this span.
            call.function = (_awaited if node.calling.coroutine else _called)(
                call.function,
                span,
            )

    def ended(self, calls: Iterable[Call]) -> None:
        """End the spans of these calls; called on the thread that ended the calls."""
        for call in calls:
            if (span := call.span) is not None:
                if call.error is not None:
                    span.record_exception(call.error)
                    span.set_status(Status(StatusCode.ERROR, str(call.error)))
                span.end()

    def noting(self, on_failure: OnFailure) -> OnFailure:
        """Return a failure handler that records the failure in the current span, and
        then calls `on_failure`.
        """

        def note(failure: Failure) -> None:
            span = get_current_span()
            span.record_exception(failure.error)
            span.set_status(
                Status(
                    StatusCode.ERROR,
                    f"{failure.phase} at {failure.node}: {failure.error}",
                )
            )
            on_failure(failure)

        return note

    def close(self) -> None:
        """End the spans of records that were taken in and not processed. The next owner
        of the task processes these records.
        """
        for span in self._open.values():
            span.set_attribute("coopstreams.given_up", True)
            span.end()
        self._open.clear()

    def _taken(self, source: TopicPartition, columns: Columns) -> list[int]:
        """Return the rows whose spans `take` has begun."""
        if not self._open:
            return []
        return [
            row
            for row, offset in enumerate(columns.offsets)
            if (source, offset) in self._open
        ]

    def _sampled(self, columns: Columns) -> list[int]:
        """Return the rows to trace, in order."""
        headers = columns.headers
        count = len(columns)
        rows = (
            []
            if headers is None
            else [row for row, own in enumerate(headers) if own and _is_sampled(own)]
        )
        if not self._every:
            return rows
        begun = range(self._next, count, self._every)
        self._next = max(self._next - count, (self._next - count) % self._every)
        return sorted(
            {
                *rows,
                *(
                    row
                    for row in begun
                    if headers is None or _value(headers[row], PARENT) is None
                ),
            }
        )

    def _begin(
        self,
        source: TopicPartition,
        columns: Columns,
        rows: Sequence[int],
    ) -> Columns:
        """Begin the spans of these rows; return the records, with the spans in the
        rows' headers.
        """
        headers = list(columns.headers or [None] * len(columns))
        for row in rows:
            own = headers[row] or []
            given = {name: _value(own, name) or b"" for name in (PARENT, STATE)}
            carrier = {
                name: value.decode("ascii", "replace")
                for name, value in given.items()
                if value
            }
            about: dict[str, str | int] = self._about | {
                "messaging.destination.name": source.topic,
                "messaging.destination.partition.id": str(source.partition),
                "messaging.kafka.offset": columns.offsets[row],
            }
            context = _W3C.extract(carrier, Context())
            span = self._tracer.start_span(
                f"process {source.topic}",
                context,
                SpanKind.CONSUMER,
                about,
            )
            self._open[source, columns.offsets[row]] = span
            written: dict[str, str] = {}
            _W3C.inject(written, set_span_in_context(span))
            kept = [one for one in own if one[0] not in (PARENT, STATE)]
            headers[row] = (
                [*kept, *((name, value.encode()) for name, value in written.items())]
                if written
                else own
            )
        return replace(columns, headers=headers)


def _awaited(
    function: Callable[..., Awaitable[Any]],
    span: Span,
) -> Callable[..., Awaitable[Any]]:
    """Return the coroutine function, run in this span."""

    async def call(*arguments: Any) -> Any:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            return await function(*arguments)

    return call


def _called(function: Callable[..., Any], span: Span) -> Callable[..., Any]:
    """Return the function, run in this span."""

    def call(*arguments: Any) -> Any:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            return function(*arguments)

    return call


def _is_sampled(headers: Headers) -> bool:
    value = _value(headers, PARENT)
    return value is not None and _SAMPLED.match(value) is not None


def _value(headers: Headers | None, name: str) -> bytes | None:
    """Return the value of the last header with this name, as Kafka's clients do; None:
    no header has it, or its value is null.
    """
    return next((value for own, value in reversed(headers or ()) if own == name), None)
