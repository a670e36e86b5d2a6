"""Makes the plan of a rebuild from the source and stores it: positions of key ranges,
ends of changelogs, tasks.

It refuses to rebuild if a source has lost records, or if records between two
sub-topologies are unread: the state would differ from the application's.

Invariant: until the plan is stored, nothing is created except missing internal topics;
in a dry run nothing at all.
Relies on: `plan` (the stages), `committed_positions` (where the group stands),
`committed_records` (how ranges are aligned with that), `changelog_repair` (what is
written).
"""

from __future__ import annotations

import logging
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import replace

from coopstreams.admin.rebuild import (
    RebuildScope,
    SourceOptions,
    logged,
    to_rebuild,
)
from coopstreams.commit.record import Segment
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import check_topics, create_missing
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.spark import plan as planning
from coopstreams.spark.changelog_repair import changelog_of
from coopstreams.spark.committed_positions import check_stopped, committed, unread
from coopstreams.spark.committed_records import Rebuild, Stands, aligned
from coopstreams.spark.history.sources import KafkaHistory, cut_of
from coopstreams.spark.outbox import announce, cluster_of
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.table_outputs import absolute
from coopstreams.spark.topic_ids import ids_of
from coopstreams.state.manifest import whole_slices
from coopstreams.state.snapshot import new_run
from coopstreams.state.storage import Storage
from coopstreams.tasks.resolved_topology import as_it_runs, reset_of
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    TopologyError,
)
from coopstreams.topology.graph.nodes import Source, SubTopology
from coopstreams.topology.graph.offset_resets import EARLIEST
from coopstreams.topology.graph.partitions import ResolvedTopics
from coopstreams.topology.graph.timed_topics import timed_topics
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import REBUILD
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

_NOTHING = (Segment(WHOLE, 0),)


def begin_rebuild(
    built: Topology,
    config: Config,
    wanted: RebuildScope,
    options: SourceOptions,
) -> Plan:
    """Return the plan of a new run, stored in its folder.

    Raises:
        TopologyError: a backfill cannot run the topology, so a rebuild cannot either.
        ConfigError: a store or partition does not exist, the application has committed
            nothing, records lie unread in a repartition topic, or a changelog was
            deleted that this run does not make as a whole.
        OffsetOutOfRangeError: a source has lost records.
        GroupError: the application runs.
    """
    _check_begun_at_earliest(built, config)
    check_stopped(config)
    with schemas_bound(built, config), closing(cluster_of(config)) as cluster:
        counts = cluster.partitions()
        topology = as_it_runs(built, counts, config)
        planning.check(topology)
        # A dry run makes nothing, so it may tell of a run that makes them anew.
        had = (
            ()
            if options.dry_run
            else _kept_as_they_are(cluster, topology, config, wanted)
        )
        facts = check_topics(cluster, topology, config, counts, had)
        resolved = facts.topics
        rebuild = _rebuild(topology, config, cluster, resolved, wanted)
        stages = stages_of(topology, resolved.partitions, rebuild, options.ranges)
        for warning in planning.called_late(
            stages,
            "leave out --ranges, and stop the application when it has no lag",
        ):
            log.warning("%s", warning)
        cut = _cut(topology, cluster, stages, rebuild.committed)
        _check_any(config, cut)
        if not options.incomplete:
            check_whole(stages, cut)
        _check_read(cluster, stages, cut, rebuild.committed)
        if not options.dry_run:
            create_missing(cluster, facts)
        tables = {
            table.topic: resolved.partitions[table.topic]
            for table in topology.global_tables
        }
        plan = Plan(
            # Named differently from a backfill, whose runs keep the application from
            # starting until they are published.
            run=f"{new_run()}{REBUILD}",
            application=topology.application_id,
            topology=planning.digest(topology),
            cut={topic: cut.get(topic, {}) for topic in planning.sources(topology)},
            stages=stages,
            partitions=dict(resolved.partitions),
            seed=not options.dry_run,
            snapshots=None
            if options.dry_run or config["snapshots.dir"] is None
            else absolute(config["snapshots.dir"]),
            global_tables={
                topic: cut_of(cluster, topic, KafkaHistory(), count)
                for topic, count in tables.items()
            },
            rebuild=rebuild,
            ids=ids_of(cluster, topology),
        )
    Storage(options.work).write(f"{plan.run}/plan.json", plan.to_json())
    if plan.seed:
        announce(config, plan.run, plan.tasks)
    return plan


