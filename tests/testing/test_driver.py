"""The test driver: topics, time, stores, handlers."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coopstreams.testing import OutputRecord, Row, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import (
    ConfigError,
    ProcessingError,
    SerdeError,
    TopologyError,
)
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms


def word_count() -> Topology:
    builder = StreamsBuilder("word-count")
    lines = builder.stream("lines", key=serdes.raw, value=serdes.text).flat_map_values(
        str.split
    )
    lines.group_by(lambda _, word: word.lower(), key=serdes.text).count(
        store="counts"
    ).to_stream().to("word-counts")
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_words_are_counted(ranges: int, partitions: int, caching: bool) -> None:
    with TopologyTestDriver(
        word_count(), ranges, caching=caching, partitions=partitions
    ) as driver:
        driver.input("lines").send(b"", "to be or not to be")
        driver.commit()
        assert driver.output("word-counts").latest() == {
            "to": 2,
            "be": 2,
            "or": 1,
            "not": 1,
        }
        assert driver.store("counts").get("be") == 2
        assert driver.store("counts").get("bee") is None
        assert driver.store("counts").all() == [
            Row("be", 2, 0),
            Row("not", 1, 0),
            Row("or", 1, 0),
            Row("to", 2, 0),
        ]


def test_stores_may_be_on_rocksdb(tmp_path: Path) -> None:
    with TopologyTestDriver(word_count(), ranges=2, state_dir=tmp_path) as driver:
        for line in ("a b", "a"):
            driver.input("lines").send(b"", line)
            driver.commit()
        assert driver.store("counts").all() == [Row("a", 2, 0), Row("b", 1, 0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1_0"], (
        "the other sub-topology has no store"
    )


def test_read_returns_what_came_since_the_last_read() -> None:
    with TopologyTestDriver(word_count()) as driver:
        lines, counts = driver.input("lines"), driver.output("word-counts")
        lines.send(b"", "a b")
        assert [record.key for record in counts.read()] == ["a", "b"]
        assert counts.read() == []
        lines.send(b"", "a")
        assert counts.read() == [OutputRecord("word-counts", "a", 2, 0)]
        assert len(counts.records()) == 3


def test_time_stands_still_until_it_is_moved() -> None:
    with TopologyTestDriver(word_count()) as driver:
        lines = driver.input("lines")
        lines.send(b"", "a")
        driver.advance(ms(50))
        lines.send(b"", "b")
        lines.send(b"", "c", 7)
        assert [record.timestamp for record in driver.outputs()] == [0, 50, 7]


@pytest.mark.parametrize(
    "timestamp", [1.5, 1e12, "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)]
)
def test_a_timestamp_that_is_no_whole_number_is_an_error_of_the_test(
    timestamp: Any,
) -> None:
    with TopologyTestDriver(word_count()) as driver:
        with pytest.raises(
            TopologyError,
            match=r"give milliseconds since the epoch, .* round\(time.time",
        ):
            driver.input("lines").send(b"", "to be", timestamp)
        assert driver.outputs() == []


def test_a_store_without_windows_is_not_one_that_has_none_of_a_key() -> None:
    with TopologyTestDriver(word_count()) as driver:
        driver.input("lines").send(b"", "to be")
        with pytest.raises(AssertionError, match="counts has no windows: use get"):
            driver.store("counts").fetch("to")


def test_outputs_of_all_topics_come_in_the_order_in_which_they_were_forwarded() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.to("first")
    stream.repartition(name="around").to("third")
    stream.to("second")
    with TopologyTestDriver(builder.build()) as driver:
        for value in ("1", "2"):
            driver.input("in", serdes.text, serdes.text).send("a", value)
        assert [(record.topic, record.value) for record in driver.outputs()] == [
            *(("first", "1"), ("second", "1"), ("third", "1")),
            *(("first", "2"), ("second", "2"), ("third", "2")),
        ]


def test_topics_and_stores_that_the_topology_does_not_have_are_named() -> None:
    with TopologyTestDriver(word_count()) as driver:
        with pytest.raises(
            TopologyError, match='reads no topic "line"; did you mean "lines"'
        ):
            driver.input("line", serdes.raw, serdes.text)
        with pytest.raises(
            TopologyError,
            match='writes no topic "word-count"; did you mean "word-counts"',
        ):
            driver.output("word-count", serdes.text, serdes.int64)
        with pytest.raises(
            TopologyError, match='has no store "count"; did you mean "counts"'
        ):
            driver.store("count")


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"processing\.exception\.handler"):
        TopologyTestDriver(
            word_count(), config={"procesing.exception.handler": "continue"}
        )


def dividing() -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).map_values(
        lambda value: 12 // value, value=serdes.int64
    ).to("out")
    return builder.build()


def test_topics_are_written_and_read_with_the_serdes_of_the_topology() -> None:
    builder = StreamsBuilder("app")
    names = builder.global_table(
        "names", key=serdes.int64, value=serdes.text, store="names"
    )
    stream = builder.stream(re.compile("in-.*"), key=serdes.text, value=serdes.int64)
    stream.join(
        names, lambda _, name: name, on=lambda _, value: value, value=serdes.text
    ).to("named")
    stream.to(lambda key, _: f"of-{key}")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("names").send(7, "seven")
        driver.input("in-1").send("a", 7)
        assert driver.output("named").latest() == {"a": "seven"}
        assert driver.output("of-a").latest() == {"a": 7}


def test_other_serdes_than_those_of_the_topology_may_be_named_one_by_one() -> None:
    with TopologyTestDriver(dividing()) as driver:
        driver.input("in", value=serdes.raw).send("a", serdes.int64.serialize(4))
        driver.input("in", serdes.raw).send(b"b", 6)
        assert driver.output("out", key=serdes.raw).latest() == {b"a": 3, b"b": 2}
        assert driver.output("out", serdes.text, serdes.raw).latest() == {
            "a": serdes.int64.serialize(3),
            "b": serdes.int64.serialize(2),
        }


def test_a_topic_that_is_written_with_two_serdes_is_read_with_one_that_the_test_names() -> (
    None
):
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.to("out")
    stream.map_values(str, value=serdes.text).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send("a", 1)
        with pytest.raises(
            TopologyError,
            match=r'sinks that write "out" have different serdes .int64 and text.: read it with output."out", value=',
        ):
            driver.output("out")
        with pytest.raises(TopologyError, match='output\\("out", value='):
            driver.outputs()
        assert [
            record.key for record in driver.output("out", value=serdes.raw).records()
        ] == ["a", "a"]


def end_with_nan(failed: type[Exception] | None, *, caching: bool = False) -> None:
    """End a test that has left a NaN in a row."""
    builder = StreamsBuilder("app")
    builder.stream(
        "in", key=serdes.text, value=serdes.float64
    ).group_by_key().aggregate(
        float,
        lambda _, value, total: total + value,
        value=serdes.json(float),
        store="sums",
    )
    driver = TopologyTestDriver(builder.build(), caching=caching)
    driver.input("in").send("ann", math.nan)
    driver.__exit__(failed)


@pytest.mark.parametrize("caching", [False, True])
def test_a_row_that_cannot_be_read_back_fails_the_test_at_its_end(
    caching: bool,
) -> None:
    with pytest.raises(
        SerdeError,
        match=r'"sums": the value of key b.ann. cannot be written .* \$ is nan',
    ):
        end_with_nan(None, caching=caching)


def test_a_test_that_has_failed_says_nothing_of_its_rows() -> None:
    end_with_nan(AssertionError)


def test_a_record_that_fails_stops_the_send_and_says_where() -> None:
    with TopologyTestDriver(dividing(), ranges=2) as driver:
        numbers = driver.input("in")
        numbers.send("a", 4)
        with pytest.raises(
            ProcessingError,
            match=r'"in" partition 0 offset 1 .*KSTREAM-MAPVALUES-0000000001.*ZeroDivisionError',
        ):
            numbers.send("a", 0)
        assert [record.value for record in driver.outputs()] == [3]


def test_with_continue_the_others_go_on() -> None:
    with TopologyTestDriver(
        dividing(), config={"processing.exception.handler": "continue"}
    ) as driver:
        for value in (4, 0, 6):
            driver.input("in").send("a", value)
        assert [record.value for record in driver.outputs()] == [3, 2]
        assert [failure.offset for failure in driver.failures] == [1]


def test_a_dead_letter_has_the_record_and_the_reason() -> None:
    settings = {
        "processing.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    with TopologyTestDriver(dividing(), config=settings) as driver:
        driver.input("in").send("a", 0, 5, [("h", b"x")])
        (record,) = driver.output("dead").records()
        assert (record.key, record.value, record.timestamp) == (b"a", bytes(8), 5)
        assert ("h", b"x") in record.headers
        assert any(value == b"ZeroDivisionError" for _, value in record.headers)


@dataclass
class Place:
    name: str


def test_the_latest_values_of_keys_without_a_hash_are_refused_with_what_to_write() -> (
    None
):
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.json(Place), value=serdes.text).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send(Place("here"), "a")
        with pytest.raises(
            TopologyError,
            match=r"unhashable type: 'Place', .* @dataclass\(frozen=True\) or a NamedTuple",
        ):
            driver.output("out").latest()
        assert [record.key for record in driver.output("out").records()] == [
            Place("here")
        ]
