"""The sources of a backfill's records: topics of Kafka up to a cut, or any DataFrame;
and their frames in Spark.

Invariant: each of these frames has the columns of HISTORY, and a Spark partition of it
is one topic partition in order.
Relies on: `kafka_source` and `jvm_source` (the readers), `arrow_rows` (`HISTORY`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark.history.arrow_rows import HISTORY, ddl
from coopstreams.spark.history.jvm_source import jvm_frame
from coopstreams.spark.history.kafka_source import KafkaSource, read_options
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, OffsetOutOfRangeError
from coopstreams.topology.keys import partition_of

_TYPES = {"key": "binary", "value": "binary", "timestamp": "bigint"}
_OPTIONAL = {"partition": "int", "headers": "array<struct<name:string,value:binary>>"}
"""The types of the columns that a table may lack."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KafkaHistory:
    """The records of a topic in Kafka, from its first record to a cut.

    `until`: None is now, the last stable offset of each partition; a datetime (UTC, if
    it names no time zone), the first record at or after it; or offsets by partition,
    exclusive. For an offset above the last stable offset the reader waits up to
    `PATIENCE_S`.
    """

    until: datetime | Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TableHistory:
    """A DataFrame as history: columns `key` and `value` (binary, as in a topic) and
    `timestamp` (ms, bigint).

    Two more columns are optional. `partition` (int) is the partition of the topic;
    without it, it follows from the key as for any producer. `headers` is an array of
    structs of `name` (string) and `value` (binary).

    `order_by` names the columns that order the records of a partition, which must be a
    total order for each key. `continues_at`: by partition, the offset of the topic at
    which the live application continues. For a partition that is not given, this is the
    first offset that the topic still has: all its records come after the table.
    """

    rows: DataFrame
    order_by: Sequence[str] = ("timestamp",)
    continues_at: Mapping[int, int] = field(default_factory=dict)

    def check(self, topic: str) -> None:
        """Check that the table can be the history of a topic.

        Raises:
            ConfigError: a column is missing or of another type; the message has the
            expression to write.
        """
        found = dict(self.rows.dtypes)
        for name, wanted in (_TYPES | _OPTIONAL).items():
            if found.get(name) != wanted and (name in found or name in _TYPES):
                raise ConfigError(
                    f'the history of "{topic}": column "{name}" must be {wanted}, it is '
                    f"{found.get(name, 'not there')}. Make it in Spark, "
                    f'for example df.select(col("...").cast("{wanted}").alias("{name}"), ...)'
                )
        if missing := [name for name in self.order_by if name not in found]:
            raise ConfigError(
                f'the history of "{topic}": there is no column {", ".join(missing)} to order by'
            )


History = KafkaHistory | TableHistory


def cut_of(
    cluster: KafkaLog,
    topic: str,
    history: History,
    partitions: int,
) -> dict[int, tuple[int, int]]:
    """Return the offsets [start, end) of each partition that the backfill covers. For a
    table, only `end` counts.

    Raises:
        ConfigError: a cut outside the topic.
        OffsetOutOfRangeError: a cut below the first offset that the topic still has.
    """
    _check_partitions(topic, history, partitions)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    starts = {place: cluster.start_offset(place) for place in places}
    ends = _ends(cluster, history, starts)
    for place, end in ends.items():
        if end < starts[place]:
            raise OffsetOutOfRangeError(
                f"{place}: the cut {end} lies below the first record that is left, {starts[place]}"
            )
    return {place.partition: (starts[place], end) for place, end in ends.items()}


def _check_partitions(
    topic: str,
    history: History,
    partitions: int,
) -> None:
    """Check that the offsets of a history are of partitions that exist."""
    given = history.continues_at if isinstance(history, TableHistory) else history.until
    if not isinstance(given, Mapping):
        return
    if unknown := [number for number in given if number not in range(partitions)]:
        raise ConfigError(
            f'the history of "{topic}" says where partition {unknown[0]!r} goes on: there are 0 to {partitions - 1}'
        )


