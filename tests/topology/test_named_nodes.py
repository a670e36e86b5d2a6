"""`TopologyBuilder`: sources, processors, stores and sinks by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from coopstreams import (
    KTable,
    Processor,
    Record,
    StreamsBuilder,
    TopologyBuilder,
    key_value_store,
    until_time_limit,
    window_store,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.nodes import Processing, Sink, Source
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.stores import StoreSpec
from tests.durations import ms
from tests.topology.operators.test_process import COUNTS, Counting

AnyRecord: TypeAlias = Record[Any, Any]
TEXT: dict[str, Any] = {"key": serdes.text, "value": serdes.text}
NUMBERS: dict[str, Any] = {"key": serdes.text, "value": serdes.int64}


class Pass(Processor[Any, Any, Any, Any]):
    def process(self, record: AnyRecord) -> None:
        self.context.forward(record)


class Sort(Processor[str, str, str, str]):
    """Shouts go to the sink `loud`, whispers to the processor `again`, the rest
    everywhere.
    """

    def process(self, record: Record[str, str]) -> None:
        to = (
            "loud"
            if record.value.isupper()
            else "again"
            if record.value.islower()
            else None
        )
        self.context.forward(record, to=to)


class Rekey(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_key(record.value))


def text_source(name: str = "lines", *topics: str) -> TopologyBuilder:
    return TopologyBuilder("app").add_source(name, *(topics or ("in",)), **TEXT)


def outputs(
    topology: Topology, *records: tuple[str, str, str], ranges: int = 1, **more: Any
) -> list[tuple[str, Any, Any]]:
    """Return the output, (topic, key, value), of these inputs, (topic, key, text)."""
    with TopologyTestDriver(topology, ranges, **more) as driver:
        for topic, key, value in records:
            driver.input(topic, serdes.text, serdes.text).send(key, value)
        return [(record.topic, record.key, record.value) for record in driver.outputs()]


def test_records_go_from_source_to_processor_to_sink() -> None:
    topology = (
        text_source()
        .add_processor("pass", Pass, "lines", by_key=False)
        .add_sink("copy", "out", "pass", **TEXT)
        .build()
    )
    assert outputs(topology, ("in", "a", "x"), ("in", "b", "y")) == [
        ("out", "a", "x"),
        ("out", "b", "y"),
    ]


def test_the_nodes_are_those_of_the_operators() -> None:
    topology = (
        text_source()
        .add_processor("pass", Pass, "lines", by_key=False)
        .add_sink("copy", "out", "pass", **TEXT)
        .build()
    )
    (part,) = topology.subtopologies
    assert [(type(node), node.name, node.parents) for node in part.nodes] == [
        (Source, "lines", ()),
        (Processing, "pass", ("lines",)),
        (Sink, "copy", ("pass",)),
    ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_state_kept_by_key_is_cut_into_key_ranges(ranges: int) -> None:
    topology = (
        text_source()
        .add_processor("count", Counting, "lines", by_key=True)
        .add_state_store(COUNTS, "count")
        .add_sink("numbers", "out", "count", **NUMBERS)
        .build()
    )
    assert topology.subtopologies[0].divisible
    assert [topic.name for topic in topology.internal_topics] == [
        "app-counts-changelog"
    ]
    with TopologyTestDriver(topology, ranges) as driver:
        for key in "abcadbea":
            driver.input("in", serdes.text, serdes.text).send(key, "")
        assert driver.output("out", serdes.text, serdes.int64).latest() == {
            "a": 3,
            "b": 2,
            "c": 1,
            "d": 1,
            "e": 1,
        }
        assert [record.key for record in driver.outputs()] == list("abcadbea")
        driver.commit()
        assert {row.key: row.value for row in driver.store("counts").all()} == {
            "a": 3,
            "b": 2,
            "c": 1,
            "d": 1,
            "e": 1,
        }


def test_a_processor_that_does_not_go_by_key_has_its_partition_to_itself() -> None:
    topology = (
        text_source()
        .add_processor("count", Counting, "lines", stores=[COUNTS], by_key=False)
        .add_sink("numbers", "out", "count", **NUMBERS)
        .build()
    )
    assert not topology.subtopologies[0].divisible
    records = [("in", key, "") for key in "abca"]
    assert (
        outputs(topology, *records, ranges=4)
        == outputs(topology, *records)
        == [("out", *pair) for pair in zip("abca", [1, 1, 1, 2], strict=True)]
    )


@pytest.mark.parametrize("ranges", [1, 4])
def test_forward_finds_processors_and_sinks_by_name(ranges: int) -> None:
    topology = (
        text_source()
        .add_processor("sort", Sort, "lines", by_key=True)
        .add_sink("loud", "shouts", "sort", **TEXT)
        .add_processor("again", Pass, "sort", by_key=False)
        .add_sink("quiet", "whispers", "again", **TEXT)
        .build()
    )
    assert outputs(
        topology,
        ("in", "a", "HEY"),
        ("in", "a", "psst"),
        ("in", "a", "Well"),
        ranges=ranges,
    ) == [
        ("shouts", "a", "HEY"),
        ("whispers", "a", "psst"),
        ("shouts", "a", "Well"),
        ("whispers", "a", "Well"),
    ]


def test_forward_to_a_name_that_is_no_child_says_which_there_are() -> None:
    topology = (
        text_source()
        .add_processor("sort", Sort, "lines", by_key=False)
        .add_sink("loud", "shouts", "sort", **TEXT)
        .build()
    )
    with pytest.raises(ProcessingError, match=r'to="again".*there are loud'):
        outputs(topology, ("in", "a", "psst"))


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_node_may_have_several_parents(ranges: int) -> None:
    topology = (
        text_source("one", "first")
        .add_source("two", "second", **TEXT)
        .add_processor("count", Counting, "one", "two", stores=[COUNTS], by_key=True)
        .add_processor("pass", Pass, "two", by_key=True)
        .add_sink("all", "out", "count", "pass", key=serdes.text, value=serdes.json)
        .build()
    )
    assert len(topology.subtopologies) == 1
    assert outputs(
        topology, ("first", "a", "x"), ("second", "a", "y"), ranges=ranges
    ) == [
        ("out", "a", 1),
        ("out", "a", 2),
        ("out", "a", "y"),
    ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_processors_that_leave_keys_alone_stand_before_others_that_go_by_key(
    ranges: int,
) -> None:
    topology = (
        text_source()
        .add_processor("pass", Pass, "lines", fixed_key=True, by_key=True)
        .add_processor("count", Counting, "pass", stores=[COUNTS], by_key=True)
        .add_sink("numbers", "out", "count", **NUMBERS)
        .build()
    )
    assert topology.subtopologies[0].divisible
    assert outputs(topology, *(("in", key, "") for key in "aba"), ranges=ranges) == [
        ("out", "a", 1),
        ("out", "b", 1),
        ("out", "a", 2),
    ]


def test_a_processor_with_fixed_keys_that_changes_one_fails() -> None:
    topology = (
        text_source()
        .add_processor("rekey", Rekey, "lines", fixed_key=True, by_key=False)
        .add_sink("copy", "out", "rekey", **TEXT)
        .build()
    )
    with pytest.raises(
        ProcessingError, match=r"rekey: .*cannot change the key 'a' to 'x'"
    ):
        outputs(topology, ("in", "a", "x"))


@pytest.mark.parametrize("ranges", [1, 4])
def test_new_keys_are_sent_through_a_topic_by_the_program_itself(ranges: int) -> None:
    topology = (
        text_source()
        .add_processor("rekey", Rekey, "lines", by_key=True)
        .add_sink("by-word", "words", "rekey", **TEXT)
        .add_source("words", "words", **TEXT)
        .add_processor("count", Counting, "words", stores=[COUNTS], by_key=True)
        .add_sink("numbers", "out", "count", **NUMBERS)
        .build()
    )
    assert [part.topics for part in topology.subtopologies] == [("in",), ("words",)]
    records = [("in", key, word) for key, word in zip("abcdef", "xyxzxy", strict=True)]
    made = [
        record
        for record in outputs(topology, *records, ranges=ranges)
        if record[0] == "out"
    ]
    assert sorted(made) == sorted(
        ("out", word, n)
        for word, most in (("x", 3), ("y", 2), ("z", 1))
        for n in range(1, most + 1)
    )


def test_a_store_in_common_makes_one_sub_topology_of_two() -> None:
    program = text_source("one", "first").add_source("two", "second", **TEXT)
    for number in ("one", "two"):
        program.add_processor(
            f"count-{number}", Counting, number, by_key=True
        ).add_sink(f"out-{number}", f"out-{number}", f"count-{number}", **NUMBERS)
    program.add_state_store(COUNTS, "count-two").connect_processor_and_state_stores(
        "count-one", "counts"
    )
    topology = program.build()
    assert [part.topics for part in topology.subtopologies] == [("first", "second")]
    assert topology.copartitioned == (
        ('process at "first, second → counts"', ("first", "second")),
    )
    assert outputs(topology, ("first", "a", ""), ("second", "a", ""), ranges=4) == [
        ("out-one", "a", 1),
        ("out-two", "a", 2),
    ]
    with pytest.raises(
        TopologyError,
        match=r'process at "first, second → counts": "first" has 2 partitions, "second" has 3.*align the topics',
    ):
        TopologyTestDriver(topology, partitions={"first": 2, "second": 3})


def test_a_sink_may_choose_the_topic_and_the_partition() -> None:
    topology = (
        text_source()
        .add_sink("by-value", lambda _, value: f"out-{value}", "lines", **TEXT)
        .add_sink(
            "last",
            "all",
            "lines",
            partitioner=lambda topic, key, value, partitions: partitions - 1,
            **TEXT,
        )
        .build()
    )
    with TopologyTestDriver(topology, partitions={"in": 1, "all": 3}) as driver:
        driver.input("in", serdes.text, serdes.text).send("a", "x")
        assert [(record.topic, record.partition) for record in driver.outputs()] == [
            ("out-x", None),
            ("all", 2),
        ]


def test_a_source_reads_by_pattern_and_takes_timestamps_from_records() -> None:
    builder = TopologyBuilder("app")
    builder.add_source(
        "lines",
        re.compile("in-.*"),
        key=serdes.text,
        value=serdes.text,
        timestamp=lambda record: int(record.value or 0),
    )
    topology = builder.add_sink("copy", "out", "lines", **TEXT).build()
    with TopologyTestDriver(topology) as driver:
        driver.input("in-1", serdes.text, serdes.text).send("a", "7")
        driver.input("in-2", serdes.text, serdes.text).send("a", "9")
        assert [(record.value, record.timestamp) for record in driver.outputs()] == [
            ("7", 7),
            ("9", 9),
        ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_program_of_operators_goes_on_by_names(ranges: int) -> None:
    builder = StreamsBuilder("app")
    lines = builder.stream("in", name="lines", **TEXT)
    upper = lines.map_values(str.upper, name="upper", value=serdes.text)
    upper.group_by_key().count(store="lines-by-key").to_stream(name="counted").to(
        "counts"
    )
    topology = (
        TopologyBuilder(builder)
        .add_processor("count", Counting, "upper", by_key=True)
        .add_state_store(COUNTS, "count")
        .connect_processor_and_state_stores("count", "lines-by-key")
        .add_sink("numbers", "out", "count", "counted", **NUMBERS)
        .build()
    )
    assert topology.subtopologies[0].divisible
    assert builder.build() == topology
    assert outputs(topology, ("in", "a", "x"), ranges=ranges) == [
        ("counts", "a", 1),
        ("out", "a", 1),
        ("out", "a", 1),
    ]


def more(_key: str, _value: int, count: int) -> int:
    return count + 1


TABLES: dict[str, Callable[[KTable[str, int], KTable[str, int]], KTable[str, int]]] = {
    "a join": lambda one, other: one.join(other, max, value=serdes.int64),
    "a join by foreign key": lambda one, other: one.join(
        other, max, foreign_key=str, value=serdes.int64
    ),
    "updates held back": lambda one, _: one.suppress(until_time_limit(ms(5))),
    "rows of other keys": lambda one, _: one.group_by(
        lambda key, n: (key, n), key=serdes.text, value=serdes.int64
    ).count(),
    "a cogroup": lambda one, _: (
        one.to_stream().group_by_key().cogroup(more).aggregate(int, value=serdes.int64)
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_processor_may_go_by_the_keys_of_any_table_without_windows(
    table: str,
) -> None:
    builder = StreamsBuilder("app")
    one, other = (
        builder.table(topic, key=serdes.text, value=serdes.int64)
        for topic in ("one", "other")
    )
    TABLES[table](one, other).to_stream(name="updates")
    program = TopologyBuilder(builder).add_processor(
        "count", Counting, "updates", stores=[COUNTS], by_key=True
    )
    assert all(part.divisible for part in program.build().subtopologies)
    numbered = key_value_store("by-number", key=serdes.int64, value=serdes.int64)
    program.add_processor("look", Pass, "updates", stores=[numbered], by_key=True)
    with pytest.raises(
        TopologyError,
        match='"look" keeps state by_key, but its store "by-number" writes keys as int64',
    ):
        program.build()


def test_all_pictures_show_the_names() -> None:
    topology = (
        text_source()
        .add_processor("count", Counting, "lines", stores=[COUNTS], by_key=True)
        .add_sink("numbers", "out", "count", **NUMBERS)
        .build()
    )
    assert topology.describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: lines (topics: [in])\n"
        "      --> count\n"
        "    Processor: count (stores: [counts])\n"
        "      --> numbers\n"
        "      <-- lines\n"
        "    Sink: numbers (topic: out)\n"
        "      <-- count\n"
    )
    for picture in ("mermaid", "dot", "json"):
        assert all(
            f'"{name}"' in topology.describe(picture).replace("node:", "")
            for name in ("lines", "count", "numbers")
        ), picture


def hourly(name: str) -> StoreSpec:
    return window_store(
        name, key=serdes.int64, value=serdes.int64, size=ms(60), retention=ms(60)
    )


MISTAKES: dict[str, tuple[Any, str]] = {
    "a parent that is not there": (
        lambda b: b.add_processor("p", Pass, "line", by_key=False),
        r'add_processor\("p"\): there is no node "line"; did you mean "lines"',
    ),
    "a child before its parent": (
        lambda b: b.add_sink("s", "out", "later", **TEXT),
        "Nodes are added after their parents",
    ),
    "no parent": (
        lambda b: b.add_processor("p", Pass, by_key=False),
        "name at least one parent",
    ),
    "nothing said of keys": (
        lambda b: b.add_processor("p", Pass, "lines"),
        r'add_processor\("p"\): say how its state is kept',
    ),
    "a parent twice": (
        lambda b: b.add_processor("p", Pass, "lines", "lines", by_key=False),
        "a parent is named twice",
    ),
    "a sink as parent": (
        lambda b: b.add_sink("s", "out", "lines", **TEXT).add_processor(
            "p", Pass, "s", by_key=False
        ),
        '"s" is a sink: nothing comes out of it',
    ),
    "a name twice": (
        lambda b: b.add_processor("lines", Pass, "lines", by_key=False),
        'two nodes are named "lines"',
    ),
    "a name that is not legal": (
        lambda b: b.add_processor("my processor", Pass, "lines", by_key=False),
        "the node name 'my processor' is not a legal name",
    ),
    "no topic": (
        lambda b: b.add_source("empty", **TEXT),
        r"add_source\(\): name at least one topic",
    ),
    "a name and a pattern": (
        lambda b: b.add_source("two", "x", re.compile("y"), **TEXT),
        "names of topics, or one pattern",
    ),
    "a topic in two sources": (
        lambda b: b.add_source("two", "x", "in", **TEXT),
        'topic "in" is read by "lines" already. Name "lines" as the parent',
    ),
    "a topic that a pattern has": (
        lambda b: b.add_source("two", re.compile("i."), **TEXT),
        'topic "in" is read by "lines" already',
    ),
    "a topic as source and global": (
        lambda b: b.add_global_store(COUNTS, "in"),
        'topic "in" is read as a global table and as a stream',
    ),
    "a source without serdes": (
        lambda b: b.add_source("two", "x", key=serdes.text, value=str),
        "value= must be a serde",
    ),
    "a sink without serdes": (
        lambda b: b.add_sink("s", "out", "lines", key=serdes.text, value=None),
        "how do values become bytes",
    ),
    "a supplier that takes arguments": (
        lambda b: b.add_processor("p", lambda x: x, "lines", by_key=False),
        r'add_processor\("p"\) calls \(\)',
    ),
    "no store": (
        lambda b: b.add_processor("p", Pass, "lines", stores=[3], by_key=False),
        "stores= takes stores",
    ),
    "no store to add": (
        lambda b: b.add_state_store("counts"),
        "takes a store such as key_value_store",
    ),
    "a store that nobody keeps": (
        lambda b: b.add_processor("p", Pass, "lines", stores=["nope"], by_key=False),
        '"p" uses a store "nope" that no node has',
    ),
    "a store that nobody uses": (
        lambda b: b.add_state_store(COUNTS),
        'no processor uses the store "counts"',
    ),
    "two stores of one name": (
        lambda b: b.add_processor(
            "p", Pass, "lines", stores=[COUNTS], by_key=False
        ).add_state_store(hourly("counts"), "p"),
        'two stores are named "counts"',
    ),
    "a store for a processor that is not there": (
        lambda b: b.add_state_store(COUNTS, "p"),
        r'add_state_store\("counts"\): there is no node "p"',
    ),
    "a store for a source": (
        lambda b: b.add_state_store(COUNTS, "lines"),
        '"lines" is a Source; only processors use stores by name',
    ),
    "nothing to connect": (
        lambda b: b.add_processor(
            "p", Pass, "lines", by_key=False
        ).connect_processor_and_state_stores("p"),
        "name at least one store",
    ),
    "a global store of windows": (
        lambda b: b.add_global_store(hourly("w"), "x"),
        r'"w" must be a key_value_store',
    ),
    "a global store with half a processor": (
        lambda b: b.add_global_store(COUNTS, "x", "p"),
        "name it and give its supplier",
    ),
    "a global store of another serde": (
        lambda b: b.add_global_store(COUNTS, "x", value=serdes.text),
        "records become rows as they are",
    ),
    "a global store with a taken name": (
        lambda b: b.add_global_store(COUNTS, "x", "lines", Pass),
        'two nodes are named "lines"',
    ),
    "by_key behind new keys": (
        lambda b: b.add_processor("rekey", Rekey, "lines", by_key=False).add_processor(
            "p", Pass, "rekey", by_key=True
        ),
        r'by_key=True needs .* but out of "rekey" other keys may come. Say fixed_key=True .* add_sink and add_source',
    ),
    "by_key with keys written in two ways": (
        lambda b: b.add_source(
            "two", "x", key=serdes.int64, value=serdes.text
        ).add_processor("p", Pass, "lines", "two", by_key=True),
        "lines and two have keys that are written in different ways",
    ),
    "by_key with state under other bytes": (
        lambda b: b.add_processor("p", Pass, "lines", by_key=True).add_state_store(
            hourly("w"), "p"
        ),
        r'store "w" writes keys as int64, and its records come with keys written as text.*Make the store with '
        r"key=serdes.text, or say by_key=False",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_while_building_and_the_message_has_the_cure(
    mistake: str,
) -> None:
    write, message = MISTAKES[mistake]
    with pytest.raises(TopologyError, match=message):
        write(text_source()).build()


def test_tables_and_splits_of_a_program_of_operators_are_no_parents() -> None:
    builder = StreamsBuilder("app")
    lines = builder.stream("in", name="lines", **TEXT)
    lines.group_by_key().count(name="counted").filter(lambda _, n: n > 1, name="many")
    lines.split(name="split").branch(
        lambda _, value: value == "", name="-empty"
    ).no_default_branch()
    low = TopologyBuilder(builder).add_processor("p", Pass, "split-empty", by_key=False)
    for table in ("counted", "many"):
        with pytest.raises(
            TopologyError,
            match=rf'updates of a table come out of "{table}". Write \.to_stream\(name=…\)',
        ):
            low.add_sink("s", "out", table, **NUMBERS)
    with pytest.raises(TopologyError, match='out of "split" come branches'):
        low.add_processor("q", Pass, "split", by_key=False)
