"""Transactions that end while a partition of theirs has no leader, because the broker
with its one replica was killed.

A broker with KAFKA-20734 never writes that partition's marker: the writer does not
continue before it is written. Another broker waits for the leader: a fenced writer
reports the end of its transaction only then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.writer import KafkaWriter
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, LogError
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.waiting import eventually
from tests.conftest import download_kafka
from tests.log.reading import PATIENCE_S, read_all, values

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NAME, ALONE = "hanging", TopicPartition("alone", 0)
FAULTY = "4.3.0"
SKIPPED = "likely deleted already"
"""The faulty coordinator's log line."""


@pytest.fixture(scope="module")
def faulty(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ThreeBrokers]:
    console = download_kafka(request, FAULTY)
    with ThreeBrokers(
        tmp_path_factory.mktemp("faulty"), console=console, version=FAULTY
    ) as cluster:
        yield cluster


def test_what_was_committed_or_aborted_is_so_everywhere_before_the_next_transaction(
    faulty: ThreeBrokers,
) -> None:
    log = KafkaLog({"bootstrap.servers": faulty.bootstrap}, timeout_s=10)
    coordinator, home = make_topic(faulty, log)
    writer = log.writer(NAME, lambda: [ALONE.topic])

    write(writer, "first")
    lose(faulty, home)
    with pytest.raises(
        LogError, match="alone-0 does not say whether a transaction is open in it"
    ) as raised:
        writer.commit(5)
    assert raised.value.retryable
    with pytest.raises(LogError, match="alone-0 does not say"):
        writer.abort()
    assert SKIPPED in faulty.brokers[coordinator].log_file.read_text()
    faulty.mend()
    until_usable(writer)
    assert values(read_all(log, ALONE)) == ["first"], "it was acknowledged"

    write(writer, "void")
    lose(faulty, home)
    with pytest.raises(LogError, match="alone-0 does not say"):
        writer.abort()
    faulty.mend()
    until_usable(writer)
    write(writer, "second")
    writer.commit(PATIENCE_S)
    assert values(read_all(log, ALONE)) == ["first", "second"]
    assert values(read_all(log, ALONE, committed_only=False)) == [
        "first",
        "void",
        "second",
    ]
    writer.close()
    log.close()


def test_a_writer_that_was_fenced_says_so_when_its_transaction_has_ended(
    three_brokers: ThreeBrokers,
) -> None:
    log, other = (
        KafkaLog({"bootstrap.servers": three_brokers.bootstrap}, timeout_s=timeout_s)
        for timeout_s in (10, 3)
    )
    _, home = make_topic(three_brokers, log)
    topic = three_brokers.kafka.topic()
    writer = log.writer(NAME)
    write(writer, "void")
    writer.append(topic, [b"k"], [b"void"], [1])
    writer.flush(PATIENCE_S)
    lose(three_brokers, home)
    with pytest.raises(LogError, match="taking over") as raised:
        other.writer(NAME, lambda: [topic])
    assert raised.value.retryable

    def fenced() -> bool:
        writer.append(topic, [b"k"], [b"of a zombie"], [1])
        try:
            writer.flush(5)
        except FencedError:
            return True
        return False

    eventually(fenced, PATIENCE_S, lambda: "it can still write")
    with pytest.raises(
        LogError, match="PrepareAbort: its markers are not written"
    ) as raised:
        writer.abort()
    assert raised.value.retryable
    three_brokers.mend()
    until_usable(writer)
    assert values(read_all(log, ALONE)) == []
    writer.close()
    log.close()
    other.close()


def make_topic(cluster: ThreeBrokers, log: KafkaLog) -> tuple[int, int]:
    """Make a topic of one replica; return the coordinator of the transactional id, and
    another broker, which leads the topic.
    """
    log.writer(NAME).close()
    coordinator = cluster.transaction_coordinator(NAME)
    assert coordinator is not None
    home = next(node for node in NODES if node != coordinator)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(ALONE.topic, 1, replica_assignment=[[home]])])[
        ALONE.topic
    ].result(60)
    eventually(
        lambda: cluster.leader_of(ALONE.topic) == home,
        60,
        lambda: "the topic has no leader",
    )
    return coordinator, home


def write(writer: KafkaWriter, value: str) -> None:
    writer.begin()
    writer.append(
        ALONE.topic, [b"k"], [value.encode()], [1], partitions=ALONE.partition
    )
    writer.flush(PATIENCE_S)


def lose(cluster: ThreeBrokers, node: int) -> None:
    """Kill a broker; return when the others know that its partition has no leader."""
    cluster.kill(node)
    eventually(
        lambda: cluster.leader_of(ALONE.topic) is None,
        60,
        lambda: f"broker {node} is thought to lead",
    )


def until_usable(writer: KafkaWriter) -> None:
    """Abort until it succeeds, as a committer does."""

    def aborted() -> bool:
        try:
            writer.abort()
        except LogError as error:
            if not error.retryable:
                raise
            return False
        return True

    eventually(aborted, PATIENCE_S, lambda: "the writer cannot be used again")
