"""Events of topics and offsets: topics are compacted, a newer version writes to the
commit topic, offsets expire, changelogs are recreated from their last rows.

Offsets expire and topics are recreated only while no process runs, and when all
transactions have ended. A process that then reports lost positions gets them back, as
from an operator who has noted them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from coopstreams.commit.record import PARTITIONS, VERSION, encode_text, partition_of
from coopstreams.log.log import Position
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.simulation.fibers import Scheduler
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.oracles import Changelogs

STRANGE = bytes([VERSION + 1])
"""The first byte of keys and values of a newer version."""


class Upkeep:
    """Causes events at random. `changelogs`: the oracle, which reads a topic before it
    is deleted.
    """

    def __init__(
        self,
        cluster: Cluster,
        application: str,
        scheduler: Scheduler,
        random: Random,
        say: Callable[[str], None],
        changelogs: Changelogs,
    ) -> None:
        self._cluster, self._state, self._application = (
            cluster,
            cluster.state,
            application,
        )
        self._scheduler, self._random, self._say, self._changelogs = (
            scheduler,
            random,
            say,
            changelogs,
        )
        self._writer = MemoryWriter(cluster.state, None)
        self._commits = TopicPartition(
            COMMIT_TOPIC, partition_of(application, PARTITIONS)
        )
        self._strange: set[bytes] = set()
        """The keys of a newer version's records that are still there."""
        self._lost: dict[TopicPartition, tuple[int, str]] = {}

    def happen(self) -> None:
        """Cause an event of topics while processes run."""
        if self._random.random() < 0.7:
            self._compact()
        elif COMMIT_TOPIC in self._state.topics:
            key = STRANGE + encode_text(self._application) + self._random.randbytes(4)
            self._say("a newer version writes to the commit topic")
            self._strange.add(key)
            self._write_commit(key, STRANGE)
            after = self._random.choice((0.05, 2.0, 10.0))
            self._scheduler.at(
                self._scheduler.now + after, lambda: self._take_back(key)
            )

    def happen_alone(self) -> None:
        """Cause an event of topics and offsets while no process runs."""
        if any(
            producer.open or self._cluster.owes(producer)
            for producer in self._state.producers.values()
        ):
            return
        changelogs = [
            name for name in self._state.topics if name.endswith("-changelog")
        ]
        match self._random.choice(("compacted", "expired", "anew")):
            case "compacted":
                self._compact()
            # only the changelogs of a partition show that it had positions
            case "expired" if changelogs and all(
                at.end
                for name in changelogs
                for at in self._state.topic(name).partitions
            ):
                self._say("the offsets of the group expire")
                self._lost |= self._state.group(self._application).committed
                self._cluster.expire(self._application)
            case _:
                for name in changelogs:
                    self._make_anew(name)

    @property
    def is_readable(self) -> bool:
        """Whether no record of a newer version is in the commit topic."""
        return not self._strange

    @property
    def missing(self) -> dict[TopicPartition, tuple[int, str]]:
        """The expired offsets that the group lacks."""
        committed = self._state.group(self._application).committed
        return {at: told for at, told in self._lost.items() if at not in committed}

    def give_back(self) -> bool:
        """Restore the expired offsets, as an operator does after a report of lost
        positions.

        Return whether there were any.
        """
        if missing := self.missing:
            self._say("an operator restores the offsets of the group")
            self._state.group(self._application).send(missing, None)
        return bool(self._lost)

    def end(self) -> None:
        """Remove a newer version's records from the commit topic."""
        for key in list(self._strange):
            self._take_back(key)

    def compact_sources(self, names: Collection[str], *, ahead: bool) -> None:
        """Compact source topics. `ahead`: also what the group has not processed,
        because no lag keeps it.
        """
        self._say(
            f"{', '.join(names)} compacted {'ahead of' if ahead else 'behind'} us"
        )
        group = self._state.group(self._application)
        done = {at: offset for at, (offset, _) in group.committed.items()}
        for name in names:
            self._changelogs.read(name)
            self._cluster.compact(name, None if ahead else done)

    def _compact(self) -> None:
        self._say("changelogs and the commit topic are compacted")
        for name, topic in self._state.topics.items():
            if "compact" in topic.spec.config.get("cleanup.policy", "") and (
                name.endswith("-changelog") or name == COMMIT_TOPIC
            ):
                self._changelogs.read(name)
                self._cluster.compact(name)

    def _make_anew(self, name: str) -> None:
        """Delete a changelog, and recreate it with the last row of each key, as a
        rebuild or a cluster's copy does.
        """
        self._say(f"{name} is made anew")
        self._changelogs.read(name, made_anew=True)
        reader = MemoryReader(self._state, committed_only=True)
        partitions = [
            partition.where for partition in self._state.topic(name).partitions
        ]
        reader.assign(
            {
                where: Position(self._state.partition(where).start)
                for where in partitions
            }
        )
        rows: dict[tuple[TopicPartition, bytes | None], tuple[bytes | None, int]] = {}
        for batch in reader.fetch(1 << 20, 0):
            columns = batch.columns
            for key, value, timestamp in zip(
                columns.keys, columns.values, columns.timestamps, strict=True
            ):
                rows.pop((batch.partition, key), None)
                rows[batch.partition, key] = value, timestamp
        self._cluster.remake(name)
        for (where, key), (value, timestamp) in rows.items():
            if value is not None:
                self._writer.append(
                    name, [key], [value], [timestamp], partitions=where.partition
                )

    def _take_back(self, key: bytes) -> None:
        if key in self._strange:
            self._strange.discard(key)
            self._write_commit(key, None)

    def _write_commit(self, key: bytes, value: bytes | None) -> None:
        self._writer.append(
            COMMIT_TOPIC, [key], [value], [0], partitions=self._commits.partition
        )
