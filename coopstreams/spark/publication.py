"""Publishes a backfill: sets snapshot and group offsets, so that a live application
continues at the cut.

    offsets    the position of each partition, with its stream time and those of operators: windows close and late
               records drop as if the application had run without a break
    version    the topology of the run is the last version from now on: another one that loses its state is refused
    snapshot   the manifest, with the changelog offsets behind the seeded records
    marks      deleted: the run is over

Invariant: publishing can be repeated, with the same outcome, until a live task has
committed; then it is refused.
Relies on: `execution` (has checked that all stages are done), `preflight.last_version`,
`commit.record` (what an offset carries).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from coopstreams.commit.record import Committed
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.spark import plan as planning
from coopstreams.spark.execution import Backfilled
from coopstreams.spark.outbox import cluster_of
from coopstreams.spark.plan import Plan
from coopstreams.spark.preparation import BACKFILLED, as_planned
from coopstreams.spark.reached_times import operator_times
from coopstreams.spark.topic_ids import check_topics
from coopstreams.state import snapshot
from coopstreams.state.manifest import (
    Manifest,
    Slice,
    StoreSlices,
    placed,
    shape_of,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, GroupError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic, marks_topic


def publish(
    done: Backfilled,
    topology: Topology,
    settings: Config | Mapping[str, Any],
) -> dict[TopicPartition, int]:
    """Publish a run; return the offsets at which the application continues.

    Raises:
        GroupError: the application runs, or has run.
        TopologyChangedError: another version of it was published, whose state this
        version would lose.
        ConfigError: the run wrote no changelogs, or they are gone, so that a live
        application would have no state; or it is of another topology.
    """
    if not done.plan.seed:
        raise ConfigError(
            f"run {done.plan.run} was a trial: it wrote no changelogs, and a live application would go on without state"
        )
    config = Config.of(settings, topology.application_id)
    running = as_planned(topology, config, done.plan)
    with (
        closing(cluster_of(config)) as cluster,
        GroupAdmin(config.client, config["application.id"]) as group,
    ):
        check_topics(cluster, done.plan)
        goes_on = _positions(done, cluster)
        _check_unused(group, goes_on, done.plan)
        LastVersion(cluster, config).take_over(
            running,
            cluster.partitions(),
            lambda: not group.describe().members_text,
        )
        # The snapshot comes before the offsets. The broker refuses offsets while the
        # group has members; once they are set, an application may start, and its
        # changelogs grow beyond the end of the snapshot.
        manifest = _manifest(done, running, cluster)
        if done.plan.snapshots is not None:
            snapshot.store_manifest(done.plan.snapshots, manifest)
        group.commit({place: (at.offset, at.metadata) for place, at in goes_on.items()})
        if done.plan.snapshots is not None:
            snapshot.publish(done.plan.snapshots, manifest)
        cluster.delete_topics([marks_topic(done.plan.application, done.plan.run)])
    return {place: at.offset for place, at in goes_on.items()}


def _positions(done: Backfilled, cluster: KafkaLog) -> dict[TopicPartition, Committed]:
    plan = done.plan
    internal = {
        topic: {
            number: cluster.end_offset(TopicPartition(topic, number))
            for number in range(plan.partitions[topic])
        }
        for stage in plan.stages
        for topic in stage.topics
        if topic not in plan.cut
    }
    found = planning.positions(plan, stream_times(done), internal)
    times = operator_times(done.results)
    return {
        TopicPartition(*place): Committed(
            offset,
            stream_time,
            BACKFILLED,
            operator_times=times.get(place, ()),
        )
        for place, (offset, stream_time) in found.items()
    }


def _check_unused(
    group: GroupAdmin,
    goes_on: Mapping[TopicPartition, Committed],
    plan: Plan,
) -> None:
    for place, found in group.committed(goes_on).items():
        if found is not None and Committed.parse(*found).term != BACKFILLED:
            left = f"to delete the topic {marks_topic(plan.application, plan.run)}"
            if plan.snapshots is not None:
                left += f", and `coopstreams snapshots publish {plan.snapshots} {plan.application} {plan.run}`"
            raise GroupError(
                f"the group has committed offset {found[0]} of {place}: the application has run. If run {plan.run} was "
                f"being published, which ended behind its offsets, nothing is left to do but {left}. If not, it ran "
                "beside the backfill, which is of no use now"
            )


def stream_times(done: Backfilled) -> dict[tuple[str, int], int]:
    """Return the stream time of each source partition, which all its tasks have."""
    return {
        (topic, result.partition): at
        for result in done.results
        for topic, at in result.stream_times.items()
    }


def _manifest(
    done: Backfilled,
    topology: Topology,
    cluster: KafkaLog,
) -> Manifest:
    plan = done.plan
    now_ms = int(time.time() * 1000)
    slices: dict[str, list[Slice]] = defaultdict(list)
    for result in done.results:
        for store, each in result.slices.items():
            slices[store] += each
    times: dict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), at in stream_times(done).items():
        times[topic][partition] = at
    stores = {}
    for part, spec in (
        (stage, store)
        for stage in plan.stages
        if stage.is_last
        for store in topology.subtopologies[stage.subtopology].stores
    ):
        if not spec.logged:
            continue  # a store without a changelog stays local
        changelog = changelog_topic(plan.application, spec.name)
        ends = {
            number: cluster.end_offset(TopicPartition(changelog, number))
            for number in range(part.partitions)
        }
        stores[spec.name] = StoreSlices(
            changelog,
            cluster.topic_id(changelog),
            part.partitions,
            shape_of(spec),
            placed(slices[spec.name], ends, now_ms),
        )
    cut = {
        topic: {number: end for number, (_, end) in bounds.items()}
        for topic, bounds in plan.cut.items()
    }
    return Manifest(
        plan.application,
        plan.run,
        "backfill",
        datetime.now(UTC).isoformat(timespec="seconds"),
        stores,
        cut,
        dict(times),
    )
