"""Transactions of a `MemoryLog`, kept as Kafka does: in the coordinator, and in each
participant.

The coordinator knows a transactional id, the epoch of the writer that may use it, and
the participants of its open transaction. A participant (a partition, the offsets of a
group) only knows which producers have an open transaction in it, until a *marker* ends
it. Here the coordinator informs all participants at once; a model of a cluster may
delay that (`MemoryState.tell`).

Invariant: a participant does not tell two transactions of one producer apart. A marker
ends all that the producer has open there: so after a marker that was never written, the
next one decides both transactions (KAFKA-20734).
Relies on: `state` (the lock, `tell`), `partition` (spans).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from coopstreams.topology.columns import TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, tuple[int, str]]
"""The offset and metadata of each partition."""


class Participant(Protocol):
    """A participant of transactions: a partition, or the offsets of a group."""

    @property
    def where(self) -> TopicPartition | str:
        """The partition, or the name of the group."""
        ...

    def is_open(self, producer: Producer) -> bool:
        """Whether the producer has an open transaction here."""
        ...

    def mark(self, producer: Producer, *, commit: bool) -> None:
        """Write the marker of the producer: it commits or aborts the producer's open
        records or offsets here.
        """


@dataclass(slots=True, eq=False)
class Producer:
    """The transaction coordinator's entry for a transactional id."""

    id: str
    epoch: int = 0
    """The epoch of the writer that may use the id: the last one that took it over."""
    open: bool = False
    """Whether the producer has an open transaction."""
    committed: bool = False
    """Whether the last transaction was committed. A take-over forgets it: it then
    counts as aborted.
    """
    participants: dict[Participant, None] = field(default_factory=dict)
    """The participants of the open transaction, in order."""


class ProducerSession(NamedTuple):
    """A writer's right to a transactional id. It ends when another writer takes over
    the id.
    """

    producer: Producer
    epoch: int

    @property
    def is_fenced(self) -> bool:
        """Whether another writer took over."""
        return self.epoch != self.producer.epoch


class GroupOffsets:
    """The offsets of a group: committed ones, and those that open transactions have
    sent.

    Invariant: of several offsets of a partition, the one that was sent last counts,
    whenever its transaction ends (as in Kafka's coordinator).
    """

    def __init__(self, group: str) -> None:
        self.where = group
        self._committed: dict[TopicPartition, tuple[int, tuple[int, str]]] = {}
        self._pending: dict[
            Producer, dict[TopicPartition, tuple[int, tuple[int, str]]]
        ] = {}
        self._sent = 0

    @property
    def committed(self) -> dict[TopicPartition, tuple[int, str]]:
        """The committed offset and metadata of each partition."""
        return {partition: told for partition, (_, told) in self._committed.items()}

    @property
    def unstable(self) -> frozenset[TopicPartition]:
        """The partitions whose offset an open transaction may still change."""
        return frozenset(
            partition for sent in self._pending.values() for partition in sent
        )

    def send(self, offsets: Offsets, producer: Producer | None) -> None:
        """Add offsets: at once committed, or, with a producer, when its transaction is."""
        self._sent += 1
        target = (
            self._committed
            if producer is None
            else self._pending.setdefault(producer, {})
        )
        target.update(
            {partition: (self._sent, told) for partition, told in offsets.items()}
        )

    def mark(self, producer: Producer, *, commit: bool) -> None:
        """Commit the producer's pending offsets, or drop them."""
        for partition, (sent, told) in self._pending.pop(producer, {}).items():
            if commit and sent > self._committed.get(partition, (0, None))[0]:
                self._committed[partition] = sent, told

    def is_open(self, producer: Producer) -> bool:
        """Whether the producer has pending offsets."""
        return producer in self._pending

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of these partitions: they have expired, or their
        topic was deleted.
        """
        for partition in list(partitions):
            self._committed.pop(partition, None)
