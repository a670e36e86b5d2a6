"""Windows on a real Kafka: sessions, windows that wait to be closed and groups of tables survive the process that kept
them.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, SessionWindows, StreamsBuilder, TimeWindows, Topology, serdes, until_window_closes
from tests.broker.reading import read_topic
from tests.conftest import PATIENT


def topology_of(application: str, topics: dict[str, str]) -> Topology:
    """Clicks in sessions, in minutes once they are over, and how many keys have how many of them."""
    builder = StreamsBuilder(application)
    clicks = builder.stream(topics["clicks"], key=serdes.text, value=serdes.text)
    group = clicks.group_by_key()
    sessions = group.windowed_by(SessionWindows(gap=timedelta(seconds=10), grace=timedelta(hours=1))).count(
        store="sessions"
    )
    sessions.to_stream().map(
        lambda at, count: (at.key, f"{at.start_ms}-{at.end_ms}:{count}"), key=serdes.text, value=serdes.text
    ).to(topics["sessions"])
    minutes = (
        group.windowed_by(TimeWindows(minutes=1)).count(store="minutes").suppress(until_window_closes(), name="final")
    )
    minutes.to_stream().map(
        lambda at, count: (at.key, f"{at.start_ms}:{count}"), key=serdes.text, value=serdes.text
    ).to(topics["minutes"])
    totals = (
        group.count(store="totals")
        .group_by(lambda _, count: (str(count), "x"), key=serdes.text, value=serdes.text)
        .count(store="groups")
    )
    totals.to_stream().map_values(str, value=serdes.text).to(topics["groups"])
    return builder.build()


@pytest.mark.broker
def test_what_windows_keep_survives_a_restart(kafka: Any, tmp_path: Path) -> None:
    topics = {name: kafka.topic(name) for name in ("clicks", "sessions", "minutes", "groups")}
    topology = topology_of(kafka.unique("windows"), topics)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "commit.interval.ms": 100,
        "ranges.per.partition": 4,
        "processing.guarantee": "exactly_once_v2",
        **PATIENT,
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def click(*times: tuple[str, int]) -> None:
        for key, timestamp in times:
            producer.produce(topics["clicks"], b"x", key, timestamp=timestamp)
        assert producer.flush(60) == 0

    def latest(topic: str) -> dict[str, Any]:
        return {
            (key or b"").decode(): None if value is None else value.decode()
            for key, value, *_ in read_topic(kafka.bootstrap, topics[topic])
        }

    def wait_for(topic: str, expected: dict[str, Any]) -> None:
        deadline = time.monotonic() + 120
        while latest(topic) != expected:
            assert time.monotonic() < deadline, f"{topic} has {latest(topic)}"
            time.sleep(0.2)

    with CoopStreams(topology, {**settings, "state.dir": str(tmp_path / "first")}):
        click(("a", 1000), ("b", 2000), ("a", 9000))
        wait_for("sessions", {"a": "1000-9000:2", "b": "2000-2000:1"})
        wait_for("groups", {"1": "1", "2": "1"})
    assert latest("minutes") == {}
    # nothing local: all from changelogs
    with CoopStreams(topology, {**settings, "state.dir": str(tmp_path / "second")}):
        click(("a", 15_000), ("c", 60_000))
        wait_for("sessions", {"a": "1000-15000:3", "b": "2000-2000:1", "c": "60000-60000:1"})
        wait_for("minutes", {"a": "0:3", "b": "0:1"})
        wait_for("groups", {"1": "2", "2": "0", "3": "1"})


@pytest.mark.broker
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_window_behind_a_filter_is_told_once_whoever_goes_on(kafka: Any, tmp_path: Path, ranges: int) -> None:
    """What time it is for windows behind a filter is in the commits: neither rows nor the partition say it."""
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
