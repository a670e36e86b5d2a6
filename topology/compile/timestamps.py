"""Applies timestamp extractors, by which a source takes timestamps from its records
instead of Kafka's.

A reader computes the timestamp column for all records of a partition before it
separates key ranges. So stream time, and with it every window, is the same for any
number of ranges. The cost: each process that reads the partition extracts the
timestamps of all its records.

A negative timestamp is invalid. Without an extractor, a source has Kafka's timestamps,
and records with invalid ones fail in the task (`valid`). The task checks only the
earliest timestamp of a batch, so a valid batch costs one comparison.

Invariant: a column never raises and has one timestamp for each record. If the extractor
gave none, it is negative: `DROPPED`, or `failed(written)`, which keeps Kafka's own
timestamp for the failure; `as_written` reads it.
Invariant: no operator sees a record with a negative timestamp, and none advances stream
time. Turned down: extracting in the task (siblings would disagree about stream time),
dropping the record in the reader (it would not be counted, and a failure would belong
to no task), a column of its own for Kafka's timestamps (every batch would carry it for
the few records that fail), a check in the generated loop (it costs each record).
Relies on: `log.batches` (calls the column first of all), `program` (calls `valid`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from operator import index
from typing import Any, TypeAlias, TypeVar

from coopstreams.topology.calls import name_of
from coopstreams.topology.columns import Columns, Int64s, TopicPartition
from coopstreams.topology.errors import (
    InvalidTimestampError,
    ProcessingError,
    SerdeError,
)
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import (
    Function,
    Node,
    Source,
    Structure,
)
from coopstreams.topology.records import TimestampedRecord
from coopstreams.topology.schemas import RegistryUnavailableError, SchemaSerde
from coopstreams.topology.windows import FOREVER_MS

S = TypeVar("S", bound=Structure)

TimestampColumn: TypeAlias = Callable[[TopicPartition, Columns, int], Int64s]
"""A function `(partition, records, stream time before them) -> timestamps` that returns
the timestamps that a source's extractor takes from its records.

A reader calls it on ALL records of the partition before it hashes, routes or drops any,
and computes the stream times from the result: `accumulate(timestamps, max,
initial=before)`. So stream time is that of the extracted timestamps for any key ranges.
`records.stream_times` is ignored. It never raises. A negative timestamp does not
advance stream time and stays in the column. The task that owns the record drops and
counts it for `DROPPED`. For any other negative timestamp, it passes the extractor's
error to its failure handler.
"""

DROPPED = -1
"""The timestamp of a record for which the extractor returned None or a negative
number.
"""


def failed(written: int) -> int:
    """Return the column's value for a record whose extractor raised, or that could not
    be deserialised.

    `written`: Kafka's timestamp, -1 if the record has none.

    Shape: -2 or less.
    """
    return -3 - max(-1, written)


def as_written(timestamp: int) -> int:
    """Return a timestamp of the column; for a `failed` record, Kafka's own. -1: the
    record has none.
    """
    return timestamp if timestamp >= DROPPED else -3 - timestamp


Extractor = TypeVar("Extractor", bound=Function)


def keeps_valid(extractor: Extractor) -> Extractor:
    """Mark and return an extractor that is called for records with a negative timestamp
    only; other records keep their timestamp.
    """
    vars(extractor)["keeps_valid"] = True
    return extractor


def extracting(topology: S, extractor: Function | None) -> S:
    """Return a topology in which sources without an extractor of their own use
    `extractor`. None leaves the topology as it is.

    Repartition topics get no extractor, because the application itself wrote their
    timestamps.
    """
    if extractor is None:
        return topology
    parts = tuple(
        replace(part, nodes=tuple(_extracting(node, extractor) for node in part.nodes))
        for part in topology.subtopologies
    )
    return replace(topology, subtopologies=parts)


def _extracting(node: Node, extractor: Function) -> Node:
    """Return the node; a source of the user's without an extractor gets this one."""
    if isinstance(node, Source) and node.timestamp is None and not node.internal:
        return replace(node, timestamp=extractor)
    return node


