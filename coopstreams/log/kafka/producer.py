"""Commits a consumer's offsets in the transactions of a user's own producer.

`ProducerTransaction` has the part of `Writer` that a consumer's commit needs. It
begins, commits and aborts the transaction; the user's own records go out by the same
producer.

Relies on: `consumer.consumer_commit` (what is called in which order), `writer` (the same
for the producer of an application).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams.common.acl_errors import Attempt
from coopstreams.log.kafka.client_settings import (
    ClientErrors,
    login_of,
    make_client,
    producer_settings,
)
from coopstreams.log.kafka.kafka_errors import CLIENT_ERRORS, error_of, translated
from coopstreams.log.kafka.writer import group_metadata
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import DeliveryError, FencedError

_ENDED = frozenset({KafkaError._FATAL})
_UNUSABLE = _ENDED | {KafkaError._STATE, KafkaError._CONFLICT}
"""The errors of a call to begin or abort after a commit that ran out of time: that
commit has to be resumed first.
"""


def transactional_producer(
    settings: Mapping[str, Any],
    transactional_id: str,
) -> Producer:
    """Return a producer for transactions. It has ended the open transaction of an
    earlier producer with this id.

    Raises:
        LogError: the brokers refuse, or do not answer.
    """
    errors = ClientErrors(login_of(settings))
    producer: Producer = make_client(
        Producer,
        producer_settings(settings, transactional_id),
        errors,
    )
    try:
        producer.init_transactions()
    except CLIENT_ERRORS as error:
        attempt = Attempt(errors.login, transactional_id=transactional_id)
        raise translated(
            error_of(error),
            f'beginning with transactional id "{transactional_id}"',
            attempt,
        ) from error
    return producer


class ProducerTransaction:
    """The transactions of a confluent-kafka producer whose `init_transactions` was
    called, one at a time. One thread.
    """

    def __init__(self, producer: Producer, timeout_s: float) -> None:
        self._producer = producer
        self._timeout_s = timeout_s

    def begin(self) -> None:
        """Begin the transaction."""
        self._call(
            "beginning a transaction",
            self._producer.begin_transaction,
            unusable=_UNUSABLE,
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Begin the transaction; abort it if the body raises. The body ends with
        `commit`.
        """
        self.begin()
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        *,
        partitions: int,
    ) -> None:
        """Queue these records, in order."""
        for key, value, timestamp in zip(keys, values, timestamps, strict=True):
            self._call(
                f'writing to topic "{topic}"',
                self._producer.produce,
                topic,
                value,
                key,
                partitions,
                None,
                None,
                timestamp,
            )

    def flush(self, timeout_s: float) -> None:
        """Wait until all queued records are in the log."""
        if left := self._producer.flush(timeout_s):
            raise DeliveryError(
                f"{left} records are not acknowledged after {timeout_s:g} s. Is Kafka up?",
                retryable=True,
            )

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        fence: GroupFence,
    ) -> None:
        """Add group offsets to the transaction; the coordinator checks the fence now."""
        fence.check(offsets)
        sent = [
            KafkaPartition(*at, offset, metadata)
            for at, (offset, metadata) in offsets.items()
        ]
        what = f'sending the offsets of group "{fence.group}"'
        self._call(
            what,
            self._producer.send_offsets_to_transaction,
            sent,
            group_metadata(fence),
            self._timeout_s,
        )

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction: all its records and offsets count."""
        self._call(
            "committing a transaction",
            self._producer.commit_transaction,
            timeout_s,
        )

    def abort(self) -> None:
        """Abort the transaction: nothing of it counts.

        Queued records are sent first: an abort that overtakes the request which adds
        its partition is fatal to the producer (INVALID_TXN_STATE, measured: one in ten,
        just after `produce`).
        """
        self._call("writing", self._producer.flush, self._timeout_s)
        self._call(
            "aborting a transaction",
            self._producer.abort_transaction,
            self._timeout_s,
            unusable=_UNUSABLE,
        )

    def _call(
        self,
        what: str,
        call: Callable[..., object],
        *arguments: object,
        unusable: Collection[int] = _ENDED,
    ) -> None:
        """Call a method of the producer; translate its errors. `unusable`: the codes
        after which the producer is of no more use.
        """
        try:
            call(*arguments)
        except CLIENT_ERRORS as exception:
            error = error_of(exception)
            if error.fatal() or error.code() in unusable:
                raise FencedError(
                    f"{what}: {error.str()} ({error.name()}). This producer cannot be used again: go on with a new one."
                ) from exception
            raise translated(error, what) from exception
