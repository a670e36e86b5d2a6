"""Kafka for Spark, without a jar: a Python data source over the reader and the writer
that live tasks use.

    spark.dataSource.register(KafkaSource)
    spark.read.format("coopstreams").options(**read_options(settings, {partition: (0, 1000)})).load()      HISTORY rows
    rows.write.format("coopstreams").options(**write_options(settings, "run-7")).mode("append").save()
        HISTORY rows; their offsets are ignored

Reading stops exactly at the given offsets and fails if a record below them is gone;
only committed records are read. Writing is one transaction for each Spark partition; a
later attempt takes over its transactional id. The later attempt does not know whether
an earlier attempt has committed: if an executor is lost before Spark has heard of its
commit, rows are written twice.

Invariant: without `split`, a Spark partition is one topic partition in offset order.
Turned down: the JVM connector (jars that must match the exact versions of Spark and
Scala, no exact end by partition under transactions, no transactions).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from coopstreams.log.kafka.client_settings import LONGEST_TRANSACTION_MS
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Position, RecordBatch
from coopstreams.spark.history.arrow_rows import (
    HISTORY,
    batch,
    columns_of,
    ddl,
    record_columns,
    runs_of,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError
from coopstreams.topology.keys import WHOLE

FETCH_RECORDS = 10_000
PATIENCE_S = 300.0
"""The longest wait for records below the given end: an open transaction may hold them
back.
"""

_SETTINGS = "secret.settings"
"""The name of an option; Spark redacts the values of options with `secret` in their
names.
"""


def read_options(
    settings: Mapping[str, Any],
    cut: Mapping[TopicPartition, tuple[int, int]],
    *,
    split: int = 0,
    patience_s: float = PATIENCE_S,
    time_marks: bool = False,
) -> dict[str, str]:
    """Return the options to read these partitions from start up to end (exclusive).

    `settings`: of the Kafka clients. `split`: the most offsets in a Spark partition; 0:
    one Spark partition for each topic partition. `time_marks`: whether time marks are
    returned, too.
    """
    ranges = [[*partition, *bounds] for partition, bounds in cut.items()]
    return {
        _SETTINGS: _shipped(settings),
        "cut": json.dumps(ranges),
        "split": str(split),
        "patience": str(patience_s),
        "marks": str(time_marks),
    }


def write_options(settings: Mapping[str, Any], transactional_id: str) -> dict[str, str]:
    """Return the options to write rows, in transactions whose ids have this prefix."""
    longest = {"producer.transaction.timeout.ms": LONGEST_TRANSACTION_MS}
    return {
        _SETTINGS: _shipped({**longest, **settings}),
        "transactional.id": transactional_id,
    }


def _shipped(settings: Mapping[str, Any]) -> str:
    """Return the settings as JSON, for the workers.

    Raises:
        ConfigError: a setting is a function, which cannot be an option of Spark.
    """
    if callable(settings.get("oauth_cb")):
        raise ConfigError(
            'oauth_cb: the workers of Spark import it. Write "module:function"'
        )
    return json.dumps(dict(settings))


@dataclass
class OffsetRange(InputPartition):
    """A half-open range of offsets of a partition."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaSource(DataSource):
    """The data source `coopstreams`; see `read_options` and `write_options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "coopstreams"

    def schema(self) -> str:
        """Return the columns of the rows, in Spark's DDL."""
        return ddl(HISTORY)

    def reader(self, schema: StructType) -> KafkaParts:  # noqa: ARG002 it is ours
        """Return the reader of these options."""
        return KafkaParts(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaRows:  # noqa: ARG002
        """Return the writer of these options. It ignores `overwrite`: a log is only
        appended to.
        """
        return KafkaRows(self.options)


class KafkaParts(DataSourceReader):
    """Reads ranges of offsets, each in one Spark task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = json.loads(options[_SETTINGS])
        self._cut = json.loads(options["cut"])
        self._split = int(options["split"])
        self._patience_s = float(options["patience"])
        self._marks = options["marks"] == "True"

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of offsets, one for each Spark task."""
        parts: list[InputPartition] = []
        for topic, partition, start, end in self._cut:
            step = self._split or max(1, end - start)
            parts += [
                OffsetRange(topic, partition, at, min(at + step, end))
                for at in range(start, end, step)
            ]
        return parts or [OffsetRange("", 0, 0, 0)]  # Spark needs at least one

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of offsets.

        Raises:
            OffsetOutOfRangeError: records of the range were deleted.
            LogError: the partition is shorter, or its end was not reached in time,
            because a transaction is open below it.
        """
        part: OffsetRange = partition
        if part.start >= part.end:
            return
        where = TopicPartition(part.topic, part.partition)
        with (
            closing(KafkaLog(self._settings)) as cluster,
            closing(cluster.reader()) as reader,
        ):
            if (last := cluster.end_offset(where)) < part.end:
                raise LogError(
                    f"{where} ends at {last}, the read at {part.end}: was the topic made anew?"
                )
            reader.assign({where: Position(part.start)})
            reader.route(where, [WHOLE], keep_marks=self._marks)
            at = part.start
            moved = time.monotonic()
            while at < part.end:
                batches = reader.fetch(FETCH_RECORDS, 0.2)
                for fetched in batches:
                    at = fetched.next_offset
                    yield from _below(fetched, part.end)
                if batches:
                    moved = time.monotonic()  # whatever takes the records may be slow
                elif time.monotonic() - moved > self._patience_s:
                    raise LogError(
                        f"{where}: nothing came for {self._patience_s:.0f} s at offset {at}, below the end "
                        f"{part.end}: a transaction is open there. End it, or choose an earlier end."
                    )


def _below(fetched: RecordBatch, end: int) -> Iterator[pa.RecordBatch]:
    columns = fetched.columns
    count = (
        sum(1 for offset in columns.offsets if offset < end)
        if fetched.next_offset > end
        else len(columns)
    )
    if count:
        columns = columns.slice(0, count)
        topic, partition = fetched.partition
        yield batch(
            HISTORY,
            [
                [topic] * count,
                [partition] * count,
                list(columns.offsets),
                *record_columns(columns),
            ],
        )


@dataclass
class WrittenRecords(WriterCommitMessage):
    """The number of records that a Spark partition has written."""

    records: int


class KafkaRows(DataSourceArrowWriter):
    """Writes HISTORY rows: topic, partition (null: by key), timestamp, key, value,
    headers.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = json.loads(options[_SETTINGS])
        self._id = options["transactional.id"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        """Write the rows of a Spark partition, in one transaction."""
        context = TaskContext.get()
        assert context is not None
        # The same id fences an earlier attempt, wherever it still runs: it can no
        # longer commit.
        id_ = f"{self._id}-{context.partitionId()}"
        written = 0
        with (
            closing(KafkaLog(self._settings)) as cluster,
            closing(cluster.writer(id_)) as writer,
        ):
            writer.begin()
            for rows in iterator:
                places = list(
                    zip(
                        rows.column("topic").to_pylist(),
                        rows.column("partition").to_pylist(),
                        strict=True,
                    )
                )
                for start, end in runs_of(places):
                    columns = columns_of(rows.slice(start, end - start), ())
                    topic, partition = places[start]
                    writer.append(
                        topic,
                        columns.keys,
                        columns.values,
                        columns.timestamps,
                        partitions=partition,
                        headers=columns.headers,
                    )
                    written += end - start
            writer.commit(PATIENCE_S)
        return WrittenRecords(written)

    def commit(self, messages: Any) -> None:
        """Do nothing: each Spark partition has committed its own transaction."""

    def abort(self, messages: Any) -> None:
        """Do nothing: a transaction that was not committed does not count."""
