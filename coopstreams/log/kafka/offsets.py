"""Offsets of partitions and groups, read and set from outside of any group: a backfill's cut and its hand-over.

Invariant: a group's offsets are set only while it has no member: otherwise the broker refuses them, so no member's
progress is overwritten.
Turned down: `AdminClient.alter_consumer_group_offsets` and its list (a group that is new to its coordinator is answered
NOT_COORDINATOR for the partition, and the list crashed the process: seen in confluent-kafka 2.16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams.common.acls import Attempt
from coopstreams.log.kafka.errors import away, error_of, heals, translated
from coopstreams.log.kafka.patience import Patience
from coopstreams.log.kafka.settings import ClientErrors, consumer_settings, login_of, make_client
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError

_OCCUPIED = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)

T = TypeVar("T")


class KafkaOffsets:
    """Reads and sets offsets of a group. One thread; `close` it.

    The coordinator of `group` is looked up at the first request about the group.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, *, timeout_s: float = 30.0) -> None:
        plain = {name: value for name, value in settings.items() if not name.endswith("group.id")}
        self._errors = ClientErrors(login_of(settings))
        self._consumer: Consumer = make_client(
            Consumer, consumer_settings({**plain, "group.id": group}, committed_only=True), self._errors
        )
        self._servers = settings["bootstrap.servers"]
        self._group = group
        self._timeout_s = timeout_s

    def stable(self, partition: TopicPartition) -> int:
        """Return the last stable offset: no transaction is open below it."""
        where = KafkaPartition(*partition)
        what = f"asking for the last stable offset of {partition}"
        _, end = self._ask(
            lambda seconds: self._consumer.get_watermark_offsets(where, seconds, cached=False), what, partition.topic
        )
        return int(end)

    def at_time(self, partitions: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after this timestamp in each partition; None: there is none yet."""
        asked = [KafkaPartition(*partition, time_ms) for partition in partitions]
        found = self._ask(
            lambda seconds: self._consumer.offsets_for_times(asked, seconds),
            "asking for offsets by time",
            *(partition.topic for partition in partitions),
        )
        for answer in found:
            if answer.error is not None:
                raise translated(
                    answer.error,
                    f"asking for an offset of {answer.topic}-{answer.partition} by time",
                    self._attempt(answer.topic),
                )
        return {
            TopicPartition(answer.topic, answer.partition): answer.offset if answer.offset >= 0 else None
            for answer in found
        }

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, str | None]]:
        """Return the group's offsets and their metadata, for the partitions that have one."""
        asked = [KafkaPartition(*partition) for partition in partitions]
        found = self._ask(
            lambda seconds: self._consumer.committed(asked, seconds), f"asking for the offsets of group {self._group}"
        )
        return {
            TopicPartition(answer.topic, answer.partition): (answer.offset, answer.metadata)
            for answer in found
            if answer.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Set the group's offsets, with metadata.

        Raises:
            GroupError: the group has members. Stop the application, and try again.
        """
        told = [
            KafkaPartition(partition.topic, partition.partition, offset, metadata)
            for partition, (offset, metadata) in offsets.items()
        ]
        answers = self._ask(
            lambda _: self._consumer.commit(offsets=told, asynchronous=False),
            f"setting the offsets of group {self._group}",
        )
        for answer in answers or ():
            if answer.error is not None:
                raise translated(
                    answer.error,
                    f"setting the offset of {answer.topic}-{answer.partition} for group {self._group}",
                    self._attempt(answer.topic),
                )

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def _attempt(self, *topics: str) -> Attempt:
        return Attempt(self._errors.login, "Read", ", ".join(sorted(set(topics))), self._group)

    def _ask(self, question: Callable[[float], T], what: str, *topics: str) -> T:
        patience = Patience(what, self._timeout_s)
        while True:
            try:
                return question(patience.attempt_s())
            except KafkaException as exception:
                error = error_of(exception)
            if error.code() in _OCCUPIED:
                raise GroupError(
                    f'{what}: the group has members. Stop all instances of "{self._group}", then try again.'
                )
            self._consumer.poll(0)  # report the reason through `error_cb`
            if self._errors.refused is not None or not heals(error, self._errors.login):
                raise translated(self._errors.refused or error, what, self._attempt(*topics))
            if patience.over:
                raise away(self._servers, what, self._timeout_s, self._errors)
            patience.rest(f"{error.str()} ({error.name()})")
