"""True ends of partitions from scripted brokers: which brokers are asked, which answers
count, and the reasons of failures.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.errors import FencedLeaderEpochError, TopicAuthorizationFailedError
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from coopstreams.group.admin import connected
from coopstreams.group.end_offsets import Ends
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError
from tests.group.brokers import Brokers, Fields, brokers
from tests.group.instances import eventually

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
PATIENCE_S = 60.0
SHORT_S = 0.2


class Leaders:
    """The end of each partition at each broker that leads it in the requested epoch."""

    def __init__(self, kafka: Brokers) -> None:
        self.kafka = kafka
        self.ends: dict[tuple[int, TopicPartition], int] = {}
        self.least_in_sync = "2"
        kafka.answers |= {
            ListOffsetsRequest: self.offsets,
            DescribeConfigsRequest: self.min_isr,
        }

    def offsets(self, broker: int, request: Any) -> Fields:
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                at = TopicPartition(topic.name, asked.partition_index)
                known = self.kafka.views[broker][at]
                leads = (known["leader_id"], known["leader_epoch"]) == (
                    broker,
                    asked.current_leader_epoch,
                )
                told = (
                    {"offset": self.ends[broker, at]}
                    if leads
                    else {"error_code": FencedLeaderEpochError.errno}
                )
                partitions.append({"partition_index": at.partition, **told})
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def min_isr(self, _: int, request: Any) -> Fields:
        config = {"name": "min.insync.replicas", "value": self.least_in_sync}
        return {
            "results": [
                {"resource_name": one.resource_name, "configs": [config]}
                for one in request.resources
            ]
        }


@pytest.fixture
def kafka() -> Iterator[Brokers]:
    with brokers(3) as kafka:
        yield kafka


@pytest.fixture
def leaders(kafka: Brokers) -> Leaders:
    return Leaders(kafka)


@pytest.fixture
def ends(kafka: Brokers, leaders: Leaders) -> Iterator[Ends]:
    connection = connected({"bootstrap.servers": kafka.bootstrap}, PATIENCE_S)
    yield Ends(connection)
    connection.close()


def test_the_end_is_that_of_the_leader_of_the_highest_epoch(
    kafka: Brokers, leaders: Leaders, ends: Ends
) -> None:
    kafka.lead(A, 2, 4)
    kafka.lead(A, 1, 3, by=1)  # it was paused, and still acts as the leader
    kafka.lead(B, 3, 0)
    leaders.ends = {(1, A): 5, (2, A): 15, (3, B): 7}
    answer = ends.ask([A, B], PATIENCE_S)
    assert (answer.ends, answer.reasons, answer.unknown, answer.heard) == (
        {A: 15, B: 7},
        {},
        frozenset(),
        True,
    )


def test_an_end_is_not_known_where_the_leader_refuses_or_there_is_none(
    kafka: Brokers, leaders: Leaders, ends: Ends
) -> None:
    kafka.lead(A, 2, 4)
    kafka.lead(A, 2, 3, by=2)
    kafka.lead(B, -1, 3)
    answer = ends.ask([A, B], PATIENCE_S)
    assert answer.reasons == {
        A: "FencedLeaderEpochError of its leader",
        B: "it has no leader",
    }
    assert answer.ends == {}


def test_a_leader_that_hangs_is_named(
    kafka: Brokers, leaders: Leaders, ends: Ends
) -> None:
    kafka.lead(A, 2)
    kafka.answers[ListOffsetsRequest] = lambda *_: None
    silent = "its leader, broker 2, does not answer: it is silent"
    eventually(lambda: ends.ask([A], SHORT_S).reasons == {A: silent})


def test_a_broker_that_lives_and_cannot_be_reached_is_named_with_the_cure(
    kafka: Brokers, leaders: Leaders, ends: Ends
) -> None:
    kafka.lead(A, 2)
    leaders.ends = {(2, A): 15}
    leaders.least_in_sync = "1"
    assert ends.ask([A], PATIENCE_S).ends == {A: 15}
    answers = kafka.answers[MetadataRequest]
    kafka.answers[MetadataRequest] = lambda broker, request: (
        None if broker == 3 else answers(broker, request)
    )
    eventually(lambda: A in ends.ask([A], SHORT_S).reasons)
    told = ends.ask([A], SHORT_S)
    assert told.ends == {}
    assert "broker 3 may know of a newer leader" in told.reasons[A]
    assert "min.insync.replicas=2 on the topic" in told.reasons[A]


def test_a_partition_that_no_broker_knows_is_unknown(
    kafka: Brokers, ends: Ends
) -> None:
    answer = ends.ask([A], PATIENCE_S)
    assert (answer.ends, answer.unknown, answer.heard) == ({}, frozenset({A}), True)


def test_a_topic_that_this_principal_may_not_describe_is_an_error_with_the_cure(
    kafka: Brokers, ends: Ends
) -> None:
    def hidden(broker: int, request: Any) -> Fields:
        told = kafka._metadata(broker, request)
        return {
            **told,
            "topics": [
                {"name": "a", "error_code": TopicAuthorizationFailedError.errno}
            ],
        }

    kafka.answers[MetadataRequest] = hidden
    with pytest.raises(CoopStreamsError, match=r"--operation Describe --topic a"):
        ends.ask([A], PATIENCE_S)


def test_a_broker_that_has_joined_since_is_asked_as_well(
    kafka: Brokers, leaders: Leaders
) -> None:
    """With `min.insync.replicas` of 2 the answers of two replicas are needed; one
    broker was known at the start.
    """
    for number in kafka.known:
        kafka.known[number] = {1}
    connection = connected({"bootstrap.servers": kafka.bootstrap}, PATIENCE_S)
    for number in kafka.known:
        kafka.known[number] = {1, 2, 3}
    kafka.lead(A, 2)
    leaders.ends = {(2, A): 15}
    ends = Ends(connection)
    assert ends.ask([A], SHORT_S).ends == {}
    eventually(lambda: ends.ask([A], PATIENCE_S).ends == {A: 15})
    connection.close()


def test_min_insync_replicas_are_asked_for_again_when_their_time_is_over(
    kafka: Brokers, leaders: Leaders, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 3 is silent: with 1 it may know of a newer leader, with 2 the others know.

    Requests are not counted: those to the brokers that were not waited for arrive late.
    """
    kafka.lead(A, 2)
    leaders.ends = {(2, A): 15}
    answers = kafka.answers[MetadataRequest]
    kafka.answers[MetadataRequest] = lambda broker, request: (
        None if broker == 3 else answers(broker, request)
    )
    monkeypatch.setattr("coopstreams.group.end_offsets.BELIEVED_S", -1.0)
    assert ends.ask([A], PATIENCE_S).ends == {A: 15}
    leaders.least_in_sync = "1"
    assert ends.ask([A], SHORT_S).ends == {}
    monkeypatch.undo()
    leaders.least_in_sync = "2"
    assert ends.ask([A], PATIENCE_S).ends == {A: 15}
    leaders.least_in_sync = "1"
    assert ends.ask([A], PATIENCE_S).ends == {A: 15}


def test_silent_replicas_are_named(kafka: Brokers, ends: Ends) -> None:
    kafka.lead(A, 1)
    assert ends.silent([A], PATIENCE_S) == {}
    answers = kafka.answers[MetadataRequest]
    kafka.answers[MetadataRequest] = lambda broker, request: (
        None if broker == 3 else answers(broker, request)
    )
    eventually(lambda: ends.silent([A], SHORT_S) == {A: {3}})
