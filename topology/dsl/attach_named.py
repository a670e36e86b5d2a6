"""Attaches nodes by name, for the low-level `TopologyBuilder`. They are the same nodes
as those of the DSL.

Invariant: the parents of a node are attached before it, so a graph has no cycle. A
store has one specification for all its users. Turned down: repartitioning after a
change of keys. As in Kafka Streams, the low-level API adds no topics; if a store would
not be partitioned like its records, attaching its processor is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeAlias

from coopstreams.topology.dsl.attach import sink_of
from coopstreams.topology.dsl.attach_processors import by_key_of, take_store, using
from coopstreams.topology.dsl.functions import checked
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Graph, Part, serde_or_none
from coopstreams.topology.graph.join_nodes import StreamGlobalJoin, StreamStreamJoin
from coopstreams.topology.graph.keyed_state import common_key, keys_as_read
from coopstreams.topology.graph.nodes import (
    AsyncMap,
    AsyncProcessing,
    Branch,
    DynamicSink,
    Filter,
    FlatMap,
    FlatMapValues,
    Function,
    GlobalTable,
    GlobalUpdate,
    Late,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    Processing,
    SelectKey,
    Sink,
    Source,
    Split,
    StreamTableJoin,
    ToStream,
)
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.naming import check_name
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

AnySerde: TypeAlias = Serde[Any] | None

_STREAMS = (
    AsyncMap
    | Branch
    | Filter
    | FlatMap
    | FlatMapValues
    | Late
    | Map
    | MapValues
    | Merge
    | Peek
    | Processing
    | SelectKey
    | Source
    | StreamGlobalJoin
    | StreamStreamJoin
    | StreamTableJoin
    | ToStream
)
"""The nodes that forward records, not updates of a table."""


def source(graph: Graph, name: str, make: Callable[..., Source]) -> None:
    """Attach a source.

    Raises:
        TopologyError: the name is taken, or a topic is already read.
    """
    node = make(name=check_name(name, "the node name"))
    if (known := graph.reader_of(node)) is not None:
        topic, other = known
        raise TopologyError(
            f'add_source("{name}"): topic "{topic}" is read by "{other.name}" already. Name "{other.name}" as the '
            "parent."
        )
    _add(graph, node)


def processor(
    graph: Graph,
    name: str,
    supplier: Function,
    parents: tuple[str, ...],
    stores: Sequence[StoreSpec | str],
    *,
    by_key: bool | None,
    fixed_key: bool,
) -> None:
    """Attach a processor.

    Raises:
        TopologyError: the name is taken, a parent forwards no records, an element of
            `stores` is no store, `by_key` is missing, or it is True and a record's key
            may differ from that of its topic.
    """
    where = f'add_processor("{name}")'
    function = checked(where, supplier)
    by_key = by_key_of(by_key, where)
    _check_parents(graph, parents, where)
    keys = keys_as_read(graph.nodes.values())
    key = common_key(keys[parent] for parent in parents)
    if by_key and key is None:
        changing = [f'"{parent}"' for parent in parents if keys[parent] is None]
        why = (
            f"out of {', '.join(changing)} other keys may come"
            if changing
            else f"{' and '.join(parents)} have keys that are written in different ways"
        )
        raise TopologyError(
            f"{where}: by_key=True needs the keys with which records were read from their topic, but {why}. Say "
            "fixed_key=True of a processor above that does not change keys; or send the records through a topic, "
            "with add_sink and add_source; or say by_key=False: then each partition is one task."
        )
    node = Processing(
        name=check_name(name, "the node name"),
        parents=parents,
        supplier=function,
        stores=(),
        store_names=(),
        key=key if fixed_key else None,
        fixed_key=fixed_key,
        by_key=by_key,
    )
    _add(graph, using(graph, node, stores, where))


def sink(
    graph: Graph,
    name: str,
    topic: str | Function,
    parents: tuple[str, ...],
    key: Serde[Any],
    value: Serde[Any],
    partitioner: Function | None,
) -> None:
    """Attach a sink.

    Raises:
        TopologyError: the name is taken, a parent forwards no records, a serde is
            missing, or the topic's name is not legal.
    """
    where = f'add_sink("{name}")'
    _check_parents(graph, parents, where)
    serdes: dict[Part, Serde[Any]] = {"key": key, "value": value}
    for part, serde in serdes.items():
        if serde_or_none(serde, part, where) is None:
            raise TopologyError(
                f"{where}: how do {part}s become bytes? Write {part}=serdes.… there."
            )
    make = sink_of(where, topic, key, value, partitioner)
    _add(graph, make(name=check_name(name, "the node name"), parents=parents))


def state_store(graph: Graph, store: StoreSpec, processors: tuple[str, ...]) -> None:
    """Add a store, for these processors and those that are connected later.

    Raises:
        TopologyError: it is not a store, its name is taken, or a name is not that of a
        processor.
    """
    if not isinstance(store, StoreSpec):
        raise TopologyError(
            f"add_state_store() takes a store such as key_value_store(…), not {store!r}"
        )
    nodes = [
        _processor(graph, name, f'add_state_store("{store.name}")')
        for name in processors
    ]
    take_store(graph, store)
    graph.added_stores[store.name] = store
    for node in nodes:
        graph.nodes[node.name] = using(graph, node, [store], "")


def connect(graph: Graph, processor: str, stores: tuple[str, ...]) -> None:
    """Connect a processor to stores.

    Raises:
        TopologyError: there is no such processor, or no store is named.
    """
    where = f'connect_processor_and_state_stores("{processor}")'
    if not stores:
        raise TopologyError(f"{where}: name at least one store")
    graph.nodes[processor] = using(
        graph, _processor(graph, processor, where), stores, where
    )


def global_store(
    graph: Graph,
    store: StoreSpec,
    topic: str,
    processor: str | None,
    supplier: Function | None,
    key: AnySerde,
    value: AnySerde,
) -> None:
    """Add a store of which every instance has all rows: a topic's, or those that a
    processor makes of its records.

    Raises:
        TopologyError: it is not a plain key-value store, its name is taken, or only one
            of processor and supplier is given.
    """
    _check_global(store)
    check_name(topic, "the topic")
    where = f'add_global_store("{store.name}")'
    read_key = serde_or_none(key, "key", where) or store.key
    read_value = serde_or_none(value, "value", where) or store.value
    update = None
    if supplier is not None and processor is not None:
        update = GlobalUpdate(
            check_name(processor, "the node name"),
            checked(where, supplier),
            read_key,
            read_value,
        )
        graph.names.take(update.name)
    elif (
        supplier is not None
        or processor is not None
        or (read_key, read_value) != (store.key, store.value)
    ):
        raise TopologyError(
            f"{where}: records become rows as they are, or a processor makes rows of them: name it and give its "
            "supplier, add_global_store(store, topic, name, supplier, key=…, value=…)."
        )
    graph.names.store("", store.name)
    graph.global_tables.append(GlobalTable(topic, replace(store, logged=False), update))


def _check_global(store: StoreSpec) -> None:
    """Check that every instance can have all rows of a store."""
    if not isinstance(store, StoreSpec):
        raise TopologyError(
            f"add_global_store() takes a store, key_value_store(…), not {store!r}"
        )
    if store.kind != "key_value" or store.history_ms is not None:
        raise TopologyError(
            f'add_global_store(): "{store.name}" must be a key_value_store(…): each row is the latest record of its key'
        )
    if isinstance(store.value, KeptHeaders):
        raise TopologyError(
            f'add_global_store(): "{store.name}" cannot keep headers: its rows are those of its topic. Leave out '
            "headers=; a processor that fills it sees the headers of each record."
        )
    if store.ttl_ms is not None:
        raise TopologyError(
            f'add_global_store(): the rows of "{store.name}" cannot expire: each instance reads the topic at its own '
            "speed. Leave out ttl=, and let the topic's own retention or tombstones delete rows."
        )


def _add(graph: Graph, node: Node) -> None:
    graph.names.take(node.name)
    graph.attach(node)


def _check_parents(graph: Graph, parents: tuple[str, ...], where: str) -> None:
    if not parents:
        raise TopologyError(
            f"{where}: name at least one parent, a source or processor whose records it gets"
        )
    if len(set(parents)) < len(parents):
        raise TopologyError(
            f"{where}: a parent is named twice in {', '.join(parents)}. Each record comes once."
        )
    for name in parents:
        node = _known(graph, name, where)
        if isinstance(node, Sink | DynamicSink):
            raise TopologyError(
                f'{where}: "{name}" is a sink: nothing comes out of it. Read its topic with add_source, or name the '
                f'parents of "{name}".'
            )
        if isinstance(node, Split):
            raise TopologyError(
                f'{where}: out of "{name}" come branches. Name one of them.'
            )
        if not isinstance(node, _STREAMS) or (
            isinstance(node, Filter | MapValues) and node.table
        ):
            raise TopologyError(
                f'{where}: updates of a table come out of "{name}". Write .to_stream(name=…) in the program, and name '
                "that."
            )


def _processor(graph: Graph, name: str, where: str) -> Processing:
    node = _known(graph, name, where)
    if not isinstance(node, Processing) or isinstance(node, AsyncProcessing):
        raise TopologyError(
            f'{where}: "{name}" is a {type(node).__name__}; only processors use stores by name. Name one of '
            "add_processor(…)."
        )
    return node


def _known(graph: Graph, name: str, where: str) -> Node:
    if name in graph.nodes:
        return graph.nodes[name]
    near = get_close_matches(str(name), graph.nodes, n=1)
    hint = (
        f'did you mean "{near[0]}"?'
        if near
        else f"there are {', '.join(graph.nodes) or 'none'}."
    )
    raise TopologyError(
        f'{where}: there is no node "{name}"; {hint} Nodes are added after their parents.'
    )