def _ends(
    cluster: KafkaLog,
    history: History,
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at which a live application continues."""
    if isinstance(history, TableHistory):
        return {
            place: _reached(
                cluster,
                place,
                history.continues_at.get(place.partition, start),
            )
            for place, start in starts.items()
        }
    until = history.until
    if isinstance(until, Mapping):
        return {
            place: _reached(cluster, place, until.get(place.partition))
            for place in starts
        }
    ends = cluster.stable_offsets([*starts])
    if until is None:
        return ends
    if until.tzinfo is None:
        # As of the command: the zone of the driver's machine would decide otherwise.
        until = until.replace(tzinfo=UTC)
    until_ms = first_ms(until)
    return {
        place: min(cluster.offset_at(place, until_ms), end)
        for place, end in ends.items()
    }


def first_ms(time: datetime) -> int:
    """Return the first millisecond at or after a time.

    It is exact: `timestamp()` is a float, which may be a millisecond too small.
    """
    return -((_EPOCH - time) // timedelta(milliseconds=1))


def _reached(
    cluster: KafkaLog,
    place: TopicPartition,
    until: int | None,
) -> int:
    last = cluster.end_offset(place)
    if until is None or until > last:
        known = (
            "no offset is given"
            if until is None
            else f"it ends at {last}, the cut is {until}"
        )
        raise ConfigError(
            f"{place}: {known}; give for each partition an offset that it has reached"
        )
    return until


def kafka_frame(
    spark: SparkSession,
    settings: Mapping[str, Any],
    topic: str,
    bounds: Mapping[int, tuple[int, int]],
    *,
    time_marks: bool = False,
) -> DataFrame:
    """Return the records of a topic within these offsets; with `time_marks`, time marks
    too.
    """
    # Spark asks the active session whether there is a source of this name already, and
    # another session that is active may have registered ours: then it refuses. This
    # makes the given session the active one.
    spark.createDataFrame([], "offset LONG")
    spark.dataSource.register(KafkaSource)
    places = {TopicPartition(topic, number): each for number, each in bounds.items()}
    options = read_options(settings, places, time_marks=time_marks)
    return spark.read.format(KafkaSource.name()).options(**options).load()


FRAMES = {"python": kafka_frame, "jvm": jvm_frame}
"""The function that reads a topic, by connector."""


def table_frame(
    history: TableHistory,
    topic: str,
    partitions: int,
) -> DataFrame:
    """Return the records of a table as those of a topic, in the same order each time.

    Where `order_by` leaves the order open, all columns of the row decide. The order
    must be repeatable, because a record without a key belongs to the key range of its
    number. If a second attempt of a task numbered two such records otherwise, one would
    be lost and the other doubled.
    """
    rows = partitioned(history, topic, partitions)
    ties = [
        name
        for name in ("key", "timestamp", "value", "headers")
        if name in rows.columns
    ]
    return _placed(rows, topic, partitions, (*history.order_by, *ties))


def numbered_frame(
    history: TableHistory,
    topic: str,
    partitions: int,
) -> DataFrame | None:
    """Return the rows of a table, each with its partition and the number that orders
    it, in no order.

    Return None if `order_by` is not a single column of integers.
    """
    order = list(history.order_by)
    types = dict(history.rows.dtypes)
    if len(order) != 1 or types[order[0]] not in (
        "tinyint",
        "smallint",
        "int",
        "bigint",
    ):
        return None
    number = F.coalesce(
        F.col(order[0]).cast("bigint"),
        F.lit(-(1 << 63)),
    )  # as Spark sorts: nulls come first
    return partitioned(history, topic, partitions).withColumn("offset", number)


def partitioned(
    history: TableHistory,
    topic: str,
    partitions: int,
) -> DataFrame:
    """Return the rows of a table, each with its partition, in no order.

    Spark fails at a row without a timestamp, or with a partition that the topic lacks.
    """
    untimed = F.lit(f'the history of "{topic}": a record has no timestamp')
    rows = history.rows.withColumn(
        "timestamp",
        F.coalesce("timestamp", F.raise_error(untimed)),
    )
    if "partition" in rows.columns:
        given = F.col("partition")
        said = f'the history of "{topic}": a record is in partition %s, and the topic has 0 to {partitions - 1}'
        known = F.when(given.between(0, partitions - 1), given)
        return rows.withColumn(
            "partition",
            known.otherwise(F.raise_error(F.format_string(said, given))),
        )
    # Records without a key may be in any partition, as long as it is always the same.
    by_key = F.udf(
        lambda key: None if key is None else partition_of(bytes(key), partitions),
        "int",
    )("key")
    anywhere = F.pmod(F.xxhash64("value", "timestamp"), F.lit(partitions)).cast("int")
    return rows.withColumn(
        "partition",
        F.when(F.col("key").isNull(), anywhere).otherwise(by_key),
    )


def forwarded_frame(
    spark: SparkSession,
    folders: Sequence[str],
    topic: str,
    partitions: int,
) -> DataFrame:
    """Return the records that earlier stages wrote to a repartition topic, each
    partition in an order that every attempt reproduces.

    `folders`: the results of each of these stages, as Parquet. The order is by `time`,
    the place that the record at hand had in its writer's order of processing; then by
    stage, task and number. This time is in the column `offset`: these records have no
    offset. So the order adds no lateness: a record is late only if it was late in its
    source.
    """
    if not folders:  # no stage writes it, because its writers have no source topics
        return spark.createDataFrame([], ddl(HISTORY))
    stages = [
        spark.read.parquet(folder).withColumn("stage", F.lit(number))
        for number, folder in enumerate(folders)
    ]
    return _placed(
        reduce(DataFrame.unionByName, stages).where(F.col("topic") == topic),
        topic,
        partitions,
        ("time", "stage", "task", "number"),
        offset=F.col("time"),
    )


def _placed(
    rows: DataFrame,
    topic: str,
    partitions: int,
    order_by: Sequence[str],
    offset: Column | None = None,
) -> DataFrame:
    columns = [
        "partition",
        *(
            name
            for name in HISTORY.names
            if name in rows.columns and name not in ("topic", "partition", "offset")
        ),
    ]
    headers = (
        []
        if "headers" in rows.columns
        else [
            F.lit(None).cast(ddl(HISTORY).rpartition("`headers` ")[2]).alias("headers")
        ]
    )
    ordered = rows.repartitionById(partitions, F.col("partition")).sortWithinPartitions(
        *order_by
    )
    given = F.lit(0).cast("bigint") if offset is None else offset
    shaped = ordered.select(
        F.lit(topic).alias("topic"),
        given.alias("offset"),
        *columns,
        *headers,
    )
    return shaped.select(*HISTORY.names)
