"""The rows of a global table on one instance: all of them, in memory, made from its topic at each start.

One thread applies what comes from the topic; the threads of tasks look up. A look-up is one read of a dictionary, and a
row that changes is a new entry, never a changed one, so nobody sees half a row and nobody waits.

Turned down: RocksDB (a table that every instance keeps whole is small, or it should not be global).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import StateError
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.stores import Entry, StoreSpec

_ABSENT = Entry(None, -1, None)


class GlobalRows:
    """A `TableStore` that operators may only look into."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.siblings: dict[str, Any] = {}
        self.guard: AbstractContextManager[Any] = Lock()
        self.entries: dict[bytes, Entry] = {}

    def apply(self, source: TopicPartition, columns: Columns, on_failure: OnFailure) -> None:
        """Take in records of the topic: the latest of a key is its row, one without a value deletes it, one without a
        key says nothing.

        `on_failure` is asked what becomes of a value that is not of the table's serde; if it returns, the row stays as
        it was.
        """
        read = self.spec.value.deserialize
        for i, (key, value, timestamp) in enumerate(zip(columns.keys, columns.values, columns.timestamps, strict=True)):
            if key is not None and value is None:
                self.entries.pop(key, None)
            elif key is not None and value is not None:
                try:
                    self.entries[key] = Entry(read(value), timestamp, value)
                except Exception as error:  # noqa: BLE001 whatever a serde raises, the handler decides
                    headers = None if columns.headers is None else columns.headers[i]
                    offset = columns.offsets[i]
                    on_failure(
                        Failure(
                            "deserialization", self.spec.name, error, source, offset, key, value, timestamp, headers
                        )
                    )

    def close(self) -> None:
        """Nothing more will be applied."""

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key; one with value None if there is none."""
        return self.entries.get(key, _ABSENT)

    def touch(self, key: bytes, entry: Entry) -> None:
        """Refuse: only the topic changes a global table.

        Raises:
            StateError: always.
        """
        raise StateError(
            f'global table "{self.spec.name}": only its topic changes it, not an operator (key {key!r}, value '
            f"{entry.value!r})"
        )

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return nothing: what is in the topic is never news."""
        return []

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries with start <= key < end in key order, as they are now."""
        rows = sorted(dict(self.entries).items(), key=lambda row: row[0])
        return iter(
            [(key, entry) for key, entry in rows if (start is None or key >= start) and (end is None or key < end)]
        )

    def advance(self, stream_time: int) -> None:
        """Do nothing: a global table has no part in stream time."""
