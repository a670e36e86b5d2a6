"""Runs a topology over history in Spark, with the program and the tasks of a live
application, which can continue from there.

    plan      the cut, and the stages up to it (`preparation.py`)
    stages    one sub-topology after the other: history -> rows of tasks -> tasks -> forwarded records, and results
    publish   snapshot and group offsets, once all stages are done: a live application continues at the cut

Invariant: before `publish`, nothing changes that a live application reads, except
changelogs and outputs that the user asked for.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.common.config import Config
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.spark import plan as planning
from coopstreams.spark import table_outputs
from coopstreams.spark.changelog_repair import Repair
from coopstreams.spark.history.arrow_rows import (
    BEGIN,
    RESULTS,
    ROUTED,
    ddl,
)
from coopstreams.spark.history.sources import (
    FRAMES,
    History,
    TableHistory,
    forwarded_frame,
    numbered_frame,
    partitioned,
    table_frame,
)
from coopstreams.spark.native.sql_eligibility import translated
from coopstreams.spark.native_frames import Folding
from coopstreams.spark.native_task import NativeWork
from coopstreams.spark.outbox import announce
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.preparation import (
    Options,
    as_planned,
    begin,
    load_plan,
    oldest_ms,
)
from coopstreams.spark.reached_times import Clocks
from coopstreams.spark.routing import Routing
from coopstreams.spark.spark_session import session_or_local
from coopstreams.spark.spark_task import TaskResult, TaskWork
from coopstreams.spark.table_outputs import (
    absolute,
    keep_rows,
    rows_of,
    stage_name,
)
from coopstreams.spark.topic_ids import check_resumable
from coopstreams.spark.workers.shipping import plain_function
from coopstreams.spark.workers.stage_progress import ProgressWatcher, TaskProgress
from coopstreams.state.storage import Storage
from coopstreams.tasks.failure_handlers import may_drop
from coopstreams.topology import errors
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

log = logging.getLogger(__name__)

_RESULTS = msgspec.json.Decoder(TaskResult)
_ERRORS = re.compile(
    r"^coopstreams\.topology\.errors\.(\w+): (.+(?:\n(?!\s*$|\tat |Traceback |JVM stack|Driver stack).+)*)",
    re.MULTILINE,
)

OnProgress = Callable[[Stage, Sequence[TaskProgress]], None]


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A finished run: its plan, and the result of each task. `publish` puts it into
    effect.
    """

    plan: Plan
    results: tuple[TaskResult, ...]
    folder: str
    """The folder of the run, with its stages."""

    @property
    def records(self) -> int:
        """The number of records that tasks took from sources, without repartition
        topics.
        """
        return sum(
            count
            for result in self.results
            for topic, count in result.read.items()
            if topic in self.plan.cut
        )

    @property
    def unwritten(self) -> dict[str, int]:
        """The number of records for each topic that the run left out because `outputs`
        is `none`.

        Late records and dead letters are included. Stages that Spark SQL folds
        (`native`) make no outputs, and are not counted.
        """
        if self.plan.outputs != "none":
            return {}
        internal = {topic for stage in self.plan.stages for topic, _ in stage.forwarded}
        written = sum(
            (Counter(result.written) for result in self.results),
            Counter[str](),
        )
        return {
            topic: count for topic, count in written.items() if topic not in internal
        }

    def outputs(self, spark: SparkSession) -> DataFrame:
        """Return the records that a live application would have written to topics,
        including dead letters.

        Shape: topic, key, value, timestamp, headers as in Kafka, and the columns that
        order them: time, subtopology, task, number.

        Raises:
            ConfigError: the run had other outputs than `table`.
        """
        return table_outputs.frame(spark, self.plan, self.folder)


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
    """Run the topology over history and return the results; `publish` lets a live
    application continue from there.

    `spark`: None makes a local session for the duration of the run. `sources`: by
    topic; other topics are read from Kafka up to now. `resume`: the name of a run that
    did not finish, which the log and a note of its error have. It keeps its plan, and
    its finished stages do not run again. `on_stage` is called when a stage begins,
    `on_progress` about once a second, on another thread, with the progress of its
    tasks.

    Raises:
        TopologyError, ConfigError: found before anything runs.
        LogError: Kafka refused a request, or records of the plan are gone.
        ProcessingError: a record failed and its handler says `fail`.
    """
    config = Config.of(settings, topology.application_id)
    wanted = options or Options()
    histories = dict(sources or {})
    plan = (
        begin(topology, config, histories, wanted)
        if resume is None
        else taken_up(topology, config, wanted.work, resume)
    )
    with (
        named(plan, wanted.work),
        session_or_local(spark, f"backfill of {plan.application}") as session,
    ):
        return carry_out(
            session,
            topology,
            config,
            plan,
            histories,
            wanted.work,
            on_stage,
            on_progress,
        )


