"""The policy of administrators: whether groups may commit out of order, and whether a
topic may be read by key range.

The proposal turns sharing off in three places. Two of them are settings of brokers and
topics, which a client cannot add to Kafka. They are kept in a compacted topic of their
own, and every cooperative consumer and every application obeys it. The third is the
consumer's `allow.individual.commit`.

    cluster   accept.individual.commit                               default true
    topic     accept.range.fetch, reserve.message.value.range.fetch  default false

    key     JSON: [setting, topic]; the topic of a cluster setting is ""
    value   JSON: true or false                                      null: back to the default

If `accept.range.fetch` is not set, consumers do not share, because their user may rely
on the order of the partition. Applications share: their results do not depend on the
number of key ranges. An application obeys a false that was set (`forbids_ranges`).

Invariant: every consumer and application that can read the topic obeys it; Kafka's ACLs
(`kafka-acls`) decide who may write it. Clients other than coopstreams ignore it.
Turned down: settings of Kafka topics (brokers refuse unknown names), one file beside
each consumer (no single place to turn sharing off).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import orjson

from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import (
    BROKERS_TIME,
    Log,
    Position,
    Reader,
    TopicSpec,
)
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError
from coopstreams.topology.json_text import read_long

TOPIC = "__coopstreams_policy"

CLUSTER: Mapping[str, tuple[bool, str]] = {
    "accept.individual.commit": (
        True,
        "Whether groups may commit individual offsets, and so share partitions.",
    ),
}
TOPICS: Mapping[str, tuple[bool, str]] = {
    "accept.range.fetch": (
        False,
        "Whether the topic's partitions may be read by key range. False: readers see the order of whole partitions. "
        "Applications share a topic for which nothing is set.",
    ),
    "reserve.message.value.range.fetch": (
        False,
        "Whether a consumer keeps the values of records that wait in its cache. False: keys and offsets, and values "
        "are read again.",
    ),
}
"""The settings of a topic by name, each with its default and its meaning."""

LOOK_EVERY_S = 5.0
"""The time between two reads of the policy by a process."""

_PARTITION = TopicPartition(TOPIC, 0)
_WHERE = " (`coopstreams policy get`)"
_TIMEOUT_S = 30.0
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that were set, by (topic, setting); the topic of a cluster setting
    is empty.
    """

    values: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    allowed: bool = True
    """Whether the application accepts it for itself: its `allow.individual.commit`."""

    @property
    def accepts_individual_commit(self) -> bool:
        """Whether groups may commit individual offsets."""
        return self.allowed and self.get("accept.individual.commit")

    def accepts_range_fetch(self, topic: str) -> bool:
        """Return whether a topic may be read by key range: the topic allows it, and the
        cluster accepts individual commits.
        """
        return self.accepts_individual_commit and self.get("accept.range.fetch", topic)

    def forbids_ranges(self, topics: Iterable[str]) -> str:
        """Return which setting keeps an application from reading these topics by key
        range, in words; empty: none does.
        """
        if not self.allowed:
            return "allow.individual.commit=false"
        if not self.accepts_individual_commit:
            return f"the cluster has accept.individual.commit=false{_WHERE}"
        forbidden = [
            topic
            for topic in topics
            if self.values.get((topic, "accept.range.fetch")) is False
        ]
        return (
            f"{', '.join(sorted(forbidden))}: accept.range.fetch=false{_WHERE}"
            if forbidden
            else ""
        )

    def reserves_values(self, topic: str) -> bool:
        """Return whether consumers cache the values of waiting records."""
        return self.get("reserve.message.value.range.fetch", topic)

    def get(self, name: str, topic: str | None = None) -> bool:
        """Return the value of a setting, or its default; `topic` None: a setting of the
        cluster.

        Raises:
            ConfigError: there is no such setting at this level.
        """
        return self.values.get((topic or "", name), default(name, topic))


