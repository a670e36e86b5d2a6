"""The record of an application's last version, kept on the cluster. A new version that
would lose or mix its state is refused.

    topic   `<application id>-topology`: one record, the output of `coopstreams describe --format json` for the version
            that had tasks last, the repartition topics that it was the first to read, and the ids of the topics that
            it reads. Its `format` is the level of formats that the group writes (`format_level`)
    read    when a process starts, before it creates a topic or joins the group; and again by the opener, before it
            opens the first task
    written by the opener then: from now on this version is the last one

An application without stores and repartition topics writes no record, and has no such
topic.

The ids are those of the topics to which the group's positions belong. Kafka deletes a
plain offset with its topic, so a recreated source looks like one that was added to the
program. Its id shows the difference. If the record knows a topic under another id, and
the group has no position in it, its records would be counted on top of the old state.
So the version is refused. Once an operator has set positions in all partitions of the
topic (`coopstreams group reset`), its new id is recorded.

Invariant: the opener reads the record when the group has given this process tasks. All
tasks of another version were released before (`group.active_version`), so none of the
compared state is written any more.
Invariant: no process of a refused version has tasks or writes the record.
Invariant: only a member writes the record. No broker fences that, so the membership is
checked before and after the write; a record of a process that may have been removed
meanwhile is taken back (`log.precondition`). Turned down: a record among the group's
commits (an administrator could not read it, and a reset has to keep it apart), the
local state (the next start may have another disk), the names of the topics alone (they
name neither the format of the bytes nor the operator that wrote them).
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import closing
from dataclasses import dataclass, replace

import orjson

from coopstreams.commit.group_progress import group_offsets, individual_commits
from coopstreams.commit.positions import OffsetStore, made_anew
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.format_level import LEVEL
from coopstreams.log.log import BROKERS_TIME, Log, TopicSpec
from coopstreams.log.precondition import Precondition
from coopstreams.log.read_to_end import remainder
from coopstreams.preflight.name_claims import KEY, check_unclaimed
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    FencedError,
    TopologyChangedError,
    UnknownTopicError,
)
from coopstreams.topology.graph.changes import (
    TopologyChange,
    Verdict,
    changes,
    weighed,
    word_of,
)
from coopstreams.topology.graph.outline import Outline, outline, read_outline
from coopstreams.topology.graph.partitions import unchecked
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.json_text import read_long
from coopstreams.topology.naming import topology_topic

log = logging.getLogger(__name__)

ACCEPT = "topology.change.accepted"
"""The setting by which an operator accepts a refused change."""
_BEGUN = "begun"
_PARTITIONS = "partitions"
_FORMAT = "format"
_IDS = "ids"
_TIMEOUT_S = 30.0


def topic_spec(application_id: str, replication: int = -1) -> TopicSpec:
    """Return the specification of the version topic."""
    return TopicSpec(
        topology_topic(application_id),
        1,
        {"cleanup.policy": "compact", **BROKERS_TIME},
        replication,
    )


@dataclass(frozen=True, slots=True)
class VersionChanges:
    """The differences between a version and the one that had tasks last, judged by what
    the cluster holds.
    """

    all: tuple[TopologyChange, ...] = ()
    word: str = ""
    """The word by which an operator accepts exactly these changes."""
    accepted: bool = False

    @property
    def refused(self) -> list[TopologyChange]:
        """The changes by which state would be lost, mixed or misread."""
        return [change for change in self.all if change.verdict.severity == 2]

    def refusal(self, application: str) -> str:
        """Return why the version does not start: the refused changes with their cures,
        and how to accept them. Empty: it may start.
        """
        if self.accepted or not self.refused:
            return ""
        told = "".join(
            f"\n  {change.what} {change.name} {_is(change.verdict)}: {change.why}.\n    Cure: {change.cure}."
            for change in self.refused
        )
        return (
            f'"{application}" is not started, because results would be wrong from now on, and nothing would say so:'
            f"{told}\n`coopstreams check` says this before a deployment. Or accept just this change: --set "
            f"{ACCEPT}={self.word}"
        )

    def acceptance(self) -> list[str]:
        """Return a sentence for each refused change that an operator has accepted."""
        return [
            f"{ACCEPT}={self.word}: {change.what} {change.name} is {change.verdict}: {change.why}"
            for change in self.refused
            if self.accepted
        ]


class LastVersion:
    """The record of an application's last version. Used by one thread at a time."""

    def __init__(
        self,
        cluster: Log,
        config: Config,
        host: Host = SYSTEM,
    ) -> None:
        self._log = cluster
        self.host = host
        self._config = config
        self.topic = topology_topic(config["application.id"])
        self.new_repartitions = frozenset[str]()
        """The repartition topics that this version is the first to read: they may have
        no positions yet.

        If there are none, those of the version before: it may have ended before it read
        them.
        """
        self.changelogs = frozenset[str]()
        """The changelogs of the last version, if it is known. None of them is created
        anew without an error.
        """
        self._ids: Mapping[str, str] = {}
        """The ids of the topics that the last version reads in order, by name. Records
        of older versions of coopstreams have none.
        """
        self._topic_id = ""
        """The id of the topic from which the record was read last; empty: there was no
        topic.
        """
        self.level: int = 0
        """The level of formats of the record (`format_level`); 0: there is none, or it
        was not read yet. It never falls while a process runs.
        """

    @property
    def first_level(self) -> int:
        """The level of formats with which a process starts. Without a record, no
        process of an earlier release has tasks with state.
        """
        return self.level or LEVEL

    def last(self) -> Outline | None:
        """Return the outline of the version that had tasks last; None if there is no
        record.

        Raises:
            TopologyError: a newer coopstreams wrote the record.
            LogError: the topic cannot be read.
        """
        self._ids = {}
        self._topic_id = ""
        if self.topic not in self._log.partitions([self.topic]):
            return None
        self._topic_id = self._log.topic_id(self.topic)
        values = [value for _, value in self._records()]
        told = values[-1] if values else None
        if told is None:  # there is no record, or it was taken back
            return None
        last = read_outline(told)
        noted = read_long(orjson.loads, told)
        self.level = noted[_FORMAT]
        self.new_repartitions = frozenset(noted.get(_BEGUN, ()))
        self._ids = noted.get(_IDS, {})
        self.changelogs = _changelogs(last)
        return last

    def changes_to(
        self,
        topology: Topology,
        counts: Mapping[str, int],
    ) -> VersionChanges | None:
        """Return the differences between the version that had tasks last and this one;
        None if there is no record.

        `counts`: the partition counts of the topics.

        Raises:
            TopologyError, LogError: see `last`; or the topics or the group's positions
            cannot be read.
        """
        last = self.last()
        if last is None:
            return None
        return self._changes(last, outline_with(topology, counts))

    def not_reset(self, _: str) -> None:
        """Check that the application was not reset since the record was read. A
        `log.Check` for internal topics.

        Raises:
            FencedError: it was reset, so what was read of its topics is out of date.
            LogError: the brokers do not answer.
        """
        Precondition(self._log, {self.topic: self._topic_id}, lambda: True, "")(
            self.topic
        )

    def take_over(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        may_act: Callable[[], bool] = lambda: True,
        positions: OffsetStore | None = None,
        level: int | None = None,
    ) -> str:
        """Record this version as the last one, if no state is lost by it; return an id
        that tells its state from older state.

        `may_act`: whether no other process can run this application: this one certainly
        is a member, or there is none. `positions`: the group's positions; None: they
        are about to be set in all topics. `level`: the level of formats that the group
        writes from now on, unless the record has a higher one; None: that of the
        record.

        The returned id is that of the version topic: another one after a reset, and on
        another cluster. It is empty if no store needs it (one without a changelog
        does), or if the brokers give topics no ids.

        Raises:
            FencedError: another process may run the application now; nothing is
            recorded.
            ConfigError: a source was recreated, and there is state of the earlier
            topic; the message has the cure. Or see `check_unclaimed`.
            TopologyChangedError: state would be lost or mixed.
        """
        last = self.last()
        mine = outline_with(topology, counts)
        if last is not None:
            weighed_changes = self._changes(last, mine)
            if refusal := weighed_changes.refusal(topology.application_id):
                raise TopologyChangedError(refusal)
            for sentence in weighed_changes.acceptance():
                log.warning("%s", sentence)
        ids = self._ids_now(topology)
        if positions is not None:
            self._check_ids(mine, ids, counts, positions)
        keeps_rows = mine.stores or mine.repartitions
        level = max(self.level, level or self.first_level)
        changed = last != mine or ids != self._ids or level > self.level
        if (last is not None or keeps_rows) and changed:
            check_unclaimed(self._log, topology, self._log.partitions(), self.host)
            self._tell(last, mine, topology, ids, may_act, level)
            self.level = level
        self.changelogs = _changelogs(mine)
        return self._log.topic_id(self.topic) if _has_bare_store(topology) else ""

    def _changes(self, last: Outline, mine: Outline) -> VersionChanges:
        """Return the differences between two versions, the refused ones weighed by what
        the topics hold; the word is of all of them, unweighed.
        """
        found = changes(last, mine)
        word = word_of(found)
        accepted = self._config[ACCEPT] == word
        return VersionChanges(tuple(weighed(found, self.holds)), word, accepted)

    def _tell(
        self,
        last: Outline | None,
        mine: Outline,
        topology: Topology,
        ids: Mapping[str, str],
        may_act: Callable[[], bool],
        level: int,
    ) -> None:
        """Log what changes with this version, and write its record; take it back if
        this process may have been removed meanwhile. `last`: the version before, None:
        none; `may_act`: whether this process surely is a member.
        """
        for change in () if last is None else changes(last, mine):
            if change.verdict in (Verdict.EMPTY, Verdict.ORPHANED):
                log.warning(
                    "since the last version of the topology, %s %s %s: %s",
                    change.what,
                    change.name,
                    _is(change.verdict),
                    change.why,
                )
        new = (
            frozenset()
            if last is None
            else frozenset(mine.repartitions.keys() - last.repartitions.keys())
        )
        self.new_repartitions = new or self.new_repartitions & mine.repartitions.keys()
        more = {_BEGUN: sorted(self.new_repartitions), _IDS: ids} | (
            {_PARTITIONS: mine.partitions} if mine.partitions else {}
        )
        described = orjson.loads(topology.describe("json"))
        told = orjson.dumps(described | {_FORMAT: level} | more)
        check = Precondition(
            self._log,
            {self.topic: self._topic_id},
            may_act,
            "other processes may run this application now, so this one does not say which version runs",
        )
        spec = topic_spec(
            self._config["application.id"],
            self._config["replication.factor"],
        )
        self._log.create_topics([spec], check)
        self._topic_id = self._log.topic_id(self.topic)
        check(self.topic)
        own = self._append(told)
        if not may_act():
            self._take_back(own)
            raise FencedError(f"{self.topic}: {check.otherwise}")
        try:
            check_unclaimed(self._log, topology, self._log.partitions(), self.host)
        except ConfigError:  # it has begun at the same time
            self._take_back(own)
            raise

    def _ids_now(self, topology: Topology) -> dict[str, str]:
        """Return the present ids of the topics that a version reads in order. A missing
        topic has its recorded id.
        """
        found: dict[str, str] = {}
        parts = [part for part in topology.subtopologies if not part.unordered]
        for topic in sorted({topic for part in parts for topic in part.topics}):
            try:
                id_ = self._log.topic_id(topic)
            except UnknownTopicError:  # a pattern may have matched it before
                id_ = self._ids.get(topic, "")
            if id_:
                found[topic] = id_
        return found

    def _check_ids(
        self,
        mine: Outline,
        ids: Mapping[str, str],
        counts: Mapping[str, int],
        positions: OffsetStore,
    ) -> None:
        """Check that the group has positions in each recreated source, if there is
        state of the earlier topic.

        Raises:
            ConfigError: see `take_over`.
        """
        anew = [topic for topic, id_ in ids.items() if self._ids.get(topic, id_) != id_]
        if not anew or not self._has_state(mine, counts):
            return
        read = partitions_of(anew, counts)
        rows = positions.fetch_offsets(read, stable=False).offsets
        if lost := next((at for at in read if rows.get(at) is None), None):
            raise made_anew(self._config["application.id"], lost, None)

    def _has_state(self, mine: Outline, counts: Mapping[str, int]) -> bool:
        """Return whether there may be state: a changelog has records, or a store has no
        changelog, so that its rows may be in any state folder.
        """
        stores = [store for store in mine.stores.values() if not store.computed]
        changelogs = _changelogs(mine) - mine.sources
        ends = self._log.end_offsets(partitions_of(sorted(changelogs), counts))
        return any(ends.values()) or any(store.changelog is None for store in stores)

    def _append(self, told: bytes | None) -> int:
        """Write the record, and return its offset. None: a tombstone, after which there
        is no last version.
        """
        at = TopicPartition(self.topic, 0)
        with closing(self._log.writer()) as writer:
            writer.append(
                self.topic,
                [KEY],
                [told],
                [self.host.wall_ms()],
                partitions=0,
            )
            writer.flush(_TIMEOUT_S)
            return writer.delivered_to(at) - 1

    def _take_back(self, own: int) -> None:
        """Write the previous record again, unless another process has written one
        since. `own`: the offset of this process's record.
        """
        records = list(self._records())
        if records and records[-1][0] == own:
            log.warning(
                "%s: this process does not run the application: the record of before is put back",
                self.topic,
            )
            self._append(records[-2][1] if len(records) > 1 else None)

    def _records(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the offset and the value of each record that the topic still has."""
        at = TopicPartition(self.topic, 0)
        for batch in remainder(self._log, {at: self._log.start_offset(at)}, self.host):
            yield from zip(batch.columns.offsets, batch.columns.values, strict=True)

    def holds(self, change: TopologyChange) -> bool:
        """Return whether the topic of a change has records, or, if it is a repartition
        topic, unprocessed records.
        """
        assert change.topic is not None
        topic = [change.topic]
        partitions = partitions_of(topic, self._log.partitions(topic))
        if change.what != "repartition topic":
            return any(
                self._log.end_offset(at) > self._log.start_offset(at)
                for at in partitions
            )
        return any(
            len(batch.columns.offsets)
            for batch in remainder(self._log, self._unprocessed(partitions), self.host)
        )

    def _unprocessed(
        self,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that some key range has not
        processed.
        """
        application = self._config["application.id"]
        with (
            GroupAdmin(self._config.client, application) as admin,
            individual_commits(self._log, application) as follower,
        ):
            stand = group_offsets(admin, follower, partitions)
        starts = {at: self._log.start_offset(at) for at in stand}
        return {
            at: start if (known := stand[at]) is None else max(start, known.offset)
            for at, start in starts.items()
        }


def partitions_of(
    topics: Collection[str],
    counts: Mapping[str, int],
) -> list[TopicPartition]:
    """Return all partitions of these topics."""
    return [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(counts.get(topic, 0))
    ]


def _has_bare_store(topology: Topology) -> bool:
    """Return whether a store has neither a changelog nor a source topic to be restored
    from.
    """
    return any(not store.logged and store.source is None for store in topology.stores)


def outline_with(topology: Topology, counts: Mapping[str, int]) -> Outline:
    """Return the outline of a version, with the present partition counts of topics
    whose partitions divide rows without a changelog.
    """
    known = {
        store: {topic: counts[topic] for topic in topics if topic in counts}
        for store, topics in unchecked(topology).items()
    }
    return replace(outline(topology), partitions=known)


def _changelogs(version: Outline) -> frozenset[str]:
    return frozenset(
        store.changelog
        for store in version.stores.values()
        if store.changelog is not None
    )


def _is(verdict: Verdict) -> str:
    return (
        str(verdict)
        if verdict in (Verdict.EMPTY, Verdict.UNREADABLE)
        else f"is {verdict}"
    )
