"""`MemorySink`: an external sink in memory, to which test drivers apply records instead
of the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coopstreams.testing.driver_views import OutputRecord, OutputTopic
from coopstreams.topology.errors import ConfigError, FencedError
from coopstreams.topology.external_sinks import OnRefused, SinkPartition, SinkRecord
from coopstreams.topology.graph.nodes import Structure, SubTopology


@dataclass(slots=True)
class _Row:
    """A sink's progress in one partition: the offset below which every record is
    applied or refused, and the offsets of refused records. `term`: the number of the
    session that may write.
    """

    topic_id: str
    position: int
    term: int = 0
    refused: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MemorySink:
    """An external sink that appends applied records to a list.

    `records`: (partition number, record), in the order in which they were applied.
    """

    records: list[tuple[int, SinkRecord]] = field(default_factory=list)
    _rows: dict[tuple[str, str, int], _Row] = field(default_factory=dict)

    def open(self, partition: SinkPartition, begin: int | None) -> MemorySession:
        """Return a new session with a partition, which ends all earlier ones.

        `begin`: the position of a new partition.

        Raises:
            ConfigError: the partition is new and `begin` is None, or its topic id has
                changed.
        """
        name = partition.application, partition.sink, partition.number
        if begin is not None:
            self._rows.setdefault(name, _Row(partition.topic_id, begin))
        row = self._rows.get(name)
        if row is None or row.topic_id != partition.topic_id:
            raise ConfigError(
                f"{partition} is not known here, or its topic was made anew"
            )
        row.term += 1
        return MemorySession(self, partition, row)

    def refuse(self, record: SinkRecord) -> None:
        """Raise an exception if this record cannot be applied. By default every record
        can be applied.
        """


class MemorySession:
    """One owner's session with one partition of a `MemorySink`."""

    def __init__(
        self,
        sink: MemorySink,
        partition: SinkPartition,
        row: _Row,
    ) -> None:
        self._sink = sink
        self._partition = partition
        self._row = row
        self._term = row.term

    @property
    def position(self) -> int:
        """The offset below which every record is applied or refused."""
        return self._row.position

    @property
    def refused(self) -> frozenset[int]:
        """The offsets of refused records."""
        return self._row.refused

    def apply(
        self,
        records: Sequence[SinkRecord],
        position: int,
        on_refused: OnRefused,
        settled: int,
    ) -> None:
        """Apply records, and move the partition's position to `position`.

        `on_refused`: is called with each record that cannot be applied. `settled`:
        refused offsets below it are forgotten.

        Raises:
            FencedError: a later session has the partition.
        """
        if self._row.term != self._term:
            raise FencedError(f"another session has {self._partition}")
        taken = []
        refused = {offset for offset in self._row.refused if offset >= settled}
        for record in records:
            try:
                self._sink.refuse(record)
            except Exception as error:  # noqa: BLE001 the handler decides
                on_refused(record, error)
                refused.add(record.offset)
            else:
                taken.append((self._partition.number, record))
        self._sink.records += taken
        self._row.position = position
        self._row.refused = frozenset(refused)

    def close(self) -> None:
        """Do nothing: a session has no resources."""


class Sinks:
    """The memory sinks of a test driver, by name. They replace the external sinks of
    its topology.
    """

    def __init__(self, topology: Structure) -> None:
        self._application = topology.application_id
        self._sinks = {
            node.name: MemorySink()
            for part in topology.subtopologies
            if (node := part.applies_to)
        }

    @property
    def names(self) -> list[str]:
        """The names of all sinks."""
        return list(self._sinks)

    def session(self, part: SubTopology, partition: int) -> MemorySession | None:
        """Return a session for a task; None: its sub-topology has no external sink."""
        if (node := part.applies_to) is None:
            return None
        return self._sinks[node.name].open(
            SinkPartition(self._application, node.name, partition, ""),
            0,
        )

    def view(self, name: str) -> OutputTopic[Any, Any]:
        """Return a view of the records that were applied to a sink."""
        applied = self._sinks[name].records
        return OutputTopic(
            lambda first: [
                OutputRecord(
                    name,
                    each.key,
                    each.value,
                    each.timestamp,
                    list(each.headers or ()),
                    partition,
                )
                for partition, each in applied[first:]
            ]
        )
