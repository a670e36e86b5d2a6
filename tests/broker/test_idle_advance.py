"""A topic that falls silent, on a real Kafka: windows of all key ranges close, a late record is late for each of them,
and a replay finds the same.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, TimeWindows, Topology, serdes, until_window_closes
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import ConfigError
from tests.broker.counting import instance_of
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(20)]


def topology(application: str, source: str, sink: str) -> Topology:
    builder = StreamsBuilder(application)
    stream = builder.stream(source, key=serdes.text, value=serdes.raw, idle_advance=timedelta(seconds=1))
    counted = stream.group_by_key().windowed_by(TimeWindows(seconds=2)).count(store="counts")
    counted.suppress(until_window_closes()).to_stream().map(
        lambda window, count: (f"{window.key}@{window.start_ms}", str(count)), key=serdes.text, value=serdes.text
    ).to(sink)
    return builder.build()


def app(kafka: Kafka, program: Topology, folder: Path, **settings: Any) -> CoopStreams:
    return CoopStreams(program, kafka.config(folder, processing_guarantee="exactly_once_v2", **settings))


def write(kafka: Kafka, topic: str, keys: list[str], timestamp: int) -> None:
    kafka.write(topic, ((key, b"x") for key in keys), timestamp=timestamp)


def results(kafka: Kafka, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    return Counter((record.key, record.value) for record in read_topic(kafka.bootstrap, topic))


def test_windows_of_all_key_ranges_close_on_a_silent_partition_and_a_replay_finds_the_same(
    kafka: Kafka, tmp_path: Path
) -> None:
    application, source, sink = kafka.unique("idle"), kafka.topic("in"), kafka.topic("out")
    program = topology(application, source, sink)
    first, second = (app(kafka, program, tmp_path / str(n), instance=n) for n in range(2))
    expected = Counter({(f"{key}@10000".encode(), b"1"): 1 for key in KEYS})
    with first, second:
        eventually(lambda: len(instance_of(first).tasks) == len(instance_of(second).tasks) == 1, 120, lambda: "no task")
        write(kafka, source, KEYS, 10_500)
        eventually(lambda: results(kafka, sink) >= expected, 120, lambda: f"{results(kafka, sink)}; {first.status()}")
        sources = [task["sources"][0] for each in (first, second) for task in (each.status() or {})["tasks"]]
        assert all(told["silent_s"] > 0 for told in sources), "each reader hears the silence"
        assert all(told["stream_time"] >= 12_000 for told in sources)
        write(kafka, source, KEYS, 11_000)  # they are late: the window is closed for all of them
        write(kafka, source, KEYS, 1_000_000)
        last = Counter({(f"{key}@1000000".encode(), b"1"): 1 for key in KEYS})
        eventually(lambda: results(kafka, sink) >= expected + last, 120, lambda: f"{results(kafka, sink)}")
    assert results(kafka, sink) == expected + last, "a late record counts nowhere"

    again = kafka.topic("out-again")
    replayed = topology(kafka.unique("replay"), source, again)
    with app(kafka, replayed, tmp_path / "replay", ranges_per_partition=4):
        eventually(lambda: results(kafka, again) >= expected + last, 120, lambda: f"{results(kafka, again)}")
    assert results(kafka, again) == expected + last


def test_a_compacted_topic_takes_no_marks_and_the_error_has_the_cure(kafka: Kafka, tmp_path: Path) -> None:
    source, sink = kafka.unique("compacted"), kafka.topic("out")
    log = KafkaLog(kafka.settings)
    log.create_topics([TopicSpec(source, 1, {"cleanup.policy": "compact"})])
    log.close()
    program = topology(kafka.unique("idle"), source, sink)
    with pytest.raises(ConfigError, match=r"the topic is compacted.*\.repartition\(idle_advance=\.\.\.\)"):
        app(kafka, program, tmp_path).run()
