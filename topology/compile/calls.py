"""What a program that waits for calls needs beside it: the part that runs ahead, and the results.

Invariant: a result is taken by the record whose call it is of, or by none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import AsyncMap, Branch, Node, Source, SubTopology


class Wanted(NamedTuple):
    """A call that a record needs: the record's row in its batch, the node, and what the node is given."""

    row: int
    node: str
    key: Any
    value: Any


class Ended(Protocol):
    """A call that has ended."""

    value: Any
    error: Exception | None


def ahead_of_calls(subtopology: SubTopology) -> SubTopology | None:
    """Return the nodes that lead to asynchronous ones, and these; None if there are none."""
    wanted = {node.name for node in subtopology.nodes if isinstance(node, AsyncMap)}
    if not wanted:
        return None
    for node in reversed(subtopology.nodes):
        if node.name in wanted:
            wanted |= set(node.parents)
    # A split looks for all of its branches.
    nodes = [
        node
        for node in subtopology.nodes
        if node.name in wanted or (isinstance(node, Branch) and wanted.issuperset(node.parents))
    ]
    topics = tuple(topic for topic in subtopology.topics if any(_reads(node, topic) for node in nodes))
    return replace(subtopology, nodes=tuple(nodes), topics=topics, stores=())


def _reads(node: Node, topic: str) -> bool:
    return isinstance(node, Source) and topic in node.topics


class Results:
    """The results of ended calls, by node, in the order in which their records are processed."""

    def __init__(self) -> None:
        self._ended: dict[str, deque[tuple[TopicPartition, int, Ended]]] = {}

    def give(self, node: str, source: TopicPartition, offset: int, call: Ended) -> None:
        """Add the result of the next record."""
        self._ended.setdefault(node, deque()).append((source, offset, call))

    def take(self, node: str, source: TopicPartition, offset: int) -> Any:
        """Return the result of a record's call.

        Results of records that did not come here, because a function above answers otherwise than when the call was
        begun, are passed over.

        Raises:
            Exception: the call failed.
            TopologyError: no call was made for this record: a function above it answers now one thing, now another.
        """
        ended = self._ended.get(node, ())
        while ended and ended[0][:2] != (source, offset):
            if ended[0][0] == source and ended[0][1] > offset:
                break
            ended.popleft()
        if not ended or ended[0][:2] != (source, offset):
            raise TopologyError(
                f'no call of "{node}" was made for this record. The functions above it run twice for each record, '
                "before the call and after it: they must answer the same both times."
            )
        call = ended.popleft()[2]
        if call.error is not None:
            raise call.error
        return call.value
