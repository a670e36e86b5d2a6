"""Native plans over topics of Kafka, whose offsets show which records are late."""

from __future__ import annotations

import operator
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, TimeWindows, field, serdes
from coopstreams.spark import Options, backfill
from tests.conftest import Kafka
from tests.spark.native_runs import GRACE, Ran, flights, left_behind, same_state


@pytest.mark.slow
@pytest.mark.broker
def test_spark_folds_a_topic_as_python_does_with_late_records_and_without(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    source, began_ms = kafka.topic("flights", 2), int(time.time() * 1000) - 600_000
    for partition in (0, 1):
        rows = [
            (key, value, began_ms + at)
            for key, value, at, place in flights(5, 900)
            if place == partition
        ]
        kafka.write(source, rows, partition=partition)
    builder = StreamsBuilder(kafka.unique("native"))
    records = builder.stream(source, key=serdes.text, value=serdes.json)
    delays = records.map_values(field("delay"), value=serdes.int64).group_by_key()
    delays.windowed_by(TimeWindows(milliseconds=900, grace=GRACE)).reduce(
        operator.add, store="late"
    )
    delays.windowed_by(TimeWindows(minutes=1, grace=timedelta(minutes=1))).reduce(
        max, store="never-late"
    )
    topology, runs = builder.build(), dict[bool, Ran]()
    for native in (True, False):
        folder = tmp_path / str(native)
        options = Options(
            ranges=2,
            seed=False,
            snapshots=str(folder / "snapshots"),
            work=str(folder / "work"),
            native=native,
        )
        done = backfill(topology, kafka.settings, spark=spark, options=options)
        runs[native] = Ran(done, *left_behind(done, folder))
    assert same_state(runs[True], runs[False])
    assert (
        sum(
            count for why, count in runs[True].counts[1].items() if why.endswith("late")
        )
        > 10
    )
    folded = [
        file.name.split("-")[1]
        for file in Path(runs[True].done.folder, "stage-0-native").iterdir()
    ]
    assert (folded.count("0"), folded.count("1")) == (8, 4), (
        "only the store with late records is folded twice"
    )
