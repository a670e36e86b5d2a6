"""Work without order: records are delivered to whoever asks, key or no key, and nobody owns a range.

The broker does it: a share group (KIP-932) keeps the marker that the proposal asks for, delivers runs of offsets to the
members in turn, knows each by id and epoch (zombies and retries), and delivers again what was not finished within
`max.gap.wait.ms`. So nothing is kept in the commit topic: stable offset and gaps are the broker's.

    poll -> waiting -> consume -> out -> done | release -> commit -> the next poll

Invariant: a record is handed out once a delivery; nothing is polled while something of the last batch is out and still
this process's.
What that costs: a record that takes long holds up its own consumer, for `max.gap.wait.ms` at most, and no other. At
least once, but not for ever: after five deliveries in vain (`group.share.delivery.count.limit`) the broker gives a
record up.
Turned down: assigning offset ranges over the group's leader (a second marker, session and re-assignment beside the
broker's own).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from coopstreams.consumer.policy import Policy, PolicyTopic
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.share import AcquiredRecord, KafkaShare
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
"""Short, as the time of what a poll brings is counted from its beginning."""
_OF_THE_GROUP = {
    "auto.offset.reset": ("share.auto.offset.reset", "earliest"),
    "isolation.level": ("share.isolation.level", "read_committed"),
    "max.gap.wait.ms": ("share.record.lock.duration.ms", "30000"),
}
"""Our settings that the broker keeps for the whole group: its name, and our default."""


class Acquired:
    """The records of one batch: which wait, which are out, which are finished. Any thread may finish one. No I/O."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[AcquiredRecord] = deque()
        self._out: dict[tuple[str, int, int], AcquiredRecord] = {}
        self._finished: list[tuple[AcquiredRecord, bool]] = []

    def take(self, records: Sequence[AcquiredRecord]) -> None:
        """Keep a batch to be handed out."""
        with self._changed:
            self._waiting.extend(records)

    def hand_out(self, most: int) -> list[AcquiredRecord]:
        """Return the next records for the user."""
        with self._changed:
            records = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._out |= {record.id: record for record in records}
            return records

    def finish(self, record: AcquiredRecord, *, done: bool) -> bool:
        """Note that a record is done, or is to be delivered again; return False if it is not this process's any
        more.
        """
        with self._changed:
            if self._out.get(record.id) is not record:
                return False
            self._finished.append((self._out.pop(record.id), done))
            self._changed.notify_all()
            return True

    def finished(self) -> list[tuple[AcquiredRecord, bool]]:
        """Return what was finished since the last question, and whether it is done."""
        with self._changed:
            finished, self._finished = self._finished, []
            return finished

    def give_up(self) -> list[AcquiredRecord]:
        """Return what is not finished: it is not this process's any more."""
        with self._changed:
            left = [*self._out.values(), *self._waiting]
            self._out.clear()
            self._waiting.clear()
            return left

    def wait(self, timeout_s: float) -> None:
        """Wait until everything of the batch is finished, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: self.empty, timeout_s)

    @property
    def empty(self) -> bool:
        """Whether everything of the batch is finished."""
        return not self._out and not self._waiting

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be handed out."""
        return not self._waiting


