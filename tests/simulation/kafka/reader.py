"""The reader of a simulated cluster: returns any part of the available records, as a
`KafkaReader` may.
"""

from __future__ import annotations

from coopstreams.log.log import RecordBatch
from coopstreams.log.memory.reader import MemoryReader, Reading
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.plan import Call, Crash, Crashed, Late, Lost, Torn


class SimulatedReader(MemoryReader):
    """Reads partitions of a simulated cluster."""

    def __init__(self, client: Client, *, committed_only: bool) -> None:
        super().__init__(client.cluster.state, committed_only=committed_only)
        self._client = client
        self._cluster = client.cluster
        self._batches: list[RecordBatch] = []
        self._leaders: dict[TopicPartition, int] = {}
        """The epochs of the leaders that this client knows."""

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Return available records."""
        self._check_open()
        self._batches = []
        self._client.wait(lambda: self._look(max_records) or self._awake, timeout_s)
        self._awake = False
        return self._batches

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("this reader is closed")

    def _look(self, most: int) -> bool:
        with self._state.changed:
            self._batches = self._take(most)
        return bool(self._batches)

    def _read(
        self, partition: TopicPartition, reading: Reading, most: int
    ) -> tuple[list[RecordBatch], int]:
        brokers = self._cluster.brokers
        epoch = brokers.leader(partition).epoch
        # it asks the old leader, is refused, and learns the new one
        if self._leaders.setdefault(partition, epoch) != epoch:
            self._leaders[partition] = epoch
            return [], 0
        if not brokers.answers(partition) or not self._is_news(partition, reading):
            return [], 0
        fault = self._cluster.heed(call := Call("fetch", partition, self._client.by))
        if isinstance(fault, Crash):
            raise Crashed(call)
        if isinstance(fault, Torn):
            most = min(most, fault.records)
        if isinstance(fault, (Lost, Late)) or most < 1:
            return [], 0
        batches, count = super()._read(partition, reading, most)
        if isinstance(fault, Torn) and count:
            reading.told_end = None
            for batch in batches:
                batch.at_end = False
        return batches, count

    def _is_news(self, partition: TopicPartition, reading: Reading) -> bool:
        """Whether there are records or an error. Without either, the fault plan is not
        consulted.
        """
        stored, at = self._state.partition(partition), reading.at.offset
        end = stored.stable_end if self._committed_only else stored.end
        return reading.told_end != max(at, end) or not stored.start <= at <= stored.end
