"""The records of the commit topic above the committed tail, decided or not: they show
whether an open transaction hides records of this group.

A reader of committed records stops at the first open transaction of its partition,
whichever group has written it. A second reader, of all records, reads from that tail up
to the barrier. If it finds no record of this group, readable or not, the barrier is
passed although the tail is below it.

Invariant: what `look` returns has been read without a gap from the tail on.
Why that is safe: docs/internals/positions.md, "Another group's open transaction".
Relies on: `follower` (the tail, the barrier, and what it makes of the answer).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from coopstreams.commit.record import (
    decode_key,
    decode_value,
    encode_text,
    group_of,
)
from coopstreams.log.log import Log, Position, Reader
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError

_BATCH = 2000
NAMED = 3
"""The most writers that a message names."""


class Writer(NamedTuple):
    """A writer of commit records: its group and its transactional id. Each is empty if
    the record does not have it.
    """

    group: str
    id: str

    def __str__(self) -> str:
        if not self.group:
            return "a program that is not coopstreams"
        return (
            f'"{self.id}" of group "{self.group}"'
            if self.id
            else f'group "{self.group}"'
        )


class AboveTail:
    """A reader of the group's partition above the committed tail. Belongs to one
    thread; `writers` is thread-safe.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        partition: TopicPartition,
    ) -> None:
        self._log = log
        self._partition = partition
        self._prefix = encode_text(group)
        self._reader: Reader | None = None
        self._at = 0
        self._own: deque[int] = deque()
        """The offsets of this group's records, ascending."""
        self._writers: deque[tuple[int, Writer]] = deque()
        """The writers of records, ascending by offset. Of consecutive records by one
        writer only the last offset is kept.
        """

    def look(self, tail: int, barrier: int) -> int:
        """Read from the tail to the barrier, as far as records are there, without
        waiting.

        Return the offset up to which there is no record of this group from the tail on.

        Raises:
            LogError: the partition cannot be read.
        """
        if self._reader is None or self._at < tail:
            self.end()
            self._reader = self._log.reader(committed_only=False)
            self._reader.assign({self._partition: Position(tail)})
            self._at = tail
        if self._at < barrier:
            for batch in self._reader.fetch(_BATCH, 0.0):
                columns = batch.columns
                for key, value, offset in zip(
                    columns.keys,
                    columns.values,
                    columns.offsets,
                    strict=True,
                ):
                    self._take(key, value, offset)
                self._at = max(self._at, batch.next_offset)
        while self._own and self._own[0] < tail:
            self._own.popleft()
        while self._writers and self._writers[0][0] < tail:
            self._writers.popleft()
        return self._own[0] if self._own else self._at

    def end(self) -> None:
        """Stop reading, and drop what was read. Idempotent."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._own.clear()
        self._writers.clear()

    @property
    def writers(self) -> list[Writer]:
        """The writers of the records above the tail, each once, in the order of their
        records.

        The first writer has the open transaction, because the tail is where it begins.
        """
        # `copy` is one step, in which the thread that looks cannot change the deque.
        return list(dict.fromkeys(writer for _, writer in self._writers.copy()))

    def _take(
        self,
        key: bytes | None,
        value: bytes | None,
        offset: int,
    ) -> None:
        """Note a record: whether it is of this group, and who wrote it."""
        if key is not None and key.startswith(self._prefix, 1):
            self._own.append(offset)
        writer = _writer(key, value)
        if self._writers and self._writers[-1][1] == writer:
            self._writers.pop()
        self._writers.append((offset, writer))


def _writer(key: bytes | None, value: bytes | None) -> Writer:
    """Return the writer of a record, as far as the record names it."""
    group = group_of(key) if key is not None else ""
    if not group or key is None or value is None:
        return Writer(group, "")
    try:
        told = decode_value(value, decode_key(key).key_range)
    except LogError:  # a newer version wrote it, or it is damaged
        return Writer(group, "")
    return Writer(group, told.transactional_id)
