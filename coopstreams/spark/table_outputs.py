"""The outputs of a backfill as a table: the records that a live application would have
written to topics.

A task returns them as rows of its stage, beside the records that it forwards to the
next stage. Spark commits a stage as a whole, with one attempt of each task. So no row
occurs twice, and a resumed run finds the rows of the finished stages.

Invariant: a table has one folder for each run, `run=<name>`, which is written as a
whole or not at all.
Turned down: appending (a driver that dies afterwards cannot know whether it has
appended), and partition numbers (they would need the partition counts of the topics).
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.plan import Plan, Stage
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import ConfigError

_RECORD = ("topic", "key", "value", "timestamp", "headers")
_ORDER = ("time", "subtopology", "task", "number")


def absolute(place: str) -> str:
    """Return the absolute path of a folder, for workers elsewhere; a URL stays as it
    is.
    """
    return place if "://" in place else str(Path(place).absolute())


def stage_name(stage: Stage) -> str:
    """Return how the files of a stage begin in the folder of its run: `stage-0`, or
    `stage-0-round-2` of an earlier round; `Stage.name` is for people.
    """
    return (
        f"stage-{stage.subtopology}"
        if stage.is_last
        else f"stage-{stage.subtopology}-round-{stage.round}"
    )


def rows_of(run: Storage, stage: Stage) -> str | None:
    """Return the name of the folder with a stage's rows, in the folder of its run; None
    if the stage has not run.
    """
    name = run.read(_done(stage))
    return None if name is None else name.decode()


def keep_rows(
    run: Storage,
    stage: Stage,
    name: str,
) -> None:
    """Note that a stage has run, and where its rows are.

    Each driver writes a folder of its own. A scheduler may start a second driver while
    the first one lives, and one folder would then have parts of both.
    """
    run.write(_done(stage), name.encode())


def _done(stage: Stage) -> str:
    return f"{stage_name(stage)}.done"


def frame(
    spark: SparkSession,
    plan: Plan,
    folder: str,
) -> DataFrame:
    """Return the outputs of a run.

    Shape: the columns of a record, without a partition; then the columns that order the
    records.

    Raises:
        ConfigError: the run did not write a table.
    """
    if plan.outputs != "table":
        raise ConfigError(
            f'run {plan.run} has no table of outputs: its outputs are "{plan.outputs}"'
        )
    run = Storage(folder)
    forwarded = [topic for stage in plan.stages for topic, _ in stage.forwarded]
    stages = [
        spark.read.parquet(f"{folder}/{rows_of(run, each)}").withColumn(
            "subtopology",
            F.lit(each.subtopology),
        )
        for each in plan.stages
    ]
    rows = reduce(DataFrame.unionByName, stages)
    return rows.where(
        F.col("topic").isNotNull() & ~F.col("topic").isin(forwarded)
    ).select(*_RECORD, *_ORDER)


def write(
    spark: SparkSession,
    plan: Plan,
    folder: str,
    work: Storage,
) -> None:
    """Write the outputs of a run to its table as Parquet, in a folder for each topic;
    do nothing if they are already written.
    """
    done = f"{plan.run}/table"
    if work.read(done) is None:
        frame(spark, plan, folder).write.mode("overwrite").option(
            "partitionOverwriteMode",
            "static",
        ).partitionBy("topic").parquet(f"{plan.table}/run={plan.run}")
        work.write(done, b"")
