"""Writing to Kafka through a confluent-kafka producer: idempotent, or transactional.

    at-least-once   a callback for failures only; the first one is raised by `flush`
    transactional   a callback for the last record of each batch only: it has the end of a changelog, or the topic
                    that is gone; an undelivered record also fails the transaction, and `send_offsets` or
                    `commit` raises that
    native          no callback: the extension notes the first failure and the last offsets (see `native`)

Invariant: records of one `append` reach each partition in order, even if the queue was
full in between. A broker recognises a repeated request after its restart as well. The
exception: outside transactions, if the record times are more than a day old, because
the broker forgets producers by the time of their last record
(producer.id.expiration.ms). At-least-once then doubles a batch (measured).

Invariant: after any error `abort` makes the writer usable: by ending the transaction,
or else with a new producer.
Relies on: `group.missing_markers` (why a transaction's end is waited for),
`kafka_errors` (which errors end what), `time_limit`.
Turned down: keyword arguments of `produce` (twice the
price), `produce_batch` (drops headers, refuses timestamps), a callback a record (half a
microsecond).
"""

from __future__ import annotations

import struct
import time
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from itertools import chain, repeat
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams.common.acl_errors import Attempt
from coopstreams.group.hanging_transactions import Transactions
from coopstreams.log.kafka.client_settings import (
    ClientErrors,
    logger,
    login_of,
    make_client,
    producer_settings,
)
from coopstreams.log.kafka.kafka_errors import (
    CLIENT_ERRORS,
    CONSEQUENCES,
    FENCED,
    UNKNOWN,
    away,
    cause_of,
    error_of,
    made_again,
    not_delivered,
    translated,
    unknown_topic,
)
from coopstreams.log.kafka.native import Appender, appender_of, with_plugin
from coopstreams.log.kafka.time_limit import Bounded
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import Headers, Int64s, TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION
from coopstreams.topology.errors import DeliveryError, FencedError, LogError

ROOM_WAIT_S = 0.05
GRACE_S = 2.0
"""How long a call may overrun the time that it was given."""
ABORT_TIMEOUT_S = 5.0
"""After this time a new producer ends the transaction faster than the old one."""
OFFSETS_TIMEOUT_S = 6.0
"""After this time the client may wait for a coordinator that is gone (see
`time_limit`): a new producer takes over.
"""
CLOSE_TIMEOUT_S = 10.0
RETRY_S = 0.02
"""Pause before a retriable call is repeated: librdkafka can fail at once, some hundred
thousand times a second.
"""


