"""Checks whether a task without a position has never begun or has lost its position,
and whether another tool has set it.

A task makes its first position durable before it processes records (`Progress.begin`).
So state implies a position. If the position was lost, beginning at `auto.offset.reset`
would process all records again on top of the state.

All offsets of a group expire together, while individual commits stay. So the first task
without an offset of a source triggers a check of the whole application.

Invariant: ends of internal topics and individual commits are read before offsets, so an
application that is just beginning on another instance never counts as one that lost its
offsets.
Relies on: `commit/view.py` (`begins`, `anew`), `commit/record.py` (whose metadata a plain
offset has), `preflight.last_version` (what is new).
Turned down: looking at the local state (it may be gone while the changelog
exists, and the other way round).
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
)
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
class PositionCheck:
    """Checks that no task of an application begins at `auto.offset.reset` because its
    position was lost, or goes on from one that another tool has set. Used by the opener
    thread.
    """

    group: str
    log: Log
    coordinator: OffsetStore
    resolved: Callable[[], ResolvedTopology]
    changelog: Callable[[StoreSpec], str]
    new: Callable[[], Collection[str]] = frozenset
    """Returns the repartition topics that only this version of the topology reads. They
    have no positions yet.

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
            ConfigError: the task has lost its position; the message has the cure.
        """
        committed = {source: opening.committed for source, opening in openings.items()}
        self._refuse_kafka_streams(committed)
        self._check_set_by_others(task, openings)
        beginning = [source for source, opening in openings.items() if opening.begins]
        for source in beginning:
            # Siblings have committed, and they began with a plain offset.
            if openings[source].term > 1:
                raise self._lost(
                    f"key ranges of {source} have committed, others never did, and the plain offset that they began "
                    "with is gone",
                    [source],
                )
        if beginning or None in committed.values():
            self._look(task, follower)

    def _look(self, task: TaskId, follower: Follower) -> None:
        """Check the positions of the whole application in the first call, and those of
        one task in later calls.
        """
        resolved = self.resolved()
        tasks = [(task.subtopology, task.partition)]
        repartitions: Mapping[TopicPartition, Collection[TopicPartition]] = {}
        if not self._looked:
            tasks = _numbers(resolved)
            repartitions = _repartitions(resolved)
        changelogs: dict[TopicPartition, Collection[TopicPartition]] = {}
        sources: set[TopicPartition] = set()
        for number, partition in tasks:
            read = resolved.sources(TaskId(number, partition, WHOLE))
            sources.update(read)
            for store in resolved.programs[number].subtopology.stores:
                if store.logged:
                    changelogs[TopicPartition(self.changelog(store), partition)] = read
        ends = self.log.end_offsets([*changelogs, *repartitions])
        individual = set(follower.sources())
        if any(ends.values()) or not sources.isdisjoint(individual):
            rows = self.coordinator.fetch_offsets(sources, stable=False).offsets
            plain = {
                source: Committed.parse(*row)
                for source, row in rows.items()
                if row is not None
            }
            self._refuse_kafka_streams(plain)
            self._check_expired(sources, plain, follower)
            positions = plain.keys() | individual
            self._check_changelogs(changelogs, ends, positions)
            self._check_repartitions(repartitions, ends, positions)
        self._looked = True

    def _check_expired(
        self,
        sources: Collection[TopicPartition],
        plain: Collection[TopicPartition],
        follower: Follower,
    ) -> None:
        """Raise if a source has no position although another source has individual
        commits without a plain offset, which shows that the offsets have expired.

        A source without a position counts even if its task has no state: it must not
        write its results again into the sources of a task that has state.
        """
        individual = set(follower.sources())
        without = sorted(set(sources).difference(plain))
        lost = [
            source
            for source in without
            if source not in individual and source.topic not in self.new()
        ]
        # A reset that had a topic made anew began it without a plain offset.
        orphans = [
            source
            for source in without
            if source in individual and not follower.anew(source, None)
        ]
        if lost and orphans:
            raise self._lost(
                f"{orphans[0]} has individual commits, its plain offset, which came first, is gone, and there is no "
                f"position of {', '.join(map(str, lost))}",
                lost,
            )

    def _check_changelogs(
        self,
        changelogs: Mapping[TopicPartition, Collection[TopicPartition]],
        ends: Mapping[TopicPartition, int],
        positions: Collection[TopicPartition],
    ) -> None:
        """Raise if a changelog has records and none of its sources has a position: the
        group's offsets were deleted, or expired while no instance ran.
        """
        for changelog, sources in changelogs.items():
            new = all(source.topic in self.new() for source in sources)
            if ends[changelog] and not new and set(sources).isdisjoint(positions):
                raise self._lost(
                    f"{changelog} has records, and there is no position in any of its sources",
                    sources,
                )

    def _check_repartitions(
        self,
        repartitions: Mapping[TopicPartition, Collection[TopicPartition]],
        ends: Mapping[TopicPartition, int],
        positions: Collection[TopicPartition],
    ) -> None:
        """Raise if a repartition topic has records, but neither it nor the sources of
        its writers have a position.

        The records were then copied from another cluster, or are left of a group whose
        offsets are gone.
        """
        for at, sources in repartitions.items():
            around = {at, *sources}
            if not ends[at] or not around.isdisjoint(positions):
                continue
            if ends[at] > self.log.start_offset(at):
                raise self._lost(
                    f"{at} has records, there is no position in any of the sources from which they were written, and "
                    "what these have would be written again, behind them",
                    sorted(around),
                )

    def _refuse_kafka_streams(
        self,
        committed: Mapping[TopicPartition, Committed | None],
    ) -> None:
        """Raise if an application of Kafka Streams has committed some of these plain
        offsets (their metadata tell) and has written the changelogs.

        Kafka Streams gives its group, changelogs and repartition topics the same names
        as coopstreams, and most of its rows have the same bytes: rows of joins,
        versioned tables and `suppress` have not. Which operator wrote a row is not
        known. An application without state goes on at the offsets.
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

    def _check_set_by_others(
        self,
        task: TaskId,
        openings: Mapping[TopicPartition, PartitionStart],
    ) -> None:
        """Warn of plain offsets that another tool has set (they lack our metadata), if
        there is state; the state does not change with them. Raise if there is no state
        yet.

        Without state, the offset is probably that of another application in this group,
        whose state is not here. An operator may confirm the offset with `coopstreams
        group reset`, which adds our metadata.
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
        """Return the error for offsets that another application has committed in this
        group.
        """
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
        """Return the changelogs of the application, without source topics that serve as
        changelogs.
        """
        return [
            TopicPartition(self.changelog(store), partition)
            for number, partition in _numbers(resolved)
            for store in resolved.programs[number].subtopology.stores
            if store.logged and store.source is None
        ]

    def _lost(self, what: str, sources: Iterable[TopicPartition]) -> ConfigError:
        """Return the error for sources whose positions are gone. `what`: how that
        shows.
        """
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

    Topics that a sub-topology in a share group writes to are left out: its positions
    are not those of the application's group.
    """
    written: dict[str, list[TopicPartition]] = {}
    for number, partition in _numbers(resolved):
        sources = resolved.sources(TaskId(number, partition, WHOLE))
        for topic in _written_topics(resolved, number):
            written.setdefault(topic, []).extend(sources)
    shared = {
        topic
        for number, program in resolved.programs.items()
        if program.subtopology.unordered
        for topic in _written_topics(resolved, number)
    }
    return {
        TopicPartition(topic, partition): sources
        for topic, sources in written.items()
        if topic not in shared
        for partition in range(resolved.topics.partitions[topic])
    }


def _written_topics(resolved: ResolvedTopology, number: int) -> list[str]:
    """Return the repartition topics that a sub-topology writes to."""
    return [
        node.topic
        for node in resolved.programs[number].subtopology.nodes
        if isinstance(node, Sink) and node.internal
    ]