@contextmanager
def named(plan: Plan, work: str) -> Iterator[None]:
    """Log the name of a run, which `resume` needs, and add it as a note to an error."""
    log.info("run %s of %s; its files are in %s", plan.run, plan.application, work)
    try:
        yield
    except BaseException as error:
        error.add_note(
            f'The run is not done. What has not run yet is done with resume="{plan.run}", work="{work}".'
        )
        raise


def taken_up(
    topology: Topology,
    config: Config,
    work: str,
    run: str,
    *,
    rebuild: bool = False,
) -> Plan:
    """Return the plan of a run that is resumed: of a backfill, or with `rebuild` of a
    rebuild from the source.

    Raises:
        ConfigError: there is no such run, it is of the other kind or another topology,
        or topics of its plan are gone.
    """
    plan = load_plan(work, run, topology, config, rebuild=rebuild)
    check_resumable(config, plan, finished=finished(plan, work))
    return plan


def finished(plan: Plan, work: str) -> bool:
    """Return whether all stages of a plan have run."""
    run = Storage(f"{work}/{plan.run}")
    return all(rows_of(run, stage) is not None for stage in plan.stages)


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
    """Run the stages of a plan that have not run yet, in the folder `work`; return the
    results of all tasks.

    Raises:
        ProcessingError, LogError, ...: the error of a task; `--resume` continues where
        it failed. PySparkException: Spark itself failed.
    """
    running = as_planned(topology, config, plan)
    if plan.seed and not finished(plan, work):
        announce(config, plan.run, plan.tasks)
    run = _Run(running, config, plan, histories, work, on_progress)
    try:
        with schemas_bound(
            running,
            config,
        ):  # as they are sent, the workers ask the same registry
            went = [(stage, run.stage(spark, stage, on_stage)) for stage in plan.stages]
        results = tuple(
            result for stage, each in went if stage.is_last for result in each
        )
        if plan.table is not None:
            table_outputs.write(spark, plan, run.folder, Storage(work))
        return Backfilled(plan, results, run.folder)
    except PySparkException as error:
        raise error_of_task(error) from error


