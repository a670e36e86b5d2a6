"""Folds the history of a sub-topology in Spark SQL: the rows of its stores, and the
counts of a Python task.

    records     task and number of each record, and whether filters let it through
    windowed    the same in order, a row for each window of a record, with the stream time at the record
    groups      one row a task, key and window: value, timestamp, and how many records were taken, dropped, in doubt
    kept        the groups of a task as a file for `native_task`, and the sums of their counts

A *doubt* is a record that SQL and Python might read differently, or a sum that exceeds
64 bits. A single doubt leaves the whole stage to Python.

Invariant: a result that is not proved to be the same is in doubt: the doubts of
`sql_values`, and negative timestamps.
Turned down: removing records where SQL filters them (they count as read, and advance
the stream time of their topic).
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import (
    Column,
    DataFrame,
    Row,
    Window,
)
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.history.arrow_rows import ddl
from coopstreams.spark.native.late_records import SPANS, any_late
from coopstreams.spark.native.sql_eligibility import Aggregation
from coopstreams.spark.native.sql_expressions import with_values
from coopstreams.spark.native.sql_values import (
    EXACT,
    Judged,
    folded_number,
    judged,
    numbers,
    truthy,
    with_tokens,
)
from coopstreams.spark.native.store_rows import (
    FOLDED,
    KEPT,
    Folded,
    Keeping,
)
from coopstreams.spark.plan import Stage
from coopstreams.spark.workers.shipping import plain_function
from coopstreams.state.layout import PREFIXES
from coopstreams.topology.fields import field
from coopstreams.topology.keys import GROUPS, KeyRange

log = logging.getLogger(__name__)

_DROPS: Final = {"null-key": "keyless", "null-value": "valueless", "late": "late"}
"""The counts of a group by reason for which records are dropped."""
_GOES_ON: Final = "sub-topology %d runs in Python instead: SQL may treat %d of its records differently, or a sum exceeds 64 bits"
_ROW: Final = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that count the rows within a Spark
partition.
"""


