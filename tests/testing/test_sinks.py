"""External sinks in the test driver."""

from __future__ import annotations

import pytest

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.testing.memory_sink import MemorySink
from coopstreams.topology.errors import TopologyError


def counted(partitions: int | None = None) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    counts = stream.group_by_key().count(store="counts").to_stream()
    counts.to_sink(MemorySink(), name="totals", partitions=partitions)
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
def test_the_driver_applies_records_to_a_list_in_the_order_of_each_partition(
    ranges: int,
) -> None:
    with TopologyTestDriver(counted(3), ranges=ranges, partitions=2) as driver:
        for number in range(20):
            driver.input("in").send(f"k{number % 5}", number, headers=[("h", b"1")])
        applied = driver.sink("totals")
        assert applied.latest() == {f"k{key}": 4 for key in range(5)}
        assert [record.value for record in applied.read() if record.key == "k1"] == [
            1,
            2,
            3,
            4,
        ]
        assert applied.records()[0].headers == [("h", b"1")]
        assert applied.read() == []


def test_records_without_a_key_are_applied_too() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).to_sink(
        MemorySink(), name="all"
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send(None, "a")
        driver.input("in").send("k", None)
        assert [
            (record.key, record.value) for record in driver.sink("all").records()
        ] == [(None, "a"), ("k", None)]


def test_a_sink_that_does_not_exist_is_an_error() -> None:
    with (
        TopologyTestDriver(counted()) as driver,
        pytest.raises(TopologyError, match="has no external sink"),
    ):
        driver.sink("none")


def test_a_sink_is_one_task_a_partition_and_says_why() -> None:
    topology = counted()
    assert [part.divisible for part in topology.subtopologies] == [True, False]
    said = topology.describe()
    assert (
        "one task a partition: totals applies its records in the order of the log"
        in said
    )
    assert "Sink: totals (external: MemorySink(" in said
    assert '"external"' in topology.describe("json")


def test_what_is_no_sink_is_an_error_while_building() -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.text)
    with pytest.raises(TopologyError, match=r'to_sink\(name="x"\): .* is no sink'):
        stream.to_sink("postgresql://somewhere", name="x")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="partitions must be 1 or more"):
        stream.to_sink(MemorySink(), name="x", partitions=0)
    unknown = stream.map_values(str.upper)
    with pytest.raises(TopologyError, match="how do values become bytes"):
        unknown.to_sink(MemorySink(), name="x")
