"""Timestamp extractors: a source takes timestamps from its records instead of Kafka's.

A reader applies the source's column to all records of a partition before it cuts key ranges, so that stream time, and
with it every window, is the same for any number of ranges. The cost: each process that reads the partition extracts the
timestamps of all its records.

Invariant: a column never raises and has one timestamp for each record: `DROPPED` or `FAILED` if there is none.
Turned down: extracting in the task (siblings would disagree about stream time), and dropping the record in the reader
(it would not be counted, and a failure would belong to no task).
"""

from __future__ import annotations

from itertools import repeat
from operator import index
from typing import Any

from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.program import TimestampColumn
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.nodes import Function, Source
from coopstreams.topology.records import TimestampedRecord

DROPPED = -1
"""The extractor returned None or a negative number."""

FAILED = -2
"""The extractor raised, or the record could not be deserialised; the task that owns the record reports the error."""


def timestamp_column(source: Source) -> TimestampColumn:
    """Return the timestamp column of a source that has an extractor."""
    function, read_key, read_value = _extractor(source), source.key.decode, source.value.decode

    def column(at: TopicPartition, columns: Columns, stream_time: int) -> list[int]:
        (topic, partition), timestamps = at, []
        headers = columns.headers if columns.headers is not None else repeat(None)
        for key, value, written, offset, header in zip(
            columns.keys, columns.values, columns.timestamps, columns.offsets, headers, strict=False
        ):
            try:
                record: TimestampedRecord[Any, Any] = TimestampedRecord(
                    None if key is None else read_key(key),
                    None if value is None else read_value(value),
                    written,
                    topic,
                    partition,
                    offset,
                    stream_time,
                    header,
                )
                timestamp = _checked(function(record))
            except Exception:  # noqa: BLE001 the task that owns the record reports it
                timestamp = FAILED
            timestamps.append(timestamp)
            if timestamp > stream_time:
                stream_time = timestamp
        return timestamps

    return column


def extraction_error(source: Source, at: TopicPartition, columns: Columns, i: int) -> Exception:
    """Return the error of a record whose timestamp is `FAILED`, by extracting it once more.

    Kafka's own timestamp is lost by then: the extractor is given -1.
    """
    key, value = columns.keys[i], columns.values[i]
    headers = None if columns.headers is None else columns.headers[i]
    try:
        key_object = None if key is None else source.key.deserialize(key)
        value_object = None if value is None else source.value.deserialize(value)
        _checked(
            _extractor(source)(
                TimestampedRecord(key_object, value_object, -1, at.topic, at.partition, columns.offsets[i], -1, headers)
            )
        )
    except Exception as error:  # noqa: BLE001 the error is the answer
        return error
    return ProcessingError(f'the timestamp extractor of "{at.topic}" failed, and did not when it was called again')


def _extractor(source: Source) -> Function:
    assert source.timestamp is not None
    return source.timestamp


def _checked(timestamp: object) -> int:
    # `index` takes any integer and refuses floats: a float is probably in seconds, and would pass as a date in 1970.
    return DROPPED if timestamp is None else max(DROPPED, index(timestamp))  # type: ignore[arg-type]
