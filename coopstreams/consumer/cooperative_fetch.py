"""Consumption without order: the broker delivers records to any member, whatever their
keys, and no member owns a key range.

A share group (KIP-932) does this. The broker keeps the marker that the proposal asks
for, and delivers runs of offsets to the members in turn. It knows each member by id and
epoch, which covers zombies and retries. It delivers a record again that was not
finished within `max.gap.wait.ms`. So the commit topic is not used: the broker keeps the
stable offset and the gaps.

    poll -> waiting -> consume -> out -> done | release -> commit -> the next poll

Invariant: each delivery of a record is handed out once. Nothing is polled while records
of the last batch are unfinished and their lock has not expired. Cost: a slow record
holds up its own consumer, for `max.gap.wait.ms` at most, and no other. Delivery is
at-least-once, but limited: after five failed deliveries
(`group.share.delivery.count.limit`) the broker gives a record up.
Turned down: assigning offset ranges through the group's leader (a second marker,
session and re-assignment beside the broker's own).
Relies on: `log.kafka.share_consumer` (the client: all of a batch is acknowledged before
the next poll), `commit.cluster_policy` (what may be read so).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from coopstreams.commit.cluster_policy import Policy, PolicyTopic
from coopstreams.common.references import resolved
from coopstreams.common.setting_values import integer
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.share_consumer import AcquiredRecord, KafkaShare
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    IndividualCommitNotAllowedError,
    TopicRangeFetchNotAllowedError,
    UnknownTopicError,
)

log = logging.getLogger(__name__)

_COMMIT_S = 30.0
_POLL_S = 0.5
"""The longest poll. It is short, because the lock of a polled record is timed from the
beginning of the poll.
"""
_OF_THE_GROUP = {
    "auto.offset.reset": ("share.auto.offset.reset", "earliest"),
    "isolation.level": ("share.isolation.level", "read_committed"),
    "max.gap.wait.ms": ("share.record.lock.duration.ms", "30000"),
}
"""Settings that the broker keeps for the whole group, each with Kafka's name and the
default here.
"""


class Acquired:
    """The records of one delivered batch: waiting, handed out, or finished. No I/O.

    Thread-safe, by a lock. Only the thread that hands out records uses `empty` and
    `idle`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[AcquiredRecord] = deque()
        self._out: dict[tuple[str, int, int], AcquiredRecord] = {}
        self._finished: list[tuple[AcquiredRecord, bool]] = []

    def take(self, records: Sequence[AcquiredRecord]) -> None:
        """Queue a batch of records to be handed out."""
        with self._changed:
            self._waiting.extend(records)

    def hand_out(self, most: int) -> list[AcquiredRecord]:
        """Return up to `most` records for the user."""
        with self._changed:
            records = [
                self._waiting.popleft() for _ in range(min(most, len(self._waiting)))
            ]
            self._out |= {record.id: record for record in records}
            return records

    def finish(self, record: AcquiredRecord, *, done: bool) -> bool:
        """Mark a record as done, or for another delivery; return False if this process
        no longer has it.
        """
        with self._changed:
            if self._out.get(record.id) is not record:
                return False
            self._finished.append((self._out.pop(record.id), done))
            self._changed.notify_all()
            return True

    def finished(self) -> list[tuple[AcquiredRecord, bool]]:
        """Return the records finished since the last call, each with whether it is
        done.
        """
        with self._changed:
            finished = self._finished
            self._finished = []
            return finished

    def give_up(self) -> list[AcquiredRecord]:
        """Return the unfinished records, and forget them, because this process no
        longer has them.
        """
        with self._changed:
            left = [*self._out.values(), *self._waiting]
            self._out.clear()
            self._waiting.clear()
            return left

    def wait(self, timeout_s: float) -> None:
        """Block until every record of the batch is finished, up to `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.empty, timeout_s)

    @property
    def empty(self) -> bool:
        """Whether every record of the batch is finished."""
        return not self._out and not self._waiting

    @property
    def idle(self) -> bool:
        """Whether no record waits to be handed out."""
        return not self._waiting


class CooperativeFetch:
    """A consumer of records without order. `done` and `release` are thread-safe; one
    thread calls the other methods.

    Settings: `bootstrap.servers`, `group.id` (of a share group, not of a consumer
    group), `auto.offset.reset`, `isolation.level`, `max.gap.wait.ms`, and how to
    connect, in librdkafka's names.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Connect to the brokers. `subscribe` joins the group.

        Raises:
            ConfigError: a setting is missing, or the client refuses it.
            LogError: no broker answers, or the brokers have no share groups.
        """
        settings = resolved(settings)
        if "group.id" not in settings:
            raise ConfigError(
                "group.id is not set: name the share group whose members share the work"
            )
        if "session.timeout.ms" in settings:
            raise ConfigError(
                "session.timeout.ms: the brokers keep the time-out of a share group's members "
                "(group.share.session.timeout.ms, or share.session.timeout.ms of the group). Take it out; "
                "max.gap.wait.ms says when records of a member that is gone are delivered again"
            )
        said = {
            name: str(settings.get(name, default))
            for name, (_, default) in _OF_THE_GROUP.items()
        }
        client = {
            name: value
            for name, value in settings.items()
            if name not in said and name != "group.id"
        }
        try:
            self._gap_s = integer(1)(said["max.gap.wait.ms"]) / 1000
        except ValueError as error:
            raise ConfigError(
                f"max.gap.wait.ms = {said['max.gap.wait.ms']!r}: must be {error}"
            ) from None
        self._log = KafkaLog(client)
        self._log.partitions()  # raises the usual error if no broker answers
        self._client = KafkaShare(
            client,
            settings["group.id"],
            {name: said[ours] for ours, (name, _) in _OF_THE_GROUP.items()},
        )
        self._acquired = Acquired()
        self._until = 0.0
        """The time until which this process has the records of the batch."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to these topics instead of earlier ones.

        Raises:
            UnknownTopicError: a topic does not exist.
            IndividualCommitNotAllowedError | TopicRangeFetchNotAllowedError: the
                cluster, or a topic, does not allow it.
        """
        known = self._log.partitions(topics)
        if missing := sorted(set(topics) - known.keys()):
            raise UnknownTopicError(
                f"Kafka has no topic {', '.join(missing)}. Create it first, or correct the name."
            )
        with closing(PolicyTopic(self._log)) as policies:
            check_allowed(policies.read(), topics)
        self._client.subscribe(topics)

    def consume(self, num_records: int, timeout_s: float) -> list[AcquiredRecord]:
        """Return up to `num_records` records, which this process has for
        `max.gap.wait.ms`.

        Empty: none arrived in time, or earlier records were not finished in time.

        Raises:
            LogError: a fault that a retry does not cure.
        """
        give_up = time.monotonic() + timeout_s
        while True:
            self._let_go_of_what_expired()
            if records := self._acquired.hand_out(num_records):
                return records
            self._acquired.wait(max(0.0, min(give_up, self._until) - time.monotonic()))
            if self._acquired.empty:
                # `commit` first: the client polls only when all is acknowledged. `now`
                # is before the poll, like the broker's clock of the lock.
                self.commit()
                now = time.monotonic()
                self._acquired.take(
                    self._client.poll(max(0.0, min(give_up - now, _POLL_S)))
                )
                self._until = now + self._gap_s
            if (self._acquired.idle or num_records < 1) and time.monotonic() >= give_up:
                return []

    def done(self, record: AcquiredRecord) -> bool:
        """Mark a record as done; return False if it is too late, and the broker
        delivers the record again.
        """
        return self._finish(record, done=True)

    def release(self, record: AcquiredRecord) -> bool:
        """Return a record to the broker for another delivery; return False if it is too
        late.
        """
        return self._finish(record, done=False)

    def commit(self) -> dict[TopicPartition, str]:
        """Acknowledge finished records; return the partitions in which it was too late
        for some, each with the reason.

        The broker delivers the late ones again.

        Raises:
            LogError: no answer: records done since the last commit may be delivered
                again.
        """
        finished = self._acquired.finished()
        if not finished:
            return {}
        for record, done in finished:
            self._client.acknowledge(record, done=done)
        refused = self._client.commit(_COMMIT_S)
        for partition, reason in refused.items():
            log.warning(
                "%s: some of %d records are done twice: %s",
                partition,
                len(finished),
                reason,
            )
        return refused

    def close(self) -> None:
        """Commit done records, return all others to the broker, and leave the group.

        Raises:
            LogError: no answer: records done since the last commit may be delivered
                again. This member has left.
        """
        try:
            self._release_left()
            self.commit()
        finally:
            self._client.close()
            self._log.close()

    def _finish(self, record: AcquiredRecord, *, done: bool) -> bool:
        """Note that a record is `done`, or for another delivery; return False if its
        lock has expired, so that the broker delivers it again.
        """
        counts = time.monotonic() < self._until and self._acquired.finish(
            record,
            done=done,
        )
        if not counts:
            log.warning(
                "%s-%d, offset %d: finished after it was delivered again; it is done twice",
                *record.id,
            )
        return counts

    def _let_go_of_what_expired(self) -> None:
        """Give the batch up if its lock has expired: others may have its records."""
        if time.monotonic() >= self._until and not self._acquired.empty:
            left = self._release_left()
            log.warning(
                "%d records were not finished within max.gap.wait.ms; they are delivered again",
                left,
            )

    def _release_left(self) -> int:
        """Give the unfinished records back to the broker for another delivery; return
        their number.

        The client polls again only after that.
        """
        left = self._acquired.give_up()
        for record in left:
            self._client.acknowledge(record, done=False)
        return len(left)


def check_allowed(policy: Policy, topics: Sequence[str]) -> None:
    """Check that the records of these topics may be processed in any order.

    Raises:
        IndividualCommitNotAllowedError | TopicRangeFetchNotAllowedError: the cluster,
        or a topic, does not allow it.
    """
    if not policy.accepts_individual_commit:
        raise IndividualCommitNotAllowedError(
            "the cluster's policy has accept.individual.commit=false: nothing may be done out of order"
        )
    if refused := [topic for topic in topics if not policy.accepts_range_fetch(topic)]:
        raise TopicRangeFetchNotAllowedError(
            f"{', '.join(refused)}: readers must see the order of partitions. If they need not: "
            f"coopstreams policy set accept.range.fetch=true --topic {refused[0]}"
        )
