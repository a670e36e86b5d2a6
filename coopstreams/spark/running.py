"""A topology over history, in Spark: the same program, the same tasks, the same answers, and a live application that goes on behind it.

    plan      the cut is taken, topics are checked; written down, so that `resume` decides nothing anew
    stages    a sub-topology after the other: history -> rows of tasks -> tasks -> what they forward, and how they went
    publish   snapshot and group offsets, once everything is there: from now on a live application goes on at the cut

Invariant: nothing that a live application looks at changes before `publish`, but for changelogs and outputs that the user asked for.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coopstreams.commit.record import Committed
from coopstreams.config import Config
from coopstreams.log.kafka_log import KafkaLog
from coopstreams.log.kafka_offsets import KafkaOffsets
from coopstreams.spark import plan as planning
from coopstreams.spark import table_outputs
from coopstreams.spark.history import FRAMES, History, KafkaHistory, TableHistory, cut_of, forwarded_frame, partitioned, table_frame
from coopstreams.spark.native import translated
from coopstreams.spark.native_frames import Folding
from coopstreams.spark.native_task import NativeWork
from coopstreams.spark.outbox import cluster_of, marks_spec
from coopstreams.spark.plan import Connector, Outputs, Plan, Stage
from coopstreams.spark.progress import TaskProgress, Watch
from coopstreams.spark.routing import Routing
from coopstreams.spark.rows import BEGIN, RESULTS, ROUTED, ddl
from coopstreams.spark.session import session_or_local
from coopstreams.spark.shipping import ship
from coopstreams.spark.table_outputs import absolute, stage_folder
from coopstreams.spark.task import TaskResult, TaskWork
from coopstreams.state.places import Place
from coopstreams.state.snapshot import new_run
from coopstreams.tasks.topics import prepare_topics
from coopstreams.topology import errors
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.naming import changelog_topic, internal_topic
from coopstreams.topology.nodes import Topology
from coopstreams.topology.partitions import check_partitions

log = logging.getLogger(__name__)

BACKFILLED = 0
"""The term of the offsets that a backfill leaves: every live task has a higher one."""

Batches = Iterable[pa.RecordBatch]
OnProgress = Callable[[Stage, Sequence[TaskProgress]], None]


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


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A run that is done: its plan, and how each task went. `publish` lets it count."""

    plan: Plan
    results: tuple[TaskResult, ...]
    folder: str
    """Of the run, where its stages lie."""

    @property
    def records(self) -> int:
        """How many records the tasks took from sources, repartition topics left out."""
        return sum(count for result in self.results for topic, count in result.read.items() if topic in self.plan.cut)

    def outputs(self, spark: SparkSession) -> DataFrame:
        """Return what a live application would have written to topics, dead letters too; the run must have been asked for `table`.

        Shape: topic, key, value, timestamp, headers as in Kafka, and what orders them: time, subtopology, task, number.

        Raises:
            ConfigError: the run had other outputs.
        """
        return table_outputs.frame(spark, self.plan, self.folder)


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


