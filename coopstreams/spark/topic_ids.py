"""Checks that the topics of a run still exist: `coopstreams reset` or a user may delete
and create them again.

A plan has the ids of its topics. A topic of the same name with another id has other
records below the cut, or has lost the writes of tasks.

Invariant: a run whose topics were created again is neither resumed nor published.
Relies on: `preparation` and `source_plan` (note the ids), `execution` and
`publication` (compare them).
"""

from __future__ import annotations

from contextlib import closing

from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark.outbox import cluster_of
from coopstreams.spark.plan import Plan
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import marks_topic


def ids_of(cluster: KafkaLog, topology: Topology) -> dict[str, str]:
    """Return the ids of a run's source topics and internal topics, as far as they
    exist.
    """
    known = cluster.partitions()
    names = (
        *topology.source_topics,
        *(topic.name for topic in topology.internal_topics),
    )
    return {
        name: cluster.topic_id(name) for name in dict.fromkeys(names) if name in known
    }


def check_topics(cluster: KafkaLog, plan: Plan) -> None:
    """Check that the topics of a plan are still the same.

    Raises:
        ConfigError: topics are gone, or were created again.
    """
    known = cluster.partitions()
    if changed := [
        name
        for name, found in plan.ids.items()
        if name not in known or cluster.topic_id(name) != found
    ]:
        raise ConfigError(
            f"{', '.join(changed)}: deleted, or made anew, since run {plan.run} was planned, which can "
            "therefore not be resumed. Start a new run."
        )


def check_resumable(
    config: Config,
    plan: Plan,
    *,
    finished: bool,
) -> None:
    """Check that a run can be resumed.

    `finished`: whether all its stages have run, so that it is only published (again).

    Raises:
        ConfigError: its topics were created again, or it has been given up.
    """
    with closing(cluster_of(config)) as cluster:
        check_topics(cluster, plan)
        if (
            plan.seed
            and not finished
            and marks_topic(plan.application, plan.run) not in cluster.partitions()
        ):
            raise ConfigError(
                f"run {plan.run} cannot go on: {marks_topic(plan.application, plan.run)}, which says what its tasks "
                "have written, is gone. Start a new run."
            )
