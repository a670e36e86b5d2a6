"""A backfill makes the calls of a program as a live application does: many at a time,
with the same results.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coopstreams import CallContext, Record, StreamsBuilder, key_value_store, serdes
from coopstreams.spark import Options, backfill
from tests.broker.reading import read_topic
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


async def longer(text: str) -> str:
    """Wait a moment, as a request does."""
    await asyncio.sleep(0.002)
    return f"{text}!"


REFUSED = ["value 42", "value 7"]


async def counted(record: Record[str, str], context: CallContext[str, int]) -> None:
    """Count the records of each key."""
    row = context.store("counts")
    count = (row.get() or 0) + 1
    row.put(count)
    await asyncio.sleep(0.002)
    if record.value in REFUSED:
        raise ValueError(record.value)
    context.forward(record.with_value(count))


@pytest.mark.slow
def test_results_of_calls_are_those_of_each_record(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    source, out, counts, dead = (
        kafka.topic(name, 2) for name in ("in", "out", "counts", "dead")
    )
    builder = StreamsBuilder(kafka.unique("calls"))
    read = builder.stream(source, key=serdes.text, value=serdes.text)
    kept = read.filter(lambda _, value: value != "left out")
    kept.map_values_async(longer, value=serdes.text).to(out)
    store = key_value_store("counts", key=serdes.text, value=serdes.json)
    kept.process_async(
        counted, stores=[store], key=serdes.text, value=serdes.json, dead_letters=dead
    ).to(counts)
    kafka.write(
        source,
        (
            (f"key {number % 20}", "left out" if number % 5 == 0 else f"value {number}")
            for number in range(500)
        ),
    )
    backfill(
        builder.build(),
        {"bootstrap.servers": kafka.bootstrap},
        spark=spark,
        options=Options(ranges=2, outputs="topic", work=str(tmp_path)),
    )
    found = Counter((key, value) for key, value, *_ in read_topic(kafka.bootstrap, out))
    assert found == Counter(
        (f"key {number % 20}".encode(), f"value {number}!".encode())
        for number in range(500)
        if number % 5
    )
    known = [
        (key, int(value or b""))
        for key, value, *_ in read_topic(kafka.bootstrap, counts)
    ]
    for number in {number % 20 for number in range(500) if number % 5}:
        mine = [count for key, count in known if key == f"key {number}".encode()]
        assert mine == list(
            range(
                1,
                26 - sum(f"value {each}" in REFUSED for each in range(number, 500, 20)),
            )
        )
    assert (
        sorted(
            (record.value or b"").decode()
            for record in read_topic(kafka.bootstrap, dead)
        )
        == REFUSED
    )
