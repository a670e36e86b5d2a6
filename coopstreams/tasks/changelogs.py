"""What the brokers say of changelogs: where they begin and end, which topics they are, how long they keep tombstones.

Invariant: of a topic itself they are asked once until `forget`: tasks open together, and each would ask the same.
"""

from __future__ import annotations

import logging
import time

from coopstreams.log.log import Log
from coopstreams.state.pickup import Changelog
from coopstreams.state.restore import TRUSTED_MS, Bounds, trusted_ms
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError

log = logging.getLogger(__name__)


class Changelogs:
    """The changelogs of one instance. One thread.

    Raises:
        LogError: the brokers do not answer.
    """

    def __init__(self, cluster: Log) -> None:
        self._cluster = cluster
        self._topics: dict[str, Changelog] = {}
        self._trusted_ms: dict[str, int] = {}

    def forget(self) -> None:
        """Ask anew from now on: a topic may be made anew, or be set otherwise."""
        self._topics.clear()
        self._trusted_ms.clear()

    def end(self, changelog: TopicPartition) -> int:
        """Return the end that it has now."""
        return self._cluster.end_offset(changelog)

    def bounds(self, changelog: TopicPartition, target: int) -> Bounds:
        """Return what a restore to this offset can go on from now."""
        return Bounds(self._cluster.start_offset(changelog), target, int(time.time() * 1000) - self.trusted_ms(changelog.topic))

    def topic(self, topic: str) -> Changelog:
        """Return which topic it is now."""
        if topic not in self._topics:
            self._topics[topic] = Changelog(topic, self._cluster.topic_id(topic), self._cluster.partitions([topic]).get(topic, 0))
        return self._topics[topic]

    def trusted_ms(self, topic: str) -> int:
        """Return for how long a checkpoint can be continued from; as by Kafka's defaults if the brokers are not to say it."""
        if topic not in self._trusted_ms:
            try:
                self._trusted_ms[topic] = trusted_ms(self._cluster.topic_config(topic))
            except LogError as error:
                if error.retryable:
                    raise
                log.warning("%s. State is trusted for %g hours after it was true.", error, TRUSTED_MS / 3_600_000)
                self._trusted_ms[topic] = TRUSTED_MS
        return self._trusted_ms[topic]
