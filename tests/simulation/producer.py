"""A user's transactional producer on the simulated cluster: the part of
`confluent_kafka.Producer` that `CooperativeConsumer.transaction` and its users call,
with librdkafka's rules.

A commit without an answer can only be retried, not aborted: its user makes another
producer, whose `init_transactions` waits until the commit is decided.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, LogError
from tests.simulation.cluster import ANSWER_S, MachineClient, MachineLog
from tests.simulation.kafka.writer import SimulatedWriter

T = TypeVar("T")


class Producer:
    """Writes under a transactional id. One thread."""

    def __init__(self, client: MachineClient, transactional_id: str) -> None:
        self._client, self._id = client, transactional_id
        self._log = MachineLog(client)
        self._writer: SimulatedWriter | None = None
        self._undecided = False

    def init_transactions(self) -> None:
        """End the open transaction of another producer under the id."""
        self._writer = _raised(
            lambda: SimulatedWriter(
                self._client, self._id, self._log.end_offset, ANSWER_S, None, inf
            )
        )

    def begin_transaction(self) -> None:
        _raised(self._open.begin)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: None = None,
        callback: None = None,
        timestamp: int = 0,
    ) -> None:
        _raised(
            lambda: self._open.append(
                topic, [key], [value], [timestamp], partitions=partition
            )
        )

    def flush(self, timeout: float) -> int:
        """Return how many records are not in the log."""
        try:
            self._open.flush(timeout)
        except LogError:
            return 1
        return 0

    def send_offsets_to_transaction(
        self, sent: Sequence[KafkaPartition], metadata: bytes, timeout: float
    ) -> None:
        offsets = {
            TopicPartition(one.topic, one.partition): (one.offset, one.metadata or "")
            for one in sent
        }
        _raised(lambda: self._open.send_offsets(offsets, _fence(metadata)))

    def commit_transaction(self, timeout: float) -> None:
        self._undecided = True
        _raised(lambda: self._open.commit(timeout))
        self._undecided = False

    def abort_transaction(self, timeout: float) -> None:
        if self._undecided:
            raise KafkaException(KafkaError(KafkaError._STATE, "a commit is under way"))
        _raised(self._open.abort)

    @property
    def _open(self) -> SimulatedWriter:
        assert self._writer is not None, "init_transactions was not called"
        return self._writer


def _fence(metadata: bytes) -> GroupFence:
    """Return the fence in the bytes of `group_metadata`."""
    start = len(b"CGMDv2:")
    (generation,) = struct.unpack_from("=i", metadata, start)
    group, member, _ = metadata[start + 4 :].split(b"\0", 2)
    return GroupFence(group.decode(), generation, member.decode())


def _raised(call: Callable[[], T]) -> T:
    """Return the result of a function; raise its errors as the client's."""
    try:
        return call()
    except FencedError as error:
        raise KafkaException(
            KafkaError(KafkaError._FENCED, str(error), fatal=True)
        ) from error
    except LogError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(error))) from error
