"""PySpark's daemon, which forks a worker for each task, with all modules that a task needs imported before.

Otherwise each worker imports them anew: pyarrow, pandas and ours take 1.6 s of a processor (measured), where a task on
little data takes a tenth of that. `spark.python.daemon.module` names it.

Invariant: an import starts no thread, because a thread does not survive a fork.
"""

import gc

import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import coopstreams.spark.rebuilding
import coopstreams.spark.routing
import coopstreams.spark.task  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # a worker that collects garbage would copy the pages of all modules
    manager()
