"""A source partition whose process is down holds the time of all windows, with its
name; after the restart time goes on, and nothing was late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import (
    CoopStreams,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
)
from coopstreams.query.client import QueryClient
from tests.broker.processes import Workers
from tests.broker.test_time_behind_topics import (
    BEGIN_MS,
    HOUR_MS,
    backlog,
    expected,
    told,
    write,
)
from tests.broker.waiting import eventually
from tests.conftest import Kafka

RECORDS = 4000
SKEW_MS = 2 * 3_600_000


def status(group: Workers, number: int) -> dict[str, Any]:
    url = group.url(number)
    assert url is not None
    with QueryClient(url) as client:
        return client.status()


def waits(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return whom the tasks of the instance that was asked wait for."""
    (here,) = [one for one in report["instances"] if one["id"] == report["here"]]
    times = [task["time"] for task in here["tasks"] if task["time"] is not None]
    return [
        time["waits_for"] | {"held_back": time["held_back"]}
        for time in times
        if time["waits_for"] is not None
    ]


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("skew_ms", [None, SKEW_MS], ids=["any skew", "little skew"])
def test_a_process_that_is_down_is_named_and_makes_nothing_late(
    kafka: Kafka, workers: Callable[..., Workers], skew_ms: int | None
) -> None:
    source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    rows = backlog(2, 2, RECORDS, 0.05)
    first = [some[: len(some) // 4] for some in rows]
    then = [some[len(some) // 4 :] for some in rows]
    bounded = {} if skew_ms is None else {"max_time_skew_ms": skew_ms}
    group = workers(
        "windowed_app.py",
        kafka.bootstrap,
        {
            "TEST_APPLICATION": kafka.unique("hours"),
            "TEST_INPUT": source,
            "TEST_OUTPUT": out,
        },
        commit_interval_ms=100,
        ranges_per_partition=1,
        # Nobody promises: what is late follows from the records alone.
        repartition_idle_ms=600_000,
        session_timeout_ms=15_000,
        **bounded,
    )
    for number in range(2):
        group.start(number)

    def owner() -> str | None:
        """Return which instance has the first stage of partition 1, if all tasks run
        and have no lag.
        """
        report = status(group, 0)
        tasks = {
            (each["subtopology"], each["partition"]): (instance["id"], each)
            for instance in report["instances"]
            for each in instance["tasks"]
        }
        idle = len(tasks) == 4 and all(
            each["state"] == "running" and each["lag"] == 0
            for _, each in tasks.values()
        )
        return tasks[0, 1][0] if idle else None

    write(kafka, source, first)
    eventually(lambda: None not in map(group.url, range(2)), 60, group.logs)
    eventually(lambda: told(kafka, out) == expected(first), 60, group.logs)
    eventually(lambda: owner() is not None, 60, lambda: str(status(group, 0)))
    down = owner()
    number = next(n for n in range(2) if status(group, n)["here"] == down)
    group.kill(number)
    write(kafka, source, then)
    stays = 1 - number

    def is_named() -> bool:
        named = [
            (each["subtopology"], each["partition"], each["owner"], each["held_back"])
            for each in waits(status(group, stays))
        ]
        clock, held = (0, 1, down, False), (0, 1, down, True)
        return clock in named and (skew_ms is None or held in named)

    eventually(is_named, 12, lambda: str(status(group, stays)))
    group.start(number)
    want = expected(rows)
    eventually(
        lambda: told(kafka, out) == want,
        90,
        lambda: (
            f"{sum(told(kafka, out).values())} of {sum(want.values())}, {status(group, stays)}"
        ),
    )
    eventually(lambda: not waits(status(group, stays)), 30, group.logs)


@pytest.mark.ci
@pytest.mark.broker
def test_a_partition_that_is_silent_before_its_records_are_done_promises_after_them(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Otherwise its last windows never closed."""
    source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    write(
        kafka,
        source,
        [
            [(f"k{i}", "slow", BEGIN_MS + i) for i in range(40)],
            [("k", "fast", BEGIN_MS + 2 * HOUR_MS)],
        ],
    )

    def in_time(value: str) -> str:
        if value == "slow":
            time.sleep(0.1)
        return value

    builder = StreamsBuilder(kafka.unique("hours"))
    payments = builder.stream(source, key=serdes.text, value=serdes.text)
    done = payments.map_values(in_time, value=serdes.text)
    by_value = done.group_by(lambda _, value: value, key=serdes.text)
    windows = TimeWindows(hours=1, grace=timedelta(0))
    counts = by_value.windowed_by(windows).count(store="hours")
    counts.suppress(until_window_closes()).to_stream().to(out)
    config = kafka.config(tmp_path, repartition_idle_ms=1000)
    with CoopStreams(builder.build(), config) as app:
        want = {("slow", BEGIN_MS): 40}
        eventually(lambda: told(kafka, out) == want, 20, lambda: str(app.status()))
