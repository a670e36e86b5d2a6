"""`map`, `select_key`, `repartition`, `group_by`: records with a new key go to the
partition of that key.
"""

from typing import Any

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder


def test_map_makes_a_new_pair(flow: Any) -> None:
    out = flow(
        lambda stream: stream.map(
            lambda key, value: (f"{key}{value}", value + 1),
            key=serdes.text,
            value=serdes.json,
        ),
        ("a", 1, 3),
    )
    assert out == [("a1", 2, 3)]


def test_select_key_makes_a_new_key(flow: Any) -> None:
    assert flow(
        lambda stream: stream.select_key(lambda _, value: value, key=serdes.text),
        ("a", "b", 3),
        ("a", None, 4),
    ) == [
        ("b", "b", 3),
        (None, None, 4),
    ]


def test_a_key_of_another_type_is_written_with_its_own_serde(flow: Any) -> None:
    assert flow(
        lambda stream: stream.select_key(lambda _, value: value, key=serdes.int64),
        ("a", 7, 3),
    ) == [(7, 7, 3)]


def test_repartition_keeps_order_key_and_timestamp(flow: Any) -> None:
    records = [(str(n % 3), n, 10 - n) for n in range(9)]
    assert flow(lambda stream: stream.repartition(name="shuffled"), *records) == records


def test_a_record_without_a_key_ends_before_a_repartition_topic(flow: Any) -> None:
    assert flow(
        lambda stream: stream.repartition(name="shuffled"), (None, 1, 0), ("a", 2, 1)
    ) == [("a", 2, 1)]


def test_records_grouped_by_another_key_meet_in_its_partition_and_range() -> None:
    builder = StreamsBuilder("app")
    lines = builder.stream("lines", key=serdes.text, value=serdes.text)
    lines.group_by(lambda _, line: line[:1] or None, key=serdes.text).count(
        store="by-letter"
    )
    with TopologyTestDriver(builder.build(), ranges=3, partitions=4) as driver:
        topic = driver.input("lines", serdes.text, serdes.text)
        for number, line in enumerate(
            ["apple", "bread", "avocado", "", "banana", "cherry", "apricot"]
        ):
            topic.send(str(number), line)
        assert {row.key: row.value for row in driver.store("by-letter").all()} == {
            "a": 3,
            "b": 2,
            "c": 1,
        }
        assert list(driver.dropped.values()) == [1]
