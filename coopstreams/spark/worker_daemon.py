"""PySpark's daemon, which forks a worker for each task, with all modules that a task
needs already imported.

Otherwise each worker would import them: pyarrow, pandas and our modules take 1.6 s of
CPU time (measured), ten times a task on little data. Memory is tuned as in a process
that runs a topology. The setting `spark.python.daemon.module` names this module.

Invariant: an import starts no thread, because a thread does not survive a fork.
"""

import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import coopstreams.spark.native_task
import coopstreams.spark.routing
import coopstreams.spark.snapshot_rebuild
import coopstreams.spark.spark_task  # noqa: F401
from coopstreams.common.process_limits import tune_memory

if __name__ == "__main__":
    # it also freezes objects: otherwise a worker's garbage collection would copy the
    # pages of all modules
    tune_memory()
    manager()
