"""The nodes of a topology: the graph that a builder writes and the compiler reads.

A node is a frozen value that knows the names of its parents and what it does; it holds
no logic. Sources, sinks and stateful nodes serialise or deserialise, so they carry the
serdes. A repartition is a `Sink` and a `Source` on one internal topic.

Invariant: nodes are listed in the order in which they were attached, parents first. The
children of a node run in that order, depth first.

What holds for a kind of node is written in: `operators/` (its code), `operators/analysis.py`
(what it reads), `compile/operator_time.py`, `timed_topics` and `order_and_time` (time and
order), `keyed_state` (whether keys stay), `fingerprint`, `description`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from re import Pattern
from typing import Any, TypeAlias

from coopstreams.topology.calls import Calling, listed, listed_later
from coopstreams.topology.external_sinks import ExternalSink
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import AnyWindows, SlidingWindows

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The fields of every node. `name` is generated as by Kafka Streams
    (`KSTREAM-FILTER-0000000003`) or the user's.
    """

    name: str
    parents: tuple[str, ...] = ()
    sends_old: bool = False
    """Whether a table forwards the old value with each update. `subtopologies.cut` sets
    it, from `Graph.sending_old`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Reads the records of topics.

    Internal topics are repartition topics; in a `Topology` their names carry the
    application id.

    With a `pattern`, `topics` are the topics that matched it when the cluster's topics
    were last listed; see `topic_patterns`.
    """

    topics: tuple[str, ...]
    key: Serde[Any]
    value: Serde[Any]
    timestamp: Function | None = None
    """The timestamp extractor, `(records.TimestampedRecord) -> int | None`. None or a
    negative number drops the record.
    """
    internal: bool = False
    pattern: Pattern[str] | None = None
    idle_ms: int | None = None
    """The silence of a partition after which its stream time advances; None: it does
    not advance.
    """
    unordered: bool = False
    """Whether a share group delivers the records (`order="none"`), so that they are
    processed in any order, even records of one key.
    """
    reset: str | None = None
    """Where the source begins if the group has no position, see `offset_resets`. None:
    as the setting `auto.offset.reset` says.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Node):
    """A table whose updates are the records of a source.

    `store` is None if the table has no store name and no operator looks it up.
    """

    store: StoreSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes to a topic. The builder has filled in both serdes."""

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    internal: bool = False
    partitioner: Function | None = None
    """See `partitioners`. None: the Java producer's default partitioner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSink(Node):
    """Writes each record to the topic `topic_of(key, value)`."""

    topic_of: Function
    key: Serde[Any]
    value: Serde[Any]
    partitioner: Function | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTo(Node):
    """Applies each record to an external sink; its source is a repartition topic of its
    own.
    """

    target: ExternalSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Keeps the records for which `predicate(key, value)` is true; with `negate`, those
    for which it is false.

    A filtered table turns a row that does not pass into a tombstone.
    """

    predicate: Function
    negate: bool = False
    table: bool = False
    store: StoreSpec | None = None
    """The store of a materialised table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """Replaces the value by `mapper(value)`, or `mapper(key, value)`. A table's null
    values stay null.
    """

    mapper: Function
    with_key: bool = False
    table: bool = False
    store: StoreSpec | None = None
    """The store of a materialised table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncMap(Node):
    """Replaces the value by the result of `mapper(value)`, or `mapper(key, value)`, an
    asynchronous call.

    With `pairs`, `mapper(key, value)` returns a new key and a new value; with `flat`,
    any number of values or pairs.
    """

    mapper: Function
    with_key: bool
    calling: Calling
    pairs: bool = False
    flat: bool = False

    @property
    def function(self) -> Function:
        """The function that a call runs: `mapper`, or with `flat` a function that
        returns all results of `mapper` as a list.
        """
        if not self.flat:
            return self.mapper
        return partial(listed_later if self.calling.coroutine else listed, self.mapper)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Replaces a value by any number of values: `mapper(value)` or `mapper(key, value)`
    returns an iterable.
    """

    mapper: Function
    with_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """Replaces key and value by the pair that `mapper(key, value)` returns."""

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Node):
    """Replaces a record by any number of records: `mapper(key, value)` returns an
    iterable of (key, value) pairs.
    """

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectKey(Node):
    """Replaces the key by `mapper(key, value)`."""

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Node):
    """Calls `action(key, value)` and passes the record on. A `foreach` is a Peek
    without children.
    """

    action: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """Merges several streams into one, without an order between records of different
    streams.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Node):
    """Sends each record to the `Branch` of the first predicate that is true.

    If none is true, the record goes to the default branch, which follows the
    predicates' branches, or is dropped.
    """

    predicates: tuple[Function, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """Receives the records that a `Split` sends to its `number`th branch."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing(Node):
    """Gives records to the `processors.Processor` that `supplier()` makes for each
    task.

    `stores` are the stores that it adds, `store_names` all stores that it may use.
    `fixed_key`: the key stays the same; `key` is then its serde, if known. `by_key`:
    the processor treats each key on its own, so key ranges can be tasks; otherwise each
    partition is one task.
    """

    supplier: Function
    stores: tuple[StoreSpec, ...]
    store_names: tuple[str, ...]
    key: Serde[Any] | None
    fixed_key: bool
    by_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncProcessing(Processing):
    """Gives each record to `supplier(record, context)`, which changes rows of the
    record's key and forwards records.

    `supplier` is the function itself: a task has no object of its own for it.
    """

    calling: Calling


Asynchronous: TypeAlias = AsyncMap | AsyncProcessing
"""Nodes whose functions run beside the stream thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNullKeys(Node):
    """Drops records without a key, before the repartition topic of an aggregation or of
    an inner join.
    """


RECORD_BY_RECORD = (
    *(
        Source,
        Filter,
        MapValues,
        FlatMapValues,
        FlatMap,
        Map,
        SelectKey,
        Peek,
        Merge,
        Split,
        Branch,
        DropNullKeys,
    ),
)
"""Nodes that forward only results of the record that they process at that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """A table from a stream: `aggregator(key, value, aggregate)`, starting from
    `initializer()`.

    With `windows`, the table is keyed by `serdes.Windowed`; `store.key` is still the
    serde of the plain key. A reduce has no `initializer`: the first value is the
    aggregate, and later ones give `aggregator(aggregate, value)`. A count has neither
    function.
    """

    store: StoreSpec
    initializer: Function | None
    aggregator: Function | None
    windows: AnyWindows | None = None
    merger: Function | None = None
    """For sessions: `merger(key, one aggregate, another)`."""
    emit_on_close: bool = False
    """Whether each window is forwarded only once, when it closes."""
    cogrouped: bool = False
    """Whether the node is one of several aggregations that write into the store of a
    `CogroupMerge` below.
    """

    @property
    def drops_null_values(self) -> bool:
        """Whether the node drops records with a null value, as aggregations without
        windows or in sliding windows do.
        """
        return self.windows is None or isinstance(self.windows, SlidingWindows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Node):
    """A join of each stream record with the table's row of its key: `joiner(value,
    table value)`.

    `parents` is (stream, table). With `with_key`, the joiner takes the key first. Both
    sides have the same key serde, so equal keys are equal bytes. An inner join drops
    records without a key or without a row; with `left`, they are joined with None.

    The table may be a view: `Filter` and `MapValues` nodes with `table=True`, above
    which another node has the store. `store` is that store; a lookup applies the nodes
    between store and join from the top down.
    """

    store: StoreSpec
    joiner: Function
    with_key: bool = False
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Node):
    """Forwards the late records that its parent drops, not the parent's updates. The
    parent is a windowed aggregation or a versioned table.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Node):
    """Forwards the updates of a table as a stream."""


@dataclass(frozen=True, slots=True)
class GlobalUpdate:
    """The processor that maintains a global store, and the serdes with which it reads
    the topic.
    """

    name: str
    supplier: Callable[..., Any]
    key: Serde[Any]
    value: Serde[Any]


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """A topic and the store that every instance makes of it.

    Without an `update`, each record is a row, and the store's serdes are the topic's.
    """

    topic: str
    store: StoreSpec
    update: GlobalUpdate | None = None


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Connected nodes, which run together in a task. Topics separate it from other
    sub-topologies.

    Shape: `nodes` parents first. `topics` are the source topics in node order, internal
    ones with the application id.
    """

    id: int
    nodes: tuple[Node, ...]
    topics: tuple[str, ...]
    stores: tuple[StoreSpec, ...]

    @property
    def across_keys(self) -> list[str]:
        """The names of the processors that look at several keys at a time
        (`by_key=False`).
        """
        return [
            node.name
            for node in self.nodes
            if isinstance(node, Processing) and not node.by_key
        ]

    @property
    def applies_to(self) -> ApplyTo | None:
        """The node that applies its records to an external sink; None: the sub-topology
        has no such node.
        """
        return next((node for node in self.nodes if isinstance(node, ApplyTo)), None)

    @property
    def unordered(self) -> bool:
        """Whether a share group delivers its records, instead of the application's
        group. It then has no tasks.
        """
        return any(isinstance(node, Source) and node.unordered for node in self.nodes)

    @property
    def divisible(self) -> bool:
        """Whether key ranges of a partition can be separate tasks."""
        return not self.across_keys and self.applies_to is None


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application creates. It takes the largest partition count of the
    topics `partitions_from`.
    """

    name: str
    kind: str
    """`repartition` or `changelog`."""
    partitions_from: tuple[str, ...]
    partitions: int | None = None
    """The count that the user gave (`repartition(partitions=...)`), or None."""
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """The parts of a program, as a value.

    Shape: the topics of nodes are full names. `copartitioned` has sets of source topics
    that must have equal partition counts, each with the name of its operator for error
    messages.
    """

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    internal_topics: tuple[InternalTopic, ...]
    copartitioned: tuple[tuple[str, tuple[str, ...]], ...] = ()
    global_tables: tuple[GlobalTable, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of all sub-topologies, in order."""
        return tuple(node for part in self.subtopologies for node in part.nodes)

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The stores of all sub-topologies, in order."""
        return tuple(store for part in self.subtopologies for store in part.stores)

    @property
    def has_patterns(self) -> bool:
        """Whether a source names its topics by a pattern."""
        return any(
            isinstance(node, Source) and node.pattern is not None for node in self.nodes
        )

    @property
    def source_topics(self) -> tuple[str, ...]:
        """The topics that the application reads and that must exist."""
        sources = [
            node
            for node in self.nodes
            if isinstance(node, Source) and not node.internal
        ]
        topics = [topic for source in sources for topic in source.topics]
        return tuple(
            dict.fromkeys([*topics, *(table.topic for table in self.global_tables)])
        )

    @property
    def makes_calls(self) -> bool:
        """Whether the program has asynchronous operators."""
        return any(isinstance(node, Asynchronous) for node in self.nodes)

    @property
    def unordered_topics(self) -> tuple[str, ...]:
        """The topics whose records a share group delivers."""
        return tuple(
            topic
            for part in self.subtopologies
            if part.unordered
            for topic in part.topics
        )

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The topics that the application writes, without internal topics."""
        return tuple(
            dict.fromkeys(
                node.topic
                for node in self.nodes
                if isinstance(node, Sink) and not node.internal
            )
        )

    @property
    def dead_letter_topics(self) -> Mapping[str, str]:
        """The dead-letter topics that asynchronous operators name, by node."""
        nodes = [node for node in self.nodes if isinstance(node, Asynchronous)]
        return {
            node.name: topic
            for node in nodes
            if (topic := node.calling.dead_letters) is not None
        }
