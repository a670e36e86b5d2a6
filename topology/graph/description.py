"""Descriptions of a topology: text as Kafka Streams prints it, Mermaid, DOT, JSON.

All four list the same nodes in the same order, so that a diff of two descriptions shows
how two topologies differ.

Invariant: a description leaves out user functions: they may change without changing a
topic or a store.
Relies on: `outline` (reads the JSON, also that of older releases: an entry keeps its
name and its meaning).
"""

from __future__ import annotations

import re
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
from xxhash import xxh64_hexdigest

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import Suppress, TableAggregate
from coopstreams.topology.graph.drawing import drawn, svg
from coopstreams.topology.graph.fingerprint import said
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    ForeignKeyAnswer,
    ForeignKeyAsk,
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
    method_of,
    stores_of,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    ApplyTo,
    DynamicSink,
    Filter,
    Node,
    Processing,
    Sink,
    Source,
    StreamTableJoin,
    Structure,
    SubTopology,
)
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.serdes import Serde, schemas_of
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import AnyWindows

JSON_FORMAT = 1
"""The version of the JSON format. A later version of coopstreams may have to read it,
in `outline`.
"""


def describe(topology: Structure, format: str) -> str:  # noqa: A002 the word users type
    """Return the topology as `text`, `mermaid`, `dot`, `svg` or `json`.

    Raises:
        TopologyError: the format is unknown.
    """
    formats: dict[str, Callable[[Structure], str]] = {
        "text": _text,
        "mermaid": _mermaid,
        "dot": _dot,
        "svg": lambda topology: svg(drawn(topology), topology.application_id),
        "json": _json,
    }
    if format not in formats:
        raise TopologyError(
            f"a topology is described as {', '.join(formats)}, not as {format!r}"
        )
    return formats[format](topology)


def _stores(topology: Structure, node: Node) -> list[StoreSpec]:
    """Return the stores of the topology that a node writes or looks up."""
    made = {store.name for store in topology.stores}
    made |= {table.store.name for table in topology.global_tables}
    looked_into = (
        [node.store] if isinstance(node, StreamTableJoin | StreamGlobalJoin) else []
    )
    return [
        store
        for store in dict.fromkeys([*looked_into, *stores_of(node)])
        if store.name in made
    ]


def _children(subtopology: SubTopology) -> dict[str, list[str]]:
    """Return the children of each node, by name."""
    children: dict[str, list[str]] = {node.name: [] for node in subtopology.nodes}
    for node in subtopology.nodes:
        for parent in node.parents:
            children[parent].append(node.name)
    return children


def _whole(subtopology: SubTopology) -> str:
    """Return the end of a sub-topology's title, which says why its tasks are not key
    ranges; empty if they are.
    """
    if subtopology.unordered:
        return ' (no tasks: a share group deals its records, order="none")'
    if (node := subtopology.applies_to) is not None:
        return f" (one task a partition: {node.name} applies its records in the order of the log)"
    names = subtopology.across_keys
    return (
        f" (one task a partition: by_key=False at {', '.join(names)})" if names else ""
    )


def _text(topology: Structure) -> str:
    """Return the text of Kafka Streams' `TopologyDescription`, which viewers for it can
    read.
    """
    texts = []
    for subtopology in topology.subtopologies:
        children = _children(subtopology)
        lines = [f"Sub-topology: {subtopology.id}{_whole(subtopology)}"]
        for node in subtopology.nodes:
            down = [f"      --> {', '.join(children[node.name]) or 'none'}"]
            up = [f"      <-- {', '.join(node.parents)}"]
            if isinstance(node, Source):
                topics = (
                    f"[{', '.join(node.topics)}]"
                    if node.pattern is None
                    else node.pattern.pattern
                )
                lines += [f"    Source: {node.name} (topics: {topics})", *down]
            elif isinstance(node, Sink):
                lines += [f"    Sink: {node.name} (topic: {node.topic})", *up]
            elif isinstance(node, DynamicSink):
                lines += [f"    Sink: {node.name} (topic: by a function)", *up]
            elif isinstance(node, ApplyTo):
                lines += [f"    Sink: {node.name} (external: {node.target})", *up]
            else:
                stores = ", ".join(store.name for store in _stores(topology, node))
                lines += [
                    f"    Processor: {node.name} (stores: [{stores}])",
                    *down,
                    *up,
                ]
        texts.append("\n".join(lines) + "\n")
    return "Topologies:\n   " + "\n  ".join(texts)


