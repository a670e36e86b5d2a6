"""Whether a task without a position has never begun, or has lost its position; whether
somebody else has set it.

A task makes its first position durable before it processes anything (`Progress.begin`).
So state implies a position. A changelog with records and no offset of any source means
that the group's offsets were deleted, or expired while no instance ran. To begin at
`auto.offset.reset` then would process everything again on top of the state. The same
holds if key ranges have committed and the plain offset, which came first, is gone;
hashes with individual commits keep their positions.

All offsets of a group expire together, and individual commits stay. So a source with
individual commits and no offset shows that the offsets have expired; unless a reset had
the topic made anew, whose plain offset went with the old one (`CommitView.anew`). Any
other source with neither has then lost its position, even if its task has no state: it
must not write its results again into the sources of a task that has.

Likewise a repartition topic with records, and no position in it or in any source of
those who write to it: the records were copied from another cluster, or are left of a
group whose offsets are gone. The sources are read again and would write them again,
behind those that are there.

The first task without an offset of a source triggers a check of the whole application.

An offset without our metadata was set by another tool. That is allowed, as with any
consumer, but told: the state stays where it was, so records are processed into it a
second time, or are missing. If no store of the application has a row yet, the offset is
rather that of another application in this group, Quix Streams' or Faust's, say, whose
state is not here: results would begin from nothing there. So that is refused, unless an
operator says it (`coopstreams group reset`, whose offsets have our metadata).

Kafka Streams gives its group, changelogs and repartition topics the names that we give
ours, and tells its offsets by their metadata. Most of its rows have the bytes of ours.
Those of joins of streams and by foreign keys, of versioned tables and of `suppress`
have not, and which operator wrote a row is not known. So where its offsets are and a
changelog has records, the application is refused; an application without state goes on
at the offsets.

Invariant: ends of internal topics and individual commits are read before offsets, so an
application that is just beginning elsewhere never counts as one that lost its offsets.
Turned down: looking at the local state (it may be gone while the changelog is there,
and the other way round).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import OffsetStore
from coopstreams.commit.record import Committed
from coopstreams.commit.view import PartitionStart
from coopstreams.log.log import Log
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.nodes import Sink
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Begun:
    """Checks the changelogs of one application. Used by the opener thread."""

    group: str
    log: Log
    coordinator: OffsetStore
    resolved: Callable[[], ResolvedTopology]
    changelog: Callable[[StoreSpec], str]
    new: Callable[[], Collection[str]] = frozenset
    """The repartition topics that only this version of the topology reads: they have no
    positions yet.

    A store that is fed from them has its earlier positions in other topics.
    """
    _looked: bool = field(default=False, init=False)

    def check(
        self,
        task: TaskId,
        openings: Mapping[TopicPartition, PartitionStart],
        follower: Follower,
    ) -> None:
        """Check that a task has a position, or has never begun.

        `follower`: knows the individual commits.

        Raises:
            ConfigError: it has lost its position; the message has the cure.
        """
        self._check_streams(
            {source: opening.committed for source, opening in openings.items()}
        )
        self._check_foreign(task, openings)
        beginning = [source for source, opening in openings.items() if opening.begins]
        for source in beginning:
            if (
                openings[source].term > 1
            ):  # siblings have committed, and they began with a plain offset
                raise self._lost(
                    f"key ranges of {source} have committed, others never did, and the plain offset that they began "
                    "with is gone",
                    [source],
                )
        if not beginning and all(
            opening.committed is not None for opening in openings.values()
        ):
            return
        resolved = self.resolved()
        numbers = (
            [(task.subtopology, task.partition)] if self._looked else _numbers(resolved)
        )
        self._look(
            resolved, numbers, {} if self._looked else _repartitions(resolved), follower
        )
        self._looked = True

    def _look(
        self,
        resolved: ResolvedTopology,
        numbers: Iterable[tuple[int, int]],
        repartitions: Mapping[TopicPartition, Collection[TopicPartition]],
        follower: Follower,
    ) -> None:
        sources = {
            (number, partition): resolved.sources(TaskId(number, partition, WHOLE))
            for number, partition in numbers
        }
        changelogs = {
            changelog: read
            for (number, partition), read in sources.items()
            for changelog in self._changelogs(resolved, number, partition)
        }
        ends = self.log.end_offsets([*changelogs, *repartitions])
        beside = set(follower.sources())
        every = {source for read in sources.values() for source in read}
        if not any(ends.values()) and every.isdisjoint(beside):
            return
        rows = self.coordinator.fetch_offsets(every, stable=False).offsets
        known = {partition for partition, row in rows.items() if row is not None}
        self._check_streams(
            {
                source: None if row is None else Committed.parse(*row)
                for source, row in rows.items()
            }
        )
        lost = sorted(
            source
            for source in every - known - beside
            if source.topic not in self.new()
        )
        # A reset that had a topic made anew began it without a plain offset.
        orphans = sorted(
            source
            for source in every & beside - known
            if not follower.anew(source, None)
        )
        if lost and orphans:
            raise self._lost(
                f"{orphans[0]} has individual commits, its plain offset, which came first, is gone, and there is no "
                f"position of {', '.join(map(str, lost))}",
                lost,
            )
        for changelog, read in changelogs.items():
            new = all(source.topic in self.new() for source in read)
            if (
                ends[changelog] > 0
                and known.isdisjoint(read)
                and beside.isdisjoint(read)
                and not new
            ):
                raise self._lost(
                    f"{changelog} has records, and there is no position in any of its sources",
                    read,
                )
        for at, origins in repartitions.items():
            if (
                ends[at] > 0
                and (known | beside).isdisjoint([at, *origins])
                and ends[at] > self.log.start_offset(at)
            ):
                raise self._lost(
                    f"{at} has records, there is no position in any of the sources from which they were written, and "
                    "what these have would be written again, behind them",
                    sorted({at, *origins}),
                )

    def _check_streams(
        self, committed: Mapping[TopicPartition, Committed | None]
    ) -> None:
        """Refuse the changelogs of an application of Kafka Streams: it has committed
        some of these plain offsets.
        """
        source = min(
            (at for at, plain in committed.items() if plain and plain.of_kafka_streams),
            default=None,
        )
        if source is None:
            return
        kept = self._kept(self.resolved())
        ends = self.log.end_offsets(kept)
        if written := next((changelog for changelog in kept if ends[changelog]), None):
            raise ConfigError(
                f"group {self.group!r} is that of an application of Kafka Streams: it has committed {source}, and "
                f"{written} has records of it. coopstreams keeps rows of joins, versioned tables and suppress in "
                "another form, so it does not go on from them. Run this program under another application.id: it "
                "begins anew, and the other application may go on beside it. Or, if that is stopped for good, run "
                "`coopstreams reset`: it deletes the changelogs and repartition topics, and this program begins anew "
                "under this id, and writes its results again"
            )

    def _check_foreign(
        self, task: TaskId, openings: Mapping[TopicPartition, PartitionStart]
    ) -> None:
        """Warn of positions that another tool has set, if there is state; refuse them
        if there is none yet.
        """
        foreign = {
            source: opening.committed.offset
            for source, opening in openings.items()
            if opening.committed is not None
            and opening.committed.term is None
            and any(
                segment.position == opening.committed.offset
                for segment in opening.segments
            )
        }
        if not foreign:
            return
        ends = self.log.end_offsets(self._kept(self.resolved()))
        if not any(ends.values()):
            if ends and any(
                offset > self.log.start_offset(source)
                for source, offset in foreign.items()
            ):
                raise self._of_others()
            return
        for source, offset in foreign.items():
            log.warning(
                "task %s: %s begins at offset %d, which this application has not committed: somebody has set it, as "
                "`kafka-consumer-groups.sh --reset-offsets` does. The state stays as it was: what is read a second "
                "time counts twice, what is left out is missing. To begin anew, stop all instances and run "
                "`coopstreams reset`",
                task,
                source,
                offset,
            )

    def _of_others(self) -> ConfigError:
        resolved = self.resolved()
        every = {
            source
            for at in _numbers(resolved)
            for source in resolved.sources(TaskId(*at, WHOLE))
        }
        rows = self.coordinator.fetch_offsets(every, stable=False).offsets
        foreign = {
            at: row[0]
            for at, row in sorted(rows.items())
            if row and Committed.parse(*row).term is None
        }
        told = ", ".join(f"{at} at {offset}" for at, offset in foreign.items())
        return ConfigError(
            f"group {self.group!r} has offsets of another application: {told}. coopstreams has not committed them, and "
            "no store of this program has a row yet, so results would begin from nothing there. Where Quix Streams, "
            "Faust, Kafka Streams or a consumer has used this group, run this program under another application.id: it "
            "begins anew, and the other application may go on beside it. Or, if that is stopped for good, run "
            "`coopstreams reset`: this program begins anew under this id. Or, if its stores are to begin empty at "
            f"these offsets, say so: {self._resets(foreign)}"
        )

    def _kept(self, resolved: ResolvedTopology) -> list[TopicPartition]:
        """Return the changelogs of the application, without topics of tables that serve
        as such.
        """
        return [
            TopicPartition(self.changelog(store), partition)
            for number, partition in _numbers(resolved)
            for store in resolved.programs[number].subtopology.stores
            if store.logged and store.source is None
        ]

    def _changelogs(
        self, resolved: ResolvedTopology, subtopology: int, partition: int
    ) -> list[TopicPartition]:
        stores = resolved.programs[subtopology].subtopology.stores
        return [
            TopicPartition(self.changelog(store), partition)
            for store in stores
            if store.logged
        ]

    def _lost(self, what: str, sources: Iterable[TopicPartition]) -> ConfigError:
        return ConfigError(
            f"group {self.group!r} has lost its positions: {what}. Its offsets were deleted, or they expired while no "
            "instance ran (offsets.retention.minutes of the brokers), or the topic was made anew (Kafka deletes its "
            "offsets with it), or it was copied from another cluster. Begin anew: stop all instances and run "
            "`coopstreams reset`. Or, if you know where the "
            f"state stands (topic made anew: earliest), say so: {self._resets(dict.fromkeys(sources, 'OFFSET'))}. "
            "Records in between are processed twice, or left out"
        )

    def _resets(self, offsets: Mapping[TopicPartition, int | str]) -> str:
        """Return the commands that set these offsets."""
        return "; ".join(
            f"`coopstreams group reset {self.group} --topic {at.topic} --partition {at.partition} --to {offset}`"
            for at, offset in sorted(offsets.items())
        )


def _numbers(resolved: ResolvedTopology) -> list[tuple[int, int]]:
    """Return the sub-topology and the partition of each task of the application."""
    tasks = resolved.topics.tasks
    return [
        (number, partition)
        for number in resolved.programs
        for partition in range(tasks[number] or 0)
    ]


def _repartitions(
    resolved: ResolvedTopology,
) -> dict[TopicPartition, list[TopicPartition]]:
    """Return the partitions of the repartition topics, with all sources of the
    sub-topologies that write to them.

    Without those to which records of a share group are written: its positions are not
    those of the application's group.
    """
    written: dict[str, list[TopicPartition]] = {}
    shared: set[str] = set()
    for number, program in resolved.programs.items():
        topics = [
            node.topic
            for node in program.subtopology.nodes
            if isinstance(node, Sink) and node.internal
        ]
        for topic in topics:
            read = (
                resolved.sources(TaskId(number, at, WHOLE))
                for at in range(resolved.topics.tasks[number] or 0)
            )
            written.setdefault(topic, []).extend(
                source for sources in read for source in sources
            )
        if program.subtopology.unordered:
            shared.update(topics)
    return {
        TopicPartition(topic, partition): sources
        for topic, sources in written.items()
        if topic not in shared
        for partition in range(resolved.topics.partitions[topic])
    }
