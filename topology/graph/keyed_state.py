"""Checks that the state of processors is partitioned like their records.

A task gets the records whose serialised keys hash into its key range, and the stores
are restored, moved and queried by the hash of the store keys. So a processor with
`by_key=True` needs the unchanged keys of its topic, and stores whose key serde writes
the same bytes.

Invariant: a processor that passes the checks, and keeps state under the keys of its
records, finds that state however the partition is cut into key ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import (
    CogroupMerge,
    Suppress,
    TableAggregate,
)
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
    stores_of,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    AsyncMap,
    AsyncProcessing,
    Branch,
    DropNullKeys,
    Filter,
    FlatMapValues,
    MapValues,
    Merge,
    Node,
    Peek,
    Processing,
    Sink,
    Source,
    Split,
    StreamTableJoin,
    TableSource,
    ToStream,
)
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

_KEEP_KEYS = (
    Branch
    | CogroupMerge
    | DropNullKeys
    | Filter
    | FlatMapValues
    | ForeignKeyResult
    | MapValues
    | Merge
    | Peek
    | Split
    | StreamGlobalJoin
    | StreamStreamJoin
    | StreamTableJoin
    | Suppress
    | TableAggregate
    | TableSource
    | TableTableJoin
    | ToStream
)


def keys_as_read(nodes: Iterable[Node]) -> dict[str, Serde[Any] | None]:
    """Return, for each node, the serde with which its output keys are written in the
    source topic; None if they may differ from the keys in the source topic.

    Shape: `nodes` parents first.
    """
    nodes = list(nodes)
    scattered = {
        node.topic
        for node in nodes
        if isinstance(node, Sink) and node.internal and node.partitioner is not None
    }
    keys: dict[str, Serde[Any] | None] = {}
    for node in nodes:
        if isinstance(node, Source):
            keys[node.name] = node.key if scattered.isdisjoint(node.topics) else None
        elif _keeps_keys(node):
            keys[node.name] = common_key(keys[parent] for parent in node.parents)
        else:
            keys[node.name] = None
    return keys


def _keeps_keys(node: Node) -> bool:
    """Return whether a node forwards the keys that it gets. A new kind of node that
    does must be named here, or state below it is not checked.
    """
    if isinstance(node, Processing):
        return node.fixed_key
    if isinstance(node, AsyncMap):
        return not node.pairs
    if isinstance(node, Aggregate):
        return node.windows is None
    return isinstance(node, _KEEP_KEYS)


def common_key(keys: Iterable[Serde[Any] | None]) -> Serde[Any] | None:
    """Return the serde that all keys have; None if they differ."""
    first, *others = keys
    return first if all(other == first for other in others) else None


def check_processors(nodes: list[Node], kept: Mapping[str, StoreSpec]) -> None:
    """Check that every processor finds its stores, and that state by key lies in the
    key ranges of its records.

    `kept`: stores, by name, that none of these nodes writes.

    Raises:
        TopologyError: a check failed; the message names the processor and the store.
    """
    written = {store.name: store for node in nodes for store in stores_of(node)}
    stores = {**kept, **written}
    keys = keys_as_read(nodes)
    for node in nodes:
        if not isinstance(node, Processing):
            continue
        _check_found(node, stores)
        if isinstance(node, AsyncProcessing):
            _check_own_stores(node, nodes)
            _check_plain_stores(node)
        if node.by_key:
            used = [stores[name] for name in node.store_names if name not in kept]
            key = common_key(keys[parent] for parent in node.parents)
            _check_state_by_key(node, used, key)


def _check_found(node: Processing, stores: Mapping[str, StoreSpec]) -> None:
    """Check that each store that a processor names is among `stores`."""
    for name in node.store_names:
        if name not in stores:
            raise TopologyError(
                f'"{node.name}" uses a store "{name}" that no node has; there are '
                f"{', '.join(sorted(stores)) or 'none'}. "
                "Give the store itself instead of its name, or name the table that keeps it with store=."
            )


def _check_state_by_key(
    node: Processing,
    used: Iterable[StoreSpec],
    key: Serde[Any] | None,
) -> None:
    """Check that the stores that a processor uses write keys as `key`: the serde of its
    records' keys; None, and nothing to compare, if they are not those of the topic.
    """
    for store in used:
        if key is not None and store.key != key:
            cure = (
                f"Make the store with key=serdes.{key}"
                if store in node.stores
                else f"Give the records the keys of the store, .select_key(..., key=serdes.{store.key}).repartition()"
            )
            raise TopologyError(
                f'"{node.name}" keeps state by_key, but its store "{store.name}" writes keys as {store.key}, and its '
                f"records come with keys written as {key}: state would lie in other key ranges than its records. "
                f"{cure}, or say by_key=False."
            )


def _check_own_stores(node: AsyncProcessing, nodes: Iterable[Node]) -> None:
    """Check that no other processor uses the stores of an asynchronous one."""
    for other in nodes:
        if isinstance(other, Processing) and other is not node:
            for name in set(node.store_names) & set(other.store_names):
                raise TopologyError(
                    f'store "{name}" belongs to "{node.name}", which is asynchronous, so "{other.name}" cannot use it: '
                    "it would find the rows of records that wait for their calls as they were before them."
                )


def _check_plain_stores(node: AsyncProcessing) -> None:
    """Check that the stores of an asynchronous processor keep no headers, and that no
    row expires.
    """
    for store in node.stores:
        if isinstance(store.value, KeptHeaders):
            raise TopologyError(
                f'"{node.name}" is asynchronous, and its store "{store.name}" keeps headers. Leave out headers=, and '
                "put what you need of them into the value; or use process()."
            )
        if store.ttl_ms is not None:
            raise TopologyError(
                f'"{node.name}" is asynchronous: a row of its store "{store.name}" might expire while a call that has '
                "read it is under way. Leave out ttl=, or keep the rows in a table with a ttl, or use process()."
            )


def shared_state(
    nodes: Iterable[Node],
    above: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each store that processors use by the keys of their records, if it is made
    from several topics: a text that names it in messages, and the topics.
    """
    nodes = list(nodes)
    # Every instance has all of a global table, which no node keeps.
    kept = {store.name for node in nodes for store in stores_of(node)}
    topics: dict[str, dict[str, None]] = {
        name: {} for node in nodes for name in _used_by_key(node) if name in kept
    }
    for node in nodes:
        own = [store.name for store in stores_of(node)]
        for name in topics.keys() & {*_used_by_key(node), *own}:
            topics[name].update(dict.fromkeys(above[node.name]))
    for name, together in topics.items():
        if len(together) > 1:
            yield f'process at "{", ".join(together)} → {name}"', tuple(together)


def _used_by_key(node: Node) -> tuple[str, ...]:
    """Return the names of the stores that a processor uses by the keys of its records."""
    return node.store_names if isinstance(node, Processing) and node.by_key else ()
