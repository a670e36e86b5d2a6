"""`to` with a function: the topic of each record."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError


def driver_of(topic_of: Any, ranges: int = 1) -> TopologyTestDriver:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).to(topic_of)
    return TopologyTestDriver(builder.build(), ranges)


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_function_of_key_and_value_names_the_topic(ranges: int) -> None:
    with driver_of(lambda key, value: f"{key}-{value['kind']}", ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        topic.send("a", {"kind": "x"}, 1)
        topic.send("b", {"kind": "y"}, 2, [("h", b"1")])
        topic.send("a", {"kind": "x"}, 3)
        seen = [
            (record.topic, record.value, record.timestamp, record.headers)
            for record in driver.outputs()
        ]
        assert seen == [
            ("a-x", {"kind": "x"}, 1, []),
            ("b-y", {"kind": "y"}, 2, [("h", b"1")]),
            ("a-x", {"kind": "x"}, 3, []),
        ]
        assert len(driver.output("a-x", serdes.text, serdes.json).read()) == 2


@pytest.mark.parametrize(
    "topic_of", [lambda _, __: "not a topic", lambda _, __: None, lambda _, __: ["a"]]
)
def test_what_is_no_topic_fails_the_record(topic_of: Any) -> None:
    with (
        driver_of(topic_of) as driver,
        pytest.raises(ProcessingError, match="KSTREAM-SINK"),
    ):
        driver.input("in", serdes.text, serdes.json).send("a", 1)
