"""The writer of a simulated cluster: a client's queue, and a producer that may be void,
fenced or in doubt, as `KafkaWriter` has them.

Records stay with the client until they are flushed (or `Early`), and go partition by
partition: a process that ends in between has written any part of them. Any error makes
the transaction void; `abort` then takes over the id again, which ends the open
transaction in any state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from coopstreams.log.log import GroupFence
from coopstreams.log.memory.transactions import Offsets, ProducerSession
from coopstreams.log.memory.writer import by_partition, check_records, choose_partitions
from coopstreams.topology.columns import Headers, Int64s, TopicPartition
from coopstreams.topology.errors import DeliveryError, FencedError, LogError
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.plan import Call, Early

ABORT_S = 5.0


class _Batch(NamedTuple):
    """Records for one partition."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64s
    headers: Sequence[Headers | None] | None
    since: float
    """The time at which the records were taken."""


class SimulatedWriter:
    """Writes to a simulated cluster. One thread.

    `end_offset`: returns the end of a partition, if this writer does not know its last
    record there. `written`: the topics to search for hanging transactions; None: no
    search, as in other clients. `kept_s`: records outside transactions that wait longer
    are given up, as by `message.timeout.ms`.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str | None,
        end_offset: Callable[[TopicPartition], int],
        timeout_s: float,
        written: Callable[[], Collection[str]] | None,
        kept_s: float,
    ) -> None:
        self._client = client
        self._cluster = client.cluster
        self._id = transactional_id
        self._end_offset = end_offset
        self._timeout_s = timeout_s
        self._written = written
        self._kept_s = kept_s
        self._queue: dict[TopicPartition, list[_Batch]] = {}
        self._delivered: dict[TopicPartition, int] = {}
        self._failure: LogError | None = None
        """The error of records that were sent early."""
        self._session: ProducerSession | None = None
        self._open = False
        self._begun = False
        """Whether the coordinator knows the transaction: it does from the first record
        or offset on.
        """
        self._void = False
        self._fenced = False
        self._closed = False
        if transactional_id is not None:
            self._take_over(transactional_id)

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
        """Take these records, in order."""
        self._check_open()
        stored = self._cluster.state.topics.get(topic)
        if stored is None:
            self._failure = self._failure or DeliveryError(
                f'topic "{topic}" does not exist. Create the topic first, or correct the name.'
            )
            return
        chosen = (
            [partitions] * len(keys)
            if isinstance(partitions, int)
            else choose_partitions(stored, keys, partitions)
        )
        for number, rows in by_partition(chosen).items():
            if not 0 <= number < len(stored.partitions):
                raise DeliveryError(
                    f'topic "{topic}" has {len(stored.partitions)} partitions, there is no partition {number}'
                )
            partition = TopicPartition(topic, number)
            batch = _Batch(
                [keys[i] for i in rows],
                [values[i] for i in rows],
                [timestamps[i] for i in rows],
                None if headers is None else [headers[i] for i in rows],
                self._client.now(),
            )
            self._queue.setdefault(partition, []).append(batch)
            if (
                self._cluster.heed(Call("append", partition, self._client.by))
                == Early()
                and self._failure is None
            ):
                try:
                    self._send(partition, self._timeout_s)
                except LogError as error:
                    self._failure = error

    def flush(self, timeout_s: float) -> None:
        """Return when all records taken so far are in the log."""
        self._check_open(in_transaction=False)
        try:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            for partition in list(self._queue):
                self._send(partition, timeout_s)
        except LogError as error:
            self._queue.clear()
            raise self._void_by(error)  # noqa: B904

    def delivered_to(self, partition: TopicPartition) -> int:
        """Return the offset after this writer's last record there, or else the
        partition's end.
        """
        return (
            self._delivered[partition]
            if partition in self._delivered
            else self._end_offset(partition)
        )

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
        if self._session is None:
            self._take_over(self._id)
        self._open, self._begun = True, False

    def send_offsets(self, offsets: Offsets, fence: GroupFence) -> None:
        """Add group offsets to the transaction."""
        session = self._usable()
        fence.check(offsets)

        def effect() -> None:
            self._enter(session)
            self._cluster.state.send_offsets(offsets, fence, session)

        try:
            self._prepare(session)
            self._client.ask("send offsets", fence.group, effect, self._timeout_s)
        except FencedError as error:
            raise self._void_by(error) if session.is_fenced else error  # noqa: B904
        except LogError as error:
            raise self._void_by(error)  # noqa: B904

    def commit(self, timeout_s: float) -> None:
        """End the transaction; all its records and offsets count."""
        session = self._usable()
        self.flush(timeout_s)
        self._end(session, commit=True, timeout_s=timeout_s)
        self._open = False

    def abort(self) -> None:
        """End the transaction, if one is open; make the producer usable again."""
        was_open, self._open = self._open, False
        self._queue.clear()
        self._failure = None
        # the writer that fenced us has ended our transaction; the next `begin` takes
        # over again
        if self._id is None or self._fenced:
            self._session, self._void = None, False
        elif self._void or self._session is None:
            self._take_over(self._id)
        elif was_open:
            try:
                self._end(self._session, commit=False, timeout_s=ABORT_S)
            except LogError:
                self._take_over(self._id)

    def close(self) -> None:
        """Flush records outside a transaction, abort an open one."""
        if not self._closed:
            with suppress(LogError):
                if self._open:
                    self.abort()
                elif self._id is None:
                    self.flush(self._timeout_s)
            self._closed = True

    def _check_open(self, *, in_transaction: bool = True) -> None:
        if self._closed:
            raise LogError("this writer is closed")
        if self._id is not None and in_transaction and not self._open:
            raise LogError(
                "a transactional writer writes inside transactions only; begin one first"
            )

    def _usable(self) -> ProducerSession:
        """Return the session of the transaction, if it is not void."""
        self._check_open()
        if self._session is None or self._void:
            raise LogError(
                "offsets are sent in a transaction; begin one first"
                if self._id is None
                else "this transaction has failed; abort first"
            )
        return self._session

    def _take_over(self, transactional_id: str) -> None:
        """Take over the id; first end hanging transactions, if they are searched for."""
        self._session, known = None, self._cluster.state.producers.get(transactional_id)
        if known is not None and self._written is not None:
            self._cluster.settle(known, self._written())
        self._session = self._client.take_over(transactional_id, self._timeout_s)
        if self._written is not None:
            self._cluster.settle(self._session.producer, self._written())
        self._void = self._fenced = False

    def _prepare(self, session: ProducerSession) -> None:
        """Wait, before the first request of a transaction, until the one before it has
        ended everywhere.
        """
        if not self._begun:
            self._client.finish(session.producer, self._timeout_s)
            self._begun = True

    def _enter(self, session: ProducerSession) -> None:
        """Register the transaction with the coordinator."""
        self._cluster.state.check(session)
        if not session.producer.open:
            self._cluster.state.begin(session)

    def _send(self, partition: TopicPartition, timeout_s: float) -> None:
        """Send the records that wait for one partition, as one request."""
        batches, session, state = (
            self._queue.pop(partition),
            self._session,
            self._cluster.state,
        )

        def effect() -> int:
            # Asked with each attempt: a process may have stood still since the last
            # one.
            if session is None and self._client.now() - batches[0].since > self._kept_s:
                raise DeliveryError(
                    f"records for {partition} have waited for too long", retryable=True
                )
            topic = state.topics.get(partition.topic)
            if topic is None:
                raise DeliveryError(
                    f'topic "{partition.topic}" does not exist any more'
                )
            for batch in batches:
                check_records(topic, batch.keys, batch.values)
            if session is not None:
                self._enter(session)
            stored = state.partition(partition)
            for batch in batches:
                state.append(stored, *batch[:4], session)
            state.changed.notify_all()
            return stored.end

        try:
            if session is not None:
                self._prepare(session)
            end = self._client.ask("produce", partition, effect, timeout_s)
        except (DeliveryError, FencedError):
            raise
        except LogError as error:
            raise DeliveryError(
                f"records for {partition} are not acknowledged: {error}", retryable=True
            ) from error
        if self._id is not None:
            self._delivered[partition] = end

    def _end(self, session: ProducerSession, *, commit: bool, timeout_s: float) -> None:
        """Commit or abort; a transaction unknown to the coordinator needs no request."""
        if not self._begun:
            return
        assert self._id is not None
        try:
            self._client.ask(
                "commit" if commit else "abort",
                self._id,
                lambda: self._cluster.state.end(session, commit=commit),
                timeout_s,
            )
            if self._cluster.skips and self._written is not None:
                self._client.finish(session.producer, timeout_s)
                self._cluster.settle(session.producer, self._written())
        except LogError as error:
            raise self._void_by(error)  # noqa: B904

    def _void_by(self, error: LogError) -> LogError:
        """Make this producer void by an error; return the error."""
        self._void = True
        self._fenced = self._fenced or (
            isinstance(error, FencedError)
            and self._session is not None
            and self._session.is_fenced
        )
        return error
