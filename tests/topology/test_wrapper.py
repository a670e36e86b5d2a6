"""A processor wrapper sees every record at every node, in the order of Kafka Streams,
and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coopstreams import JoinWindows, StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import ConfigError


class Seen:
    """A wrapper that notes the nodes that a record enters and leaves."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, node: str, process: Callable[..., None]) -> Callable[..., None]:
        def around(*record: Any) -> None:
            self.steps.append(f"+{node}")
            process(*record)
            self.steps.append(f"-{node}")

        return around


def branching() -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text).filter(
        lambda _, value: value != "no", name="some"
    )
    stream.map_values(str.upper, value=serdes.text, name="upper").to("upper")
    stream.group_by_key().count(store="counts", name="count").to_stream().to("counts")
    return builder.build()


def test_a_record_enters_each_node_below_the_one_before_and_leaves_in_turn() -> None:
    seen = Seen()
    with TopologyTestDriver(branching(), config={"processor.wrapper": seen}) as driver:
        driver.input("in").send("k", "no")
        assert seen.steps == ["+some", "-some"]
        seen.steps.clear()
        driver.input("in").send("k", "yes")
        names = [step for step in seen.steps if step.startswith("+")]
        assert names[:2] == ["+some", "+upper"]
        assert "+count" in names
        assert seen.steps[0] == "+some"
        assert seen.steps[-1] == "-some", "its children are inside of it"
        assert seen.steps.index("-upper") < seen.steps.index("+count"), "depth first"
        assert driver.output("upper").latest() == {"k": "YES"}


def wide() -> Topology:
    """Return a program with windows, joins, a table, a processor and a repartition."""
    builder = StreamsBuilder("app")
    people = builder.table("people", key=serdes.text, value=serdes.text, store="people")
    orders = builder.stream("orders", key=serdes.text, value=serdes.text)
    orders.left_join(
        people, lambda order, name: f"{order}:{name}", value=serdes.text
    ).to("named")
    orders.join(
        orders.map_values(str.upper, value=serdes.text),
        lambda one, other: one + other,
        windows=JoinWindows(milliseconds=10),
        value=serdes.text,
    ).to("pairs")
    orders.select_key(
        lambda _, value: value[:1], key=serdes.text
    ).group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts"
    ).to_stream().to("windows")
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_the_answer_is_the_same_as_without(ranges: int, caching: bool) -> None:
    def run(config: dict[str, Any]) -> list[Any]:
        with TopologyTestDriver(wide(), ranges, config, caching=caching) as driver:
            for at in range(60):
                driver.input("people").send(
                    f"k{at % 7}", f"p{at}" if at % 5 else None, timestamp=at
                )
                driver.input("orders").send(f"k{at % 7}", f"o{at % 3}", timestamp=at)
                if at % 20 == 0:
                    driver.commit()
            driver.commit()
            return [
                sorted(map(repr, driver.output(topic).read()))
                for topic in ("named", "pairs", "windows")
            ]

    seen = Seen()
    assert run({"processor.wrapper": seen}) == run({})
    assert len(seen.steps) > 600


def test_without_a_wrapper_there_is_no_trace_of_it_in_the_code() -> None:
    topology = branching()
    (part,) = topology.subtopologies
    text = compile_subtopology(topology, part).compiled(False).text
    assert "wrapper" not in text
    assert (
        compile_subtopology(topology, part, Seen())
        .compiled(False)
        .text.count("wrapper(")
        == len(part.nodes) - 1
    )


def test_a_wrapper_is_named_like_a_handler() -> None:
    config = Config.of(
        {"bootstrap.servers": "nowhere:1", "processor.wrapper": f"{__name__}:Seen"},
        "app",
    )
    assert config["processor.wrapper"] is Seen
    with pytest.raises(ConfigError, match=r"package\.module:function"):
        Config.of(
            {"bootstrap.servers": "nowhere:1", "processor.wrapper": "logged"}, "app"
        )
