"""The topics of an application, checked and made before the first task: nothing starts against a cluster that does not fit."""

from __future__ import annotations

import logging

from coopstreams.config import Config
from coopstreams.log.log import Log, TopicSpec
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.nodes import Topology
from coopstreams.topology.partitions import ResolvedTopics, check_names, check_partitions

log = logging.getLogger(__name__)


def prepare_topics(cluster: Log, topology: Topology, config: Config) -> ResolvedTopics:
    """Return the partition counts of everything; make the internal topics that do not exist yet.

    Raises:
        UnknownTopicError: a topic that users read, write or send dead letters to does not exist.
        TopologyError: topics of a join differ in partitions, an internal topic is of an older form of the topology, or its name is generated.
    """
    if config["ensure.explicit.internal.resource.naming"]:
        check_names(topology)
    counts = cluster.partitions()
    resolved = check_partitions(topology, counts)
    dead_letters = config["errors.dead.letter.queue.topic.name"]
    wanted = [*topology.sink_topics, *([dead_letters] if dead_letters else [])]
    missing = [topic for topic in wanted if topic not in counts and topic not in resolved.partitions]
    if missing:
        raise UnknownTopicError(
            f"the application writes to {', '.join(missing)}, which does not exist: create it first; only internal topics are made by themselves"
        )
    for orphan in resolved.orphans:
        log.warning(
            "%s looks like an internal topic of this application, which has none of that name: if another version of the program left it "
            "behind, what was kept in it is not in the new stores. Give stores names that stay, or delete the topic.",
            orphan,
        )
    specs = [TopicSpec(plan.name, plan.partitions, plan.config, config["replication.factor"]) for plan in resolved.missing]
    if specs:
        log.info("creating internal topics: %s", ", ".join(f"{spec.name} ({spec.partitions})" for spec in specs))
        cluster.create_topics(specs)
    return resolved
