"""Descriptions of a topology, character by character."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.topology_builder import TopologyBuilder
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import Processor
from coopstreams.topology.records import Record
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms


class Ignore(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        """A supplier that is never called: a description needs no processor."""


def words(
    split: Callable[[str], list[str]] = str.split, value: Serde[Any] = serdes.text
) -> Topology:
    builder = StreamsBuilder("word-count")
    (
        builder.stream("lines", key=serdes.raw, value=value)
        .flat_map_values(split)
        .group_by(lambda _, word: word.lower(), key=serdes.text)
        .count(store="counts")
        .to_stream()
        .to("word-counts")
    )
    return builder.build()


def delays(windows: TimeWindows) -> Topology:
    builder = StreamsBuilder("delays")
    airlines = builder.table(
        "airlines", key=serdes.text, value=serdes.text, name="airlines"
    )
    flights = builder.stream(
        "flights",
        key=serdes.text,
        value=serdes.json,
        timestamp=lambda record: record.timestamp,
    )
    joined = flights.left_join(
        airlines.filter(lambda k, v: v != ""), lambda f, a: a, name="named"
    )
    joined.group_by_key().windowed_by(windows).count(store="hourly")
    return builder.build()


HOURLY = delays(TimeWindows(hours=1))


def test_the_text_is_what_kafka_streams_prints() -> None:
    assert words().describe() == (
        """\
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
      --> KSTREAM-FLATMAPVALUES-0000000001
    Processor: KSTREAM-FLATMAPVALUES-0000000001 (stores: [])
      --> KSTREAM-KEY-SELECT-0000000002
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-KEY-SELECT-0000000002 (stores: [])
      --> counts-repartition-filter
      <-- KSTREAM-FLATMAPVALUES-0000000001
    Processor: counts-repartition-filter (stores: [])
      --> counts-repartition-sink
      <-- KSTREAM-KEY-SELECT-0000000002
    Sink: counts-repartition-sink (topic: word-count-counts-repartition)
      <-- counts-repartition-filter

  Sub-topology: 1
    Source: counts-repartition-source (topics: [word-count-counts-repartition])
      --> KSTREAM-AGGREGATE-0000000003
    Processor: KSTREAM-AGGREGATE-0000000003 (stores: [counts])
      --> KTABLE-TOSTREAM-0000000007
      <-- counts-repartition-source
    Processor: KTABLE-TOSTREAM-0000000007 (stores: [])
      --> KSTREAM-SINK-0000000008
      <-- KSTREAM-AGGREGATE-0000000003
    Sink: KSTREAM-SINK-0000000008 (topic: word-counts)
      <-- KTABLE-TOSTREAM-0000000007
"""
    )


def test_the_text_shows_joins_stores_and_ends() -> None:
    assert HOURLY.describe("text") == (
        """\
Topologies:
   Sub-topology: 0
    Source: airlines-source (topics: [airlines])
      --> airlines
    Processor: airlines (stores: [airlines-STATE-STORE-0000000000])
      --> KTABLE-FILTER-0000000004
      <-- airlines-source
    Source: KSTREAM-SOURCE-0000000003 (topics: [flights])
      --> named
    Processor: KTABLE-FILTER-0000000004 (stores: [])
      --> named
      <-- airlines
    Processor: named (stores: [airlines-STATE-STORE-0000000000])
      --> KSTREAM-AGGREGATE-0000000006
      <-- KSTREAM-SOURCE-0000000003, KTABLE-FILTER-0000000004
    Processor: KSTREAM-AGGREGATE-0000000006 (stores: [hourly])
      --> none
      <-- named
"""
    )


def test_every_drawing_says_where_key_ranges_cannot_be_tasks_and_why() -> None:
    builder = TopologyBuilder("app").add_source(
        "lines", "in", key=serdes.text, value=serdes.text
    )
    builder.add_processor("look", Ignore, "lines", by_key=False).add_processor(
        "keep", Ignore, "lines", by_key=True
    )
    whole = builder.build()
    why = "(one task a partition: by_key=False at look)"
    assert f"   Sub-topology: 0 {why}\n" in whole.describe("text")
    assert f'["Sub-topology 0 {why}"]' in whole.describe("mermaid")
    assert f'label="Sub-topology 0 {why}"' in whole.describe("dot")
    assert [
        orjson.loads(drawn.describe("json"))["subtopologies"][0]["divisible"]
        for drawn in (whole, words())
    ] == [
        False,
        True,
    ]


def test_mermaid_shows_topics_and_stores() -> None:
    assert words().describe("mermaid") == (
        """\
flowchart TD
  subgraph sub0["Sub-topology 0"]
    n1["KSTREAM-SOURCE-0000000000"]
    n2["KSTREAM-FLATMAPVALUES-0000000001"]
    n3["KSTREAM-KEY-SELECT-0000000002"]
    n4["counts-repartition-filter"]
    n5["counts-repartition-sink"]
  end
  subgraph sub1["Sub-topology 1"]
    n7["counts-repartition-source"]
    n8["KSTREAM-AGGREGATE-0000000003"]
    n10["KTABLE-TOSTREAM-0000000007"]
    n11["KSTREAM-SINK-0000000008"]
    s9[("counts")]
  end
  t0(["lines"])
  t6(["word-count-counts-repartition"])
  t12(["word-counts"])
  t0 --> n1
  n1 --> n2
  n2 --> n3
  n3 --> n4
  n4 --> n5
  n5 --> t6
  t6 --> n7
  n7 --> n8
  n8 --- s9
  n8 --> n10
  n10 --> n11
  n11 --> t12