@dataclass(frozen=True, slots=True)
class Folding:
    """The folding of a stage (a sub-topology of a run) in SQL. The groups of its tasks
    become files in `folder`, so that history is read once for each store.

    `numbered`: whether the offsets of the records are those of the topic.
    """

    stage: Stage
    aggregations: Sequence[Aggregation]
    numbered: bool
    folder: str

    def run(self, history: Callable[[bool], DataFrame]) -> dict[int, Folded] | None:
        """Return SQL's results by task, except for partitions without records; None if
        a record is in doubt.

        `history(ordered)` returns the records. If the records have offsets, the first
        attempt assumes that no record is late.
        """
        told = self._told(history, self.aggregations, exact=not self.numbered)
        if self.numbered and (
            late := [each for each in self.aggregations if self._has_late(each, told)]
        ):
            stores = {self.stage.stores.index(each.store) for each in late}
            told = [row for row in told if row["store"] not in stores] + self._told(
                history,
                late,
                exact=True,
            )
        if in_doubt := sum(row["doubts"] for row in told):
            log.warning(_GOES_ON, self.stage.subtopology, in_doubt)
            return None
        return folded(told, self.aggregations, self.stage)

    def _told(
        self,
        history: Callable[[bool], DataFrame],
        aggregations: Sequence[Aggregation],
        *,
        exact: bool,
    ) -> list[Row]:
        """Return the KEPT rows of these aggregations; their files are then written.
        Arguments: see `run` and `groups`.
        """
        return reduce(
            DataFrame.unionAll,
            [self._kept(history, each, exact=exact) for each in aggregations],
        ).collect()

    def _kept(
        self,
        history: Callable[[bool], DataFrame],
        aggregation: Aggregation,
        *,
        exact: bool,
    ) -> DataFrame:
        """Return a frame of the KEPT rows of an aggregation. Arguments: see `run` and
        `groups`.
        """
        records = history(aggregation.ordered and not self.numbered)
        made = groups(
            records,
            aggregation,
            self.stage,
            numbered=self.numbered,
            exact=exact,
        )
        if not aggregation.size_ms:
            made = made.repartitionById(self.stage.tasks, "task")
        keeping = Keeping(self.folder, self.stage.stores.index(aggregation.store))
        return made.sortWithinPartitions("place", "start").mapInArrow(
            plain_function(keeping),
            ddl(KEPT),
        )

    def _has_late(self, aggregation: Aggregation, told: Sequence[Row]) -> bool:
        """Return whether a record is late for a window, or may be."""
        spans: dict[int, list[pa.Table]] = defaultdict(list)
        for row in told:
            if (
                row["store"] == self.stage.stores.index(aggregation.store)
                and aggregation.size_ms
            ):
                if row["start"] is None:
                    return True
                found = pa.table([row[name] for name in SPANS.names], schema=SPANS)
                spans[row["task"] // self.stage.ranges].append(found)
        return any(
            any_late(each, aggregation.advance_ms, aggregation.close_ms)
            for each in spans.values()
        )


def groups(
    history: DataFrame,
    aggregation: Aggregation,
    stage: Stage,
    *,
    numbered: bool,
    exact: bool = True,
) -> DataFrame:
    """Return the groups of an aggregation over HISTORY rows. With windows, a Spark
    partition is a task.

    Unless they are `numbered`, and if the aggregation is `ordered`, a Spark partition
    of `history` must be one topic partition in order. Without `exact`, no record is
    taken as late, and the spans of the windows show whether that is true.
    """
    records = _records(history, aggregation, stage, numbered=numbered)
    # With windows there may be nearly as many groups as records: each record goes to
    # its task at once.
    records = (
        _windowed(records, aggregation, exact=exact).repartitionById(
            stage.tasks,
            "task",
        )
        if aggregation.size_ms
        else records.withColumns({"first": F.lit(True), "late": F.lit(False)})
    )
    begin = F.col("start") if aggregation.size_ms else F.lit(None).cast("bigint")
    spans = (
        {}
        if aggregation.size_ms and not exact
        else dict.fromkeys(SPANS.names[1:], F.lit(None).cast("bigint"))
    )
    by = ["task", "key", *(["start"] if aggregation.size_ms else [])]
    made = _folded(records, aggregation, by, _spans(aggregation) if not spans else [])
    prefix = F.element_at(F.array(*map(F.lit, PREFIXES)), _group(F.col("key")) + 1)
    return made.withColumns(
        {"start": begin, "place": F.concat(prefix, "key"), **spans}
    ).select(*FOLDED)


def _spans(aggregation: Aggregation) -> list[Column]:
    """Return, for a window of a key, the columns of SPANS behind its start."""
    into = F.col("into")
    advance = aggregation.advance_ms
    offset = F.col("offset")
    rest = aggregation.close_ms % advance
    return [
        F.min(F.when(into < advance, offset)).alias("opened"),
        F.min(F.when((into < advance) & (into >= rest), offset)).alias("beyond"),
        F.max(offset).alias("last"),
    ]


def _records(
    history: DataFrame,
    aggregation: Aggregation,
    stage: Stage,
    *,
    numbered: bool,
) -> DataFrame:
    """Return the records of an aggregation. Filtered records stay, without a key,
    because they count as read.
    """
    key = F.col("key")
    timestamp = F.col("timestamp")
    seen, token_of = with_tokens(history, aggregation.reads, aggregation.parts)
    mapped = () if aggregation.mapped is None else (aggregation.mapped,)
    conditions = [each.condition for each in aggregation.where]
    seen, values = with_values(
        seen, [*conditions, *mapped], token_of, _floats(aggregation)
    )
    number = (
        folded_number(aggregation, values[-1])
        if mapped
        else numbers(aggregation, token_of)
    )
    where = Judged(F.lit(True), F.lit(False))
    for (condition, negate), value in zip(aggregation.where, values, strict=False):
        told = judged(value)
        if isinstance(condition, field):
            told = truthy(F.col(token_of[condition.name]))
        passes = ~told.true if negate else told.true
        # What an earlier filter drops, Python does not ask the next one.
        where = Judged(where.true & passes, where.doubt | (where.true & told.doubt))
    offset = (
        F.col("offset")
        if numbered
        else F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW))
    )
    records = seen.select(
        "partition",
        *([offset.alias("offset")] if aggregation.ordered else []),
        (F.col("partition") * stage.ranges + _slot(key, stage.ranges))
        .cast("int")
        .alias("task"),
        key,
        timestamp,
        number.value.alias("number"),
        number.missing.alias("missing"),
        where.true.alias("arrives"),
        (
            where.doubt
            | (where.true & number.doubt)
            | F.coalesce(timestamp < 0, F.lit(True))
        ).alias("doubt"),
    )
    keyed = F.col("key").isNotNull()
    return records.withColumns(
        {
            "key": F.when(F.col("arrives"), F.col("key")),
            "keyless": F.col("arrives") & ~keyed,
            "valueless": F.col("arrives") & keyed & F.col("missing"),
        }
    )


def _floats(aggregation: Aggregation) -> frozenset[str]:
    """Return the fields whose type makes floats of integers."""
    parts = aggregation.parts or {}
    return frozenset(name for name, part in parts.items() if part.kind == "float")


def _slot(key: Column, ranges: int) -> Column:
    """Return the number of the key range of a key.

    A record without a key is dropped, and counted by the first task of its partition.
    """
    slots = [
        slot
        for slot, key_range in enumerate(KeyRange.split(ranges))
        for _ in key_range.groups.numbers
    ]
    return (
        F.lit(0)
        if ranges == 1
        else F.when(key.isNull(), 0).otherwise(
            F.element_at(F.array(*map(F.lit, slots)), _group(key) + 1)
        )
    )


def _group(key: Column) -> Column:
    """Return the key group of a key, as `topology.keys` has it."""
    return F.shiftrightunsigned(F.xxhash64(key), 64 - (GROUPS - 1).bit_length()).cast(
        "int"
    )


