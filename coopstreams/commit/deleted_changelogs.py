"""Refuse to create a changelog that was deleted: its store would begin empty, and
results would count from nothing.

A missing changelog is one that was deleted if the version of the topology that ran last
had it (`had`), and if the group has committed in a source of its sub-topology. A group
that has committed nothing, or only offset 0, begins: then an empty store is right, even
if somebody has deleted the changelog.

Invariant: a refused start, or rebuild, has created none of the missing topics, so the
next one is refused as well. Turned down: a setting that accepts the loss (it would
stay, and accept the next one; to create the topic by hand accepts this one); going on
with the state folders (each has only the key ranges that its process had).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coopstreams.commit.group_progress import individual_commits
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, UnknownTopicError
from coopstreams.topology.graph.partitions import ResolvedTopics
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic


def check_changelogs(
    cluster: Log,
    topology: Topology,
    config: Config,
    resolved: ResolvedTopics,
    missing: Sequence[TopicSpec],
    had: Collection[str],
) -> None:
    """Check that no missing topic is a changelog that was deleted.

    `had`: the changelogs of the version of the topology that ran last.

    Raises:
        ConfigError: one is; the message has the cures.
    """
    lost: dict[str, TopicSpec] = {}
    for spec in (spec for spec in missing if spec.name in had):
        store, sources = _kept_in(topology, spec.name)
        read = [
            TopicPartition(topic, number)
            for topic in sources
            for number in range(resolved.partitions[topic])
        ]
        if _has_committed(cluster, config, read) and is_gone(cluster, spec.name):
            lost[store] = spec
    if not lost:
        return
    named = ", ".join(
        f'{spec.name}, the changelog of store "{store}"' for store, spec in lost.items()
    )
    asked = " ".join(f"--store {store}" for store in lost)
    raise ConfigError(
        f'deleted: {named}. "{topology.application_id}" has processed records into it, and it is not made anew: it '
        "would be empty, and results would begin from nothing without an error. Stop all instances. Then have its rows "
        f"made from the source topics (`coopstreams rebuild APP --from source {asked}`), or begin anew (`coopstreams "
        "reset APP`). Or, if the store may begin empty where the application stands, create the topic: "
        + "; ".join(f"`{creation(spec)}`" for spec in lost.values())
    )


def is_gone(cluster: Log, topic: str) -> bool:
    """Whether the controller does not know a topic: the broker that was asked for it
    may be behind the controller.
    """
    try:
        cluster.start_offset(TopicPartition(topic, 0))
    except UnknownTopicError:
        return True
    return False


def _kept_in(topology: Topology, changelog: str) -> tuple[str, tuple[str, ...]]:
    """Return the store that a changelog keeps, and the topics that its sub-topology
    reads.
    """
    return next(
        (store.name, part.topics)
        for part in topology.subtopologies
        for store in part.stores
        if changelog_topic(topology.application_id, store.name) == changelog
    )


def _has_committed(
    cluster: Log, config: Config, sources: Collection[TopicPartition]
) -> bool:
    """Whether the group has committed in these partitions; individual commits count,
    since offsets may have expired.
    """
    group = config["application.id"]
    timeout_s = config["connect.timeout.ms"] / 1000
    with GroupAdmin(config.client, group, timeout_s=timeout_s) as admin:
        rows = admin.fetch_offsets(sources, stable=False).offsets.values()
        if any(row is not None and row[0] > 0 for row in rows):
            return True
    with individual_commits(cluster, group) as follower:
        return follower is not None and not set(follower.sources()).isdisjoint(sources)


def creation(spec: TopicSpec) -> str:
    """Return the command that creates a topic."""
    settings = " ".join(f"--set {name}={value}" for name, value in spec.config.items())
    return f"coopstreams topics create {spec.name} --partitions {spec.partitions} {settings}"
