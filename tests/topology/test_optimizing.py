"""`topology.optimization`: the stores that lose their changelog, and their place in
drawings.
"""

import json
import re
from collections.abc import Callable

import pytest

from coopstreams.common.config import Config
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.optimization import OPTIMIZATIONS
from coopstreams.topology.graph.topic_patterns import matched
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms
from tests.topology.test_subtopologies import built

Write = Callable[[StreamsBuilder], object]


def reused(topology: Topology, optimization: str = "all") -> dict[str, str]:
    """Return the stores that are restored from a topic of the user."""
    optimized = topology.optimized(optimization)
    return {
        store.name: store.source
        for part in optimized.subtopologies
        for store in part.stores
        if store.source is not None
    }


def people(builder: StreamsBuilder) -> None:
    table = builder.table("people", key=serdes.text, value=serdes.json, store="people")
    table.group_by(
        lambda name, age: (age, name), key=serdes.text, value=serdes.json
    ).count(store="ages")


def test_the_table_of_a_topic_needs_no_changelog() -> None:
    topology = built(people)
    assert reused(topology) == {"people": "people"}
    assert {topic.name for topic in topology.internal_topics} == {
        "app-people-changelog",
        "app-ages-changelog",
        "app-ages-repartition",
    }
    assert {topic.name for topic in topology.optimized("all").internal_topics} == {
        "app-ages-changelog",
        "app-ages-repartition",
    }


def test_a_stream_that_nobody_changed_is_as_good_as_a_table() -> None:
    assert reused(
        built(
            lambda b: b.stream("t", key=serdes.text, value=serdes.json).to_table(
                store="kept"
            )
        )
    ) == {"kept": "t"}


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.table(
            "t",
            key=serdes.text,
            value=serdes.json,
            store="s",
            timestamp=lambda record: record.value,
        ),
        lambda b: b.table(
            "t", key=serdes.text, value=serdes.json, store="s", history=ms(1000)
        ),
        lambda b: b.table("t", key=serdes.text, value=serdes.json).filter(
            lambda key, value: value, store="s"
        ),
        lambda b: b.stream(["t", "u"], key=serdes.text, value=serdes.json).to_table(
            store="s"
        ),
        lambda b: b.stream(
            re.compile("t+"), key=serdes.text, value=serdes.json
        ).to_table(store="s"),
        lambda b: (
            b.stream("t", key=serdes.text, value=serdes.json)
            .map_values(lambda v: v, value=serdes.json)
            .to_table(store="s")
        ),
        lambda b: b.stream("t", key=serdes.text, value=serdes.json).to_table(
            value=serdes.json(list[int]), store="s"
        ),
        lambda b: (
            b.stream("t", key=serdes.text, value=serdes.json)
            .select_key(lambda k, v: v, key=serdes.text)
            .to_table(store="s")
        ),
        lambda b: (
            b.table("t", key=serdes.text, value=serdes.json, store="s"),
            b.stream("t", key=serdes.text, value=serdes.json).to("out"),
        ),
        lambda b: (
            b.stream("t", key=serdes.text, value=serdes.json)
            .group_by_key()
            .count(store="s")
        ),
    ],
    ids=[
        "timestamp=",
        "history=",
        "view",
        "two topics",
        "pattern",
        "other values",
        "another serde",
        "other keys",
        "two readers",
        "aggregate",
    ],
)
def test_whatever_is_not_a_topic_as_it_is_keeps_its_changelog(write: Write) -> None:
    topology = matched(built(write), ["t"])
    assert topology.optimized("reuse.ktable.source.topics") == topology
    assert "app-s-changelog" in {topic.name for topic in topology.internal_topics}


@pytest.mark.parametrize(
    "optimization", ["none", "merge.repartition.topics", "single.store.self.join"]
)
def test_what_is_not_asked_for_is_not_done(optimization: str) -> None:
    topology = built(people)
    assert topology.optimized(optimization) == topology


def test_drawings_show_where_a_store_is_restored_from() -> None:
    topology = built(people).optimized("all")
    stores = [
        store
        for part in json.loads(topology.describe("json"))["subtopologies"]
        for store in part["stores"]
    ]
    assert {store["name"]: store["changelog"] for store in stores} == {
        "people": "people",
        "ages": "app-ages-changelog",
    }
    assert '"topic:people" -> "store:people" [dir=none];' in topology.describe("dot")


@pytest.mark.parametrize(
    "words", ["none", "all", *OPTIMIZATIONS, " , ".join(OPTIMIZATIONS)]
)
def test_the_setting_takes_the_words_of_kafka_streams(words: str) -> None:
    assert (
        Config.of({"bootstrap.servers": "x", "topology.optimization": words})[
            "topology.optimization"
        ]
        == words
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "everything",
        "all,none",
        "all,single.store.self.join",
        "merge.repartition.topic",
    ],
)
def test_other_words_are_an_error_that_says_which_there_are(words: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"topology\.optimization = .*: must be none, all, or a list of reuse\.ktable\.source\.topics, ",
    ):
        Config.of({"bootstrap.servers": "x", "topology.optimization": words})


@pytest.mark.parametrize("ranges", [1, 4])
def test_results_do_not_depend_on_it(ranges: int) -> None:
    def results(optimization: str) -> list[tuple[object, object]]:
        with TopologyTestDriver(
            built(people), ranges, {"topology.optimization": optimization}
        ) as driver:
            for name, age in (
                ("ann", "young"),
                ("bob", "old"),
                ("ann", "old"),
                ("bob", None),
            ):
                driver.input("people", serdes.text, serdes.json).send(name, age)
            driver.commit()
            return [(driver.store("people").all(), driver.store("ages").all())]

    assert results("all") == results("none")
