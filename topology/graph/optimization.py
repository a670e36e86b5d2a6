"""The setting `topology.optimization`: rewrites a topology so that it stores less and
gives the same results.

    reuse.ktable.source.topics   a table that is a plain copy of its topic has no changelog: it is restored from the
                                 topic itself
    single.store.self.join       an inner join of a stream with itself keeps its records once
    merge.repartition.topics     is always done, by `repartition`

Invariant: only what is stored, and where it is restored from, changes. Turned down:
optimising in `build()` (the builder knows no settings), and reusing the topic of a
table with a timestamp extractor, a history or a time to live (there, a record of the
topic is not the row).
Source: Kafka Streams `InternalStreamsBuilder.buildAndOptimizeTopology`; KIP-862 for the
self-join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from coopstreams.topology.graph.join_nodes import StreamStreamJoin, stores_of
from coopstreams.topology.graph.nodes import (
    Node,
    Source,
    Structure,
    SubTopology,
    TableSource,
)
from coopstreams.topology.graph.offset_resets import EARLIEST
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec

S = TypeVar("S", bound=Structure)

REUSE = "reuse.ktable.source.topics"
MERGE = "merge.repartition.topics"
SELF_JOIN = "single.store.self.join"
OPTIMIZATIONS = (REUSE, MERGE, SELF_JOIN)


def parse_optimization(text: str) -> frozenset[str]:
    """Return the optimisations that the setting names: `none`, `all`, or names
    separated by commas.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    words = {word.strip() for word in text.split(",")}
    if words == {"all"}:
        return frozenset(OPTIMIZATIONS)
    if words == {"none"}:
        return frozenset()
    if not words <= set(OPTIMIZATIONS):
        raise ValueError(
            f"none, all, or a list of {', '.join(OPTIMIZATIONS)} with commas between"
        )
    return frozenset(words)


def optimized(topology: S, wanted: str) -> S:
    """Return the topology with the optimisations that `wanted`, a value of
    `topology.optimization`, names.

    Raises:
        ValueError: an unknown name, see `parse_optimization`.
    """
    optimizations = parse_optimization(wanted)
    parts = topology.subtopologies
    if SELF_JOIN in optimizations:
        parts = tuple(_joining_once(part) for part in parts)
    if REUSE in optimizations:
        parts = tuple(_reusing(part) for part in parts)
    stores = [store for part in parts for store in part.stores]
    logged = {
        changelog_topic(topology.application_id, store.name)
        for store in stores
        if store.logged
    }
    internal = tuple(
        topic
        for topic in topology.internal_topics
        if topic.kind != "changelog" or topic.name in logged
    )
    return replace(topology, subtopologies=parts, internal_topics=internal)


def _joining_once(part: SubTopology) -> SubTopology:
    """Return the part with `single.store.self.join`: without the second store of each
    such join.
    """
    nodes = tuple(_keeping_once(node) for node in part.nodes)
    kept = {store.name for node in nodes for store in stores_of(node)}
    return replace(
        part,
        nodes=nodes,
        stores=tuple(store for store in part.stores if store.name in kept),
    )


def _keeping_once(node: Node) -> Node:
    """Return the node, an inner join of a stream with itself with one store only."""
    if (
        isinstance(node, StreamStreamJoin)
        and node.kind == "inner"
        and node.parents[0] == node.parents[1]
    ):
        return replace(node, stores=node.stores[:1])
    return node


def _reusing(part: SubTopology) -> SubTopology:
    """Return the part with `reuse.ktable.source.topics`."""
    reused = dict(_reusable(part.nodes))
    return replace(
        part,
        stores=tuple(_restored_from(store, reused) for store in part.stores),
    )


def _restored_from(store: StoreSpec, reused: Mapping[str, str]) -> StoreSpec:
    """Return the store; if its name is in `reused`, without a changelog, restored from
    the topic there.
    """
    return (
        replace(store, logged=False, source=reused[store.name])
        if store.name in reused
        else store
    )


def _reusable(nodes: tuple[Node, ...]) -> Iterator[tuple[str, str]]:
    """Yield each store of a source table that can be restored from its source topic
    instead of a changelog, with that topic.

    The table must be the only node that reads the source node. If another node reads
    it, too, a record whose key that node cannot deserialise is dropped for both, and
    the topic would have a row more than the store.
    """
    sources = {node.name: node for node in nodes if isinstance(node, Source)}
    readers = Counter(parent for node in nodes for parent in node.parents)
    for node in nodes:
        if not isinstance(node, TableSource) or node.store is None:
            continue
        source = sources.get(node.parents[0])
        if (
            source is not None
            and readers[source.name] == 1
            and _holds_as_it_is(source, node.store)
        ):
            yield node.store.name, source.topics[0]


def _holds_as_it_is(source: Source, store: StoreSpec) -> bool:
    """Whether each record of the topic is a row of the store, with the same key, value
    and timestamp.
    """
    same = (source.key, source.value) == (store.key, store.value)
    one = len(source.topics) == 1 and source.pattern is None
    whole = store.history_ms is None and store.ttl_ms is None
    from_first = source.reset in (None, EARLIEST)
    return (
        same
        and one
        and whole
        and from_first
        and not source.internal
        and source.timestamp is None
    )
