"""The writer of a `MemoryLog`. Its records are in the log at once; a transaction only
decides whether they count.

`MemoryState` has the lock, under which everything here runs, and the transactions. The
functions below the writer are also the simulated Kafka's (`tests/simulation/kafka`) and
`MemoryLog.check`'s: they change nothing but the turn of records without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from coopstreams.log.log import GroupFence
from coopstreams.log.memory.state import MemoryState, Topic
from coopstreams.log.memory.transactions import Offsets, ProducerSession
from coopstreams.topology.columns import Headers, Int64s, TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION
from coopstreams.topology.errors import DeliveryError, LogError, RefusedError
from coopstreams.topology.keys import partition_of

MOST_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""


class MemoryWriter:
    """A `Writer` to a `MemoryLog`. One thread."""

    def __init__(self, state: MemoryState, transactional_id: str | None) -> None:
        self._state = state
        self._id = transactional_id
        self._session: ProducerSession | None = None
        self._open = False
        self._closed = False
        self._delivered: dict[TopicPartition, int] = {}
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
        """Append these records, in order."""
        with self._state.changed:
            session = self._ready()
            stored = self._state.topics.get(topic)
            if stored is None:
                raise DeliveryError(
                    f'topic "{topic}" does not exist in the in-memory log. Create it first, or correct the name.'
                )
            check_records(stored, keys, values)
            if partitions is None and len(stored.partitions) == 1:
                partitions = 0  # whatever the keys are: they need no hash
            if isinstance(partitions, int):
                self._add(
                    stored,
                    partitions,
                    keys,
                    values,
                    timestamps,
                    headers,
                    session,
                )
            else:
                for partition, rows in by_partition(
                    choose_partitions(stored, keys, partitions)
                ).items():
                    self._add(
                        stored,
                        partition,
                        [keys[i] for i in rows],
                        [values[i] for i in rows],
                        [timestamps[i] for i in rows],
                        None if headers is None else [headers[i] for i in rows],
                        session,
                    )
            self._state.changed.notify_all()

    def flush(self, timeout_s: float) -> None:  # noqa: ARG002
        """Do nothing: all records are in the log."""
        with self._state.changed:
            if self._session is not None:
                self._state.check(self._session)

    def delivered_to(self, partition: TopicPartition) -> int:
        """Return the offset after this writer's last record in a partition; 0 if it has
        none.
        """
        return self._delivered.get(partition, 0)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._state.changed:
            if self._id is None:
                raise LogError(
                    "this writer has no transactional id; make it with log.writer(transactional_id)"
                )
            if self._open:
                raise LogError(
                    "a transaction is open already; commit or abort it first"
                )
            self._state.begin(self._session or self._take_over(self._id))
            self._open = True

    def send_offsets(self, offsets: Offsets, fence: GroupFence) -> None:
        """Add group offsets to the transaction, if the fence is not stale."""
        with self._state.changed:
            session = self._ready()
            if session is None:
                raise LogError("offsets are sent in a transaction; begin one first")
            self._state.send_offsets(offsets, fence, session)

    def commit(self, timeout_s: float) -> None:  # noqa: ARG002
        """Commit the transaction: everything in it counts."""
        self._end(commit=True)

    def abort(self) -> None:
        """Abort the transaction: nothing of it counts. A fenced writer takes over its
        id again with its next transaction.
        """
        with self._state.changed:
            if self._session is not None and self._session.is_fenced:
                self._session = None
                self._open = False
            elif self._open:
                self._end(commit=False)

    def close(self) -> None:
        """Abort an open transaction."""
        if not self._closed:
            self.abort()
            self._closed = True

    def _end(self, *, commit: bool) -> None:
        with self._state.changed:
            session = self._ready()
            if session is None:
                raise LogError("there is no transaction to end; begin one first")
            self._state.end(session, commit=commit)
            self._open = False

    def _take_over(self, transactional_id: str) -> ProducerSession:
        """Take over the transactional id; return the new session."""
        with self._state.changed:
            self._session = self._state.take_over(transactional_id)
            return self._session

    def _ready(self) -> ProducerSession | None:
        """Return the session of the open transaction; None: this writer has no
        transactions.
        """
        if self._closed:
            raise LogError("this writer is closed")
        if self._session is not None:
            self._state.check(self._session)
        if self._id is not None and not self._open:
            raise LogError(
                "a transactional writer writes inside transactions only; begin one first"
            )
        return self._session

    def _add(
        self,
        stored: Topic,
        partition: int,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        headers: Sequence[Headers | None] | None,
        session: ProducerSession | None,
    ) -> None:
        if not 0 <= partition < len(stored.partitions):
            raise DeliveryError(
                f'topic "{stored.spec.name}" has {len(stored.partitions)} partitions, there is no partition {partition}'
            )
        target = stored.partitions[partition]
        end = self._state.append(target, keys, values, timestamps, headers, session)
        if keys:
            self._delivered[target.where] = end


def check_records(
    stored: Topic,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
) -> None:
    """Check that Kafka would take these records.

    Raises:
        RefusedError: a value is too large, or a key is missing in a compacted topic.
    """
    config = stored.spec.config
    name = stored.spec.name
    most = int(config.get("max.message.bytes", MOST_BYTES))
    largest = max([len(value) for value in values if value], default=0)
    if largest > most:
        raise RefusedError(
            f'a value of {largest} bytes is too large for topic "{name}": its max.message.bytes is {most}'
        )
    if None in keys and "compact" in config.get("cleanup.policy", ""):
        raise RefusedError(
            f'a record without a key cannot be written to the compacted topic "{name}"'
        )


def choose_partitions(
    stored: Topic,
    keys: Sequence[bytes | None],
    given: Int64s | None,
) -> list[int]:
    """Return the partition of each record: the given one, that of its key, or any if it
    has no key.
    """
    count = len(stored.partitions)
    chosen = []
    for key, partition in zip(
        keys,
        repeat(ANY_PARTITION) if given is None else given,
        strict=False,
    ):
        if partition != ANY_PARTITION:
            chosen.append(partition)
        elif key is None:
            chosen.append(stored.next_keyless % count)
            stored.next_keyless += 1
        else:
            chosen.append(partition_of(key, count))
    return chosen


def by_partition(chosen: Int64s) -> dict[int, list[int]]:
    """Return the indexes of the records of each partition, in order."""
    indexes: dict[int, list[int]] = {}
    for i, partition in enumerate(chosen):
        indexes.setdefault(partition, []).append(i)
    return indexes
