"""A backfill of records from a table, by Spark SQL and by Python; and its results, for
comparison.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from coopstreams import Topology
from coopstreams.common.config import Config
from coopstreams.spark import plan as planning
from coopstreams.spark.execution import Backfilled, carry_out
from coopstreams.spark.history.sources import TableHistory
from coopstreams.spark.native.sql_eligibility import Aggregation, translated
from coopstreams.spark.native.sql_values import numbers, with_tokens
from coopstreams.spark.plan import Plan
from coopstreams.state.rocks import Rocks
from coopstreams.topology.graph.partitions import check_partitions

Row = tuple[bytes | None, bytes | None, int, int]
"""Key, value, timestamp, partition."""

GOES_ON = "runs in Python instead"
GRACE = timedelta(milliseconds=700)


@dataclass(frozen=True)
class Ran:
    """The results of a backfill for a live application: slices and their rows, stream
    times; and the counts.
    """

    done: Backfilled
    slices: set[tuple[object, ...]]
    rows: dict[tuple[str, int, str], list[tuple[bytes, bytes]]]
    """The rows by store, partition and family."""

    @property
    def counts(
        self,
    ) -> tuple[dict[str, int], dict[str, int], set[tuple[int, str, int]]]:
        """Read by topic, dropped by reason, stream times by partition and topic."""
        results = self.done.results
        read, dropped = (
            sum((Counter(getattr(result, name)) for result in results), Counter())
            for name in ("read", "dropped")
        )
        return (
            read,
            dropped,
            {
                (result.partition, topic, at)
                for result in results
                for topic, at in result.stream_times.items()
            },
        )


def backfilled(
    spark: SparkSession,
    topology: Topology,
    rows: list[Row],
    folder: Path,
    *,
    ranges: int,
    native: bool,
    partitions: int = 2,
    ties: int = 1,
) -> Ran:
    """Run a backfill. `ties`: how many neighbours among the rows have the same place in
    the order of the table.
    """
    numbered = [(*row, number // ties) for number, row in enumerate(rows)]
    table = spark.createDataFrame(
        numbered,
        "key binary, value binary, timestamp bigint, partition int, number bigint",
    )
    (topic,) = planning.sources(topology)
    counts = check_partitions(topology, {topic: partitions}).partitions
    stages = planning.stages(topology, counts, ranges, native=native)
    cut = {topic: dict.fromkeys(range(partitions), (0, 0))}
    plan = Plan(
        "run-1",
        topology.application_id,
        planning.digest(topology),
        cut,
        stages,
        counts,
        (topic,),
        snapshots=str(folder / "snapshots"),
    )
    config = Config.of({"bootstrap.servers": "nowhere:1"}, topology.application_id)
    done = carry_out(
        spark,
        topology,
        config,
        plan,
        {topic: TableHistory(table, ["number"])},
        str(folder / "work"),
    )
    return Ran(done, *left_behind(done, folder))


def left_behind(
    done: Backfilled, folder: Path
) -> tuple[
    set[tuple[object, ...]], dict[tuple[str, int, str], list[tuple[bytes, bytes]]]
]:
    """Return the slices of a run, without the names of their files, and the rows in
    these.
    """
    files: dict[tuple[str, int, str], list[Path]] = defaultdict(list)
    slices = set[tuple[object, ...]]()
    for store, each in (
        (store, each)
        for result in done.results
        for store, found in result.slices.items()
        for each in found
    ):
        held = tuple(
            (file.family, file.entries, file.first_key, file.last_key)
            for file in each.files
        )
        slices.add((store, each.partition, each.first, each.last, each.observed, held))
        for file in each.files:
            files[store, each.partition, file.family].append(
                folder / "snapshots" / done.plan.application / file.name
            )
    database, rows = Rocks(folder / "read"), {}
    with closing(database):
        for place, paths in files.items():
            database.create(str(place))
            database.ingest(str(place), paths, move=False)
            rows[place] = list(database.scan(str(place), b"", None))
    return slices, rows


def same_state(one: Ran, other: Ran) -> bool:
    assert one.slices == other.slices
    assert one.rows == other.rows
    assert one.counts == other.counts
    return bool(one.rows)


def both(
    spark: SparkSession,
    topology: Topology,
    rows: list[Row],
    folder: Path,
    ranges: int = 3,
    ties: int = 1,
) -> tuple[Ran, Ran]:
    native, python = (
        backfilled(
            spark,
            topology,
            rows,
            folder / str(way),
            ranges=ranges,
            native=way,
            ties=ties,
        )
        for way in (True, False)
    )
    return native, python


def was_native(folder: Path, subtopology: int = 0) -> bool:
    return (folder / "True" / "work" / "run-1" / f"stage-{subtopology}-native").exists()


def aggregation_of(topology: Topology) -> Aggregation:
    """Return the first aggregation of the first sub-topology, which can be translated."""
    found = translated(topology.subtopologies[0])
    assert not isinstance(found, str)
    return found[0]


def understood(
    spark: SparkSession, aggregation: Aggregation, values: list[bytes | None]
) -> list[int | float | None]:
    """Return SQL's reading of each value, None where it is in doubt."""
    frame, token_of = with_tokens(
        spark.createDataFrame(list(enumerate(values)), "at int, value binary"),
        aggregation.reads,
        aggregation.parts,
    )
    number = numbers(aggregation, token_of)
    doubt = number.doubt | number.missing
    rows = frame.select(
        "at", number.value.alias("number"), doubt.alias("doubt")
    ).collect()
    return [
        None if row["doubt"] else row["number"]
        for row in sorted(rows, key=lambda row: row["at"])
    ]


def flights(seed: int, records: int) -> list[Row]:
    """Return records, some without a key, some late; spaces and fields in any order."""
    generator, now, rows = random.Random(seed), 0, list[Row]()
    for _ in range(records):
        now += generator.randrange(12)
        late = generator.randrange(3000) if generator.random() < 0.1 else 0
        parts: list[tuple[str, Any]] = [
            (
                "delay",
                generator.choice(
                    [
                        0,
                        generator.randrange(-90, 500),
                        -(10**18) + 1 if generator.random() < 0.001 else 3,
                    ]
                ),
            )
        ]
        parts += [
            ("text", "a, \u00fc} {"),
            ("much", 1.5),
            ("none", None),
            ("yes", True),
        ][: generator.randrange(5)]
        generator.shuffle(parts)
        text = json.dumps(
            dict(parts), ensure_ascii=False, indent=generator.choice([None, 1])
        )
        key = (
            None
            if generator.random() < 0.02
            else f"key-{generator.randrange(20)}".encode()
        )
        rows.append((key, text.encode(), max(0, now - late), generator.randrange(2)))
    return rows