def default(name: str, topic: str | None = None) -> bool:
    """Return the default of a setting; `topic` None: of the cluster, else of topics.

    Raises:
        ConfigError: this level has no setting of that name; the message lists its
            settings.
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
        raise ConfigError(
            f'{level} has no setting "{name}"{hint}. There are: {", ".join(known)}'
        )
    return known[name][0]


def topic_spec(replication: int = -1) -> TopicSpec:
    """Return the configuration of the policy topic."""
    return TopicSpec(
        TOPIC,
        1,
        {"cleanup.policy": "compact", **BROKERS_TIME, "segment.bytes": "10485760"},
        replication,
    )


class PolicyTopic:
    """A reader and writer of the policy topic of a cluster. Belongs to one thread."""

    def __init__(
        self,
        log: Log,
        *,
        replication: int = -1,
        host: Host = SYSTEM,
    ) -> None:
        """Make a client that has not read yet. `replication` is that of the topic,
        which the first setting creates.
        """
        self._log = log
        self._host = host
        self._replication = replication
        self._values: dict[tuple[str, str], bool] = {}
        self._strange: dict[bytes | None, str] = {}
        """What is wrong with each record that is no setting, by the record's key. A
        later record of the same key takes its place.
        """
        self._reader: Reader | None = None
        self._at = 0

    def read(self) -> Policy:
        """Return the current policy, reading only new records. Without the topic, every
        setting has its default.

        Raises:
            LogError: the topic cannot be read, or has a record that is no setting.
        """
        if self._reader is None:
            if TOPIC not in self._log.partitions([TOPIC]):
                return Policy()
            self._reader = self._begin()
        end = self._log.end_offset(_PARTITION)
        give_up = self._host.now() + _TIMEOUT_S
        if end < self._at:  # the topic was made anew
            self._reader.close()
            self._reader = self._begin()
        while self._at < end:
            for run in self._reader.fetch(_BATCH, 0.2):
                self._apply(run.columns)
                self._at = max(self._at, run.next_offset)
            if self._at < end and self._host.now() > give_up:
                raise LogError(
                    f"{_PARTITION} ends at {end}, and could be read up to {self._at} in {_TIMEOUT_S:.0f} s",
                    retryable=True,
                )
        if self._strange:
            first = next(iter(self._strange.values()))
            raise LogError(
                f"{_PARTITION} has {first}. Another program wrote it: set that setting again, or write a record with "
                "the same key and no value; and let only administrators write the topic (kafka-acls)"
            )
        return Policy(dict(self._values))

    def set(
        self,
        name: str,
        value: bool | None,
        topic: str | None = None,
    ) -> None:
        """Set one setting of the cluster or of a topic; None: back to the default.

        Raises:
            ConfigError: there is no such setting at this level.
            UnknownTopicError: the topic does not exist.
            LogError: the setting could not be written.
        """
        default(name, topic)
        if topic is not None:
            try:
                self._log.topic_id(
                    topic
                )  # a broker may not know a new topic yet: this waits `UNKNOWN_FOR_S`
            except UnknownTopicError:
                raise UnknownTopicError(
                    f'there is no topic "{topic}". Create it first, or correct the name.'
                ) from None
        self._log.create_topics([topic_spec(self._replication)])
        with closing(self._log.writer()) as writer:
            key = orjson.dumps([name, topic or ""])
            writer.append(
                TOPIC,
                [key],
                [None if value is None else orjson.dumps(value)],
                [self._host.wall_ms()],
                partitions=0,
            )
            writer.flush(_TIMEOUT_S)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def _begin(self) -> Reader:
        """Drop what was read, and return a reader at the beginning of the topic."""
        self._values.clear()
        self._strange.clear()
        self._at = self._log.start_offset(_PARTITION)
        reader = self._log.reader(committed_only=False)
        reader.assign({_PARTITION: Position(self._at)})
        return reader

    def _apply(self, columns: Columns) -> None:
        """Apply settings in the order of the log. Settings of later versions of
        coopstreams are kept, and not used.
        """
        for key, value, offset in zip(
            columns.keys,
            columns.values,
            columns.offsets,
            strict=True,
        ):
            self._strange.pop(key, None)
            try:
                name, topic = read_long(orjson.loads, key or b"")
                if value is None:
                    self._values.pop((topic, name), None)
                else:
                    self._values[topic, name] = bool(read_long(orjson.loads, value))
            except (ValueError, TypeError) as error:
                if value is not None:
                    self._strange[key] = (
                        f"a record at offset {offset} that is no setting ({error})"
                    )
