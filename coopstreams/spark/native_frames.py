"""The history of a sub-topology, folded by Spark SQL: the rows of its stores, and what a task of the Python path would have counted.

    records     task and number of each record; those of windows in order, with the stream time that they met
    groups      one row a task, key and window: value, timestamp, and how many records were taken, dropped, in doubt
    native      the groups as rows for `native_task`, if no record is in doubt

A *doubt* is a record that SQL and Python might understand differently, or a sum that leaves 64 bits. One is enough: the stage is Python's then.

Invariant: whatever is not proved to be the same is in doubt: JSON other than one flat object without escapes, numbers of more than 18 digits,
negative timestamps.
Turned down: from_json and get_json_object (a lenient parser: it takes what the serde refuses, and the first of two equal names).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.native import Aggregation
from coopstreams.spark.plan import Stage
from coopstreams.spark.rows import ddl
from coopstreams.topology.keys import GROUPS, KeyRange

NATIVE = pa.schema(
    [("task", pa.int32()), ("store", pa.int32()), ("key", pa.binary()), ("start", pa.int64()), ("value", pa.int64()), ("timestamp", pa.int64())]
)
"""Rows of stores. Shape: `store` counts those of the sub-topology; it is null in the row that lets a task without any be a task."""

log = logging.getLogger(__name__)

GROUP: Final = ("store", "task", "key", "start", "value", "timestamp", "taken", "valueless", "late", "doubts", "read", "newest")
"""The columns of a group: what it is, and how many records were taken, dropped, in doubt."""

_DROPS: Final = ("null key", "null value", "late")
_GOES_ON: Final = "sub-topology %d goes on in Python: SQL may understand %d of its records in another way, or adds up to more than 64 bits"
_SPACE: Final = r"[ \t\n\r]*+"
_INTEGER: Final = r"(0|-?[1-9][0-9]{0,17})"
_STRING: Final = r'"[^"\\\x00-\x1f]*+"'
_SCALAR: Final = rf"(?:{_STRING}|-?(?:0|[1-9][0-9]{{0,17}})(?:\.[0-9]{{1,17}})?|true|false|null)"
_LONGEST: Final = 10_000
_ROW: Final = (1 << 33) - 1
"""What of `monotonically_increasing_id` counts the rows of a Spark partition."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a task is told besides rows. Shape: `dropped` by "node: reason"; `clocks` by store: the stream time that its operator met."""

    read: int
    stream_time: int
    dropped: dict[str, int]
    clocks: dict[str, int]


@dataclass(frozen=True, slots=True)
class Folding:
    """A stage, folded. `folder` takes the groups: written, not cached, so that history is read once for each store."""

    stage: Stage
    aggregations: Sequence[Aggregation]
    numbered: bool
    folder: str

    def run(self, spark: SparkSession, history: Callable[[bool], DataFrame]) -> tuple[dict[int, Facts], DataFrame] | None:
        """Return what the tasks are told, and their NATIVE rows; None if a record is in doubt. `history(ordered)` gives the records."""
        made = [groups(history(each.size_ms > 0), each, self.stage, numbered=self.numbered) for each in self.aggregations]
        reduce(DataFrame.unionAll, made).write.mode("overwrite").parquet(self.folder)
        found = spark.read.parquet(self.folder)
        told = counts(found)
        if in_doubt := sum(row["doubts"] for row in told):
            log.warning(_GOES_ON, self.stage.subtopology, in_doubt)
            return None
        return facts(told, self.aggregations, self.stage), native_rows(spark, found, self.stage)


