"""The facts about the cluster that the checks of a start use. They are gathered once,
before anything is created.

Invariant: `gather` lists the topics once at most, and describes their settings in one
request. A request for a single topic is made only if a check needs it: for example, the
ends of changelogs while the record of the last version is missing. The settings of the
commit topic are asked for beside the others, because a user may not see these.
Relies on: `checks` (which uses each fact), `last_version`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coopstreams.commit.group_progress import individual_commits
from coopstreams.common.config import Config
from coopstreams.common.topic_settings import deletes
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log, TopicSpec
from coopstreams.preflight.last_version import (
    LastVersion,
    VersionChanges,
    partitions_of,
)
from coopstreams.preflight.name_claims import claims_on
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    CoopStreamsError,
    LogError,
    TopologyError,
    UnknownTopicError,
)
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.partitions import (
    ResolvedTopics,
    TopicPlan,
    check_names,
    check_partitions,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import (
    COMMIT_TOPIC,
    OFFSETS_TOPIC,
    backfill_runs,
    changelog_topic,
    topology_topic,
)

_ANY_TIME = dict.fromkeys(
    ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"),
    str((1 << 63) - 1),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that an application's checks use. Nothing has been created yet."""

    topology: Topology
    """The topology that runs: its patterns are resolved to the topics that exist now.
    """
    config: Config
    counts: Mapping[str, int]
    """The partition counts of all topics."""
    resolved: ResolvedTopics | None = None
    """The topics of the topology; None: they do not fit it (`misfit`)."""
    misfit: CoopStreamsError | None = None
    """Why the topics do not fit the topology; None: they fit."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of the existing internal topics, and of sources that a check needs,
    by topic.
    """
    hidden: str = ""
    """Why the brokers do not return the settings of internal topics; empty: they do."""
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offsets of topics that were created with `compact` and whose rows the
    brokers now delete.
    """
    deleted: Collection[str] = ()
    """The changelogs of the last version that are gone although the group has processed
    records into them.
    """
    claimed: Mapping[str, str] = field(default_factory=dict)
    """The internal topics that another application has as well, with its id."""
    changes: VersionChanges = field(default_factory=VersionChanges)
    """The differences from the version that ran last."""
    unpublished: str = ""
    """The run of a backfill that is not published; empty: there is none."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """The fewest replicas of a partition of the commit topic and of
    `__consumer_offsets`, by topic; empty: one of them does not exist, or is not visible
    to this user. `settings` has both, if brokers return them.
    """
    foreign: TopicPartition | None = None
    """A changelog with records although the record of the last version is missing;
    None: there is none.
    """

    @property
    def topics(self) -> ResolvedTopics:
        """The topics of the topology. Only for facts that `judge` has accepted."""
        assert self.resolved is not None
        return self.resolved

    @property
    def existing(self) -> list[TopicPlan]:
        """The internal topics that the cluster has."""
        return [plan for plan in self.topics.internal if plan.exists]

    @property
    def missing(self) -> list[TopicSpec]:
        """The specifications of the internal topics to create.

        Their topics take any timestamp, if the brokers have such settings (Kafka 3.6).
        A state change must be written if its source record was accepted: a changelog
        record cannot be left out.
        """
        sources = self.topology.source_topics
        of_source = next(
            (self.settings[topic] for topic in sources if topic in self.settings),
            {},
        )
        timed = {name: value for name, value in _ANY_TIME.items() if name in of_source}
        replication = self.config["replication.factor"]
        return [
            TopicSpec(plan.name, plan.partitions, {**plan.config, **timed}, replication)
            for plan in self.topics.missing
        ]

    @property
    def stores(self) -> dict[str, str]:
        """The name of the store of each changelog, by topic."""
        return {
            changelog_topic(self.topology.application_id, store.name): store.name
            for store in self.topology.stores
        }

    @property
    def reused(self) -> list[tuple[str, str]]:
        """The tables that are restored from their source topic in place of a changelog,
        each with that topic.
        """
        return [
            (store.name, store.source)
            for store in self.topology.stores
            if store.source is not None
        ]

    @property
    def marked(self) -> list[str]:
        """The users' topics to which the application writes time marks."""
        return [
            topic
            for node in self.topology.nodes
            if isinstance(node, Source)
            and node.idle_ms is not None
            and not node.internal
            for topic in node.topics
        ]


