"""Which errors of librdkafka are retryable and which are fatal; unknown ones are
retryable.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, ThrottleEvent

from coopstreams.common.acl_errors import Attempt, Login
from coopstreams.dev import broker_certificates
from coopstreams.log.kafka import client_settings, share_consumer
from coopstreams.log.kafka import reader as kafka_reader
from coopstreams.log.kafka.kafka_errors import (
    FENCED,
    FINAL,
    OUT_OF_RANGE,
    UNKNOWN,
    away,
    heals,
    not_delivered,
    translated,
    unknown_topic,
)
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.reader import KafkaReader
from coopstreams.log.kafka.retries import (
    ATTEMPT_S,
    FAILOVER_S,
    FIRST_ATTEMPT_S,
    SILENT_S,
    Patience,
)
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    RefusedError,
)
from coopstreams.topology.naming import COMMIT_TOPIC

CODES = sorted(
    {
        code
        for name in dir(KafkaError)
        if isinstance(code := getattr(KafkaError, name), int)
    }
    - {KafkaError.NO_ERROR}
)
OF_BROKERS_THAT_ARE_AWAY = (
    "_DESTROY_BROKER",  # a broker that is not in the cluster's metadata
    "_DESTROY",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_RESOLVE",
    "_NODE_UPDATE",
    "_WAIT_COORD",
    "_WAIT_CACHE",
    "_INTR",
    "_FAIL",
    "UNKNOWN",
    "BROKER_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REPLICA_NOT_AVAILABLE",
    "LISTENER_NOT_FOUND",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_CONTROLLER",
    "STALE_BROKER_EPOCH",
    "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNSTABLE_OFFSET_COMMIT",
    "REBOOTSTRAP_REQUIRED",
)


@pytest.mark.parametrize("name", OF_BROKERS_THAT_ARE_AWAY)
def test_what_brokers_say_that_die_start_or_move_leaders_heals(name: str) -> None:
    error = KafkaError(getattr(KafkaError, name))
    assert heals(error)
    assert translated(error, "asking").retryable


@pytest.mark.parametrize("code", CODES)
def test_only_what_is_named_as_final_ends_anything(code: int) -> None:
    assert heals(KafkaError(code)) is (code not in FINAL)
    assert FENCED | UNKNOWN | OUT_OF_RANGE <= FINAL


def test_a_fatal_error_ends_a_client_and_not_the_work_unless_its_code_is_final() -> (
    None
):
    out_of_order = KafkaError(
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence desynchronization", True
    )
    assert heals(out_of_order)
    assert translated(out_of_order, "writing").retryable
    assert not heals(
        KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no", True)
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [(code, FencedError) for code in sorted(FENCED)]
    + [(code, OffsetOutOfRangeError) for code in sorted(OUT_OF_RANGE)],
)
def test_the_other_kinds_keep_their_names(code: int, kind: type[Exception]) -> None:
    assert isinstance(translated(KafkaError(code), "doing it"), kind)


def test_brokers_that_are_fenced_may_come_back_but_too_few_never_do() -> None:
    """Kafka 4.2 reports both in these words, under the same code."""
    away = (
        "Unable to replicate the partition 3 time(s): All brokers are currently fenced."
    )
    few = (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
        "only 1 broker(s) are registered."
    )
    assert heals(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, away))
    assert not heals(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, few))


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("NOT_ENOUGH_REPLICAS", True),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", True),
        ("_MSG_TIMED_OUT", True),
        ("_PURGE_QUEUE", True),
        ("MSG_SIZE_TOO_LARGE", False),
        ("INVALID_RECORD", False),
        ("TOPIC_AUTHORIZATION_FAILED", False),
        ("UNKNOWN_TOPIC_OR_PART", False),
    ],
)
def test_a_record_is_worth_writing_again_unless_it_was_refused(
    name: str, again: bool
) -> None:
    """With a missing replica, a stream thread gave up for good, and the instance ended."""
    assert (
        not_delivered(KafkaError(getattr(KafkaError, name)), "a record").retryable
        is again
    )


def test_a_commit_that_is_dated_ahead_blames_the_clock_and_no_record_of_the_program() -> (
    None
):
    refused = KafkaError(KafkaError.INVALID_TIMESTAMP)
    commit = not_delivered(
        refused, f'a record for topic "{COMMIT_TOPIC}" was not delivered'
    )
    assert not isinstance(commit, RefusedError)
    assert not commit.retryable
    assert "by the clock of this host" in str(commit)
    assert isinstance(
        not_delivered(refused, 'a record for topic "out" was not delivered'),
        RefusedError,
    )


def test_nobody_is_told_to_make_a_changelog_by_hand() -> None:
    """An empty changelog hides that the other one was deleted: the next owner would
    begin from nothing.
    """
    unknown = KafkaError(KafkaError._UNKNOWN_PARTITION)
    for error in (
        not_delivered(unknown, 'a record for topic "a-counts-changelog"'),
        unknown_topic("a-counts-changelog"),
    ):
        assert "do not create it. The next start says what is lost" in str(error)
    assert "Create the topic first, or correct the name." in str(
        unknown_topic("orders")
    )


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        (
            "INVALID_TRANSACTION_TIMEOUT",
            "Set transaction.timeout.ms to at most the brokers' transaction.max.timeout.ms",
        ),
        (
            "INVALID_REPLICATION_FACTOR",
            "Set replication.factor to at most the number of brokers",
        ),
        ("POLICY_VIOLATION", "have its owner create the topic"),
        ("TOPIC_DELETION_DISABLED", "delete.topic.enable=false"),
        ("OFFSET_METADATA_TOO_LARGE", "offset.metadata.max.bytes"),
    ],
)
def test_what_a_limit_of_the_brokers_refuses_names_the_setting(
    name: str, cure: str
) -> None:
    """Kafka's own words name none, or one that there is not
    (`max.transaction.timeout.ms`).
    """
    refused = translated(KafkaError(getattr(KafkaError, name)), "doing it")
    assert cure in str(refused)
    assert not refused.retryable


class Clock:
    """A clock that advances only when the code under test waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_attempts_grow_and_end_with_the_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, attempts = Clock(), []
    patience = Patience("asking for the offsets of t-0", 30.0, clock, clock.sleep)
    with caplog.at_level(logging.WARNING):
        while not patience.over:
            attempts.append(patience.attempt_s())
            clock.sleep(attempts[-1])
            patience.rest("Local: Timed out (_TIMED_OUT)")
    assert attempts[:4] == [
        FIRST_ATTEMPT_S,
        2 * FIRST_ATTEMPT_S,
        4 * FIRST_ATTEMPT_S,
        ATTEMPT_S,
    ]
    assert max(attempts) == ATTEMPT_S
    assert 1030.0 <= clock.now < 1031.0
    (said,) = [record.getMessage() for record in caplog.records]
    assert "asking for the offsets of t-0" in said
    assert "_TIMED_OUT" in said


