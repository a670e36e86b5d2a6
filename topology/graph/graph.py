"""A topology under construction: `Graph` collects the nodes, and a `Flow` points to the
node of a stream or table.

A `Flow` is a value: a node of the graph, and the serdes of the records that the node
forwards. An operator that keeps the keys (or values) keeps their serde. An operator
that makes new ones makes the serde unknown, until `key=` or `value=` names it at that
operator or at the next topic or store. If records must be serialised there and the
serde is still unknown, building fails.

Invariant: parents are attached before children. Keys that are not `rekeyed` have a
known serde, and their bytes are those of the source record, from which its partition
and its key range were computed.
Invariant: every call of the user takes as many numbers of `naming.Names` as in Kafka
Streams, used or not. One more or fewer renames all later stores, which are then empty.
Turned down: default serdes (the type of a value is
known only at run time), and keeping a serde for new values "until they do not fit" (a
JSON serde fits everything, so only the readers of the topic would find the mistake).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import (
    GlobalTable,
    Node,
    Sink,
    Source,
)
from coopstreams.topology.naming import Names
from coopstreams.topology.serdes import Serde

if TYPE_CHECKING:
    from coopstreams.topology.stores import StoreSpec

Part = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown serde of keys or values. `since` names the operator that made them."""

    since: str


@dataclass(frozen=True, slots=True)
class Repartition:
    """A repartition topic, and the node whose records go through it.

    `node`: that node. `source`: the node that reads the topic; empty until it is made.
    `drop_null_keys`: whether records without a key are dropped before the topic.
    `partitions`: the count that the user gave; None: that of the source topics.
    """

    node: str
    key: Serde[Any]
    value: Serde[Any]
    drop_null_keys: bool
    topic: str
    source: str
    partitions: int | None
    explicit: bool = False
    """Whether the user called `repartition()`. Operators that need a repartition topic
    do not share this topic.
    """
    partitioner: Callable[..., Any] | None = None
    """The user's function that chooses the partitions. With it, equal keys may be on
    several partitions, so the flow below is still `rekeyed`.
    """


