"""State and restore listeners of a running instance, and the answers of the error
handler.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coopstreams import (
    CircuitBreaker,
    CoopStreams,
    RestoreListener,
    Retry,
    StreamsBuilder,
    StreamsState,
    StreamThreadExceptionResponse,
    serdes,
)
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.reader import KafkaReader
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ApplicationStoppedError,
    ProcessingError,
    QueryError,
)
from tests.broker.counting import Counting, await_table, failure_of, metric
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

CREATED, REBALANCING, RUNNING = (
    StreamsState.CREATED,
    StreamsState.REBALANCING,
    StreamsState.RUNNING,
)
STOPPED = [StreamsState.PENDING_SHUTDOWN, StreamsState.NOT_RUNNING]
FAILED = [StreamsState.PENDING_ERROR, StreamsState.ERROR]


class Heard(RestoreListener):
    """Records the calls of its methods."""

    def __init__(self) -> None:
        self.started: list[tuple[TopicPartition, str, int, int]] = []
        self.batches: list[tuple[int, int]] = []
        self.ended: list[tuple[TopicPartition, str, int]] = []

    def on_restore_start(
        self, partition: TopicPartition, store: str, start: int, end: int
    ) -> None:
        self.started.append((partition, store, start, end))

    def on_batch_restored(
        self, partition: TopicPartition, store: str, position: int, records: int
    ) -> None:
        self.batches.append((position, records))

    def on_restore_end(
        self, partition: TopicPartition, store: str, records: int
    ) -> None:
        self.ended.append((partition, store, records))


@pytest.mark.ci
def test_listeners_hear_of_states_and_restores(kafka: Kafka, tmp_path: Path) -> None:
    counting = Counting.make(kafka)
    written = counting.write(f"key-{number}" for number in range(500))
    with counting.app(tmp_path / "first") as app:
        await_table(app, written)
    heard, states = Heard(), [CREATED]

    def listen(new: StreamsState, old: StreamsState) -> None:
        assert old == states[-1]
        states.append(new)

    app = counting.app(
        tmp_path / "second", heard={"on_state": listen, "restore_listener": heard}
    )
    assert app.state == CREATED
    with app:
        await_table(app, written)
        # queries answer a moment before the state is RUNNING
        eventually(lambda: app.state is RUNNING, 120, lambda: str(app.state))
        assert metric(app, "coopstreams_record_e2e_latency_seconds_count") == 0, (
            "nothing was left to process"
        )
        written += counting.write(["one more"])
        await_table(app, written)
        eventually(
            lambda: metric(app, "coopstreams_record_e2e_latency_seconds_count") == 1,
            120,
            lambda: "it was not measured",
        )
    assert states[:2] == [CREATED, REBALANCING]
    assert set(states[1:-2]) == {REBALANCING, RUNNING}
    assert states[-3:] == [RUNNING, *STOPPED]
    ((changelog, store, start, end),) = heard.started
    assert (changelog, store, start) == (
        TopicPartition(counting.changelog, 0),
        "counts",
        0,
    )
    assert heard.batches[-1][0] == end >= 500
    assert heard.ended == [(changelog, "counts", 500)]
    assert sum(records for _, records in heard.batches) == 500


def test_an_error_in_a_listener_ends_the_instance(kafka: Kafka, tmp_path: Path) -> None:
    def refuse(new: StreamsState, _: StreamsState) -> None:
        if new is RUNNING:
            raise ZeroDivisionError("in the listener")

    app = Counting.make(kafka).app(tmp_path, heard={"on_state": refuse})
    assert isinstance(failure_of(app), ZeroDivisionError)
    assert app.state is StreamsState.ERROR


def dividing(
    kafka: Kafka, **heard: Any
) -> tuple[str, Callable[[Path, int], CoopStreams]]:
    """Return a topic of two partitions, and a function that makes instances failing on
    an empty value.
    """
    topic = kafka.topic("in", 2)
    builder = StreamsBuilder(kafka.unique("dividing"))
    builder.stream(topic, key=serdes.raw, value=serdes.raw).filter(
        lambda _, value: 1 // len(value) == 1
    ).group_by_key().count(store="counts")
    topology = builder.build()

    def instance(folder: Path, number: int) -> CoopStreams:
        return CoopStreams(topology, kafka.config(folder, instance=number), **heard)

    return topic, instance


@pytest.mark.ci
def test_an_error_that_ends_the_application_ends_every_instance(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The failing one leaves last: else another, slow to hear of it, gets its tasks and
    fails of the same record.
    """
    asked, states = list[BaseException](), list[StreamsState]()
    meanwhile: list[StreamsState] = []

    def listen(new: StreamsState, _: StreamsState) -> None:
        states.append(new)
        if states.count(StreamsState.PENDING_ERROR) == 2:
            time.sleep(1)  # the told one has not left yet
            meanwhile.extend(app.state for app in apps)

    def end_all(error: BaseException) -> StreamThreadExceptionResponse:
        asked.append(error)
        return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION

    topic, instance = dividing(kafka, on_error=end_all, on_state=listen)
    apps = [instance(tmp_path, number) for number in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        failures = [threads.submit(failure_of, app) for app in apps]
        eventually(
            lambda: all(app.state is RUNNING for app in apps) and both_work(apps),
            120,
            lambda: str([app.state for app in apps]),
        )
        kafka.write(topic, [(b"k", b"")], partition=0)
        first, second = sorted(
            (failure.result() for failure in failures),
            key=lambda error: type(error).__name__,
        )
    assert isinstance(first, ApplicationStoppedError)
    assert isinstance(second, ProcessingError)
    assert asked == [second], "who was told to stop is not asked"
    assert meanwhile[:2] == [StreamsState.PENDING_ERROR] * 2
    assert "has all instances stop: ProcessingError: " in str(first)
    assert sorted(states[-4:], key=str) == sorted([*FAILED, *FAILED], key=str)


def test_what_fails_while_it_drains_is_raised(kafka: Kafka, tmp_path: Path) -> None:
    builder, topic = StreamsBuilder(kafka.unique("draining")), kafka.topic("records")
    reached, go_on = threading.Event(), threading.Event()

    def fail_late(*_: object) -> None:
        reached.set()
        assert go_on.wait(60)
        raise ValueError("while it drained")

    builder.stream(topic, key=serdes.raw, value=serdes.raw).foreach(fail_late)
    states: list[StreamsState] = []
    told: list[str] = []

    def listen(new: StreamsState, _: StreamsState) -> None:
        states.append(new)
        if new is StreamsState.PENDING_SHUTDOWN:
            told.append((app.status() or {})["state"])
            go_on.set()

    app = CoopStreams(builder.build(), kafka.config(tmp_path), on_state=listen)
    kafka.write(topic, [(b"k", b"")], partition=0)

    def drain() -> None:
        with app:
            assert reached.wait(120)
            app.stop()

    with pytest.raises(ProcessingError, match="while it drained"):
        drain()
    assert states[-2:] == [StreamsState.PENDING_SHUTDOWN, StreamsState.ERROR]
    assert [*told, (app.status() or {})["state"]] == ["pending-shutdown", "error"]


@pytest.mark.ci
def test_a_process_that_ends_lets_the_calls_under_way_end(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Their results are in its last commit, so the next process makes only the other
    calls.
    """
    builder = StreamsBuilder(kafka.unique("calling"))
    topic, out = kafka.topic("in"), kafka.topic("out")
    called, let_go = Counter[bytes](), threading.Event()

    async def held(value: bytes) -> bytes:
        called[value] += 1
        while not let_go.is_set():
            await asyncio.sleep(0.001)
        return value

    def listen(new: StreamsState, _: StreamsState) -> None:
        if new is StreamsState.PENDING_SHUTDOWN:
            let_go.set()

    builder.stream(topic, key=serdes.raw, value=serdes.raw).map_values_async(
        held, value=serdes.raw, max_in_flight=5
    ).to(out)
    topology, settings = builder.build(), kafka.config(tmp_path)
    kafka.write(topic, ((b"key-%d" % number, b"%d" % number) for number in range(20)))
    with CoopStreams(topology, settings, on_state=listen):
        eventually(lambda: len(called) == 5, 120, lambda: str(called))
    with CoopStreams(topology, settings):
        eventually(
            lambda: len(read_topic(kafka.bootstrap, out)) == 20,
            120,
            lambda: str(called),
        )
    assert called == Counter({b"%d" % number: 1 for number in range(20)})


def test_calls_that_pause_are_a_reason_in_health(kafka: Kafka, tmp_path: Path) -> None:
    builder = StreamsBuilder(kafka.unique("pausing"))
    topic, out = kafka.topic("in"), kafka.topic("out")
    healthy = threading.Event()

    async def asks(value: bytes) -> bytes:
        if not healthy.is_set():
            raise ConnectionError("refused")
        return value

    builder.stream(topic, key=serdes.raw, value=serdes.raw).map_values_async(
        asks,
        value=serdes.raw,
        retry=Retry(times=1000),
        breaker=CircuitBreaker(failures=3, pause=timedelta(milliseconds=200)),
        name="asks",
    ).to(out)
    kafka.write(topic, ((b"key-%d" % number, b"%d" % number) for number in range(20)))

    def paused(app: CoopStreams) -> list[str]:
        status = app.status()
        return (
            []
            if status is None
            else [
                reason["message"]
                for reason in status["reasons"]
                if reason["code"] == "calls-pause"
            ]
        )

    settings = kafka.config(tmp_path)
    with CoopStreams(builder.build(), settings) as app:
        eventually(lambda: bool(paused(app)), 120, lambda: str(app.status()))
        (message,) = paused(app)
        assert (
            "calls of asks pause: 3 in a row have failed, the last with ConnectionError: refused"
            in message
        )
        healthy.set()
        eventually(
            lambda: len(read_topic(kafka.bootstrap, out)) == 20,
            120,
            lambda: str(app.status()),
        )
        # the status follows the calls
        eventually(lambda: not paused(app), 120, lambda: str(app.status()))


def both_work(apps: list[CoopStreams]) -> bool:
    """Whether each instance has one of the two tasks."""
    told = [app.status() for app in apps]
    return all(status is not None and len(status["tasks"]) == 1 for status in told)


@pytest.mark.ci
def test_an_error_while_it_ends_does_not_leave_a_member_behind(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that lives on in a program would keep its partitions, which nobody
    processes.
    """
    counting = Counting.make(kafka)

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    app = counting.app(tmp_path).__enter__()
    await_table(app, counting.write(["a"]))
    monkeypatch.setattr(KafkaReader, "assign", fail)
    with pytest.raises(RuntimeError, match="injected"):
        app.__exit__(None, None, None)
    with GroupAdmin(
        {"bootstrap.servers": kafka.bootstrap}, counting.application
    ) as admin:
        assert admin.describe().members == ()


def clients() -> int:
    """Return how many threads of Kafka clients this process has: librdkafka's, and
    those that bound its calls.
    """
    names = [
        file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")
    ]
    bounded = [thread for thread in threading.enumerate() if thread.name == "bounded"]
    return sum(name.startswith("rdk:") for name in names) + len(bounded)


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="names of threads are read from /proc"
)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize(
    "ends", ["failed", "stopped", "never began", "could not begin"]
)
def test_an_instance_that_has_ended_keeps_no_client(
    kafka: Kafka, tmp_path: Path, guarantee: str, ends: str
) -> None:
    """The object may live on: a service that tries again has the next one beside it."""

    def check(_: str, __: bytes) -> bool:
        if ends == "failed":
            raise ValueError("each")
        return True

    builder, source, names = (
        StreamsBuilder(kafka.unique("ending")),
        kafka.topic("in"),
        kafka.topic("names"),
    )
    table = builder.global_table(
        names, key=serdes.text, value=serdes.text, store="names"
    )
    stream = builder.stream(source, key=serdes.text, value=serdes.raw).filter(check)
    stream.left_join(
        table, lambda _, name: name or "", on=lambda key, _: key, value=serdes.text
    ).group_by_key().count(store="counts")
    counting = Counting(
        kafka, builder.build().application_id, source, names, builder.build()
    )
    counting.write(["a"] * 3)
    if ends == "could not begin":
        kafka.write(names, [(b"a", b"\xff")])
    gc.collect()
    before = clients()
    app = counting.app(tmp_path, processing_guarantee=guarantee)
    if ends == "never began":
        app.stop()
    if ends == "stopped":
        with app:
            await_table(app, {"a": 3})
            read = [
                partial(app.store("counts").get, "a"),
                partial(app.store("names").get, "a"),
            ]
            assert [each() for each in read] == [3, None]
        for each in read:
            with pytest.raises(QueryError, match="this instance has ended") as raised:
                each()
            assert raised.value.retryable
    elif ends == "never began":
        with app:
            pass
    else:
        assert isinstance(failure_of(app), ProcessingError)
    eventually(
        lambda: clients() <= before, 60, lambda: f"{clients()} threads, {before} before"
    )


FORKS = """
import os, sys, threading, time
from coopstreams import CoopStreams
from coopstreams.topology.errors import QueryError

app = CoopStreams(topology, {"bootstrap.servers": sys.argv[1], "state.dir": sys.argv[2], "http.listen": ""})
running = threading.Thread(target=app.run)
running.start()
while app.status() is None:
    time.sleep(0.001)
if (child := os.fork()) == 0:  # as a pre-forking server does that loads a program which starts an instance
    try:
        app.store("counts").get("a")
    except QueryError as error:
        print(error)
    print(*(reason["message"] for reason in app.status()["reasons"]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
app.stop()
running.join()
"""


def test_a_copy_of_an_instance_in_a_forked_process_says_that_it_is_one(
    kafka: Kafka, tmp_path: Path
) -> None:
    """It has no threads. It said that it waits for the group, and that the key is being
    handed over: for ever.
    """
    program = Counting.make(kafka).program + FORKS
    command = [sys.executable, "-c", program, kafka.bootstrap, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert len(said) == 2, done
    for each in said:
        assert "where the instance runs: ask that one over HTTP" in each
