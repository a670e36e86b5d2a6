"""Faults while records flow: lost brokers, deleted topics, slow functions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.instance import components
from coopstreams.instance.serving import Serving
from coopstreams.opening import opener
from coopstreams.status import stall_detector
from coopstreams.topology.errors import (
    ConfigError,
    CoopStreamsError,
    LogError,
    ProcessingError,
)
from tests.broker.counting import (
    Counting,
    await_running,
    await_table,
    failure_of,
    instance_of,
    metric,
)
from tests.broker.reading import read_topic, updates_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def updates(counting: Counting) -> dict[str, list[int]]:
    return updates_of(counting.kafka.bootstrap, counting.sink)


def check_once(counting: Counting, written: Counter[str]) -> None:
    """Assert that each update is read once, in order; soon, because markers follow the
    answer to a commit.
    """
    right = {key: list(range(1, count + 1)) for key, count in written.items()}
    eventually(
        lambda: sum(map(len, updates(counting).values())) >= written.total(),
        60,
        lambda: str(updates(counting)),
    )
    assert updates(counting) == right


def ends_with(
    app: CoopStreams, cause: Callable[[], None], timeout_s: float
) -> BaseException:
    """Return the error with which a running application ends after this fault."""
    try:
        with app:
            await_running([app])
            cause()
            assert app._thread is not None
            app._thread.join(timeout_s)
            assert not app._thread.is_alive(), "it still runs"
    except CoopStreamsError as error:
        return error
    raise AssertionError("it ended as if nothing had happened")


@pytest.mark.slow
def test_a_source_topic_that_is_deleted_stops_the_instance(
    kafka: Kafka, tmp_path: Path
) -> None:
    """After half a minute: librdkafka waits that long for a known topic to come back."""
    counting = Counting.make(kafka)
    error = ends_with(
        counting.app(tmp_path), lambda: kafka.delete(counting.source), 120
    )
    assert isinstance(error, LogError)
    assert counting.source in str(error)


@pytest.mark.slow
def test_a_task_that_opens_when_its_source_topic_is_gone_ends_the_instance(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opener, "GONE_S", 1.0)
    counting = Counting.make(kafka)

    def hand_over(first: CoopStreams, second: CoopStreams) -> None:
        await_running([first, second])
        kafka.delete(counting.source)
        first.stop()
        assert second._thread is not None
        second._thread.join(60)
        assert not second._thread.is_alive(), "it still runs"

    with (
        suppress(LogError),
        counting.app(tmp_path, 0) as first,
    ):  # its last commit is refused, or there is none
        await_running([first])
        with (
            pytest.raises(LogError, match=counting.source),
            counting.app(tmp_path, 1) as second,
        ):
            hand_over(first, second)


@pytest.mark.slow
def test_a_sink_topic_that_is_deleted_stops_the_instance(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    app = counting.app(
        tmp_path, processing_guarantee="exactly_once_v2", transaction_timeout_ms=5000
    )

    def cause() -> None:
        kafka.delete(counting.sink)
        counting.write(["a"] * 10)

    error = ends_with(app, cause, 120)
    assert isinstance(error, LogError)
    assert counting.sink in str(error)
    kafka.create(counting.sink)
    with counting.app(
        tmp_path, processing_guarantee="exactly_once_v2", statestore_cache_max_bytes=0
    ):
        eventually(
            lambda: len(updates(counting).get("a", [])) >= 10,
            120,
            lambda: str(updates(counting)),
        )
    assert updates(counting) == {"a": list(range(1, 11))}


@pytest.mark.ci
def test_a_source_topic_that_is_made_anew_with_fewer_records_ends_the_instance_with_the_cure(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The reader's offset is out of range at once, long before the watcher compares the
    ids of topics.
    """
    counting = Counting.make(kafka)
    app = counting.app(tmp_path)

    def cause() -> None:
        await_table(app, counting.write(["a"] * 21))
        kafka.delete(counting.source)
        kafka.create(counting.source)
        counting.write(["a"] * 3)

    error = ends_with(app, cause, 120)
    assert isinstance(error, ConfigError), error
    for part in (
        "the topic was deleted and made anew",
        f"--topic {counting.source} --to earliest`",
    ):
        assert part in str(error)


@pytest.mark.ci
def test_a_source_topic_that_grows_is_told_with_what_the_next_start_says(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "COMPARE_EVERY_S", 0.5)
    counting = Counting.make(kafka)

    def told() -> list[str]:
        health = httpx.get(f"{app.url}/health/ready", trust_env=False, timeout=60)
        return [
            reason["message"]
            for reason in health.json()["reasons"]
            if reason["code"] == "more-partitions"
        ]

    with counting.app(tmp_path) as app:
        await_table(app, counting.write(["a", "b"]))
        assert told() == []
        kafka.grow(counting.source, 2)
        eventually(lambda: bool(told()), 60, lambda: str(app.status()))
        (why,) = told()
    assert (
        f'"{counting.source}" has 2 partitions, and had 1 when the application looked: records in the new'
        in why
    )
    assert str(failure_of(counting.app(tmp_path))) in why