def gather(
    cluster: Log,
    topology: Topology,
    config: Config,
    counts: Mapping[str, int],
    had: Collection[str] = (),
) -> Facts:
    """Return the facts about the topics of a topology.

    `counts`: a listing of all topics, made just now. `had`: the changelogs of the
    version that ran last.

    Raises:
        LogError: the brokers do not answer, or this user may not see a topic that the
        program names.
    """
    known = _with_new_topics(cluster, topology, config, counts)
    facts = Facts(topology, config, known)
    try:
        if config["ensure.explicit.internal.resource.naming"]:
            check_names(topology)
        resolved = check_partitions(topology, known)
    except (TopologyError, UnknownTopicError) as error:
        return replace(facts, misfit=error)
    facts = replace(facts, resolved=resolved)
    settings, hidden = _settings(cluster, facts)
    facts = replace(facts, settings=settings, hidden=hidden)
    return replace(
        facts,
        starts=_starts(cluster, facts),
        deleted=_deleted(cluster, facts, had),
    )


def gather_at_start(
    cluster: Log,
    topology: Topology,
    config: Config,
    counts: Mapping[str, int],
    version: LastVersion,
) -> Facts:
    """Return the facts about an application that begins to run, including its last
    version and other applications that have used its names.

    Raises:
        TopologyError: a newer coopstreams wrote the record of the last version.
        LogError: as for `gather`.
    """
    claimed = claims_on(cluster, topology, counts, version.host)
    changes = version.changes_to(topology, counts) or VersionChanges()
    facts = gather(cluster, topology, config, counts, version.changelogs)
    facts = replace(facts, claimed=claimed, changes=changes)
    if facts.misfit is not None:
        return facts
    return replace(
        _with_commit_topic(cluster, facts),
        unpublished=_unpublished(facts),
        foreign=_foreign(cluster, facts),
    )


def is_gone(cluster: Log, topic: str) -> bool:
    """Return whether the controller does not know a topic. A broker that does not know
    it may be behind the controller.
    """
    try:
        cluster.start_offset(TopicPartition(topic, 0))
    except UnknownTopicError:
        return True
    return False


