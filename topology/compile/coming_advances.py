"""Keeps the moments at which stream time will advance, including those at records of
other key ranges, before a task reaches them.

A task has the records of its own range only, each with the stream time that all records
before it had reached. Without these moments it would call a punctuation late, and with
a later time, if a record of another range has made it due.

Relies on: `log.batches` (the advances that the reader finds), `program` (asks `first`
before each record).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coopstreams.topology.columns import Advances
from coopstreams.topology.graph.join_nodes import stores_of
from coopstreams.topology.graph.nodes import AsyncProcessing, Processing, SubTopology
from coopstreams.topology.graph.order_and_time import holds_results


def foresees(subtopology: SubTopology) -> bool:
    """Return whether the sub-topology's tasks call punctuations at the records of other
    key ranges that make them due.

    They do not if an operator holds results until stream time has passed them, or if
    rows of tables expire. A task learns the time of these operators only with its next
    record, so a punctuation would come before the results.
    """
    processors = [node for node in subtopology.nodes if isinstance(node, Processing)]
    others = [node for node in subtopology.nodes if not isinstance(node, Processing)]
    expiring = any(
        store.ttl_ms is not None for node in others for store in stores_of(node)
    )
    calls = any(not isinstance(node, AsyncProcessing) for node in processors)
    return calls and not expiring and not any(map(holds_results, others))


class Place(NamedTuple):
    """A place in the order of all records of a task: before an offset of a topic, where
    the topic's stream time is `now_ms`.
    """

    topic: str
    now_ms: int
    offset: int


class Foreseen:
    """The advances of stream time that a task has not reached yet, for each of its
    topics.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._chunks = {topic: deque[Advances]() for topic in topics}

    def add(
        self,
        topic: str,
        advances: Iterable[Advances],
        reached_ms: int,
    ) -> None:
        """Add advances of a topic, in the order of its partition. Delete those of
        batches that the task has processed.

        `reached_ms`: the stream time that the task has reached in the topic.
        """
        chunks = self._chunks[topic]
        while chunks and chunks[0].times[-1] <= reached_ms:
            chunks.popleft()
        chunks += advances

    def first(
        self,
        due_ms: int,
        reached_ms: Mapping[str, int],
        place: Place,
    ) -> tuple[int, str] | None:
        """Return the time and the topic of the first advance to `due_ms` or later
        before a place, or None.

        `reached_ms`: the stream time that each topic has reached.
        """
        found = []
        for topic, chunks in self._chunks.items():
            least = max(due_ms, reached_ms[topic] + 1)
            for offsets, times in chunks:
                if times[-1] >= least:
                    at = bisect_left(times, least)
                    here = (
                        topic == place.topic
                        and times[at] == place.now_ms
                        and offsets[at] < place.offset
                    )
                    if times[at] < place.now_ms or here:
                        found.append((times[at], topic))
                    break
        return min(found, default=None)
