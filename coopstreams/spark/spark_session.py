"""Spark sessions: a local one, one of a cluster, or one that the user passes.

Only DataFrames are used, so that a session of Spark Connect works as well as a classic
one; only `local_session` needs a SparkContext.

Invariant: a session that was not made here is neither configured nor stopped here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from coopstreams.common.java import find_java

ATTEMPTS = 4
"""Attempts of a task in a local session; Spark's default is one."""


def local_session(
    name: str = "coopstreams",
    settings: Mapping[str, str] | None = None,
    *,
    cores: str = "*",
) -> SparkSession:
    """Return a local session. `settings`, in Spark's names, override those chosen here.

    Workers run this Python interpreter, with the same module path.
    """
    os.environ["PYSPARK_PYTHON"] = (
        sys.executable
    )  # the default is any `python3` on the path
    os.environ.setdefault("JAVA_HOME", str(find_java().executable.parent.parent))
    path = os.pathsep.join(os.path.abspath(folder or os.curdir) for folder in sys.path)
    builder: Any = SparkSession.builder  # each access makes a new one
    builder = builder.master(f"local[{cores},{ATTEMPTS}]").appName(name)
    own = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.speculation": "false",  # two attempts of a task would fence each other
        "spark.executorEnv.PYTHONPATH": path,
        "spark.python.daemon.module": "coopstreams.spark.worker_daemon",
    }
    for key, value in {**own, **(settings or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def session_or_local(
    spark: SparkSession | None,
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    cores: str = "*",
    remote: str | None = None,
) -> Iterator[SparkSession]:
    """Yield the given session, else the active one, else a new session that ends with
    the block.

    A new session is one of the Spark Connect server `remote` if that is given, that of
    spark-submit if it started this program, or else a local one.
    """
    found = spark or SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    session = _elsewhere(name, remote) or local_session(name, settings, cores=cores)
    try:
        yield session
    finally:
        session.stop()


def _elsewhere(name: str, remote: str | None) -> SparkSession | None:
    builder: Any = SparkSession.builder
    if remote is not None:
        connected: SparkSession = builder.remote(remote).getOrCreate()
        return connected
    if (
        "PYSPARK_GATEWAY_PORT" in os.environ
    ):  # started by spark-submit, which sets master and archives
        submitted: SparkSession = builder.appName(name).getOrCreate()
        return submitted
    return None
