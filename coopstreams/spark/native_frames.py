"""Folds the history of a sub-topology in Spark SQL: the rows of its stores, and the counts of a Python task.

    records     task and number of each record, and whether filters let it through
    windowed    the same in order, a row for each window of a record, with the stream time at the record
    groups      one row a task, key and window: value, timestamp, and how many records were taken, dropped, in doubt
    kept        the groups of a task as a file for `native_task`, and the sums of their counts

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

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.history.rows import ddl
from coopstreams.spark.native import Aggregation
from coopstreams.spark.native_rows import FOLDED, KEPT, Folded, Keeping
from coopstreams.spark.native_values import EXACT, Judged, judged, numbers, with_tokens
from coopstreams.spark.plan import Stage
from coopstreams.spark.workers.shipping import plain_function
from coopstreams.state.layout import PREFIXES
from coopstreams.topology.keys import GROUPS, KeyRange

log = logging.getLogger(__name__)

_DROPS: Final = {"null-key": "keyless", "null-value": "valueless", "late": "late"}
"""The counts of a group by reason for which records are dropped."""
_GOES_ON: Final = (
    "sub-topology %d runs in Python instead: SQL may treat %d of its records differently, or a sum exceeds 64 bits"
)
_ROW: Final = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that count the rows within a Spark partition."""


@dataclass(frozen=True, slots=True)
class Folding:
    """The folding of a stage. The groups of its tasks become files in `folder`, so each store reads history once."""

    stage: Stage
    aggregations: Sequence[Aggregation]
    numbered: bool
    folder: str

    def run(self, history: Callable[[bool], DataFrame]) -> dict[int, Folded] | None:
        """Return what SQL has folded, by task, except for partitions without records; None if a record is in doubt.

        `history(ordered)` returns the records.
        """
        told = reduce(DataFrame.unionAll, [self._kept(history, each) for each in self.aggregations]).collect()
        if in_doubt := sum(row["doubts"] for row in told):
            log.warning(_GOES_ON, self.stage.subtopology, in_doubt)
            return None
        return folded(told, self.aggregations, self.stage)

    def _kept(self, history: Callable[[bool], DataFrame], aggregation: Aggregation) -> DataFrame:
        made = groups(history(aggregation.ordered), aggregation, self.stage, numbered=self.numbered)
        if not aggregation.size_ms:
            made = made.repartitionById(self.stage.tasks, "task")
        keeping = Keeping(self.folder, self.stage.stores.index(aggregation.store))
        return made.sortWithinPartitions("place", "start").mapInArrow(plain_function(keeping), ddl(KEPT))


def groups(history: DataFrame, aggregation: Aggregation, stage: Stage, *, numbered: bool) -> DataFrame:
    """Return the groups of an aggregation over HISTORY rows. With windows, a Spark partition is a task.

    If it is `ordered`, a Spark partition of `history` must be one topic partition in order.
    """
    records = _records(history, aggregation, stage, numbered=numbered)
    # With windows there may be nearly as many groups as records: each record goes to its task at once.
    records = (
        _windowed(records, aggregation).repartitionById(stage.tasks, "task")
        if aggregation.size_ms
        else records.withColumns({"first": F.lit(True), "late": F.lit(False)})
    )
    begin = F.col("start") if aggregation.size_ms else F.lit(None).cast("bigint")
    made = _folded(records, aggregation, ["task", "key", *(["start"] if aggregation.size_ms else [])])
    prefix = F.element_at(F.array(*map(F.lit, PREFIXES)), _group(F.col("key")) + 1)
    return made.withColumns({"start": begin, "place": F.concat(prefix, "key")}).select(*FOLDED)


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
    return (
        F.lit(0)
        if ranges == 1
        else F.when(key.isNull(), 0).otherwise(F.element_at(F.array(*map(F.lit, slots)), _group(key) + 1))
    )


def _group(key: Column) -> Column:
    """Return the key group of a key."""
    return F.shiftrightunsigned(F.xxhash64(key), 64 - (GROUPS - 1).bit_length()).cast("int")


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


def folded(told: Sequence[Row], aggregations: Sequence[Aggregation], stage: Stage) -> dict[int, Folded]:
    """Return what SQL has folded for each task, except for tasks of partitions without records, by KEPT rows."""
    node_of = {stage.stores.index(each.store): each.node for each in aggregations}
    result: dict[int, Folded] = {}
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
            dropped = {
                f"{node_of[row['store']]}: {why}": row[count]
                for row in own
                for why, count in _DROPS.items()
                if row[count]
            }
            files = {stage.stores[row["store"]]: row["file"] for row in own}
            result[task] = Folded(own[0]["read"] if own else 0, newest, dropped, operator_times, files)
    return result
