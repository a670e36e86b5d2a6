"""Errors of a writer on a real Kafka after a failure in the background: the next call
raises the cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.kafka_errors import CLIENT_ERRORS, error_of, translated
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.writer import RETRY_S
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import DeliveryError, FencedError, LogError
from tests.conftest import Kafka
from tests.log.reading import PATIENCE_S

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, plane: str) -> Iterator[KafkaLog]:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    yield log
    log.close()


def until_it_fails(step: Callable[[], None]) -> None:
    """Call a writer until an error: the failure of a record surfaces in a later call."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        step()
        time.sleep(0.01)


class Losing(Producer):
    """A producer that loses each fatal error: the call does not report it."""

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(super(), name)(*args)
        except CLIENT_ERRORS as exception:
            if error_of(exception).fatal():
                raise SystemError(
                    f"{name} returned NULL without setting an exception"
                ) from None
            raise

    def poll(self, timeout: float = -1) -> int:
        return cast(int, self._call("poll", timeout))

    def flush(self, timeout: float = -1) -> int:
        return cast(int, self._call("flush", timeout))

    def produce(self, *row: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._call("produce", *row)

    def commit_transaction(self, timeout: float = -1) -> None:
        self._call("commit_transaction", timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        self._call("abort_transaction", timeout)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("flushed", "lost"), [(True, False), (False, False), (True, True)]
)
def test_a_fenced_writer_says_so_from_whatever_comes_next(
    kafka: Kafka,
    cluster: KafkaLog,
    flushed: bool,
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`lost`: confluent-kafka may lose the error (seen on a busy machine, twice in a
    row).
    """
    if lost:
        monkeypatch.setattr("coopstreams.log.kafka.writer.Producer", Losing)
    topic, name = kafka.topic(), kafka.unique("fenced")
    first = cluster.writer(name)

    def step() -> None:
        first.append(topic, [b"k"] * 50, [b"v"] * 50, [1] * 50)
        if flushed:
            first.flush(PATIENCE_S)

    for _ in range(3):  # any of the calls may raise it
        first.begin()
        step()
        second = cluster.writer(name)
        with pytest.raises(FencedError):
            until_it_fails(step)
        first.abort()
        second.close()
    first.begin()
    first.append(topic, [b"k"], [b"again"], [1])
    first.commit(PATIENCE_S)
    first.close()


@pytest.mark.parametrize(
    "transactional", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_record_that_no_broker_takes_is_not_worth_trying_again(
    kafka: Kafka, cluster: KafkaLog, transactional: bool
) -> None:
    topic = kafka.topic(max_message_bytes="1000")
    writer = cluster.writer(kafka.unique("large") if transactional else None)
    if transactional:
        writer.begin()
    writer.append(topic, [b"k"], [b"v" * 5000], [1])

    def step() -> None:
        writer.flush(PATIENCE_S)
        writer.commit(PATIENCE_S)

    with pytest.raises(DeliveryError, match=r"max\.message\.bytes") as raised:
        step()
    assert not raised.value.retryable
    writer.abort()
    if transactional:
        writer.begin()
    writer.append(topic, [b"k"], [b"small"], [1])
    writer.flush(PATIENCE_S)
    if transactional:
        writer.commit(PATIENCE_S)
    writer.close()


@pytest.mark.ci
@pytest.mark.parametrize(
    "transactional", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_topic_that_was_deleted_is_not_worth_trying_again(
    kafka: Kafka, plane: str, transactional: bool
) -> None:
    """The first error may be a delivery time-out; the next one is an unknown topic."""
    topic = kafka.topic()
    # How long an unknown topic counts as a new one.
    cluster = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "topic.metadata.propagation.max.ms": 1000,
        }
    )
    writer = cluster.writer(kafka.unique("gone") if transactional else None)

    def step() -> None:
        if transactional:
            writer.begin()
        writer.append(topic, [b"k"], [b"v"], [1])
        writer.flush(PATIENCE_S)
        if transactional:
            writer.commit(PATIENCE_S)

    step()
    cluster.delete_topics([topic])
    errors: list[DeliveryError] = []
    while not errors or (errors[-1].retryable and len(errors) < 3):
        with pytest.raises(DeliveryError, match=topic) as raised:
            until_it_fails(step)
        errors.append(raised.value)
        writer.abort()
    assert not errors[-1].retryable, errors
    writer.close()
    cluster.close()


def test_what_an_abort_takes_back_is_no_failure_of_the_next_transaction(
    kafka: Kafka, cluster: KafkaLog
) -> None:
    topic = kafka.topic()
    writer = cluster.writer(kafka.unique("aborted"))
    for _ in range(20):
        writer.begin()
        writer.append(topic, [b"k"] * 1000, [b"void"] * 1000, [1] * 1000)
        writer.abort()
        writer.begin()
        writer.append(topic, [b"k"], [b"counts"], [1])
        writer.flush(PATIENCE_S)
        writer.commit(PATIENCE_S)
    writer.close()


def test_an_error_that_the_client_lost_on_the_way_ends_the_client_not_the_work() -> (
    None
):
    """Seen under kills: "flush returned NULL without setting an exception", when a
    fatal error hit one of our callbacks.
    """
    lost = error_of(
        SystemError(
            "<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception"
        )
    )
    assert lost.code() == KafkaError._FATAL
    assert translated(lost, "writing").retryable
    carried = SystemError("<method 'poll'> returned a result with an exception set")
    carried.__cause__ = KafkaException(KafkaError(KafkaError._FENCED))
    assert error_of(carried).code() == KafkaError._FENCED


def test_a_call_that_is_refused_at_once_is_not_made_again_at_once(
    cluster: KafkaLog, kafka: Kafka
) -> None:
    writer, calls = cluster.writer(kafka.unique("refused")), 0

    def refuse(_: float) -> None:
        nonlocal calls
        calls += 1
        raise KafkaException(
            KafkaError(
                KafkaError._CONFLICT, "another call is in progress", retriable=True
            )
        )

    with pytest.raises(LogError, match="ending it"):
        writer._insist(refuse, 0.5, "ending it")
    assert 2 <= calls <= 0.5 / RETRY_S + 2
    writer.close()


class Counted(Producer):
    """A producer that counts the requests to end a transaction."""

    commits = 0
    aborts = 0

    def commit_transaction(self, timeout: float = -1) -> None:
        Counted.commits += 1
        super().commit_transaction(timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        Counted.aborts += 1
        super().abort_transaction(timeout)


@pytest.mark.ci
def test_a_commit_that_ran_out_of_time_is_left_to_a_new_producer(
    broker_to_break: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client continues the commit, and refuses an abort beside it. A second call
    without time left ended the process when the broker answered (seen on a busy
    machine).
    """
    monkeypatch.setattr("coopstreams.log.kafka.writer.Producer", Counted)
    cluster = KafkaLog({"bootstrap.servers": broker_to_break.bootstrap})
    cluster.create_topics([TopicSpec("late", 1)])
    writer = cluster.writer("late")
    writer.begin()
    writer.append("late", [b"k"], [b"v"], [1])
    writer.flush(PATIENCE_S)
    broker_to_break.pause()
    with pytest.raises(LogError, match="committing a transaction") as raised:
        writer.commit(0.5)
    assert raised.value.retryable
    broker_to_break.resume()
    writer.abort()
    assert (Counted.commits, Counted.aborts) == (1, 0)
    writer.begin()
    writer.append("late", [b"k"], [b"after"], [1])
    writer.commit(PATIENCE_S)
    writer.close()
    cluster.close()
