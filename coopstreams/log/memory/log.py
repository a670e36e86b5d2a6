"""A log in memory, with all features of Kafka that the engine needs.

These are: partitions, transactions with their markers, the last stable offset, fencing,
compaction, retention, group offsets. It serves the test driver and simulations. Nothing
is kept when the process ends, and all readers and writers are in that process.
`compact`, `committed` and `commit_offsets` are what a broker does by itself or for a
group; here a test calls them.

Turned down: librdkafka's mock cluster (transactions do not isolate, nothing is
compacted, old records vanish: measured).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from coopstreams.log.log import Check, GroupFence, TopicSpec
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.state import CheckFence, MemoryState
from coopstreams.log.memory.transactions import Offsets
from coopstreams.log.memory.writer import MemoryWriter, check_records
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError


class MemoryLog:
    """A cluster in memory. Thread-safe: one lock.

    `check_fence` acts as the group coordinator: it returns why a fence is stale, or
    None. By default no fence is stale.
    """

    def __init__(self, check_fence: CheckFence = lambda _: None) -> None:
        self._state = MemoryState(check_fence)
        self.timeout_s = 0.0

    def reader(self, *, committed_only: bool = True) -> MemoryReader:
        """Return a reader of committed records only, or of all."""
        return MemoryReader(self._state, committed_only=committed_only)

    def writer(
        self,
        transactional_id: str | None = None,
        written: Callable[[], Collection[str]] | None = None,  # noqa: ARG002
    ) -> MemoryWriter:
        """Return a writer; a transactional one first aborts the open transaction of its
        id.
        """
        return MemoryWriter(self._state, transactional_id)

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        """Do nothing: transactions never hang."""

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition count of each of these topics that exists: see
        `Log.partitions`.
        """
        with self._state.changed:
            known = {
                name: len(topic.partitions)
                for name, topic in self._state.topics.items()
            }
        return (
            known
            if topics is None
            else {name: known[name] for name in topics if name in known}
        )

    def create_topics(
        self,
        specs: Sequence[TopicSpec],
        check: Check | None = None,
    ) -> None:
        """Create the topics that do not exist yet."""
        for spec in specs:
            if check is not None:
                check(spec.name)
            if spec.partitions < 1:
                raise LogError(
                    f'topic "{spec.name}" cannot have {spec.partitions} partitions'
                )
        with self._state.changed:
            for spec in specs:
                self._state.create_topic(spec)

    def delete_topics(self, names: Sequence[str], check: Check | None = None) -> None:
        """Delete these topics; ignore missing ones."""
        for name in names:
            if check is not None:
                check(name)
            with self._state.changed:
                self._state.delete_topic(name)

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration as it was given."""
        with self._state.changed:
            return dict(self._state.topic(topic).spec.config)

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each of these topics."""
        return {topic: self.topic_config(topic) for topic in topics}

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic: see `Log.topic_id`."""
        with self._state.changed:
            return self._state.topic(topic).id

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset that the log still has."""
        with self._state.changed:
            return self._state.partition(partition).start

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the end offset: every written record lies below it."""
        with self._state.changed:
            return self._state.partition(partition).end

    def end_offsets(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each of these partitions."""
        return {partition: self.end_offset(partition) for partition in partitions}

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record time is at least `timestamp_ms`; the end
        if there is no such record.
        """
        with self._state.changed:
            return self._state.partition(partition).offset_at(timestamp_ms)

    def reported_end(self, partition: TopicPartition) -> int:
        """Return the end offset: there is one broker, which never hangs."""
        return self.end_offset(partition)

    def replicas(self, topic: str) -> int:
        """Return the replicas that the topic was created with; 0: it does not exist."""
        with self._state.changed:
            found = self._state.topics.get(topic)
        return 0 if found is None else max(1, found.spec.replication)

    def silent_replicas(
        self,
        partitions: Collection[TopicPartition],  # noqa: ARG002
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return nothing: there are no replicas."""
        return {}

    def delete_before(
        self,
        partition: TopicPartition,
        offset: int,
        check: Check | None = None,
    ) -> None:
        """Delete the records of a partition below an offset."""
        if check is not None:
            check(partition.topic)
        with self._state.changed:
            self._state.delete_before(partition, offset)

    def close(self) -> None:
        """Do nothing: others may still use the log."""

    def check(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        """Check that the topic would take these records, without writing them.

        Raises:
            RefusedError: the topic would refuse a record.
        """
        check_records(self._state.topic(topic), keys, values)

    def compact(self, topic: str) -> None:
        """Keep the last committed record of each key, as Kafka's cleaner does; offsets
        stay, with holes.
        """
        with self._state.changed:
            for partition in self._state.topic(topic).partitions:
                partition.compact()

    def committed(self, group: str) -> dict[TopicPartition, tuple[int, str]]:
        """Return the offsets and metadata that a group has committed."""
        with self._state.changed:
            return self._state.group(group).committed

    def commit_offsets(self, offsets: Offsets, fence: GroupFence) -> None:
        """Commit group offsets outside of any transaction, as at-least-once does.

        Raises:
            FencedError: the fence is stale.
        """
        with self._state.changed:
            self._state.send_offsets(offsets, fence)