def _check_begun_at_earliest(built: Topology, config: Config) -> None:
    """Check that every source began at its topics' first records.

    Raises:
        ConfigError: one has another reset.
    """
    for part in built.subtopologies:
        for node in part.nodes:
            reset = reset_of(node, config) if isinstance(node, Source) else EARLIEST
            if reset != EARLIEST:
                raise ConfigError(
                    f'"{node.name}" began where its reset says, {reset}: at places in its topics which are unknown now. '
                    "Rebuild its state from the changelogs instead of the source."
                )


def _check_any(
    config: Config,
    cut: Mapping[str, Mapping[int, tuple[int, int]]],
) -> None:
    """Check that there is a record to read. `cut`: the offsets [start, end) of each
    partition.

    Raises:
        ConfigError: there is none.
    """
    spans = (span for bounds in cut.values() for span in bounds.values())
    if not any(end > start for start, end in spans):
        raise ConfigError(
            f'"{config["application.id"]}" has committed nothing of what its sources have now: there is nothing '
            "to rebuild state from. To give it state before it begins: coopstreams backfill. If it has run, the "
            "records are gone: rebuild from the changelogs."
        )


def stages_of(
    topology: Topology,
    partitions: Mapping[str, int],
    rebuild: Rebuild,
    ranges: int | None,
) -> tuple[Stage, ...]:
    """Return the stages of a rebuild, with at least `ranges` key ranges, so that each
    task has one end per source.

    A sub-topology whose records others need runs with all its tasks; any other only
    with the tasks that have something to rebuild.

    Raises:
        TopologyError: a sub-topology waits for another one, or time advances in the
        silence of a repartition topic.
        ConfigError: key ranges of one task have different positions, and it cannot be
        divided.
    """
    needed = planning.leading_to(topology, rebuild.stores)
    timed = timed_topics(topology.subtopologies)
    first = 0
    result = list[Stage]()
    for stage in planning.stages(topology, partitions, ranges):
        if stage.subtopology not in needed:
            continue
        part = topology.subtopologies[stage.subtopology]
        _check_order_known(stage, part)
        if part.stores:
            sources = planning.sources(topology)
            stood = [
                segments
                for topic in stage.topics
                for segments in rebuild.committed[topic].values()
                # Behind a timed topic they have clocks of their own.
                if topic in sources or topic in timed
            ]
            stage = replace(stage, ranges=_ranges(stage, part, stood))
        stage = replace(stage, first=first)
        if not needed[stage.subtopology]:
            stage = replace(stage, only=_covered(stage, rebuild))
        result.append(stage)
        first += stage.tasks
    return tuple(result)


def _check_order_known(stage: Stage, part: SubTopology) -> None:
    """Check that the sources alone decide what a sub-topology has processed, and in
    which order.
    """
    if stage.rounds > 1:
        raise TopologyError(
            f"sub-topology {stage.subtopology} waits for another one, as a foreign-key join does: in which order "
            "its key ranges have asked and were answered is in no topic any more. Rebuild its stores from the "
            "changelogs."
        )
    for node in part.nodes:
        if isinstance(node, Source) and node.internal and node.idle_ms is not None:
            raise TopologyError(
                f'sub-topology {stage.subtopology} reads "{node.topics[0]}" with idle_advance=: where its time '
                "advanced in silence is in no source, and what was told then would be told again. Rebuild its "
                "stores from the changelogs."
            )


def _ranges(
    stage: Stage,
    part: SubTopology,
    stood: Sequence[tuple[Segment, ...]],
) -> int:
    """Return the number of key ranges, at least that of the stage, with which each range
    has one position in each source. `stood`: the committed segments of each.

    Raises:
        ConfigError: there is no such number.
    """
    count = aligned(stage.ranges, stood)
    if count is None or not (part.divisible or count == 1):
        raise ConfigError(
            f"sub-topology {stage.subtopology}: its key ranges stand at different positions, and it cannot be "
            "divided there. Let the application run until it has no lag, then stop it and try again."
        )
    return count


def _covered(stage: Stage, rebuild: Rebuild) -> tuple[int, ...]:
    """Return the numbers of the tasks that have something to rebuild."""
    key_ranges = KeyRange.split(stage.ranges)
    tasks = [
        TaskId(stage.subtopology, partition, key_range)
        for partition in range(stage.partitions)
        for key_range in key_ranges
    ]
    return tuple(
        number for number, task in enumerate(tasks) if rebuild.covered(task) is not None
    )


def stands(
    config: Config,
    cluster: KafkaLog,
    partitions: Mapping[str, int],
) -> Stands:
    """Return the committed segments of these topics, by topic and partition."""
    known = cluster.partitions()
    places = [
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
    ]
    found = committed(
        config,
        cluster,
        [place for place in places if place.topic in known],
    )
    return {
        topic: {
            number: found.get(TopicPartition(topic, number), _NOTHING)
            for number in range(count)
        }
        for topic, count in partitions.items()
    }


