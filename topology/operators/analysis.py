"""Analysis of a sub-topology before code is written: the edges between nodes, and what
each node reads.

Invariant: an answer errs only on the safe side. A wrong "reads" costs a
deserialisation; "does not read" is proven.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import FunctionType
from typing import Any, TypeAlias

from coopstreams.topology.fields import Condition
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    AsyncMap,
    AsyncProcessing,
    Branch,
    DropNullKeys,
    DynamicSink,
    Filter,
    FlatMap,
    FlatMapValues,
    Function,
    Late,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    SelectKey,
    Sink,
    Source,
    Split,
    StreamTableJoin,
    SubTopology,
    TableSource,
    ToStream,
)
from coopstreams.topology.graph.record_cache import uncached
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

_LOOKS_AT_FRAMES = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
)


@dataclass(frozen=True, slots=True)
class Edge:
    """A child, and the number of the parent from which the record comes: 0 is the first
    (the left of a join).
    """

    child: Node
    side: int

    @property
    def carries(self) -> bool:
        """Whether records flow along it. A stream-table join looks up the table, but is
        not called for its updates.
        """
        return not (
            isinstance(self.child, StreamTableJoin | ForeignKeyResult)
            and self.side == 1
        )


@dataclass(frozen=True, slots=True)
class Reads:
    """Whether the key and the value of a record are read as objects."""

    key: bool
    value: bool

    def __or__(self, other: Reads) -> Reads:
        return Reads(self.key or other.key, self.value or other.value)


AnySerde: TypeAlias = Serde[Any] | None


class Analysis:
    """A sub-topology, with the questions that the compiler asks about it."""

    def __init__(self, subtopology: SubTopology) -> None:
        self.nodes = subtopology.nodes
        self.numbers = {node.name: number for number, node in enumerate(self.nodes)}
        self._edges: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        self._late: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        for node in reversed(self.nodes):
            if (
                isinstance(node, Filter | MapValues)
                and node.table
                and node.store is None
                and not self._edges[node.name]
            ):
                # a view without children serves look-ups only: its updates need not be
                # computed
                continue
            for side, parent in reversed(list(enumerate(node.parents))):
                edge = Edge(node, side)
                if edge.carries:
                    (self._late if isinstance(node, Late) else self._edges)[
                        parent
                    ].insert(0, edge)
        self._incoming = {
            node.name: sum(
                Edge(node, side).carries for side in range(len(node.parents))
            )
            for node in self.nodes
        }
        self._reads: dict[tuple[str, int, AnySerde, AnySerde], Reads] = {}
        self.uncached = uncached(self.nodes)
        """Tables that forward each update at once, even if the record cache is on."""

    def edges(self, node: Node) -> list[Edge]:
        """Return the edges to the children of a node, in order."""
        return self._edges[node.name]

    def late_edges(self, node: Node) -> list[Edge]:
        """Return the edges to the `Late` children of a node."""
        return self._late[node.name]

    def has_one_parent(self, node: Node) -> bool:
        """Whether records reach the node along one edge only."""
        return self._incoming[node.name] == 1

    def windows_above(self, node: Node) -> list[Aggregate]:
        """Return the windowed aggregations of which a table is a view or a join."""
        above = [self.named(parent) for parent in node.parents]
        return [
            found
            for parent in above
            for found in (
                [parent]
                if isinstance(parent, Aggregate)
                else self.windows_above(parent)
            )
        ]

    def wants_old(self, node: Node) -> bool:
        """Return whether a table forwards the old value with each update and has
        children that receive it.
        """
        return node.sends_old and bool(self.edges(node))

    def keeps_time(self, node: Node) -> bool:
        """Whether every record of the topics upstream reaches a node with its
        timestamp.

        Records that are dropped because they have no key, or fail, are ignored; an
        update of a table counts as the record that made it.
        """
        return all(
            self._passes_time(self.named(parent))
            for side, parent in enumerate(node.parents)
            if Edge(node, side).carries
        )

    def _passes_time(self, node: Node) -> bool:
        passes = isinstance(
            node,
            Source
            | MapValues
            | SelectKey
            | Map
            | Peek
            | Merge
            | ToStream
            | TableSource
            | Aggregate
            | DropNullKeys,
        )
        passes = (
            passes
            or (isinstance(node, StreamTableJoin) and node.left)
            or (isinstance(node, AsyncMap) and not node.flat)
        )
        return passes and self.keeps_time(node)

    def topics(self, node: Node) -> tuple[str, ...]:
        """Return the source topics whose records reach the node, sorted."""
        if isinstance(node, Source):
            return tuple(sorted(node.topics))
        parents = [
            self.named(parent)
            for side, parent in enumerate(node.parents)
            if Edge(node, side).carries
        ]
        return tuple(
            sorted({topic for parent in parents for topic in self.topics(parent)})
        )

    def reads(self, edge: Edge, key: AnySerde, value: AnySerde) -> Reads:
        """Return whether the child, or anything below it, reads the key or value of the
        record that it gets.

        `key` and `value` are the serdes of the record's bytes: bytes of the same serde
        pass through without being deserialised.
        """
        memo = (edge.child.name, edge.side, key, value)
        if memo not in self._reads:
            self._reads[memo] = self._read_by(edge.child, key, value)
        return self._reads[memo]

    def join_reads(self, node: StreamTableJoin) -> Reads:
        """Return the parts of the stream record that a join reads: those of its joiner
        and of the table's view.
        """
        own = (
            reads_pair(node.joiner)
            if node.with_key
            else Reads(key=False, value=reads_argument(node.joiner, 0))
        )
        looks = any(reads_step(step).key for step in self.view(node.parents[1]))
        return Reads(own.key or looks, own.value)

    def view(self, name: str) -> list[Filter | MapValues]:
        """Return the filters and mappers between a table and the stores upstream;
        look-ups apply them to the rows.
        """
        at = self.named(name)
        if getattr(at, "store", None) is not None or not isinstance(
            at, Filter | MapValues | TableTableJoin
        ):
            return []
        above = [step for parent in at.parents for step in self.view(parent)]
        return [*above, at] if isinstance(at, Filter | MapValues) else above

    def named(self, name: str) -> Node:
        """Return a node by its name."""
        return self.nodes[self.numbers[name]]

    def _read_by(self, node: Node, key: AnySerde, value: AnySerde) -> Reads:  # noqa: C901
        match node:
            case Filter(store=StoreSpec()) | MapValues(store=StoreSpec()):
                return Reads(key=True, value=True)
            case Filter() | Peek() | Split():
                return reads_step(node) | self.below(node, key, value)
            case MapValues() | FlatMapValues():
                return reads_step(node) | Reads(
                    self.below(node, key, None).key, value=False
                )
            case AsyncMap(pairs=pairs):  # its call has already read what it needs
                return Reads(not pairs and self.below(node, key, None).key, value=False)
            case AsyncProcessing():
                # so has its call, and its output has keys of its own
                return Reads(key=False, value=False)
            case SelectKey(mapper=function):
                return reads_pair(function) | Reads(
                    key=False, value=self.below(node, None, value).value
                )
            case Map(mapper=function) | FlatMap(mapper=function):
                return reads_pair(function)
            case DynamicSink():
                return (
                    reads_pair(node.topic_of)
                    | Reads(node.key != key, node.value != value)
                    | reads_partitioned(node)
                )
            case ToStream() | Merge() | Branch() | DropNullKeys() | Late():
                return self.below(node, key, value)
            case Sink():
                return Reads(node.key != key, node.value != value) | reads_partitioned(
                    node
                )
            case Aggregate(store=store):
                return Reads(store.key != key, value=False) | aggregate_reads(node)
            case TableSource(store=store):
                below = self.below(node, key, value)
                return (
                    below
                    if store is None
                    else Reads(below.key or store.key != key, value=True)
                )
            case StreamTableJoin(store=store):
                own = self.join_reads(node)
                return Reads(
                    own.key or store.key != key or self.below(node, key, None).key,
                    own.value,
                )
            case StreamGlobalJoin():
                return Reads(key=True, value=True)
            case StreamStreamJoin():
                return Reads(node.key != key, value=True)
            case TableTableJoin():
                looks = any(
                    reads_step(step).key
                    for parent in node.parents
                    for step in self.view(parent)
                )
                return Reads(
                    looks or node.key != key or self.below(node, key, None).key,
                    value=True,
                )
            case _:
                return Reads(key=True, value=True)

    def below(self, node: Node, key: AnySerde, value: AnySerde) -> Reads:
        """Return the parts that the children of a node read of the records that it
        forwards.
        """
        result = Reads(key=False, value=False)
        for edge in self.edges(node):
            result |= self.reads(edge, key, value)
        return result


def reads_pair(function: Function) -> Reads:
    """Return the parts that a function of (key, value) reads."""
    return Reads(reads_argument(function, 0), reads_argument(function, 1))


def reads_partitioned(node: Sink | DynamicSink) -> Reads:
    """Return the parts that a sink's partitioner reads."""
    return Reads(key=node.partitioner is not None, value=node.partitioner is not None)


