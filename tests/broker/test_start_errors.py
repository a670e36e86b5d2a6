"""Errors at the start, before the first record: each names the place and the cure, in
bounded time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.dev.process import free_port
from coopstreams.topology.errors import (
    ConfigError,
    CoopStreamsError,
    GroupError,
    LogError,
    StateError,
    StateLockedError,
    UnknownTopicError,
)
from tests.broker.counting import Counting, await_running, await_table, failure_of
from tests.broker.waiting import eventually
from tests.command_line import app as commands
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def run(
    topology: Topology, bootstrap: str, folder: Path, **settings: Any
) -> BaseException:
    """Return the error that ends an application."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return failure_of(
        CoopStreams(
            topology,
            {"bootstrap.servers": bootstrap, "state.dir": str(folder), **given},
        )
    )


def copying(kafka: Kafka, source: str, sink: str) -> Topology:
    builder = StreamsBuilder(kafka.unique("copying"))
    builder.stream(source, key=serdes.raw, value=serdes.raw).to(sink)
    return builder.build()


def test_a_changelog_of_another_framework(kafka: Kafka, tmp_path: Path) -> None:
    counting = Counting.make(kafka, 1)
    kafka.create(counting.changelog, 1, cleanup_policy="compact")
    kafka.write(counting.changelog, [(b'"ann"', b"143")], partition=0)
    error = failure_of(counting.app(tmp_path))
    assert isinstance(error, ConfigError)
    assert (
        f"{counting.changelog}-0 has records, and coopstreams has not written them"
        in str(error)
    )


@pytest.mark.ci
def test_a_source_topic_that_does_not_exist(kafka: Kafka, tmp_path: Path) -> None:
    existing = kafka.topic("departures")
    error = run(copying(kafka, existing + "s", existing), kafka.bootstrap, tmp_path)
    assert isinstance(error, UnknownTopicError)
    assert f'there is no topic "{existing}s" (did you mean "{existing}"?)' in str(error)


def test_a_state_folder_in_use(kafka: Kafka, tmp_path: Path) -> None:
    """The folder is in use, as by two instances with the same number on one machine."""
    counting = Counting.make(kafka)
    with counting.app(tmp_path) as app:
        error = failure_of(counting.app(tmp_path))
        assert isinstance(error, StateLockedError)
        assert str(tmp_path / counting.application / "instance-0") in str(error)
        assert "instance number" in str(error)
        await_table(app, counting.write(["a", "b", "a"]))


def test_a_state_folder_that_is_none(kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = failure_of(Counting.make(kafka).app(tmp_path / "file"))
    assert isinstance(error, StateError)
    assert "state.dir" in str(error)


def test_no_broker(tmp_path: Path) -> None:
    """`start` fails after the time limit; `run` would wait."""
    builder = StreamsBuilder("nobody")
    builder.stream("in", key=serdes.text, value=serdes.raw).to("out")
    address = f"127.0.0.1:{free_port()}"
    error = run(builder.build(), address, tmp_path, connect_timeout_ms=2000)
    assert isinstance(error, LogError)
    for part in (address, "coopstreams dev", "bootstrap.servers"):
        assert part in str(error)


@pytest.mark.ci
def test_a_broker_that_speaks_something_else(tmp_path: Path, kafka: Kafka) -> None:
    """The broker has no TLS, the application requires it."""
    builder = StreamsBuilder("tls")
    builder.stream("in", key=serdes.text, value=serdes.raw).to("out")
    settings = kafka.config(tmp_path, security_protocol="SSL", connect_timeout_ms=3000)
    error = failure_of(CoopStreams(builder.build(), settings))
    assert isinstance(error, CoopStreamsError)
    assert "SSL" in str(error)


def test_a_group_of_another_kind_of_consumer(kafka: Kafka, tmp_path: Path) -> None:
    counting = Counting.make(kafka)
    stranger = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": counting.application,
            "auto.offset.reset": "earliest",
        }
    )
    stranger.subscribe([counting.source])
    with closing(stranger):
        while not stranger.assignment():
            stranger.poll(0.1)
        error = failure_of(counting.app(tmp_path))
    assert isinstance(error, GroupError)
    assert counting.application in str(error)
    with counting.app(tmp_path) as app:  # after it is deleted
        await_table(app, counting.write(["a", "b", "a"]))


