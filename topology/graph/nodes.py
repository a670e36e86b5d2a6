"""The graph that a builder writes and the compiler reads: one frozen value a node.

A node knows its parents by name and what it does; it holds no logic. Source, sink and stateful nodes are where bytes
are made, so they are the ones that carry serdes. A repartition is a `Sink` and a `Source` on one internal topic.

Invariant: nodes come in the order in which they were attached (parents first), children run in that order, depth first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from re import Pattern
from typing import Any, TypeAlias

from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import AnyWindows, SlidingWindows

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What every node has. `name` as Kafka Streams generates it (`KSTREAM-FILTER-0000000003`) or as the user said."""

    name: str
    parents: tuple[str, ...] = ()
    sends_old: bool = False
    """A table that says with each update what it said of the row before. `cut` sets it, from `Graph.sending_old`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Records of topics. Internal ones are repartition topics; in a `Topology` their names carry the application id.

    With a `pattern`, `topics` are those that match it, as far as somebody has looked; see `patterns`.
    """

    topics: tuple[str, ...]
    key: Serde[Any]
    value: Serde[Any]
    timestamp: Function | None = None
    """`(records.TimestampedRecord) -> int | None`: None or a negative number drops the record."""
    internal: bool = False
    pattern: Pattern[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Node):
    """A source's records become the upserts of a table. `store` None: nobody needs it kept (not named, not joined)."""

    store: StoreSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes to a topic. Serdes None never reach the compiler: the builder has filled them in."""

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    internal: bool = False
    partitioner: Function | None = None
    """See `partitioners`; None: as a Java producer chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSink(Node):
    """Writes each record to the topic `topic_of(key, value)`."""

    topic_of: Function
    key: Serde[Any]
    value: Serde[Any]
    partitioner: Function | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Keeps the records for which `predicate(key, value)` is (or, negated, is not) true. On a table, others become
    tombstones.
    """

    predicate: Function
    negate: bool = False
    table: bool = False
    store: StoreSpec | None = None
    """Of a table that is kept under a name of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """A new value: `mapper(value)`, or `mapper(key, value)` with the key. On a table a null value stays null."""

    mapper: Function
    with_key: bool = False
    table: bool = False
    store: StoreSpec | None = None
    """Of a table that is kept under a name of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Any number of values for one: `mapper(value)` or `mapper(key, value)` returns an iterable."""

    mapper: Function
    with_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """A new key and value: `mapper(key, value)` returns the pair."""

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Node):
    """Any number of records for one: `mapper(key, value)` returns an iterable of (key, value) pairs."""

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectKey(Node):
    """A new key: `mapper(key, value)`."""

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Node):
    """Calls `action(key, value)` and passes the record on. A `foreach` is a Peek without children."""

    action: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """The records of several streams in one; no order between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Node):
    """Each record goes to the `Branch` of the first predicate that is true; if none is, to the one behind them, if
    there is one.
    """

    predicates: tuple[Function, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """What a `Split` sends to its `number`th branch."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing(Node):
    """Gives records to the `processors.Processor` that `supplier()` makes for each task.

    `stores` are its own, `store_names` all that it may use. `fixed_key`: the key stays the same; `key` is then its
    serde, if known. `by_key`: it treats each key on its own, so that key ranges can be tasks; otherwise its partition
    is one task.
    """

    supplier: Function
    stores: tuple[StoreSpec, ...]
    store_names: tuple[str, ...]
    key: Serde[Any] | None
    fixed_key: bool
    by_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNullKeys(Node):
    """Drops records without a key: what stands before the repartition topic of an aggregation or of an inner join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """A table from a stream: `aggregator(key, value, aggregate)`, from `initializer()`.

    With `windows`, the table is keyed by `serdes.Windowed`; `store.key` is then still the serde of the key inside. A
    reduce has `initializer` None: the first value is the aggregate, later ones are `aggregator(aggregate, value)`. A
    count has both None.
    """

    store: StoreSpec
    initializer: Function | None
    aggregator: Function | None
    windows: AnyWindows | None = None
    merger: Function | None = None
    """Of sessions: `merger(key, one aggregate, another)`."""
    emit_on_close: bool = False
    """A window is forwarded once, when it is closed."""
    cogrouped: bool = False
    """Writes into the table of a `CogroupMerge` below, together with others."""

    @property
    def drops_null_values(self) -> bool:
        """Whether a record without a value is dropped; windows, but for sliding ones, take it in."""
        return self.windows is None or isinstance(self.windows, SlidingWindows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Node):
    """`joiner(value, table value)` (with the key in front if `with_key`) for each stream record; `left`: also without a
    match.

    `parents` is (stream, table). The table may be a view: `Filter` and `MapValues` nodes with `table=True` over the
    node that has the store. `store` is the one at the root; a lookup applies the nodes between root and join, top down.
    Keys are equal as bytes: both sides have the same key serde. An inner join drops records without a key, a left join
    joins them with None.
    """

    store: StoreSpec
    joiner: Function
    with_key: bool = False
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Node):
    """The records that its parent, a windowed aggregation or a versioned table, drops because they come too late; not
    its updates.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Node):
    """The updates of a table as a stream."""


