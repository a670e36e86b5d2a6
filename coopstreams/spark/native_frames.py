"""Folds the history of a sub-topology in Spark SQL: the rows of its stores, and the counts of a Python task.

    records     task and number of each record, and whether filters let it through
    windowed    the same in order, a row for each window of a record, with the stream time at the record
    groups      one row a task, key and window: value, timestamp, and how many records were taken, dropped, in doubt
    native      the groups as rows for `native_task`, if no record is in doubt

A *doubt* is a record that SQL and Python might read differently, or a sum that exceeds 64 bits. A single doubt leaves
the whole stage to Python.

Invariant: whatever is not proved to be the same is in doubt: the doubts of `native_values`, and negative timestamps.
Turned down: removing records where SQL filters them (they count as read, and advance the stream time of their topic).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.history.rows import ddl
from coopstreams.spark.native import Aggregation
from coopstreams.spark.native_values import EXACT, Judged, judged, numbers, with_tokens
from coopstreams.spark.plan import Stage
from coopstreams.topology.keys import GROUPS, KeyRange

NATIVE = pa.schema(
    [
        ("task", pa.int32()),
        ("store", pa.int32()),
        ("key", pa.binary()),
        ("start", pa.int64()),
        ("value", pa.int64()),
        ("real", pa.float64()),
        ("timestamp", pa.int64()),
    ]
)
"""Rows of stores.

Shape: `store` is the index within the sub-topology; null in the row of a task without store rows. A row has a `value`
or, in a store of floats, a `real`.
"""

log = logging.getLogger(__name__)

GROUP: Final = (
    "store",
    "task",
    "key",
    "start",
    "value",
    "real",
    "timestamp",
    "taken",
    "keyless",
    "valueless",
    "late",
    "doubts",
    "read",
    "newest",
)
"""The columns of a group: its identity, and how many records were taken, dropped, in doubt."""

_DROPS: Final = ("null-key", "null-value", "late")
_GOES_ON: Final = (
    "sub-topology %d runs in Python instead: SQL may treat %d of its records differently, or a sum exceeds 64 bits"
)
_ROW: Final = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that count the rows within a Spark partition."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The counts and times of a task, which are not rows of its stores.

    Shape: `dropped` by "node: reason"; `operator_times` by store: the stream time of its operator.
    """

    read: int
    stream_time: int
    dropped: dict[str, int]
    operator_times: dict[str, int]


@dataclass(frozen=True, slots=True)
class Folding:
    """The folding of a stage. The groups are written to `folder`, not cached, so that each store reads history once."""

    stage: Stage
    aggregations: Sequence[Aggregation]
    numbered: bool
    folder: str

    def run(
        self, spark: SparkSession, history: Callable[[bool], DataFrame]
    ) -> tuple[dict[int, Facts], DataFrame] | None:
        """Return the facts and the NATIVE rows of the tasks; None if a record is in doubt.

        `history(ordered)` returns the records.
        """
        made = [groups(history(each.ordered), each, self.stage, numbered=self.numbered) for each in self.aggregations]
        reduce(DataFrame.unionAll, made).write.mode("overwrite").parquet(self.folder)
        found = spark.read.parquet(self.folder)
        told = counts(found)
        if in_doubt := sum(row["doubts"] for row in told):
            log.warning(_GOES_ON, self.stage.subtopology, in_doubt)
            return None
        return facts(told, self.aggregations, self.stage), native_rows(spark, found, self.stage)


def groups(history: DataFrame, aggregation: Aggregation, stage: Stage, *, numbered: bool) -> DataFrame:
    """Return the groups of an aggregation over HISTORY rows.

    If it is `ordered`, a Spark partition of `history` must be one topic partition in order.
    """
    records = _records(history, aggregation, stage, numbered=numbered)
    records = (
        _windowed(records, aggregation)
        if aggregation.size_ms
        else records.withColumns({"first": F.lit(True), "late": F.lit(False)})
    )
    begin = F.col("start") if aggregation.size_ms else F.lit(None).cast("bigint")
    made = _folded(records, aggregation, ["task", "key", *(["start"] if aggregation.size_ms else [])])
    return made.withColumns({"start": begin, "store": F.lit(stage.stores.index(aggregation.store))}).select(*GROUP)