def test_attempts_at_a_leader_stay_short_until_a_dead_one_must_have_a_successor() -> (
    None
):
    """The attempt under way at the election of the successor is lost: 4 of the 18 s for
    which a killed worker's partitions had no owner, when its coordinator was killed
    with it.
    """
    clock, attempts = Clock(), list[tuple[float, float]]()
    patience = Patience("asking for the offsets of t-0", 60.0, clock, clock.sleep)
    while not patience.over:
        attempts.append((clock.now - 1000.0, patience.attempt_s(FAILOVER_S)))
        clock.sleep(attempts[-1][1])
        patience.rest("Local: Timed out (_TIMED_OUT)")
    assert {seconds for at, seconds in attempts if at < FAILOVER_S} == {FIRST_ATTEMPT_S}
    later = [seconds for at, seconds in attempts if at >= FAILOVER_S]
    assert later[:3] == [2 * FIRST_ATTEMPT_S, 4 * FIRST_ATTEMPT_S, ATTEMPT_S], (
        "a leader may be slow, too"
    )


def test_who_is_answered_soon_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience("asking", 30.0, clock, clock.sleep)
    while clock.now < 1000 + SILENT_S - 0.1:
        patience.rest("not yet")
    assert not caplog.records


def test_a_login_with_a_token_that_has_expired_heals_and_one_with_a_password_does_not() -> (
    None
):
    refused = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")
    for login, again in (
        (Login("", "OAUTHBEARER", by_token=True), True),
        (Login("User:me", "PLAIN"), False),
    ):
        assert heals(refused, login) is again
        error = translated(refused, "asking for the topics", Attempt(login))
        assert (error.retryable, isinstance(error, AccessDeniedError)) == (
            again,
            not again,
        )
        assert f"The brokers do not let in {login}: check sasl.mechanism" in str(error)


