"""The commit partition of `set_model.World` as a `Log`, so that the real follower reads
it: transactions, a last stable offset, compaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coopstreams.commit.record import PARTITIONS, VERSION, WITH_TIMES, partition_of
from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.naming import COMMIT_TOPIC

GROUP = "g"
COMMITS = TopicPartition(COMMIT_TOPIC, partition_of(GROUP, PARTITIONS))
NEWER, NEWER_VALUE = bytes([VERSION + 1]), bytes([WITH_TIMES + 1])


@dataclass(slots=True, eq=False)
class Transaction:
    first: int
    state: str = "open"
    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entry:
    key: bytes
    value: bytes | None
    transaction: Transaction | None
    newer: str = ""
    """The part written by a future version: "key" or "value"."""

    @property
    def counts(self) -> bool:
        return self.transaction is None or self.transaction.state == "committed"

    def read(self) -> tuple[bytes, bytes | None]:
        """Return the record as written; `key` and `value` encode it as that version
        does.
        """
        key = NEWER + self.key[1:] if self.newer == "key" else self.key
        return key, NEWER_VALUE + self.value[
            1:
        ] if self.newer == "value" and self.value else self.value


@dataclass(slots=True, eq=False)
class ModelLog:
    """The part of a log that a `Follower` needs. `newer`: its readers have the future
    version.
    """

    newer: bool
    entries: list[Entry | None] = field(default_factory=list)
    open: list[Transaction] = field(default_factory=list)

    def stable_end(self) -> int:
        return min(
            (transaction.first for transaction in self.open), default=len(self.entries)
        )

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        return dict.fromkeys(topics or (COMMIT_TOPIC,), PARTITIONS)

    def start_offset(self, partition: TopicPartition) -> int:
        assert partition == COMMITS
        return 0

    def end_offset(self, partition: TopicPartition) -> int:
        assert partition == COMMITS
        return len(self.entries)

    def reader(self, *, committed_only: bool = True) -> ModelReader:
        assert committed_only
        return ModelReader(self)


class ModelReader:
    """Reads the one partition, in batches that end anywhere."""

    def __init__(self, log: ModelLog) -> None:
        self._log = log
        self._at = 0

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        self._at = positions[COMMITS].offset

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        assert max_records > len(self._log.entries)
        assert timeout_s == 0
        start, end = self._at, self._log.stable_end()
        if end <= start:
            return []
        self._at = end
        found = [
            (offset, *((entry.key, entry.value) if self._log.newer else entry.read()))
            for offset, entry in enumerate(self._log.entries[start:end], start)
            if entry and entry.counts
        ]
        offsets, keys, values = (
            [list(column) for column in zip(*found, strict=True)]
            if found
            else ([], [], [])
        )
        times = [0] * len(found)
        return [
            RecordBatch(
                COMMITS,
                0,
                Columns(keys, values, times, offsets, times),
                end,
                NO_STREAM_TIME,
                at_end=True,
            )
        ]