def _records(history: DataFrame, aggregation: Aggregation, stage: Stage, *, numbered: bool) -> DataFrame:
    """Return the records of an aggregation. Filtered records stay, without a key, because they count as read."""
    key, timestamp = F.col("key"), F.col("timestamp")
    seen, token_of = with_tokens(history, aggregation.reads, aggregation.parts)
    number = numbers(aggregation, token_of)
    where = Judged(F.lit(True), F.lit(False)) if aggregation.where is None else judged(aggregation.where, token_of)
    offset = F.col("offset") if numbered else F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW))
    records = seen.select(
        "partition",
        *([offset.alias("offset")] if aggregation.ordered else []),
        (F.col("partition") * stage.ranges + _slot(key, stage.ranges)).cast("int").alias("task"),
        key,
        timestamp,
        number.value.alias("number"),
        number.missing.alias("missing"),
        where.true.alias("arrives"),
        (where.doubt | (where.true & number.doubt) | F.coalesce(timestamp < 0, F.lit(True))).alias("doubt"),
    )
    keyed = F.col("key").isNotNull()
    return records.withColumns(
        {
            "key": F.when(F.col("arrives"), F.col("key")),
            "keyless": F.col("arrives") & ~keyed,
            "valueless": F.col("arrives") & keyed & F.col("missing"),
        }
    )


def _slot(key: Column, ranges: int) -> Column:
    """Return the number of the key range of a key.

    A record without a key is dropped, and counted by the first task of its partition.
    """
    slots = [slot for slot, key_range in enumerate(KeyRange.split(ranges)) for _ in key_range.groups.numbers]
    group = F.shiftrightunsigned(F.xxhash64(key), 64 - (GROUPS - 1).bit_length()).cast("int")
    return (
        F.lit(0)
        if ranges == 1
        else F.when(key.isNull(), 0).otherwise(F.element_at(F.array(*map(F.lit, slots)), group + 1))
    )


def _windowed(records: DataFrame, aggregation: Aggregation) -> DataFrame:
    """Return a row for each window of a record: its `start`, whether it is `late`, whether it is the `first` row."""
    size, advance = F.lit(aggregation.size_ms), F.lit(aggregation.advance_ms).cast("bigint")
    keyed, time = F.col("key").isNotNull(), F.greatest(F.col("timestamp"), F.lit(0))
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    timed = records.withColumn("reached", F.max(F.when(keyed, time)).over(before))
    if aggregation.advance_ms == aggregation.size_ms:
        timed = timed.withColumns({"start": F.when(keyed, time - F.pmod(time, size)), "first": F.lit(True)})
    else:
        earliest = F.greatest(time - (aggregation.size_ms - aggregation.advance_ms), F.lit(0))
        starts = F.when(keyed, F.sequence(earliest - F.pmod(earliest, advance), time, advance))
        timed = timed.select("*", F.posexplode_outer(starts).alias("at", "start")).withColumn(
            "first", F.coalesce(F.col("at") == 0, F.lit(True))
        )
    return timed.withColumn("late", F.coalesce(F.col("start") <= F.col("reached") - aggregation.close_ms, F.lit(False)))


