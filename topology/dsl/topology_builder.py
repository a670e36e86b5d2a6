"""`TopologyBuilder`: a program written node by node, each with a name, as Kafka
Streams' low-level `Topology`.

    topology = (
        TopologyBuilder("alarms")
        .add_source("readings", "readings-topic", key=text, value=json(Reading))
        .add_processor("judge", Judge, "readings", by_key=True)
        .add_state_store(key_value_store("worst", key=text, value=float64), "judge")
        .add_sink("alarms", "alarms-topic", "judge", key=text, value=text)
        .build()
    )

It adds to the same graph as a `StreamsBuilder`, and can extend the program of one.

Invariant: a node is added after its parents; nothing is repartitioned unless the
program sends it through a topic. If a store would not be partitioned like its records,
adding its processor is an error. A store has one specification for all its users.
Source: Kafka Streams `org.apache.kafka.streams.Topology`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from re import Pattern
from typing import Any, TypeVar

from coopstreams.topology.dsl.attach import sink_of
from coopstreams.topology.dsl.attach_processors import by_key_of, take_store, using
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.source_arguments import described
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
from coopstreams.topology.graph.offset_resets import OffsetReset
from coopstreams.topology.graph.partitioners import Partitioner
from coopstreams.topology.graph.subtopologies import cut
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.naming import check_name
from coopstreams.topology.processors import Processor
from coopstreams.topology.records import TimestampedRecord
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


class TopologyBuilder:
    """Builds one topology by names. `program`: its application id, or the
    `StreamsBuilder` whose program it extends.

    Every method returns the builder. Nodes of a `StreamsBuilder` have the names that
    were given with `name=`.
    """

    def __init__(self, program: str | StreamsBuilder) -> None:
        self._graph = (
            program._graph
            if isinstance(program, StreamsBuilder)
            else Graph(check_name(program, "the application id"))
        )

    def add_source(
        self,
        name: str,
        *topics: str | Pattern[str],
        key: Serde[K],
        value: Serde[V],
        timestamp: Callable[[TimestampedRecord[K, V]], int | None] | None = None,
        reset: OffsetReset | None = None,
    ) -> TopologyBuilder:
        """Read one topic, several with the same serdes, or all that match
        `re.compile(…)` as a whole.

        `timestamp(record)` returns the event time of a record in milliseconds; None or
        a negative number drops the record. `reset` as of `StreamsBuilder.stream`.

        Raises:
            TopologyError: names together with a pattern, several patterns, or a name or
            topic that is taken.
        """
        names = tuple(topic for topic in topics if not isinstance(topic, Pattern))
        patterns = [topic for topic in topics if isinstance(topic, Pattern)]
        if len(patterns) > 1 or (patterns and names):
            raise TopologyError(
                f'add_source("{name}"): names of topics, or one pattern. Write the names into the pattern, or add a '
                "second source."
            )
        pattern = patterns[0] if patterns else None
        make = described(
            "add_source",
            names,
            key,
            value,
            timestamp,
            pattern,
            reset=reset,
        )
        node = make(name=check_name(name, "the node name"))
        if (known := self._graph.reader_of(node)) is not None:
            topic, other = known
            raise TopologyError(
                f'add_source("{name}"): topic "{topic}" is read by "{other.name}" already. Name "{other.name}" as the '
                "parent."
            )
        _add(self._graph, node)
        return self

    def add_processor(
        self,
        name: str,
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
        *parents: str,
        stores: Sequence[StoreSpec | str] = (),
        by_key: bool | None = None,
        fixed_key: bool = False,
    ) -> TopologyBuilder:
        """Give the records of the parents to a processor, which `supplier()` makes for
        each task.

        `stores`: the processor's own, and the names of stores of tables, of other
        processors and of `add_state_store`. `by_key` is required. True: the processor
        treats each key on its own, with state under the record's key, so key ranges can
        be tasks. False: each partition is one task. `fixed_key=True`: the processor
        keeps the keys of records, so that processors below it can be `by_key`, too;
        forwarding another key is an error.
        """
        where = f'add_processor("{name}")'
        function = checked(where, supplier)
        by_key = by_key_of(by_key, where)
        _check_parents(self._graph, parents, where)
        keys = keys_as_read(self._graph.nodes.values())
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
        _add(self._graph, using(self._graph, node, stores, where))
        return self

    def add_sink(
        self,
        name: str,
        topic: str | Callable[[K, V], str],
        *parents: str,
        key: Serde[K],
        value: Serde[V],
        partitioner: Partitioner[K, V] | None = None,
    ) -> TopologyBuilder:
        """Write the records of the parents to a topic. `topic(key, value)` chooses the
        topic of each record.

        `partitioner(topic, key, value, partitions)` chooses the partition, from 0 to
        partitions - 1. Without it, the key decides, as in the Java producer.
        """
        where = f'add_sink("{name}")'
        _check_parents(self._graph, parents, where)
        serdes: dict[Part, Serde[Any]] = {"key": key, "value": value}
        for part, serde in serdes.items():
            if serde_or_none(serde, part, where) is None:
                raise TopologyError(
                    f"{where}: how do {part}s become bytes? Write {part}=serdes.… there."
                )
        make = sink_of(where, topic, key, value, partitioner)
        _add(self._graph, make(name=check_name(name, "the node name"), parents=parents))
        return self

    def add_state_store(self, store: StoreSpec, *processors: str) -> TopologyBuilder:
        """Add a store for these processors, and for those that are connected later.

        Processors that share a store run in one task.
        """
        if not isinstance(store, StoreSpec):
            raise TopologyError(
                f"add_state_store() takes a store such as key_value_store(…), not {store!r}"
            )
        nodes = [
            _processor(self._graph, name, f'add_state_store("{store.name}")')
            for name in processors
        ]
        take_store(self._graph, store)
        self._graph.added_stores[store.name] = store
        for node in nodes:
            self._graph.nodes[node.name] = using(self._graph, node, [store], "")
        return self

    def connect_processor_and_state_stores(
        self, processor: str, *stores: str
    ) -> TopologyBuilder:
        """Connect a processor to stores by name: of `add_state_store`, other
        processors, tables, or global ones.
        """
        where = f'connect_processor_and_state_stores("{processor}")'
        if not stores:
            raise TopologyError(f"{where}: name at least one store")
        self._graph.nodes[processor] = using(
            self._graph,
            _processor(self._graph, processor, where),
            stores,
            where,
        )
        return self

    def add_global_store(
        self,
        store: StoreSpec,
        topic: str,
        processor: str | None = None,
        supplier: Callable[[], Processor[Any, Any, Any, Any]] | None = None,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
    ) -> TopologyBuilder:
        """Add a store of which every instance has all rows, which processors look up by
        its name.

        Its rows are the records of the topic, or those that a processor writes. It is
        complete before the first record is processed; its updates have no order with
        the records. With a `supplier`, its processor, named `processor`, gets every
        record of the topic, at each start from the beginning, and writes rows; it
        cannot forward or schedule. `key=` and `value=`: the topic's serdes, if they
        differ from the store's.
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
            self._graph.names.take(update.name)
        elif (
            supplier is not None
            or processor is not None
            or (read_key, read_value) != (store.key, store.value)
        ):
            raise TopologyError(
                f"{where}: records become rows as they are, or a processor makes rows of them: name it and give its "
                "supplier, add_global_store(store, topic, name, supplier, key=…, value=…)."
            )
        self._graph.names.store("", store.name)
        self._graph.global_tables.append(
            GlobalTable(topic, replace(store, logged=False), update)
        )
        return self

    def build(self) -> Topology:
        """Return the topology as written so far.

        Raises:
            TopologyError: the topology is empty, a topic is used in two ways, or a
            store and its processors do not fit.
        """
        return cut(self._graph)


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


def _check_parents(
    graph: Graph,
    parents: tuple[str, ...],
    where: str,
) -> None:
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


def _processor(
    graph: Graph,
    name: str,
    where: str,
) -> Processing:
    node = _known(graph, name, where)
    if not isinstance(node, Processing) or isinstance(node, AsyncProcessing):
        raise TopologyError(
            f'{where}: "{name}" is a {type(node).__name__}; only processors use stores by name. Name one of '
            "add_processor(…)."
        )
    return node


def _known(
    graph: Graph,
    name: str,
    where: str,
) -> Node:
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
