"""`TopologyBuilder`: a program written node by node, each with a name, as Kafka
Streams' low-level `Topology`.

    topology = ( TopologyBuilder("alarms") .add_source("readings", "readings-topic",
        key=serdes.text, value=serdes.json(Reading)) .add_processor("judge", Judge,
        "readings", by_key=True) .add_state_store(key_value_store("worst",
        key=serdes.text, value=serdes.float64), "judge") .add_sink("alarms",
        "alarms-topic", "judge", key=serdes.text, value=serdes.text) .build()
    )

It adds to the same graph as a `StreamsBuilder`, and can extend the program of one.

Invariant: a node is added after its parents; nothing is repartitioned unless the
program sends it through a topic.
Source: Kafka Streams `org.apache.kafka.streams.Topology`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from re import Pattern
from typing import Any, TypeVar

from coopstreams.topology.dsl import attach_named
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.sources import described
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Graph
from coopstreams.topology.graph.offset_resets import OffsetReset
from coopstreams.topology.graph.partitioners import Partitioner
from coopstreams.topology.graph.subtopologies import cut
from coopstreams.topology.graph.topology import Topology
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
        attach_named.source(
            self._graph,
            name,
            described(
                "add_source",
                names,
                key,
                value,
                timestamp,
                patterns[0] if patterns else None,
                reset=reset,
            ),
        )
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
        attach_named.processor(
            self._graph,
            name,
            supplier,
            parents,
            stores,
            by_key=by_key,
            fixed_key=fixed_key,
        )
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
        attach_named.sink(self._graph, name, topic, parents, key, value, partitioner)
        return self

    def add_state_store(self, store: StoreSpec, *processors: str) -> TopologyBuilder:
        """Add a store for these processors, and for those that are connected later.

        Processors that share a store run in one task.
        """
        attach_named.state_store(self._graph, store, processors)
        return self

    def connect_processor_and_state_stores(
        self, processor: str, *stores: str
    ) -> TopologyBuilder:
        """Connect a processor to stores by name: of `add_state_store`, other
        processors, tables, or global ones.
        """
        attach_named.connect(self._graph, processor, stores)
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
        attach_named.global_store(
            self._graph, store, topic, processor, supplier, key, value
        )
        return self

    def build(self) -> Topology:
        """Return the topology as written so far.

        Raises:
            TopologyError: the topology is empty, a topic is used in two ways, or a
            store and its processors do not fit.
        """
        return cut(self._graph)