@dataclass(frozen=True, slots=True)
class GlobalUpdate:
    """Who keeps a global store: a processor, given the records of the topic as these serdes read them."""

    name: str
    supplier: Callable[..., Any]
    key: Serde[Any]
    value: Serde[Any]


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """A topic and the store that every instance makes of it. Without an `update` each record is a row, and the store's
    serdes are the topic's.
    """

    topic: str
    store: StoreSpec
    update: GlobalUpdate | None = None


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that run together in a task: connected, and cut from the others by topics.

    Shape: `nodes` parents first. `topics` are the source topics, resolved (application id in front of internal ones),
    in node order.
    """

    id: int
    nodes: tuple[Node, ...]
    topics: tuple[str, ...]
    stores: tuple[StoreSpec, ...]

    @property
    def divisible(self) -> bool:
        """Whether key ranges of a partition can be tasks of their own: not where a processor looks at several keys at a
        time.
        """
        return all(node.by_key for node in self.nodes if isinstance(node, Processing))

    @property
    def stateful(self) -> bool:
        """Whether its tasks keep state."""
        return bool(self.stores)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic the application makes for itself. `partitions_from`: the topics whose largest partition count it
    takes.
    """

    name: str
    kind: str
    """`repartition` or `changelog`."""
    partitions_from: tuple[str, ...]
    partitions: int | None = None
    """Given by the user (`repartition(partitions=...)`)."""
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """What a program consists of, as a value.

    Shape: node topics are resolved. `copartitioned` are sets of source topics that must have equal partition counts,
    with the name of the join for the error message.
    """

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    internal_topics: tuple[InternalTopic, ...]
    copartitioned: tuple[tuple[str, tuple[str, ...]], ...] = ()
    global_tables: tuple[GlobalTable, ...] = ()

    @property
    def has_patterns(self) -> bool:
        """Whether a source names its topics by a pattern."""
        return any(
            isinstance(node, Source) and node.pattern is not None
            for subtopology in self.subtopologies
            for node in subtopology.nodes
        )

    @property
    def source_topics(self) -> tuple[str, ...]:
        """The topics that the application reads and that must exist."""
        nodes = (node for subtopology in self.subtopologies for node in subtopology.nodes)
        topics = [topic for node in nodes if isinstance(node, Source) and not node.internal for topic in node.topics]
        return tuple(dict.fromkeys([*topics, *(table.topic for table in self.global_tables)]))

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The topics that the application writes for others."""
        nodes = (node for subtopology in self.subtopologies for node in subtopology.nodes)
        return tuple(dict.fromkeys(node.topic for node in nodes if isinstance(node, Sink) and not node.internal))
