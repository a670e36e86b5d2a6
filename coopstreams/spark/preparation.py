"""Makes the plan of a run and stores it: resolves topics, takes the cut, checks topics,
and creates internal ones.

`plan.py` decides without I/O; `execution.py` carries out the stored plan. `resume` loads
it and decides nothing again.

Invariant: until the plan is stored, nothing is created except internal topics, which
are empty.
Relies on: `outbox` (announces the run), `preflight.resolution` (topics), `plan`
(decides).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from coopstreams.commit.group_progress import individual_commits
from coopstreams.commit.record import Committed
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.preflight.resolution import check_topics, create_missing
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.spark import plan as planning
from coopstreams.spark.history.sources import (
    History,
    KafkaHistory,
    TableHistory,
    cut_of,
)
from coopstreams.spark.outbox import announce, cluster_of
from coopstreams.spark.plan import Connector, Outputs, Plan
from coopstreams.spark.table_outputs import absolute
from coopstreams.spark.topic_ids import ids_of
from coopstreams.state.snapshot import new_run
from coopstreams.state.storage import Storage
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topic_patterns import unmatched
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import GROUPS
from coopstreams.topology.naming import backfill_runs, changelog_topic, marks_topic

log = logging.getLogger(__name__)

BACKFILLED = 0
"""The term of the offsets that a backfill commits; every live task has a higher term.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    `ranges`: key ranges of each partition, and so tasks. None: four, or one where
    several would call punctuations by stream time late. `seed`: write the state to the
    changelogs; False is a trial that writes nothing to Kafka and cannot be published.
    `snapshots`: also write the state to this storage, from which tasks restore it
    faster. `outputs`: `none`; `topic`: write results to the topics of a live
    application; or `table`: `Backfilled.outputs` returns them. `table`: a URL of
    Spark's at which these are also kept as Parquet. `work`: a folder that driver and
    workers share, for data between stages, and for `resume`. `connector`: the reader of
    Kafka, `python`, or `jvm` in a session that has Spark's connector. `native`: fold
    with Spark SQL where the state is the same; the plan says where Python runs instead,
    and why. `until`: the cut of the topics without a given history.
    """

    ranges: int | None = None
    seed: bool = True
    snapshots: str | None = None
    outputs: Outputs = "none"
    table: str | None = None
    work: str = "coopstreams-backfill"
    connector: Connector = "python"
    native: bool = False
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Check the values, before a plan with them is announced to the group.

        Raises:
            ConfigError: a value is unknown.
        """
        for name, given, known in (
            ("outputs", self.outputs, get_args(Outputs)),
            ("connector", self.connector, get_args(Connector)),
        ):
            if given not in known:
                raise ConfigError(
                    f'{name}="{given}" of a backfill: it must be one of {", ".join(known)}'
                )
        if self.ranges is not None and not 1 <= self.ranges <= GROUPS:
            raise ConfigError(
                f"ranges={self.ranges} of a backfill: a partition has 1 to {GROUPS} key ranges"
            )


def begin(
    topology: Topology,
    config: Config,
    histories: Mapping[str, History],
    options: Options,
) -> Plan:
    """Return the plan of a new run, stored in its folder and announced in Kafka, so
    that no other run can begin.

    Raises:
        ConfigError: see `make_plan`; or another run or an instance has begun meanwhile,
        so this run is given up.
    """
    plan = make_plan(topology, config, histories, options)
    Storage(options.work).write(f"{plan.run}/plan.json", plan.to_json())
    if plan.seed:
        announce(config, plan.run, plan.tasks)
        _check_alone(as_planned(topology, config, plan), config, plan)
    return plan


def _check_alone(
    topology: Topology,
    config: Config,
    plan: Plan,
) -> None:
    """Give up a run that was just announced, if another run or an instance has begun
    since `check_unused`.

    Two runs that check at the same time are both given up. A run or instance that
    starts later finds this run, and ends.
    """
    with closing(cluster_of(config)) as cluster:
        try:
            check_unused(cluster, config, topology, plan.partitions, plan.run)
        except ConfigError as error:
            cluster.delete_topics([marks_topic(plan.application, plan.run)])
            raise ConfigError(
                f"run {plan.run} is given up, something else has begun at the same time: {error}"
            ) from error


def load_plan(
    work: str,
    run: str,
    topology: Topology,
    config: Config,
    *,
    rebuild: bool = False,
) -> Plan:
    """Return the stored plan of a run: of a backfill, or with `rebuild` of a rebuild
    from the source.

    Raises:
        ConfigError: there is no such run here, it is of the other kind, or of another
        topology.
    """
    data = Storage(work).read(f"{run}/plan.json")
    if data is None:
        raise ConfigError(f'there is no run "{run}" in {work}')
    plan = Plan.from_json(data)
    if (plan.rebuild is not None) != rebuild:
        kind = "backfill" if rebuild else "rebuild --from source"
        raise ConfigError(
            f'run "{run}" is a {kind}: go on with it by coopstreams {kind} --resume {run}'
        )
    as_planned(topology, config, plan)
    return plan