def backfill(
    topology: Topology,
    settings: Config | Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    sources: Mapping[str, History] | None = None,
    options: Options | None = None,
    resume: str | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Backfilled:
    """Run the topology over history and return how it went; `publish` lets a live application go on from there.

    `spark`: None makes a session on this machine for the time being. `sources`: by topic; one that is not named is read from Kafka up to now.
    `resume`: the name of a run that did not come to its end: what it decided holds, stages that it finished are not run again.
    `on_stage` hears of a stage that begins, `on_progress` about once a second, on another thread, how far its tasks are.

    Raises:
        TopologyError, ConfigError: found before anything runs.
        LogError: Kafka refused something, or records that the plan counts on are gone.
        ProcessingError: a record failed and its handler says `fail`.
    """
    config = Config.of(settings, topology.application_id)
    wanted, histories = options or Options(), dict(sources or {})
    plan = begin(topology, config, histories, wanted) if resume is None else load_plan(wanted.work, resume, topology)
    with session_or_local(spark, f"backfill of {plan.application}") as session:
        return carry_out(session, topology, config, plan, histories, wanted.work, on_stage, on_progress)


def begin(topology: Topology, config: Config, histories: Mapping[str, History], options: Options) -> Plan:
    """Return the plan of a new run, written down in its folder."""
    plan = make_plan(topology, config, histories, options)
    Place(options.work).write(f"{plan.run}/plan.json", plan.to_json())
    return plan


def carry_out(
    spark: SparkSession,
    topology: Topology,
    config: Config,
    plan: Plan,
    histories: Mapping[str, History],
    work: str,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Backfilled:
    """Run the stages of a plan that have not run yet, in the folder `work`; return how all tasks went.

    Raises:
        ProcessingError, LogError, ...: what a task raised; `--resume` goes on where it failed.
        PySparkException: Spark itself failed.
    """
    if plan.seed:
        cluster = cluster_of(config)
        try:
            cluster.create_topics([marks_spec(plan.application, plan.run, plan.tasks, config["replication.factor"])])
        finally:
            cluster.close()
    run = _Run(topology, config, plan, histories, work, on_progress)
    try:
        results = tuple(result for stage in plan.stages for result in run.stage(spark, stage, on_stage))
        if plan.table is not None:
            table_outputs.write(spark, plan, run.folder, Place(work))
        return Backfilled(plan, results, run.folder)
    except PySparkException as error:
        raise _ours(error) from error


def load_plan(work: str, run: str, topology: Topology) -> Plan:
    """Return the plan of a run.

    Raises:
        ConfigError: there is no such run here, or it is of another topology.
    """
    data = Place(work).read(f"{run}/plan.json")
    if data is None:
        raise ConfigError(f'there is no run "{run}" in {work}')
    plan = Plan.from_json(data)
    if (plan.application, plan.topology) != (topology.application_id, planning.digest(topology)):
        raise ConfigError(f'run "{run}" is of another topology, or of an older form of "{plan.application}": start a new one')
    return plan


class _Run:
    """Carries out a plan."""

    def __init__(
        self, topology: Topology, config: Config, plan: Plan, histories: Mapping[str, History], work: str, on_progress: OnProgress | None
    ) -> None:
        self._topology = topology
        self._shipped = ship(topology)
        self._config = config
        self._plan = plan
        self._histories = histories
        self._on_progress = on_progress
        self._place = Place(work)
        self._oldest_ms = _oldest_ms(topology, config) if plan.seed else ()
        self.folder = f"{absolute(work)}/{plan.run}"

    def stage(self, spark: SparkSession, stage: Stage, on_stage: Callable[[Stage], None] | None) -> list[TaskResult]:
        """Run the tasks of a sub-topology, unless they have run; return how they went."""
        folder = self._output(stage)
        if self._place.read(f"{self._plan.run}/stage-{stage.subtopology}/_SUCCESS") is None:
            if on_stage is not None:
                on_stage(stage)
            with self._watched(stage) as reports:
                work, rows = self._folded(spark, stage, reports) or (self._work(stage, reports), self._routed(spark, stage, reports))
                # Written, not cached: a cache that is lost would run the tasks again.
                rows.mapInArrow(_function(work), ddl(RESULTS)).write.mode("overwrite").parquet(folder)
        found = spark.read.parquet(folder).where("result is not null").select("task", "result").collect()
        if missing := planning.gaps(stage, [row.task for row in found]):
            raise RuntimeError(
                f"sub-topology {stage.subtopology}: tasks {missing} gave no result, or several; run {self._plan.run} is of no use. "
                f"Do the driver and all workers share {self.folder}?"
            )
        return [msgspec.json.decode(row.result, type=TaskResult) for row in found]

    @contextmanager
    def _watched(self, stage: Stage) -> Iterator[str | None]:
        """Yield where the tasks of a stage say how far they are, which is passed on; None if nobody wants to know."""
        if self._on_progress is None:
            yield None
            return
        reports = f"{self.folder}/progress-{stage.subtopology}-{uuid4().hex[:8]}"  # those of an earlier driver are not ours
        with Watch(reports, partial(self._on_progress, stage)):
            yield reports

    def _work(self, stage: Stage, reports: str | None) -> TaskWork:
        return TaskWork(
            shipped=self._shipped,
            subtopology=stage.subtopology,
            ranges=stage.ranges,
            run=self._plan.run,
            first=stage.first,
            config=self._config,
            forwarded=stage.forwarded,
            outputs=self._plan.outputs,
            seed=self._plan.seed,
            oldest_ms=self._oldest_ms,
            snapshots=self._plan.snapshots,
            cut={topic: bounds for topic, bounds in self._plan.cut.items() if topic not in self._plan.tables},
            global_tables=self._plan.global_tables,
            reports=reports,
        )

    def _folded(self, spark: SparkSession, stage: Stage, reports: str | None) -> tuple[NativeWork, DataFrame] | None:
        """Return what Spark SQL made of a stage: its tasks, and their rows. None: it is Python's."""
        aggregations = translated(self._topology.subtopologies[stage.subtopology], self._plan.outputs) if stage.native else ""
        if isinstance(aggregations, str):
            return None
        (topic,) = stage.topics
        folding = Folding(stage, aggregations, self._numbered(topic), f"{self._output(stage)}-native")
        folded = folding.run(spark, lambda ordered: self._history(spark, topic, ordered=ordered))
        if folded is None:
            return None
        facts, rows = folded
        return NativeWork(self._work(stage, reports), facts), rows.repartitionById(stage.tasks, "task").sortWithinPartitions("store", "key")

    def _numbered(self, topic: str) -> bool:
        return topic in self._plan.cut and topic not in self._plan.tables

    def _routed(self, spark: SparkSession, stage: Stage, reports: str | None) -> DataFrame:
        """Return the rows of a stage's tasks, from all their sources, in the order in which they take them."""
        begins = [(task, source, -1, BEGIN, *([None] * (len(ROUTED) - 4))) for task in range(stage.tasks) for source in range(len(stage.topics))]
        rows = spark.createDataFrame(begins, ddl(ROUTED))
        for topic in stage.topics:
            numbered = self._numbered(topic)
            cut = self._plan.cut[topic] if numbered else None
            routing = Routing(self._shipped, stage.subtopology, topic, stage.ranges, numbered, cut, reports)
            rows = rows.unionAll(self._history(spark, topic).mapInArrow(_function(routing), ddl(ROUTED)))
        return rows.repartitionById(stage.tasks, "task").sortWithinPartitions("stream_time", "source", "offset")

    def _history(self, spark: SparkSession, topic: str, *, ordered: bool = True) -> DataFrame:
        partitions, history = self._plan.partitions[topic], self._histories.get(topic)
        if topic not in self._plan.cut:
            writers = [stage for stage in self._plan.stages if topic in dict(stage.forwarded)]
            return forwarded_frame(spark, [self._output(stage) for stage in writers], topic, partitions)
        if topic not in self._plan.tables:
            return FRAMES[self._plan.connector](spark, self._config.client, topic, self._plan.cut[topic])
        if not isinstance(history, TableHistory):
            raise ConfigError(f'the run has the history of "{topic}" from a table: give it again, the very same, to resume')
        return table_frame(history, topic, partitions) if ordered else partitioned(history, partitions)

    def _output(self, stage: Stage) -> str:
        return stage_folder(self.folder, stage)


def _function(work: Callable[[Batches], Iterator[pa.RecordBatch]]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return a plain function, which is what Spark takes."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from work(batches)

    return run


def _ours(error: PySparkException) -> Exception:
    """Return what a task raised: Spark hands over its traceback as text."""
    said = re.search(r"^coopstreams\.topology\.errors\.(\w+): (.+)$", str(error), re.MULTILINE)
    kind: Any = getattr(errors, said[1], None) if said is not None else None
    return error if said is None or kind is None else kind(said[2])


def _oldest_ms(topology: Topology, config: Config) -> tuple[tuple[str, int], ...]:
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
