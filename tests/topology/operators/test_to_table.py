"""`to_table`: the records of a stream as the upserts of a table."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from tests.topology.operators.results import outputs


def test_a_null_value_deletes_and_a_record_without_a_key_is_dropped(flow: Any) -> None:
    records = [("a", 1, 0), (None, 2, 1), ("a", None, 2)]
    assert flow(
        lambda stream: stream.to_table().map_values(
            lambda value: value + 1, value=serdes.json
        ),
        *records,
    ) == [
        ("a", 2, 0),
        ("a", None, 2),
    ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_changed_keys_go_through_a_repartition_topic_into_a_store(ranges: int) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.select_key(lambda _, value: value["id"], key=serdes.text).to_table(
        store="latest"
    )
    topology = builder.build()
    with TopologyTestDriver(topology, ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        for n, id_ in enumerate("xyx"):
            topic.send("k", {"id": id_, "n": n}, n)
        assert [(row.key, row.value["n"]) for row in driver.store("latest").all()] == [
            ("x", 2),
            ("y", 1),
        ]
    assert [topic.name for topic in topology.internal_topics] == [
        "app-latest-repartition",
        "app-latest-changelog",
    ]


def test_a_stream_joins_the_table_of_another_stream() -> None:
    builder = StreamsBuilder("app")
    table = builder.stream("rates", key=serdes.text, value=serdes.json).to_table()
    builder.stream("in", key=serdes.text, value=serdes.json).join(
        table, lambda value, rate: value * rate, value=serdes.json
    ).to("out")
    assert outputs(builder.build(), ("rates", "a", 3, 0), ("in", "a", 2, 1)) == [
        ("a", 6, 1)
    ]
