"""Which of several sources goes on: the one whose next record is the oldest, and of equals the one that Kafka Streams would take.

Equals are decided by the shape of a binary heap, as in Java's `PriorityQueue`: about in turn. It matters to nobody but who compares orders.

Source: Kafka Streams `PartitionGroup`, `java.util.PriorityQueue`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Fronts(Generic[T]):
    """Sources that have records, by the timestamp of their first. It must not change while a source is in here."""

    def __init__(self, timestamp: Callable[[T], int]) -> None:
        self._timestamp = timestamp
        self._heap: list[T] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def offer(self, source: T) -> None:
        """Add a source."""
        heap, at = self._heap, len(self._heap)
        heap.append(source)
        while at > 0:
            above = (at - 1) // 2
            if self._timestamp(source) >= self._timestamp(heap[above]):
                break
            heap[at], at = heap[above], above
        heap[at] = source

    def poll(self) -> T:
        """Remove and return the source that goes on."""
        heap = self._heap
        first, last = heap[0], heap.pop()
        if heap:
            at = 0
            while (below := 2 * at + 1) < len(heap):
                if below + 1 < len(heap) and self._timestamp(heap[below]) > self._timestamp(heap[below + 1]):
                    below += 1
                if self._timestamp(last) <= self._timestamp(heap[below]):
                    break
                heap[at], at = heap[below], below
            heap[at] = last
        return first
