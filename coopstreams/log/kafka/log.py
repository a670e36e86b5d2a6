"""A Kafka cluster as a `Log`: readers, writers, topics, offsets.

Invariant: `end_offset` is requested each time, from the leader of the highest epoch
that enough brokers know (`group.partition_leader`). A read_uncommitted consumer
requests the other offsets: a read_committed one gets the last stable offset
(`stable_offsets`), and `AdminClient.list_offsets` answers FENCED_LEADER_EPOCH for ever
after a broker's restart (measured).
Invariant: a `check` is called before each attempt of a change, as the time between two
attempts suffices for a reset (`log.precondition`).
Relies on: `retries` (how long an attempt may take), `kafka_errors` (which errors heal),
`group.end_offsets`, `group.hanging_transactions` (requests to single brokers).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from coopstreams.common.acl_errors import Attempt
from coopstreams.common.references import resolved
from coopstreams.group.admin import connected
from coopstreams.group.end_offsets import Ends, EndsAnswer
from coopstreams.group.hanging_transactions import Transactions
from coopstreams.log.kafka.client_settings import (
    ClientErrors,
    client_settings,
    consumer_settings,
    login_of,
    make_client,
    producer_settings,
)
from coopstreams.log.kafka.kafka_errors import (
    UNKNOWN,
    away,
    error_of,
    heals,
    made_again,
    translated,
    unknown_topic,
)
from coopstreams.log.kafka.native import data_plane
from coopstreams.log.kafka.reader import KafkaReader
from coopstreams.log.kafka.retries import (
    ATTEMPT_S,
    FAILOVER_S,
    RETRY_S,
    Patience,
)
from coopstreams.log.kafka.writer import KafkaWriter
from coopstreams.log.log import UNKNOWN_FOR_S, Check, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    GroupError,
    LogError,
    UnknownTopicError,
)
from coopstreams.topology.naming import OFFSETS_TOPIC

LOOK_S = 1.0
GLANCE_S = 3.0
"""How long, at most, to wait for a leader's end offset before the leader is looked up
again.
"""
SILENT_S = 20.0
"""A client without an answer for this long is replaced when a request runs out of time.
"""
NEW_FOR_S = 30.0
"""How long a topic that this log created may be unknown to one of the brokers."""
SOME = 3
"""How many partitions of a request are named in messages."""
NO_ID = "A" * 22
"""The zero topic id: brokers answer with it if their cluster is set to a format without
ids.
"""
SETTLE_S = 3.0
"""How long an opener may wait for `settle`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Brokers:
    """The clients for requests to single brokers. They share one connection to each
    broker.
    """

    transactions: Transactions
    ends: Ends


