"""Spark: a topology over history, and Kafka as a source and sink of DataFrames. Needs
the extra `spark`.
"""

from coopstreams.admin.rebuild import RebuildScope
from coopstreams.spark.execution import Backfilled, backfill
from coopstreams.spark.history.kafka_source import (
    KafkaSource,
    read_options,
    write_options,
)
from coopstreams.spark.history.sources import KafkaHistory, TableHistory
from coopstreams.spark.preparation import Options
from coopstreams.spark.publication import publish
from coopstreams.spark.snapshot_rebuild import rebuild
from coopstreams.spark.source_rebuild import RebuiltFromSource, rebuild_from_source
from coopstreams.spark.spark_session import local_session
from coopstreams.spark.workers.stage_progress import TaskProgress

__all__ = [
    "Backfilled",
    "KafkaHistory",
    "KafkaSource",
    "Options",
    "RebuildScope",
    "RebuiltFromSource",
    "TableHistory",
    "TaskProgress",
    "backfill",
    "local_session",
    "publish",
    "read_options",
    "rebuild",
    "rebuild_from_source",
    "write_options",
]
