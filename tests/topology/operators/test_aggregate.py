"""`aggregate`: fold the values of each key, from an initial value."""

from dataclasses import dataclass
from typing import Any

from coopstreams.testing import Row, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder


@dataclass
class Mean:
    total: float = 0
    count: int = 0

    def add(self, value: float) -> "Mean":
        return Mean(self.total + value, self.count + 1)


def test_values_are_folded_into_objects_that_survive_a_commit() -> None:
    builder = StreamsBuilder("app")
    numbers = builder.stream("in", key=serdes.text, value=serdes.float64)
    numbers.group_by_key().aggregate(
        Mean,
        lambda _, value, mean: mean.add(value),
        value=serdes.json(Mean),
        store="means",
    )
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        topic = driver.input("in", serdes.text, serdes.float64)
        topic.send("a", 1.0, 5)
        driver.commit()
        topic.send("a", 2.0, 4)
        topic.send("b", 3.0, 4)
        assert driver.store("means").all() == [
            Row("a", Mean(3.0, 2), 5),
            Row("b", Mean(3.0, 1), 4),
        ]


def test_the_aggregator_sees_key_value_and_aggregate(flow: Any) -> None:
    def written(key: str, value: int, aggregate: str) -> str:
        return f"{aggregate}{key}{value} "

    out = flow(
        lambda stream: stream.group_by_key().aggregate(
            lambda: ": ", written, value=serdes.json
        ),
        ("a", 1, 0),
        ("a", 2, 1),
    )
    assert out == [("a", ": a1 ", 0), ("a", ": a1 a2 ", 1)]


def test_none_deletes_the_row_and_the_next_record_begins_with_the_initializer_and_its_own_timestamp(
    flow: Any,
) -> None:
    def until_negative(_: str, value: int, total: int) -> int | None:
        return total + value if value >= 0 else None

    out = flow(
        lambda stream: stream.group_by_key().aggregate(
            lambda: 100, until_negative, value=serdes.json
        ),
        ("a", 1, 9),
        ("a", -1, 2),
        ("a", -1, 3),
        ("a", 1, 4),
    )
    assert out == [("a", 101, 9), ("a", None, 9), ("a", None, 3), ("a", 101, 4)]
