"""The rows of a global store that a user's processor maintains.

At each start, every instance gives the processor all records of the topic.

The processor works on drafts of rows, which only it sees. The changes of a record are
published when the processor has finished it, and dropped when it fails: so look-ups
from the threads of tasks never see rows of a failed record.

Relies on: `global_table` (who reads the rows), `compile/task_processor.py`: `Work` runs
the processor, and `_Around` is its `Surroundings`.

Invariant: the rows are the processor's result for the topic from its beginning. Every
restore runs the processor, so it may compute. Turned down: restoring the topic's
records without the processor, as Kafka Streams did before KAFKA-7663 (the rows after a
restart would differ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from coopstreams.state.global_table import GlobalRows
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.punctuations import PunctuationQueue
from coopstreams.topology.compile.task_processor import Work
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.failures import Failure, OnFailure, Phase
from coopstreams.topology.graph.nodes import (
    Function,
    GlobalTable,
    GlobalUpdate,
    Processing,
    Source,
)
from coopstreams.topology.processors import PunctuationType, RecordMetadata
from coopstreams.topology.stores import Entry


def rows_of(
    table: GlobalTable,
    clock: Callable[[], int],
    extractor: Function | None,
) -> GlobalRows:
    """Return the rows of a global table, empty so far.

    `clock`: the wall clock of its processor, in milliseconds. `extractor`: the function
    that returns timestamps; None: records keep Kafka's timestamps, and a negative one
    is a failure.
    """
    read = table.update or table.store
    source = Source(
        name=read.name,
        topics=(table.topic,),
        key=read.key,
        value=read.value,
        timestamp=extractor,
    )
    return (
        GlobalRows(table.store, source)
        if table.update is None
        else UpdatedRows(table, table.update, clock, source)
    )


class UpdatedRows(GlobalRows):
    """The rows of a global store that a processor maintains."""

    def __init__(
        self,
        table: GlobalTable,
        update: GlobalUpdate,
        clock: Callable[[], int],
        source: Source,
    ) -> None:
        super().__init__(table.store, source)
        self._update = update
        self._drafts = _Drafts(self)
        self._around = _Around(update.name, clock)
        node = Processing(
            name=update.name,
            supplier=update.supplier,
            stores=(),
            store_names=(self.spec.name,),
            key=None,
            fixed_key=False,
            by_key=False,
        )
        self._work = Work(
            node,
            {self.spec.name: self._drafts},
            self._around,
            self._around.nothing_below,
            {},
        )
        self._work.begin()

    def apply(
        self,
        source: TopicPartition,
        columns: Columns,
        on_failure: OnFailure,
    ) -> None:
        """Give the records to the processor, one after the other.

        If a record cannot be deserialised, has a negative timestamp, or the processor
        raises, `on_failure` decides; if it returns, the rows stay as they were before
        that record.
        """
        columns = self._timed(source, columns, on_failure)
        read_key = self._update.key.deserialize
        read_value = self._update.value.deserialize
        for i, (key, value, timestamp, offset) in enumerate(
            zip(
                columns.keys,
                columns.values,
                columns.timestamps,
                columns.offsets,
                strict=True,
            )
        ):
            headers = None if columns.headers is None else columns.headers[i]
            self._around.take(
                RecordMetadata(source.topic, source.partition, offset),
                timestamp,
                headers,
            )
            phase: Phase = "deserialization"
            try:
                record = (
                    None if key is None else read_key(key),
                    None if value is None else read_value(value),
                )
                phase = "processing"
                self._work.run(key, *record, timestamp)
                self._drafts.publish()
            except Exception as error:  # noqa: BLE001 whatever a serde or a function raises, the handler decides
                self._drafts.forget()
                on_failure(
                    Failure(
                        phase,
                        self._update.name,
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
        """Close the processor."""
        self._work.close()


class _Drafts(GlobalRows):
    """The rows as the processor sees them: with its changes that are not published yet."""

    def __init__(self, rows: GlobalRows) -> None:
        super().__init__(rows.spec)
        self._rows = rows
        self._changed: dict[bytes, Entry] = {}

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key, which the processor may change."""
        return self._changed.get(key) or self._copy(self._rows.load(key))

    def touch(self, key: bytes, entry: Entry) -> None:
        """Keep a changed entry until it is published."""
        entry.dirty = True
        self._changed[key] = entry

    def scan(
        self,
        start: bytes | None,
        end: bytes | None,
    ) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries with start <= key < end in key order."""
        rows = {key: self._copy(entry) for key, entry in self._rows.scan(start, end)}
        rows |= {
            key: entry
            for key, entry in self._changed.items()
            if (start is None or key >= start) and (end is None or key < end)
        }
        return iter(
            [
                (key, entry)
                for key, entry in sorted(rows.items())
                if entry.value is not None
            ]
        )

    def publish(self) -> None:
        """Publish the changes; publish none of them if a value cannot be serialised."""
        write = self.spec.value.serialize
        rows = [
            (
                key,
                None
                if entry.value is None
                else Entry(entry.value, entry.timestamp, write(entry.value)),
            )
            for key, entry in self._changed.items()
        ]
        for key, row in rows:
            if row is None:
                self._rows.entries.pop(key, None)
            else:
                self._rows.entries[key] = row
        self.forget()

    def forget(self) -> None:
        """Drop the changes that are not published."""
        self._changed.clear()

    def _copy(self, entry: Entry) -> Entry:
        """Return a copy of an entry: the processor may change its value in place, and
        then fail.
        """
        value = (
            None if entry.stored is None else self.spec.value.deserialize(entry.stored)
        )
        return Entry(value, entry.timestamp, entry.stored)


class _Around:
    """The context of the processor: the current record, and the time."""

    ending: BaseException | None = None

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        self._name = name
        self.wall_clock = clock
        self.headers: Headers | None = None
        self._at: RecordMetadata | None = None
        self._stream_time = -1

    def take(
        self,
        at: RecordMetadata,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        """Set the current record."""
        self._at = at
        self._stream_time = max(timestamp, self._stream_time)
        self.headers = headers

    @property
    def punctuations(self) -> Mapping[PunctuationType, PunctuationQueue]:
        """Raise an error: only records call the processor, so a punctuation would never
        run.
        """
        raise TopologyError(
            f'"{self._name}" keeps a global store: it cannot schedule(), only records call it'
        )

    def nothing_below(self, *_: Any) -> NoReturn:
        """Raise an error: there are no nodes below the processor to forward to."""
        raise TopologyError(
            f'"{self._name}" keeps a global store: it cannot forward(), nothing comes after it'
        )

    def where(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the current record; None before the
        first.
        """
        return self._at

    def pass_on(self, headers: Headers | None, call: Callable[[], object]) -> None:  # noqa: ARG002 nothing is written
        """Call the function. Its records' headers are not needed: nothing is written."""
        call()

    def fail_punctuation(
        self,
        node: str,  # noqa: ARG002 no failure handler exists here
        error: Exception,
        now_ms: int,  # noqa: ARG002 likewise
    ) -> None:
        """Raise the error: no failure handler exists here."""
        raise error

    def task_time(self) -> int:
        """Return the largest timestamp (ms) of the records that were applied; -1 before
        the first.
        """
        return self._stream_time
