"""Records with a negative timestamp: without one, or from before 1970."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    log_and_skip_on_invalid_timestamp,
    serdes,
)
from coopstreams.common.config import Config
from coopstreams.log.kafka.native import SETTING
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError, ProcessingError
from tests.conftest import needs_native

RANGES = pytest.mark.parametrize("ranges", [1, 4])
SKIP = {"default.timestamp.extractor": "LogAndSkipOnInvalidTimestamp"}
TIMES = [10, -1, 30, -5, 20, -1]
VALID = [time for time in TIMES if time >= 0]


def minutes(stream: Any) -> Any:
    return stream.group_by_key().windowed_by(TimeWindows(size=timedelta(minutes=1)))


def counted(stream: Any) -> None:
    minutes(stream).count(store="minutes").to_stream().to(
        "out", key=serdes.windowed(serdes.text, timedelta(milliseconds=60_000))
    )


def hopping(stream: Any) -> None:
    windows = TimeWindows(size=timedelta(minutes=1), advance=timedelta(seconds=20))
    stream.group_by_key().windowed_by(windows).count(store="hops")


def sessions(stream: Any) -> None:
    windows = SessionWindows(gap=timedelta(minutes=1))
    stream.group_by_key().windowed_by(windows).count(store="sessions")


def joined(stream: Any) -> None:
    windows = JoinWindows(difference=timedelta(minutes=1))
    stream.join(stream, lambda a, b: a + b, windows=windows, name="pairs").to(
        "out", value=serdes.int64
    )


def kept(stream: Any) -> None:
    stream.to_table(store="rows")


def copied(stream: Any) -> None:
    stream.repartition(name="by-key").to("out")


def called(stream: Any) -> None:
    stream.map_values_async(add_one, value=serdes.int64).to("out")


def add_one(value: int) -> int:
    return value + 1


PROGRAMS = [hopping, sessions, joined, kept, copied, called]
EACH = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)


def built(program: Any, **source: Any) -> Topology:
    builder = StreamsBuilder("app")
    program(builder.stream("in", key=serdes.text, value=serdes.int64, **source))
    return builder.build()


def rows_of(
    topology: Topology, times: list[int], ranges: int, **config: Any
) -> tuple[Any, dict[tuple[str, str], int]]:
    """Send a record a time; return outputs and rows, and what was dropped."""
    with TopologyTestDriver(topology, ranges, config) as driver:
        source = driver.input("in", serdes.text, serdes.int64)
        for time in times:
            source.send("a", 1, time)
        driver.commit()
        outputs = [(each.key, each.value, each.timestamp) for each in driver.outputs()]
        stores = [list(driver.store(spec.name).all()) for spec in topology.stores]
        return (outputs, stores), driver.dropped


@RANGES
@EACH
def test_a_negative_timestamp_fails_and_the_error_names_record_and_cure(
    program: Any, ranges: int
) -> None:
    with pytest.raises(
        ProcessingError,
        match=r'"in" partition 0 offset 1 has no valid timestamp at .*its timestamp is -1\. .*'
        r"default\.timestamp\.extractor=LogAndSkipOnInvalidTimestamp",
    ):
        rows_of(built(program), TIMES, ranges)


@RANGES
@EACH
def test_skipped_records_are_counted_and_change_nothing(
    program: Any, ranges: int
) -> None:
    topology = built(program)
    expected, _ = rows_of(topology, VALID, 1)
    found, dropped = rows_of(topology, TIMES, ranges, **SKIP)
    assert found == expected
    assert [(why, n) for (_, why), n in dropped.items() if why == "timestamp"] == [
        ("timestamp", 3)
    ]


@RANGES
@EACH
def test_a_handler_may_go_on_without_the_record(program: Any, ranges: int) -> None:
    topology = built(program)
    expected, _ = rows_of(topology, VALID, 1)
    on = {"processing.exception.handler": "continue"}
    assert rows_of(topology, TIMES, ranges, **on)[0] == expected


@RANGES
def test_the_partitions_time_takes_the_place_of_a_negative_one(ranges: int) -> None:
    use = {"default.timestamp.extractor": "UsePartitionTimeOnInvalidTimestamp"}
    topology = built(sessions)
    expected, _ = rows_of(topology, [10, 10, 30, 30, 20, 30], 1)
    assert rows_of(topology, TIMES, ranges, **use)[0] == expected


def test_the_extractor_of_a_source_takes_the_place_of_the_default() -> None:
    topology = built(kept, timestamp=lambda record: record.offset)
    found, dropped = rows_of(topology, [-1, -1], 1, **SKIP)
    assert not dropped
    assert [row.timestamp for row in found[1][0]] == [1]


@needs_native
def test_windows_in_native_memory_see_no_negative_timestamp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = built(counted)
    native, dropped = rows_of(topology, TIMES, 1, **SKIP)
    assert sum(dropped.values()) == 3
    monkeypatch.setenv(SETTING, "0")
    assert rows_of(topology, TIMES, 1, **SKIP)[0] == native


@pytest.mark.parametrize("config", [{}, SKIP])
def test_a_global_table_has_no_row_of_a_record_without_a_time(
    config: dict[str, str],
) -> None:
    builder = StreamsBuilder("app")
    names = builder.global_table("names", key=serdes.text, value=serdes.text)
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.join(names, lambda _, name: name, on=lambda key, _: key).to(
        "out", value=serdes.text
    )
    with TopologyTestDriver(builder.build(), 1, config) as driver:
        driver.input("names", serdes.text, serdes.text).send("a", "old", 5)
        if not config:
            with pytest.raises(
                ProcessingError, match=r'"names" partition 0 offset 1 has no valid'
            ):
                driver.input("names", serdes.text, serdes.text).send("a", "new", -1)
            return
        driver.input("names", serdes.text, serdes.text).send("a", "new", -1)
        driver.input("in", serdes.text, serdes.text).send("a", "x", 7)
        assert [record.value for record in driver.outputs()] == ["old"]
        assert [why for _, why in driver.dropped] == ["timestamp"]


def test_names_of_kafka_streams_and_functions_are_extractors() -> None:
    def of(value: object) -> object:
        given = {"bootstrap.servers": "x", "default.timestamp.extractor": value}
        return Config.of(given).extractor

    skip = log_and_skip_on_invalid_timestamp
    java = "org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp"
    assert of(java) is of("LogAndSkipOnInvalidTimestamp") is of(skip) is skip
    assert of("coopstreams:log_and_skip_on_invalid_timestamp") is skip
    assert of("FailOnInvalidTimestamp") is None
    with pytest.raises(ConfigError, match=r"default\.timestamp\.extractor.*UsePart"):
        of("SkipOnInvalidTimestamp")
