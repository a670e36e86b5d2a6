"""Records that cannot be read, processed or written: an error with the place, a count,
or a dead letter; no other record is lost.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import (
    CoopStreams,
    Failure,
    Retry,
    StreamsBuilder,
    StreamsState,
    StreamThreadExceptionResponse,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.topology.errors import CoopStreamsError, ProcessingError, SerdeError
from tests.broker.counting import failure_of, instance_of, metric
from tests.broker.reading import Record, by_key, read_topic
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka

pytestmark = pytest.mark.broker

PHASES = ("deserialization", "processing", "production")


def one_of_three(chosen: str) -> pytest.MarkDecorator:
    """Return the phases as a parameter: one phase for each answer of a handler; the
    others are slow tests. `tests/tasks/test_failures.py` has each phase with each
    answer.
    """
    phases = [
        pytest.param(phase, marks=[pytest.mark.slow] * (phase != chosen))
        for phase in PHASES
    ]
    return pytest.mark.parametrize("phase", phases)


GOOD, BAD = 60, (7, 23, 41)
"""Offsets of the records that fail."""


@dataclass(frozen=True, slots=True)
class Case:
    """An application with some records that fail in one phase; the good ones are
    counted and forwarded.
    """

    kafka: Kafka
    phase: str
    application: str
    source: str
    sink: str
    dead: str

    @staticmethod
    def make(kafka: Kafka, phase: str) -> Case:
        return Case(
            kafka,
            phase,
            kafka.unique("bad"),
            kafka.topic("in"),
            kafka.topic("out"),
            kafka.topic("dead"),
        )

    def topology(self) -> Topology:
        builder = StreamsBuilder(self.application)
        stream = builder.stream(self.source, key=serdes.text, value=serdes.json)
        if self.phase == "deserialization":
            stream = stream.filter(
                lambda _, value: "number" in value
            )  # a value that is not read is not deserialised
        if self.phase == "processing":
            stream = stream.map_values(refuse_bad, value=serdes.json)
        if self.phase == "production":
            stream = stream.map_values(unwritable_if_bad, value=serdes.json)
        stream.to(self.sink)
        # Reads a value that was read already; fails nowhere else.
        stream.group_by_key().count(store="counts")
        return builder.build()

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for offset in range(GOOD + len(BAD)):
            value = b'{"number": %d}' % offset
            if offset in BAD:
                value = (
                    b"no JSON"
                    if self.phase == "deserialization"
                    else b'{"bad": %d}' % offset
                )
            producer.produce(
                self.source,
                value,
                f"key-{offset % 5}",
                0,
                timestamp=1000 + offset,
                headers=[("trace", b"%d" % offset)],
            )
        assert producer.flush(60) == 0

    def app(self, folder: Path, handler: str) -> CoopStreams:
        settings = {
            "bootstrap.servers": self.kafka.bootstrap,
            "state.dir": str(folder),
            **PATIENT,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "statestore.cache.max.bytes": 0,
            f"{self.phase}.exception.handler": handler,
            "errors.dead.letter.queue.topic.name": self.dead,
        }
        return CoopStreams(self.topology(), settings)

    def outputs(self) -> list[Record]:
        return read_topic(self.kafka.bootstrap, self.sink)

    def await_outputs(self) -> None:
        """Wait for all outputs; at least once may have written some already, before an
        error.
        """
        eventually(
            lambda: len({record.value for record in self.outputs()}) == GOOD,
            120,
            lambda: f"{len(self.outputs())} outputs",
        )


def refuse_bad(value: dict[str, int]) -> dict[str, int]:
    if "bad" in value:
        raise ValueError(f"number {value['bad']} is bad")
    return value


def unwritable_if_bad(value: dict[str, int]) -> Any:
    return {1j} if "bad" in value else value


def check_outputs(case: Case) -> None:
    numbers = [
        int(serdes.json.decode(record.value or b"")["number"])
        for record in case.outputs()
    ]
    assert numbers == [offset for offset in range(GOOD + len(BAD)) if offset not in BAD]


@pytest.mark.ci
@one_of_three("processing")
def test_a_handler_that_says_fail_stops_with_the_place_and_loses_nothing(
    kafka: Kafka, tmp_path: Path, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case.make(kafka, phase)
    case.write()
    with caplog.at_level(logging.INFO, "coopstreams"):
        error = failure_of(case.app(tmp_path, "fail"))
    told = [each for each in caplog.records if "offset 7" in each.getMessage()]
    assert told
    assert all(each.levelno >= logging.WARNING for each in told)
    assert not any(".;" in each.getMessage() for each in told)
    assert isinstance(error, ProcessingError)
    for part in (
        "task 0_0",
        case.source,
        "partition 0",
        "offset 7",
        "continue or dead-letter",
    ):
        assert part in str(error)
    error = failure_of(case.app(tmp_path, "fail"))
    assert "offset 7" in str(error), "a restart meets the same record again"
    with case.app(tmp_path, "continue"):
        case.await_outputs()
    check_outputs(case)
    assert read_topic(kafka.bootstrap, case.dead) == []


@one_of_three("production")
def test_a_dead_letter_is_the_record_with_the_reason_in_its_headers(
    kafka: Kafka, tmp_path: Path, phase: str
) -> None:
    case = Case.make(kafka, phase)
    case.write()
    with case.app(tmp_path, "dead-letter"):
        case.await_outputs()
        eventually(
            lambda: len(read_topic(kafka.bootstrap, case.dead)) >= len(BAD),
            120,
            lambda: "dead letters are missing",
        )
    check_outputs(case)
    sent = [
        record
        for record in read_topic(kafka.bootstrap, case.source)
        if record.offset in BAD
    ]
    letters = read_topic(kafka.bootstrap, case.dead)
    assert [(letter.key, letter.value, letter.timestamp) for letter in letters] == [
        (record.key, record.value, record.timestamp) for record in sent
    ]
    for letter, offset in zip(letters, BAD, strict=True):
        said = {
            name.removeprefix("__coopstreams.errors."): value
            for name, value in letter.headers.items()
        }
        assert said["trace"] == b"%d" % offset, "the record's own headers stay"
        assert (said["topic"], said["partition"], said["offset"]) == (
            case.source.encode(),
            b"0",
            b"%d" % offset,
        )
        assert (said["phase"], said["task"]) == (phase.encode(), b"0_0[0..255]")
        assert said["exception"] in {b"SerdeError", b"ValueError"}
        assert said["message"]
        assert b"Traceback" in (said["stacktrace"] or b"")


@pytest.mark.parametrize(
    ("handler", "cache"),
    [
        ("continue", 0),
        ("dead-letter", 1 << 20),
    ],
)
def test_an_aggregate_that_does_not_serialise_is_told_with_store_and_key(
    kafka: Kafka, tmp_path: Path, handler: str, cache: int
) -> None:
    """A row that cannot be written must not be dropped: whatever the handler answers,
    the instance ends with the row's name.
    """
    source, dead = kafka.topic("in"), kafka.topic("dead")
    builder = StreamsBuilder(kafka.unique("state"))
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    stream.group_by_key().aggregate(
        set[str], lambda _, value, seen: {*seen, value}, value=serdes.json, store="seen"
    )
    kafka.write(source, [("the-key", b"v")])
    settings = kafka.config(
        tmp_path,
        statestore_cache_max_bytes=cache,
        production_exception_handler=handler,
        errors_dead_letter_queue_topic_name=dead,
    )
    error = failure_of(CoopStreams(builder.build(), settings))
    assert "seen" in str(error)
    assert "the-key" in str(error)


def test_a_result_too_large_for_its_topic_stops_with_the_topic_and_the_cure(
    kafka: Kafka, tmp_path: Path
) -> None:
    source, sink = kafka.topic("in"), kafka.topic("out", max_message_bytes="2000")
    builder = StreamsBuilder(kafka.unique("large"))
    builder.stream(source, key=serdes.text, value=serdes.raw).to(sink)
    kafka.write(
        source,
        ((f"key-{size}", b"x" * size) for size in (10, 20, 10_000, 30)),
        partition=0,
    )
    settings = kafka.config(tmp_path, processing_guarantee="exactly_once_v2")
    error = failure_of(CoopStreams(builder.build(), settings))
    assert isinstance(error, ProcessingError)
    for part in (
        f'"{source}" partition 0 offset 2',
        "max.message.bytes",
        sink,
        "key-10000",
    ):
        assert part in str(error)


@pytest.mark.ci
def test_records_of_all_kinds_pass_beside_bad_ones(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Two ranges, a table and a stream: bad rows of the table become dead letters, its
    good rows are joined.
    """
    orders = kafka.topic("orders")
    customers = kafka.topic("customers")
    sink = kafka.topic("out")
    dead = kafka.topic("dead")
    builder = StreamsBuilder(kafka.unique("mixed"))
    table = builder.table(customers, key=serdes.text, value=serdes.int64)
    builder.stream(orders, key=serdes.text, value=serdes.int64).join(
        table, lambda a, b: a + b, value=serdes.int64
    ).to(sink)
    kafka.write(
        customers,
        (
            (
                f"key-{number}",
                b"short" if number % 4 == 0 else number.to_bytes(8, "big"),
            )
            for number in range(40)
        ),
        partition=0,
        timestamp=1,
    )
    kafka.write(customers, [(None, (1).to_bytes(8, "big"))], partition=0, timestamp=1)
    kafka.write(
        orders,
        ((f"key-{number}", number.to_bytes(8, "big")) for number in range(40)),
        partition=0,
        timestamp=2,
    )
    settings = kafka.config(
        tmp_path,
        processing_guarantee="exactly_once_v2",
        ranges_per_partition=2,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=dead,
    )
    with CoopStreams(builder.build(), settings) as app:
        eventually(
            lambda: (
                len(read_topic(kafka.bootstrap, sink)) >= 30
                and len(read_topic(kafka.bootstrap, dead)) >= 10
            ),
            120,
            lambda: "not complete",
        )
        eventually(
            lambda: metric(app, "coopstreams_dropped_records_total") == 10 + 1,
            120,
            lambda: instance_of(app).components.metrics.text().decode(),
        )
    joined = {
        key.decode(): values
        for key, values in by_key(read_topic(kafka.bootstrap, sink)).items()
    }
    assert joined == {
        f"key-{number}": [(2 * number).to_bytes(8, "big")]
        for number in range(40)
        if number % 4
    }
    assert len(read_topic(kafka.bootstrap, dead)) == 10