def _windowed(
    records: DataFrame,
    aggregation: Aggregation,
    *,
    exact: bool,
) -> DataFrame:
    """Return a row for each window of a record.

    Columns: the `start` of the window, how far `into` the window the record's time is,
    whether the record is `late` for it, and whether this is the `first` row of the
    record. Without `exact`, no record is late.
    """
    size = F.lit(aggregation.size_ms)
    advance = F.lit(aggregation.advance_ms).cast("bigint")
    keyed = F.col("key").isNotNull()
    time = F.greatest(F.col("timestamp"), F.lit(0))
    # The numbers of a table order the records of each key only: between keys, the order
    # is that of `table_frame`.
    ordered = Window.partitionBy("partition").orderBy("offset", "key", "timestamp")
    before = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    timed = (
        records.withColumn("reached", F.max(F.when(keyed, time)).over(before))
        if exact
        else records
    )
    if aggregation.advance_ms == aggregation.size_ms:
        timed = timed.withColumns(
            {"start": F.when(keyed, time - F.pmod(time, size)), "first": F.lit(True)}
        )
    else:
        earliest = F.greatest(
            time - (aggregation.size_ms - aggregation.advance_ms),
            F.lit(0),
        )
        starts = F.when(
            keyed,
            F.sequence(earliest - F.pmod(earliest, advance), time, advance),
        )
        timed = timed.select(
            "*",
            F.posexplode_outer(starts).alias("at", "start"),
        ).withColumn("first", F.coalesce(F.col("at") == 0, F.lit(True)))
    late = (
        F.col("start") <= F.col("reached") - aggregation.close_ms
        if exact
        else F.lit(False)
    )
    return timed.withColumns(
        {"late": F.coalesce(late, F.lit(False)), "into": time - F.col("start")}
    )


def _folded(
    records: DataFrame,
    aggregation: Aggregation,
    by: list[str],
    more: Sequence[Column],
) -> DataFrame:
    """Return a row for each group of the records with equal columns `by`, with its
    value, its counts, and the columns `more`.
    """
    taken = F.col("key").isNotNull() & ~F.col("late") & ~F.col("valueless")
    number = F.when(taken, F.col("number"))
    count = F.count_if(taken)
    floats = aggregation.number == "float64"
    value = {
        "count": count,
        "sum": F.try_sum(number),
        "min": F.min(number),
        "max": F.max(number),
    }[aggregation.fold]
    if floats and aggregation.fold == "sum":
        # Rounding depends on the order: add in the order of offsets, and take the last
        # sum.
        before = (
            Window.partitionBy(*by)
            .orderBy("offset")
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
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
        *more,
    )


def _unsure(
    aggregation: Aggregation,
    number: Column,
    value: Column,
) -> Column:
    """Return whether Python might fold the numbers of a group to another result."""
    if aggregation.number == "int64":
        # If the sum of the absolute values fits into 64 bits, no partial sum exceeds
        # them either.
        return (
            F.try_sum(F.abs(number)).isNull()
            if aggregation.fold == "sum"
            else F.lit(False)
        )
    negative_zero = (number == 0) & number.cast("string").startswith("-")
    # Which of two zeros is the result depends on the order, also of a smallest or
    # largest.
    unsure = ~(F.abs(value) <= sys.float_info.max) | (
        (value == 0) & (F.count_if(negative_zero) > 0)
    )
    if not aggregation.mixed:
        return unsure
    return unsure | F.coalesce(
        F.sum(F.when(number % 1 == 0, F.abs(number))) >= EXACT,
        F.lit(False),
    )


def folded(
    told: Sequence[Row],
    aggregations: Sequence[Aggregation],
    stage: Stage,
) -> dict[int, Folded]:
    """Return SQL's results for each task, except for tasks of partitions without
    records, from KEPT rows.
    """
    node_of = {stage.stores.index(each.store): each.node for each in aggregations}
    result: dict[int, Folded] = {}
    rows_of = defaultdict[int, list[Row]](list)
    for row in told:
        rows_of[row["task"] // stage.ranges].append(row)
    for partition, rows in rows_of.items():
        newest = max(row["newest"] for row in rows)
        operator_times = {
            stage.stores[store]: _operator_time(rows, store) for store in node_of
        }
        for task in range(partition * stage.ranges, (partition + 1) * stage.ranges):
            own = [row for row in rows if row["task"] == task]
            read = own[0]["read"] if own else 0
            dropped = _dropped(own, node_of)
            files = {stage.stores[row["store"]]: row["file"] for row in own}
            result[task] = Folded(read, newest, dropped, operator_times, files)
    return result


def _operator_time(rows: Iterable[Row], store: int) -> int:
    """Return the stream time of an aggregation: the latest time of the records that
    pass its filters.
    """
    own = [row["clock"] for row in rows if row["store"] == store]
    return max((clock for clock in own if clock is not None), default=-1)


def _dropped(rows: Iterable[Row], node_of: Mapping[int, str]) -> dict[str, int]:
    """Return how many records were dropped, by node and reason."""
    return {
        f"{node_of[row['store']]}: {why}": row[count]
        for row in rows
        for why, count in _DROPS.items()
        if row[count]
    }
