"""A backfill in a remote session, in a process of its own: `python -m
tests.spark.elsewhere SESSION JSON`.

Prints the outcome as the last line.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from coopstreams.commands.topology_target import load_topology
from coopstreams.spark import Options, backfill, publish
from coopstreams.topology.errors import CoopStreamsError

SESSIONS = {
    "connect": ("remote", "local[2]"),
    "cluster": ("master", "local-cluster[2,1,1024]"),
}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
}


def session(kind: str) -> SparkSession:
    """Return a session of Spark Connect, or of a cluster whose executors are processes
    of their own.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    how, where = SESSIONS[kind]
    builder: Any = SparkSession.builder
    builder = getattr(builder, how)(where)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def outcome(
    spark: SparkSession, program: str, settings: dict[str, Any], work: str
) -> dict[str, Any]:
    topology = load_topology(program)
    try:
        done = backfill(
            topology,
            settings,
            spark=spark,
            options=Options(
                ranges=2, outputs="topic", work=work, snapshots=f"{work}/snapshots"
            ),
        )
    except CoopStreamsError as error:
        return {"error": type(error).__name__, "said": str(error)}
    goes_on = {
        str(place): offset
        for place, offset in publish(done, topology, settings).items()
    }
    keys = sum(
        piece.entries
        for result in done.results
        for slices in result.slices.values()
        for each in slices
        for piece in each.files
    )
    return {"records": done.records, "goes on": goes_on, "keys in snapshots": keys}


def main() -> None:
    asked = json.loads(sys.argv[2])
    spark = session(sys.argv[1])
    try:
        outcomes = [
            outcome(spark, program, asked["settings"], asked["work"])
            for program in asked["programs"]
        ]
    finally:
        spark.stop()
    print(json.dumps({"session": type(spark).__module__, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
