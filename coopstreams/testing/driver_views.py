"""A test's view of a topology: its input topics, output topics and stores.

Relies on: `driver` (processes what is sent before anything is read).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import (
    Any,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
)

from coopstreams.state.layout import after, prefix_end
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.kept_headers import Headed
from coopstreams.topology.keys import KeyRange, key_hash, partition_of
from coopstreams.topology.records import Record
from coopstreams.topology.row_versions import latest_value, version_at
from coopstreams.topology.serdes import Serde, Windowed, windowed_ms
from coopstreams.topology.stores import (
    Entry,
    StoreSpec,
    TableStore,
    check_range,
    window_key,
)

K = TypeVar("K")
V = TypeVar("V")

Sent: TypeAlias = (
    tuple[K | None, V | None]
    | tuple[K | None, V | None, int | None]
    | tuple[K | None, V | None, int | None, Headers | None]
)
"""A record to send: its key and value, optionally its timestamp, optionally its
headers.
"""

MAX_START_MS = (1 << 63) - 2


@dataclass(frozen=True, slots=True)
class OutputRecord(Generic[K, V]):
    """A record that the topology wrote. Null keys and values are None."""

    topic: str
    key: K
    value: V
    timestamp: int
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    """The partition that a `partitioner=` chose; None: the key decides."""


@dataclass(frozen=True, slots=True)
class Row(Generic[K, V]):
    """A row of a store. The key of a window store is `serdes.Windowed`."""

    key: K
    value: V
    timestamp: int
    headers: Headers | None = None
    """The headers of the record that wrote the row; None: the store keeps none."""


class Send(Protocol):
    """A function that writes a record to a topic and processes it to its end."""

    def __call__(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: int | None,
        headers: Headers | None,
        at: int | None,
    ) -> None:
        """Send one record. `timestamp` None: the driver's clock. `at`: the partition;
        None: that of the key.
        """


class InputTopic(Generic[K, V]):
    """A topic to send records to. Made by `TopologyTestDriver.input`."""

    def __init__(
        self,
        send: Send,
        topic: str,
        key: Serde[K],
        value: Serde[V],
    ) -> None:
        self._send = send
        self._topic = topic
        self._key = key
        self._value = value

    def send(
        self,
        key: K | None,
        value: V | None,
        timestamp: int | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Send a record and process it to its end.

        `timestamp`: by default the driver's clock. `partition`: by default that of the
        key, as Java's producer chooses.

        Raises:
            ProcessingError: processing failed, and the handler says `fail`.
            TopologyError: the timestamp is no whole number.
        """
        if timestamp is not None and not isinstance(timestamp, int):
            raise TopologyError(
                f"send: the timestamp is {timestamp!r}; give milliseconds since the epoch, a whole number such as "
                "round(time.time() * 1000)"
            )
        key_bytes = None if key is None else self._key.serialize(key)
        value_bytes = None if value is None else self._value.serialize(value)
        self._send(
            self._topic,
            key_bytes,
            value_bytes,
            timestamp=timestamp,
            headers=headers,
            at=partition,
        )

    def send_all(
        self,
        records: Iterable[Record[K | None, V | None] | Sent[K, V]],
        *,
        partition: int | None = None,
    ) -> None:
        """Send records in order. Each is processed to its end before the next is taken.

        Shape: a record is a `Record`, or a tuple of the first arguments of `send`, such
        as `(key, value)` or `(key, value, timestamp)`.

        Raises:
            The errors of `send`. Records after the one that fails are not sent.
            TopologyError: an element is neither a tuple of this form nor a `Record`.
        """
        for number, record in enumerate(records):
            if isinstance(record, tuple) and 2 <= len(record) <= 4:
                self.send(*record, partition=partition)  # pyright: ignore[reportArgumentType]
            elif isinstance(record, Record):
                self.send(
                    record.key,
                    record.value,
                    record.timestamp,
                    record.headers,
                    partition=partition,
                )
            else:
                raise TopologyError(
                    f"send_all: record {number} is {record!r}; give (key, value), (key, value, timestamp), "
                    "(key, value, timestamp, headers) or a Record"
                )


