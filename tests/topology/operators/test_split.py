"""`split`: each record goes to the first branch whose predicate is true."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, TopologyError


def test_the_first_predicate_that_is_true_decides() -> None:
    builder = StreamsBuilder("app")
    branches = (
        builder.stream("in", key=serdes.text, value=serdes.json)
        .split(name="size-")
        .branch(lambda _, value: value < 10, name="small")
        .branch(lambda _, value: value < 100, name="medium")
        .default_branch(name="large")
    )
    for name, stream in branches.items():
        stream.to(name)
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        for value in (50, 5, 500):
            topic.send("k", value)
        assert [(record.topic, record.value) for record in driver.outputs()] == [
            ("medium", 50),
            ("small", 5),
            ("large", 500),
        ]
    assert "size-small" in topology.describe()


def test_without_a_default_branch_what_nobody_wants_ends(flow: Any) -> None:
    def write(stream: Any) -> Any:
        return (
            stream.split()
            .branch(lambda _, value: value > 1, name="many")
            .no_default_branch()["many"]
        )

    assert flow(write, ("a", 1, 0), ("a", 2, 1)) == [("a", 2, 1)]


def test_branches_without_names_are_numbered_and_the_default_is_0(flow: Any) -> None:
    def write(stream: Any) -> Any:
        branches = (
            stream.split()
            .branch(lambda _, value: value == 1)
            .branch(lambda _, value: value == 2)
            .default_branch()
        )
        assert list(branches) == ["1", "2", "0"]
        return branches["2"].map_values(str, value=serdes.json).merge(branches["0"])

    assert flow(write, ("a", 1, 0), ("a", 2, 1), ("a", 3, 2)) == [
        ("a", "2", 1),
        ("a", 3, 2),
    ]


def test_what_a_branch_reads_of_a_value_is_not_taken_for_read_in_the_next(
    flow: Any,
) -> None:
    def write(stream: Any) -> Any:
        branches = (
            stream.split()
            .branch(lambda key, _: key == "a", name="a")
            .default_branch(name="b")
        )
        return (
            branches["a"]
            .map_values(lambda value: value + 1, value=serdes.json)
            .merge(branches["b"].filter(lambda _, value: value > 1))
        )

    assert flow(write, ("a", 1, 0), ("b", 2, 1), ("b", 1, 2)) == [
        ("a", 2, 0),
        ("b", 2, 1),
    ]


def test_a_predicate_that_raises_fails_the_record_at_the_split(flow: Any) -> None:
    with pytest.raises(ProcessingError, match="KSTREAM-BRANCH"):
        flow(
            lambda stream: (
                stream.split().branch(lambda _, value: value < 1).default_branch()["0"]
            ),
            ("a", "text", 0),
        )


def test_a_split_without_branches_or_with_two_of_one_name_is_refused() -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
    with pytest.raises(TopologyError, match="no branch"):
        stream.split().no_default_branch()
    with pytest.raises(TopologyError, match='two branches are named "x"'):
        stream.split().branch(lambda _, __: True, name="x").default_branch(name="x")