def test_a_record_is_processed_again_later_while_another_partition_goes_on(
    kafka: Kafka, tmp_path: Path
) -> None:
    source, sink = kafka.topic("in", 2), kafka.topic("out", 2)
    back, attempts = threading.Event(), list[int]()

    def asks(value: bytes) -> bytes:
        if value == b"needs it" and not back.is_set():
            raise ConnectionError("refused")
        return value

    def patient(failure: Failure) -> Retry:
        attempts.append(failure.attempt)
        return Retry(
            times=1000,
            backoff=timedelta(milliseconds=500),
            longest=timedelta(milliseconds=500),
        )

    builder = StreamsBuilder(kafka.unique("patient"))
    builder.stream(source, key=serdes.raw, value=serdes.raw).map_values(
        asks, value=serdes.raw
    ).to(sink)
    settings = kafka.config(
        tmp_path,
        processing_guarantee="exactly_once_v2",
        processing_exception_handler=patient,
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, value in enumerate([b"before", b"needs it", b"after"]):
        producer.produce(source, value, b"k%d" % number, partition=0)
    assert producer.flush(60) == 0

    def read() -> list[bytes]:
        return [record.value or b"" for record in read_topic(kafka.bootstrap, sink)]

    def held(app: CoopStreams) -> list[str]:
        reasons = (app.status() or {"reasons": []})["reasons"]
        return [
            reason["message"]
            for reason in reasons
            if "a pause to end" in reason["message"]
        ]

    with CoopStreams(builder.build(), settings | PATIENT) as app:
        eventually(lambda: bool(held(app)), 120, lambda: str(app.status()))
        (message,) = held(app)
        assert "offset 1" in message
        assert "ConnectionError: refused" in message
        producer.produce(source, b"elsewhere", b"k", partition=1)
        assert producer.flush(60) == 0
        eventually(lambda: b"elsewhere" in read(), 120, lambda: str(app.status()))
        assert b"after" not in read()
        back.set()
        eventually(lambda: b"after" in read(), 120, lambda: str(app.status()))
    assert sorted(read()) == [b"after", b"before", b"elsewhere", b"needs it"]
    assert attempts == list(range(1, len(attempts) + 1))


@pytest.mark.parametrize(("threads", "where"), [(1, "stream thread 0"), (2, "reader")])
def test_a_function_that_exits_ends_the_instance_with_an_error_and_not_as_if_it_was_asked_to_end(
    kafka: Kafka, tmp_path: Path, threads: int, where: str
) -> None:
    """Where tasks share a partition, the reader runs what is above a window."""
    case = Case.make(kafka, "processing")
    builder = StreamsBuilder(case.application)
    numbers = builder.stream(case.source, key=serdes.text, value=serdes.json).filter(
        lambda _, __: sys.exit()
    )
    windows = numbers.group_by_key().windowed_by(TimeWindows(seconds=1))
    windows.count(store="counts").to_stream().to(case.sink)
    case.write()
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "state.dir": str(tmp_path),
        "num.stream.threads": threads,
    }
    app = CoopStreams(builder.build(), settings | PATIENT)
    with pytest.raises(
        CoopStreamsError,
        match=rf"{where}: a function of the program raised SystemExit\(\)",
    ):
        app.run()


