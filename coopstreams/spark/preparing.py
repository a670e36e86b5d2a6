"""What a run will do, asked of Kafka once and written down: the cut is taken, topics are checked and made.

`plan.py` decides without I/O; `running.py` carries out what is written down. `resume` reads it again and decides nothing anew.

Invariant: nothing but internal topics, empty ones, has been made when a plan is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from coopstreams.commit.record import Committed
from coopstreams.config import Config
from coopstreams.log.kafka_log import KafkaLog
from coopstreams.log.kafka_offsets import KafkaOffsets
from coopstreams.spark import plan as planning
from coopstreams.spark.history import History, KafkaHistory, TableHistory, cut_of
from coopstreams.spark.outbox import cluster_of
from coopstreams.spark.plan import Connector, Outputs, Plan
from coopstreams.spark.table_outputs import absolute
from coopstreams.state.places import Place
from coopstreams.state.snapshot import new_run
from coopstreams.tasks.topics import prepare_topics
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.naming import changelog_topic, internal_topic
from coopstreams.topology.nodes import Topology
from coopstreams.topology.partitions import check_partitions

BACKFILLED = 0
"""The term of the offsets that a backfill leaves: every live task has a higher one."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to do.

    `ranges`: key ranges of each partition, and so tasks. `seed`: the state goes to the changelogs; False is a trial that writes nothing to Kafka
    and cannot be published. `snapshots`: the state goes to this place, too, from where tasks pick it up faster. `outputs`: `none`; `topic`:
    results are written where a live application would; or `table`: `Backfilled.outputs` hands them back, and they lie at `table` (a URL of
    Spark's) as Parquet, if that is given. `work`: a folder that driver and workers share, for what goes from one stage to the next, and for
    `resume`. `connector`: what reads Kafka, `python`, or `jvm` in a session that has the connector of Spark. `native`: Spark SQL folds what it
    can, with the same state in the end; the plan says what it cannot, and why.
    """

    ranges: int = 4
    seed: bool = True
    snapshots: str | None = None
    outputs: Outputs = "none"
    table: str | None = None
    work: str = "coopstreams-backfill"
    connector: Connector = "python"
    native: bool = False


def begin(topology: Topology, config: Config, histories: Mapping[str, History], options: Options) -> Plan:
    """Return the plan of a new run, written down in its folder."""
    plan = make_plan(topology, config, histories, options)
    Place(options.work).write(f"{plan.run}/plan.json", plan.to_json())
    return plan


def load_plan(work: str, run: str, topology: Topology, *, rebuild: bool = False) -> Plan:
    """Return the plan of a run: of a backfill, or of a rebuild from the source.

    Raises:
        ConfigError: there is no such run here, it is of the other kind, or of another topology.
    """
    data = Place(work).read(f"{run}/plan.json")
    if data is None:
        raise ConfigError(f'there is no run "{run}" in {work}')
    plan = Plan.from_json(data)
    if (plan.application, plan.topology) != (topology.application_id, planning.digest(topology)):
        raise ConfigError(f'run "{run}" is of another topology, or of an older form of "{plan.application}": start a new one')
    if (plan.rebuild is not None) != rebuild:
        kind = "backfill" if rebuild else "rebuild --from source"
        raise ConfigError(f'run "{run}" is a {kind}: go on with it by coopstreams {kind} --resume {run}')
    return plan


def make_plan(topology: Topology, config: Config, histories: Mapping[str, History], options: Options, *, create: bool = True) -> Plan:
    """Return what a run will do: the cut is taken now. `create`: make the internal topics that are missing.

    Raises:
        TopologyError: a backfill cannot run this topology, or the topics do not fit it.
        ConfigError: a history is of no source, or the application has run before.
    """
    planning.check(topology)
    topics = planning.sources(topology)
    if unknown := sorted(set(histories) - set(topology.source_topics)):
        raise ConfigError(f"{', '.join(unknown)} is no source of the topology; it reads {', '.join(topology.source_topics)}")
    if options.outputs == "topic" and not options.seed:
        raise ConfigError("a trial writes nothing to Kafka: outputs must be none or table")
    if options.table is not None and options.outputs != "table":
        raise ConfigError(f'a place for a table, {options.table}, but outputs are "{options.outputs}": say outputs="table"')
    chosen = {topic: histories.get(topic, KafkaHistory()) for topic in topics}
    known = {table.topic: histories.get(table.topic, KafkaHistory()) for table in topology.global_tables}
    if tables := [topic for topic, history in known.items() if isinstance(history, TableHistory)]:
        raise ConfigError(f"{', '.join(tables)}: a global table is read from its topic in Kafka, by every task; give it no other history")
    for topic, history in chosen.items():
        if isinstance(history, TableHistory):
            history.check(topic)
    cluster = KafkaLog(config.client, timeout_s=config["connect.timeout.ms"] / 1000)
    offsets = KafkaOffsets(config.client, config["application.id"])
    try:
        resolved = prepare_topics(cluster, topology, config) if create else check_partitions(topology, cluster.partitions())
        check_unused(cluster, offsets, topology, resolved.partitions)
        cut, globally = (
            {topic: cut_of(cluster, offsets, topic, history, resolved.partitions[topic]) for topic, history in each.items()}
            for each in (chosen, known)
        )
    finally:
        offsets.close()
        cluster.close()
    return Plan(
        run=new_run(),
        application=topology.application_id,
        topology=planning.digest(topology),
        cut=cut,
        stages=planning.stages(topology, resolved.partitions, options.ranges, native=options.native, outputs=options.outputs),
        partitions=dict(resolved.partitions),
        tables=tuple(topic for topic, history in chosen.items() if isinstance(history, TableHistory)),
        outputs=options.outputs,
        seed=options.seed,
        snapshots=options.snapshots,
        table=None if options.table is None else absolute(options.table),
        global_tables=globally,
        connector=options.connector,
    )


def check_unused(cluster: KafkaLog, offsets: KafkaOffsets, topology: Topology, partitions: Mapping[str, int]) -> None:
    """Do nothing if the application has never run: its state and its progress would be mixed with those of the backfill.

    Raises:
        ConfigError: it has; says what was found and what to do.
    """
    known = cluster.partitions()
    cure = f'Give the program another application id; or, to go on with a backfill, resume it; or delete what "{topology.application_id}" has.'
    for topic in topology.internal_topics:
        for number in range(known.get(topic.name, 0)):
            place = TopicPartition(topic.name, number)
            if cluster.end_offset(place) > cluster.start_offset(place):
                raise ConfigError(f"{place} has records: the application has run, or a backfill has. {cure}")
    places = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count if topic in known else 0)]
    for place, (offset, metadata) in offsets.committed(places).items():
        if Committed.parse(offset, metadata).term != BACKFILLED:
            raise ConfigError(f"the group has committed offset {offset} of {place}: the application has run. {cure}")


def oldest_ms(topology: Topology, config: Config) -> tuple[tuple[str, int], ...]:
    """Return, for the stores whose changelogs forget, the earliest timestamp that they would keep now."""
    forgetful = {
        changelog_topic(store.name): store.name for part in topology.subtopologies for store in part.stores if store.logged and store.retention_ms
    }
    now, cluster = int(time.time() * 1000), cluster_of(config)
    try:
        kept = {
            store: int(cluster.topic_config(internal_topic(topology.application_id, topic))["retention.ms"]) for topic, store in forgetful.items()
        }
    finally:
        cluster.close()
    return tuple((store, now - kept_ms) for store, kept_ms in kept.items() if kept_ms >= 0)