def _folded(records: DataFrame, aggregation: Aggregation, by: list[str]) -> DataFrame:
    taken = F.col("key").isNotNull() & ~F.col("late") & ~F.col("valueless")
    number, count, floats = F.when(taken, F.col("number")), F.count_if(taken), aggregation.number == "float64"
    value = {"count": count, "sum": F.try_sum(number), "min": F.min(number), "max": F.max(number)}[aggregation.fold]
    if floats and aggregation.fold == "sum":
        # Rounding depends on the order: add in the order of offsets, and take the last sum.
        before = Window.partitionBy(*by).orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
        records = records.withColumn("sum", F.sum(number).over(before))
        value = F.max_by("sum", F.when(taken, F.col("offset")))
    nothing = F.lit(None)
    return records.groupBy(*by).agg(
        (nothing.cast("bigint") if floats else value).alias("value"),
        (value if floats else nothing.cast("double")).alias("real"),
        F.max(F.when(taken, F.col("timestamp"))).alias("timestamp"),
        count.alias("taken"),
        F.count_if("keyless").alias("keyless"),
        F.count_if("valueless").alias("valueless"),
        F.count_if("late").alias("late"),
        (
            F.count_if(F.col("doubt") & F.col("first"))
            + F.when(_unsure(aggregation, number, value) & (count > 0), 1).otherwise(0)
        ).alias("doubts"),
        F.count_if("first").alias("read"),
        F.max("timestamp").alias("newest"),
    )


def _unsure(aggregation: Aggregation, number: Column, value: Column) -> Column:
    """Return whether Python might fold the numbers of a group to something else."""
    if aggregation.number == "int64":
        # If the sum of the absolute values fits into 64 bits, no partial sum exceeds them either.
        return F.try_sum(F.abs(number)).isNull() if aggregation.fold == "sum" else F.lit(False)
    negative_zero = (number == 0) & number.cast("string").startswith("-")
    # Which of two zeros is the result depends on the order, also of a smallest or largest.
    unsure = ~(F.abs(value) <= sys.float_info.max) | ((value == 0) & (F.count_if(negative_zero) > 0))
    if not aggregation.mixed:
        return unsure
    return unsure | F.coalesce(F.sum(F.when(number % 1 == 0, F.abs(number))) >= EXACT, F.lit(False))


def counts(made: DataFrame) -> list[Row]:
    """Return, by store and task, how many records were read, dropped and in doubt, and the newest timestamps.

    The newest timestamps are those of all records, and of the records with a key.
    """
    keyed = F.col("key").isNotNull()
    told = made.groupBy("store", "task").agg(
        F.sum("read").alias("read"),
        F.sum("doubts").alias("doubts"),
        F.max("newest").alias("newest"),
        F.max(F.when(keyed, F.col("newest"))).alias("clock"),
        F.sum("keyless").alias("null-key"),
        F.sum("valueless").alias("null-value"),
        F.sum("late").alias("late"),
    )
    return told.collect()


def facts(told: Sequence[Row], aggregations: Sequence[Aggregation], stage: Stage) -> dict[int, Facts]:
    """Return the facts of a stage's tasks by task number, except for partitions without records."""
    node_of = {stage.stores.index(each.store): each.node for each in aggregations}
    result: dict[int, Facts] = {}
    for partition in {row["task"] // stage.ranges for row in told}:
        rows = [row for row in told if row["task"] // stage.ranges == partition]
        newest = max(row["newest"] for row in rows)
        # Each operator has its own time: that of the records that pass its filters.
        operator_times = {
            stage.stores[store]: max(
                (row["clock"] for row in rows if row["store"] == store and row["clock"] is not None), default=-1
            )
            for store in node_of
        }
        for task in range(partition * stage.ranges, (partition + 1) * stage.ranges):
            own = [row for row in rows if row["task"] == task]
            dropped = {f"{node_of[row['store']]}: {why}": row[why] for row in own for why in _DROPS if row[why]}
            result[task] = Facts(own[0]["read"] if own else 0, newest, dropped, operator_times)
    return result


def native_rows(spark: SparkSession, made: DataFrame, stage: Stage) -> DataFrame:
    """Return the groups as NATIVE rows, and a row for each task."""
    begins = spark.createDataFrame([(task, *([None] * (len(NATIVE) - 1))) for task in range(stage.tasks)], ddl(NATIVE))
    return begins.unionAll(made.where(F.col("key").isNotNull() & (F.col("taken") > 0)).select(*NATIVE.names))
