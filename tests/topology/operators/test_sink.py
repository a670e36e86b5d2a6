"""`to`: records become bytes in a topic."""

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError


def test_a_sink_may_write_with_other_serdes_than_the_source_read_with() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.int64, value=serdes.int64).to(
        "out", key=serdes.json, value=serdes.json
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.int64, serdes.int64).send(1, 2)
        assert [
            (record.key, record.value)
            for record in driver.output("out", serdes.raw, serdes.raw).records()
        ] == [(b"1", b"2")]


def test_nulls_stay_nulls_and_empty_bytes_stay_empty(flow: Any) -> None:
    assert flow(lambda stream: stream, (None, None, 1), ("", "", 2)) == [
        (None, None, 1),
        ("", "", 2),
    ]


def test_two_sinks_on_one_topic_keep_the_order_of_forwarding() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.map_values(str.upper, value=serdes.text).to("out")
    stream.to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for word in ("a", "b"):
            driver.input("in", serdes.text, serdes.text).send("k", word)
        assert [record.value for record in driver.outputs()] == ["A", "a", "B", "b"]


def test_a_value_that_does_not_fit_the_serde_fails_at_the_sink() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.map_values(len, value=serdes.text).to("out", name="the-sink")  # type: ignore[arg-type]
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(
            ProcessingError, match=r"the-sink.*serde text cannot write the int 5"
        ),
    ):
        driver.input("in", serdes.text, serdes.text).send("k", "words")