def as_planned(
    built: Topology,
    config: Config,
    plan: Plan,
) -> Topology:
    """Return the topology of a run: its patterns match the topics of the plan, not
    topics that were created since.

    Raises:
        ConfigError: the run is of another topology.
    """
    running = as_it_runs(built, plan.cut, config)
    if (plan.application, plan.topology) != (
        running.application_id,
        planning.digest(running),
    ):
        raise ConfigError(
            f'run "{plan.run}" is of another topology, or of an older form of "{plan.application}", or was begun with '
            "another topology.optimization: "
            "start a new one"
        )
    return running


def make_plan(
    built: Topology,
    config: Config,
    histories: Mapping[str, History],
    options: Options,
    *,
    create: bool = True,
) -> Plan:
    """Return the plan of a run: patterns are resolved and the cut is taken now.
    `create`: make missing internal topics.

    Raises:
        TopologyError: a backfill cannot run this topology, or the topics do not fit it.
        ConfigError: a history is for a topic that is no source, or does not fit its
        topic, or the application has run before.
        SnapshotError: `snapshots` is not a usable storage.
    """
    _check_outputs(options)
    with schemas_bound(built, config), closing(cluster_of(config)) as cluster:
        counts = cluster.partitions()
        topology = as_it_runs(built, counts, config)
        planning.check(topology)
        chosen, known = _histories(topology, histories, options.until)
        facts = check_topics(cluster, topology, config, counts)
        resolved = facts.topics
        check_unused(cluster, config, topology, resolved.partitions)
        if create:
            create_missing(cluster, facts)
        cut = _cuts(cluster, chosen, resolved.partitions)
        globally = _cuts(cluster, known, resolved.partitions)
        ids = ids_of(cluster, topology)
    tables = tuple(
        topic for topic, history in chosen.items() if isinstance(history, TableHistory)
    )
    if options.outputs != "topic":
        for topic in _fed_by_itself(topology, cut, tables):
            log.warning(
                'the program writes to "%s" and reads it, which has no records: what reads it gets no history, because '
                "outputs are %s. With --outputs topic, the live application reads what the run has written.",
                topic,
                options.outputs,
            )
    for pattern in unmatched(topology):
        log.warning(
            'no topic matches "%s" yet: those that are made from now on are the live application\'s, from their '
            "beginning",
            pattern,
        )
    stages = planning.stages(
        topology,
        resolved.partitions,
        options.ranges,
        native=options.native,
        outputs=options.outputs,
    )
    for warning in planning.called_late(stages, "leave out --ranges (ranges=None)"):
        log.warning("%s", warning)
    return Plan(
        run=new_run(),
        application=topology.application_id,
        topology=planning.digest(topology),
        cut=cut,
        stages=stages,
        partitions=dict(resolved.partitions),
        tables=tables,
        outputs=options.outputs,
        seed=options.seed,
        snapshots=None if options.snapshots is None else absolute(options.snapshots),
        table=None if options.table is None else absolute(options.table),
        global_tables=globally,
        connector=options.connector,
        ids=ids,
    )


def _check_outputs(options: Options) -> None:
    """Check that outputs, table and storage fit each other and can be used."""
    if options.outputs == "topic" and not options.seed:
        raise ConfigError(
            "a trial writes nothing to Kafka: outputs must be none or table"
        )
    if options.table is not None and options.outputs != "table":
        raise ConfigError(
            f'a place for a table, {options.table}, but outputs are "{options.outputs}": say outputs="table"'
        )
    if options.snapshots is not None:
        # Fails now if its driver is missing, instead of in the tasks.
        Storage(options.snapshots)


