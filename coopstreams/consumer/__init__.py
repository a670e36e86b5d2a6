"""Consumers that share partitions by key range and commit records in whatever order they were done."""

from coopstreams.consumer.assignors import Subscription, key_range_range, key_range_round_robin, sticky
from coopstreams.consumer.committing import CommitResult
from coopstreams.consumer.consumer import CooperativeConsumer
from coopstreams.consumer.filters import Filter
from coopstreams.consumer.offsets import OffsetAndRanges, list_consumer_group_offsets
from coopstreams.consumer.share import ConsumerRecord
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange

__all__ = [
    "CommitResult",
    "ConsumerRecord",
    "CooperativeConsumer",
    "Filter",
    "KeyRange",
    "OffsetAndRanges",
    "Subscription",
    "TopicPartition",
    "key_range_range",
    "key_range_round_robin",
    "list_consumer_group_offsets",
    "sticky",
]
