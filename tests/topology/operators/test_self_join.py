"""A stream joined with itself: one store for both sides gives the same results as two."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from tests.durations import ms

Event: TypeAlias = tuple[str | None, Any, int]
Results: TypeAlias = list[tuple[str | None, Any, int]]

ONE_STORE = {"topology.optimization": "single.store.self.join"}

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.one_of(st.none(), st.integers(0, 9)),
        st.integers(0, 60),
    ),
    max_size=25,
)
WINDOWS = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 20)).map(
    lambda b: JoinWindows(before=ms(b[0]), after=ms(b[1]), grace=ms(b[2]))
)


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


@cache
def self_join(
    windows: JoinWindows, kind: str = "join", *, rekeyed: bool = False
) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    if rekeyed:
        stream = stream.select_key(lambda key, _: f"new {key}", key=serdes.text)
    getattr(stream, kind)(
        stream, pair, windows=windows, value=serdes.json, store="j"
    ).to("out")
    return builder.build()


def results(
    topology: Topology,
    events: list[Event],
    config: dict[str, str] | None = None,
    *,
    ranges: int = 1,
    folder: Path | None = None,
) -> Results:
    """Return the output; with a folder, from stores on RocksDB and with a commit after
    each record.
    """
    with TopologyTestDriver(topology, ranges, config, state_dir=folder) as driver:
        for key, value, timestamp in events:
            driver.input("in", serdes.text, serdes.json).send(key, value, timestamp)
            if folder is not None:
                driver.commit()
        return [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ]


@pytest.mark.ci
@settings(max_examples=150, deadline=None)
@given(EVENTS, WINDOWS, st.sampled_from([1, 4]))
def test_one_store_gives_the_results_of_two_in_their_order(
    events: list[Event], windows: JoinWindows, ranges: int
) -> None:
    topology = self_join(windows)
    assert results(topology, events, ONE_STORE, ranges=ranges) == results(
        topology, events, ranges=ranges
    )


@settings(max_examples=15, deadline=None)
@given(EVENTS, WINDOWS)
def test_the_same_on_rocksdb_with_commits_between(
    events: list[Event], windows: JoinWindows
) -> None:
    topology = self_join(windows)
    with TemporaryDirectory() as folder:
        assert results(topology, events, ONE_STORE, folder=Path(folder)) == results(
            topology, events
        )


def test_a_record_meets_itself_and_each_pair_comes_both_ways() -> None:
    events: list[Event] = [("a", 1, 0), ("a", 2, 5), ("b", 3, 5)]
    expected = [
        ("a", [1, 1], 0),
        ("a", [2, 1], 5),
        ("a", [1, 2], 5),
        ("a", [2, 2], 5),
        ("b", [3, 3], 5),
    ]
    assert (
        results(self_join(JoinWindows(milliseconds=10, grace=0)), events, ONE_STORE)
        == expected
    )


@pytest.mark.parametrize("rekeyed", [False, True])
def test_the_second_store_and_its_changelog_are_gone(rekeyed: bool) -> None:
    topology = self_join(JoinWindows(milliseconds=10, grace=0), rekeyed=rekeyed)
    once = topology.optimized("single.store.self.join")
    assert [store.name for part in topology.subtopologies for store in part.stores] == [
        "j-this-join-store",
        "j-other-join-store",
    ]
    assert [store.name for part in once.subtopologies for store in part.stores] == [
        "j-this-join-store"
    ]
    gone = {topic.name for topic in topology.internal_topics} - {
        topic.name for topic in once.internal_topics
    }
    assert gone == {"app-j-other-join-store-changelog"}
    assert "(stores: [j-this-join-store])" in once.describe()
    assert [
        store["name"]
        for part in json.loads(once.describe("json"))["subtopologies"]
        for store in part["stores"]
    ] == ["j-this-join-store"]


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_joins_that_tell_of_what_has_no_match_are_left_as_they_are(kind: str) -> None:
    topology = self_join(JoinWindows(milliseconds=10, grace=0), kind)
    assert topology.optimized("all") == topology


def test_streams_that_only_look_alike_keep_both_stores() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.join(
        stream.map_values(lambda value: value, value=serdes.json),
        pair,
        windows=JoinWindows(milliseconds=5, grace=0),
        value=serdes.json,
    ).to("out")
    topology = builder.build()
    assert topology.optimized("all") == topology
