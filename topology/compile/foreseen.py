"""The moments at which stream time advances, known before a task reaches them: also at
records of other key ranges.

A task has the records of its own range only, and each with the stream time that all
records before it had reached. So it would call a punctuation late, and with a later
time, where another range's record has made it due.
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
    """Whether its tasks call punctuations at the records of other key ranges that make
    them due.

    Not where results are held until stream time has passed them, or rows of tables
    expire: a task learns of the time of these operators with its next record, and a
    punctuation would come before the results.
    """
    processors = [node for node in subtopology.nodes if isinstance(node, Processing)]
    others = [node for node in subtopology.nodes if not isinstance(node, Processing)]
    expiring = any(
        store.ttl_ms is not None for node in others for store in stores_of(node)
    )
    calls = any(not isinstance(node, AsyncProcessing) for node in processors)
    return calls and not expiring and not any(map(holds_results, others))


class Place(NamedTuple):
    """A place in the order of all records: in a topic, where its stream time is
    `now_ms`, in front of an offset.
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
        """Take in more of a topic's, in the order of the partition; forget those of
        batches that the task has done.
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
        """Return the first advance to `due_ms` or later in front of a place: the time,
        and the topic.

        Shape: `reached_ms` is the stream time that each topic has reached.
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