def start_offsets(
    cluster: Log,
    topic: str,
    count: int,
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition of a topic."""
    partitions = partitions_of([topic], {topic: count})
    return {at: cluster.start_offset(at) for at in partitions}


def _with_new_topics(
    cluster: Log,
    topology: Topology,
    config: Config,
    counts: Mapping[str, int],
) -> dict[str, int]:
    """Return the partition counts, with those of named topics that are new. The broker
    that listed the topics may not know these yet.
    """
    known = dict(counts)
    written = [*topology.sink_topics, *dead_letter_topics(topology, config)]
    named = [*topology.source_topics, *written]
    # By name: a topic that this user may not describe is another error than one that
    # does not exist.
    known |= cluster.partitions([topic for topic in named if topic not in known])
    for topic in [topic for topic in named if topic not in known]:
        try:
            cluster.topic_id(topic)  # waits `UNKNOWN_FOR_S`
        except UnknownTopicError:
            break  # this one is refused, whatever the others are
        known |= cluster.partitions([topic])
    return known


def _settings(cluster: Log, facts: Facts) -> tuple[dict[str, dict[str, str]], str]:
    """Return the settings of the internal topics and of the source topics that a check
    needs, by topic; and why this user may not see those of internal topics, or an empty
    text.
    """
    version = topology_topic(facts.topology.application_id)
    internal = [plan.name for plan in facts.existing]
    internal += [version] if version in facts.counts else []
    sources = [*(topic for _, topic in facts.reused), *facts.marked]
    if facts.topics.missing:  # they get the settings for times that brokers know
        sources += facts.topology.source_topics[:1]
    sources = list(dict.fromkeys(sources))
    try:
        return _configs(cluster, [*internal, *sources]), ""
    except LogError as error:
        if error.retryable:
            raise
    of_sources = _configs(cluster, sources)
    try:
        return of_sources | _configs(cluster, internal), ""
    except LogError as error:
        if error.retryable:
            raise
        return of_sources, str(error)


def _with_commit_topic(cluster: Log, facts: Facts) -> Facts:
    """Return the facts with those about the commit topic and `__consumer_offsets`."""
    both = (COMMIT_TOPIC, OFFSETS_TOPIC)
    if not facts.counts.keys() >= set(both):
        return facts
    facts = replace(facts, replicas={topic: cluster.replicas(topic) for topic in both})
    try:
        found = _configs(cluster, both)
    except LogError as error:
        if error.retryable:
            raise
        return facts
    return replace(facts, settings={**facts.settings, **found})


def _configs(cluster: Log, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    return cluster.topic_configs(topics) if topics else {}


def _starts(cluster: Log, facts: Facts) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic in made_compact(facts):
        if deletes(facts.settings.get(topic, {})):
            found |= start_offsets(cluster, topic, facts.counts[topic])
    return found


def made_compact(facts: Facts) -> list[str]:
    """Return the existing topics that were created with `cleanup.policy=compact`, so
    that their rows are kept for ever.
    """
    version = topology_topic(facts.topology.application_id)
    made = [
        plan.name
        for plan in facts.existing
        if plan.config["cleanup.policy"] == "compact"
    ]
    return [*made, version] if version in facts.counts else made


def _deleted(
    cluster: Log,
    facts: Facts,
    had: Collection[str],
) -> list[str]:
    """Return the missing changelogs of the last version into which the group has
    processed records.

    A group that has committed nothing, or only offset 0, begins. Then an empty store is
    right, even if somebody has deleted the changelog.
    """
    missing = [plan.name for plan in facts.topics.missing if plan.name in had]
    if not missing:
        return []
    read = {
        changelog_topic(facts.topology.application_id, store.name): partitions_of(
            part.topics,
            facts.topics.partitions,
        )
        for part in facts.topology.subtopologies
        for store in part.stores
    }
    wanted = {source for changelog in missing for source in read[changelog]}
    committed = _processed(cluster, facts.config, wanted)
    return [
        changelog
        for changelog in missing
        if not committed.isdisjoint(read[changelog]) and is_gone(cluster, changelog)
    ]


def _processed(
    cluster: Log,
    config: Config,
    sources: Collection[TopicPartition],
) -> set[TopicPartition]:
    """Return the sources from which the group has processed records. Individual commits
    count as well, since offsets may have expired.
    """
    with _group(config) as group:
        rows = group.fetch_offsets(sources, stable=False).offsets
    with individual_commits(cluster, config["application.id"]) as follower:
        individual = set() if follower is None else set(follower.sources())
    return individual | {at for at, row in rows.items() if row and row[0] > 0}


def _unpublished(facts: Facts) -> str:
    """Return the run of a backfill that waits to be published; empty: there is none.

    A run has its marks until it is published, which commits offsets first.
    """
    runs = backfill_runs(facts.topology.application_id, facts.counts)
    if not runs:
        return ""
    counts = facts.topics.partitions
    with _group(facts.config) as group:
        committed = group.committed(partitions_of(counts, counts))
    return "" if any(committed.values()) else runs[-1]


def _foreign(cluster: Log, facts: Facts) -> TopicPartition | None:
    """Return a changelog that has records although the version topic is missing; None:
    there is none.

    The version topic is created before the first task opens.
    """
    version = topology_topic(facts.topology.application_id)
    if version in facts.counts:
        return None
    changelogs = [
        plan.name
        for plan in facts.existing
        if "compact" in plan.config["cleanup.policy"]
    ]
    there = partitions_of(changelogs, facts.counts)
    ends = cluster.end_offsets(there) if there else {}
    written = next((at for at in there if ends[at]), None)
    # Another process of this application may have made it meanwhile.
    return written if written is not None and is_gone(cluster, version) else None


def _group(config: Config) -> GroupAdmin:
    return GroupAdmin(
        config.client,
        config["application.id"],
        timeout_s=config["connect.timeout.ms"] / 1000,
    )
