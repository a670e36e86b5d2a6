"""The version of the topology that ran last, kept on the cluster; and no start of one that would lose or mix what it
has left.

    topic   `<application id>-topology`: one record, what `coopstreams describe --format json` prints of the version
            that had tasks last, and
            which repartition topics it was the first to read
    asked   when a process starts, before it makes a topic or joins the group; and again by the opener, before it opens
            the first task
    told    by the opener then: from now on this version is the last one

An application without stores and repartition topics keeps nothing, and has no such topic.

Invariant: the opener asks when the group has given this process tasks. All of another version were released before
(`group.versions`), so nothing of what is compared is written any more.
Invariant: no process of a version that is refused has tasks, and none is told of.
Turned down: a record among the group's commits (an administrator could not read it, and a reset has to keep it apart),
the local state (the next start may have another disk), the names of the topics alone (they say neither how bytes were
written, nor by what).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

import orjson

from coopstreams.commit.offsets import group_offsets, individual_commits
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log, Position, RecordBatch, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError, TopologyChangedError
from coopstreams.topology.graph.changes import TopologyChange, Verdict, changes, weighed, word_of
from coopstreams.topology.graph.outline import Outline, outline, read_outline
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import topology_topic

log = logging.getLogger(__name__)

ACCEPT = "topology.change.accepted"
"""The setting by which an operator insists."""
_KEY = b"topology"
_BEGUN = "begun"
_TIMEOUT_S = 30.0
_BATCH = 1000


def topic_spec(application_id: str, replication: int = -1) -> TopicSpec:
    """Return how the topic is created."""
    return TopicSpec(topology_topic(application_id), 1, {"cleanup.policy": "compact"}, replication)


class Deployed:
    """What a cluster knows of the versions of one application. One thread at a time."""

    def __init__(self, cluster: Log, config: Config, host: Host = SYSTEM) -> None:
        self._log = cluster
        self._host = host
        self._config = config
        self.topic = topology_topic(config["application.id"])
        self.begun = frozenset[str]()
        """The repartition topics that the last version was the first to read: no position in them is none that was
        lost.
        """

    def last(self) -> Outline | None:
        """Return the version that had tasks last; None: nobody has told.

        Raises:
            TopologyError: a newer coopstreams told.
            LogError: the topic cannot be read.
        """
        if self.topic not in self._log.partitions([self.topic]):
            return None
        at = TopicPartition(self.topic, 0)
        told: bytes | None = None
        for batch in self._to_end({at: self._log.start_offset(at)}):
            told = next((value for value in reversed(batch.columns.values) if value is not None), told)
        if told is None:
            return None
        last = read_outline(told)
        self.begun = frozenset(orjson.loads(told).get(_BEGUN, ()))
        return last

    def check(self, topology: Topology) -> None:
        """Do nothing if nothing would be lost, mixed or misread in silence, or an operator has said that it may.

        Raises:
            TopologyChangedError: it would; says what, and the cures.
            TopologyError, LogError: see `last`; or the topics or the group's positions cannot be read.
        """
        if (last := self.last()) is not None:
            self._check(last, outline(topology))

    def take_over(self, topology: Topology) -> None:
        """Have this version be the last one, if it may be.

        Raises:
            See `check`.
        """
        last, mine = self.last(), outline(topology)
        if last is not None:
            self._check(last, mine)
        if last != mine and (last is not None or mine.stores or mine.repartitions):
            self._tell(last, mine, topology)

    def _check(self, last: Outline, mine: Outline) -> None:
        found = changes(last, mine)
        refused = [change for change in weighed(found, self.holds) if change.verdict.severity == 2]
        if not refused:
            return
        word = word_of(found)
        if self._config[ACCEPT] != word:
            raise TopologyChangedError(refusal(self._config["application.id"], refused, word))
        for change in refused:
            log.warning("%s=%s: %s %s is %s: %s", ACCEPT, word, change.what, change.name, change.verdict, change.why)

    def _tell(self, last: Outline | None, mine: Outline, topology: Topology) -> None:
        for change in () if last is None else changes(last, mine):
            if change.verdict in (Verdict.EMPTY, Verdict.ORPHANED):
                log.warning(
                    "since the last version of the topology, %s %s %s: %s",
                    change.what,
                    change.name,
                    _is(change.verdict),
                    change.why,
                )
        self.begun = frozenset() if last is None else frozenset(mine.repartitions.keys() - last.repartitions.keys())
        told = orjson.dumps(orjson.loads(topology.describe("json")) | {_BEGUN: sorted(self.begun)})
        self._log.create_topics([topic_spec(self._config["application.id"], self._config["replication.factor"])])
        with closing(self._log.writer()) as writer:
            writer.append(self.topic, [_KEY], [told], [self._host.wall_ms()], partitions=0)
            writer.flush(_TIMEOUT_S)

    def holds(self, change: TopologyChange) -> bool:
        """Whether there is anything in the topic of a change; in a repartition topic: anything that was not
        processed.
        """
        assert change.topic is not None
        partitions = [
            TopicPartition(change.topic, number)
            for number in range(self._log.partitions([change.topic]).get(change.topic, 0))
        ]
        if change.what != "repartition topic":
            return any(self._log.end_offset(at) > self._log.start_offset(at) for at in partitions)
        return any(len(batch.columns.offsets) for batch in self._to_end(self._unprocessed(partitions)))

    def _unprocessed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return from where on a topic has what not all key ranges have processed."""
        application = self._config["application.id"]
        with (
            GroupAdmin(self._config.client, application) as admin,
            individual_commits(self._log, application) as follower,
        ):
            stand = group_offsets(admin, follower, partitions)
        starts = {at: self._log.start_offset(at) for at in stand}
        return {at: start if (known := stand[at]) is None else max(start, known.offset) for at, start in starts.items()}

    def _to_end(self, starts: Mapping[TopicPartition, int]) -> Iterator[RecordBatch]:
        """Yield what is committed of these partitions from these offsets on, up to their ends.

        Raises:
            LogError: retryable: the end is not reached in time.
        """
        left, give_up = set(starts), self._host.now() + _TIMEOUT_S
        with closing(self._log.reader()) as reader:
            reader.assign({at: Position(offset) for at, offset in starts.items()})
            while left:
                if self._host.now() > give_up:
                    raise LogError(
                        f"{', '.join(map(str, sorted(left)))} could not be read to the end in {_TIMEOUT_S:.0f} s",
                        retryable=True,
                    )
                for batch in reader.fetch(_BATCH, 0.2):
                    yield batch
                    if batch.at_end:
                        left.discard(batch.partition)


def refusal(application: str, refused: Iterable[TopologyChange], word: str) -> str:
    """Return why a version does not start, as a sentence or two for each thing, and how to insist."""
    told = "".join(
        f"\n  {change.what} {change.name} {_is(change.verdict)}: {change.why}.\n    Cure: {change.cure}."
        for change in refused
    )
    return (
        f'"{application}" is not started, because results would be wrong from now on, and nothing would say so:{told}\n'
        f"`coopstreams check` says this before a deployment. Or accept just this change: --set {ACCEPT}={word}"
    )


def _is(verdict: Verdict) -> str:
    return str(verdict) if verdict in (Verdict.EMPTY, Verdict.UNREADABLE) else f"is {verdict}"