class KafkaWriter:
    """A `Writer` to a Kafka cluster. One thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        transactional_id: str | None,
        end_offset: Callable[[TopicPartition], int],
        timeout_s: float,
        transactions: Callable[[], Transactions],
        written: Callable[[], Collection[str]],
    ) -> None:
        """Make the producer. A transactional one takes over its id, which ends the open
        transaction.

        `transactions` is called for a transactional writer only. `written`: returns the
        topics that transactions of this id may have written to.
        """
        self._servers = settings.get("bootstrap.servers")
        self._settings = producer_settings(settings, transactional_id)
        self._id = transactional_id
        self._end_offset = end_offset
        self._timeout_s = timeout_s
        self._transactions = transactions
        self._written = written
        self._login = login_of(settings)
        self._errors = ClientErrors(self._login)
        self._failure: tuple[KafkaError, str, str] | None = None
        """The error of the first record that was not delivered, in words, and its
        topic.
        """
        self._void = False
        """Whether this producer must not be used again."""
        self._fenced = False
        """Whether another producer took over; the next `begin` takes over again."""
        self._delivered: dict[TopicPartition, int | None] = {}
        """The offset after the last record in an explicit partition; None: the broker
        did not return it.
        """
        self._coordinator: int | None = None
        """The coordinator of the group to which this producer has sent offsets."""
        self._open = False
        """Whether a transaction is open."""
        self._topics = set[str]()
        """The topics to which the transaction has written, because its failure names no
        topic.
        """
        self._closed = False
        self._bounded = Bounded()
        self._producer: Producer | None = None
        self._native: Appender | None = None
        """Appends records in place of Python; None: pure Python."""
        self._start()

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        *,
        partitions: int | Int64s | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Queue these records, in order."""
        producer = self._ready()
        count = len(keys)
        if not count:
            return
        self._topics.add(topic)
        where = partitions if partitions is not None else ANY_PARTITION
        try:
            if self._native is None or not self._append_natively(
                self._native,
                producer,
                topic,
                keys,
                values,
                timestamps,
                where,
                headers,
            ):
                self._append(producer, topic, keys, values, timestamps, where, headers)
            producer.poll(0)
        except CLIENT_ERRORS as exception:
            raise self._translated(
                exception,
                f'writing to topic "{topic}"',
                topic,
            ) from exception

    def _append_natively(
        self,
        native: Appender,
        producer: Producer,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        where: int | Int64s,
        headers: Sequence[Headers | None] | None,
    ) -> bool:
        """Queue these records with the extension; return False if it cannot handle
        them.
        """
        start = 0
        while (
            told := native.append(
                topic,
                keys,
                values,
                timestamps,
                where,
                headers,
                start,
            )
        ) is not None:
            taken, code = told
            start += taken
            if not code:
                return True
            if code != KafkaError._QUEUE_FULL:
                raise KafkaException(
                    KafkaError(
                        code,
                        f"Unable to produce message: {KafkaError(code).str()}",
                    )
                )
            producer.poll(ROOM_WAIT_S)
        return False

    def _append(
        self,
        producer: Producer,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        where: int | Int64s,
        headers: Sequence[Headers | None] | None,
    ) -> None:
        """Queue these records one by one."""
        count = len(keys)
        if 0 in timestamps:
            timestamps = [
                timestamp or 1 for timestamp in timestamps
            ]  # librdkafka takes 0 for "now"
        callbacks = (
            repeat(None, count)
            if self._id is None
            else chain(repeat(None, count - 1), (self._note,))
        )
        rows = zip(
            repeat(topic, count),
            values,
            keys,
            repeat(where, count) if isinstance(where, int) else where,
            callbacks,
            repeat(None, count),
            timestamps,
            repeat(None, count) if headers is None else headers,
            strict=True,
        )
        produce = producer.produce
        for row in rows:
            try:
                produce(*row)
            except BufferError:
                self._produce_later(producer, row)

    def flush(self, timeout_s: float) -> None:
        """Wait until all queued records are in the log."""
        try:
            left = self._ready(in_transaction=False).flush(timeout_s)
        except CLIENT_ERRORS as exception:
            raise self._translated(exception, "writing") from exception
        failure = self._take_failure()
        if failure is not None:
            self._void = True
            error, what, topic = failure
            cause = cause_of(error, self._errors.transaction)
            what = (
                what if cause is error else f"{what}, after: {self._errors.transaction}"
            )
            what += (
                f"; {why}"
                if (why := self._errors.held_back)
                and cause.code() == KafkaError._MSG_TIMED_OUT
                else ""
            )
            raise not_delivered(cause, what, self._attempt(topic))
        if left:
            self._void = True
            raise DeliveryError(
                f"{left} records are not acknowledged after {timeout_s:g} s: "
                f"{self._errors.held_back or self._errors.last or 'is Kafka up?'}",
                retryable=True,
            )

    def delivered_to(self, partition: TopicPartition) -> int:
        """Return the offset after this writer's last record in the partition, or else
        the partition's end.
        """
        if self._native is not None:
            offset = self._native.delivered_to(*partition)
        else:
            offset = self._delivered.get(partition)
        return self._end_offset(partition) if offset is None else offset

    def begin(self) -> None:
        """Begin a transaction."""
        if self._id is None:
            raise LogError(
                "this writer has no transactional id; make it with log.writer(transactional_id)"
            )
        if self._closed or self._open:
            raise LogError(
                "this writer is closed"
                if self._closed
                else "a transaction is open already; commit or abort it first"
            )
        if self._producer is None:
            made_again(self._start)
        assert self._producer is not None
        self._errors.transaction = ""
        self._topics.clear()
        try:
            self._producer.begin_transaction()
        except CLIENT_ERRORS as exception:
            raise self._translated(exception, "beginning a transaction") from exception
        self._open = True

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        fence: GroupFence,
    ) -> None:
        """Add group offsets to the transaction; the coordinator checks the fence now."""
        producer = self._ready()
        fence.check(offsets)
        sent = [
            KafkaPartition(*partition, offset, metadata)
            for partition, (offset, metadata) in offsets.items()
        ]
        identity = group_metadata(fence)
        what = f'sending the offsets of group "{fence.group}"'
        self._check_coordinator(fence, what)
        most_s = min(OFFSETS_TIMEOUT_S, self._settings["transaction.timeout.ms"] / 1000)

        def send(left: float) -> None:
            self._bounded.run(
                lambda: producer.send_offsets_to_transaction(sent, identity, left),
                left + GRACE_S,
            )

        try:
            self._insist(send, most_s, what, fence.group)
        except TimeoutError as error:
            self._void = True
            raise away(self._servers, what, most_s, self._errors) from error

    def _check_coordinator(self, fence: GroupFence, what: str) -> None:
        """Check that the group's coordinator is the one that the client remembers.

        librdkafka remembers the first one it found, and waits for it even if that
        broker has left the cluster meanwhile (librdkafka issue 5511).

        Raises:
            LogError: the coordinator is another one by now: a new producer finds it.
        """
        if fence.coordinator is None:
            return
        if self._coordinator not in (None, fence.coordinator):
            self._void = True
            raise LogError(
                f"{what}: its coordinator is broker {fence.coordinator} now, no longer {self._coordinator}; going on "
                "with a new producer",
                retryable=True,
            )
        self._coordinator = fence.coordinator

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction: all its records and offsets count."""
        self._end(
            self._ready().commit_transaction,
            timeout_s,
            f'committing a transaction of "{self._id}"',
        )
        self._open = False

    def abort(self) -> None:
        """Abort the transaction, if one is open; replace the producer if it is
        unusable.
        """
        was_open = self._open
        self._open = False
        self._serve()
        fatal = self._errors.fatal
        producer = self._producer
        fenced = self._fenced or (fatal is not None and fatal.code() in FENCED)
        if self._id is not None and fenced:
            # The producer that fenced us aborts our transaction, and may still be at
            # work: take over again with the next `begin`.
            self._fenced = True
            self._discard()
            self._transactions().settle(self._id, (), ABORT_TIMEOUT_S)
        elif fatal is not None or producer is None or not self._goes_on(producer):
            # If a record was lost, the broker expects its sequence number next: the
            # next transaction would fail, too. A new producer aborts the old one's
            # transaction, however far it got.
            self._discard()
            made_again(self._start)
        elif was_open:
            try:
                self._end(
                    producer.abort_transaction,
                    ABORT_TIMEOUT_S,
                    f'aborting a transaction of "{self._id}"',
                )
                self._serve()
                self._take_failure()  # the failure of records that the abort purged
            except LogError:
                self._discard()
                made_again(self._start)

    def _goes_on(self, producer: Producer) -> bool:
        """Whether this producer can be used for the next transaction."""
        if self._void or self._errors.transaction:
            return False
        return self._id is not None or not len(producer)

    def close(self) -> None:
        """Flush records outside of a transaction, abort an open transaction, close.
        Errors are only logged.
        """
        if self._closed:
            return
        self._closed = True
        self._serve()
        try:
            if self._producer is not None and self._errors.fatal is None:
                if self._open:
                    self._producer.abort_transaction(CLOSE_TIMEOUT_S)
                elif self._id is None and (
                    left := self._producer.flush(CLOSE_TIMEOUT_S)
                ):
                    logger.warning(
                        "closing a writer: %d records were not acknowledged within %g s",
                        left,
                        CLOSE_TIMEOUT_S,
                    )
        except CLIENT_ERRORS as exception:
            logger.warning(
                "closing a writer: %s",
                self._translated(exception, "ending its transaction"),
            )
        finally:
            self._open = False
            self._bounded.close()
            self._discard()

    def _ready(self, *, in_transaction: bool = True) -> Producer:
        """Return the producer; raise an error if nothing may be written now."""
        if self._closed:
            raise LogError("this writer is closed")
        if self._id is not None and in_transaction and not self._open:
            raise LogError(
                "a transactional writer writes inside transactions only; begin one first"
            )
        if self._producer is None:
            raise LogError("this writer lost its producer; abort first")
        return self._producer

    def _start(self) -> None:
        """Make a new producer; a transactional one takes over its id, which aborts the
        open transaction.
        """
        self._errors = ClientErrors(self._login)
        self._failure = None
        self._void = False
        self._fenced = False
        self._coordinator = None
        extra: dict[str, Any] = (
            {} if self._id is not None else {"on_delivery": self._note_failure}
        )
        settings = with_plugin(
            self._settings | extra | {"throttle_cb": self._errors.throttled}
        )
        producer: Producer = make_client(Producer, settings, self._errors)
        self._producer = producer
        self._native = appender_of(producer, settings)
        if self._id is not None:
            try:
                self._take_over(self._id, producer)
            except LogError:
                self._discard()
                raise

    def _take_over(self, id_: str, producer: Producer) -> None:
        """Take over the transactional id, once its last transaction has ended in all
        partitions.

        The take-over aborts an ongoing transaction; then this waits until that has
        ended in its partitions as well.
        """
        transactions = self._transactions()
        ongoing = transactions.settle_topics(id_, self._written(), self._timeout_s)
        self._insist(
            producer.init_transactions,
            self._timeout_s,
            f'taking over the transactional id "{id_}"',
        )
        if ongoing:
            transactions.settle(id_, ongoing, self._timeout_s)

    def _end(
        self,
        call: Callable[[float], None],
        timeout_s: float,
        what: str,
    ) -> None:
        """Make the call that commits or aborts. If the coordinator may skip a partition
        (see `group.missing_markers`), wait until the transaction has ended in all of
        them.
        """
        assert self._id is not None
        transactions = self._transactions()
        partitions = transactions.open_partitions(self._id, timeout_s)
        self._insist(call, timeout_s, what)
        if partitions:
            self._void = True  # if the call hangs, this producer must not be used again
            transactions.settle(self._id, partitions, timeout_s)
            self._void = False

    def _discard(self) -> None:
        """Drop the producer, with what it has queued."""
        if self._producer is not None:
            self._producer.purge()
            self._serve()
            if self._native is not None:
                self._native.close()
            self._producer = self._native = None

    def _serve(self) -> None:
        """Poll the producer, which runs its callbacks; keep an exception as a fatal
        error.
        """
        if self._producer is not None:
            try:
                self._producer.poll(0)
            except CLIENT_ERRORS as exception:
                self._errors.fatal = self._errors.fatal or error_of(exception)

    def _insist(
        self,
        call: Callable[[float], None],
        timeout_s: float,
        what: str,
        group: str = "",
    ) -> None:
        """Repeat a call of the transactional API until it succeeds, is refused, or time
        runs out.

        A call that ran out of time is not repeated. librdkafka goes on with it and
        offers to resume it. But if a resumed commit runs out of time as well, the
        client forgets that it commits, takes the coordinator's answer for the answer to
        an abort, and ends the process (an assertion in `rd_kafka_txn_endtxn_complete`;
        seen on a busy machine).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return call(max(deadline - time.monotonic(), 0.0))
            except CLIENT_ERRORS as exception:
                error = error_of(exception)
                left = deadline - time.monotonic()
                if not error.retriable() or error.txn_requires_abort():
                    raise self._translated(exception, what, group=group) from exception
                if left <= 0.0 or error.code() == KafkaError._TIMED_OUT:
                    # the call goes on: another one would be answered with a conflict
                    self._void = True
                    self._serve()
                    raise away(
                        self._servers,
                        what,
                        timeout_s,
                        self._errors,
                    ) from exception
                time.sleep(min(RETRY_S, left))

    def _attempt(self, topic: str = "", group: str = "") -> Attempt:
        topics = ", ".join(sorted(self._topics)) if self._errors.transaction else topic
        return Attempt(self._login, "Write", topics, group, self._id or "")

    def _translated(
        self,
        exception: BaseException,
        what: str,
        topic: str = "",
        group: str = "",
    ) -> LogError:
        """Return the exception of coopstreams for an exception of the client.

        A client with a fatal error reports only the consequence; the cause came
        earlier.
        """
        error = error_of(exception)
        if error.fatal():
            self._errors.fatal = error
        elif (
            error.txn_requires_abort() or error.code() in CONSEQUENCES
        ) and not self._errors.transaction:
            self._serve()  # report the reason through `error_cb`
        error = cause_of(error, self._errors.transaction)
        if self._errors.transaction:
            what = f"{what}, after: {self._errors.transaction}"
        if (
            group and error.code() in UNKNOWN
        ):  # not of a record: all records are delivered before offsets are sent
            result: LogError = unknown_topic(
                f"topic any more of which offsets were sent ({what})"
            )
        else:
            result = translated(
                self._errors.fatal or error,
                what,
                self._attempt(topic, group),
            )
        if isinstance(result, FencedError) and not error.fatal():
            self._errors.transaction = ""  # the coordinator refused; no record was lost
        else:
            self._void = True
        return result

    def _produce_later(self, producer: Producer, row: tuple[Any, ...]) -> None:
        """Produce a record once the queue has room, after deliveries or failures."""
        while True:
            producer.poll(ROOM_WAIT_S)
            try:
                return producer.produce(*row)
            except BufferError:
                pass

    def _take_failure(self) -> tuple[KafkaError, str, str] | None:
        """Return error, message and topic of the first record that was not delivered
        since the last call; None: all were.
        """
        failure = self._failure
        self._failure = None
        if (
            self._native is not None
            and (told := self._native.take_failure()) is not None
            and failure is None
        ):
            code, topic = told
            # Without a code: a batch of which the broker refused several records.
            error = KafkaError(code or KafkaError.INVALID_RECORD)
            failure = error, _undelivered(topic), topic
        return failure

    def _note(self, error: KafkaError | None, message: Message) -> None:
        """Note the offset after the last record of a batch, or that the record was not
        delivered.
        """
        topic = message.topic()
        partition = message.partition()
        offset = message.offset()
        if error is not None:
            self._note_failure(error, message)
        elif topic is not None and partition is not None:
            self._delivered[TopicPartition(topic, partition)] = (
                offset + 1 if offset is not None and offset >= 0 else None
            )

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        """Note the first record that was not delivered."""
        if error is not None and self._failure is None:
            topic = message.topic() or ""
            self._failure = error, _undelivered(topic), topic


def _undelivered(topic: str) -> str:
    return f'a record for topic "{topic}" was not delivered'


def group_metadata(fence: GroupFence) -> bytes:
    """Return the bytes of an identity for `send_offsets_to_transaction`.

    Shape: "CGMDv2:", int32 generation in native order, group, NUL, member, NUL, int8
    (1: no instance; 0: instance, NUL follows).

    Raises:
        ValueError: an id that is not printable ASCII: librdkafka refuses it.

    Source: librdkafka `rd_kafka_consumer_group_metadata_read`.
    """
    for word in (fence.group, fence.member, fence.instance or ""):
        if not (word.isascii() and word.isprintable()):
            raise ValueError(
                f"{word!r} cannot be a group, member or instance id: only printable ASCII can"
            )
    start = (
        b"CGMDv2:"
        + struct.pack("=i", fence.generation)
        + fence.group.encode()
        + b"\0"
        + fence.member.encode()
        + b"\0"
    )
    return start + (
        b"\1" if fence.instance is None else b"\0" + fence.instance.encode() + b"\0"
    )