"""
    )


def test_dot_shows_topics_and_stores() -> None:
    assert HOURLY.describe("dot") == (
        """\
digraph "delays" {
  node [shape=box];
  subgraph cluster_0 {
    label="Sub-topology 0";
    "node:airlines-source" [label="airlines-source"];
    "node:airlines" [label="airlines"];
    "node:KSTREAM-SOURCE-0000000003" [label="KSTREAM-SOURCE-0000000003"];
    "node:KTABLE-FILTER-0000000004" [label="KTABLE-FILTER-0000000004"];
    "node:named" [label="named"];
    "node:KSTREAM-AGGREGATE-0000000006" [label="KSTREAM-AGGREGATE-0000000006"];
    "store:airlines-STATE-STORE-0000000000" [label="airlines-STATE-STORE-0000000000", shape=cylinder];
    "store:hourly" [label="hourly", shape=cylinder];
  }
  "topic:airlines" [label="airlines", shape=oval];
  "topic:flights" [label="flights", shape=oval];
  "topic:airlines" -> "node:airlines-source";
  "node:airlines-source" -> "node:airlines";
  "node:airlines" -> "store:airlines-STATE-STORE-0000000000" [dir=none];
  "topic:flights" -> "node:KSTREAM-SOURCE-0000000003";
  "node:airlines" -> "node:KTABLE-FILTER-0000000004";
  "node:KSTREAM-SOURCE-0000000003" -> "node:named";
  "node:KTABLE-FILTER-0000000004" -> "node:named";
  "node:named" -> "store:airlines-STATE-STORE-0000000000" [dir=none];
  "node:named" -> "node:KSTREAM-AGGREGATE-0000000006";
  "node:KSTREAM-AGGREGATE-0000000006" -> "store:hourly" [dir=none];
}
"""
    )


def test_json_says_what_the_pictures_leave_out() -> None:
    drawn = json.loads(HOURLY.describe("json"))
    (subtopology,) = drawn["subtopologies"]
    nodes = {node["name"]: node for node in subtopology["nodes"]}
    assert nodes["KSTREAM-SOURCE-0000000003"] == {
        "name": "KSTREAM-SOURCE-0000000003",
        "operator": "Source",
        "topics": ["flights"],
        "key": "text",
        "value": "json",
        "extracts_timestamps": True,
        "parents": [],
        "children": ["named"],
    }
    assert nodes["KSTREAM-AGGREGATE-0000000006"]["windows"] == {
        "type": "TimeWindows",
        "size_ms": 3_600_000,
        "advance_ms": 3_600_000,
        "grace_ms": 0,
    }
    assert subtopology["topics"] == ["airlines", "flights"]
    assert subtopology["stores"][1] == {
        "name": "hourly",
        "kind": "window",
        "key": "text",
        "value": "int64",
        "made_by": ["count"],
        "reads": ["airlines", "flights"],
        "windows": {
            "type": "TimeWindows",
            "size_ms": 3_600_000,
            "advance_ms": 3_600_000,
            "grace_ms": 0,
        },
        "window_ms": 3_600_000,
        "retention_ms": 3_600_000,
        "history_ms": None,
        "suffix_bytes": 0,
        "stores_above": ["airlines-STATE-STORE-0000000000"],
        "changelog": "delays-hourly-changelog",
    }
    assert drawn["copartitioned"] == [
        {
            "at": 'left_join at "flights → left_join(airlines)"',
            "topics": ["flights", "airlines"],
        },
        {
            "at": 'table at "flights, airlines → hourly"',
            "topics": ["flights", "airlines"],
        },
    ]
    assert [topic["name"] for topic in drawn["internal_topics"]] == [
        "delays-airlines-STATE-STORE-0000000000-changelog",
        "delays-hourly-changelog",
    ]


def test_another_format_is_an_error() -> None:
    with pytest.raises(
        TopologyError, match="described as text, mermaid, dot, svg, json, not as 'png'"
    ):
        words().describe("png")


def test_joins_show_what_they_keep_and_look_into() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    other = builder.stream("other", key=serdes.text, value=serdes.text)
    everywhere = builder.global_table(
        "global", key=serdes.text, value=serdes.text, store="all-rows"
    )
    both = stream.left_join(
        other,
        lambda a, b: a + (b or ""),
        windows=JoinWindows(milliseconds=5, grace=ms(3)),
        value=serdes.text,
        store="pair",
    )
    both.join(everywhere, max, on=lambda key, _: key, value=serdes.text).to("out")
    topology = builder.build()
    assert (
        "(stores: [pair-this-join-store, pair-outer-other-join-store, pair-left-shared-join-store])"
        in topology.describe()
    )
    assert "(stores: [all-rows])" in topology.describe()
    drawn = orjson.loads(topology.describe("json"))
    assert drawn["global_tables"] == [{"topic": "global", "store": "all-rows"}]
    windows = next(
        node["windows"]
        for node in drawn["subtopologies"][0]["nodes"]
        if node["operator"] == "StreamStreamJoin"
    )
    assert windows == {
        "type": "JoinWindows",
        "before_ms": 5,
        "after_ms": 5,
        "grace_ms": 3,
        "eager": False,
    }
