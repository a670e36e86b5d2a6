"""What a `MemoryLog` holds: topics, partitions, transactions, group offsets. Readers and writers share it under one lock.

A partition is a few parallel lists, oldest record first. A transaction's records are in it at once, marked with their transaction;
ending it takes one offset in each partition that it wrote to, as Kafka's markers do.

Invariant: offsets only grow, and no offset is given twice; what is gone (compacted, deleted, markers) leaves a hole.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat

from coopstreams.log.log import GroupFence, TopicSpec
from coopstreams.log.runs import raw_columns
from coopstreams.topology.columns import NO_RECORDS, Columns, Headers, Int64s, TopicPartition
from coopstreams.topology.errors import UnknownTopicError

CheckFence = Callable[[GroupFence], str | None]
"""Returns why the fence is stale, or None."""


@dataclass(slots=True, eq=False)
class Transaction:
    """Records that count together or not at all."""

    partitions: dict[Partition, None] = field(default_factory=dict)
    """Where it wrote, in order of first records."""
    offsets: dict[str, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)
    """By group: what the commit stores."""
    aborted: bool = False


class Partition:
    """The records of one partition."""

    __slots__ = ("_aborted", "_headers", "_keys", "_offsets", "_open", "_owners", "_timestamps", "_values", "end", "start")

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._offsets: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Headers | None] = []
        self._owners: list[Transaction | None] = []
        self._open: dict[Transaction, int] = {}
        self._aborted = False

    @property
    def stable_end(self) -> int:
        """The first offset of an open transaction, else the end: how far committed reads go."""
        return min(self._open.values(), default=self.end)

    def append(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        headers: Sequence[Headers | None] | None,
        owner: Transaction | None,
    ) -> None:
        """Add records at the end."""
        if owner is not None:
            self._open.setdefault(owner, self.end)
            owner.partitions[self] = None
        self._offsets.extend(range(self.end, self.end + len(keys)))
        self._keys.extend(keys)
        self._values.extend(values)
        self._timestamps.extend(timestamps)
        self._headers.extend(repeat(None, len(keys)) if headers is None else headers)
        self._owners.extend(repeat(owner, len(keys)))
        self.end += len(keys)

    def mark(self, transaction: Transaction) -> None:
        """Write the marker that ends a transaction: it takes an offset and is never read."""
        del self._open[transaction]
        self._aborted = self._aborted or transaction.aborted
        self.end += 1

    def read(self, position: int, most: int, *, committed_only: bool) -> tuple[Columns, int, bool]:
        """Return up to `most` records from a position on, the next position, and whether that is the end of what there is to read."""
        limit = self.stable_end if committed_only else self.end
        stop = bisect_left(self._offsets, limit)
        while True:
            first = bisect_left(self._offsets, position)
            last = min(first + most, stop)
            position = max(position, limit) if last >= stop else self._offsets[last - 1] + 1
            columns = self._columns(first, last, committed_only=committed_only)
            if len(columns) or last >= stop:
                return columns, position, last >= stop

    def compact(self) -> None:
        """Keep the last committed record of each key, and everything from the first open transaction on."""
        stable = bisect_left(self._offsets, self.stable_end)
        kept: dict[bytes | None, int] = {}
        for i in range(stable):
            owner = self._owners[i]
            if owner is None or not owner.aborted:
                kept[self._keys[i]] = i
        keep = set(kept.values())
        self._filter([i in keep or i >= stable for i in range(len(self._offsets))])

    def delete_before(self, offset: int) -> None:
        """Forget what lies below an offset."""
        self.start = max(self.start, offset)
        self._filter([at >= self.start for at in self._offsets])

    def _columns(self, first: int, last: int, *, committed_only: bool) -> Columns:
        if first >= last:
            return NO_RECORDS
        span = slice(first, last)
        keys, values, timestamps, offsets, headers = (
            self._keys[span],
            self._values[span],
            self._timestamps[span],
            self._offsets[span],
            self._headers[span],
        )
        if committed_only and self._aborted:
            seen = [owner is None or not owner.aborted for owner in self._owners[span]]
            if not all(seen):
                keys, values, headers = list(compress(keys, seen)), list(compress(values, seen)), list(compress(headers, seen))
                timestamps, offsets = list(compress(timestamps, seen)), list(compress(offsets, seen))
        return raw_columns(keys, values, timestamps, offsets, headers)

    def _filter(self, mask: Sequence[bool]) -> None:
        self._offsets = list(compress(self._offsets, mask))
        self._keys = list(compress(self._keys, mask))
        self._values = list(compress(self._values, mask))
        self._timestamps = list(compress(self._timestamps, mask))
        self._headers = list(compress(self._headers, mask))
        self._owners = list(compress(self._owners, mask))


@dataclass(slots=True)
class Topic:
    """A topic: how it was made, and its partitions."""

    spec: TopicSpec
    partitions: list[Partition]
    next_keyless: int = 0
    """Where the next record without a key goes: such records take turns, so that a run can be repeated exactly."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True, eq=False)
class Producer:
    """Who may write under a transactional id now: the writer with the highest epoch."""

    epoch: int = 0
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class MemoryState:
    """Everything a `MemoryLog` knows. Hold `changed` for any access; it is notified when there may be more to read."""

    check_fence: CheckFence
    changed: threading.Condition = field(default_factory=threading.Condition)
    topics: dict[str, Topic] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)

    def partition(self, where: TopicPartition) -> Partition:
        """Return a partition.

        Raises:
            UnknownTopicError: there is none.
        """
        topic = self.topics.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            raise UnknownTopicError(f"there is no partition {where} in the in-memory log. Create the topic first, or correct the name.")
        return topic.partitions[where.partition]

    def end(self, producer: Producer, *, commit: bool) -> None:
        """End the open transaction of a producer, if there is one."""
        transaction, producer.transaction = producer.transaction, None
        if transaction is None:
            return
        transaction.aborted = not commit
        for partition in transaction.partitions:
            partition.mark(transaction)
        if commit:
            for group, offsets in transaction.offsets.items():
                self.groups.setdefault(group, {}).update(offsets)
        self.changed.notify_all()