def valid(
    source: Source,
    at: TopicPartition,
    columns: Columns,
    on_failure: OnFailure,
    dropped: Counter[tuple[str, str]],
) -> list[int]:
    """Return the indexes of the records whose timestamps are not negative. Each other
    record is counted in `dropped`, by node and reason, or passed to the failure
    handler.

    Raises:
        Whatever the failure handler raises.
    """
    found: list[int] = []
    for i, timestamp in enumerate(columns.timestamps):
        if timestamp >= 0:
            found.append(i)
        elif source.timestamp is not None and timestamp == DROPPED:
            dropped[source.name, "timestamp"] += 1
        else:
            on_failure(_failure(source, at, columns, i))
    return found


def _failure(
    source: Source,
    at: TopicPartition,
    columns: Columns,
    i: int,
) -> Failure:
    """Return the failure of record `i`, whose timestamp is invalid."""
    timestamp = columns.timestamps[i]
    error: Exception
    if source.timestamp is None:
        error = InvalidTimestampError(timestamp)
    else:
        error = extraction_error(source, at, columns, i)
        timestamp = as_written(timestamp)
    return Failure(
        "deserialization" if isinstance(error, SerdeError) else "processing",
        source.name,
        error,
        at,
        columns.offsets[i],
        columns.keys[i],
        columns.values[i],
        timestamp,
        None if columns.headers is None else columns.headers[i],
    )


def timestamp_column(source: Source) -> TimestampColumn:
    """Return the timestamp column of a source that has an extractor."""
    function = _extractor(source)
    read_key = source.key.decode
    read_value = source.value.decode
    of_invalid = getattr(function, "keeps_valid", False)

    def column(
        at: TopicPartition,
        columns: Columns,
        stream_time: int,
    ) -> Int64s:
        if of_invalid and min(columns.timestamps, default=0) >= 0:
            return columns.timestamps
        (topic, partition) = at
        timestamps = list[int]()
        headers = columns.headers if columns.headers is not None else repeat(None)
        for key, value, written, offset, header in zip(
            columns.keys,
            columns.values,
            columns.timestamps,
            columns.offsets,
            headers,
            strict=False,
        ):
            if of_invalid and written >= 0:
                timestamps.append(written)
                stream_time = max(stream_time, written)
                continue
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
                timestamp = _checked(function, function(record))
            except Exception:  # noqa: BLE001 the task that owns the record reports it
                timestamp = failed(written)
            timestamps.append(timestamp)
            if timestamp > stream_time:
                stream_time = timestamp
        return timestamps

    return column


def extraction_error(
    source: Source,
    at: TopicPartition,
    columns: Columns,
    i: int,
) -> Exception:
    """Return the error of a record whose timestamp is `failed`, by calling the
    extractor once more.
    """
    key = columns.keys[i]
    value = columns.values[i]
    written = as_written(columns.timestamps[i])
    stream_time = columns.stream_times[i]
    headers = None if columns.headers is None else columns.headers[i]
    try:
        key_object = None if key is None else source.key.deserialize(key)
        value_object = None if value is None else source.value.deserialize(value)
        offset = columns.offsets[i]
        function = _extractor(source)
        record: TimestampedRecord[Any, Any] = TimestampedRecord(
            key_object,
            value_object,
            written,
            at.topic,
            at.partition,
            offset,
            stream_time,
            headers,
        )
        _checked(function, function(record))
    except Exception as error:  # noqa: BLE001 the error is the answer
        return error
    if isinstance(source.key, SchemaSerde) or isinstance(source.value, SchemaSerde):
        # It has come back since: the reader is to take the timestamp again, which
        # others count on.
        return RegistryUnavailableError(
            f'the schema registry did not answer when a record of "{at.topic}" was read'
        )
    return ProcessingError(
        f'the timestamp extractor of "{at.topic}" failed, and did not when it was called again'
    )


def _extractor(source: Source) -> Function:
    assert source.timestamp is not None
    return source.timestamp


def _checked(function: Function, timestamp: Any) -> int:
    """Return the result of an extractor (`function`, named in the error) as a
    timestamp.
    """
    if timestamp is None:
        return DROPPED
    # Any integer, and no float: a float is probably in seconds, and would pass as a
    # date in 1970.
    with suppress(TypeError):
        if (number := index(timestamp)) <= FOREVER_MS:
            return max(DROPPED, number)
    raise ProcessingError(
        f"timestamp= calls {name_of(function)}, which returned {timestamp!r}. It must return milliseconds since "
        "the epoch as an int of at most 63 bits, or None to drop the record: int(seconds * 1000), "
        "int(datetime.timestamp() * 1000)"
    )
