"""A record that a share thread has acquired, from its delivery until it is
acknowledged.

delivered -> (calls) -> processed -> acknowledged        again later: its failure handler said `Retry`
                                `-> released             to another member, or for good with this process
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
    """A member of a share group: `log.kafka.share.KafkaShare`. One thread."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `KafkaShare.subscribe`."""

    def poll(self, timeout_s: float) -> list[AcquiredRecord]:
        """See `KafkaShare.poll`."""
        ...

    def acknowledge(self, record: AcquiredRecord, *, done: bool) -> None:
        """See `KafkaShare.acknowledge`."""

    def commit(self, timeout_s: float) -> dict[TopicPartition, str]:
        """See `KafkaShare.commit`."""
        ...

    def close(self) -> None:
        """See `KafkaShare.close`."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a record. `until`: when another member may get it. Units: as
    `Host.now`.
    """

    record: AcquiredRecord
    until: float
    calls: list[DeliveryCall] = field(default_factory=list)
    waits_for: int = 0
    """The number of the record's calls that have not ended."""
    failures: int = 0
    """How often the failure handler has answered `Retry` to the record in this process.
    """
    again_at: float | None = None
    """When the record is processed again; None: it does not wait for a retry."""
    mark: bool = False
    """Whether it is a time mark, which is acknowledged and never processed."""

    source: TopicPartition = field(init=False)
    """The partition of the record."""
    place: tuple[str, int, int] = field(init=False)
    """Topic, partition, offset. A field, as `source` is: each step of the thread sorts
    what is ready.
    """

    def __post_init__(self) -> None:
        self.place = self.record.id
        self.source = TopicPartition(*self.place[:2])

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on: each earlier delivery counts as one."""
        return self.record.deliveries + self.failures


@dataclass(slots=True, eq=False)
class DeliveryCall(Call):
    """A call of a node for a record."""

    node: str
    delivery: Delivery | None
    """None once the call has ended."""


def columns_of(
    source: TopicPartition,
    deliveries: Sequence[Delivery],
    extract: TimestampColumn | None = None,
) -> Columns:
    """Return records of one partition as columns, with the timestamps of an extractor
    if there is one.

    Stream time is computed within this batch, because records without an order have no
    other.
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