def test_a_stranger_does_not_get_into_the_group(kafka: Kafka, tmp_path: Path) -> None:
    counting = Counting.make(kafka)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_running([app])
        stranger = Consumer(
            {"bootstrap.servers": kafka.bootstrap, "group.id": counting.application}
        )
        stranger.subscribe([counting.source])
        refusals: list[str] = []

        def refused() -> bool:
            message = stranger.poll(0.1)
            if message is not None and message.error() is not None:
                refusals.append(str(message.error()))
            return any("INCONSISTENT_GROUP_PROTOCOL" in refusal for refusal in refusals)

        eventually(refused, 120, lambda: str(refusals))
        await_table(app, counting.write(["a", "b", "a"]))
        stranger.close()


@pytest.mark.ci
def test_offsets_that_the_log_no_longer_has(kafka: Kafka, tmp_path: Path) -> None:
    """Retention deleted unprocessed records: an error, not a skip; the command in its
    message skips them.
    """
    counting = Counting.make(kafka)
    with counting.app(tmp_path) as app:
        await_table(app, counting.write(["a"] * 5))
    counting.write(["b"] * 10)
    kafka.delete_before(counting.source, 0, 12)
    error = failure_of(counting.app(tmp_path))
    assert isinstance(error, LogError)
    for part in (counting.source, "stands at offset 5", "begins at 12", "7 records"):
        assert part in str(error)
    command = str(error).partition("run `coopstreams ")[2].rstrip("`").split()
    done = CliRunner().invoke(
        commands, [*command, "--yes", "--bootstrap-servers", kafka.bootstrap]
    )
    assert done.exit_code == 0, done.output
    with counting.app(tmp_path) as app:
        await_table(app, {"a": 5, "b": 3})


@pytest.mark.ci
def test_offsets_that_the_log_no_longer_has_of_one_key_only(
    kafka: Kafka, tmp_path: Path
) -> None:
    """A call had not ended when its record was deleted. What others had done further on
    is not done again.
    """
    source, sink, application = (
        kafka.topic("in"),
        kafka.topic("out"),
        kafka.unique("waiting"),
    )
    builder, hangs = StreamsBuilder(application), [True]

    async def waits(key: str, value: bytes) -> bytes:
        return await asyncio.Future() if key == "stuck" and hangs else value

    called = builder.stream(
        source, key=serdes.text, value=serdes.raw
    ).map_values_with_key_async(waits, value=serdes.raw)
    called.group_by_key().count(store="counts")
    counting = Counting(kafka, application, source, sink, builder.build())
    # It ends without an answer, as if it were killed.
    with counting.app(tmp_path, ranges_per_partition=4, max_revoke_delay_ms=0) as app:
        written = counting.write(["a"] * 4 + ["stuck"] + [*"abcdefgh"] * 2)
        await_table(
            app, {key: count for key, count in written.items() if key != "stuck"}
        )
    hangs.clear()
    kafka.delete_before(source, 0, 9)
    error = failure_of(counting.app(tmp_path, ranges_per_partition=4))
    for part in (
        f"{source}-0[",
        "stands at offset 4",
        "begins at 9",
        "up to 1 records",
    ):
        assert part in str(error)
    command = str(error).partition("run `coopstreams ")[2].rstrip("`").split()
    done = CliRunner().invoke(
        commands, [*command, "--yes", "--bootstrap-servers", kafka.bootstrap]
    )
    assert done.exit_code == 0, done.output
    with counting.app(tmp_path, ranges_per_partition=4) as app:
        more = counting.write(["stuck", *"abcdefgh"])
        await_table(app, dict(written + more - Counter(["stuck"])))


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_topic_made_anew(kafka: Kafka, tmp_path: Path, ranges: int) -> None:
    """Kafka deletes the group's offset with the topic, and state without a position is
    not continued from; individual commits name their topic.

    The new topic has grown past the group's position; its records below that were never
    processed.
    """
    counting = Counting.make(kafka)
    with counting.app(tmp_path, ranges_per_partition=ranges) as app:
        await_table(app, counting.write(["a"] * 5))
    kafka.delete(counting.source)
    kafka.create(counting.source)
    counting.write(["a"] * 9)
    error = failure_of(counting.app(tmp_path, ranges_per_partition=ranges))
    assert isinstance(error, ConfigError)
    said = (
        f"{counting.source}-0: the topic was deleted and made anew",
        f"--topic {counting.source} --partition 0 --to OFFSET",
    )
    for part in said:
        assert part in str(error)
    reset = [
        "group",
        "reset",
        counting.application,
        "--topic",
        counting.source,
        "--to",
        "earliest",
        "--yes",
    ]
    done = CliRunner().invoke(
        commands, [*reset, "--bootstrap-servers", kafka.bootstrap]
    )
    assert done.exit_code == 0, done.output
    with counting.app(tmp_path, ranges_per_partition=ranges) as app:
        await_table(app, {"a": 5 + 9})
