"""A backfill in Spark SQL against the same in Python, in one run: `python -m
benchmarks.native [--records N] [--keys N] [--rounds N]`.

Parquet on local disk, four partitions, four key ranges each, `local[2]`; snapshots as
the only output, without a broker. User and system time of all processes: Python, its
workers, the JVM. Compare the ratios: machines differ. Each case is run by turns, after
both have run over fewer records; what both leave must be as many keys.

    count           of each key
    sum             of an integer field of a flat JSON object, of each key
    filtered sum    the same of the orders that two conditions on fields let through, three in ten
    count by day    in windows, with a day of grace; nothing is late
    count by month  in windows of 30 days that begin every 10: three windows a record
"""

from __future__ import annotations

import argparse
import operator
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.running import cpu_s
from coopstreams import KStream, StreamsBuilder, TimeWindows, Topology, field, serdes
from coopstreams.common.config import Config
from coopstreams.spark import TableHistory, local_session
from coopstreams.spark import plan as planning
from coopstreams.spark.execution import carry_out
from coopstreams.spark.plan import Plan

PARTITIONS, RANGES = 4, 4
DAY_MS = 86_400_000


def count(orders: KStream[str, object]) -> object:
    return orders.group_by_key().count(store="kept")


def total(orders: KStream[str, object]) -> object:
    return (
        orders.map_values(field("amount"), value=serdes.int64)
        .group_by_key()
        .reduce(operator.add, store="kept")
    )


def filtered(orders: KStream[str, object]) -> object:
    return total(orders.filter((field("amount") > 399) & (field("currency") == "EUR")))


def by_day(orders: KStream[str, object]) -> object:
    windows = TimeWindows(days=1, grace=timedelta(days=1))
    return (
        orders.group_by_key()
        .windowed_by(windows)
        .count(store="kept", retention=timedelta(days=400))
    )


def by_month(orders: KStream[str, object]) -> object:
    windows = TimeWindows(days=30, advance=timedelta(days=10))
    return (
        orders.group_by_key()
        .windowed_by(windows)
        .count(store="kept", retention=timedelta(days=400))
    )


CASES: dict[str, Callable[[KStream[str, object]], object]] = {
    "count": count,
    "sum": total,
    "filtered sum": filtered,
    "count by day": by_day,
    "count by month": by_month,
}


def topology_of(case: str) -> Topology:
    builder = StreamsBuilder("bench")
    CASES[case](builder.stream("orders", key=serdes.text, value=serdes.json))
    return builder.build()


def write_history(spark: SparkSession, folder: str, records: int, keys: int) -> None:
    """Write a month of orders: the partition follows from the key."""
    rows = spark.range(records).selectExpr(
        f"cast(pmod(xxhash64(id), {keys}) as string) as customer",
        "id",
        f"1700000000000 + id * {30 * DAY_MS} div {records} as timestamp",
    )
    value = """to_json(struct(id % 1000 as amount, if(id % 2 = 0, 'EUR', 'USD') as currency, id as `order`))"""
    made = rows.selectExpr(
        "cast(customer as binary) as key",
        f"cast({value} as binary) as value",
        "timestamp",
        f"cast(pmod(xxhash64(customer), {PARTITIONS}) as int) as partition",
        "id as number",
    )
    made.write.parquet(folder)


def timed(
    spark: SparkSession, case: str, history: str, folder: Path, native: bool
) -> tuple[float, int]:
    """Return the CPU seconds of a backfill, of all processes, and the number of
    resulting keys.
    """
    topology = topology_of(case)
    stages = planning.stages(topology, {"orders": PARTITIONS}, RANGES, native=native)
    cut = {"orders": dict.fromkeys(range(PARTITIONS), (0, 0))}
    snapshots = str(folder / "snapshots")
    plan = Plan(
        "run",
        "bench",
        planning.digest(topology),
        cut,
        stages,
        {"orders": PARTITIONS},
        ("orders",),
        snapshots=snapshots,
    )
    table = TableHistory(spark.read.parquet(history), ["number"])
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "bench")
    begin = cpu_s()
    done = carry_out(
        spark, topology, config, plan, {"orders": table}, str(folder / "work")
    )
    seconds = cpu_s() - begin
    return seconds, sum(
        file.entries
        for result in done.results
        for each in result.slices["kept"]
        for file in each.files
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    spark = local_session("bench", {"spark.sql.shuffle.partitions": "8"}, cores="2")
    shown = Table("case", "keys", "Python µs", "Spark SQL µs", "of it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_history(spark, str(folder / "history"), given.records, given.keys)
        write_history(spark, str(folder / "less"), given.records // 10, given.keys)
        for case in (each for each in CASES if given.only in each):
            spent: dict[bool, list[float]] = {False: [], True: []}
            keys: set[int] = set()
            for native in (False, True):
                timed(
                    spark,
                    case,
                    str(folder / "less"),
                    folder / f"{case}-less-{native}",
                    native,
                )
            for number in range(given.rounds):
                for native in (False, True):
                    at = folder / f"{case}-{number}-{native}"
                    seconds, found = timed(
                        spark, case, str(folder / "history"), at, native
                    )
                    print(
                        f"{case}: {'SQL' if native else 'Python'} {seconds:.2f} s of CPU",
                        file=sys.stderr,
                        flush=True,
                    )
                    spent[native].append(seconds * 1e6 / given.records)
                    keys.add(found)
            (found,) = keys
            python, sql = (
                statistics.median(spent[False]),
                statistics.median(spent[True]),
            )
            shown.add_row(
                case, str(found), f"{python:.2f}", f"{sql:.2f}", f"{python / sql:.1f}"
            )
    spark.stop()
    Console().print(
        f"{given.records} records, CPU a record, median of {given.rounds}", shown
    )


if __name__ == "__main__":
    main()
