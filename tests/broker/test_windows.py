"""Windows on a real Kafka survive the process that kept them: their operator time is in the commits."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, TimeWindows, serdes
from tests.broker.reading import read_topic
from tests.conftest import PATIENT


@pytest.mark.broker
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_window_behind_a_filter_is_told_once_whoever_goes_on(kafka: Any, tmp_path: Path, ranges: int) -> None:
    """The operator time of windows behind a filter is in the commits: neither rows nor the partition show it."""
    source, sink = kafka.topic("clicks"), kafka.topic("closed")
    builder = StreamsBuilder(kafka.unique("closed"))
    clicks = builder.stream(source, key=serdes.text, value=serdes.text).filter(lambda _, value: value == "counts")
    windows = clicks.group_by_key().windowed_by(TimeWindows(seconds=10)).emit_strategy("on_window_close")
    counts = windows.count(store="counts", retention=timedelta(hours=1)).to_stream()
    counts.map(lambda at, count: (at.key, f"{at.start_ms}:{count}"), key=serdes.text, value=serdes.text).to(sink)
    topology = builder.build()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def click(*times: tuple[str, int, str]) -> None:
        for key, timestamp, value in times:
            producer.produce(source, value, key, timestamp=timestamp)
        assert producer.flush(60) == 0

    def told() -> list[tuple[str, str]]:
        return sorted(
            ((each.key or b"").decode(), (each.value or b"").decode()) for each in read_topic(kafka.bootstrap, sink)
        )

    settings = {"ranges.per.partition": ranges, "processing.guarantee": "exactly_once_v2", **PATIENT}
    expected: list[tuple[str, str]] = []
    for folder, clicked, closed in (
        ("first", [("a", 1000, "counts"), ("b", 15_000, "counts"), ("c", 3_600_000, "does not")], ("a", "0:1")),
        ("second", [("a", 5000, "counts"), ("c", 40_000, "counts")], ("b", "10000:1")),
        ("third", [("b", 5000, "counts"), ("d", 60_000, "counts")], ("c", "40000:1")),
    ):
        click(*clicked)
        expected.append(closed)
        at = {"bootstrap.servers": kafka.bootstrap, "commit.interval.ms": 100, "state.dir": str(tmp_path / folder)}
        with CoopStreams(topology, {**at, **settings}):
            deadline = time.monotonic() + 120
            while closed not in told():
                assert time.monotonic() < deadline, told()
                time.sleep(0.2)
        assert told() == sorted(expected)
