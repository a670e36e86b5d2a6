"""A Kafka cluster as a `Log`: readers, writers, topics, offsets.

Invariant: `end_offset` is asked of the partition's leader each time, by a consumer that reads uncommitted records: a committed one is told
the last stable offset instead, and `AdminClient.list_offsets` answers FENCED_LEADER_EPOCH for ever after a broker's restart (measured).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from coopstreams.log.kafka_errors import UNKNOWN, away, error_of, heals, translated, unknown_topic
from coopstreams.log.kafka_reader import KafkaReader
from coopstreams.log.kafka_settings import ClientErrors, client_settings, consumer_settings, make_client, producer_settings
from coopstreams.log.kafka_writer import KafkaWriter
from coopstreams.log.log import TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError, UnknownTopicError

UNKNOWN_FOR_S = 3.0
"""How long a topic may be unknown before it is an error: a new one may not be known everywhere yet."""
ATTEMPT_S = 5.0
RETRY_S = 0.05

T = TypeVar("T")


class KafkaLog:
    """A Kafka cluster. Any thread. Nothing is contacted before the first question.

    `settings`: librdkafka's names; see `kafka_settings` for prefixes and defaults. `timeout_s`: how long a broker may be away before
    a question fails.
    """

    def __init__(self, settings: Mapping[str, Any], *, timeout_s: float = 30.0) -> None:
        self._settings = dict(settings)
        producer_settings(self._settings, None)  # what is wrong is said now
        self.timeout_s = timeout_s
        """How long a broker may be away before a question fails; may be changed at any time."""
        self._errors = ClientErrors()
        self._lock = threading.Lock()
        self._consumer = self._new_consumer()
        self._admin = self._new_admin()
        self._closed = False

    def reader(self, *, committed_only: bool = True) -> KafkaReader:
        """Return a reader of committed records only, or of all."""
        return KafkaReader(self._settings, committed_only=committed_only)

    def writer(self, transactional_id: str | None = None) -> KafkaWriter:
        """Return a writer; a transactional one ends whatever transaction was open under its id."""
        return KafkaWriter(self._settings, transactional_id, self.end_offset, self.timeout_s)

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition count of each topic asked for (all: None) that exists."""
        # All topics, always: asking for one by name makes it, on a broker that is allowed to.
        found = self._ask(lambda seconds: self._consumer.list_topics(timeout=seconds), "asking for the topics").topics
        known = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        return known if topics is None else {name: known[name] for name in topics if name in known}

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what does not exist yet, and wait until it is there."""
        if not specs:
            return
        for spec in specs:
            new = NewTopic(spec.name, spec.partitions, spec.replication, config=dict(spec.config))
            self._request(self._admin.create_topics, [new], f'creating topic "{spec.name}"', fine={KafkaError.TOPIC_ALREADY_EXISTS})
        self._wait_for(lambda known: all(spec.name in known for spec in specs))

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete these topics, and wait until they are gone."""
        if not names:
            return
        for name in names:
            self._request(self._admin.delete_topics, [name], f'deleting topic "{name}"', fine=UNKNOWN)
        self._wait_for(lambda known: not any(name in known for name in names))

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration, defaults of the broker included."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._request(self._admin.describe_configs, [resource], f'asking for the configuration of topic "{topic}"') or {}
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def topic_id(self, topic: str) -> str:
        """Return what tells the topic from another one that had its name before."""

        def describe(names: list[str], *, request_timeout: float) -> Any:
            return self._admin.describe_topics(TopicCollection(names), request_timeout=request_timeout)

        return str(self._request(describe, [topic], f'asking for the id of topic "{topic}"').topic_id)

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset the log still has."""
        return self._watermarks(partition)[0]

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true high watermark."""
        return self._watermarks(partition)[1]

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete the records below an offset."""
        self._request(self._admin.delete_records, [KafkaPartition(*partition, offset)], f"deleting the records of {partition} below {offset}")

    def close(self) -> None:
        """Let go of the clients."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._consumer.close()

    def _new_consumer(self) -> Consumer:
        consumer: Consumer = make_client(Consumer, consumer_settings(self._settings, committed_only=False), self._errors)
        return consumer

    def _new_admin(self) -> AdminClient:
        admin: AdminClient = make_client(AdminClient, client_settings(self._settings, "admin"), self._errors)
        return admin

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        where = KafkaPartition(*partition)
        return self._ask(
            lambda seconds: self._consumer.get_watermark_offsets(where, seconds, cached=False),
            f"asking for the offsets of {partition}",
            partition,
        )

    def _ask(self, question: Callable[[float], T], what: str, where: TopicPartition | None = None) -> T:
        """Return the answer of the cluster, asked again while it is away or does not yet know a new topic."""
        start = time.monotonic()
        while True:
            left = start + self.timeout_s - time.monotonic()
            with self._lock:  # librdkafka's consumer lets a second caller starve
                if self._closed:
                    raise LogError("this log is closed")
                try:
                    return question(min(max(left, 0.1), ATTEMPT_S))
                except KafkaException as exception:
                    error = error_of(exception)
                    self._consumer.poll(0)  # hear why
            if where is not None and error.code() in UNKNOWN:
                if time.monotonic() - start > min(UNKNOWN_FOR_S, self.timeout_s) and self._is_missing(where):
                    raise unknown_topic(str(where))
            elif self._errors.refused is not None or not heals(error):
                raise translated(self._errors.refused or error, what)
            if left <= 0:
                with self._lock:
                    if not self._closed:  # a client can lose sight of its brokers for good: see `KafkaReader._renew`
                        self._consumer.close()
                        self._consumer = self._new_consumer()
                raise away(self._settings["bootstrap.servers"], what, self.timeout_s, self._errors)
            time.sleep(RETRY_S)

    def _is_missing(self, where: TopicPartition) -> bool:
        """Whether the brokers say that there is no such partition. A client that has lost its brokers says so as well, of all of them."""
        with self._lock:
            try:
                found = self._consumer.list_topics(timeout=ATTEMPT_S).topics.get(where.topic)
            except KafkaException:
                return False
        return found is None or where.partition not in found.partitions

    def _request(self, request: Callable[..., Any], what_for: list[Any], what: str, fine: Collection[int] = ()) -> Any:
        """Return what a request of the administrator came to, made again while the cluster is away; None for an error that is fine."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            try:
                (answer,) = request(what_for, request_timeout=min(left, ATTEMPT_S)).values()
                return answer.result(min(left, ATTEMPT_S) + ATTEMPT_S)
            except KafkaException as exception:
                error = error_of(exception)
                if error.code() in fine:
                    return None
                self._admin.poll(0)  # hear why
                if error.code() in UNKNOWN:
                    raise UnknownTopicError(f"{what}: Kafka has no such topic or partition.") from exception
                if not heals(error):
                    raise translated(error, what) from exception
                if time.monotonic() > deadline:
                    self._admin = self._new_admin()
                    raise away(self._settings["bootstrap.servers"], what, self.timeout_s, self._errors) from exception
            # A broker that has just started may not have known the controller when the client asked; it would not ask again for long.
            self.partitions()
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(timeout=ATTEMPT_S)

    def _wait_for(self, done: Callable[[dict[str, int]], bool]) -> None:
        """Return when the topics are as they should be: a broker answers before it knows of its own change."""
        deadline = time.monotonic() + self.timeout_s
        while not done(self.partitions()) and time.monotonic() < deadline:
            time.sleep(RETRY_S)