def _rebuild(
    topology: Topology,
    config: Config,
    cluster: KafkaLog,
    resolved: ResolvedTopics,
    wanted: RebuildScope,
) -> Rebuild:
    """Return what to rebuild: the stores and ranges, where the group stands in their
    sources, and where their changelogs end now.
    """
    found = to_rebuild(topology, resolved.tasks, wanted)
    stores = tuple(
        dict.fromkeys(store for rebuilt in found for store in rebuilt.stores)
    )
    topics = [
        topic
        for part in planning.leading_to(topology, stores)
        for topic in topology.subtopologies[part].topics
    ]
    specs = logged(topology)
    known = cluster.partitions()
    ends = dict[str, dict[int, int]]()
    for rebuilt in found:
        for store in rebuilt.stores:
            changelog = TopicPartition(
                changelog_of(config, specs[store]),
                rebuilt.task.partition,
            )
            ends.setdefault(store, {})[rebuilt.task.partition] = (
                cluster.end_offset(changelog) if changelog.topic in known else 0
            )
    return Rebuild(
        stores,
        None if wanted.partitions is None else tuple(sorted(wanted.partitions)),
        whole_slices(wanted.key_range),
        stands(
            config,
            cluster,
            {topic: resolved.partitions[topic] for topic in topics},
        ),
        ends,
    )


def _kept_as_they_are(
    cluster: KafkaLog,
    topology: Topology,
    config: Config,
    wanted: RebuildScope,
) -> Collection[str]:
    """Return the changelogs of the last version that this run does not write as a
    whole. If one was deleted, it stays missing.
    """
    version = LastVersion(cluster, config)
    whole = wanted.partitions is None and whole_slices(wanted.key_range) == WHOLE
    version.last()
    specs = logged(topology)
    made = [changelog_of(config, specs[name]) for name in wanted.names(specs)]
    return version.changelogs.difference(made if whole else ())


def _cut(
    topology: Topology,
    cluster: KafkaLog,
    stages: Sequence[Stage],
    committed: Stands,
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the offsets [start, end) to read: up to the last committed offset, and
    none where no task runs.
    """
    cut: dict[str, dict[int, tuple[int, int]]] = {}
    for stage in stages:
        for topic in (
            topic for topic in stage.topics if topic in planning.sources(topology)
        ):
            for number, segments in committed[topic].items():
                start = cluster.start_offset(TopicPartition(topic, number))
                cut.setdefault(topic, {})[number] = (
                    start,
                    max(start, *(segment.end for segment in segments))
                    if number in _partitions(stage)
                    else start,
                )
    return cut


def _partitions(stage: Stage) -> set[int]:
    """Return the partitions of which a stage runs tasks."""
    return {task // stage.ranges for task in stage.running}


def check_whole(
    stages: Iterable[Stage],
    cut: Mapping[str, Mapping[int, tuple[int, int]]],
) -> None:
    """Check that no source has lost records: each partition that is read still begins
    at offset 0.
    """
    lost = [
        f"{topic}-{number} begins at {start}"
        for stage in stages
        for topic in stage.topics
        for number, (start, _) in cut.get(topic, {}).items()
        if start and number in _partitions(stage)
    ]
    if lost:
        raise OffsetOutOfRangeError(
            f"records are gone: {', '.join(lost)}. Their effects on the state would be deleted. If that "
            "is harmless, for example because all their windows are closed, pass --incomplete (incomplete=True); "
            "otherwise rebuild from the changelogs."
        )


def _check_read(
    cluster: KafkaLog,
    stages: Iterable[Stage],
    cut: Mapping[str, object],
    committed: Stands,
) -> None:
    """Check that the sub-topologies have read all records forwarded to them.

    These records follow from committed records, so the state of the reader must include
    them.
    """
    known = cluster.partitions()
    places = [
        TopicPartition(topic, at)
        for stage in stages
        for topic in stage.topics
        for at in _partitions(stage)
        if topic not in cut and at < known.get(topic, 0)
    ]
    for place, end in cluster.stable_offsets(places).items():
        count = unread(cluster, place, committed[place.topic][place.partition], end)
        if count:
            raise ConfigError(
                f"{place} has {count} records that the application has written to itself and not read: they would be "
                "in the state before they are processed. Let the application run on, without new input, until it has "
                "no lag there; then stop it and try again. Or backfill another application id."
            )
