"""The programs of the page about backfills run in order, on a Kafka of their own and
with a small archive.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from coopstreams import serdes
from coopstreams.dev.broker import KafkaBroker
from tests.broker.reading import read_topic
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.broker

ORDERS = [
    (number, f"customer-{number % 7}", number * 1.5, "EUR") for number in range(400)
]


@pytest.mark.slow
def test_the_programs_of_the_page_run(
    broker_of_own: Callable[..., KafkaBroker],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bootstrap = broker_of_own().bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(
        [NewTopic(topic, 1, 1) for topic in ("orders", "per-customer", "copy")]
    ).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(1000):
        producer.produce(
            "orders",
            b"{}",
            b"customer-%d" % (number % 7),
            headers=[("number", b"%d" % number)],
        )
    assert producer.flush(30) == 0
    rows = spark.createDataFrame(
        ORDERS, "order_number bigint, customer string, amount double, currency string"
    )
    rows.selectExpr(
        "*", "timestamp_millis(1700000000000 + order_number * 1000) as ordered_at"
    ).write.parquet(str(tmp_path / "orders"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks(ROOT / "docs" / "backfill.md"):
        if (
            block.file is not None
        ):  # the others need no Spark, and run with those of all pages
            (tmp_path / block.file).write_text(
                block.text.replace("localhost:9092", bootstrap).replace(
                    "s3a://archive", str(tmp_path)
                )
            )
            runpy.run_path(str(tmp_path / block.file), run_name="__main__")
    sys.modules.pop("orders", None)

    assert capsys.readouterr().out.startswith("400 {")
    updates = spark.read.parquet(str(tmp_path / "per-customer")).collect()
    latest = {
        row.key.decode(): serdes.int64.decode(bytes(row.value))
        for row in sorted(updates, key=lambda row: (row.task, row.number))
    }
    assert latest == Counter(customer for _, customer, _, _ in ORDERS)
    # Four parts of the topic were copied in parallel.
    copied = sorted(
        (int(record.headers["number"] or b""), record.key)
        for record in read_topic(bootstrap, "copy")
    )
    assert copied == [(number, b"customer-%d" % (number % 7)) for number in range(1000)]
