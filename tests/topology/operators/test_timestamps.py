"""`stream(timestamp=...)`: event time from the record."""

from datetime import UTC, datetime
from typing import Any

import pytest

from coopstreams.log.kafka.native import SETTING
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.records import TimestampedRecord
from coopstreams.topology.windows import TimeWindows
from tests.conftest import needs_native
from tests.durations import ms


def copying(extract: Any, value: Any = serdes.json) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=value, timestamp=extract).to("out")
    return builder.build()


def test_records_carry_the_extracted_timestamp_to_their_outputs() -> None:
    with TopologyTestDriver(copying(lambda record: record.value["at"])) as driver:
        driver.input("in", serdes.text, serdes.json).send("a", {"at": 77}, 5)
        assert [record.timestamp for record in driver.outputs()] == [77]


def test_none_and_negative_timestamps_drop_the_record() -> None:
    with TopologyTestDriver(copying(lambda record: record.value)) as driver:
        for value in (None, -1, -2, -500, 3):
            driver.input("in", serdes.text, serdes.json).send("a", value)
        assert [record.value for record in driver.outputs()] == [3]
        assert list(driver.dropped.values()) == [4]


def test_the_extractor_sees_everything_about_the_record() -> None:
    seen: list[TimestampedRecord[Any, Any]] = []

    def extract(record: TimestampedRecord[Any, Any]) -> int:
        seen.append(record)
        return record.timestamp

    with TopologyTestDriver(copying(extract)) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        topic.send(None, None, 9)
        topic.send("a", 1, 4, [("h", b"x")])
    assert seen == [
        TimestampedRecord(None, None, 9, "in", 0, 0, -1, None),
        TimestampedRecord("a", 1, 4, "in", 0, 1, 9, [("h", b"x")]),
    ]


@pytest.mark.parametrize("ranges", [1, 2, 8])
def test_stream_time_is_that_of_the_extracted_timestamps_of_all_key_ranges(
    ranges: int,
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.int64, timestamp=lambda record: record.value
    )
    stream.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts", retention=ms(1000)
    )
    with TopologyTestDriver(builder.build(), ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for key, timestamp in [
            ("a", 3),
            ("b", 4),
            ("c", 12),
            ("a", 5),
            ("b", 6),
            ("d", 7),
            ("a", 13),
        ]:
            topic.send(key, timestamp, 1_000_000)
        assert {str(row.key): row.value for row in driver.store("counts").all()} == {
            "[a@0/10]": 1,
            "[b@0/10]": 1,
            "[c@10/20]": 1,
            "[a@10/20]": 1,
        }


def test_an_extractor_that_raises_fails_its_record_in_the_task_that_owns_it() -> None:
    def refuse(record: TimestampedRecord[str, int]) -> int:
        return 1 // (record.value or 0)

    with TopologyTestDriver(
        copying(refuse), ranges=2, config={"processing.exception.handler": "continue"}
    ) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        topic.send("a", 0)
        topic.send("a", 1)
        assert [record.value for record in driver.outputs()] == [1]
        (failure,) = driver.failures
        assert (failure.phase, failure.node, failure.offset, type(failure.error)) == (
            "processing",
            "KSTREAM-SOURCE-0000000000",
            0,
            ZeroDivisionError,
        )


@pytest.mark.parametrize("written", [-1, 0, 1, 1_700_000_000_000])
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_failure_and_its_dead_letter_have_kafkas_timestamp_if_none_could_be_extracted(
    ranges: int, written: int
) -> None:
    settings = {
        "deserialization.exception.handler": "dead-letter",
        "processing.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    with TopologyTestDriver(
        copying(lambda record: record.value["at"]), ranges, config=settings
    ) as driver:
        for value in (b"no JSON", b"{}", None):
            driver.input("in", serdes.text, serdes.raw).send("a", value, written)
        assert [failure.timestamp for failure in driver.failures] == [written] * 3
        assert [letter.timestamp for letter in driver.output("dead").records()] == [
            written
        ] * 3


def test_the_error_of_a_record_is_found_again_with_all_that_the_extractor_was_given() -> (
    None
):
    def refuse(record: TimestampedRecord[str, int]) -> int:
        if record.value == 0:
            raise ValueError(f"{record.timestamp} after {record.stream_time}")
        return record.timestamp

    with TopologyTestDriver(
        copying(refuse), config={"processing.exception.handler": "continue"}
    ) as driver:
        driver.input("in", serdes.text, serdes.json).send("a", 1, 20)
        driver.input("in", serdes.text, serdes.json).send("a", 0, 7)
        assert [str(failure.error) for failure in driver.failures] == ["7 after 20"]


def test_a_record_that_cannot_be_read_fails_in_deserialization() -> None:
    with (
        TopologyTestDriver(copying(lambda record: record.value)) as driver,
        pytest.raises(ProcessingError, match="cannot be read at KSTREAM-SOURCE-0"),
    ):
        driver.input("in", serdes.text, serdes.raw).send("a", b"{")


@pytest.mark.parametrize(
    "returned", [1.5, datetime(2026, 11, 25, tzinfo=UTC), "1764000000000", 1 << 63]
)
def test_what_is_no_number_of_milliseconds_is_an_error_that_names_the_function(
    returned: Any,
) -> None:
    def seconds(_: object) -> Any:
        return returned

    with (
        TopologyTestDriver(copying(seconds)) as driver,
        pytest.raises(ProcessingError) as raised,
    ):
        driver.input("in", serdes.text, serdes.json).send("a", 1)
    line = seconds.__code__.co_firstlineno
    assert (
        f"seconds (line {line} of {__file__}), which returned {returned!r}. It must"
        in str(raised.value)
    )
    assert "milliseconds since the epoch as an int" in str(raised.value)


@pytest.mark.parametrize("plane", ["0", pytest.param("1", marks=needs_native)])
@pytest.mark.parametrize("windowed", [False, True])
def test_a_timestamp_of_more_than_63_bits_fails_its_record_alone(
    plane: str, windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, plane)
    builder = StreamsBuilder("app")
    grouped = builder.stream(
        "in", key=serdes.text, value=serdes.json, timestamp=lambda record: record.value
    ).group_by_key()
    (grouped.windowed_by(TimeWindows(milliseconds=10)) if windowed else grouped).count(
        store="counts"
    )
    with TopologyTestDriver(
        builder.build(), config={"processing.exception.handler": "continue"}
    ) as driver:
        for value in (1, 1 << 63, 2):
            driver.input("in", serdes.text, serdes.json).send("a", value)
        assert [row.value for row in driver.store("counts").all()] == [2]
        assert [
            (failure.offset, type(failure.error)) for failure in driver.failures
        ] == [(1, ProcessingError)]
