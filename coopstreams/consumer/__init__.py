"""Consumers that share partitions by key range and commit records in any order."""

from coopstreams.commit.cluster_policy import Policy
from coopstreams.commit.group_progress import (
    OffsetAndRanges,
    list_consumer_group_offsets,
)
from coopstreams.consumer.assignors import (
    Subscription,
    key_range_range,
    key_range_round_robin,
    sticky,
)
from coopstreams.consumer.consumer import CooperativeConsumer
from coopstreams.consumer.consumer_commit import CommitResult
from coopstreams.consumer.consumer_policy import read_policy, set_policy
from coopstreams.consumer.cooperative_fetch import CooperativeFetch
from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.owned_range import ConsumerRecord
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    CommitConflictError,
    ConsumerRangeFetchNotAcceptedError,
    IndividualCommitError,
    IndividualCommitNotAllowedError,
    IndividualCommitTooOldError,
    MaxIndividualCommitReachedError,
    TopicRangeFetchNotAllowedError,
)
from coopstreams.topology.keys import KeyRange

__all__ = [
    "AcquiredRecord",
    "CommitConflictError",
    "CommitResult",
    "ConsumerRangeFetchNotAcceptedError",
    "ConsumerRecord",
    "CooperativeConsumer",
    "CooperativeFetch",
    "IndividualCommitError",
    "IndividualCommitNotAllowedError",
    "IndividualCommitTooOldError",
    "KeyRange",
    "MaxIndividualCommitReachedError",
    "OffsetAndRanges",
    "Policy",
    "RecordFilter",
    "Subscription",
    "TopicPartition",
    "TopicRangeFetchNotAllowedError",
    "key_range_range",
    "key_range_round_robin",
    "list_consumer_group_offsets",
    "read_policy",
    "set_policy",
    "sticky",
]
