"""The outline of a topology: its stores, repartition topics, sources and sinks by name,
to compare two versions.

It is read from the JSON of `describe("json")`, which is kept in a file or in a topic of
the cluster.

Invariant: topologies that do the same with the same names have equal outlines. An
outline leaves out functions, names of nodes, and the topics that match a pattern now.
Relies on: `description` (writes the JSON), `changes` (compares two outlines).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.description import JSON_FORMAT
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.json_text import read_long

NEWEST_FORMAT = 2
"""The newest format of a topology record: that of a group which writes what release 0.1
cannot read (`group.format_level`). The description itself is the same as in format 1.
"""


@dataclass(frozen=True, slots=True)
class Store:
    """A store in an outline.

    Shape: `reads` are the topics that its rows come from, internal topics included;
    `changelog` is the changelog topic, which may be the source topic itself, or None.
    `schemas` are those of the classes of its values, and `key_schemas` those of its
    keys, see `serdes.schemas_of`.
    """

    name: str
    subtopology: int
    kind: str
    key: str
    value: str
    suffix_bytes: int
    made_by: tuple[str, ...]
    reads: frozenset[str]
    windows: tuple[tuple[str, Any], ...]
    """The windows of an aggregation, without its grace."""
    changelog: str | None
    expires: bool = False
    """Whether its rows have a time to live."""
    held: str | None = None
    """The serde of the values in the updates that a suppression holds. None: no
    suppression, or an earlier description.
    """
    left: bool | None = None
    """Whether a foreign-key join keeps rows without a match. None: no such join, or an
    earlier description.
    """
    first: frozenset[str] | None = None
    """The topics of the first side of a left join of tables. None: no such join, or an
    earlier description.
    """
    schemas: tuple[Any, ...] = ()
    key_schemas: tuple[Any, ...] = ()
    asked: str | None = None
    """The serde of the left rows of a foreign-key join, for the store of its
    subscriptions. None: another store, or an earlier description.
    """
    asked_schemas: tuple[Any, ...] = ()
    computed: bool = False
    """Whether the left rows of that join are in no store."""
    stores_above: frozenset[str] = field(default=frozenset(), compare=False)
    """The stores that its rows are made from. Not compared: descriptions by earlier
    versions of coopstreams lack it.
    """

    twin: str = field(default="", compare=False)
    """For the right side of a stream's join with itself: the store of the left side,
    which has the same rows and may be kept alone. Empty: none.
    """

    @property
    def form(self) -> tuple[object, ...]:
        """The fields that are equal in two stores that hold the same rows under
        different names.
        """
        return (
            self.kind,
            self.key,
            self.value,
            self.suffix_bytes,
            self.made_by,
            self.windows,
        )


@dataclass(frozen=True, slots=True)
class RepartitionOutline:
    """A repartition topic in an outline.

    Shape: `reads` are the topics that its records come from; `feeds` are the stores and
    topics that come from it, with an empty name for an external sink and for topics
    that a function chooses. Side effects, as of `foreach`, are not included.
    """

    name: str
    key: str
    value: str
    partitions: int | None
    reads: frozenset[str]
    feeds: frozenset[tuple[str, str]]
    schemas: tuple[Any, ...] = ()
    key_schemas: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of one version of a topology.

    Shape: mappings are by name; `sources` are the topics and patterns that are read,
    without repartition topics; `patterns` have the flags of each, as of `re`.
    """

    application_id: str
    stores: Mapping[str, Store]
    repartitions: Mapping[str, RepartitionOutline]
    sources: frozenset[str]
    patterns: Mapping[str, int]
    sinks: frozenset[str]
    global_topics: frozenset[str]
    unordered: frozenset[str] = frozenset()
    """The sources whose records a share group delivers."""
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each store of `partitions.unchecked`, the partition counts of the topics that
    divide its rows, as far as known.
    """

    def reads(self, topic: str) -> bool:
        """Return whether a topic is a source, or matches a pattern."""
        return topic in self.sources or any(
            self._matches(pattern, topic) for pattern in self.patterns
        )

    def outside(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that are not internal."""
        return frozenset(topics) - self.repartitions.keys()

    def meets(
        self,
        mine: Iterable[str],
        other: Outline,
        others: Iterable[str],
    ) -> bool:
        """Return whether two versions may read a common topic. Two patterns always may:
        some topic can match both.
        """
        pairs = (
            (one, another)
            for one in self.outside(mine)
            for another in other.outside(others)
        )
        return any(
            one == another
            or (
                one in self.patterns
                and (another in other.patterns or self._matches(one, another))
            )
            or (another in other.patterns and other._matches(another, one))
            for one, another in pairs
        )

    def _matches(self, pattern: str, topic: str) -> bool:
        return re.fullmatch(pattern, topic, self.patterns[pattern]) is not None


def outline(topology: Topology) -> Outline:
    """Return the outline of a topology as it runs: `topology.optimization` decides
    which changelogs it has.
    """
    return read_outline(topology.describe("json"))


