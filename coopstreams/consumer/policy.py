"""The policy of administrators: whether groups may commit out of order, whether a topic may be read by key range.

The proposal turns sharing off in three places. Two are settings of brokers and topics, which a client cannot add to
Kafka; they are kept in a compacted topic of their own, and every cooperative consumer obeys it. The third is the
consumer's `allow.individual.commit`.

    cluster   accept.individual.commit                               default true
    topic     accept.range.fetch, reserve.message.value.range.fetch  default false

    key     JSON: [setting, topic]; the topic of a cluster setting is ""
    value   JSON: true or false                                      null: back to the default

A consumer refreshes the policy and the partition counts of topics every few seconds (`Policies`). The leader assigns on
the I/O thread of its membership, which must not block: it uses the values seen last, and rejoins when they change.

Invariant: every consumer that can read the topic obeys it; Kafka's ACLs (`kafka-acls`) decide who may write it. Clients
other than coopstreams ignore it.
Invariant: `for_leader`, `shareable` and `reserves_values` never contact the brokers.
Turned down: settings of Kafka topics (brokers refuse unknown names), one file beside each consumer (no single place to
turn it off).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from coopstreams.consumer.group_assignment import topic_number
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, Position, Reader, TopicSpec
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError
from coopstreams.topology.naming import COMMIT_TOPIC

TOPIC = "__coopstreams_policy"

CLUSTER: Mapping[str, tuple[bool, str]] = {
    "accept.individual.commit": (True, "Whether groups may commit individual offsets, and so share partitions."),
}
TOPICS: Mapping[str, tuple[bool, str]] = {
    "accept.range.fetch": (
        False,
        "Whether the topic's partitions may be read by key range. False: readers see the order of whole partitions.",
    ),
    "reserve.message.value.range.fetch": (
        False,
        "Whether a consumer keeps the values of records that wait in its cache. False: keys and offsets, and values "
        "are read again.",
    ),
}
"""Settings by name: the default, and the meaning."""

_PARTITION = TopicPartition(TOPIC, 0)
_TIMEOUT_S = 30.0
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that were set, by (topic, setting); the topic of a cluster setting is empty."""

    values: Mapping[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def accepts_individual_commit(self) -> bool:
        """Whether groups may commit individual offsets."""
        return self.get("accept.individual.commit")

    def accepts_range_fetch(self, topic: str) -> bool:
        """Whether a topic may be read by key range: the topic allows it, and the cluster accepts individual commits."""
        return self.accepts_individual_commit and self.get("accept.range.fetch", topic)

    def reserves_values(self, topic: str) -> bool:
        """Whether consumers cache the values of waiting records."""
        return self.get("reserve.message.value.range.fetch", topic)

    def get(self, name: str, topic: str | None = None) -> bool:
        """Return a setting of the cluster, or of a topic: its value, else its default.

        Raises:
            ConfigError: there is no such setting at this level.
        """
        return self.values.get((topic or "", name), default(name, topic))


def default(name: str, topic: str | None = None) -> bool:
    """Return the default of a setting of the cluster, or of topics.

    Raises:
        ConfigError: there is no such setting at this level; the message lists those there are.
    """
    known = CLUSTER if topic is None else TOPICS
    if name not in known:
        level = "the cluster" if topic is None else "a topic"
        hint = (
            "; name the topic"
            if topic is None and name in TOPICS
            else "; it is one of the cluster"
            if name in CLUSTER
            else ""
        )
        raise ConfigError(f'{level} has no setting "{name}"{hint}. There are: {", ".join(known)}')
    return known[name][0]


def topic_spec(replication: int = -1) -> TopicSpec:
    """Return the configuration of the policy topic."""
    return TopicSpec(TOPIC, 1, {"cleanup.policy": "compact", "segment.bytes": "10485760"}, replication)


def read_policy(settings: Mapping[str, Any]) -> Policy:
    """Return the policy of a cluster. `settings`: its connection, in librdkafka's names.

    Raises:
        LogError: the policy topic cannot be read.
    """
    log = KafkaLog(settings)
    policies = PolicyTopic(log)
    try:
        return policies.read()
    finally:
        policies.close()
        log.close()


def set_policy(settings: Mapping[str, Any], values: Mapping[str, bool | None], topic: str | None = None) -> None:
    """Set what a cluster, or one of its topics, allows; None: back to the default.

    Raises:
        ConfigError: there is no such setting at this level; nothing is set.
        UnknownTopicError: the topic does not exist; nothing is set.
        LogError: it could not be written.
    """
    for name in values:
        default(name, topic)
    log = KafkaLog(settings)
    try:
        for name, value in values.items():
            PolicyTopic(log).set(name, value, topic)
    finally:
        log.close()


class PolicyTopic:
    """The policy topic of a cluster. Belongs to one thread."""

    def __init__(self, log: Log, *, replication: int = -1) -> None:
        """Connect to nothing yet. `replication` is for the topic, which the first setting creates."""
        self._log = log
        self._replication = replication
        self._values: dict[tuple[str, str], bool] = {}
        self._reader: Reader | None = None
        self._at = 0

    def read(self) -> Policy:
        """Return the current policy, reading only new records. Without the topic, every setting has its default.

        Raises:
            LogError: the topic cannot be read.
        """
        if self._reader is None:
            if TOPIC not in self._log.partitions([TOPIC]):
                return Policy()
            self._at = self._log.start_offset(_PARTITION)
            self._reader = self._log.reader(committed_only=False)
            self._reader.assign({_PARTITION: Position(self._at)})
        end, give_up = self._log.end_offset(_PARTITION), time.monotonic() + _TIMEOUT_S
        while self._at < end:
            for run in self._reader.fetch(_BATCH, 0.2):
                self._apply(run.columns)
                self._at = max(self._at, run.next_offset)
            if self._at < end and time.monotonic() > give_up:
                raise LogError(
                    f"{_PARTITION} ends at {end}, and could be read up to {self._at} in {_TIMEOUT_S:.0f} s",
                    retryable=True,
                )
        return Policy(dict(self._values))

    def set(self, name: str, value: bool | None, topic: str | None = None) -> None:
        """Set one setting of the cluster or of a topic; None: back to the default.

        Raises:
            ConfigError: there is no such setting at this level.
            UnknownTopicError: the topic does not exist.
            LogError: it could not be written.
        """
        default(name, topic)
        if topic is not None and topic not in self._log.partitions([topic]):
            raise UnknownTopicError(f'there is no topic "{topic}". Create it first, or correct the name.')
        self._log.create_topics([topic_spec(self._replication)])
        writer = self._log.writer()
        try:
            key = orjson.dumps([name, topic or ""])
            writer.append(
                TOPIC,
                [key],
                [None if value is None else orjson.dumps(value)],
                [time.time_ns() // 1_000_000],
                partitions=0,
            )
            writer.flush(_TIMEOUT_S)
        finally:
            writer.close()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def _apply(self, columns: Columns) -> None:
        """Apply settings in the order of the log. Settings of later versions of coopstreams are kept, and unused."""
        for key, value, offset in zip(columns.keys, columns.values, columns.offsets, strict=True):
            try:
                name, topic = orjson.loads(key or b"")
                if value is None:
                    self._values.pop((topic, name), None)
                else:
                    self._values[topic, name] = bool(orjson.loads(value))
            except (ValueError, TypeError) as error:
                raise LogError(
                    f"{_PARTITION} has a record at offset {offset} that is no setting ({error}). Another program wrote "
                    "it: set the policy again, and let only administrators write the topic (kafka-acls)"
                ) from error


log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


class Policies:
    """The topics and the policy, as last seen. Only the consumer's thread calls `changed` and `watch`."""

    def __init__(self, log: Log, replication: int) -> None:
        self._log = log
        self._topic = PolicyTopic(log, replication=replication)
        self._policy = Policy()
        self._counts: dict[str, int] = {}
        self._asked: set[str] = set()
        """The topics of the group, as far as this member knows them."""
        self._look_at = 0.0

    def watch(self, topics: Iterable[str]) -> None:
        """Refresh now; these are topics of the group.

        Raises:
            UnknownTopicError: one of them does not exist.
        """
        self._asked.update(topics)
        self._look()
        missing = sorted(self._asked - self._counts.keys())
        if missing:
            raise UnknownTopicError(f"there is no topic {', '.join(missing)}: create it first, or correct the name")

    def changed(self) -> bool:
        """Refresh if it is time; return whether the group should rebalance.

        While brokers are unreachable, the values seen last stay valid.
        """
        if time.monotonic() < self._look_at:
            return False
        before = self._seen()
        try:
            self._look()
        except LogError as error:
            log.warning("cannot look at topics and policy: %s", error)
            self._look_at = time.monotonic() + LOOK_EVERY_S
        return before != self._seen()

    def for_leader(self, topics: set[str]) -> tuple[dict[str, int], frozenset[str]]:
        """Return the partition counts of these topics, as far as known, and which of them may be shared."""
        self._asked |= topics - {COMMIT_TOPIC}
        known = {topic: self._counts[topic] for topic in topics - {COMMIT_TOPIC} if topic in self._counts}
        if len(known) < len(topics - {COMMIT_TOPIC}):
            self._look_at = 0.0
        return known, frozenset(topic for topic in known if self.shareable(topic))

    def shareable(self, topic: str) -> bool:
        """Whether parts of a topic's partitions may be read."""
        return self._policy.accepts_range_fetch(topic)

    def reserves_values(self, topic: str) -> bool:
        """Whether values of waiting records may be cached."""
        return self._policy.reserves_values(topic)

    @property
    def accepts_individual_commit(self) -> bool:
        """Whether groups may commit out of order."""
        return self._policy.accepts_individual_commit

    def numbers(self) -> dict[int, str]:
        """Return all topics by their number."""
        return {topic_number(topic): topic for topic in self._counts}

    def close(self) -> None:
        """Close the reader."""
        self._topic.close()

    def _look(self) -> None:
        self._counts = self._log.partitions()
        self._policy = self._topic.read()
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def _seen(self) -> object:
        return {
            topic: (self._counts.get(topic), self.shareable(topic)) for topic in set(self._asked)
        }, self.accepts_individual_commit
