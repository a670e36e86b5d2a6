"""A backfill whose tasks fail and whose driver dies: on a real Kafka, with sessions and
a count.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from coopstreams import CoopStreams, SessionWindows, StreamsBuilder, Topology, serdes
from coopstreams.spark import Options, backfill
from coopstreams.spark.plan import Stage
from coopstreams.spark.publication import publish
from tests.broker.reading import latest, read_topic, updates_of
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka

pytestmark = pytest.mark.broker

GAP_MS = 10_000
BEGIN_MS = 1_700_000_000_000
DRIVER_DIED = 9
ROOT = Path(__file__).resolve().parents[2]


def stumble(key: Any, _: Any) -> None:
    """Fail, inside Spark, in the first attempt of a task that has one of these keys."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and key.endswith("7"):
        raise RuntimeError("injected")


def topology_of(application: str, clicks: str, sizes: str, counts: str) -> Topology:
    """Clicks in sessions, whose sizes go through a repartition topic to be counted;
    each update of both is written.
    """
    builder = StreamsBuilder(application)
    stream = builder.stream(clicks, key=serdes.text, value=serdes.text).peek(stumble)
    windows = SessionWindows(
        gap=timedelta(milliseconds=GAP_MS), grace=timedelta(days=1)
    )
    sessions = (
        stream.group_by_key()
        .windowed_by(windows)
        .count(store="sessions", retention=timedelta(days=3650))
    )
    sessions.to_stream().map(
        lambda at, count: (f"{at.key} {at.start_ms} {at.end_ms}", count),
        key=serdes.text,
        value=serdes.int64,
    ).to(sizes)
    stream.select_key(lambda key, _: key[-1], key=serdes.text).repartition(
        name="by-digit"
    ).group_by_key().count(store="digits").to_stream().to(counts)
    return builder.build()


def clicks_of(seed: int, number: int) -> list[tuple[str, int]]:
    generator, now, clicks = random.Random(seed), BEGIN_MS, []
    for _ in range(number):
        now += generator.randrange(400)
        clicks.append(
            (f"key-{generator.randrange(40)}", now - generator.randrange(3000))
        )
    return clicks


def sessions_of(clicks: list[tuple[str, int]]) -> dict[str, int]:
    """Return the final sessions, by dictionaries and sorting."""
    times: dict[str, list[int]] = defaultdict(list)
    for key, at in clicks:
        times[key].append(at)
    found = {}
    for key, all_ in times.items():
        run: list[int] = []
        for at in [*sorted(all_), 1 << 62]:
            if run and at - run[-1] > GAP_MS:
                found[f"{key} {run[0]} {run[-1]}"] = len(run)
                run = []
            run.append(at)
    return found


def write(kafka: Kafka, topic: str, clicks: list[tuple[str, int]]) -> None:
    kafka.write(topic, ((key, b"x", at) for key, at in clicks))


def die_at_second_stage() -> None:
    """The driver of a subprocess: run the backfill, and die when its second stage is
    about to begin.
    """
    bootstrap, application, clicks, sizes, counts, work = sys.argv[1:]

    def on_stage(stage: Stage) -> None:
        if stage.subtopology == 1:
            os._exit(DRIVER_DIED)

    options = Options(ranges=2, outputs="topic", work=work)
    backfill(
        topology_of(application, clicks, sizes, counts),
        settings_for(bootstrap),
        options=options,
        on_stage=on_stage,
    )


def settings_for(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "statestore.cache.max.bytes": 0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dead_driver_and_failing_tasks_change_nothing(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    application = kafka.unique("resume")
    topics = [
        kafka.topic(name, 2, retention_ms="-1")
        for name in ("clicks", "sizes", "counts")
    ]
    topology = topology_of(application, *topics)
    history = clicks_of(1, 6000)
    live = [
        (key, at + history[-1][1] - BEGIN_MS) for key, at in clicks_of(2, 1000)
    ]  # sessions continue across the cut
    write(kafka, topics[0], history)
    work = tmp_path / "work"
    code = (
        "from tests.spark.test_resume import die_at_second_stage; die_at_second_stage()"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, kafka.bootstrap, application, *topics, str(work)],
        cwd=ROOT,
        check=False,
        timeout=400,
    )
    assert died.returncode == DRIVER_DIED
    (run,) = [folder.name for folder in work.iterdir()]
    write(kafka, topics[0], live)  # behind the cut, taken before the driver died

    settings, stages = settings_for(kafka.bootstrap), list[int]()
    done = backfill(
        topology,
        settings,
        spark=spark,
        options=Options(work=str(work)),
        resume=run,
        on_stage=lambda stage: stages.append(stage.subtopology),
    )
    assert stages == [1], "a stage that was done was run again"
    assert done.records == len(history)
    publish(done, topology, settings)
    with CoopStreams(
        topology,
        {
            **settings,
            "state.dir": str(tmp_path / "state"),
            "commit.interval.ms": 100,
            **PATIENT,
        },
    ):
        expected = sessions_of([*history, *live])

        def sizes() -> dict[str, int]:
            return {
                key.decode(): serdes.int64.decode(value)
                for key, value in latest(read_topic(kafka.bootstrap, topics[1])).items()
                if value
            }

        eventually(
            lambda: sizes() == expected,
            150,
            lambda: f"{len(sizes())} sessions, {len(expected)} expected",
        )
        time.sleep(0.5)
    digits: dict[str, int] = defaultdict(int)
    for key, _ in [*history, *live]:
        digits[key[-1]] += 1
    assert updates_of(kafka.bootstrap, topics[2]) == {
        digit: list(range(1, count + 1)) for digit, count in digits.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_drivers_of_one_run_at_once_do_not_spoil_it(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    """A scheduler tries again while the first driver lives. Both wrote into the folder
    of the stage, and what was left there ended each later attempt.
    """
    application = kafka.unique("twice")
    topics = [
        kafka.topic(name, 2, retention_ms="-1")
        for name in ("clicks", "sizes", "counts")
    ]
    topology, settings = (
        topology_of(application, *topics),
        settings_for(kafka.bootstrap),
    )
    history = clicks_of(3, 2000)
    write(kafka, topics[0], history)
    options = Options(ranges=2, outputs="topic", work=str(tmp_path))

    def die(_: Stage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(topology, settings, spark=spark, options=options, on_stage=die)
    (run,) = [folder.name for folder in tmp_path.iterdir()]
    both = Barrier(2)

    def begin_together(stage: Stage) -> None:
        if stage.subtopology == 0:
            both.wait(300)

    def drive() -> None:
        with suppress(Exception):  # their tasks may fence each other
            backfill(
                topology,
                settings,
                spark=spark,
                options=options,
                resume=run,
                on_stage=begin_together,
            )

    drivers = [Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    done = backfill(topology, settings, spark=spark, options=options, resume=run)
    assert done.records == len(history)
    digits: dict[str, int] = defaultdict(int)
    for key, _ in history:
        digits[key[-1]] += 1
    assert updates_of(kafka.bootstrap, topics[2]) == {
        digit: list(range(1, count + 1)) for digit, count in digits.items()
    }