@dataclass(eq=False, slots=True)
class Graph:
    """The nodes of one builder."""

    application_id: str
    names: Names = field(default_factory=Names)
    nodes: dict[str, Node] = field(default_factory=dict)
    repartitions: list[Repartition] = field(default_factory=list)
    needed_stores: set[str] = field(default_factory=set)
    """The names of the stores that the user named or that an operator looks up. A table
    source makes no other store.
    """
    added_stores: dict[str, StoreSpec] = field(default_factory=dict)
    """Stores that belong to no node: processors are connected to them by name."""
    global_tables: list[GlobalTable] = field(default_factory=list)
    sending_old: set[str] = field(default_factory=set)
    """The names of the tables that forward the old value with each update."""

    def attach(self, node: Node) -> str:
        """Add a node under its name, which `names` has given out; return the name."""
        self.nodes[node.name] = node
        return node.name

    def through(
        self,
        parent: str,
        sink: str,
        source: str,
        wanted: Repartition,
        idle_ms: int | None = None,
    ) -> Flow:
        """Add a repartition topic below a node; return the flow behind the topic.

        `sink`, `source`: the names of the two new nodes. `idle_ms`: as of `Source`.
        """
        serdes: dict[str, Any] = {
            "key": wanted.key,
            "value": wanted.value,
            "internal": True,
        }
        chosen_by = wanted.partitioner
        self.attach(
            Sink(
                name=sink,
                parents=(parent,),
                topic=wanted.topic,
                partitioner=chosen_by,
                **serdes,
            )
        )
        self.attach(
            Source(name=source, topics=(wanted.topic,), idle_ms=idle_ms, **serdes)
        )
        self.repartitions.append(replace(wanted, source=source))
        return Flow(
            self,
            source,
            wanted.key,
            wanted.value,
            rekeyed=chosen_by is not None,
        )

    def source(
        self,
        given: str | None,
        make: Callable[..., Source],
        suffix: str = "",
    ) -> Source:
        """Return the source of the topics that `make` names: a new node, or the node
        that already reads these topics.

        `given`: the user's name for a new node.

        Raises:
            TopologyError: a topic is already read with another serde, timestamp
            extractor, order, reset, idle_advance or name, or in another set of topics.
        """
        wanted = make(name="")
        if (known := self.reader_of(wanted)) is not None:
            topic, node = known
            # Takes a number, as Kafka Streams does: without it, all later generated
            # names would change.
            self.names.node("KSTREAM-SOURCE-")
            _check_same_source(
                topic,
                node,
                replace(wanted, name=node.name if given is None or suffix else given),
            )
            return node
        node = make(name=self.names.node("KSTREAM-SOURCE-", given, suffix))
        self.attach(node)
        return node

    def reader_of(self, wanted: Source) -> tuple[str, Source] | None:
        """Return a topic or pattern that the graph already reads, with its source; None
        if there is none.
        """
        for node in self.nodes.values():
            if (
                isinstance(node, Source)
                and not node.internal
                and (topic := _read_by_both(wanted, node)) is not None
            ):
                return topic, node
        return None


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream or a table: the node that forwards its records, and their serdes.

    `rekeyed`: whether keys may have changed since the source topic, so that equal keys
    may be on several partitions.
    """

    graph: Graph
    node: str
    key: Serde[Any] | Unknown
    value: Serde[Any] | Unknown
    rekeyed: bool = False

    def then(
        self,
        prefix: str,
        name: str | None,
        make: Callable[..., Node],
    ) -> Flow:
        """Attach the node `make(name=..., parents=...)` below this one; return its
        flow, with the same serdes.
        """
        return replace(
            self,
            node=self.graph.attach(
                make(name=self.graph.names.node(prefix, name), parents=(self.node,))
            ),
        )

    def with_key(self, key: Serde[Any] | None, where: str) -> Flow:
        """Return the flow with new keys, made by the method `where`, and their serde
        (None: unknown).
        """
        known = serde_or_none(key, "key", where)
        return replace(
            self,
            key=Unknown(f"{where} ({self.node})") if known is None else known,
            rekeyed=True,
        )

    def with_value(self, value: Serde[Any] | None, where: str) -> Flow:
        """Return the flow with new values, made by the method `where`, and their serde
        (None: unknown).
        """
        known = serde_or_none(value, "value", where)
        return replace(
            self,
            value=Unknown(f"{where} ({self.node})") if known is None else known,
        )

    def needed(
        self,
        part: Part,
        where: str,
        cure: str = "",
    ) -> Serde[Any]:
        """Return the serde of the keys or the values, which are about to be serialised.

        `cure`: a second place where the user can name the serde.

        Raises:
            TopologyError: the serde is unknown; the message says since which operator,
            and where to name it.
        """
        serde = self.key if part == "key" else self.value
        if isinstance(serde, Serde):
            return serde
        raise TopologyError(
            f"{where}: how do {part}s become bytes? No serde is known for them since {serde.since}. "
            f"Write {part}=serdes.… there{f' or in {cure}' if cure else ''}."
        )

    def same_graph(self, other: Flow, where: str) -> None:
        """Check that both flows belong to one builder.

        Raises:
            TopologyError: they belong to two. Read the topic again with this builder.
        """
        if self.graph is not other.graph:
            raise TopologyError(
                f"{where}: both sides must come from the same StreamsBuilder. Read the topic again with this one."
            )


def serde_or_none(
    serde: Any,
    part: Part,
    where: str,
) -> Serde[Any] | None:
    """Return the argument `key=` or `value=` unchanged, if it is a serde or None.

    Raises:
        TopologyError: it is something else, for example a class.
    """
    if serde is None or isinstance(serde, Serde):
        return serde
    raise TopologyError(
        f"{where}: {part}= must be a serde such as serdes.text or serdes.json(Type), not {serde!r}"
    )


def reads(source: Source, topic: str) -> bool:
    """Whether a source reads a topic, by name or by pattern."""
    return topic in source.topics or (
        source.pattern is not None and source.pattern.fullmatch(topic) is not None
    )


def _read_by_both(one: Source, other: Source) -> str | None:
    """Return a topic, or the pattern, that two sources have in common; None: they share
    no topic.
    """
    if one.pattern is not None and one.pattern == other.pattern:
        return one.pattern.pattern
    common = [topic for topic in one.topics if reads(other, topic)] or [
        topic for topic in other.topics if reads(one, topic)
    ]
    return common[0] if common else None


def _check_same_source(
    topic: str,
    node: Source,
    wanted: Source,
) -> None:
    if (set(node.topics), node.pattern) != (set(wanted.topics), wanted.pattern):
        one, other = (
            str(list(source.topics))
            if source.pattern is None
            else f'"{source.pattern.pattern}"'
            for source in (node, wanted)
        )
        raise TopologyError(
            f'topic "{topic}" is read twice, in {one} and in {other}. Read each topic in one stream() and merge() the '
            "streams."
        )
    for part, had, has in (
        ("key", node.key, wanted.key),
        ("value", node.value, wanted.value),
    ):
        if had != has:
            raise TopologyError(
                f'topic "{topic}" is read twice, once with {part}={had} and once with {part}={has}. Use one serde for '
                "both."
            )
    if node.timestamp is not wanted.timestamp:
        raise TopologyError(
            f'topic "{topic}" is read twice with different timestamp=. Use one function for both.'
        )
    if node.unordered != wanted.unordered:
        raise TopologyError(
            f'topic "{topic}" is read twice with different order=. Use one order for both.'
        )
    if node.reset != wanted.reset:
        raise TopologyError(
            f'topic "{topic}" is read twice with different reset=. Use one for both.'
        )
    if wanted.idle_ms not in (
        None,
        node.idle_ms,
    ):  # a table has none, and follows the stream that reads its topic
        raise TopologyError(
            f'topic "{topic}" is read twice with different idle_advance=. Give it where the topic is read first.'
        )
    if node.name != wanted.name:
        raise TopologyError(
            f'topic "{topic}" is read twice, as "{node.name}" and as "{wanted.name}". Leave out the second name=.'
        )
