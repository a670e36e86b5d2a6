"""The timestamp extractors that are ready to use."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from coopstreams import (
    StreamsBuilder,
    fail_on_invalid_timestamp,
    log_and_skip_on_invalid_timestamp,
    serdes,
    use_partition_time_on_invalid_timestamp,
    wallclock_timestamp,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology

RANGES = pytest.mark.parametrize("ranges", [1, 4])


def copying(extractor: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64, timestamp=extractor).to(
        "out"
    )
    return builder.build()


def run(
    extractor: Any, *records: tuple[str, int], ranges: int = 1, **config: Any
) -> list[tuple[str, int]]:
    """Send keys with these timestamps; return the keys and timestamps of the output."""
    with TopologyTestDriver(copying(extractor), ranges, config) as driver:
        for key, timestamp in records:
            driver.input("in", serdes.text, serdes.int64).send(key, 1, timestamp)
        return [(record.key, record.timestamp) for record in driver.outputs()]


@pytest.mark.parametrize(
    "extractor",
    [
        fail_on_invalid_timestamp,
        log_and_skip_on_invalid_timestamp,
        use_partition_time_on_invalid_timestamp,
    ],
    ids=lambda f: f.__name__,
)
def test_a_valid_timestamp_is_kafkas_own(extractor: Any) -> None:
    assert run(extractor, ("a", 7), ("b", 0)) == [("a", 7), ("b", 0)]


@RANGES
def test_an_invalid_timestamp_fails_the_record(ranges: int) -> None:
    with pytest.raises(
        ProcessingError,
        match=r"partition 0 offset 1 has the timestamp -1\. Take log_and_skip",
    ):
        run(fail_on_invalid_timestamp, ("a", 7), ("b", -1), ranges=ranges)
    goes_on = {"processing.exception.handler": "continue"}
    assert run(
        fail_on_invalid_timestamp,
        ("a", 7),
        ("b", -1),
        ("b", 8),
        ranges=ranges,
        **goes_on,
    ) == [
        ("a", 7),
        ("b", 8),
    ]


@RANGES
def test_an_invalid_timestamp_is_skipped_with_a_warning_and_counted(
    ranges: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "coopstreams.common.extractors"),
        TopologyTestDriver(
            copying(log_and_skip_on_invalid_timestamp), ranges
        ) as driver,
    ):
        for key, timestamp in [("a", 7), ("b", -1), ("c", 9)]:
            driver.input("in", serdes.text, serdes.int64).send(key, 1, timestamp)
        assert [record.key for record in driver.outputs()] == ["a", "c"]
        assert [reason for _, reason in driver.dropped] == ["timestamp"]
    assert (
        'the record at "in" partition 0 offset 1 has the timestamp -1 and is skipped'
        in caplog.messages
    )


@RANGES
def test_an_invalid_timestamp_becomes_that_of_the_partition(ranges: int) -> None:
    records = [("a", 7), ("b", 3), ("c", -1), ("d", 9), ("e", -1)]
    assert run(use_partition_time_on_invalid_timestamp, *records, ranges=ranges) == [
        ("a", 7),
        ("b", 3),
        ("c", 7),
        ("d", 9),
        ("e", 9),
    ]


def test_a_partition_that_begins_with_an_invalid_timestamp_has_no_time_to_use() -> None:
    with pytest.raises(ProcessingError, match="has had no other yet"):
        run(use_partition_time_on_invalid_timestamp, ("a", -1))


def test_the_wall_clock_says_when_a_record_is_read() -> None:
    before = time.time_ns() // 1_000_000
    ((_, timestamp),) = run(wallclock_timestamp, ("a", 7))
    assert before <= timestamp <= time.time_ns() // 1_000_000
