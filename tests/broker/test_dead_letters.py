"""Dead letters are listed with their reasons, and replayed to their topics, each once."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.admin import dead_letters
from coopstreams.admin.replay_metadata import Wanted
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import SETTING
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError
from coopstreams.topology.records import TimestampedRecord
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import PATIENT, Kafka, needs_native

pytestmark = pytest.mark.broker


def at_of(record: TimestampedRecord[Any, Any]) -> int:
    value: Any = record.value
    return value["at"]  # type: ignore[no-any-return]


def dlq(kafka: Kafka, *arguments: str) -> Result:
    done = CliRunner().invoke(
        app,
        ["dlq", *arguments, "--bootstrap-servers", kafka.bootstrap],
        env={"COLUMNS": "250"},
        input="y\n",
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.ci
@pytest.mark.parametrize("waits", [False, True])
def test_what_failed_goes_back_once_and_is_processed_when_the_cause_is_gone(
    kafka: Kafka, tmp_path: Path, waits: bool
) -> None:
    """With an asynchronous function, the operator names the topic, and other failures
    would end the application.
    """
    source, sink, dead, mended = (
        kafka.topic("in", 2),
        kafka.topic("out", 2),
        kafka.topic("dead", 2),
        threading.Event(),
    )

    def parsed(value: bytes) -> int:
        if not mended.is_set() and int(value) % 3 == 0:
            raise ValueError(f"{value.decode()} has three in it")
        return int(value)

    async def asked(value: bytes) -> int:
        await asyncio.sleep(0.002)
        return parsed(value)

    builder = StreamsBuilder(kafka.unique("letters"))
    read = builder.stream(source, key=serdes.raw, value=serdes.raw)
    (
        read.map_values_async(
            asked, value=serdes.int64, name="parse", dead_letters=dead
        )
        if waits
        else read.map_values(parsed, value=serdes.int64, name="parse")
    ).to(sink)
    settings = kafka.config(
        tmp_path, processing_guarantee="exactly_once_v2", auto_offset_reset="earliest"
    )
    if not waits:
        settings |= {
            "processing.exception.handler": "dead-letter",
            "errors.dead.letter.queue.topic.name": dead,
        }
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(30):
        producer.produce(
            source,
            b"%d" % number,
            b"k%d" % (number % 4),
            headers=[("trace", b"%d" % number)],
        )
    producer.produce(dead, b"somebody's", b"k")
    producer.flush()

    with CoopStreams(builder.build(), settings | PATIENT):
        eventually(
            lambda: len(read_topic(kafka.bootstrap, dead)) == 11,
            60,
            lambda: "ten letters, and one record of somebody",
        )
        eventually(
            lambda: len(read_topic(kafka.bootstrap, sink)) == 20,
            60,
            lambda: "the others are processed",
        )
        said = dlq(kafka, "show", dead, "--last", "3").output
        assert "10 dead letters, 1 other records" in said
        assert "parse" in said
        assert "ValueError" in said
        lines = dlq(
            kafka, "show", dead, "--last", "100", "--format", "json"
        ).output.splitlines()
        assert sorted(int(json.loads(line)["value"]) for line in lines) == list(
            range(0, 30, 3)
        )
        assert "has three in it" in json.loads(lines[0])["why"]["stacktrace"]
        assert not dlq(
            kafka, "show", dead, "--node", "other", "--format", "json"
        ).output

        mended.set()
        assert (
            dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "10 written, 1 passed"
        )
        assert (
            dlq(kafka, "replay", dead, "--yes").stdout.splitlines()[-1]
            == "0 written, 0 passed"
        )
        eventually(
            lambda: len(read_topic(kafka.bootstrap, sink)) == 30,
            60,
            lambda: "all are processed",
        )

    counted = Counter(
        int.from_bytes(record.value or b"", "big")
        for record in read_topic(kafka.bootstrap, sink)
    )
    assert counted == Counter(range(30))
    written = read_topic(kafka.bootstrap, source)
    assert len(written) == 40
    places = {record.key: record.partition for record in written[:1]} | {
        r.key: r.partition for r in written
    }
    for record in written:
        assert record.headers == {"trace": record.value}
        assert record.partition == places[record.key]


@pytest.mark.ci
@pytest.mark.parametrize("native", ["0", pytest.param("1", marks=needs_native)])
def test_letters_have_the_timestamps_of_their_records_and_a_replay_writes_no_time_of_1970(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv(SETTING, native)
    source, dead, again = kafka.topic("in"), kafka.topic("dead"), kafka.topic("again")
    builder = StreamsBuilder(kafka.unique("times"))
    builder.stream(source, key=serdes.raw, value=serdes.json, timestamp=at_of).to(
        kafka.topic("out")
    )
    settings = kafka.config(
        tmp_path,
        deserialization_exception_handler="dead-letter",
        processing_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=dead,
    )
    kafka.write(
        source,
        [(b"a", b"no JSON"), (b"b", b"{}"), (b"c", None)],
        timestamp=1_700_000_000_000,
    )
    with CoopStreams(builder.build(), settings | PATIENT):
        eventually(
            lambda: len(read_topic(kafka.bootstrap, dead)) == 3,
            60,
            lambda: "three letters",
        )
    letters = read_topic(kafka.bootstrap, dead)
    assert [letter.timestamp for letter in letters] == [1_700_000_000_000] * 3
    assert "2023-11-14 22:13:20" in dlq(kafka, "show", dead).output

    # The letters of earlier versions had -2.
    kafka.write(
        dead, [(b"d", b"no JSON")], timestamp=-2, headers=[*letters[0].headers.items()]
    )
    assert "unknown" in dlq(kafka, "show", dead).output
    began = time.time_ns() // 1_000_000
    assert (
        dlq(kafka, "replay", dead, "--to", again).stdout.splitlines()[-1]
        == "4 written, 0 passed"
    )
    times = {
        record.key: record.timestamp for record in read_topic(kafka.bootstrap, again)
    }
    assert began <= times.pop(b"d") <= time.time_ns() // 1_000_000
    assert times == dict.fromkeys([b"a", b"b", b"c"], 1_700_000_000_000)


@pytest.mark.slow
def test_a_topic_may_be_empty_or_unknown_and_letters_may_go_elsewhere(
    kafka: Kafka,
) -> None:
    dead, elsewhere = kafka.topic("dead"), kafka.topic("elsewhere")
    assert dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "0 written, 0 passed"
    assert "0 dead letters" in dlq(kafka, "show", dead).output
    why = {
        "topic": "gone",
        "partition": "7",
        "offset": "3",
        "node": "a",
        "phase": "processing",
    }
    headers: list[tuple[str, str | bytes | None]] = [
        (f"__coopstreams.errors.{name}", text) for name, text in why.items()
    ]
    kafka.write(dead, [(b"k", b"v")], headers=headers)
    kafka.write(
        dead, [(None, None)], headers=[*headers, ("__coopstreams.errors.node", b"b")]
    )
    assert "null" in dlq(kafka, "show", dead).output
    # Nothing is passed by a mistake, and what was is named.
    for wrong in (("--node", "c"), ("--node", "a", "--phase", "production")):
        with pytest.raises(
            ConfigError,
            match=r"nothing was written or passed. There are: 1 at a \(processing\); 1 at b",
        ):
            dlq(kafka, "replay", dead, *wrong)
    done = dlq(kafka, "replay", dead, "--to", elsewhere, "--node", "a")
    assert (
        f"Send 1 letters of {dead} back to {elsewhere}, and pass 1 other records?"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "1 written, 1 passed"
    cure = f"coopstreams group reset {dead}-replay --topic {dead} --to earliest"
    assert cure in done.stderr
    again = dlq(kafka, "replay", dead, "--to", elsewhere, "--node", "b")
    assert (again.stdout.splitlines()[-1], cure in again.stderr) == (
        "0 written, 0 passed",
        True,
    )
    reset = [*cure.split()[1:], "--yes", "--bootstrap-servers", kafka.bootstrap]
    assert CliRunner().invoke(app, reset).exit_code == 0
    assert (
        dlq(
            kafka, "replay", dead, "--to", elsewhere, "--node", "b"
        ).stdout.splitlines()[-1]
        == "1 written, 1 passed"
    )
    assert [
        (r.key, r.value, r.headers) for r in read_topic(kafka.bootstrap, elsewhere)
    ] == [
        (b"k", b"v", {}),
        (None, None, {}),
    ]
    with pytest.raises(UnknownTopicError, match="there is no topic"):
        dlq(kafka, "show", "nowhere")


@pytest.mark.ci
def test_what_was_held_back_does_not_go_back_as_a_record_of_the_topic_behind_which_it_was(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Its letter has the key of a row and no value: the row would be deleted."""
    source, dead = kafka.topic("rows"), kafka.topic("dead")
    builder = StreamsBuilder(kafka.unique("held"))
    rows = builder.table(
        source, key=serdes.raw, value=serdes.raw, store="rows"
    ).to_stream()
    rows.map_values(int, value=serdes.int64, name="read").to(kafka.topic("out"))
    settings = kafka.config(
        tmp_path,
        processing_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=dead,
    )
    kafka.write(source, [(b"a", b"one")])
    with CoopStreams(builder.build(), settings | PATIENT):
        eventually(
            lambda: len(read_topic(kafka.bootstrap, dead)) == 1,
            60,
            lambda: "the row of the record cache",
        )
    assert "1 dead letters" in dlq(kafka, "show", dead, "--node", "read").output
    with pytest.raises(
        ConfigError,
        match=r"nothing was written or passed. There are: none, only records that cannot",
    ):
        dlq(kafka, "replay", dead, "--node", "read")
    done = dlq(kafka, "replay", dead)
    assert (
        f"Send 0 letters of {dead} back to where they came from, and pass 1 other records?"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "0 written, 1 passed"
    assert [record.value for record in read_topic(kafka.bootstrap, source)] == [b"one"]


def test_a_record_that_failed_twice_has_two_letters_and_goes_back_once(
    kafka: Kafka,
) -> None:
    dead, to = kafka.topic("dead"), kafka.topic("to")
    for offset, node in [("3", "a"), ("3", "b"), ("4", "a"), ("3", "a")]:
        why = {
            "topic": to,
            "partition": "0",
            "offset": offset,
            "node": node,
            "phase": "processing",
        }
        headers: list[tuple[str, str | bytes | None]] = [
            (f"__coopstreams.errors.{name}", text) for name, text in why.items()
        ]
        kafka.write(
            dead,
            [(b"k", offset.encode())],
            timestamp=1_700_000_000_000,
            headers=headers,
        )
    assert dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "2 written, 2 passed"
    assert [record.value for record in read_topic(kafka.bootstrap, to)] == [b"3", b"4"]


def write_letter(
    producer: Producer,
    dead: str,
    letter: tuple[str, int, int, str],
    value: bytes,
    at: int = 0,
) -> None:
    """Write a letter of a topic, partition, offset and node into this partition of the
    dead letters.
    """
    why = dict(
        zip(("topic", "partition", "offset", "node"), map(str, letter), strict=True)
    ) | {"phase": "processing"}
    producer.produce(
        dead,
        value,
        b"k",
        at,
        headers=[(f"__coopstreams.errors.{name}", text) for name, text in why.items()],
        timestamp=1_700_000_000_000,
    )


class InterruptedReplayError(Exception):
    """Raised where Ctrl-C would be."""


def interrupted_replay(kafka: Kafka, dead: str, wanted: Wanted) -> None:
    """Replay one transaction of a letter or a few, and be interrupted."""

    def interrupt(_: object) -> None:
        raise InterruptedReplayError

    settings = {"bootstrap.servers": kafka.bootstrap}
    with closing(KafkaLog(settings)) as log, pytest.raises(InterruptedReplayError):
        dead_letters.replay(log, settings, dead, wanted, on_progress=interrupt)


def test_a_record_with_two_letters_goes_back_once_though_the_replay_was_interrupted_between_them(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may lie in two partitions, as those of records without a key do."""
    monkeypatch.setattr(dead_letters, "AT_ONCE", 3)
    dead, to = kafka.topic("dead", 2), kafka.topic("to")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for offset in range(8):
        for partition, node in enumerate("ab"):
            write_letter(
                producer, dead, (to, 0, offset, node), b"%d" % offset, partition
            )
    producer.flush()
    for _ in range(2):
        interrupted_replay(kafka, dead, Wanted())
    before = len(read_topic(kafka.bootstrap, to))
    assert 2 <= before < 8
    assert (
        dlq(kafka, "replay", dead)
        .stdout.splitlines()[-1]
        .startswith(f"{8 - before} written")
    )
    assert sorted(
        record.value or b"" for record in read_topic(kafka.bootstrap, to)
    ) == [b"%d" % i for i in range(8)]


@pytest.mark.ci
def test_what_an_interrupted_replay_of_one_node_has_passed_does_not_count_as_written(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE", 1)
    dead, to = kafka.topic("dead"), kafka.topic("to")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for offset, node in [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "b")]:
        write_letter(producer, dead, (to, 0, offset, node), b"%d" % offset)
    producer.flush()
    interrupted_replay(kafka, dead, Wanted(node="b"))  # has passed the first letter
    interrupted_replay(kafka, dead, Wanted())  # has written the second
    assert dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "2 written, 1 passed"
    assert [record.value for record in read_topic(kafka.bootstrap, to)] == [
        b"0",
        b"1",
        b"2",
    ]
    # Who puts the position back wants all that is written from there on.
    reset = ["group", "reset", f"{dead}-replay", "--topic", dead, "--to", "3", "--yes"]
    assert (
        CliRunner()
        .invoke(app, [*reset, "--bootstrap-servers", kafka.bootstrap])
        .exit_code
        == 0
    )
    assert dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "2 written, 0 passed"


def test_a_letter_that_cannot_go_back_is_named_and_what_is_before_it_has_gone_back(
    kafka: Kafka,
) -> None:
    """Its topic is gone, has fewer partitions, or takes no record of that size: nothing
    at all went back.
    """
    dead, to = kafka.topic("dead"), kafka.topic("to")
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2_000_000}
    )
    gone = [
        (kafka.unique("gone"), 0, "there is no such topic now"),
        (to, 7, "the topic has 1 partitions now"),
    ]
    for number, (topic, partition, _) in enumerate(gone):
        write_letter(producer, dead, (to, 0, number, "a"), b"%d" % number)
        write_letter(producer, dead, (topic, partition, 9, "a"), b"bad")
    write_letter(producer, dead, (to, 0, 2, "a"), b"2")
    producer.flush()
    for number, (_, _, why) in enumerate(gone):
        with pytest.raises(LogError, match=why) as caught:
            dlq(kafka, "replay", dead)
        assert f"the letter {dead}-0@{2 * number + 1} cannot go back" in str(
            caught.value
        )
        assert [record.value for record in read_topic(kafka.bootstrap, to)] == [
            b"%d" % i for i in range(number + 1)
        ]
        (cure,) = re.findall(r"coopstreams (group reset .*)", str(caught.value))
        done = CliRunner().invoke(
            app, [*shlex.split(cure), "--yes", "--bootstrap-servers", kafka.bootstrap]
        )
        assert done.exit_code == 0
    assert dlq(kafka, "replay", dead).stdout.splitlines()[-1] == "1 written, 0 passed"
    with pytest.raises(UnknownTopicError, match="to which letters are to go"):
        dlq(kafka, "replay", dead, "--to", "nowhere")


@pytest.mark.ci
def test_a_letter_that_is_too_large_for_its_topic_is_named(kafka: Kafka) -> None:
    dead, to = kafka.topic("dead"), kafka.topic("to", max_message_bytes="2000")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for offset, value in enumerate([b"0", b"1", b"x" * 3000, b"3"]):
        write_letter(producer, dead, (to, 0, offset, "a"), value)
    producer.flush()
    with pytest.raises(
        LogError,
        match=rf"the letter {dead}-0@2 cannot go back.*max.message.bytes.*--to 3 --forwards",
    ):
        dlq(kafka, "replay", dead)
    assert [record.value for record in read_topic(kafka.bootstrap, to)] == [b"0", b"1"]


@pytest.mark.ci
def test_letters_of_an_open_transaction_are_not_waited_for(kafka: Kafka) -> None:
    """A transaction that hangs would have no end; the next replay finds what was
    committed meanwhile.
    """
    dead, to = kafka.topic("dead"), kafka.topic("to")
    headers: list[tuple[str, str | bytes | None]] = [
        ("__coopstreams.errors.topic", to.encode()),
        ("__coopstreams.errors.partition", b"0"),
    ]
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.unique("dead")}
    )
    producer.init_transactions(60)
    for value in (b"committed", b"open"):
        producer.begin_transaction()
        producer.produce(
            dead,
            value,
            b"k",
            headers=[*headers, ("__coopstreams.errors.offset", b"%d" % len(value))],
        )
        producer.flush(60)
        if value == b"committed":
            producer.commit_transaction(60)
    said: list[str] = []
    commands = threading.Thread(
        target=lambda: said.extend(
            (dlq(kafka, "show", dead).output, dlq(kafka, "replay", dead).output)
        ),
        daemon=True,
    )
    commands.start()
    commands.join(30)
    assert len(said) == 2, "a command waits for the transaction"
    assert "1 dead letters" in said[0]
    assert "1 written, 0 passed" in said[1]
    producer.commit_transaction(60)
    assert "1 written, 0 passed" in dlq(kafka, "replay", dead).output
    assert [record.value for record in read_topic(kafka.bootstrap, to)] == [
        b"committed",
        b"open",
    ]