class OutputTopic(Generic[K, V]):
    """A topic to read results from. Made by `TopologyTestDriver.output`."""

    def __init__(self, records: Callable[[int], list[OutputRecord[K, V]]]) -> None:
        """Begin at the first record.

        `records`: returns the records of the topic from a given index on.
        """
        self._records = records
        self._read = 0

    def records(self) -> list[OutputRecord[K, V]]:
        """Return all records so far, in the order in which they were forwarded."""
        return self._records(0)

    def read(self) -> list[OutputRecord[K, V]]:
        """Return the records since the last `read`."""
        records = self._records(self._read)
        self._read += len(records)
        return records

    def latest(self) -> dict[K, V]:
        """Return the latest value of each key, as a table. Keys whose latest value is
        null are left out.

        Raises:
            TopologyError: a key is not hashable, so it cannot be in a dict.
        """
        table: dict[K, V] = {}
        for record in self.records():
            try:
                hash(record.key)
            except TypeError as error:
                raise TopologyError(
                    f"latest: {error}, so the key {record.key!r} cannot be in a dict: make its class a "
                    "@dataclass(frozen=True) or a NamedTuple, or look at records()"
                ) from error
            table.pop(record.key, None)
            if record.value is not None:
                table[record.key] = record.value
        return table


class StoreView:
    """The rows of a store, over all partitions and key ranges. Made by
    `TopologyTestDriver.store`.
    """

    def __init__(
        self,
        spec: StoreSpec,
        partitions: list[list[tuple[KeyRange, TableStore]]],
        past: StoreView | None = None,
    ) -> None:
        """Make a view over the stores of all tasks. `partitions`: for each partition,
        the key ranges of its tasks and their stores. `past`: the store with the ended
        versions of the rows, for a versioned table.
        """
        self._spec = spec
        self._partitions = partitions
        self._past = past

    def get(self, key: Any) -> Any:
        """Return the value of a key; None: the key has none. The key of a window store
        is a `serdes.Windowed`.
        """
        row = self.row(key)
        return None if row is None else row.value

    def row(self, key: Any) -> Row[Any, Any] | None:
        """Return the row of a key with its timestamp; None: the key has none."""
        data = self._spec.key.serialize(key.key if isinstance(key, Windowed) else key)
        entry = self._table(data).load(self._row_key.serialize(key))
        if self._spec.history_ms is not None:
            return (
                None
                if latest_value(entry.value) is None
                else Row(key, latest_value(entry.value), entry.timestamp)
            )
        return None if entry.value is None else self._row(key, entry)

    def as_of(self, key: Any, timestamp: int) -> Row[Any, Any] | None:
        """Return the version of a row of a versioned table that was valid at
        `timestamp`; None: there was none.

        The timestamp of the result is the time from which the version is valid.
        """
        assert self._past is not None, "only a table with history= keeps versions"
        data = self._spec.key.serialize(key)
        newest = max(
            (
                entry.timestamp
                for siblings in self._partitions
                for _, table in siblings
                for _, entry in table.scan(None, None)
            ),
            default=0,
        )
        past: Any = self._past._table(data)
        oldest = newest - (self._spec.history_ms or 0)
        found = version_at(
            self._table(data).load(data).value,
            past,
            data,
            timestamp,
            oldest,
        )
        return None if found is None else Row(key, found[1], found[0])

    def fetch(
        self,
        key: Any,
        start_ms: int = 0,
        end_ms: int = MAX_START_MS,
        *,
        reverse: bool = False,
    ) -> list[Row[Any, Any]]:
        """Return the windows of a key that start within start_ms..end_ms, both
        inclusive, ordered by start.
        """
        assert self._spec.kind in ("window", "session"), (
            f"{self._spec.name} has no windows: use get"
        )
        data = self._spec.key.serialize(key)
        if self._spec.kind == "session":
            return self._sessions(data, start_ms, end_ms, reverse=reverse)
        found = self._table(data).scan(
            window_key(data, start_ms),
            window_key(data, end_ms + 1),
        )
        # Windows of longer keys with the same prefix may lie in between.
        rows = [
            self._row(self._key(row), entry)
            for row, entry in found
            if len(row) == len(data) + 8
        ]
        return rows[::-1] if reverse else rows

    def fetch_all(
        self,
        start_ms: int = 0,
        end_ms: int = MAX_START_MS,
    ) -> list[Row[Any, Any]]:
        """Return the windows of all keys that start within start_ms..end_ms, both
        inclusive.

        They come in the order of the serialised keys.
        """
        return [row for row in self.all() if start_ms <= row.key.start_ms <= end_ms]

    def all(self) -> list[Row[Any, Any]]:
        """Return all rows, in the order of the serialised keys."""
        return self._scan(None, None)

    def range(
        self,
        first: Any = None,
        last: Any = None,
        *,
        reverse: bool = False,
    ) -> list[Row[Any, Any]]:
        """Return the rows first..last, in the order of the serialised keys.

        Shape: both bounds are inclusive; None: no bound.

        Raises:
            ValueError: first comes after last in that order, as -2 does after 2 in
                `serdes.int64`. Exchange them, or read `all` and compare the keys.
        """
        start = None if first is None else self._spec.key.serialize(first)
        end = None if last is None else self._spec.key.serialize(last)
        check_range(start, end, repr(first), repr(last))
        rows = self._scan(start, None if end is None else after(end))
        return rows[::-1] if reverse else rows

    def prefix(self, prefix: bytes) -> list[Row[Any, Any]]:
        """Return the rows whose serialised keys begin with these bytes, in the order of
        the serialised keys.
        """
        return self._scan(prefix, prefix_end(prefix))

    def _scan(self, start: bytes | None, end: bytes | None) -> list[Row[Any, Any]]:
        found = [
            row
            for siblings in self._partitions
            for _, table in siblings
            for row in table.scan(start, end)
        ]
        found.sort(key=lambda row: row[0])
        if self._spec.history_ms is not None:
            latest = [
                (key, latest_value(entry.value), entry.timestamp)
                for key, entry in found
            ]
            return [
                Row(self._key(key), value, timestamp)
                for key, value, timestamp in latest
                if value is not None
            ]
        return [self._row(self._key(key), entry) for key, entry in found]

    def _sessions(
        self,
        data: bytes,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool,
    ) -> list[Row[Any, Any]]:
        """Return the sessions of a key that end at `earliest_end` or later and start at
        `latest_start` or earlier, by their ends.
        """
        found = [
            (row, entry)
            for row, entry in self._table(data).scan(data, None)
            if len(row) == len(data) + 16 and row.startswith(data)
        ]
        rows = [self._row(self._key(row), entry) for row, entry in found]
        rows = [
            row
            for row in rows
            if row.key.end_ms >= earliest_end and row.key.start_ms <= latest_start
        ]
        return rows[::-1] if reverse else rows

    @property
    def _row_key(self) -> Serde[Any]:
        """The serde of the keys of the stored rows."""
        if self._spec.row_key is None and self._spec.window_ms is not None:
            return windowed_ms(self._spec.key, self._spec.window_ms)
        return self._spec.row_key or self._spec.key

    def _key(self, data: bytes) -> Any:
        return self._row_key.deserialize(data)

    def _row(self, key: Any, entry: Entry) -> Row[Any, Any]:
        """Return the row of an entry, with the value that queries show."""
        if isinstance(entry.value, Headed):
            return Row(key, entry.value.value, entry.timestamp, entry.value.headers)
        shown = self._spec.value.shown
        value = entry.value if shown is None else shown(entry.value)
        return Row(key, value, entry.timestamp)

    def _table(self, key: bytes) -> TableStore:
        hash_ = key_hash(key)
        siblings = self._partitions[partition_of(key, len(self._partitions))]
        return next(table for key_range, table in siblings if hash_ in key_range)


def view_of(
    spec: StoreSpec,
    partitions: Sequence[Sequence[tuple[KeyRange, Mapping[str, TableStore]]]],
) -> StoreView:
    """Return the view of a store. `partitions`: for each partition, the key ranges of
    its tasks with their stores.
    """
    tables = [
        [(key_range, stores[spec.name]) for key_range, stores in siblings]
        for siblings in partitions
    ]
    return StoreView(
        spec,
        tables,
        None if spec.past is None else view_of(spec.past, partitions),
    )
