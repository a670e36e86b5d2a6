"""Timestamp extractors that are ready to use, with Kafka Streams' names: `stream(...,
timestamp=wallclock_timestamp)`.

A timestamp is invalid if it is negative: the record was written in a format before
Kafka 0.10, by a producer that gave none, or dated before 1970. Without `timestamp=`,
`default.timestamp.extractor` says what happens to such a record.

Source: Kafka Streams `FailOnInvalidTimestamp`, `LogAndSkipOnInvalidTimestamp`,
`UsePartitionTimeOnInvalidTimestamp`, `WallclockTimestampExtractor`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from coopstreams.topology.compile.timestamps import keeps_valid
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.nodes import Function
from coopstreams.topology.records import TimestampedRecord

log = logging.getLogger(__name__)


@keeps_valid
def fail_on_invalid_timestamp(record: TimestampedRecord[Any, Any]) -> int:
    """Return Kafka's own timestamp.

    Raises:
        ProcessingError: the timestamp is negative. `processing.exception.handler`
            decides what happens then.
    """
    if record.timestamp < 0:
        raise ProcessingError(
            f"{_where(record)} has the timestamp {record.timestamp}. Take log_and_skip_on_invalid_timestamp, "
            "use_partition_time_on_invalid_timestamp "
            "or a function of yours as timestamp= to go on."
        )
    return record.timestamp


@keeps_valid
def log_and_skip_on_invalid_timestamp(record: TimestampedRecord[Any, Any]) -> int:
    """Return Kafka's own timestamp; a negative one drops the record, with a warning."""
    if record.timestamp < 0:
        log.warning(
            "%s has the timestamp %d and is skipped",
            _where(record),
            record.timestamp,
        )
    return record.timestamp


@keeps_valid
def use_partition_time_on_invalid_timestamp(record: TimestampedRecord[Any, Any]) -> int:
    """Return Kafka's own timestamp; if it is negative, the largest of the partition so
    far.

    Raises:
        ProcessingError: the timestamp is negative, and no record before it had one.
    """
    if record.timestamp >= 0:
        return record.timestamp
    if record.stream_time < 0:
        raise ProcessingError(
            f"{_where(record)} has the timestamp {record.timestamp}, and the partition has had no other yet"
        )
    return record.stream_time


def wallclock_timestamp(_: TimestampedRecord[Any, Any]) -> int:
    """Return the current time, in milliseconds.

    Each process that reads a partition, or reads it again, sees another time: do not
    use it for windowed results that must be reproducible.
    """
    return time.time_ns() // 1_000_000


FAIL = "FailOnInvalidTimestamp"
BY_NAME: Mapping[str, Function | str] = {
    FAIL: FAIL,
    "LogAndSkipOnInvalidTimestamp": log_and_skip_on_invalid_timestamp,
    "UsePartitionTimeOnInvalidTimestamp": use_partition_time_on_invalid_timestamp,
    "WallclockTimestampExtractor": wallclock_timestamp,
}
"""The extractors by their names in Kafka Streams. `FAIL` stands for no extractor:
invalid timestamps fail anyway.
"""


def _where(record: TimestampedRecord[Any, Any]) -> str:
    return f'the record at "{record.topic}" partition {record.partition} offset {record.offset}'
