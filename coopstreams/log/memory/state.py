"""The state of a `MemoryLog` and the operations on it: topics, partitions,
transactions, group offsets.

Readers and writers share it under one lock. Each method is a broker's work for one
request. None waits or uses a clock. A simulated cluster overrides `tell`, the step in
which the coordinator informs a participant how a transaction ended, to delay it.

Relies on: `log.log` (the contract), `partition`, `transactions`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coopstreams.log.log import GroupFence, TopicSpec
from coopstreams.log.memory.partition import Partition
from coopstreams.log.memory.transactions import (
    GroupOffsets,
    Offsets,
    Participant,
    Producer,
    ProducerSession,
)
from coopstreams.topology.columns import Headers, Int64s, TopicPartition
from coopstreams.topology.errors import (
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)

CheckFence = Callable[[GroupFence], str | None]
"""The group coordinator's check: returns why the fence is stale, or None; may raise an
error of its own.
"""


@dataclass(slots=True)
class Topic:
    """A topic: its specification, and its partitions."""

    spec: TopicSpec
    id: str
    partitions: list[Partition]
    next_keyless: int = 0
    """The number whose remainder is the partition of the next record without a key:
    round robin, so that a run can be repeated exactly.
    """


def new_id() -> str:
    """Return a new, unique topic id."""
    return uuid.uuid4().hex


@dataclass(eq=False)
class MemoryState:
    """The whole state of a `MemoryLog`. Hold `changed` for any access; it is notified
    when there may be more to read.
    """

    check_fence: CheckFence
    new_id: Callable[[], str] = new_id
    """Makes the ids of new topics."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    topics: dict[str, Topic] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    groups: dict[str, GroupOffsets] = field(default_factory=dict)

    def partition(self, where: TopicPartition) -> Partition:
        """Return a partition.

        Raises:
            UnknownTopicError: the partition does not exist.
        """
        topic = self.topics.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            raise UnknownTopicError(
                f"there is no partition {where} in the in-memory log. Create the topic first, or correct the name."
            )
        return topic.partitions[where.partition]

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(
                f'there is no topic "{name}" in the in-memory log. Create it first, or correct the name.'
            )
        return topic

    def group(self, name: str) -> GroupOffsets:
        """Return the committed and pending offsets of a group; a new group has none."""
        return self.groups.setdefault(name, GroupOffsets(name))

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic if none has that name."""
        if spec.name not in self.topics:
            self.topics[spec.name] = Topic(
                spec,
                self.new_id(),
                [
                    Partition(TopicPartition(spec.name, i))
                    for i in range(spec.partitions)
                ],
            )

    def delete_topic(self, name: str) -> None:
        """Delete a topic if it exists, and the groups' offsets of it."""
        if self.topics.pop(name, None) is not None:
            for group in self.groups.values():
                group.forget(
                    [
                        partition
                        for partition in group.committed
                        if partition.topic == name
                    ]
                )
            self.changed.notify_all()

    def delete_before(self, where: TopicPartition, offset: int) -> None:
        """Delete the records of a partition below an offset.

        Raises:
            OffsetOutOfRangeError: the partition ends before the offset.
        """
        stored = self.partition(where)
        if offset > stored.end:
            raise OffsetOutOfRangeError(
                f"{where} ends at {stored.end}: there is nothing to delete up to {offset}"
            )
        stored.delete_before(offset)

    def take_over(self, transactional_id: str) -> ProducerSession:
        """Return a session for a transactional id; the previous writer is fenced, and
        its open transaction aborted.
        """
        producer = self.producers.setdefault(
            transactional_id,
            Producer(transactional_id),
        )
        self.fence(producer)
        return ProducerSession(producer, producer.epoch)

    def fence(self, producer: Producer) -> None:
        """Fence the writer of an id, and abort its open transaction."""
        producer.epoch += 1
        producer.committed = False
        if producer.open:
            self._end(producer, commit=False)

    def begin(self, session: ProducerSession) -> None:
        """Begin a transaction."""
        self.check(session)
        session.producer.open = True

    def append(
        self,
        stored: Partition,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        headers: Sequence[Headers | None] | None,
        session: ProducerSession | None,
    ) -> int:
        """Add records to a partition, in the open transaction if there is a session;
        return the offset after them.
        """
        producer = None if session is None else self._in_transaction(session, stored)
        stored.append(keys, values, timestamps, headers, producer)
        return stored.end

    def send_offsets(
        self,
        offsets: Offsets,
        fence: GroupFence,
        session: ProducerSession | None = None,
    ) -> None:
        """Add offsets of a group to the open transaction of the session; without a
        session, commit them at once.

        Raises:
            FencedError: the fence or the session is stale.
        """
        fence.check(offsets)
        if (reason := self.check_fence(fence)) is not None:
            raise FencedError(
                f'group "{fence.group}" refuses the offsets of member "{fence.member}" in generation '
                f"{fence.generation}: {reason}"
            )
        group = self.group(fence.group)
        group.send(
            offsets,
            None if session is None else self._in_transaction(session, group),
        )

    def end(self, session: ProducerSession, *, commit: bool) -> None:
        """Commit or abort the open transaction of a session."""
        self.check(session)
        if not session.producer.open:
            raise LogError("there is no transaction to end; begin one first")
        self._end(session.producer, commit=commit)

    def tell(
        self,
        participant: Participant,
        producer: Producer,
        *,
        commit: bool,
    ) -> None:
        """Inform a participant how a transaction ended."""
        participant.mark(producer, commit=commit)

    def check(self, session: ProducerSession) -> None:
        """Check that the session may write.

        Raises:
            FencedError: another writer took over its id.
        """
        if session.is_fenced:
            raise FencedError(
                f'another writer with the transactional id "{session.producer.id}" took over'
            )

    def _in_transaction(
        self,
        session: ProducerSession,
        participant: Participant,
    ) -> Producer:
        """Return the producer, and add this participant to its transaction."""
        self.check(session)
        producer = session.producer
        if not producer.open:
            raise LogError(
                "a transactional writer writes inside transactions only; begin one first"
            )
        producer.participants[participant] = None
        return producer

    def _end(self, producer: Producer, *, commit: bool) -> None:
        participants = producer.participants
        producer.participants = {}
        producer.open = False
        producer.committed = commit
        for participant in participants:
            self.tell(participant, producer, commit=commit)
        self.changed.notify_all()
