"""What a consumer knows of the cluster besides its group: which topics there are, and what administrators allow. Looked at now and then.

The leader assigns on the I/O thread of its membership, where nothing may be asked: it uses what was seen last, and is told to assign again
when something else is seen.

Invariant: `for_leader`, `shareable` and `reserves_values` never ask the brokers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from coopstreams.consumer.group_assignment import topic_number
from coopstreams.consumer.policy import Policy, PolicyTopic
from coopstreams.log.log import Log
from coopstreams.topology.errors import LogError, UnknownTopicError
from coopstreams.topology.naming import COMMIT_TOPIC

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


class Policies:
    """Topics and policy, as they were when they were last looked at. `look` and `watch` belong to the thread that has the consumer."""

    def __init__(self, log: Log, replication: int) -> None:
        self._log = log
        self._topic = PolicyTopic(log, replication=replication)
        self._policy = Policy()
        self._counts: dict[str, int] = {}
        self._asked: set[str] = set()
        """The topics of the group, as far as its leader has heard of them."""
        self._look_at = 0.0

    def watch(self, topics: Iterable[str]) -> None:
        """Look now; these are topics of the group.

        Raises:
            UnknownTopicError: one of them does not exist.
        """
        self._asked.update(topics)
        self._look()
        missing = sorted(self._asked - self._counts.keys())
        if missing:
            raise UnknownTopicError(f"there is no topic {', '.join(missing)}: create it first, or correct the name")

    def changed(self) -> bool:
        """Look again if it is time; return whether the group should assign again. While brokers are away, what was seen last holds."""
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
        """Return the partitions of these topics, as far as they are known, and which of them may be shared."""
        self._asked |= topics - {COMMIT_TOPIC}
        known = {topic: self._counts[topic] for topic in topics - {COMMIT_TOPIC} if topic in self._counts}
        if len(known) < len(topics - {COMMIT_TOPIC}):
            self._look_at = 0.0
        return known, frozenset(topic for topic in known if self.shareable(topic))

    def shareable(self, topic: str) -> bool:
        """Whether parts of a topic's partitions may be read."""
        return self._policy.accepts_range_fetch(topic)

    def reserves_values(self, topic: str) -> bool:
        """Whether values of records that wait may be kept."""
        return self._policy.reserves_values(topic)

    @property
    def accepts_individual_commit(self) -> bool:
        """Whether groups may commit out of order."""
        return self._policy.accepts_individual_commit

    def numbers(self) -> dict[int, str]:
        """Return all topics by their number."""
        return {topic_number(topic): topic for topic in self._counts}

    def close(self) -> None:
        """Let go of the reader."""
        self._topic.close()

    def _look(self) -> None:
        self._counts = self._log.partitions()
        self._policy = self._topic.read()
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def _seen(self) -> object:
        return {topic: (self._counts.get(topic), self.shareable(topic)) for topic in set(self._asked)}, self.accepts_individual_commit