class KafkaLog:
    """A Kafka cluster. Thread-safe: locks. Nothing is connected before the first request.

    `settings`: librdkafka's names; see `client_settings` for prefixes and defaults.
    `timeout_s`: how long brokers may be unreachable before a request fails.
    """

    def __init__(self, settings: Mapping[str, Any], *, timeout_s: float = 30.0) -> None:
        self._settings = resolved(settings)
        producer_settings(
            self._settings,
            None,
        )  # raises if a setting is wrong, as the next call does
        data_plane()
        self.timeout_s = timeout_s
        """How long brokers may be unreachable before a request fails; may be changed at
        any time.
        """
        self._errors = ClientErrors(login_of(self._settings))
        self._heard = False
        """Whether any request was answered."""
        self._lock = threading.Lock()
        self._consumer = self._new_consumer()
        self._admin = self._new_admin()
        self._answered_at = time.monotonic()
        self._topics_lock = threading.Lock()
        """Held while `_made` or `_listed` is replaced. Reading them needs no lock."""
        self._made: frozenset[str] = frozenset()
        self._made_until = 0.0
        """The time (`time.monotonic`) until which topics created here may be unknown to
        a broker.
        """
        self._listed: frozenset[str] | None = None
        """The topics in a broker's last list, updated by answers about single topics;
        None: no list was requested yet.
        """
        self._replicas: Mapping[str, int] = {}
        """The fewest replicas of a partition of each topic in that list."""
        self._connecting = threading.Lock()
        self._brokers: _Brokers | None = None
        self._closed = False

    def reader(self, *, committed_only: bool = True) -> KafkaReader:
        """Return a reader of committed records only, or of all."""
        return made_again(
            lambda: KafkaReader(self._settings, committed_only=committed_only)
        )

    def writer(
        self,
        transactional_id: str | None = None,
        written: Callable[[], Collection[str]] | None = None,
    ) -> KafkaWriter:
        """Return a writer; a transactional one first ends the open transaction of its
        id.

        `written`: returns the topics in which a hanging transaction is ended as well.
        """
        return KafkaWriter(
            self._settings,
            transactional_id,
            self.end_offset,
            self.timeout_s,
            self._take_transactions,
            written or self.partitions,
        )

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        """End hanging transactions in these topics: see `Log.settle`."""
        self._take_transactions().settle_dead(dead, written, SETTLE_S)

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition count of each of these topics that exists: see
        `Log.partitions`.

        Topics that this user may not describe are left out of all topics; to name one
        is an error.
        """
        known = self._known(topics)
        # A broker may not know a new topic yet: wait, so that its creator finds it from
        # now on.
        new = self._made if topics is None else self._made.intersection(topics)
        while time.monotonic() < self._made_until and not new <= known.keys():
            time.sleep(RETRY_S)
            known = self._known(topics)
        return known

    def create_topics(
        self,
        specs: Sequence[TopicSpec],
        check: Check | None = None,
    ) -> None:
        """Create the topics that do not exist yet, and wait until they are known."""
        if not specs:
            return
        for spec in specs:
            new = NewTopic(
                spec.name,
                spec.partitions,
                spec.replication,
                config=dict(spec.config),
            )
            self._request(
                AdminClient.create_topics,
                [new],
                f'creating topic "{spec.name}"',
                self._attempt("Create", spec.name),
                fine={KafkaError.TOPIC_ALREADY_EXISTS},
                check=_about(spec.name, check),
            )
        self._await_from_now({spec.name for spec in specs})
        self.partitions([spec.name for spec in specs])

    def delete_topics(self, names: Sequence[str], check: Check | None = None) -> None:
        """Delete these topics, and wait until they are gone."""
        if not names:
            return
        with self._topics_lock:
            self._made = self._made.difference(names)
        for name in names:
            deleted = self._attempt("Delete", name)
            self._request(
                AdminClient.delete_topics,
                [name],
                f'deleting topic "{name}"',
                deleted,
                fine=UNKNOWN,
                check=_about(name, check),
            )
        deadline = time.monotonic() + self.timeout_s
        while self.partitions(names) and time.monotonic() < deadline:
            time.sleep(RETRY_S)

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration, defaults of the broker included."""
        what = f'asking for the configuration of topic "{topic}"'
        (found,) = self._configs([topic], what, self._attempt("DescribeConfigs", topic))
        return found

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each of these topics, in one request."""
        what = f"asking for the configuration of {len(topics)} topics ({', '.join(topics[:SOME])})"
        try:
            found = self._configs(
                topics,
                what,
                self._attempt("DescribeConfigs", ", ".join(topics)),
            )
        except AccessDeniedError:  # of which topic, the error of a single request says
            return {topic: self.topic_config(topic) for topic in topics}
        return dict(zip(topics, found, strict=True))

    def _configs(
        self,
        topics: Sequence[str],
        what: str,
        attempt: Attempt,
    ) -> list[dict[str, str]]:
        """Return the configuration of each of these topics, in their order; all are
        asked for in one request.
        """
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = (
            self._requests(AdminClient.describe_configs, resources, what, attempt)
            if topics
            else []
        )
        return [
            {name: one.value for name, one in entries.items() if one.value is not None}
            for entries in answers
        ]

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic: see `Log.topic_id`."""
        found = str(self._described(topic).topic_id)
        listed = self._listed
        if listed is not None and topic not in listed:  # another broker knows it
            self._await_from_now({topic})
        return "" if found == NO_ID else found

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset the log still has."""
        return self._watermarks(partition)[0]

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true high watermark, even if a broker hung: see `Log.end_offset`."""
        return self.end_offsets([partition])[partition]

    def end_offsets(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the true high watermark of each of these partitions, by one request."""
        found: dict[TopicPartition, int] = {}
        unknown_since: dict[TopicPartition, float] = {}
        what = (
            f"asking where {', '.join(str(at) for at in sorted(partitions)[:SOME])} end"
        )
        patience = Patience(what, self.timeout_s)
        while left := set(partitions) - found.keys():
            told = self._connected().ends.ask(left, min(patience.attempt_s(), GLANCE_S))
            found |= told.ends
            unknown_since |= {
                at: self._check_known(at, unknown_since.get(at, 0.0))
                for at in sorted(told.unknown)
            }
            if missing := sorted(left - found.keys()):
                self._wait_for_end(patience, what, missing[0], told)
        return found

    def stable_offsets(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the last stable offset of each of these partitions: no transaction is
        open below it.
        """
        settings = consumer_settings(self._settings, committed_only=True)
        with contextlib.closing(
            make_client(Consumer, settings, self._errors)
        ) as consumer:
            return {
                partition: self._watermarks(partition, consumer)[1]
                for partition in partitions
            }

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record time is at least `timestamp_ms`: see
        `Log.offset_at`.
        """
        where = KafkaPartition(*partition, timestamp_ms)
        (found,) = self._ask(
            lambda seconds: self._consumer.offsets_for_times([where], seconds),
            f"asking for the offset of {partition} by time",
            partition,
        )
        if found.error is not None:
            raise translated(
                found.error,
                f"asking for the offset of {partition} by time",
                self._attempt("Describe", partition.topic),
            )
        return int(found.offset) if found.offset >= 0 else self.end_offset(partition)

    def reported_end(self, partition: TopicPartition) -> int:
        """Return the high watermark that a leader reports, by one request. It is an old
        one if that broker hung.
        """
        return self._watermarks(partition)[1]

    def replicas(self, topic: str) -> int:
        """Return the fewest replicas of a partition by the last list of all topics."""
        return self._replicas.get(topic, 0)

    def silent_replicas(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return, for each of these partitions, the brokers of in-sync replicas that do
        not answer within a second.
        """
        return self._connected().ends.silent(partitions, LOOK_S)

    def delete_before(
        self,
        partition: TopicPartition,
        offset: int,
        check: Check | None = None,
    ) -> None:
        """Delete the records of a partition below an offset."""
        self._request(
            AdminClient.delete_records,
            [KafkaPartition(*partition, offset)],
            f"deleting the records of {partition} below {offset}",
            self._attempt("Delete", partition.topic),
            check=_about(partition.topic, check),
        )

    def close(self) -> None:
        """Close the clients."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._consumer.close()
                # which has no `close`: the last reference ends its threads and
                # connections
                del self._admin
                if self._brokers is not None:
                    self._brokers.transactions.close()

    def _described(self, topic: str, fine: Collection[int] = ()) -> Any:
        """Return a topic's metadata from the brokers; None after an error in `fine`."""

        def describe(
            admin: AdminClient,
            names: list[str],
            *,
            request_timeout: float,
        ) -> Any:
            return admin.describe_topics(
                TopicCollection(names),
                request_timeout=request_timeout,
            )

        what = f'asking for topic "{topic}"'
        attempt = self._attempt("Describe", topic)
        return self._request(describe, [topic], what, attempt, fine=fine)

    def _attempt(self, operation: str, topic: str) -> Attempt:
        """Return what an error of access names: the login, the operation, the topic."""
        return Attempt(self._errors.login, operation, topic)

    def _take_transactions(self) -> Transactions:
        """Return the client for transactions, connected at the first call."""
        return self._connected().transactions

    def _connected(self) -> _Brokers:
        """Return the clients of single brokers, connected at the first call.

        Raises:
            LogError: no broker answers, or this log is closed.
        """
        with self._connecting:
            if self._closed:
                raise LogError("this log is closed")
            if self._brokers is None:
                # It raises the usual error if the brokers are unreachable or refuse us;
                # the topic does not matter.
                self._ask(
                    lambda seconds: self._consumer.list_topics(OFFSETS_TOPIC, seconds),
                    "asking for the brokers",
                )
                try:
                    connection = connected(self._settings, self.timeout_s)
                except GroupError as error:
                    raise LogError(str(error), retryable=True) from error
                self._brokers = _Brokers(Transactions(connection), Ends(connection))
            return self._brokers

    def _new_consumer(self) -> Consumer:
        consumer: Consumer = make_client(
            Consumer,
            consumer_settings(self._settings, committed_only=False),
            self._errors,
        )
        return consumer

    def _new_admin(self) -> AdminClient:
        admin: AdminClient = make_client(
            AdminClient,
            client_settings(self._settings, "admin"),
            self._errors,
        )
        return admin

    def _known(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition counts of these topics (None: of all), as one of the
        brokers knows them.
        """
        if topics is not None:
            known = {
                name: count
                for name in topics
                if (count := self._count(name)) is not None
            }
            with self._topics_lock:
                if self._listed is not None:
                    self._listed = self._listed.difference(topics).union(known)
            return known
        found = self._ask(
            lambda seconds: self._consumer.list_topics(timeout=seconds),
            "asking for the topics",
        ).topics
        known = {
            name: len(topic.partitions)
            for name, topic in found.items()
            if topic.error is None
        }
        with self._topics_lock:
            self._listed = frozenset(known)
        self._replicas = {
            name: min(
                (len(one.replicas) for one in found[name].partitions.values()),
                default=0,
            )
            for name in known
        }
        return known

    def _count(self, topic: str) -> int | None:
        """Return a topic's partition count; None: there is no such topic. The request
        is a consumer's, so it does not create the topic.
        """
        what = f'asking for topic "{topic}"'
        found = self._ask(
            lambda seconds: self._consumer.list_topics(topic, seconds),
            what,
        ).topics[topic]
        if found.error is not None:
            # `_described` repeats the request if the error may pass, and raises it if
            # not
            found = (
                None
                if found.error.code() in UNKNOWN
                else self._described(topic, fine=UNKNOWN)
            )
        return None if found is None else len(found.partitions)

    def _await_from_now(self, topics: Collection[str]) -> None:
        """Note that these topics exist, although a broker may not know them yet: for
        `NEW_FOR_S`, requests wait for that.
        """
        with self._topics_lock:
            self._made = self._made.union(topics)
        self._made_until = time.monotonic() + NEW_FOR_S

    def _watermarks(
        self,
        partition: TopicPartition,
        other: Consumer | None = None,
    ) -> tuple[int, int]:
        """Return the start and end offset of a partition, as this log's consumer sees
        them, or as `other` does.
        """
        where = KafkaPartition(*partition)
        return self._ask(
            lambda seconds: (other or self._consumer).get_watermark_offsets(
                where,
                seconds,
                cached=False,
            ),
            f"asking for the offsets of {partition}",
            partition,
        )

    def _ask(
        self,
        question: Callable[[float], T],
        what: str,
        where: TopicPartition | None = None,
    ) -> T:
        """Return the answer of the cluster; retry while it is unreachable or does not
        yet know a new topic.

        `where`: the partition whose leader is asked, which may be dead: librdkafka
        waits for it for a whole attempt.
        """
        patience = Patience(what, self.timeout_s)
        unknown = 0.0
        while True:
            try:
                return self._ask_once(
                    question,
                    patience,
                    0.0 if where is None else FAILOVER_S,
                )
            except KafkaException as exception:
                error = error_of(exception)
            if where is not None and error.code() in UNKNOWN:
                unknown = self._check_known(where, unknown)
            else:
                topic = "" if where is None else where.topic
                self._check_heals(error, what, self._attempt("Describe", topic))
            if patience.over:
                self._renew()
                raise self._away(what)
            patience.rest(f"{error.str()} ({error.name()})")
            if where is not None:
                self._look_again()

    def _ask_once(
        self,
        question: Callable[[float], T],
        patience: Patience,
        failover_s: float,
    ) -> T:
        """Make one attempt at a `question` to the consumer, which gets its time limit
        in seconds; `failover_s`: see `Patience.attempt_s`.
        """
        with self._lock:  # in librdkafka's consumer a second caller starves
            if self._closed:
                raise LogError("this log is closed")
            try:
                answer = question(patience.attempt_s(failover_s))
            except KafkaException:
                self._consumer.poll(0)  # report the reason through `error_cb`
                raise
            self._answered_at = time.monotonic()
            self._heard = True
            return answer

    def _check_unknown(self, since: float, what: str) -> None:
        """Raise an error if a topic has been unknown since `since` for longer than a
        new topic may be.
        """
        if time.monotonic() - since > min(UNKNOWN_FOR_S, self.timeout_s):
            raise UnknownTopicError(f"{what}: Kafka has no such topic or partition.")

    def _check_heals(
        self,
        error: KafkaError,
        what: str,
        attempt: Attempt,
    ) -> None:
        """Raise an error that no further attempt cures."""
        refused = self._refused
        if refused is not None or not heals(error, self._errors.login):
            raise translated(refused or error, what, attempt)

    def _away(self, what: str) -> LogError:
        """Return the error for a cluster that did not answer in time."""
        servers = self._settings["bootstrap.servers"]
        return away(servers, what, self.timeout_s, self._errors)

    def _wait_for_end(
        self,
        patience: Patience,
        what: str,
        partition: TopicPartition,
        told: EndsAnswer,
    ) -> None:
        """Pause before the end of a partition is requested again. `told`: the last
        answer.

        Raises:
            LogError: retryable: the time is over; says why the end is not known.
        """
        reason = told.reasons.get(
            partition,
            "no broker knows it yet" if told.heard else "no broker answers",
        )
        if patience.over and not told.heard:
            raise self._away(what)
        if patience.over:
            raise LogError(
                f"{what}: that of {partition} is not known after {self.timeout_s:g} s: {reason}",
                retryable=True,
            )
        patience.rest(f"{partition}: {reason}")

    def _check_known(self, where: TopicPartition, since: float) -> float:
        """Return the time since which a partition has been unknown. `since`: the last
        result; 0: it was known.

        Raises:
            UnknownTopicError: it has been unknown for too long, and its topic was not
                created here just now.
        """
        since = since or time.monotonic()
        new = where.topic in self._made and time.monotonic() < self._made_until
        if (
            not new
            and time.monotonic() - since > min(UNKNOWN_FOR_S, self.timeout_s)
            and self._is_missing(where)
        ):
            raise unknown_topic(str(where))
        return since

    def _renew(self) -> None:
        """Replace a client that has had no answer for long: it may have lost its
        brokers (see `KafkaReader._renew`).
        """
        with self._lock:
            if not self._closed and time.monotonic() - self._answered_at > SILENT_S:
                before = self._consumer
                self._consumer = made_again(self._new_consumer)
                self._answered_at = time.monotonic()
                before.close()

    def _look_again(self) -> None:
        """Refresh the client's metadata: otherwise it asks a dead leader for minutes,
        until they expire (measured).
        """
        with self._lock, contextlib.suppress(KafkaException):
            if not self._closed:
                self._consumer.list_topics(timeout=LOOK_S)

    def _is_missing(self, where: TopicPartition) -> bool:
        """Whether the brokers report that the partition does not exist.

        A client that has lost its brokers reports all partitions as missing.
        """
        with self._lock:
            try:
                found = self._consumer.list_topics(timeout=ATTEMPT_S).topics.get(
                    where.topic
                )
            except KafkaException:
                return False
        return (
            where.partition not in found.partitions
            if found is not None
            else not self._exists(where.topic)
        )

    def _exists(self, topic: str) -> bool:
        """Whether the controller knows a topic, or does not answer.

        A broker may be seconds behind the controller: two workers ended because of that
        (seen). The request is a creation that is only validated. If this client may not
        create topics, the broker's answer counts.
        """
        try:
            self._admin.create_topics(
                [NewTopic(topic, 1)],
                validate_only=True,
                request_timeout=ATTEMPT_S,
            )[topic].result(2 * ATTEMPT_S)
        except KafkaException as exception:
            error = error_of(exception)
            return error.code() == KafkaError.TOPIC_ALREADY_EXISTS or heals(error)
        except TimeoutError:
            return True
        return False

    @property
    def _refused(self) -> KafkaError | None:
        """The error of a login that can never succeed; None: it has succeeded, or may
        later.
        """
        return self._errors.refused or (None if self._heard else self._errors.shut_out)

    def _request(
        self,
        request: Callable[..., Any],
        what_for: list[Any],
        what: str,
        attempt: Attempt,
        fine: Collection[int] = (),
        check: Callable[[], None] | None = None,
    ) -> Any:
        """Return the result of an admin request about one object; None after an error
        in `fine`. See `_requests`.
        """
        found = self._requests(request, what_for, what, attempt, fine, check)
        return next(iter(found), None)

    def _requests(
        self,
        request: Callable[..., Any],
        what_for: list[Any],
        what: str,
        attempt: Attempt,
        fine: Collection[int] = (),
        check: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Return an admin request's results, in the order of `what_for`; none after an
        error in `fine`. The whole request is retried until the time limit.

        `request`: a method of the admin client. `what` names it in messages. `check`:
        called before each attempt.
        """
        patience = Patience(what, self.timeout_s)
        unknown = 0.0
        while True:
            if self._closed:
                raise LogError("this log is closed")
            seconds = patience.attempt_s()
            if check is not None:
                check()
            try:
                answers = request(
                    self._admin,
                    what_for,
                    request_timeout=seconds,
                ).values()
                return [answer.result(seconds + ATTEMPT_S) for answer in answers]
            except KafkaException as exception:
                error = error_of(exception)
            except TimeoutError:
                # This process was stopped for longer than its request may take.
                error = KafkaError(KafkaError._TIMED_OUT)
            if error.code() in fine:
                return []
            self._admin.poll(0)  # report the reason through `error_cb`
            if error.code() in UNKNOWN:
                unknown = unknown or time.monotonic()
                self._check_unknown(unknown, what)
            else:
                self._check_heals(error, what, attempt)
            if patience.over:
                self._admin = made_again(self._new_admin)
                raise self._away(what)
            patience.rest(f"{error.str()} ({error.name()})")
            if error.code() == KafkaError._TIMED_OUT:
                # Its requests go to the supposed controller, which may hang.
                self._admin = made_again(self._new_admin)
                continue
            # A broker that has just started may not have known the controller when the
            # client asked, and the client would not ask again for long.
            self.partitions()
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(timeout=ATTEMPT_S)


def _about(topic: str, check: Check | None) -> Callable[[], None] | None:
    """Return `check`, bound to a topic, for functions that call a check without
    arguments; None: there is no check.
    """
    return None if check is None else lambda: check(topic)
