"""The policy of administrators, as consumers read, set and obey it.
`commit/cluster_policy.py` has its topic.

A consumer refreshes the policy and the partition counts of topics every few seconds
(`Policies`). The leader makes the assignment on the I/O thread of its membership, which
must not block. So it uses the values seen last, and rejoins when they change.

Invariant: `for_leader` and `reserves_values` never contact the brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from coopstreams.commit.cluster_policy import (
    LOOK_EVERY_S,
    Policy,
    PolicyTopic,
    default,
)
from coopstreams.common.host import Host
from coopstreams.consumer.group_assignment import topic_number
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log
from coopstreams.topology.errors import (
    IndividualCommitError,
    IndividualCommitNotAllowedError,
    LogError,
    TopicRangeFetchNotAllowedError,
    UnknownTopicError,
)
from coopstreams.topology.naming import COMMIT_TOPIC

log = logging.getLogger(__name__)


def read_policy(settings: Mapping[str, Any]) -> Policy:
    """Return the policy of a cluster. `settings`: how to connect to it, in librdkafka's
    names.

    Raises:
        LogError: the policy topic cannot be read.
    """
    with (
        closing(KafkaLog(settings)) as cluster,
        closing(PolicyTopic(cluster)) as policies,
    ):
        return policies.read()


def set_policy(
    settings: Mapping[str, Any],
    values: Mapping[str, bool | None],
    topic: str | None = None,
) -> None:
    """Set the policy of a cluster, or of one of its topics. A value of None restores
    the default.

    Raises:
        ConfigError: there is no such setting at this level; nothing is set.
        UnknownTopicError: the topic does not exist; nothing is set.
        LogError: the policy could not be written.
    """
    for name in values:
        default(name, topic)
    with closing(KafkaLog(settings)) as cluster:
        for name, value in values.items():
            PolicyTopic(cluster).set(name, value, topic)


def restrictions(
    policy: Policy,
    topics: Iterable[str],
) -> tuple[IndividualCommitError, ...]:
    """Return what the policy keeps a consumer from that would commit out of order, and
    read parts of partitions of these topics.
    """
    if not policy.accepts_individual_commit:
        return (
            IndividualCommitNotAllowedError(
                "the cluster's policy has accept.individual.commit=false: what is done above a record that is not is "
                "committed together with that record, and partitions are not shared"
            ),
        )
    whole = [topic for topic in sorted(topics) if not policy.accepts_range_fetch(topic)]
    return tuple(
        TopicRangeFetchNotAllowedError(
            f"{topic} may not be read by key range: its partitions are not shared. Allow it: `coopstreams policy set "
            f"accept.range.fetch=true --topic {topic}`"
        )
        for topic in whole
    )


class Policies:
    """The policy and the partition counts of topics, as last seen. Only the consumer's
    thread calls `changed` and `watch`.
    """

    def __init__(
        self,
        log: Log,
        replication: int,
        host: Host,
    ) -> None:
        self._log = log
        self._host = host
        self._topic = PolicyTopic(log, replication=replication, host=host)
        self.policy = Policy()
        self._counts: dict[str, int] = {}
        self._asked: set[str] = set()
        """The topics of the group that this member knows of."""
        self._look_at = 0.0

    def watch(self, topics: Iterable[str]) -> None:
        """Add topics of the group, and refresh now.

        Raises:
            UnknownTopicError: one of them does not exist.
        """
        self._asked.update(topics)
        self._look()
        missing = sorted(self._asked - self._counts.keys())
        if missing:
            raise UnknownTopicError(
                f"there is no topic {', '.join(missing)}: create it first, or correct the name"
            )

    def changed(self) -> bool:
        """Refresh if `LOOK_EVERY_S` has passed; return whether the group should
        rebalance.

        While brokers are unreachable, the values seen last stay valid.
        """
        if self._host.now() < self._look_at:
            return False
        before = self._seen()
        try:
            self._look()
        except LogError as error:
            log.warning("cannot look at topics and policy: %s", error)
            self._look_at = self._host.now() + LOOK_EVERY_S
        return before != self._seen()

    def for_leader(self, topics: set[str]) -> tuple[dict[str, int], frozenset[str]]:
        """Return the partition counts of these topics as last seen, and which of the
        topics may be shared.
        """
        self._asked |= topics - {COMMIT_TOPIC}
        known = {
            topic: self._counts[topic]
            for topic in topics - {COMMIT_TOPIC}
            if topic in self._counts
        }
        if len(known) < len(topics - {COMMIT_TOPIC}):
            self._look_at = 0.0
        return known, frozenset(filter(self.policy.accepts_range_fetch, known))

    def reserves_values(self, topic: str) -> bool:
        """Whether the cache of a key range may keep values of this topic's records, by
        the policy last seen.
        """
        return self.policy.reserves_values(topic)

    def numbers(self) -> dict[int, str]:
        """Return all topics by the number that stands for them in task ids
        (`topic_number`).
        """
        return {topic_number(topic): topic for topic in self._counts}

    def close(self) -> None:
        """Close the reader of the policy topic."""
        self._topic.close()

    def _look(self) -> None:
        """Refresh the policy and the partition counts."""
        self._counts = self._log.partitions()
        self.policy = self._topic.read()
        self._look_at = self._host.now() + LOOK_EVERY_S

    def _seen(self) -> object:
        """Return what decides how the group shares its topics, to be compared."""
        policy = self.policy
        topics = {
            topic: (self._counts.get(topic), policy.accepts_range_fetch(topic))
            for topic in set(self._asked)
        }
        return topics, policy.accepts_individual_commit
