"""The rows of a global table on one instance: all of them, in memory, read from its topic at each start.

One thread applies the records of the topic; the threads of tasks look up rows. A look-up is one read of a dictionary. A
changed row is a new entry, never a mutated one, so that readers need no lock and never see half a row.

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
    """A `TableStore` that operators may only look up."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.siblings: dict[str, Any] = {}
        self.guard: AbstractContextManager[Any] = Lock()
        self.entries: dict[bytes, Entry] = {}

    def apply(
        self, source: TopicPartition, columns: Columns, on_failure: OnFailure
    ) -> None:
        """Apply records of the topic: the latest of a key is its row, and a tombstone deletes it. Ignores null keys.

        A value that is read as None, such as JSON's `null`, deletes the row as well, as in other tables.

        If a value cannot be deserialised, `on_failure` decides; if it returns, the row stays unchanged.
        """
        read = self.spec.value.deserialize
        check = self.spec.key.check_key
        for i, (key, value, timestamp) in enumerate(
            zip(columns.keys, columns.values, columns.timestamps, strict=True)
        ):
            if key is not None and value is None:
                self.entries.pop(key, None)
            elif key is not None and value is not None:
                try:
                    if check is not None:
                        check(key)
                    if (row := read(value)) is None:
                        self.entries.pop(key, None)
                    else:
                        self.entries[key] = Entry(row, timestamp, value)
                except Exception as error:  # noqa: BLE001 whatever a serde raises, the handler decides
                    headers = None if columns.headers is None else columns.headers[i]
                    offset = columns.offsets[i]
                    on_failure(
                        Failure(
                            "deserialization",
                            self.spec.name,
                            error,
                            source,
                            offset,
                            key,
                            value,
                            timestamp,
                            headers,
                        )
                    )

    def close(self) -> None:
        """End the updates."""

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
        """Return no entries: rows from the topic are never dirty."""
        return []

    def scan(
        self, start: bytes | None, end: bytes | None
    ) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries with start <= key < end in key order, as they are now."""
        rows = sorted(dict(self.entries).items(), key=lambda row: row[0])
        return iter(
            [
                (key, entry)
                for key, entry in rows
                if (start is None or key >= start) and (end is None or key < end)
            ]
        )

    def advance(self, stream_time: int) -> None:
        """Do nothing: the rows of a global table do not expire."""
