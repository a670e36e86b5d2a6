"""Requests about transactions: their state at the coordinator, open ones at the
leaders, and the markers that end them.

Each function returns an exchange: a request and a function that reads its answer, as in
`group_requests`. An answer about many partitions has a result or an error for each, so
a partition without a leader does not hide the other partitions.

Relies on: `missing_markers` (what the answers mean).
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka import errors
from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from coopstreams.group.end_requests import Views, find_views
from coopstreams.group.group_requests import (
    Exchange,
    by_topic,
    check,
    outcomes,
)
from coopstreams.group.missing_markers import (
    ENDED,
    Marker,
    Open,
    TransactionDescription,
)
from coopstreams.topology.columns import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionAnswers:
    """The open transactions of each partition, or the error in their place."""

    open: Mapping[TopicPartition, tuple[Open, ...]]
    errors: Mapping[TopicPartition, errors.KafkaError]


def describe_transaction(
    transactional_id: str,
) -> Exchange[TransactionDescription | None]:
    """Return the exchange that asks the transaction's coordinator for its description;
    None: it does not know the transactional id.
    """

    def read(response: Any) -> TransactionDescription | None:
        found = response.transaction_states[0]
        if errors.for_code(found.error_code) is errors.TransactionalIdNotFoundError:
            return None
        check(found.error_code, transactional_id)
        partitions = frozenset(
            TopicPartition(topic.topic, partition)
            for topic in found.topics
            for partition in topic.partitions
        )
        return TransactionDescription(
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            partitions,
        )

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return Exchange(
        f"asking for the state of transaction {transactional_id}",
        request,
        read,
    )


def find_leaders(topics: Collection[str]) -> Exchange[Views]:
    """Return the exchange that asks any broker for the leaders of topics' partitions.
    Topics that the broker does not know are left out.
    """
    return replace(find_views(topics), what="asking for the leaders of partitions")


def list_ended() -> Exchange[dict[int, str]]:
    """Return the exchange that asks a coordinator for the transactional ids whose last
    transaction has ended, by producer id.
    """

    def read(response: Any) -> dict[int, str]:
        check(response.error_code, "ListTransactions")
        return {
            int(entry.producer_id): str(entry.transactional_id)
            for entry in response.transaction_states
        }

    request = ListTransactionsRequest(
        state_filters=sorted(ENDED),
        producer_id_filters=[],
    )
    return Exchange("listing transactions that have ended", request, read)


def describe_producers(
    partitions: Iterable[TopicPartition],
) -> Exchange[PartitionAnswers]:
    """Return the exchange that asks a broker for the open transactions in partitions
    that it leads.
    """
    topics = [
        DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
        for topic, numbers in by_topic(partitions).items()
    ]

    def read(response: Any) -> PartitionAnswers:
        found: dict[TopicPartition, tuple[Open, ...]] = {}
        refused: dict[TopicPartition, errors.KafkaError] = {}
        for at, partition, error in outcomes(response.topics):
            if error is not None:
                refused[at] = error
            else:
                found[at] = tuple(
                    Open(
                        one.producer_id,
                        one.producer_epoch,
                        one.coordinator_epoch,
                        one.current_txn_start_offset,
                    )
                    for one in partition.active_producers
                    if one.current_txn_start_offset >= 0
                )
        return PartitionAnswers(found, refused)

    return Exchange(
        "asking for open transactions",
        DescribeProducersRequest(topics=topics),
        read,
    )


def write_markers(
    markers: Mapping[TopicPartition, Marker],
) -> Exchange[dict[TopicPartition, errors.KafkaError]]:
    """Return the exchange that writes transaction markers to partitions at their
    leader, as a coordinator does; its answer has the refusals.
    """
    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    topic_type = marker_type.WritableTxnMarkerTopic
    by_marker: dict[Marker, list[TopicPartition]] = {}
    for at, marker in markers.items():
        by_marker.setdefault(marker, []).append(at)
    written = [
        marker_type(
            producer_id=marker.producer,
            producer_epoch=marker.epoch,
            transaction_result=marker.commit,
            topics=[
                topic_type(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(where).items()
            ],
            coordinator_epoch=marker.coordinator_epoch,
        )
        for marker, where in by_marker.items()
    ]

    def read(response: Any) -> dict[TopicPartition, errors.KafkaError]:
        found = (one for marker in response.markers for one in outcomes(marker.topics))
        return {at: error for at, _, error in found if error is not None}

    return Exchange(
        "ending a transaction in its partitions",
        WriteTxnMarkersRequest(max_version=1, markers=written),
        read,
    )


def newest_metadata() -> Exchange[int]:
    """Return the exchange that asks a broker for the newest metadata version that it
    supports. This reveals the broker's version without the patch.
    """
    request = ApiVersionsRequest(
        client_software_name="coopstreams",
        client_software_version="1",
    )

    def read(response: Any) -> int:
        return next(
            (
                int(one.max_version)
                for one in response.supported_features or ()
                if one.name == "metadata.version"
            ),
            0,
        )

    return Exchange("asking for a broker's version", request, read)
