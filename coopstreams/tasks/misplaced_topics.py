"""Finds topics whose records are not in the partitions that Java's partitioner picks
for their keys.

A query computes the partition of a key with murmur2, and asks its owner. If a producer
chose another one, the owner has no such key, and a join with a topic of another
producer finds no partners.

Invariant: a topic in which one such record was found is reported once an instance, and
not looked at again. Turned down: looking at every record. murmur2 in Python takes as
long as the native processing of a record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.nodes import Source, SubTopology
from coopstreams.topology.keys import partition_of

log = logging.getLogger(__name__)

FIRST = 64
"""How many records of a topic a task looks at before it looks at the first of each
batch only.
"""


class Misplaced:
    """The topics of an instance in which a record is in another partition, each with a
    message. Thread-safe: `topics` is replaced as a whole, under a lock.
    """

    def __init__(self) -> None:
        self.topics: Mapping[str, str] = {}
        self._lock = threading.Lock()

    def found(
        self,
        source: TopicPartition,
        belongs: int,
        partitions: int,
    ) -> None:
        """Report a topic, if it is the first time. `belongs`: the partition that
        murmur2 gives the key of a record.
        """
        with self._lock:
            if source.topic in self.topics:
                return
            message = (
                f"producers of {source.topic} do not choose partitions as Java does: {source} has a key that murmur2 "
                f"puts in partition {belongs} of {partitions}. Queries by key ask the wrong partition, and joins with "
                "other topics may find no partners. The cure: partitioner=murmur2_random for producers on librdkafka, "
                "and the topic written anew, also if it has got partitions since: older records stay where they "
                "are; if a partitioner of yours is meant, query by range"
            )
            self.topics = {**self.topics, source.topic: message}
        log.warning("%s", message)


class Placing:
    """Looks at the keys that one task is handed. For its stream thread."""

    def __init__(
        self,
        subtopology: SubTopology,
        partitions: Mapping[str, int],
        misplaced: Misplaced,
    ) -> None:
        """`partitions`: the partition count of each topic. Without stores there is
        nothing to query or to join.
        """
        topics = {
            topic
            for node in (subtopology.nodes if subtopology.stores else ())
            if isinstance(node, Source) and not node.internal
            for topic in node.topics
        }
        self._left = {topic: FIRST for topic in topics if partitions[topic] > 1}
        self._partitions = partitions
        self._misplaced = misplaced

    def look(self, source: TopicPartition, keys: Sequence[bytes | None]) -> None:
        """Look at the first keys of a batch."""
        left = self._left.get(source.topic)
        if left is None:
            return
        if source.topic in self._misplaced.topics:
            del self._left[source.topic]
            return
        most = max(left, 1)
        partitions = self._partitions[source.topic]
        for key in keys[:most]:
            if (
                key is not None
                and (belongs := partition_of(key, partitions)) != source.partition
            ):
                self._misplaced.found(source, belongs, partitions)
                return
        self._left[source.topic] = max(0, left - len(keys))
