"""Workers of a local session start with all modules that a task needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession


@pytest.mark.ci
def test_a_worker_imports_nothing_of_ours_itself(spark: SparkSession) -> None:
    # pickled by value, so it imports nothing
    def loaded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict(
                {"task": ["coopstreams.spark.spark_task" in sys.modules]}
            )

    rows = spark.range(1).mapInArrow(loaded, "task boolean").collect()
    assert {row["task"] for row in rows} == {True}
