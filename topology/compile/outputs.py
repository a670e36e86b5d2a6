"""Holds the output records of a program as columns until the task appends them to the
log.

Invariant: a record is a row of the columns; the columns of one topic are one `Output`.
Relies on: `program` (fills them), `tasks.committer` (appends and clears).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coopstreams.topology.columns import Headers
from coopstreams.topology.compile.births import with_births

ANY_PARTITION = -1
"""The value in a partitions column that leaves the choice of the partition to the
key.
"""


class Output:
    """The records that a program has written to one topic since `clear`, as columns in
    the order of forwarding.

    Shape: the lists are never replaced, because compiled code holds their `append`.
    """

    __slots__ = (
        "_headers",
        "_partitions",
        "births",
        "keys",
        "timestamps",
        "topic",
        "values",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.births: list[int] = []
        """The births of all records if the topic is timed, else empty."""
        self._headers: list[
            Headers | None
        ] = []  # may be shorter than the others: later records have none
        self._partitions: list[
            int
        ] = []  # may be shorter, too: the keys decide for later records

    def __len__(self) -> int:
        return len(self.keys)

    def append_to(self, append: Callable[..., object]) -> None:
        """Append all records and their columns by a writer's `append`."""
        append(
            self.topic,
            self.keys,
            self.values,
            self.timestamps,
            partitions=self.partitions,
            headers=with_births(self.headers, self.births, self.timestamps),
        )

    @property
    def headers(self) -> list[Headers | None] | None:
        """The headers column, or None if no record has headers."""
        if not any(self._headers):
            return None
        self.give_headers(None)
        return self._headers

    def give_headers(self, headers: Headers | None) -> None:
        """Set the headers of the records that were written since the last call."""
        missing = len(self.keys) - len(self._headers)
        if missing:
            self._headers += [headers] * missing

    @property
    def partitions(self) -> list[int] | None:
        """The partitions column, or None if the keys decide for all records. Where the
        key of one record decides, the entry is `ANY_PARTITION`.
        """
        if not self._partitions:
            return None
        self._choose_none_before(len(self.keys))
        return self._partitions

    def choose(self, partition: int) -> None:
        """Set the partition of the record that was written last."""
        self._choose_none_before(len(self.keys) - 1)
        self._partitions.append(partition)

    def _choose_none_before(self, row: int) -> None:
        self._partitions += [ANY_PARTITION] * (row - len(self._partitions))

    def keep(self, rows: Sequence[int]) -> None:
        """Remove all records except those at these indexes, which must ascend."""
        self.give_headers(None)
        self._choose_none_before(len(self.keys))
        columns: tuple[list[Any], ...] = (
            self.keys,
            self.values,
            self.timestamps,
            self._headers,
            self._partitions,
            *([self.births] if self.births else []),
        )
        for column in columns:
            column[:] = [column[row] for row in rows]

    def clear(self) -> None:
        """Remove all records. Call it after they were appended to the log."""
        self.keys.clear()
        self.values.clear()
        self.timestamps.clear()
        self.births.clear()
        self._headers.clear()
        self._partitions.clear()
