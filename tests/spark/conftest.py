"""One Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from coopstreams.spark.spark_session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A test ends before the JVM's second compiler pays off. Without it the JVM reserves
    # 48 MB for code, not 240, which the queries of a process with many tests fill: then
    # tasks fail.
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    }
    session = local_session("tests", settings, cores="2")
    yield session
    session.stop()
