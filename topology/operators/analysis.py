"""Analyses a sub-topology before its code is generated: the edges between nodes, and
the parts of records that each node reads.

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

from coopstreams.topology.expression_code import positions
from coopstreams.topology.fields import Expression
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyResult,
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
from coopstreams.topology.graph.uncached_tables import uncached
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

_LOOKS_AT_FRAMES = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
)


@dataclass(frozen=True, slots=True)
class Edge:
    """A child node, and the number of the parent from which it gets records: 0 is the
    first (the left of a join).
    """

    child: Node
    side: int

    @property
    def carries(self) -> bool:
        """Whether the parent passes its records to the child. A stream-table join only
        looks up rows of its table, so the table does not.
        """
        return not (
            isinstance(self.child, StreamTableJoin | ForeignKeyResult)
            and self.side == 1
        )


@dataclass(frozen=True, slots=True)
class Reads:
    """The parts of a record, key and value, that are read as objects."""

    key: bool
    value: bool

    def __or__(self, other: Reads) -> Reads:
        return Reads(self.key or other.key, self.value or other.value)


AnySerde: TypeAlias = Serde[Any] | None

_NONE = Reads(key=False, value=False)
_BOTH = Reads(key=True, value=True)
_PASSES_BOTH = (
    Filter
    | Peek
    | Split
    | ToStream
    | Merge
    | Branch
    | DropNullKeys
    | Late
    | TableSource
)
_PASSES_KEY = (
    _PASSES_BOTH
    | MapValues
    | FlatMapValues
    | AsyncMap
    | StreamTableJoin
    | TableTableJoin
)
"""Nodes that forward a record with its key unchanged."""
_PASSES_VALUE = _PASSES_BOTH | SelectKey
"""Nodes that forward a record with its value unchanged."""


def _incoming(node: Node) -> list[Edge]:
    """Return the edges along which records reach a node."""
    edges = [Edge(node, side) for side in range(len(node.parents))]
    return [edge for edge in edges if edge.carries]


def _is_view(node: Node) -> bool:
    """Return whether a node is a table without a store, whose rows are computed."""
    return isinstance(node, Filter | MapValues) and node.table and node.store is None


class Analysis:
    """The answers to the compiler's questions about one sub-topology."""

    def __init__(self, subtopology: SubTopology) -> None:
        self.nodes = subtopology.nodes
        self.numbers = {node.name: number for number, node in enumerate(self.nodes)}
        self._edges: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        self._late: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        for node in reversed(self.nodes):
            if _is_view(node) and not self._edges[node.name]:
                continue  # it serves look-ups only: its updates need not be computed
            edges = self._late if isinstance(node, Late) else self._edges
            for edge in reversed(_incoming(node)):
                edges[node.parents[edge.side]].insert(0, edge)
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
        """Return whether records reach the node along a single edge."""
        return len(_incoming(node)) == 1

    def windows_above(self, node: Node) -> list[Aggregate]:
        """Return the windowed aggregations above a table that is a view or a join of
        them.
        """
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
        """Return whether every record of the topics upstream reaches a node with its
        timestamp.

        Records that fail, or are dropped because they have no key, are ignored. An
        update of a table counts as the record that caused it.
        """
        return all(
            self._passes_time(self.named(node.parents[edge.side]))
            for edge in _incoming(node)
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
        parents = [self.named(node.parents[edge.side]) for edge in _incoming(node)]
        return tuple(
            sorted({topic for parent in parents for topic in self.topics(parent)})
        )

    def reads(
        self,
        edge: Edge,
        key: AnySerde,
        value: AnySerde,
    ) -> Reads:
        """Return whether the child, or any node below it, reads the key or value of the
        record that it gets.

        `key` and `value` are the serdes of the record's bytes: bytes of the same serde
        pass through without being deserialised.
        """
        memo = (edge.child.name, edge.side, key, value)
        if memo not in self._reads:
            self._reads[memo] = self._read_by(edge.child, key, value)
        return self._reads[memo]

    def join_reads(self, node: StreamTableJoin) -> Reads:
        """Return the parts of the stream record that a join reads, in its joiner or in
        the table's view.
        """
        own = (
            reads_pair(node.joiner, 3)
            if node.with_key
            else Reads(key=False, value=reads_argument(node.joiner, 0))
        )
        return Reads(own.key or self._view_reads_key(node.parents[1]), own.value)

    def view(self, name: str) -> list[Filter | MapValues]:
        """Return the filters and mappers between a table and the stores upstream, which
        look-ups apply to the rows.
        """
        at = self.named(name)
        if getattr(at, "store", None) is not None or not isinstance(
            at,
            Filter | MapValues | TableTableJoin,
        ):
            return []
        above = [step for parent in at.parents for step in self.view(parent)]
        return [*above, at] if isinstance(at, Filter | MapValues) else above

    def _view_reads_key(self, name: str) -> bool:
        return any(reads_step(step).key for step in self.view(name))

    def named(self, name: str) -> Node:
        """Return a node by its name."""
        return self.nodes[self.numbers[name]]

    def _read_by(
        self,
        node: Node,
        key: AnySerde,
        value: AnySerde,
    ) -> Reads:
        own = self._own_reads(node, key, value)
        # the call of an asynchronous function has already read what it needs
        passes_key = isinstance(node, _PASSES_KEY) and not (
            isinstance(node, AsyncMap) and node.pairs
        )
        passes_value = isinstance(node, _PASSES_VALUE)
        if not passes_key and not passes_value:
            return own
        below = self.below(
            node,
            key if passes_key else None,
            value if passes_value else None,
        )
        return own | Reads(passes_key and below.key, passes_value and below.value)

    def _own_reads(
        self,
        node: Node,
        key: AnySerde,
        value: AnySerde,
    ) -> Reads:
        """Return the parts of a record that a node itself reads, without the nodes
        below.
        """
        match node:
            case Filter(store=StoreSpec()) | MapValues(store=StoreSpec()):
                return _BOTH
            case SelectKey() | Map() | FlatMap():
                return reads_pair(node.mapper)
            case Sink() | DynamicSink():
                own = Reads(node.key != key, node.value != value)
                return own | reads_partitioned(node)
            case Aggregate(store=store):
                return Reads(store.key != key, value=False) | aggregate_reads(node)
            case TableSource(store=StoreSpec() as store):
                return Reads(store.key != key, value=True)
            case StreamTableJoin(store=store):
                own = self.join_reads(node)
                return Reads(own.key or store.key != key, own.value)
            case StreamStreamJoin():
                return Reads(node.key != key, value=True)
            case TableTableJoin():
                looks = any(map(self._view_reads_key, node.parents))
                return Reads(looks or node.key != key, value=True)
        known = isinstance(node, _PASSES_KEY | AsyncProcessing)
        return reads_step(node) if known else _BOTH

    def below(
        self,
        node: Node,
        key: AnySerde,
        value: AnySerde,
    ) -> Reads:
        """Return the parts of a node's forwarded records that its children read."""
        result = _NONE
        for edge in self.edges(node):
            result |= self.reads(edge, key, value)
        return result


def reads_pair(function: Function, arguments: int = 2) -> Reads:
    """Return the parts that a function of (key, value), or of these and more arguments,
    reads.
    """
    return Reads(
        reads_argument(function, 0, arguments),
        reads_argument(function, 1, arguments),
    )


def reads_partitioned(node: Sink | DynamicSink) -> Reads:
    """Return the parts that a sink reads in its partitioner, and in the function that
    names its topic.
    """
    if node.partitioner is not None:
        return _BOTH
    return reads_pair(node.topic_of) if isinstance(node, DynamicSink) else _NONE


def aggregate_reads(node: Aggregate) -> Reads:
    """Return the parts that an aggregation's function reads: neither in a count, the
    value in a reduce.
    """
    if node.aggregator is None:
        return _NONE
    return (
        reads_pair(node.aggregator, 3)
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
            return _NONE


def reads_argument(
    function: Callable[..., Any],
    position: int,
    arguments: int = 2,
) -> bool:
    """Return False only if a function provably never reads the argument at `position`
    of its `arguments`.

    An example is position 0 of `lambda _, value: value.name`. The caller may then pass
    None instead of deserialising the argument. Only plain Python functions and
    expressions can prove it.
    """
    if isinstance(function, Expression):
        return position in positions(function.arguments, arguments).values()
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