@pytest.mark.slow
def test_a_slow_function_commits_between_records(kafka: Kafka, tmp_path: Path) -> None:
    """A batch takes longer than a transaction may; a second instance gets its share
    without waiting for the queue.
    """
    source, sink, application = (
        kafka.topic("in"),
        kafka.topic("out"),
        kafka.unique("slow"),
    )
    builder = StreamsBuilder(application)
    handed_over = threading.Event()

    def slow(value: bytes) -> bytes:
        handed_over.wait(0.02)
        return value

    builder.stream(source, key=serdes.text, value=serdes.raw).map_values(
        slow, value=serdes.raw
    ).group_by_key().count(store="counts").to_stream().to(sink)
    counting = Counting(kafka, application, source, sink, builder.build())
    written = counting.write(
        f"key-{number % 100}" for number in range(8000)
    )  # for three minutes
    settings: dict[str, Any] = {
        "processing_guarantee": "exactly_once_v2",
        "transaction_timeout_ms": 10_000,
        "statestore_cache_max_bytes": 0,
    }
    with counting.app(tmp_path, 0, **settings) as first:
        eventually(
            lambda: len(read_topic(kafka.bootstrap, sink)) > 550,
            120,
            lambda: "nothing was committed",
        )
        with counting.app(tmp_path, 1, **settings) as second:
            await_running([first, second])
            assert len(read_topic(kafka.bootstrap, sink)) < 7000, (
                "a hand-over waits for one record, not for the queue"
            )
            handed_over.set()
            await_table(second, written)
            assert metric(first, "coopstreams_aborts_total") == 0
    check_once(counting, written)


@pytest.mark.ci
def test_a_function_that_takes_too_long_each_time_ends_the_process(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The process is no member any more whenever the call has ended; its error counts
    nevertheless.
    """
    source, sink, application = (
        kafka.topic("in"),
        kafka.topic("out"),
        kafka.unique("outlasts"),
    )
    builder = StreamsBuilder(application)
    apps: list[CoopStreams] = []

    def outlasts(value: bytes) -> bytes:
        eventually(
            lambda: "makes no progress" in instance_of(apps[0]).member.problem,
            60,
            lambda: "the group keeps a member that does not move",
        )
        return value

    builder.stream(source, key=serdes.text, value=serdes.raw).map_values(
        outlasts, value=serdes.raw
    ).to(sink)
    counting = Counting(kafka, application, source, sink, builder.build())
    apps.append(
        counting.app(
            tmp_path, processing_guarantee="exactly_once_v2", max_poll_interval_ms=3000
        )
    )
    counting.write(["key"])
    error = ends_with(apps[0], lambda: None, 60)
    assert isinstance(error, ProcessingError)
    assert 'the record at offset 0 of "' in str(error)
    assert (
        "longer than max.poll.interval.ms (3 s): its results were void 3 times"
        in str(error)
    )


@pytest.mark.ci
def test_a_slow_function_is_named_and_the_process_live_until_the_group_would_lose_it(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_detector, "STALLED_S", 3.5)
    counting = Counting.make(kafka)
    builder = StreamsBuilder(counting.application)
    done = threading.Event()

    def waits(value: bytes) -> bytes:
        done.wait(60)
        return value

    stream = builder.stream(counting.source, key=serdes.text, value=serdes.raw)
    stream.map_values(waits, value=serdes.raw, name="waits").to(counting.sink)
    slow = replace(counting, topology=builder.build())
    slow.write(["key"])
    with slow.app(tmp_path, max_poll_interval_ms=7000) as app:
        serving = Serving(instance_of(app), {})

        def codes() -> dict[str, str]:
            return {each.code: each.message for each in serving.health().reasons}

        eventually(lambda: "slow-function" in codes(), 30, lambda: str(codes()))
        assert serving.health().live
        assert "no-progress" not in codes()
        assert "its thread has run a function of waits (" in codes()["slow-function"]
        assert "in waits) for " in codes()["slow-function"]
        assert "max.poll.interval.ms allows 7 s" in codes()["slow-function"]
        eventually(lambda: "no-progress" in codes(), 30, lambda: str(codes()))
        assert not serving.health().live
        assert "a function of waits" in codes()["no-progress"]
        done.set()
        written = partial(read_topic, kafka.bootstrap, slow.sink)
        eventually(lambda: bool(written()), 60, lambda: "it goes on")


@pytest.mark.ci
def test_a_function_that_takes_too_long_once_costs_the_membership_and_nothing_else(
    kafka: Kafka, tmp_path: Path
) -> None:
    source, sink, application = (
        kafka.topic("in"),
        kafka.topic("out"),
        kafka.unique("stalls"),
    )
    builder = StreamsBuilder(application)
    calls, noticed = Counter[bytes](), threading.Event()

    def stalls(value: bytes) -> bytes:
        calls[value] += 1
        if calls.total() == 50:
            noticed.wait(120)
        return value

    builder.stream(source, key=serdes.text, value=serdes.raw).map_values(
        stalls, value=serdes.raw
    ).group_by_key().count(store="counts").to_stream().to(sink)
    counting = Counting(kafka, application, source, sink, builder.build())
    written = counting.write(f"key-{number % 10}" for number in range(200))
    with counting.app(
        tmp_path,
        processing_guarantee="exactly_once_v2",
        max_poll_interval_ms=3000,
        statestore_cache_max_bytes=0,
    ) as app:
        eventually(
            lambda: "makes no progress" in instance_of(app).member.problem,
            60,
            lambda: "the group keeps a member that does not move",
        )
        noticed.set()
        await_table(app, written)
        assert instance_of(app).standing.assigned is not None
    check_once(counting, written)
