"""`peek` and `foreach`: look at records."""

from typing import Any

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder


def test_peek_sees_each_record_and_passes_it_on(flow: Any) -> None:
    seen: list[tuple[str, int]] = []
    assert flow(
        lambda stream: stream.peek(lambda key, value: seen.append((key, value))),
        ("a", 1, 5),
        ("b", None, 6),
    ) == [
        ("a", 1, 5),
        ("b", None, 6),
    ]
    assert seen == [("a", 1), ("b", None)]


def test_foreach_sees_each_record_and_ends_there() -> None:
    seen: list[str] = []
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).foreach(
        lambda _, value: seen.append(value)
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.text, serdes.text).send("a", "x")
        assert driver.outputs() == []
    assert seen == ["x"]
