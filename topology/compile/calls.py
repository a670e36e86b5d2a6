"""What a program that waits for calls needs beside it: the part that runs ahead, and the results.

Invariant: a result is taken by the record whose call it is of, or by none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

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
    """The results of the calls of the records that are processed next, which are of one partition."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], deque[Ended]] = {}

    def clear(self) -> None:
        """Forget results that no record took: a function above answers otherwise than when the call was begun."""
        self._ended.clear()

    def give(self, node: str, offset: int, call: Ended) -> None:
        """Add a result: of one record and node, in the order in which the node is called."""
        self._ended.setdefault((node, offset), deque()).append(call)

    def take(self, node: str, offset: int) -> Any:
        """Return the result of a record's call.

        Raises:
            Exception: the call failed.
            TopologyError: no call was made for this record: a function above it answers now one thing, now another.
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
