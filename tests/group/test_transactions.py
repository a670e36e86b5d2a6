"""Hanging transactions at scripted brokers: when and where a marker is written, and
when none may be. `test_hanging` has the rule as a function of the answers; a real Kafka
ends real transactions in tests/broker.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    NotCoordinatorError,
    TopicAuthorizationFailedError,
    TransactionalIdNotFoundError,
)
from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from coopstreams.group.admin import connected
from coopstreams.group.hanging_transactions import Transactions
from coopstreams.group.missing_markers import SKIPPING_METADATA
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.naming import OFFSETS_TOPIC
from tests.group.brokers import Brokers, Fields, brokers

ID, PRODUCER = "app-0", 66
OUT, OFFSETS = TopicPartition("out", 0), TopicPartition(OFFSETS_TOPIC, 0)
PATIENCE_S = 60.0
SHORT_S = 1.0


@dataclass
class Producers:
    """The last transaction of an id at its coordinator, and the partitions in which one
    of its transactions is open.
    """

    kafka: Brokers
    state: str = "CompleteCommit"
    partitions: list[TopicPartition] = field(default_factory=list)
    open: dict[TopicPartition, int] = field(default_factory=dict)
    """By partition, the offset of the first record of the open transaction."""
    markers: list[tuple[int, TopicPartition, bool]] = field(default_factory=list)
    """The written markers: the broker, the partition, and whether it commits."""

    def __post_init__(self) -> None:
        self.kafka.answers |= {
            DescribeTransactionsRequest: self.described,
            DescribeProducersRequest: self.producers,
            WriteTxnMarkersRequest: self.write,
            ListTransactionsRequest: lambda *_: {
                "transaction_states": [
                    {"transactional_id": ID, "producer_id": PRODUCER}
                ]
                * (self.state != "Ongoing")
            },
        }

    def described(self, broker: int, _: Any) -> Fields:
        if broker != self.kafka.coordinator:
            return {
                "transaction_states": [
                    {"transactional_id": ID, "error_code": NotCoordinatorError.errno}
                ]
            }
        topics = [
            {"topic": at.topic, "partitions": [at.partition]} for at in self.partitions
        ]
        told = {
            "transaction_state": self.state,
            "producer_id": PRODUCER,
            "producer_epoch": 3,
            "topics": topics,
        }
        return {"transaction_states": [{"transactional_id": ID, **told}]}

    def producers(self, _: int, request: Any) -> Fields:
        topics = []
        for topic in request.topics:
            partitions = []
            for number in topic.partition_indexes:
                start = self.open.get(TopicPartition(topic.name, number), -1)
                of = {
                    "producer_id": PRODUCER,
                    "producer_epoch": 3,
                    "coordinator_epoch": 5,
                }
                active = [{**of, "current_txn_start_offset": start}]
                partitions.append(
                    {"partition_index": number, "active_producers": active}
                )
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def write(self, broker: int, request: Any) -> Fields:
        told = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                for number in topic.partition_indexes:
                    at = TopicPartition(topic.name, number)
                    self.markers.append((broker, at, marker.transaction_result))
                    self.open.pop(at, None)
                partitions = [
                    {"partition_index": number} for number in topic.partition_indexes
                ]
                topics.append({"name": topic.name, "partitions": partitions})
            told.append({"producer_id": marker.producer_id, "topics": topics})
        return {"markers": told}


@pytest.fixture
def kafka() -> Iterator[Brokers]:
    with brokers(3) as kafka:
        kafka.metadata_version = SKIPPING_METADATA[0]
        kafka.lead(OUT, 2)
        kafka.lead(OFFSETS, 3)
        yield kafka


@pytest.fixture
def producers(kafka: Brokers) -> Producers:
    return Producers(kafka)


@pytest.fixture
def transactions(kafka: Brokers) -> Iterator[Transactions]:
    made = Transactions(connected({"bootstrap.servers": kafka.bootstrap}, PATIENCE_S))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("state", "commits"), [("CompleteCommit", True), ("CompleteAbort", False)]
)
def test_a_hanging_transaction_gets_its_marker_from_the_leader(
    producers: Producers, transactions: Transactions, state: str, commits: bool
) -> None:
    producers.state, producers.open = state, {OUT: 100}
    assert transactions.settle(ID, [OUT, OFFSETS], PATIENCE_S) == frozenset()
    assert producers.markers == [(2, OUT, commits)]


def test_what_has_ended_everywhere_needs_no_marker(
    producers: Producers, transactions: Transactions
) -> None:
    assert transactions.settle(ID, [OUT, OFFSETS], PATIENCE_S) == frozenset()
    assert producers.markers == []


def test_an_ongoing_transaction_is_left_alone_and_its_partitions_are_returned(
    producers: Producers, transactions: Transactions
) -> None:
    producers.state, producers.partitions, producers.open = "Ongoing", [OUT], {OUT: 100}
    assert transactions.settle(ID, [OUT, OFFSETS], PATIENCE_S) == {OUT}
    assert transactions.open_partitions(ID, PATIENCE_S) == frozenset({OUT})
    assert producers.markers == []


def test_a_transaction_that_is_about_to_end_is_waited_for(
    producers: Producers, transactions: Transactions
) -> None:
    producers.state = "PrepareCommit"
    with pytest.raises(
        CoopStreamsError,
        match="stays in state PrepareCommit: its markers are not written",
    ) as raised:
        transactions.settle(ID, [OUT], SHORT_S)
    assert raised.value.retryable  # type: ignore[attr-defined]


def test_an_id_that_nobody_has_used_has_no_transaction(
    kafka: Brokers, transactions: Transactions
) -> None:
    error = {"transactional_id": ID, "error_code": TransactionalIdNotFoundError.errno}
    kafka.answers[DescribeTransactionsRequest] = lambda *_: {
        "transaction_states": [error]
    }
    assert transactions.settle_topics(ID, ["out"], PATIENCE_S) == frozenset()


def test_the_coordinator_is_looked_for_once_and_again_when_it_has_moved(
    kafka: Brokers, producers: Producers, transactions: Transactions
) -> None:
    for _ in range(3):
        transactions.settle(ID, [OUT], PATIENCE_S)
    assert kafka.count(FindCoordinatorRequest) == 1
    kafka.coordinator = 2
    assert transactions.settle(ID, [OUT], PATIENCE_S) == frozenset()
    assert kafka.count(FindCoordinatorRequest) == 2
    assert producers.markers == []


def test_no_marker_is_written_while_the_brokers_do_not_agree_who_coordinates(
    kafka: Brokers, producers: Producers, transactions: Transactions
) -> None:
    """Broker 1 was paused, and reports an outdated state."""
    transactions.settle(ID, [OUT], PATIENCE_S)
    kafka.named = {2: 2}
    producers.open = {OUT: 100}
    with pytest.raises(
        CoopStreamsError,
        match=r'do not agree who coordinates "app-0".*2: 2, 3: 1\}|no success in',
    ):
        transactions.settle(ID, [OUT], SHORT_S)
    assert producers.markers == []


def test_a_marker_that_may_not_be_written_is_an_error_with_the_cure(
    kafka: Brokers, producers: Producers, transactions: Transactions
) -> None:
    producers.open = {OUT: 100}

    def refused(_: int, request: Any) -> Fields:
        denied = [
            {"partition_index": 0, "error_code": ClusterAuthorizationFailedError.errno}
        ]
        return {
            "markers": [
                {
                    "producer_id": PRODUCER,
                    "topics": [{"name": "out", "partitions": denied}],
                }
            ]
        }

    kafka.answers[WriteTxnMarkersRequest] = refused
    with pytest.raises(
        CoopStreamsError,
        match=r"out-0 \(from offset 100\).*--operation ClusterAction --cluster",
    ):
        transactions.settle(ID, [OUT], PATIENCE_S)


def test_topics_that_may_not_be_seen_are_said_once_and_left_out(
    kafka: Brokers,
    producers: Producers,
    transactions: Transactions,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producers.open = {OUT: 100}
    denied = [{"partition_index": 0, "error_code": TopicAuthorizationFailedError.errno}]
    kafka.answers[DescribeProducersRequest] = lambda *_: {
        "topics": [{"name": "out", "partitions": denied}]
    }
    for _ in range(2):
        assert transactions.settle(ID, [OUT], PATIENCE_S) == frozenset()
    assert (
        sum("cannot be seen in out" in record.getMessage() for record in caplog.records)
        == 1
    )


@pytest.mark.parametrize(
    ("version", "skips"), [(29, False), (30, True), (31, True), (32, False)]
)
def test_only_coordinators_that_skip_markers_are_asked_after_each_commit(
    kafka: Brokers,
    producers: Producers,
    transactions: Transactions,
    version: int,
    skips: bool,
) -> None:
    kafka.metadata_version = version
    producers.state, producers.partitions = "Ongoing", [OUT]
    told = {OUT} if skips else None
    versions = kafka.count(ApiVersionsRequest)
    for _ in range(3):
        assert transactions.open_partitions(ID, PATIENCE_S) == told
    assert kafka.count(ApiVersionsRequest) - versions <= 3, (
        "asked once, and once by each new connection"
    )
    assert transactions.settle_topics(ID, ["out"], PATIENCE_S) == (
        frozenset({OUT}) if skips else frozenset()
    )


def test_transactions_of_the_dead_are_ended_and_no_others(
    kafka: Brokers, producers: Producers, transactions: Transactions
) -> None:
    producers.open = {OUT: 100, OFFSETS: 7}
    transactions.settle_dead(lambda id_: id_ == "another", ["out"], PATIENCE_S)
    assert producers.markers == []
    transactions.settle_dead(lambda id_: id_ == ID, ["out"], PATIENCE_S)
    assert sorted(producers.markers) == [(2, OUT, True), (3, OFFSETS, True)]
