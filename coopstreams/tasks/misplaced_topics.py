"""Finds topics with records that are not in the partition that Java's partitioner picks
for their keys.

A query computes the partition of a key with murmur2, and asks the owner of that
partition. If a producer chose another partition, that owner does not have the key, and
a join with a topic of another producer finds no partners.

Invariant: once a misplaced record is found in a topic, the instance reports the topic
and stops looking at it. Turned down: looking at every record. murmur2 in Python takes
as long as the native processing of a record.
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
"""How many records of a topic a task checks before it checks only the first of each
batch.
"""


class Misplaced:
    """The topics of an instance in which a record is in the wrong partition, each with
    a message.

    Thread-safe: `topics` is replaced as a whole, under a lock.
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
        """Log a warning about a topic, once.

        `belongs`: the partition that murmur2 gives the key of a record.
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
    """Checks the partitions of the keys that one task is handed. Used by its stream
    thread.
    """

    def __init__(
        self,
        subtopology: SubTopology,
        partitions: Mapping[str, int],
        misplaced: Misplaced,
    ) -> None:
        """`partitions`: the partition count of each topic.

        A sub-topology without stores is not checked: there is nothing to query or to
        join.
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
        """Check the first keys of a batch; report the topic if one is misplaced."""
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