class _Run:
    """The execution of a plan, stage by stage."""

    def __init__(
        self,
        topology: Topology,
        config: Config,
        plan: Plan,
        histories: Mapping[str, History],
        work: str,
        on_progress: OnProgress | None,
    ) -> None:
        self._topology = topology
        self._config = config
        self._plan = plan
        self._histories = histories
        self._on_progress = on_progress
        self._oldest_ms = oldest_ms(topology, config, plan) if plan.seed else ()
        self._reached_ms = NO_STREAM_TIME
        self._clocks = Clocks(topology, plan)
        self.folder = f"{absolute(work)}/{plan.run}"
        self._place = Storage(self.folder)

    def stage(
        self,
        spark: SparkSession,
        stage: Stage,
        on_stage: Callable[[Stage], None] | None,
    ) -> list[TaskResult]:
        """Run the tasks of a stage, unless they have run; return their results."""
        if (name := rows_of(self._place, stage)) is not None:
            return self._reached(stage, self._results(spark, stage, name))
        if on_stage is not None:
            on_stage(stage)
        name = f"{stage_name(stage)}-{uuid4().hex[:8]}"
        with self._watched(stage) as reports:
            work, rows = self._folded(spark, stage, reports) or (
                self._work(stage, reports),
                self._routed(spark, stage, reports),
            )
            # Written, not cached: a lost cache would run the tasks again.
            rows.mapInArrow(plain_function(work), ddl(RESULTS)).write.parquet(
                f"{self.folder}/{name}"
            )
        found = self._results(spark, stage, name)
        # Last: from now on the stage has run.
        keep_rows(self._place, stage, name)
        return self._reached(stage, found)

    def _reached(self, stage: Stage, results: list[TaskResult]) -> list[TaskResult]:
        """Store the times that these tasks have reached, for later stages; return their
        results.
        """
        self._clocks.ended(stage, results)
        times = [time for each in results for time in each.stream_times.values()]
        self._reached_ms = max([self._reached_ms, *times])
        return results

    def _results(
        self,
        spark: SparkSession,
        stage: Stage,
        name: str,
    ) -> list[TaskResult]:
        """Return the results of a stage's tasks, whose rows were written under this
        name.
        """
        rows = spark.read.parquet(f"{self.folder}/{name}")
        found = rows.where("result is not null").select("task", "result").collect()
        if missing := planning.gaps(stage, [row.task for row in found]):
            raise ConfigError(
                f"{stage.name}: tasks {missing} gave no result, or several. Do the driver and all workers share "
                f"{self.folder}, and is spark.speculation off?"
            )
        return [_RESULTS.decode(row.result) for row in found]

    @contextmanager
    def _watched(self, stage: Stage) -> Iterator[str | None]:
        """Yield the folder for progress reports, which are passed to `on_progress`;
        None if there is no such callback.
        """
        if self._on_progress is None:
            yield None
            return
        # A name of its own: reports of an earlier driver must not be read.
        reports = f"{self.folder}/progress-{stage.subtopology}-{stage.round}-{uuid4().hex[:8]}"
        with ProgressWatcher(reports, partial(self._on_progress, stage)):
            yield reports

    def _work(self, stage: Stage, reports: str | None) -> TaskWork:
        """Return the work of the tasks of a stage. `reports`: see `_watched`."""
        repair = (
            None if self._plan.rebuild is None else Repair.of(stage, self._plan.rebuild)
        )
        counts = stage.is_last and (self._plan.rebuild is None or repair is not None)
        return TaskWork(
            topology=self._topology,
            subtopology=stage.subtopology,
            ranges=stage.ranges,
            run=self._plan.run,
            first=stage.first,
            config=self._config,
            forwarded=stage.forwarded,
            outputs=self._plan.outputs if stage.is_last else "none",
            seed=self._plan.seed and counts,
            repair=repair,
            oldest_ms=self._oldest_ms,
            reached_ms=self._reached_ms,
            snapshots=self._plan.snapshots if counts else None,
            cut={
                topic: bounds
                for topic, bounds in self._plan.cut.items()
                if topic not in self._plan.tables
            },
            global_tables=self._plan.global_tables,
            reports=reports,
            round=stage.round,
            clocks=self._clocks.of(stage),
        )

    def _folded(
        self,
        spark: SparkSession,
        stage: Stage,
        reports: str | None,
    ) -> tuple[NativeWork, DataFrame] | None:
        """Return the work that makes state of what Spark SQL has folded in a stage, and
        the numbers of its tasks as rows; None if Python has to run the stage.
        """
        aggregations = (
            translated(
                self._topology.subtopologies[stage.subtopology],
                self._plan.outputs,
            )
            if stage.native
            else ""
        )
        if isinstance(aggregations, str):
            return None
        (topic,) = stage.topics
        table = self._histories.get(topic) if topic in self._plan.tables else None
        rows = (
            numbered_frame(table, topic, stage.partitions)
            if isinstance(table, TableHistory)
            else None
        )
        numbered = rows is not None or self._numbered(topic)
        folding = Folding(
            stage,
            aggregations,
            numbered,
            f"{self.folder}/{stage_name(stage)}-native",
        )
        folded = folding.run(
            lambda ordered: rows or self._history(spark, topic, ordered=ordered)
        )
        if folded is None:
            return None
        tasks = spark.createDataFrame(
            [(task,) for task in range(stage.tasks)],
            "task int",
        )
        work = NativeWork(self._work(stage, reports), folding.folder, folded)
        return work, tasks.repartitionById(stage.tasks, "task")

    def _numbered(self, topic: str) -> bool:
        """Return whether the records of a topic come from Kafka, with its offsets."""
        return topic in self._plan.cut and topic not in self._plan.tables

    def _routed(
        self,
        spark: SparkSession,
        stage: Stage,
        reports: str | None,
    ) -> DataFrame:
        """Return the rows of a stage's tasks, from all their sources, in processing
        order.
        """
        begins = [
            (task, source, -1, -1, BEGIN, *([None] * (len(ROUTED) - 5)))
            for task in stage.running
            for source in range(len(stage.topics))
        ]
        rows = spark.createDataFrame(begins, ddl(ROUTED))
        for topic in stage.topics:
            numbered = self._numbered(topic)
            cut = self._plan.cut[topic] if numbered else None
            committed = (
                self._plan.rebuild.committed[topic]
                if numbered and self._plan.rebuild is not None
                else None
            )
            routing = Routing(
                topology=self._topology,
                subtopology=stage.subtopology,
                topic=topic,
                ranges=stage.ranges,
                numbered=numbered,
                cut=cut,
                reports=reports,
                round=stage.round,
                committed=committed,
                may_drop=may_drop(self._config),
            )
            history = self._history(spark, topic)
            # Empty lists in place of null: see `rows`.
            records = history.withColumn(
                "headers",
                F.coalesce(
                    "headers",
                    F.array().cast(history.schema["headers"].dataType),
                ),
            )
            rows = rows.unionAll(
                records.mapInArrow(plain_function(routing), ddl(ROUTED))
            )
        if stage.only is not None:
            rows = rows.where(rows.task.isin(*stage.only))
        return rows.repartitionById(stage.tasks, "task").sortWithinPartitions(
            "time",
            "source",
            "offset",
        )

    def _history(
        self,
        spark: SparkSession,
        topic: str,
        *,
        ordered: bool = True,
    ) -> DataFrame:
        """Return the records of a topic: what earlier stages have forwarded, those in
        Kafka up to the cut, or a table. `ordered`: whether the order in a partition
        counts.
        """
        partitions = self._plan.partitions[topic]
        history = self._histories.get(topic)
        if topic not in self._plan.cut:
            writers = [
                stage for stage in self._plan.stages if topic in dict(stage.forwarded)
            ]
            folders = [
                f"{self.folder}/{rows_of(self._place, stage)}" for stage in writers
            ]
            return forwarded_frame(spark, folders, topic, partitions)
        if topic not in self._plan.tables:
            frame = FRAMES[self._plan.connector]
            bounds = self._plan.cut[topic]
            # `Routing` advances time by them, or drops them.
            return frame(spark, self._config.client, topic, bounds, time_marks=ordered)
        if not isinstance(history, TableHistory):
            raise ConfigError(
                f'the run has the history of "{topic}" from a table: give it again, the very same, to resume'
            )
        return (
            table_frame(history, topic, partitions)
            if ordered
            else partitioned(history, topic, partitions)
        )


def error_of_task(error: PySparkException) -> Exception:
    """Return the error that a task raised, read from the text of its traceback, which
    is all that Spark reports; the given error, if none of ours is in it.

    A message may have several lines, as that of a validation has. An empty line or the
    JVM's stack ends it.
    """
    told = _ERRORS.findall(str(error))
    name, text = told[-1] if told else ("", "")
    kind: Any = getattr(errors, name, None)
    return error if kind is None else kind(text)
