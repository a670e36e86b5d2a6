"""The rows of a global table on one instance: all of them, in memory, read from its
topic at each start.

One thread applies the records of the topic; the threads of tasks look up rows. A
look-up is one read of a dictionary. A changed row is a new entry, never a mutated one,
so that readers need no lock and never see half a row.

Relies on: `global_updates` (makes rows of records), `opening.globals` (feeds it).
Turned down: RocksDB (a table that every instance keeps whole is small, or it should not
be global).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate
from threading import Lock
from typing import Any

from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.timestamps import timestamp_column, valid
from coopstreams.topology.errors import StateError
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.stores import Entry, StoreSpec

_ABSENT = Entry(None, -1, None)


class GlobalRows:
    """The rows of a global table: a `TableStore` that operators may only read."""

    def __init__(self, spec: StoreSpec, source: Source | None = None) -> None:
        """Begin without rows.

        `source`: the topic's serdes and timestamp extractor. Default: the serdes of the
        store, and no extractor.
        """
        self.spec = spec
        self.dropped: Counter[tuple[str, str]] = Counter()
        """The number of records dropped for their timestamp, by node and reason."""
        self._source = source or Source(
            name=spec.name,
            topics=(),
            key=spec.key,
            value=spec.value,
        )
        self._extract = (
            None if self._source.timestamp is None else timestamp_column(self._source)
        )
        self._times: dict[TopicPartition, int] = {}
        """The stream time of each partition, for the extractor."""
        self.siblings: dict[str, Any] = {}
        self.guard: AbstractContextManager[Any] = Lock()
        self.entries: dict[bytes, Entry] = {}

    def apply(
        self,
        source: TopicPartition,
        columns: Columns,
        on_failure: OnFailure,
    ) -> None:
        """Apply records of the topic: the latest of a key is its row, and a tombstone
        deletes it. Ignore null keys.

        A value that is deserialised to None, such as JSON's `null`, deletes the row as
        well, as in other tables.

        If a value cannot be deserialised, or a timestamp is negative, `on_failure`
        decides; if it returns, the row stays unchanged.
        """
        columns = self._timed(source, columns, on_failure)
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

    def _timed(
        self,
        source: TopicPartition,
        columns: Columns,
        on_failure: OnFailure,
    ) -> Columns:
        """Return the records with a valid timestamp. A timestamp extractor, if there is
        one, replaces the timestamps.
        """
        if self._extract is not None:
            before = self._times.get(source, -1)
            timestamps = self._extract(source, columns, before)
            times = list(accumulate(timestamps, max, initial=before))
            self._times[source] = times[-1]
            columns = replace(columns, timestamps=timestamps, stream_times=times[1:])
        if not len(columns) or columns.earliest >= 0:
            return columns
        rows = valid(self._source, source, columns, on_failure, self.dropped)
        return columns.pick(rows)

    def close(self) -> None:
        """Do nothing: only `UpdatedRows` has a processor to close."""

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key; its value is None if the table does not have the
        key.
        """
        return self.entries.get(key, _ABSENT)

    def touch(self, key: bytes, entry: Entry) -> None:
        """Raise a StateError: only the topic changes a global table."""
        raise StateError(
            f'global table "{self.spec.name}": only its topic changes it, not an operator (key {key!r}, value '
            f"{entry.value!r})"
        )

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return no entries: rows from the topic are never dirty."""
        return []

    def scan(
        self,
        start: bytes | None,
        end: bytes | None,
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