def groups(history: DataFrame, aggregation: Aggregation, stage: Stage, *, numbered: bool) -> DataFrame:
    """Return the groups of an aggregation over HISTORY rows, one topic partition in a Spark partition in order if it has windows."""
    key, timestamp = F.col("key"), F.col("timestamp")
    ranges, (number, doubt) = stage.ranges, numbers(aggregation)
    slots = [slot for slot, piece in enumerate(KeyRange.split(ranges)) for _ in range(piece.first_group, piece.last_group + 1)]
    group = F.shiftrightunsigned(F.xxhash64(key), 64 - (GROUPS - 1).bit_length()).cast("int")
    # A record without a key is dropped, and counted by the first task of its partition.
    slot = F.lit(0) if ranges == 1 else F.when(key.isNull(), 0).otherwise(F.element_at(F.array(*map(F.lit, slots)), group + 1))
    offset = F.col("offset") if numbered else F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW))
    records = history.select(
        "partition",
        *([offset.alias("offset")] if aggregation.size_ms else []),
        (F.col("partition") * ranges + slot).cast("int").alias("task"),
        key,
        timestamp,
        F.col("value").isNotNull().alias("valued"),
        number.alias("number"),
        (doubt | F.coalesce(timestamp < 0, F.lit(True))).alias("doubt"),
    )
    late, start = F.lit(False), []
    if aggregation.size_ms:
        reached = F.max(F.when(key.isNotNull(), timestamp)).over(
            Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        begin = timestamp - F.pmod(timestamp, F.lit(aggregation.size_ms))
        records = records.withColumn("start", begin).withColumn("late", key.isNotNull() & (F.col("start") + aggregation.close_ms <= reached))
        late, start = F.col("late"), ["start"]
    valueless = key.isNotNull() & ~F.col("valued") if aggregation.drops_null_values else F.lit(False)
    made = _folded(records.withColumns({"late": late, "valueless": valueless}), aggregation, ["task", "key", *start])
    begin = F.col("start") if aggregation.size_ms else F.lit(None).cast("bigint")
    return made.withColumns({"start": begin, "store": F.lit(stage.stores.index(aggregation.store))}).select(*GROUP)


def _folded(records: DataFrame, aggregation: Aggregation, by: list[str]) -> DataFrame:
    taken = F.col("key").isNotNull() & ~F.col("late") & ~F.col("valueless")
    number = F.when(taken, F.col("number"))
    count = F.count_if(taken)
    value = {"count": count, "sum": F.try_sum(number), "min": F.min(number), "max": F.max(number)}[aggregation.fold]
    # If the sum of what is added without its sign fits, no sum on the way leaves 64 bits either.
    overflow = F.try_sum(F.abs(number)).isNull() if aggregation.fold == "sum" else F.lit(False)
    return records.groupBy(*by).agg(
        value.alias("value"),
        F.max(F.when(taken, F.col("timestamp"))).alias("timestamp"),
        count.alias("taken"),
        F.count_if("valueless").alias("valueless"),
        F.count_if("late").alias("late"),
        (F.count_if("doubt") + F.when(overflow & (count > 0), 1).otherwise(0)).alias("doubts"),
        F.count(F.lit(1)).alias("read"),
        F.max("timestamp").alias("newest"),
    )


def counts(made: DataFrame) -> list[Row]:
    """Return by store and task how many records were read, dropped, in doubt, and the newest timestamps: of all, and of those with a key."""
    keyed = F.col("key").isNotNull()
    told = made.groupBy("store", "task").agg(
        F.sum("read").alias("read"),
        F.sum("doubts").alias("doubts"),
        F.max("newest").alias("newest"),
        F.max(F.when(keyed, F.col("newest"))).alias("clock"),
        F.sum(F.when(~keyed, F.col("read")).otherwise(0)).alias("null key"),
        F.sum("valueless").alias("null value"),
        F.sum("late").alias("late"),
    )
    return told.collect()


def facts(told: Sequence[Row], aggregations: Sequence[Aggregation], stage: Stage) -> dict[int, Facts]:
    """Return what the tasks of a stage are told, by their numbers; those of a partition without records are left out."""
    node_of = {stage.stores.index(each.store): each.node for each in aggregations}
    result: dict[int, Facts] = {}
    for partition in {row["task"] // stage.ranges for row in told}:
        rows = [row for row in told if row["task"] // stage.ranges == partition]
        newest = max(row["newest"] for row in rows)
        clocks = {stage.stores[store]: max((row["clock"] for row in rows if row["clock"] is not None), default=-1) for store in node_of}
        for task in range(partition * stage.ranges, (partition + 1) * stage.ranges):
            own = [row for row in rows if row["task"] == task]
            dropped = {f"{node_of[row['store']]}: {why}": row[why] for row in own for why in _DROPS if row[why]}
            result[task] = Facts(own[0]["read"] if own else 0, newest, dropped, clocks)
    return result


def native_rows(spark: SparkSession, made: DataFrame, stage: Stage) -> DataFrame:
    """Return the groups as NATIVE rows, and a row for each task."""
    begins = spark.createDataFrame([(task, *([None] * (len(NATIVE) - 1))) for task in range(stage.tasks)], ddl(NATIVE))
    return begins.unionAll(made.where(F.col("key").isNotNull() & (F.col("taken") > 0)).select(*NATIVE.names))


def numbers(aggregation: Aggregation) -> tuple[Column, Column]:
    """Return the integer of a record, and whether the record is in doubt."""
    value, nothing = F.col("value"), F.lit(None).cast("bigint")
    if aggregation.values == "any":
        return nothing, F.lit(False)
    if aggregation.values == "int64":
        whole = F.when(F.length(value) == 8, F.conv(F.hex(value), 16, -10).cast("bigint"))
        number = F.when(whole > -(1 << 63), whole)
    else:
        text = value.cast("string")
        safe = (F.length(value) <= _LONGEST) & F.is_valid_utf8(text)
        number = F.when(safe, F.regexp_extract(text, _pattern(aggregation.field), 1)).try_cast("bigint")
    # The Python path drops what has no value before it looks at it, unless a function stands before.
    unseen = value.isNull() if aggregation.drops_null_values and aggregation.field is None else F.lit(False)
    return number, number.isNull() & ~unseen


def _pattern(name: str | None) -> str:
    """Return the expression that finds the only integer, or the integer under this name in a flat object that has it once."""
    if name is None:
        return rf"\A{_SPACE}{_INTEGER}{_SPACE}\z"
    key = rf'"\Q{name}\E"'
    other = rf"(?!{key}){_STRING}{_SPACE}:{_SPACE}{_SCALAR}{_SPACE}"
    found = rf"{key}{_SPACE}:{_SPACE}{_INTEGER}{_SPACE}"
    return rf"\A{_SPACE}\{{{_SPACE}(?:{other},{_SPACE})*+{found}(?:,{_SPACE}{other})*+\}}{_SPACE}\z"