def _cuts(
    cluster: KafkaLog,
    histories: Mapping[str, History],
    partitions: Mapping[str, int],
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the offsets [start, end) that a run reads of each topic."""
    return {
        topic: cut_of(cluster, topic, history, partitions[topic])
        for topic, history in histories.items()
    }


def _fed_by_itself(
    topology: Topology,
    cut: Mapping[str, Mapping[int, tuple[int, int]]],
    tables: Collection[str],
) -> list[str]:
    """Return the sources without records in their history to which the program writes."""
    return [
        topic
        for topic, bounds in cut.items()
        if topic in topology.sink_topics
        and topic not in tables
        and all(start == end for start, end in bounds.values())
    ]


def _histories(
    topology: Topology,
    given: Mapping[str, History],
    until: datetime | None,
) -> tuple[dict[str, History], dict[str, History]]:
    """Return the history of each source, and of each topic of a global table.

    Raises:
        ConfigError: a history is for a topic that is no source, or cannot be its
        history.
    """
    if unknown := sorted(set(given) - set(topology.source_topics)):
        raise ConfigError(
            f"{', '.join(unknown)} is no source of the topology; it reads {', '.join(topology.source_topics)}"
        )
    chosen = {
        topic: given.get(topic, KafkaHistory(until))
        for topic in planning.sources(topology)
    }
    known = {
        table.topic: given.get(table.topic, KafkaHistory())
        for table in topology.global_tables
    }
    if tables := [
        topic for topic, history in known.items() if isinstance(history, TableHistory)
    ]:
        raise ConfigError(
            f"{', '.join(tables)}: a global table is read from its topic in Kafka, by every task; give it no other "
            "history"
        )
    restored = {
        store.source: store.name
        for part in topology.subtopologies
        for store in part.stores
    }
    for topic, history in chosen.items():
        if isinstance(history, TableHistory):
            history.check(topic)
            if topic in restored:
                raise ConfigError(
                    f'the table "{restored[topic]}" is restored from its topic "{topic}" (topology.optimization), '
                    "which does not have the rows of the "
                    "table that is given as its history. Leave out reuse.ktable.source.topics."
                )
    return chosen, known


def check_unused(
    cluster: KafkaLog,
    config: Config,
    topology: Topology,
    partitions: Mapping[str, int],
    begun: str | None = None,
) -> None:
    """Check that the application has never run; otherwise its state and progress would
    mix with the backfill's.

    `begun`: the run that asks, if it has been announced.

    Raises:
        ConfigError: it runs or has run, or another backfill has begun; the message has
        the evidence and the cure.
    """
    known = cluster.partitions()
    if others := [
        run for run in backfill_runs(topology.application_id, known) if run != begun
    ]:
        raise ConfigError(
            f'run {others[-1]} of "{topology.application_id}" has begun and is not published: go on with it (--resume '
            f"{others[-1]}). To begin anew, "
            "`coopstreams reset` the application, or give the program another id."
        )
    _check_empty(cluster, topology, known)
    places = [
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count if topic in known else 0)
    ]
    with GroupAdmin(config.client, config["application.id"]) as group:
        members_text = group.describe().members_text
        committed = group.committed(places)
    _check_uncommitted(cluster, config, places, committed)
    # One that has just started, or has no tasks, has committed nothing.
    if members_text:
        raise ConfigError(
            f'"{topology.application_id}" runs, it has {members_text}: stop all instances'
        )


def _check_empty(
    cluster: KafkaLog,
    topology: Topology,
    known: Mapping[str, int],
) -> None:
    """Check that the internal topics have no records. `known`: the partition counts of
    the topics that exist.

    Raises:
        ConfigError: one has.
    """
    for topic in topology.internal_topics:
        for number in range(known.get(topic.name, 0)):
            place = TopicPartition(topic.name, number)
            if cluster.end_offset(place) > cluster.start_offset(place):
                raise ConfigError(
                    f"{place} has records: the application has run, or a backfill has. Give the program another "
                    "application id; or, if a backfill was all it had, `coopstreams reset` it."
                )


def _check_uncommitted(
    cluster: KafkaLog,
    config: Config,
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, tuple[int, str] | None],
) -> None:
    """Check that neither the group nor its key ranges have committed anything."""
    for place, found in committed.items():
        if found is not None and Committed.parse(*found).term != BACKFILLED:
            raise ConfigError(
                f"the group has committed offset {found[0]} of {place}: the application has run, or was reset. Give "
                "the program another application id: the individual commits under this one stay valid"
            )
    # Individual commits outlive the offsets of a group.
    with individual_commits(cluster, config["application.id"]) as commits:
        shared = [
            place for place in places if commits is not None and commits.live(place)
        ]
    if shared:
        raise ConfigError(
            f"key ranges of the group have committed in {shared[0]}: the application has run, or was reset. Give "
            "the program another application id: these commits stay valid"
        )


def oldest_ms(
    topology: Topology,
    config: Config,
    plan: Plan,
) -> tuple[tuple[str, int], ...]:
    """Return, for each store whose changelog has a retention, the earliest timestamp
    that the broker does not delete at once.
    """
    stores = (
        store
        for stage in plan.stages
        for store in topology.subtopologies[stage.subtopology].stores
    )
    forgetful = [store.name for store in stores if store.logged and store.retention_ms]
    topics = {
        store: changelog_topic(topology.application_id, store) for store in forgetful
    }
    now = int(time.time() * 1000)
    with closing(cluster_of(config)) as cluster:
        kept = {
            store: int(cluster.topic_config(topic)["retention.ms"])
            for store, topic in topics.items()
        }
    return tuple(
        (store, now - kept_ms) for store, kept_ms in kept.items() if kept_ms >= 0
    )
