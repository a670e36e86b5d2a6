"""Stream-global joins: each record looks up a key of its choice, in a table of which
every task has all rows.
"""

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, TopologyError

Event = tuple[str, str | None, Any]


def joined(
    *events: Event, left: bool = False, ranges: int = 1
) -> list[tuple[str | None, Any, int]]:
    """Return the outputs of a join after these events: (topic, key, value), each a
    millisecond after the one before.
    """
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    names = builder.global_table(
        "names", key=serdes.text, value=serdes.json, store="all-names"
    )

    def pair(order: Any, name: Any) -> list[Any]:
        return [order, name]

    (orders.left_join if left else orders.join)(
        names, pair, on=lambda _, order: order["name"], value=serdes.json
    ).to("out")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for timestamp, (topic, key, value) in enumerate(events):
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp)
        assert all(
            driver.store("all-names").get(row.key) == row.value
            for row in driver.store("all-names").all()
        )
        return [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ]


ANN, NOBODY, NULL = {"name": "ann"}, {"name": "nobody"}, {"name": None}


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_record_meets_the_row_it_names_and_keeps_its_key_and_timestamp(
    ranges: int,
) -> None:
    out = joined(
        ("orders", "a", ANN),
        ("names", "ann", 7),
        ("orders", "a", ANN),
        ("orders", "b", NOBODY),
        ("orders", None, ANN),
        ranges=ranges,
    )
    assert out == [("a", [ANN, 7], 2), (None, [ANN, 7], 4)]


def test_a_left_join_has_none_where_there_is_no_row_and_where_no_key_is_named() -> None:
    out = joined(
        ("orders", "a", ANN),
        ("names", "ann", 7),
        ("orders", "a", ANN),
        ("names", "ann", None),
        ("orders", "a", ANN),
        left=True,
    )
    assert [value for _, value, _ in out] == [[ANN, None], [ANN, 7], [ANN, None]]
    assert joined(("orders", "a", NULL), left=True) == [("a", [NULL, None], 0)]
    assert joined(("orders", "a", NULL)) == []


def test_records_without_a_value_are_dropped() -> None:
    assert joined(("orders", "a", None), left=True) == []


def test_a_global_table_needs_neither_a_changelog_nor_equal_partitions() -> None:
    builder = StreamsBuilder("app")
    names = builder.global_table("names", key=serdes.text, value=serdes.json)
    builder.stream("orders", key=serdes.text, value=serdes.json).join(
        names, max, on=lambda key, _: key, value=serdes.json
    ).to("out")
    topology = builder.build()
    assert topology.internal_topics == ()
    assert topology.source_topics == ("orders", "names")
    with TopologyTestDriver(
        topology, partitions={"orders": 3, "names": 1, "out": 1}
    ) as driver:
        driver.input("names", serdes.text, serdes.json).send("b", 5)
        driver.input("orders", serdes.text, serdes.json).send("b", 3)
        assert [record.value for record in driver.outputs()] == [5]


def test_a_topic_is_not_read_in_two_ways() -> None:
    builder = StreamsBuilder("app")
    builder.global_table("names", key=serdes.text, value=serdes.json)
    builder.stream("names", key=serdes.text, value=serdes.json).to("out")
    with pytest.raises(
        TopologyError, match=r'"names" is read as a global table and as a stream'
    ):
        builder.build()


@pytest.mark.parametrize("answer", ["continue", "dead-letter"])
def test_a_row_that_cannot_be_read_is_for_the_handler_and_the_one_before_stays(
    answer: str,
) -> None:
    builder = StreamsBuilder("app")
    names = builder.global_table(
        "names", key=serdes.text, value=serdes.json, store="all-names"
    )
    builder.stream("orders", key=serdes.text, value=serdes.json).join(
        names,
        lambda order, name: [order["name"], name],
        on=lambda _, order: order["name"],
        value=serdes.json,
    ).to("out")
    config = {
        "deserialization.exception.handler": answer,
        "errors.dead.letter.queue.topic.name": "dead",
    }
    with TopologyTestDriver(builder.build(), config=config) as driver:
        driver.input("names", serdes.text, serdes.json).send("ann", 7)
        driver.input("names", serdes.text, serdes.raw).send("ann", b"no JSON")
        driver.input("orders", serdes.text, serdes.json).send("a", ANN)
        assert [(failure.node, failure.value) for failure in driver.failures] == [
            ("all-names", b"no JSON")
        ]
        assert [
            record.value
            for record in driver.output("dead", serdes.text, serdes.raw).records()
        ] == ([b"no JSON"] if answer == "dead-letter" else [])
        assert [
            record.value
            for record in driver.output("out", serdes.text, serdes.json).records()
        ] == [["ann", 7]]
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match="all-names"),
    ):
        driver.input("names", serdes.text, serdes.raw).send("ann", b"no JSON")
