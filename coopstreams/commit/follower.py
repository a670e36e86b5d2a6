"""What this process knows of its group's progress: tails the group's partition of `__individual_commit_offsets`.

The opener thread polls; stream threads ask (`mirror`, `garbage`, `open`) at any time. A barrier is the partition's high watermark, taken after
the own generation is known: whoever was fenced out before has nothing above it. When `tail` has passed it, reading committed records only,
every transaction below it is decided and known.

Invariant: everything of the group that counts below `tail` is in the view; `tail` never goes back.
Turned down: a follower per stream thread (the topic would be read and kept several times over).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from time import monotonic

from coopstreams.commit.record import (
    PARTITIONS,
    TOPIC,
    Committed,
    Segment,
    decode_key,
    decode_value,
    encode_text,
    partition_of,
    topic_spec,
)
from coopstreams.commit.view import Hole, Opening, Said, Spoken, View
from coopstreams.log.log import Log, Position, Reader
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import KeyRange

_BATCH = 2000


class Follower:
    """The individual commits of one group as a process knows them.

    `poll`, `barrier`, `blockers` and `close` belong to the opener thread; everything else may be called from any.
    """

    def __init__(self, log: Log, group: str, *, partitions: int = PARTITIONS, replication: int = -1) -> None:
        """Find the group's partition, and create the topic with so many partitions if there is none; read nothing yet."""
        self._log = log
        counts = log.partitions([TOPIC])
        if TOPIC not in counts:
            log.create_topics([topic_spec(partitions, replication)])
            counts = log.partitions([TOPIC])
        self.partitions = counts[TOPIC]
        self.group = group
        self.partition = TopicPartition(TOPIC, partition_of(group, self.partitions))
        self._lock = Lock()
        self._view = View(group)
        self._tail = log.start_offset(self.partition)
        self._reader: Reader = log.reader()
        self._reader.assign({self.partition: Position(self._tail)})

    def check(self, committed: Iterable[TopicPartition]) -> None:
        """Do nothing if the group has always been in this partition, as far as its committed offsets tell (the fence leaves one there).

        Raises:
            ConfigError: the topic's partition count was changed; the group's progress is in another partition now.
        """
        others = sorted(partition.partition for partition in committed if partition.topic == TOPIC and partition != self.partition)
        if others:
            raise ConfigError(
                f"group {self.group!r} keeps its progress in partition {others[0]} of {TOPIC}, but with {self.partitions} partitions it belongs "
                f"into {self.partition.partition}: the partition count was changed, which it must never be. Restore the count, or reset the group"
            )

    @property
    def tail(self) -> int:
        """Everything of the group's partition below this offset is known."""
        return self._tail

    def poll(self, timeout_s: float) -> bool:
        """Read on; wait at most so long for the first record. Return whether the tail moved.

        Raises:
            LogError: the partition cannot be read, or holds a record of this group in a version of the future.
        """
        before = self._tail
        for run in self._reader.fetch(_BATCH, timeout_s):
            with self._lock:
                for key, value in zip(run.columns.keys, run.columns.values, strict=True):
                    if key is not None:
                        self._view.apply(key, value)
                self._tail = max(self._tail, run.next_offset)
        return self._tail > before

    def barrier(self) -> int:
        """Return an offset that everything written so far lies below, decided or not: the true high watermark, asked for now."""
        return self._log.end_offset(self.partition)

    def passed(self, barrier: int) -> bool:
        """Whether everything below the barrier is decided and known."""
        return self._tail >= barrier

    def blockers(self, barrier: int, *, timeout_s: float = 3.0) -> set[str]:
        """Return the transactional ids of this group with records between the tail and the barrier.

        One of them keeps the tail back, or a group in the same partition does. Ids of members that are gone should be ended at once.
        """
        name, ids, at, give_up = encode_text(self.group), set(), self._tail, monotonic() + timeout_s
        reader = self._log.reader(committed_only=False)
        try:
            reader.assign({self.partition: Position(at)})
            while at < barrier and monotonic() < give_up:
                for run in reader.fetch(_BATCH, 0.1):
                    at = max(at, run.next_offset)
                    for key, value in zip(run.columns.keys, run.columns.values, strict=True):
                        if key and value and key.startswith(name, 1):
                            ids.add(decode_value(value, decode_key(key).range).transactional_id)
        finally:
            reader.close()
        return ids

    def open(self, partition: TopicPartition, covered: KeyRange, committed: Committed | None, reset: Position) -> Opening:
        """See `View.open`: only when `passed` the barrier, with the plain offset fetched after it."""
        with self._lock:
            return self._view.open(partition, covered, committed, reset)

    def stable(self, partition: TopicPartition, committed: Committed | None, own: Sequence[Segment] = ()) -> Position | None:
        """See `View.stable`."""
        with self._lock:
            return self._view.stable(partition, committed, own)

    def resolve(self, partition: TopicPartition, covered: KeyRange) -> list[Spoken | Hole]:
        """See `View.resolve`."""
        with self._lock:
            return self._view.resolve(partition, covered)

    def mirror(self, partition: TopicPartition, committed: Committed | None) -> Committed | None:
        """See `View.mirror`."""
        with self._lock:
            return self._view.mirror(partition, committed)

    def garbage(self, partition: TopicPartition, mine: Sequence[KeyRange]) -> list[bytes]:
        """See `View.garbage`."""
        with self._lock:
            return self._view.garbage(partition, mine)

    def sources(self) -> list[TopicPartition]:
        """See `View.sources`."""
        with self._lock:
            return self._view.sources()

    def next_term(self, partition: TopicPartition, committed: Committed | None) -> int:
        """See `View.next_term`."""
        with self._lock:
            return self._view.next_term(partition, committed)

    def live(self, partition: TopicPartition) -> list[Said]:
        """See `View.live`."""
        with self._lock:
            return self._view.live(partition)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._reader.close()
