"""Checks the topics of an application and creates internal ones, before the first task
runs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from coopstreams.commit.deleted_changelogs import check_changelogs
from coopstreams.commit.deleting_changelogs import (
    check_compacted,
    check_not_compacted,
    check_times_kept,
    deletes,
)
from coopstreams.common.config import Config
from coopstreams.common.topic_settings import setting_command
from coopstreams.log.log import Check, Log, TopicSpec
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.tasks.schema_checks import check_schemas
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.offset_resets import EARLIEST
from coopstreams.topology.graph.partitions import (
    ResolvedTopics,
    TopicPlan,
    check_names,
    check_partitions,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic, topology_topic

log = logging.getLogger(__name__)

_ANY_TIME = dict.fromkeys(
    ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"),
    str((1 << 63) - 1),
)


def prepare_topics(
    cluster: Log,
    topology: Topology,
    config: Config,
    had: Collection[str] = (),
    check: Check | None = None,
) -> ResolvedTopics:
    """Return the partition counts of all topics; create the internal topics that do not
    exist yet.

    `had`: the changelogs of the version of the topology that ran last. `check`: asked
    before each is created.

    Raises:
        See `check_topics` and `create_missing`.
    """
    resolved = check_topics(cluster, topology, config)
    create_missing(cluster, topology, config, resolved, had, check)
    return resolved


def create_missing(
    cluster: Log,
    topology: Topology,
    config: Config,
    resolved: ResolvedTopics,
    had: Collection[str] = (),
    check: Check | None = None,
) -> None:
    """Create the internal topics that do not exist yet. `had`, `check`: as of
    `prepare_topics`.

    Raises:
        ConfigError: a schema does not fit; or see `check_changelogs`.
    """
    check_schemas(topology, config)
    specs = [
        TopicSpec(plan.name, plan.partitions, plan.config, config["replication.factor"])
        for plan in resolved.missing
    ]
    if specs and (timed := _any_time(cluster, topology)):
        specs = [replace(spec, config={**spec.config, **timed}) for spec in specs]
    check_changelogs(cluster, topology, config, resolved, specs, had)
    if specs:
        log.info(
            "creating internal topics: %s",
            ", ".join(f"{spec.name} ({spec.partitions})" for spec in specs),
        )
        cluster.create_topics(specs, check)


def _any_time(cluster: Log, topology: Topology) -> dict[str, str]:
    """Return the settings with which an internal topic takes any timestamp, if the
    brokers have them (Kafka 3.6).

    A state change must be written if its source record was accepted: a changelog record
    cannot be left out.
    """
    known = next(
        (
            cluster.topic_config(topic)
            for topic in topology.source_topics
            if topic in cluster.partitions([topic])
        ),
        {},
    )
    return {name: value for name, value in _ANY_TIME.items() if name in known}


def check_topics(cluster: Log, topology: Topology, config: Config) -> ResolvedTopics:
    """Return the partition counts of all topics, if the application can start.

    Raises:
        ConfigError: a table is to be restored from a topic that the group may begin to
            read at its end; or time is to advance in a compacted topic; or the brokers
            delete rows of a changelog, compact a repartition topic, or date the records
            of either.
        UnknownTopicError: a topic that users read, write or send dead letters to does
        not exist.
        TopologyError: topics of a join differ in partitions, an internal topic is of an
            older form of the topology, or its name is generated.
    """
    if config["ensure.explicit.internal.resource.naming"]:
        check_names(topology)
    counts = cluster.partitions()
    wanted = [*topology.sink_topics, *dead_letter_topics(topology, config)]
    # By name: a topic that this user may not describe is another error than one that
    # does not exist.
    cluster.partitions(
        [topic for topic in (*topology.source_topics, *wanted) if topic not in counts]
    )
    counts = _counts_with(cluster, counts, topology.source_topics)
    resolved = check_partitions(
        topology, counts, config["windowstore.changelog.additional.retention.ms"]
    )
    _check_reused(cluster, topology, config)
    _check_marked(cluster, topology)
    _check_kept(
        cluster,
        topology,
        counts,
        resolved,
        config["windowstore.changelog.additional.retention.ms"],
    )
    given = [topic for topic in wanted if topic not in resolved.partitions]
    counts = _counts_with(cluster, counts, given)
    if missing := [topic for topic in given if topic not in counts]:
        raise UnknownTopicError(
            f"the application writes to {', '.join(missing)}, which does not exist: create it first; only internal "
            "topics are made by themselves"
        )
    for orphan in resolved.orphans:
        log.warning(
            "%s looks like an internal topic of this application, which has none of that name. It is of an application "
            "whose id begins with %s-; or another version of this program left it behind: then its rows are not in the "
            "new stores. Give stores names that stay, or delete the topic.",
            orphan,
            topology.application_id,
        )
    return resolved


def _counts_with(
    cluster: Log, counts: dict[str, int], topics: Iterable[str]
) -> dict[str, int]:
    """Return the partition counts, again if the brokers have come to know these topics,
    which may be new.
    """
    unknown = [topic for topic in topics if topic not in counts]
    try:
        for topic in unknown:
            cluster.topic_id(topic)  # waits `UNKNOWN_FOR_S`
    except UnknownTopicError:
        return counts
    return cluster.partitions() if unknown else counts


def _check_marked(cluster: Log, topology: Topology) -> None:
    """Check the topics to which the application writes time marks: a compacted one
    takes no record without a key.
    """
    sources = [node for node in topology.nodes if isinstance(node, Source)]
    for topic in (
        topic
        for node in sources
        if node.idle_ms is not None and not node.internal
        for topic in node.topics
    ):
        if "compact" in cluster.topic_config(topic).get("cleanup.policy", ""):
            raise ConfigError(
                f'stream("{topic}", idle_advance=): the topic is compacted, and takes no record without a key. '
                "Say .repartition(idle_advance=...) below it instead: the time marks go to that topic."
            )


def _check_kept(
    cluster: Log,
    topology: Topology,
    counts: Collection[str],
    resolved: ResolvedTopics,
    additional_ms: int,
) -> None:
    """Check that the brokers still keep the application's internal topics as it has
    made them.

    Raises:
        ConfigError: they delete rows or records that are needed, or date them; see
            `check_compacted`, `check_not_compacted` and `check_times_kept`.
    """
    there = [plan for plan in resolved.internal if plan.exists]
    changelogs = {
        plan.name: plan for plan in there if "compact" in _policies(plan.config)
    }
    repartitions = [plan.name for plan in there if plan.name not in changelogs]
    version = topology_topic(topology.application_id)
    asked = [*changelogs, *repartitions, *([version] if version in counts else [])]
    if not asked:
        return
    try:
        settings = cluster.topic_configs(asked)
    except LogError as error:
        if error.retryable:
            raise
        log.warning(
            "cannot see whether the internal topics still have the settings that they were made with: if one has "
            "message.timestamp.type=LogAppendTime now, times are wrong; if a changelog has `delete`, a restore misses "
            "rows; if a repartition topic has `compact`, records are missed. %s",
            error,
        )
        return
    windowed = [
        plan for plan in changelogs.values() if "delete" in _policies(plan.config)
    ]
    for_ever = settings.keys() - {plan.name for plan in windowed} - set(repartitions)
    stores = {
        changelog_topic(topology.application_id, store.name): store.name
        for store in topology.stores
    }
    check_compacted(
        cluster,
        {topic: settings[topic] for topic in asked if topic in for_ever},
        stores,
    )
    check_not_compacted({topic: settings[topic] for topic in repartitions})
    check_times_kept({plan.name: settings[plan.name] for plan in there}, stores)
    for topic in repartitions:
        _tell_size(
            topic,
            settings[topic],
            "records that are not processed yet would be deleted",
        )
        _tell_age(topic, settings[topic])
    for plan in windowed:
        _tell_windowed(plan, settings[plan.name], additional_ms)
        _tell_size(plan.name, settings[plan.name], "a restore would miss open windows")


def _tell_windowed(
    plan: TopicPlan, settings: Mapping[str, str], additional_ms: int
) -> None:
    """Log whether a changelog of windows has another policy than it was made with, or
    keeps records for less long than its store keeps windows: an earlier version made
    it.
    """
    policy = plan.config["cleanup.policy"]
    for lacking in sorted(
        _policies(plan.config) - _policies(settings) if _policies(settings) else ()
    ):
        log.warning(
            "%s has cleanup.policy=%s, and was made with %s. No open window is lost by that, but the topic grows, and "
            "restores read more: %s. Put the policy back: %s",
            plan.name,
            settings["cleanup.policy"],
            policy,
            "all updates of a row are kept"
            if lacking == "compact"
            else "windows that are over are kept for ever",
            setting_command(plan.name, "cleanup.policy", policy),
        )
    wanted_ms = int(plan.config["retention.ms"])
    kept_ms = int(settings.get("retention.ms", -1))
    if "delete" in _policies(settings) and 0 <= kept_ms < wanted_ms - additional_ms:
        log.warning(
            "%s keeps records for %g hours, and its store keeps windows for %g: a restore would miss open windows. "
            "It was made when they were kept less long. Change it: %s",
            plan.name,
            kept_ms / 3_600_000,
            (wanted_ms - additional_ms) / 3_600_000,
            setting_command(plan.name, "retention.ms", str(wanted_ms)),
        )


def _tell_size(topic: str, settings: Mapping[str, str], lost: str) -> None:
    """Log that the brokers delete records of an internal topic because of its size: an
    earlier version made it, and left that to `log.retention.bytes`, or somebody has set
    it.
    """
    if (
        "delete" in _policies(settings)
        and int(settings.get("retention.bytes", -1)) >= 0
    ):
        log.warning(
            "%s has retention.bytes=%s: once a partition is larger, %s. Change it: %s",
            topic,
            settings["retention.bytes"],
            lost,
            setting_command(topic, "retention.bytes", "-1"),
        )


def _tell_age(topic: str, settings: Mapping[str, str]) -> None:
    """Log that the brokers delete records of a repartition topic because of their age:
    somebody has set it, or has made the topic beforehand, with the brokers' default.
    """
    if (kept_ms := int(settings.get("retention.ms", -1))) >= 0:
        log.warning(
            "%s, a repartition topic, has retention.ms=%d: the brokers delete records whose own time is more than %g "
            "hours ago, also those that are not processed yet: of history that is read, or after a pause. The "
            "application deletes what it has processed by itself. Change it: %s",
            topic,
            kept_ms,
            kept_ms / 3_600_000,
            setting_command(topic, "retention.ms", "-1"),
        )


def _policies(settings: Mapping[str, str]) -> set[str]:
    return {word.strip() for word in settings.get("cleanup.policy", "").split(",")} - {
        ""
    }


def reset_of(source: Source, config: Config) -> str:
    """Return where the topics of a source begin in which the group has no position.

    A repartition topic is read from its first record: the application has written all
    of them.
    """
    return (
        EARLIEST
        if source.internal
        else source.reset or str(config["auto.offset.reset"])
    )


def reset_of_topic(topology: Topology, config: Config, topic: str) -> str:
    """Return where a source topic begins in which the group has no position."""
    for node in topology.nodes:
        if isinstance(node, Source) and topic in node.topics:
            return reset_of(node, config)
    return str(config["auto.offset.reset"])


def _check_reused(cluster: Log, topology: Topology, config: Config) -> None:
    """Check the topics that serve as the changelog of a table: they should keep its
    rows as a changelog does.
    """
    reused = [
        (store.name, store.source)
        for store in topology.stores
        if store.source is not None
    ]
    for store, topic in reused:
        if (reset := reset_of_topic(topology, config, topic)) != EARLIEST:
            raise ConfigError(
                f'the table "{store}" is restored from its topic "{topic}" (topology.optimization), from the '
                f"beginning, but auto.offset.reset={reset} skips the records from before the first start. Set it to "
                'earliest, give the table reset="earliest", or leave out reuse.ktable.source.topics.'
            )
    for store, topic in reused:
        settings = cluster.topic_config(topic)
        if deletes(settings):
            log.warning(
                'the table "%s" is restored from its topic "%s" (topology.optimization), whose cleanup.policy is %s: '
                "rows that the broker has deleted "
                "are missing after a restore. Set cleanup.policy=compact, or leave out reuse.ktable.source.topics.",
                store,
                topic,
                settings["cleanup.policy"],
            )
        elif (
            "compact" in settings.get("cleanup.policy", "")
            and int(settings.get("min.compaction.lag.ms", 0)) == 0
        ):
            log.warning(
                'the table "%s" is restored from its topic "%s" (topology.optimization), which brokers may compact up '
                "to records that are not processed yet (min.compaction.lag.ms=0). A task "
                "that stands below such a record does not open without its state "
                "folder: the row before it would be missing. Give the topic a lag that "
                "is longer than the application may be behind: %s; or leave out "
                "reuse.ktable.source.topics.",
                store,
                topic,
                setting_command(topic, "min.compaction.lag.ms", "604800000"),
            )
