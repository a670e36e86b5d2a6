"""Describes a record that a share thread has acquired, from its delivery until it is
acknowledged.

    delivered -> (calls) -> processed -> acknowledged   or later, if its failure handler said `Retry`
              `-> released                             to another member, or for good with this process

Relies on: `share_thread` (moves a record on), `shared_work` (its calls and results).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from coopstreams.calling.lanes import Call
from coopstreams.log.batches import raw_columns
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.timestamps import TimestampColumn


class Deliverer(Protocol):
    """The interface of a share group's member: `log.kafka.share_consumer.KafkaShare`. Use it on
    one thread.
    """

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to topics, as `KafkaShare.subscribe` does."""

    def poll(self, timeout_s: float) -> list[AcquiredRecord]:
        """Return acquired records, as `KafkaShare.poll` does."""
        ...

    def acknowledge(self, record: AcquiredRecord, *, done: bool) -> None:
        """Acknowledge or release a record, as `KafkaShare.acknowledge` does."""

    def commit(self, timeout_s: float) -> dict[TopicPartition, str]:
        """Send the acknowledgements, as `KafkaShare.commit` does."""
        ...

    def close(self) -> None:
        """Leave the group, as `KafkaShare.close` does."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a record. `until`: the time from which another member may get the
    record.

    Units: times as `Host.now`.
    """

    record: AcquiredRecord
    until: float
    calls: list[DeliveryCall] = field(default_factory=list)
    waits_for: int = 0
    """The number of the record's calls that have not ended."""
    failures: int = 0
    """How often the failure handler answered `Retry` to the record in this process."""
    again_at: float | None = None
    """The time at which the record is processed again, or None if it does not wait for
    a retry.
    """
    mark: bool = False
    """Whether the record is a time mark, which is acknowledged without being
    processed.
    """

    source: TopicPartition = field(init=False)
    """The partition of the record."""
    place: tuple[str, int, int] = field(init=False)
    """The topic, partition and offset of the record. It is a field, as `source` is,
    because each step of the thread sorts by it.
    """

    def __post_init__(self) -> None:
        self.place = self.record.id
        self.source = TopicPartition(*self.place[:2])

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on. Each earlier delivery counts as one
        attempt.
        """
        return self.record.deliveries + self.failures


@dataclass(slots=True, eq=False)
class DeliveryCall(Call):
    """A call of a node's asynchronous function for a delivered record."""

    node: str
    delivery: Delivery | None
    """The delivery of the record; None once `DeliveryCalls.ready` has counted the call
    as ended.
    """


def columns_of(
    source: TopicPartition,
    deliveries: Sequence[Delivery],
    extract: TimestampColumn | None = None,
) -> Columns:
    """Return records of one partition as columns, with the timestamps of an extractor
    if there is one.

    Stream time is computed within this batch only, because the records have no order.
    """
    records = [delivery.record for delivery in deliveries]
    columns = raw_columns(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.offset for record in records],
        [record.headers for record in records],
    )
    if extract is not None:
        columns.timestamps = extract(source, columns, NO_STREAM_TIME)
    columns.stream_times = list(
        accumulate(columns.timestamps, max, initial=NO_STREAM_TIME)
    )[1:]
    return columns