class CooperativeFetch:
    """A consumer of records in no order. `done` and `release` from any thread, everything else from one.

    Settings: `bootstrap.servers`, `group.id` (of a share group: not one of consumers), `auto.offset.reset`,
    `isolation.level`, `max.gap.wait.ms`, and how to connect, in librdkafka's names.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Connect; join with `subscribe`.

        Raises:
            ConfigError: a setting is missing, or the client refuses it.
            LogError: the brokers have no share groups.
        """
        if "group.id" not in settings:
            raise ConfigError("group.id is not set: name the share group whose members share the work")
        said = {name: str(settings.get(name, default)) for name, (_, default) in _OF_THE_GROUP.items()}
        client = {name: value for name, value in settings.items() if name not in said and name != "group.id"}
        self._gap_s = int(said["max.gap.wait.ms"]) / 1000
        self._log = KafkaLog(client)
        self._client = KafkaShare(
            client, settings["group.id"], {name: said[ours] for ours, (name, _) in _OF_THE_GROUP.items()}
        )
        self._acquired = Acquired()
        self._until = 0.0
        """Until when the records of the batch are this process's."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Be given records of these topics, instead of those before.

        Raises:
            UnknownTopicError: a topic does not exist.
            IndividualCommitNotAllowedError | TopicRangeFetchNotAllowedError: the cluster, or a topic, does not allow
                it.
        """
        known = self._log.partitions(topics)
        if missing := sorted(set(topics) - known.keys()):
            raise UnknownTopicError(f"Kafka has no topic {', '.join(missing)}. Create it first, or correct the name.")
        policies = PolicyTopic(self._log)
        try:
            check_allowed(policies.read(), topics)
        finally:
            policies.close()
        self._client.subscribe(topics)

    def consume(self, num_records: int, timeout_s: float) -> list[AcquiredRecord]:
        """Return records that are this process's for `max.gap.wait.ms`; nothing, if none came, or earlier ones were not
        finished, in time.

        Raises:
            LogError: what does not heal by itself.
        """
        give_up = time.monotonic() + timeout_s
        while True:
            self._let_go_of_what_expired()
            if records := self._acquired.hand_out(num_records):
                return records
            self._acquired.wait(max(0.0, min(give_up, self._until) - time.monotonic()))
            if self._acquired.empty:
                self.commit()
                now = time.monotonic()
                self._acquired.take(self._client.poll(max(0.0, min(give_up - now, _POLL_S))))
                self._until = now + self._gap_s
            if self._acquired.idle and time.monotonic() >= give_up:
                return []

    def done(self, record: AcquiredRecord) -> bool:
        """Note that a record is done; return False if that was too late: it was delivered to somebody else. Any
        thread.
        """
        return self._finish(record, done=True)

    def release(self, record: AcquiredRecord) -> bool:
        """Give a record back, for anybody to try again; return False if that was too late. Any thread."""
        return self._finish(record, done=False)

    def commit(self) -> dict[TopicPartition, str]:
        """Tell the broker what is done; return the partitions in which it was too late for some, and why: they are done
        again by somebody.

        Raises:
            LogError: no answer: what was done since the last commit may be done again.
        """
        finished = self._acquired.finished()
        if not finished:
            return {}
        for record, done in finished:
            self._client.acknowledge(record, done=done)
        refused = self._client.commit(_COMMIT_S)
        for partition, reason in refused.items():
            log.warning("%s: some of %d records are done twice: %s", partition, len(finished), reason)
        return refused

    def close(self) -> None:
        """Commit what is done, give everything else back, leave the group."""
        self._release_left()
        self.commit()
        self._client.close()
        self._log.close()

    def _finish(self, record: AcquiredRecord, *, done: bool) -> bool:
        counts = self._acquired.finish(record, done=done)
        if not counts:
            log.warning("%s-%d, offset %d: finished after it was delivered again; it is done twice", *record.id)
        return counts

    def _let_go_of_what_expired(self) -> None:
        if time.monotonic() >= self._until and not self._acquired.empty:
            left = self._release_left()
            log.warning("%d records were not finished within max.gap.wait.ms; they are delivered again", left)

    def _release_left(self) -> int:
        """Acknowledge what is not finished as given back: the client polls again only then."""
        left = self._acquired.give_up()
        for record in left:
            self._client.acknowledge(record, done=False)
        return len(left)


def check_allowed(policy: Policy, topics: Sequence[str]) -> None:
    """Do nothing if the records of these topics may be processed in any order.

    Raises:
        IndividualCommitNotAllowedError | TopicRangeFetchNotAllowedError: the cluster, or a topic, does not allow it.
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