def aggregate_reads(node: Aggregate) -> Reads:
    """Return the parts that an aggregation's function reads: none in a count, the value
    in a reduce.
    """
    if node.aggregator is None:
        return Reads(key=False, value=False)
    return (
        reads_pair(node.aggregator)
        if node.initializer is not None
        else Reads(key=False, value=True)
    )


def reads_step(step: Node) -> Reads:
    """Return the parts that the functions of a filter, a mapper of values, a split or a
    peek read.
    """
    match step:
        case Filter(predicate=function) | Peek(action=function):
            return reads_pair(function)
        case (
            MapValues(mapper=function, with_key=with_key)
            | FlatMapValues(mapper=function, with_key=with_key)
        ):
            return (
                reads_pair(function)
                if with_key
                else Reads(key=False, value=reads_argument(function, 0, 1))
            )
        case Split(predicates=predicates):
            return reduce(or_, map(reads_pair, predicates))
        case _:
            return Reads(key=False, value=False)


def reads_argument(
    function: Callable[..., Any], position: int, arguments: int = 2
) -> bool:
    """Return False only if the function, given this many arguments, provably never
    reads this one.

    An example is `lambda _, value: value.name`. The caller may then pass None instead
    of deserialising the argument. Only plain Python functions and conditions on fields
    can prove it.
    """
    if isinstance(function, Condition):
        return position == arguments - 1
    if not isinstance(function, FunctionType):
        return True
    code = function.__code__
    if position >= code.co_argcount or not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return True
    name = code.co_varnames[position]
    if name in code.co_cellvars:
        return True
    # In newer Pythons, a fused instruction names several variables.
    return any(
        name == i.argval or (isinstance(i.argval, tuple) and name in i.argval)
        for i in dis.get_instructions(code)
        if i.opcode in dis.haslocal
    )
