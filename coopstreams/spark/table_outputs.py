"""The outputs of a backfill as a table: what a live application would have written to topics, for whoever wants to look
at them in Spark.

Tasks hand them over as rows of their stage, beside what they forward to the next one. Spark commits a stage whole, with
one attempt of each task; so no row is there twice, and a run that is resumed finds those of the stages that are done.

Invariant: a table has for each run one folder, `run=<name>`, which is written anew as a whole or not at all.
Turned down: appending (a driver that dies after it cannot know whether it has), and numbers of partitions (nobody has
asked the topics).
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.plan import Plan, Stage
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import ConfigError

_RECORD = ("topic", "key", "value", "timestamp", "headers")
_ORDER = ("time", "subtopology", "task", "number")


def absolute(place: str) -> str:
    """Return a folder by its whole path, for workers that are elsewhere; a URL is one already."""
    return place if "://" in place else str(Path(place).absolute())


def stage_folder(folder: str, stage: Stage) -> str:
    """Return where the rows of a stage lie, in the folder of a run."""
    return (
        f"{folder}/stage-{stage.subtopology}"
        if stage.is_last
        else f"{folder}/stage-{stage.subtopology}-round-{stage.round}"
    )


def frame(spark: SparkSession, plan: Plan, folder: str) -> DataFrame:
    """Return the outputs of a run.

    Shape: the columns of a record, without a partition; then what orders all of them.

    Raises:
        ConfigError: the run was asked for no table.
    """
    if plan.outputs != "table":
        raise ConfigError(f'run {plan.run} has no table of outputs: its outputs are "{plan.outputs}"')
    forwarded = [topic for stage in plan.stages for topic, _ in stage.forwarded]
    stages = [
        spark.read.parquet(stage_folder(folder, each)).withColumn("subtopology", F.lit(each.subtopology))
        for each in plan.stages
    ]
    rows = stages[0]
    for other in stages[1:]:
        rows = rows.unionByName(other)
    return rows.where(F.col("topic").isNotNull() & ~F.col("topic").isin(forwarded)).select(*_RECORD, *_ORDER)


def write(spark: SparkSession, plan: Plan, folder: str, work: Storage) -> None:
    """Write the outputs of a run to its table as Parquet, in a folder for each topic, unless that is done."""
    done = f"{plan.run}/table"
    if work.read(done) is None:
        frame(spark, plan, folder).write.mode("overwrite").option("partitionOverwriteMode", "static").partitionBy(
            "topic"
        ).parquet(f"{plan.table}/run={plan.run}")
        work.write(done, b"")