def test_a_block_that_fails_after_its_application_has_ended_says_by_what(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder, topic = StreamsBuilder(kafka.unique("ended")), kafka.topic("in")
    builder.stream(topic, key=serdes.text, value=serdes.json).filter(
        lambda _, value: value["x"]
    ).to(kafka.topic("out"))
    kafka.write(topic, [(b"key", b"{bad", 1)])
    app = CoopStreams(builder.build(), kafka.config(tmp_path))

    def fails_later() -> None:
        with app:
            eventually(
                lambda: app.state is StreamsState.ERROR, 120, lambda: str(app.state)
            )
            raise ConnectionError("refused")

    with pytest.raises(ConnectionError) as raised:
        fails_later()
    said = f'the application "{app.config["application.id"]}" had ended by ProcessingError: '
    assert said in raised.value.__notes__[0]
    assert f"{topic}" in raised.value.__notes__[0]
    assert any(
        said.replace("had", "has") in record.getMessage() for record in caplog.records
    )


def test_a_row_that_a_task_cannot_read_when_it_begins_is_an_error_with_its_store(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The process ended with a KeyError, of a task that had never begun, and did not
    ask `on_error`.
    """
    source, application, answers = kafka.topic("in"), kafka.unique("bad"), []
    builder = StreamsBuilder(application)
    windows = (
        builder.stream(source, key=serdes.text, value=serdes.text)
        .group_by_key()
        .windowed_by(TimeWindows(hours=1))
    )
    windows.count().suppress(until_window_closes(), name="final").to_stream().to(
        kafka.topic("out")
    )

    def end(error: BaseException) -> StreamThreadExceptionResponse:
        answers.append(error)
        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT

    kafka.write(source, [("a", "1")])
    kept = f"{application}-final-store-changelog"
    with CoopStreams(builder.build(), kafka.config(tmp_path / "first")):
        eventually(
            lambda: kept in kafka.topics() and read_topic(kafka.bootstrap, kept) != [],
            60,
            lambda: "nothing is held",
        )
    [row] = read_topic(kafka.bootstrap, kept)
    kafka.write(kept, [(row.key, b"4")])
    again = CoopStreams(
        builder.build(), kafka.config(tmp_path / "second"), on_error=end
    )
    error = failure_of(again)
    assert isinstance(error, SerdeError)
    assert 'store "final-store": the value of key' in str(error)
    assert answers == [error]


@pytest.mark.ci
def test_where_many_records_are_late_health_and_log_name_the_operator(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a backlog 89,239 of 100,000 records were dropped, and only a count in the
    status showed it.
    """
    source, application = kafka.topic("in"), kafka.unique("late")
    builder = StreamsBuilder(application)
    windows = TimeWindows(size=timedelta(minutes=1))
    stream = builder.stream(source, key=serdes.text, value=serdes.raw)
    stream.group_by_key().windowed_by(windows).count(store="minutes", name="per-minute")
    kafka.write(source, [(b"a", b"x")], timestamp=10_000_000)
    kafka.write(source, [(b"a", b"x")] * 150, timestamp=1000)
    settings = kafka.config(tmp_path)
    with CoopStreams(builder.build(), settings) as app:
        said = dict[str, str]()

        def dropped() -> bool:
            status: Any = app.status() or {"reasons": []}
            said.update({one["code"]: one["message"] for one in status["reasons"]})
            return "records-dropped" in said

        eventually(dropped, 60, lambda: str(app.status()))
        assert instance_of(app).components.tallies.losses.known == (
            said["records-dropped"],
        )
    assert said["records-dropped"].startswith(
        'sub-topology 0 left out 150 of its last 151 records at per-minute (store "minutes"): late. '
    )
    assert caplog.messages.count(said["records-dropped"]) == 1
