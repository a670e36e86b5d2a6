"""Leaves transactions open by raw requests, as a coordinator with KAFKA-20734 does.

It needs a broker with `transaction.partition.verification.enable=false`, which takes
records of a producer without a transaction at its coordinator.
"""
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka import errors
from kafka.protocol.producer import ProduceRequest, TxnOffsetCommitRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from coopstreams.group import group_requests
from coopstreams.group.admin import connected
from coopstreams.group.group_requests import Exchange
from coopstreams.group.missing_markers import TransactionDescription
from coopstreams.group.transaction_requests import describe_transaction
from coopstreams.topology.columns import TopicPartition

UNVERIFIED = {"transaction.partition.verification.enable": "false"}


class Raw:
    """A connection to a broker for raw requests."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = connected({"bootstrap.servers": bootstrap}, 60)

    def close(self) -> None:
        self._connection.close()

    def told(self, transactional_id: str) -> TransactionDescription:
        """Return the coordinator's description."""
        told: TransactionDescription | None = self._send(
            describe_transaction(transactional_id)
        )
        assert told is not None
        return told

    def init(self, transactional_id: str) -> None:
        """Take over a transactional id, and nothing else."""
        self._send(group_requests.new_producer(transactional_id, 60_000))

    def produce(
        self, transactional_id: str, partition: TopicPartition, values: Sequence[bytes]
    ) -> None:
        """Write the first records of the transactional id's current producer to that
        partition.
        """
        told = self.told(transactional_id)
        batch = MemoryRecordsBuilder(
            2,
            0,
            1 << 20,
            transactional=True,
            producer_id=told.producer,
            producer_epoch=told.epoch,
            base_sequence=0,
        )
        for value in values:
            batch.append(timestamp=1, key=b"k", value=value)
        batch.close()
        topic_type = ProduceRequest.TopicProduceData
        data = topic_type.PartitionProduceData(
            index=partition.partition, records=bytes(batch.buffer())
        )
        topics = [topic_type(name=partition.topic, partition_data=[data])]
        request = ProduceRequest(
            max_version=11,
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=topics,
        )
        self._send(
            Exchange(
                "producing",
                request,
                lambda answer: _check(
                    answer.responses[0].partition_responses[0].error_code
                ),
            )
        )

    def send_offset(
        self, transactional_id: str, group: str, partition: TopicPartition, offset: int
    ) -> None:
        """Send a group offset as part of a transaction of the transactional id's
        producer.
        """
        told = self.told(transactional_id)
        topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        entry = topic_type.TxnOffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        request = TxnOffsetCommitRequest(
            max_version=4,
            transactional_id=transactional_id,
            group_id=group,
            producer_id=told.producer,
            producer_epoch=told.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic_type(name=partition.topic, partitions=[entry])],
        )
        self._send(
            Exchange(
                "sending offsets",
                request,
                lambda answer: _check(answer.topics[0].partitions[0].error_code),
            )
        )

    def _send(self, exchange: Exchange[Any]) -> Any:
        async def only_node() -> int:
            return 1

        return self._connection.run(self._connection.ask, exchange, only_node, 30_000)


def _check(code: int) -> None:
    error = errors.for_code(code)
    if error is not errors.NoError:
        raise error