def read_outline(described: str | bytes) -> Outline:
    """Return the outline of a topology that was described in JSON.

    Raises:
        TopologyError: the text is not such a description, or another version of
            coopstreams wrote it. Describe it again.
    """
    try:
        drawn = read_long(orjson.loads, described)
        written_in = drawn.get("format", 0)
        if JSON_FORMAT <= written_in <= NEWEST_FORMAT:
            return _outline(drawn)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TopologyError(
            f"this is not what `coopstreams describe --format json` writes: {error!r}"
        ) from error
    raise TopologyError(
        f"the description of a topology has format {written_in}, and this coopstreams reads {JSON_FORMAT} to "
        f"{NEWEST_FORMAT}: describe it again, or use the {'newer' if written_in > JSON_FORMAT else 'older'} coopstreams"
    )


def _outline(drawn: Mapping[str, Any]) -> Outline:
    nodes = [node for part in drawn["subtopologies"] for node in part["nodes"]]
    schemas = drawn.get("schemas", {})
    twins = _twins(nodes)
    stores = {
        store["name"]: _store(store, part["id"], schemas, twins)
        for part in drawn["subtopologies"]
        for store in part["stores"]
    }
    sinks = [node for node in nodes if "reads" in node]
    repartitions = {
        topic["name"]: _repartition(topic, nodes, stores.values(), sinks, schemas)
        for topic in drawn["internal_topics"]
        if topic["kind"] == "repartition"
    }
    written = {node["topic"] for node in sinks if node["topic"] is not None}
    return Outline(
        application_id=drawn["application_id"],
        stores=stores,
        repartitions=repartitions,
        **_sources(nodes, repartitions),
        sinks=frozenset(written - repartitions.keys()),
        global_topics=frozenset(table["topic"] for table in drawn["global_tables"]),
        partitions=drawn.get("partitions", {}),
    )


def _sources(
    nodes: Iterable[Mapping[str, Any]],
    internal: Mapping[str, object],
) -> dict[str, Any]:
    """Return the fields of an outline that follow from its source nodes."""
    sources = [node for node in nodes if "topics" in node]
    patterns = {
        node["pattern"]: node.get("flags", 0) for node in sources if "pattern" in node
    }
    unordered = [node for node in sources if node.get("order") == "none"]
    return {
        "sources": frozenset(
            _named_topics(sources) - internal.keys() | patterns.keys()
        ),
        "patterns": patterns,
        "unordered": frozenset(topic for node in unordered for topic in node["topics"]),
    }


def _named_topics(sources: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the topics of sources that are read by name, not by a pattern."""
    named = (node for node in sources if "pattern" not in node)
    return {topic for node in named for topic in node["topics"]}


def _twins(nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the stores of the right sides of joins of a stream with itself, each with
    the store of the left side.
    """
    joins = (
        node
        for node in nodes
        if node["operator"] == "StreamStreamJoin" and len(set(node["parents"])) == 1
    )
    return {
        node["stores"][1]: node["stores"][0]
        for node in joins
        if len(node["stores"]) > 1
    }


def _store(
    drawn: Mapping[str, Any],
    subtopology: int,
    schemas: Mapping[str, Any],
    twins: Mapping[str, str],
) -> Store:
    """Return a store as its description has it. `schemas`: all schemas by id; `twins`:
    the stores that share the rows of another one, see `Store.twin`.
    """
    windows = tuple(
        sorted(
            (name, str(value))
            for name, value in (drawn["windows"] or {}).items()
            if name != "grace_ms"
        )
    )
    same = {
        name: drawn[name]
        for name in ("name", "kind", "key", "value", "suffix_bytes", "changelog")
    }
    same |= {
        name: drawn[name]
        for name in ("held", "left", "asked", "computed")
        if name in drawn
    }
    return Store(
        **same,
        subtopology=subtopology,
        made_by=tuple(drawn["made_by"]),
        reads=frozenset(drawn["reads"]),
        windows=windows,
        expires="ttl_ms" in drawn,
        first=frozenset(drawn["first"]) if "first" in drawn else None,
        schemas=_of_ids(drawn, "schemas", schemas),
        key_schemas=_of_ids(drawn, "key_schemas", schemas),
        asked_schemas=_of_ids(drawn, "asked_schemas", schemas),
        stores_above=frozenset(drawn.get("stores_above", ())),
        twin=twins.get(drawn["name"], ""),
    )


def _repartition(
    topic: Mapping[str, Any],
    nodes: Iterable[Mapping[str, Any]],
    stores: Iterable[Store],
    sinks: Iterable[Mapping[str, Any]],
    schemas: Mapping[str, Any],
) -> RepartitionOutline:
    """Return a repartition topic as its description has it, with what it is made from
    and what it feeds.
    """
    name = topic["name"]
    source = next(node for node in nodes if name in node.get("topics", ()))
    reads = frozenset[str]().union(
        *(node["reads"] for node in sinks if node["topic"] == name)
    )
    feeds = {("store", store.name) for store in stores if name in store.reads}
    feeds |= {("topic", node["topic"] or "") for node in sinks if name in node["reads"]}
    return RepartitionOutline(
        name,
        source["key"],
        source["value"],
        topic["partitions"],
        reads,
        frozenset(feeds),
        _of_ids(source, "schemas", schemas),
        _of_ids(source, "key_schemas", schemas),
    )


def _of_ids(
    drawn: Mapping[str, Any],
    name: str,
    schemas: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return the schemas whose ids the field `name` of a store or source has; none if
    an earlier version wrote no such field.
    """
    return tuple(schemas[id_] for id_ in drawn.get(name, ()))