def _json(topology: Structure) -> str:
    """Return the JSON, which `outline` reads again."""
    above = topics_above(topology)
    made_from = stores_above(topology)
    drawn = {
        "format": JSON_FORMAT,
        "application_id": topology.application_id,
        "subtopologies": [
            {
                "id": subtopology.id,
                "divisible": subtopology.divisible,
                "topics": subtopology.topics,
                "nodes": list(_json_nodes(topology, subtopology, above)),
                "stores": list(_json_stores(topology, subtopology, above, made_from)),
            }
            for subtopology in topology.subtopologies
        ],
        "internal_topics": topology.internal_topics,
        "global_tables": [
            {"topic": table.topic, "store": table.store.name}
            | ({"processor": table.update.name} if table.update else {})
            for table in topology.global_tables
        ],
        "copartitioned": [
            {"at": where, "topics": topics} for where, topics in topology.copartitioned
        ],
        "schemas": {
            _id(schema): schema
            for serde in _kept(topology)
            for schema in schemas_of(serde)
        },
    }
    return orjson.dumps(drawn, option=orjson.OPT_INDENT_2).decode() + "\n"


def _json_nodes(
    topology: Structure,
    subtopology: SubTopology,
    above: Above,
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a sub-topology's nodes; `above`: the topics from which the
    records of each node come.
    """
    children = _children(subtopology)
    for node in subtopology.nodes:
        drawn: dict[str, Any] = {"name": node.name, "operator": type(node).__name__}
        if isinstance(node, Source):
            drawn |= _json_source(node)
        elif isinstance(node, Sink | DynamicSink):
            drawn |= {
                "topic": node.topic if isinstance(node, Sink) else None,
                "key": node.key.name,
                "value": node.value.name,
                "reads": sorted(above[node.name]),
            }
        elif isinstance(node, ApplyTo):
            drawn |= {
                "topic": None,
                "external": str(node.target),
                "reads": sorted(above[node.name]),
            }
        elif stores := _stores(topology, node):
            drawn["stores"] = [store.name for store in stores]
        if isinstance(node, Aggregate | StreamStreamJoin) and node.windows is not None:
            drawn["windows"] = _windows(node.windows)
        yield {**drawn, "parents": node.parents, "children": children[node.name]}


def _json_source(node: Source) -> dict[str, Any]:
    """Return what an entry has of a source."""
    drawn = {
        "topics": node.topics,
        "key": node.key.name,
        "value": node.value.name,
        "extracts_timestamps": node.timestamp is not None,
    }
    if node.internal:
        drawn |= _schemas(node.key, node.value)
    if node.pattern is not None:
        drawn["pattern"] = node.pattern.pattern
        # A pattern of text has UNICODE without being told.
        flags = node.pattern.flags & ~re.UNICODE
        if flags:
            drawn["flags"] = flags
    if node.unordered:
        drawn["order"] = "none"
    return drawn


def _json_stores(
    topology: Structure,
    subtopology: SubTopology,
    above: Above,
    made_from: Above,
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a sub-topology's stores; `made_from`: the stores that each
    is made from.
    """
    how = made(subtopology, above)
    for store in subtopology.stores:
        changelog = (
            changelog_topic(topology.application_id, store.name)
            if store.logged
            else store.source
        )
        yield _json_store(store, how[store.name]) | {
            "stores_above": sorted(made_from[store.name]),
            "changelog": changelog,
            **(_asked(topology, store) if store.kind == "subscribers" else {}),
        }


def _json_store(store: StoreSpec, how: Made) -> dict[str, Any]:
    """Return what follows from the store alone, and from how its rows are made."""
    return {
        "name": store.name,
        "kind": store.kind,
        "key": store.key.name,
        "value": store.value.name,
        **_schemas(store.key, how.held or store.value),
        **({} if how.held is None else {"held": how.held.name}),
        **({} if how.left is None else {"left": how.left}),
        **({} if how.first is None else {"first": sorted(how.first)}),
        "made_by": sorted(how.methods),
        "reads": sorted(how.reads),
        "windows": None if how.windows is None else _windows(how.windows),
        "window_ms": store.window_ms,
        "retention_ms": store.retention_ms,
        "history_ms": store.history_ms,
        **({} if store.ttl_ms is None else {"ttl_ms": store.ttl_ms}),
        "suffix_bytes": store.suffix_bytes,
    }


def _asked(topology: Structure, store: StoreSpec) -> dict[str, Any]:
    """Return the JSON fields of the left rows of a foreign-key join, whose hashes
    `store` keeps.

    `asked` is their serde. `computed`: whether the left rows are in no store, so that
    their old bytes are not kept.
    """
    nodes = {node.name: node for node in topology.nodes}
    answer = next(
        node
        for node in nodes.values()
        if isinstance(node, ForeignKeyAnswer) and node.store == store
    )
    source = nodes[answer.parents[0]]
    assert isinstance(source, Source)
    sink = next(
        node
        for node in nodes.values()
        if isinstance(node, Sink) and node.topic in source.topics
    )
    ask = nodes[sink.parents[0]]
    assert isinstance(ask, ForeignKeyAsk)
    return {
        "asked": ask.value.name,
        "computed": _is_computed(nodes[ask.parents[0]], nodes),
        "asked_schemas": [_id(schema) for schema in schemas_of(ask.value)],
    }


def _is_computed(table: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether no store has the bytes of the rows of a table."""
    while getattr(table, "store", None) is None:
        if not isinstance(table, Filter | Suppress):
            return True
        table = nodes[table.parents[0]]
    return False


def _kept(topology: Structure) -> Iterator[Serde[Any]]:
    """Yield the serdes of the keys and values in stores, suppression buffers, left rows
    of foreign-key joins, and repartition topics.
    """
    for store in topology.stores:
        yield from (store.key, store.value)
    for node in topology.nodes:
        if isinstance(node, Suppress | ForeignKeyAsk) or (
            isinstance(node, Source) and node.internal
        ):
            yield from (node.key, node.value)


def _schemas(key: Serde[Any], value: Serde[Any]) -> dict[str, list[str]]:
    """Return the ids of the schemas of the key classes and of the value classes,
    without empty lists.
    """
    found = {"key_schemas": schemas_of(key), "schemas": schemas_of(value)}
    return {
        name: [_id(schema) for schema in schemas]
        for name, schemas in found.items()
        if schemas
    }


def _id(schema: Any) -> str:
    return xxh64_hexdigest(orjson.dumps(schema))


def _windows(windows: AnyWindows | JoinWindows) -> dict[str, Any]:
    return {name or "type": value for name, value in said(windows).items()}


def _edges(topology: Structure) -> Iterator[tuple[str, str]]:
    """Yield the edges between topics, nodes and stores, as pairs of texts; each text
    begins with its kind, such as `node:`.
    """
    for subtopology in topology.subtopologies:
        for node in subtopology.nodes:
            if isinstance(node, Source):
                topics = (
                    node.topics if node.pattern is None else (node.pattern.pattern,)
                )
                yield from ((f"topic:{topic}", f"node:{node.name}") for topic in topics)
            yield from (
                (f"node:{parent}", f"node:{node.name}") for parent in node.parents
            )
            if isinstance(node, Sink):
                yield f"node:{node.name}", f"topic:{node.topic}"
            yield from (
                (f"node:{node.name}", f"store:{store.name}")
                for store in _stores(topology, node)
            )
        yield from (
            (f"topic:{store.source}", f"store:{store.name}")
            for store in subtopology.stores
            if store.source is not None
        )


def _mermaid(topology: Structure) -> str:
    edges = list(_edges(topology))
    ids = {
        thing: f"{thing[0]}{number}"
        for number, thing in enumerate(
            dict.fromkeys(end for edge in edges for end in edge)
        )
    }
    lines = ["flowchart TD"]
    for subtopology in topology.subtopologies:
        lines.append(
            f'  subgraph sub{subtopology.id}["Sub-topology {subtopology.id}{_whole(subtopology)}"]'
        )
        lines += [
            f'    {ids[f"node:{node.name}"]}["{node.name}"]'
            for node in subtopology.nodes
        ]
        lines += [
            f'    {ids[f"store:{store.name}"]}[("{store.name}")]'
            for store in subtopology.stores
        ]
        lines.append("  end")
    lines += [
        f'  {ids[thing]}(["{thing[6:]}"])'
        for thing in ids
        if thing.startswith("topic:")
    ]
    lines += [
        f"  {ids[start]} {'---' if end.startswith('store:') else '-->'} {ids[end]}"
        for start, end in edges
    ]
    return "\n".join(lines) + "\n"


def _dot(topology: Structure) -> str:
    edges = list(_edges(topology))
    lines = [f'digraph "{topology.application_id}" {{', "  node [shape=box];"]
    for subtopology in topology.subtopologies:
        lines += [
            f"  subgraph cluster_{subtopology.id} {{",
            f'    label="Sub-topology {subtopology.id}{_whole(subtopology)}";',
        ]
        lines += [
            f'    "node:{node.name}" [label="{node.name}"];'
            for node in subtopology.nodes
        ]
        lines += [
            f'    "store:{store.name}" [label="{store.name}", shape=cylinder];'
            for store in subtopology.stores
        ]
        lines.append("  }")
    topics = dict.fromkeys(
        end for edge in edges for end in edge if end.startswith("topic:")
    )
    lines += [f'  "{topic}" [label="{topic[6:]}", shape=oval];' for topic in topics]
    lines += [
        f'  "{start}" -> "{end}"{" [dir=none]" if end.startswith("store:") else ""};'
        for start, end in edges
    ]
    return (
        "\n".join([*lines, "}"]).replace("\\", "\\\\") + "\n"
    )  # a pattern may have backslashes


Above: TypeAlias = Mapping[str, frozenset[str]]


def topics_above(topology: Structure) -> Above:
    """Return, for each node by name, all topics that its records come from."""
    return _gathered(
        topology,
        lambda node: read_by(node) if isinstance(node, Source) else frozenset(),
    )


def stores_above(topology: Structure) -> Above:
    """Return, for each store by name, the other stores that its rows are made from:
    those that nodes above its own node write or look up.
    """
    gathered = _gathered(topology, _stores_used)
    known = {store.name for store in topology.stores}
    above = dict.fromkeys(known, frozenset[str]())
    for node in topology.nodes:
        looked_up = _stores_used(node) - {store.name for store in stores_of(node)}
        for number, store in enumerate(stores_of(node)):
            from_parents = (gathered[parent] for parent in _kept_of(node, number))
            above[store.name] = above[store.name].union(looked_up, *from_parents)
    before: Above = {}
    while (
        before != above
    ):  # a processor that looks a store up is not below the nodes above that store
        before = above
        above = {
            name: stores.union(*(above[other] for other in stores & known))
            for name, stores in above.items()
        }
    return {name: stores & known - {name} for name, stores in above.items()}


def _stores_used(node: Node) -> frozenset[str]:
    named = node.store_names if isinstance(node, Processing) else ()
    return frozenset({store.name for store in stores_of(node)}.union(named))


def _kept_of(node: Node, number: int) -> tuple[str, ...]:
    """Return the parents whose records the `number`th store of a node keeps."""
    if (
        isinstance(node, StreamStreamJoin) and number < 2
    ):  # its first two stores hold one side each
        return (node.parents[number],)
    if isinstance(
        node,
        BufferedJoin | ForeignKeyAnswer,
    ):  # the results depend on the other side, the store does not
        return node.parents[:1]
    return node.parents


def _gathered(topology: Structure, own: Callable[[Node], frozenset[str]]) -> Above:
    """Return, for each node by name, the union of `own` of the node and of all nodes
    above it.
    """
    nodes = topology.nodes
    gathered: dict[str, frozenset[str]] = {node.name: frozenset() for node in nodes}
    written: dict[str, frozenset[str]] = {}
    before: dict[str, frozenset[str]] = {}
    while (
        before != gathered
    ):  # a sub-topology may read a repartition topic that a later one writes
        before = dict(gathered)
        for node in nodes:
            topics = node.topics if isinstance(node, Source) else ()
            gathered[node.name] = own(node).union(
                *(gathered[parent] for parent in node.parents),
                *(written.get(topic, frozenset()) for topic in topics),
            )
            if isinstance(node, Sink) and node.internal:
                written[node.topic] = (
                    written.get(node.topic, frozenset()) | gathered[node.name]
                )
    return gathered


def read_by(source: Source) -> frozenset[str]:
    """Return the topics of a source, or its pattern."""
    return frozenset(
        source.topics if source.pattern is None else [source.pattern.pattern]
    )


@dataclass(frozen=True, slots=True)
class Made:
    """The lineage of a store.

    `methods` are the operators that write it, such as `count` or `StreamStreamJoin`;
    `reads` are all topics that its rows come from.

    Three fields are None for other stores. `held`: the serde of the values that a
    suppression holds back. `left`: whether the rows of a foreign-key join include those
    without a match. `first`: the topics of the first table of a left join; the joined
    table has a row for each row of that table.
    """

    methods: frozenset[str]
    reads: frozenset[str]
    windows: AnyWindows | None
    held: Serde[Any] | None = None
    left: bool | None = None
    first: frozenset[str] | None = None


def made(subtopology: SubTopology, above: Above) -> dict[str, Made]:
    """Return how the rows of each store of a sub-topology are made, by the name of the
    store. What several nodes do with one store is put together.

    `above`: the source topics from which records come to each node.
    """
    found: dict[str, Made] = {}
    by_name = {node.name: node for node in subtopology.nodes}
    for node in subtopology.nodes:
        parents = [by_name[parent] for parent in node.parents]
        for number, store in enumerate(stores_of(node)):
            read = node.parents
            if isinstance(node, StreamStreamJoin) and number < 2:
                read = (
                    node.parents[number],
                )  # its first two stores hold one side each
            reads = frozenset[str]().union(*(above[parent] for parent in read))
            before = found.get(store.name, Made(frozenset(), frozenset(), None))
            found[store.name] = _made_by(node, parents, reads, above, before)
    return found


def _made_by(
    node: Node,
    parents: Sequence[Node],
    reads: frozenset[str],
    above: Above,
    before: Made,
) -> Made:
    """Return the lineage of a store that `node` writes, together with `before`, its
    lineage by earlier nodes.
    """
    windows = node.windows if isinstance(node, Aggregate) else None
    held = node.value if isinstance(node, Suppress) else before.held
    left = before.left
    for parent in reversed(parents):
        if isinstance(parent, ForeignKeyResult):
            left = parent.left
    first = before.first
    if isinstance(node, TableTableJoin) and node.kind == "left":
        first = above[node.parents[0]]
    return Made(
        methods=before.methods | {_method(node)},
        reads=before.reads | reads,
        windows=windows or before.windows,
        held=held,
        left=left,
        first=first,
    )


def _method(node: Node) -> str:
    """Return the word for how a node makes rows. `outline` compares it: it stays as it
    is.
    """
    if isinstance(node, Aggregate | TableAggregate):
        function = node.aggregator if isinstance(node, Aggregate) else node.adder
        return (
            "count"
            if function is None
            else "reduce"
            if node.initializer is None
            else "aggregate"
        )
    if isinstance(node, Processing):  # only the user knows the meaning of its rows
        return Processing.__name__
    return method_of(node) if isinstance(node, TableTableJoin) else type(node).__name__
