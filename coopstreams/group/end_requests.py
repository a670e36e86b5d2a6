"""Requests about the ends of partitions: leaders, `min.insync.replicas`, end offsets.

Each function returns an exchange: a request and a function that reads its answer, as in
`group_requests`.

Relies on: `end_offsets` and `partition_leader` (what the answers mean).
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import errors
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from coopstreams.group.group_requests import Exchange, outcomes
from coopstreams.group.partition_leader import BrokerView
from coopstreams.topology.columns import TopicPartition

_LATEST = -1
_READ_UNCOMMITTED = 0
_TOPIC = 2
_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Views:
    """The partitions and brokers that one broker knows, and the topics that this
    principal may not see.
    """

    of: Mapping[TopicPartition, BrokerView]
    brokers: frozenset[int]
    hidden: frozenset[str]

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        """The leader of each partition; `partition_leader.NO_LEADER` if it has none
        now.
        """
        return {at: view.leader for at, view in self.of.items()}


@dataclass(frozen=True, slots=True)
class EndsThere:
    """The high watermark of each partition, or the error in its place, as one broker
    answers.
    """

    at: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, errors.KafkaError]


def find_views(topics: Collection[str]) -> Exchange[Views]:
    """Return the exchange that asks a broker for the leaders and replicas of topics'
    partitions. Topics that the broker does not know are left out.
    """
    topic_type = MetadataRequest.MetadataRequestTopic
    wanted = [topic_type(name=topic) for topic in sorted(topics)]
    request = MetadataRequest(
        max_version=12,
        topics=wanted,
        allow_auto_topic_creation=False,
    )

    def read(response: Any) -> Views:
        views = {
            TopicPartition(topic.name, partition.partition_index): BrokerView(
                int(partition.leader_id),
                int(partition.leader_epoch),
                frozenset(partition.replica_nodes),
                frozenset(partition.offline_replicas),
                str(topic.topic_id),
                frozenset(partition.isr_nodes),
            )
            for topic in response.topics
            for partition in topic.partitions
        }
        hidden = {
            topic.name
            for topic in response.topics
            if errors.for_code(topic.error_code) is errors.TopicAuthorizationFailedError
        }
        return Views(
            views,
            frozenset(int(broker.node_id) for broker in response.brokers),
            frozenset(hidden),
        )

    return Exchange("asking who leads partitions", request, read)


def find_min_isr(topics: Collection[str]) -> Exchange[dict[str, int]]:
    """Return the exchange that asks any broker for `min.insync.replicas` of topics.
    Topics that this principal may not describe are left out.
    """
    resource_type = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [
        resource_type(
            resource_type=_TOPIC,
            resource_name=topic,
            configuration_keys=[_MIN_ISR],
        )
        for topic in sorted(topics)
    ]
    request = DescribeConfigsRequest(
        resources=wanted,
        include_synonyms=False,
        include_documentation=False,
    )

    def read(response: Any) -> dict[str, int]:
        return {
            str(found.resource_name): int(one.value)
            for found in response.results
            for one in found.configs or ()
            if one.name == _MIN_ISR
        }

    return Exchange(f"asking for {_MIN_ISR}", request, read)


def list_ends(epochs: Mapping[TopicPartition, int]) -> Exchange[EndsThere]:
    """Return the exchange that asks a broker for the high watermarks of partitions that
    it leads in exactly these leader epochs.
    """
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), epoch in sorted(epochs.items()):
        entry = topic_type.ListOffsetsPartition(
            partition_index=partition,
            current_leader_epoch=epoch,
            timestamp=_LATEST,
        )
        by_topic.setdefault(topic, []).append(entry)
    wanted = [
        topic_type(name=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    request = ListOffsetsRequest(
        max_version=6,
        replica_id=-1,
        isolation_level=_READ_UNCOMMITTED,
        topics=wanted,
    )

    def read(response: Any) -> EndsThere:
        found = list(outcomes(response.topics))
        return EndsThere(
            {at: int(one.offset) for at, one, error in found if error is None},
            {at: error for at, _, error in found if error is not None},
        )

    return Exchange("asking where partitions end", request, read)