def test_an_error_of_authorisation_names_the_acl_also_of_a_record() -> None:
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    attempt = Attempt(Login("User:me", "PLAIN"), "Write", "out")
    for error in (
        translated(denied, "writing", attempt),
        not_delivered(denied, "a record", attempt),
    ):
        assert isinstance(error, AccessDeniedError)
        assert (
            "User:me (PLAIN) has no ACL for Write on the topic out. Allow it: kafka-acls.sh"
            in str(error)
        )


def over_tls(authority: Path) -> dict[str, str]:
    """Return settings for brokers that are away, with a new file for the authority of
    their certificates.
    """
    authority.write_bytes(broker_certificates.authority().certificate)
    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority),
    }


@pytest.mark.slow
def test_a_file_that_is_exchanged_when_a_client_is_replaced_is_no_wrong_setting(
    tmp_path: Path,
) -> None:
    """Settings that are wrong end all processes, and a service manager does not start
    them again.
    """
    settings = over_tls(authority := tmp_path / "ca.pem")
    with (
        closing(KafkaLog(settings, timeout_s=1)) as log,
        closing(log.writer()) as writer,
    ):
        before = authority.rename(tmp_path / "old.pem")
        writer._void = True  # as after a fatal error
        for again in (writer.abort, log.reader):
            with pytest.raises(
                LogError, match=r"client refuses its settings|the TLS settings"
            ) as refused:
                again()
            assert refused.value.retryable
        before.rename(authority)
        writer.abort()
        writer.append("nowhere", [b"k"], [b"v"], [1])
        with pytest.raises(LogError):
            writer.flush(0.1)


@pytest.mark.usefixtures("plane")
def test_a_reader_keeps_its_client_while_a_file_for_a_new_one_is_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It closed the client first; without one, the process ended."""
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 0.0)
    monkeypatch.setattr(kafka_reader, "METADATA_TIMEOUT_S", 0.05)
    reader = KafkaReader(
        over_tls(authority := tmp_path / "ca.pem"), committed_only=True
    )
    with closing(reader):
        reader.assign({TopicPartition("t", 0): Position(0)})
        client = reader._consumer
        before = authority.rename(tmp_path / "old.pem")
        assert [reader.fetch(10, 0.0) for _ in range(3)] == [[], [], []]
        assert reader._consumer is client
        assert (
            "reading: no broker answers; the Kafka client refuses its settings"
            in caplog.text
        )
        before.rename(authority)
        assert reader.fetch(10, 0.0) == []
        assert reader._consumer is not client
        reader.assign({TopicPartition("t", 0): Position(7)})  # the new client takes it


def test_a_share_group_of_brokers_that_are_away_is_not_called_one_of_old_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_consumer, "_TIMEOUT_S", 0.5)
    reason = (
        r"share group g: altering its settings: .*Timed out( waiting for controller)?$"
    )
    with pytest.raises(LogError, match=reason) as caught:
        share_consumer.KafkaShare(
            {"bootstrap.servers": "127.0.0.1:1"},
            "g",
            {"share.auto.offset.reset": "earliest"},
        )
    assert caught.value.retryable


def test_who_is_held_back_by_a_quota_is_told_once_and_what_to_have_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records were "not acknowledged. Is Kafka up?", and it was."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    errors = client_settings.ClientErrors(Login())
    errors.throttled(ThrottleEvent("kafka-1", 1, 0.3))
    assert errors.held_back == "", "as short as a slow disk"
    for seconds in (12.0, 30.0):
        errors.throttled(ThrottleEvent("kafka-1", 1, seconds))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "(12 s for its last request)" in said
    assert "(30 s for its last request)" in errors.held_back
    assert "producer_byte_rate" in errors.held_back
    late = away("kafka-1:9092", "committing a transaction", 15.0, errors)
    assert (
        str(late)
        == f"committing a transaction: not done after 15 s: {errors.held_back}"
    )
    assert late.retryable
    clock.now += 1000
    assert errors.held_back == ""
    assert "Is it running there" in str(
        away("kafka-1:9092", "committing a transaction", 15.0, errors)
    )
