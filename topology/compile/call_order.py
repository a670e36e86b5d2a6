"""Decides for programs with asynchronous calls which operators run before the calls and
in which order records continue, and keeps the results of calls.

Invariant: a result is used for the record of its call, or not at all.
Relies on: `tasks.pending_calls`, which runs the first part (`ahead_of_calls`), and then
the whole program with the `Results`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import TableGroup
from coopstreams.topology.graph.join_nodes import StreamGlobalJoin, TableTableJoin
from coopstreams.topology.graph.nodes import (
    RECORD_BY_RECORD,
    Aggregate,
    Asynchronous,
    AsyncMap,
    AsyncProcessing,
    Branch,
    DynamicSink,
    Late,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    SelectKey,
    Sink,
    Source,
    StreamTableJoin,
    SubTopology,
    TableSource,
    ToStream,
)
from coopstreams.topology.operators.analysis import Analysis
from coopstreams.topology.windows import TimeWindows

_BY_KEY = frozenset(
    {
        *RECORD_BY_RECORD,
        Aggregate,
        AsyncMap,
        AsyncProcessing,
        DynamicSink,
        Late,
        Sink,
        StreamGlobalJoin,
        StreamTableJoin,
        TableGroup,
        TableSource,
        TableTableJoin,
        ToStream,
    }
)
_ONE_FOR_ONE = (Map, MapValues, Merge, Peek, SelectKey)
"""Nodes that forward exactly one record for each record."""


class Wanted(NamedTuple):
    """A call that a record needs: the record's row in its batch, the node to call, and
    the key and value to call it with.
    """

    row: int
    node: str
    key: Any
    value: Any


class Ended(Protocol):
    """A call that has ended, with its result or its error."""

    value: Any
    error: Exception | None


def ahead_of_calls(subtopology: SubTopology) -> SubTopology | None:
    """Return the part of a sub-topology that consists of the asynchronous nodes and the
    nodes above them, or None if no node is asynchronous.
    """
    wanted = _leading_to_calls(subtopology)
    if not wanted:
        return None
    # A split needs all of its branches.
    nodes = [
        node
        for node in subtopology.nodes
        if node.name in wanted
        or (isinstance(node, Branch) and wanted.issuperset(node.parents))
    ]
    sources = [node for node in nodes if isinstance(node, Source)]
    read = {topic for source in sources for topic in source.topics}
    topics = tuple(filter(read.__contains__, subtopology.topics))
    return replace(subtopology, nodes=tuple(nodes), topics=topics, stores=())


def _leading_to_calls(subtopology: SubTopology) -> set[str]:
    """Return the names of the asynchronous nodes and of all nodes above them."""
    names = {node.name for node in subtopology.nodes if isinstance(node, Asynchronous)}
    for node in reversed(subtopology.nodes):  # parents stand before their children
        if node.name in names:
            names |= set(node.parents)
    return names


def keys_suffice(subtopology: SubTopology) -> bool:
    """Return whether the result of a record depends on the earlier records of its own
    key only.

    If so, records of other keys may overtake a record that waits for a call; the reader
    has the operator times that they need. The order of the partition is needed by
    - operators that forward when time advances: suppressions, windows emitted on close,
      stream-stream joins, tables whose rows expire;
    - operators that read expired rows: sessions, sliding windows, versions;
    - processors, whose code is unknown;
    - windows that a record reaches depending on the result of a call;
    - calls with `order="partition"`;
    - tables restored from their source topic, whose state must correspond to one
      offset.
    """
    analysis = Analysis(subtopology)
    return all(
        _needs_its_key_only(node, analysis) for node in subtopology.nodes
    ) and not any(
        store.source is not None
        or store.history_ms is not None
        or store.ttl_ms is not None
        for store in subtopology.stores
    )


def _needs_its_key_only(node: Node, analysis: Analysis) -> bool:
    """Return whether a node's result depends on earlier records of the same key only:
    the rules are at `keys_suffice`. A kind of node that is not in `_BY_KEY` needs the
    order of the partition.
    """
    if isinstance(node, AsyncMap):
        return node.calling.order != "partition"
    if isinstance(node, Aggregate) and node.windows is not None:
        return (
            isinstance(node.windows, TimeWindows)
            and not node.emit_on_close
            # with several topics, the operator time depends on the order of their
            # records
            and len(analysis.topics(node)) == 1
            and not _chosen_by_result(node, analysis)
        )
    return type(node) in _BY_KEY


def _chosen_by_result(node: Node, analysis: Analysis) -> bool:
    """Return whether the result of a call may decide if a record reaches a node."""
    parents = [analysis.named(name) for name in node.parents]
    return any(
        _chosen_by_result(parent, analysis)
        if isinstance(parent, _ONE_FOR_ONE)
        else _has_result(parent, analysis)
        for parent in parents
        if not isinstance(parent, AsyncMap) or parent.flat
    )


def _has_result(node: Node, analysis: Analysis) -> bool:
    """Return whether the node is asynchronous or gets the result of an asynchronous
    node.
    """
    return isinstance(node, Asynchronous) or any(
        _has_result(analysis.named(name), analysis) for name in node.parents
    )


class Results:
    """The results of the calls for the records that are processed next, all of one
    partition.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], deque[Ended]] = {}

    def clear(self) -> None:
        """Drop the results that no record took. There are such results if a function
        above the call gave another answer in the second run.
        """
        self._ended.clear()

    def give(
        self,
        node: str,
        offset: int,
        call: Ended,
    ) -> None:
        """Add the result of a record's call of a node. Results of one record come in
        the order in which the node is called.
        """
        self._ended.setdefault((node, offset), deque()).append(call)

    def take(self, node: str, offset: int) -> Any:
        """Return the result of a record's next call of a node, and remove it.

        Raises:
            Exception: the call failed.
            TopologyError: no call was made for this record, because a function above
                the call is not deterministic.
        """
        ended = self._ended.get((node, offset))
        if not ended:
            raise TopologyError(
                f'no call of "{node}" was made for this record. The functions above it run twice for each record, '
                "before the call and after it: they must answer the same both times."
            )
        call = ended.popleft()
        if call.error is not None:
            raise call.error
        return call.value
