"""Metrics of an instance, for Prometheus.

Threads call one method per batch, never per record: `metrics.processed(task,
len(batch))`. Each series is looked up once and kept. Counters are by sub-topology: so
they never go back while the process lives, although tasks come and go and key ranges
are cut anew. Gauges are by task, and removed when it closes: so a split or a move
leaves no stale lag behind.

Invariant: every instance has a registry of its own; nothing is global, so several
instances live in one process (tests do).
A new metric is an attribute of `Metrics` and, by `python -m tests.docs.reference`, a
row of docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

from coopstreams.topology.task_id import TaskId

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.text()`."""

COMMIT_BUCKETS = (
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)
LATENCY_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)
QUERY_BUCKETS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
)
"""The bounds of the buckets of query times. Units of all buckets: seconds."""

GLOBAL_TABLES = "global"
"""The label in the place of a sub-topology for records that global tables drop."""

TASK_STATES = ("waiting", "restoring", "running", "closing")

M = TypeVar("M", bound=MetricWrapperBase)
R = TypeVar("R")


class _Family(Generic[M]):
    """The series of one metric, cached: a look-up takes no registry lock and formats no
    labels.

    The first label is the task's if `by_task`; `forget` then removes all series of a
    task.
    """

    def __init__(self, metric: M, *, by_task: bool = False) -> None:
        self._metric = metric
        self._series: dict[Hashable, M] = {}
        self._by_task = by_task

    def of(self, *labels: Hashable) -> M:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._metric.labels(
                *(str(label) for label in labels)
            )
        return series

    def values(self) -> list[tuple[tuple[str, ...], float]]:
        """Return the labels and the value of each series; for a histogram, the sum of
        its observations.
        """
        named = {"", "_total", "_sum"}
        return [
            (tuple(sample.labels.values()), sample.value)
            for family in self._metric.collect()
            for sample in family.samples
            if sample.name.removeprefix(family.name) in named
        ]

    def forget(self, task: TaskId) -> None:
        if not self._by_task:
            return
        for labels in [
            labels
            for labels in list(self._series)
            if isinstance(labels, tuple) and labels[0] == task
        ]:
            # In this order: who looks a series up in between may find it removed, but
            # nobody keeps it that way.
            self._metric.remove(*(str(label) for label in labels))
            self._series.pop(labels, None)


class TopicCount(msgspec.Struct, frozen=True):
    """The number of records of a topic that a sub-topology has read, or written."""

    subtopology: str
    topic: str
    records: int


class DropCount(msgspec.Struct, frozen=True):
    """The number of records that a node of a sub-topology dropped for one reason."""

    subtopology: str
    node: str
    reason: str
    records: int


class LetterCount(msgspec.Struct, frozen=True):
    """The number of records of a sub-topology that went to the dead-letter topic."""

    subtopology: str
    records: int


class Totals(msgspec.Struct, frozen=True):
    """The counters of a process since it started, summed over its threads."""

    commits: int = 0
    commit_seconds: float = 0.0
    aborts: int = 0
    failed_stream_threads: int = 0
    consumed: tuple[TopicCount, ...] = ()
    produced: tuple[TopicCount, ...] = ()
    dropped: tuple[DropCount, ...] = ()
    dead_letters: tuple[LetterCount, ...] = ()


class Metrics:
    """Counters, gauges and histograms of one instance. Thread-safe; a call costs about
    a microsecond.
    """

    def __init__(self, application_id: str, instance_id: str) -> None:
        self.registry = CollectorRegistry()
        self._families: list[_Family[Any]] = []
        info = Gauge(
            "coopstreams_instance_info",
            "1: which application and instance this is.",
            ["application", "instance"],
            registry=self.registry,
        )
        info.labels(application_id, instance_id).set(1)
        self._consumed = self._counter(
            "consumed_records",
            "Records that tasks were handed.",
            "subtopology",
            "topic",
        )
        self._redelivered = self._counter(
            "redelivered_records",
            "Records that a share group delivered again: who had them before did not acknowledge them.",
            "subtopology",
            "topic",
        )
        self._acquired = self._gauge(
            "acquired_records",
            "Records that a share thread has acquired and not acknowledged.",
            "thread",
        )
        self._processed = self._counter(
            "processed_records",
            "Records that tasks have processed.",
            "subtopology",
        )
        self._produced = self._counter(
            "produced_records",
            "Records that tasks have written, changelogs included.",
            "subtopology",
            "topic",
        )
        says = (
            "Records left out, by node and reason: late, null-key, deserialization, ..."
        )
        self._dropped = self._counter(
            "dropped_records",
            says,
            "subtopology",
            "node",
            "reason",
        )
        self._time_marks = self._counter(
            "time_marks",
            "Advances of the stream time of a silent partition (idle_advance).",
            "subtopology",
            "topic",
        )
        self._clock_marks = self._counter(
            "clock_marks",
            "Marks by which tasks have told the readers of a repartition topic their time, one to each partition.",
            "subtopology",
            "topic",
        )
        self._clock_lag = self._gauge(
            "clock_lag_seconds",
            "How far the clock by which windows close is behind the newest record that a task was handed.",
            "task",
            "topic",
        )
        self._dead_letters = self._counter(
            "dead_letters",
            "Records that failed and went to the dead-letter topic.",
            "subtopology",
        )
        self._retries = self._counter(
            "call_retries",
            "Calls of asynchronous operators that failed and were made again; of a batch, one.",
            "subtopology",
        )
        self._calls = self._gauge(
            "calls_in_flight",
            "Calls of asynchronous operators that are being made, batches counted as one.",
            "task",
        )
        self._waiting_calls = self._gauge(
            "calls_waiting",
            "Calls that wait for one of their key, or for a place among max_in_flight.",
            "task",
        )
        self._oldest_call = self._gauge(
            "oldest_call_seconds",
            "How long the first record of a task has waited for its calls.",
            "task",
        )
        self._restored = self._counter(
            "restored_records",
            "Changelog records of a task's key range that were read to restore a store.",
            "subtopology",
            "store",
        )
        self._fetched = self._counter(
            "fetched_bytes",
            "Bytes of snapshots that have come.",
            "subtopology",
            "store",
        )
        self._to_fetch = self._gauge(
            "fetch_remaining_bytes",
            "Bytes of a snapshot yet to come until it can be restored.",
            "task",
            "store",
        )
        self._snapshot_keys = self._counter(
            "snapshot_keys",
            "Keys that came from a snapshot instead of a changelog.",
            "subtopology",
            "store",
        )
        says = (
            "Records between what a task has committed and the end of its partition, those of other key ranges "
            "included."
        )
        self._lag = self._gauge("lag_records", says, "task", "topic")
        self._remaining = self._gauge(
            "restore_remaining_records",
            "Changelog records yet to be read until a store is restored.",
            "task",
            "store",
        )
        self._standby_lag = self._gauge(
            "standby_lag_records",
            "Changelog records that a standby of a task on this instance is behind, those of other key ranges included.",
            "task",
            "store",
        )
        self._standbys = self._gauge(
            "standbys",
            "Standbys on this instance, by kind: those of tasks that move here once it has caught up are warm-ups.",
            "kind",
        )
        self._tasks = self._gauge("tasks", "Tasks of this instance, by state.", "state")
        self._reasons = self._gauge(
            "health_reasons",
            "Reasons why this instance, or a task of it, is not healthy now, by code.",
            "code",
        )
        self._commits = self._counter(
            "commits",
            "Commits that counted, by stream thread.",
            "thread",
        )
        self._aborts = self._counter(
            "aborts",
            "Aborted commits, by stream thread; their records are processed again.",
            "thread",
        )
        self._failed_threads = self._counter(
            "failed_stream_threads",
            "Stream threads that died of an error, by number.",
            "thread",
        )
        self._rebalances = Counter(
            "coopstreams_rebalances",
            "Assignments received from the group.",
            registry=self.registry,
        )
        self._generation = Gauge(
            "coopstreams_generation",
            "Generation of the group that the last assignment belongs to.",
            registry=self.registry,
        )
        self._snapshot_created = Gauge(
            "coopstreams_snapshot_created_timestamp_seconds",
            "When the published snapshot was created, in seconds since the epoch; 0: this process has seen none.",
            registry=self.registry,
        )
        self._snapshot_bytes = Gauge(
            "coopstreams_snapshot_bytes",
            "Bytes of all files of the published snapshot.",
            registry=self.registry,
        )
        self._commit_seconds = self._histogram(
            "commit_latency_seconds",
            "From the flush of a commit until the state is written.",
            COMMIT_BUCKETS,
            "thread",
        )
        self._latency = self._histogram(
            "record_e2e_latency_seconds",
            "From the timestamp of a record until a sub-topology has processed it; of the first record of each batch.",
            LATENCY_BUCKETS,
            "subtopology",
        )
        self._queries = self._counter(
            "http_requests",
            "Requests answered, by route and status.",
            "route",
            "status",
        )
        self._query_seconds = self._histogram(
            "http_request_seconds",
            "Time to answer a request, by route.",
            QUERY_BUCKETS,
            "route",
        )
        for state in TASK_STATES:
            self._tasks.of(state).set(0)

    def consumed(
        self,
        task: TaskId,
        topic: str,
        records: int,
    ) -> None:
        """Count records that a task was handed."""
        self._consumed.of(task.subtopology, topic).inc(records)

    def redelivered(
        self,
        task: TaskId,
        topic: str,
        records: int,
    ) -> None:
        """Count records that a share group delivered again."""
        self._redelivered.of(task.subtopology, topic).inc(records)

    def acquired(self, thread: int, records: int) -> None:
        """Set how many records a share thread has acquired and not acknowledged."""
        self._acquired.of(thread).set(records)

    def processed(self, task: TaskId, records: int) -> None:
        """Count records that a task has processed."""
        self._processed.of(task.subtopology).inc(records)

    def produced(
        self,
        task: TaskId,
        topic: str,
        records: int,
    ) -> None:
        """Count records that a task has written to a topic."""
        self._produced.of(task.subtopology, topic).inc(records)

    def time_marked(self, task: TaskId, topic: str) -> None:
        """Count an advance of the stream time of a silent partition."""
        self._time_marks.of(task.subtopology, topic).inc()

    def clock_marked(
        self,
        task: TaskId,
        topic: str,
        marks: int,
    ) -> None:
        """Count marks that a task has written to a repartition topic."""
        self._clock_marks.of(task.subtopology, topic).inc(marks)

    def clock_lag(
        self,
        task: TaskId,
        topic: str,
        lag_ms: int,
    ) -> None:
        """Set how far the clock of a task is behind its newest record."""
        self._clock_lag.of(task, topic).set(lag_ms / 1000)

    def dropped(
        self,
        task: TaskId | None,
        node: str,
        reason: str,
        records: int = 1,
    ) -> None:
        """Count records dropped by a task or (None) by global tables.

        `reason` is one of a few fixed words, because each becomes a series.
        """
        self._dropped.of(
            GLOBAL_TABLES if task is None else task.subtopology,
            node,
            reason,
        ).inc(records)

    def dead_lettered(self, task: TaskId | None, records: int = 1) -> None:
        """Count records that went to the dead-letter topic, of a task or (None) of
        global tables.
        """
        self._dead_letters.of(GLOBAL_TABLES if task is None else task.subtopology).inc(
            records
        )

    def retried(self, task: TaskId, calls: int) -> None:
        """Count calls of asynchronous operators that were made again."""
        self._retries.of(task.subtopology).inc(calls)

    def calls(
        self,
        task: TaskId,
        in_flight: int,
        waiting: int,
        oldest_s: float,
    ) -> None:
        """Set how many calls of a task are in flight, how many wait, and how long (s)
        its first record has waited.
        """
        self._calls.of(task).set(in_flight)
        self._waiting_calls.of(task).set(waiting)
        self._oldest_call.of(task).set(oldest_s)

    def lag(
        self,
        task: TaskId,
        topic: str,
        records: int,
    ) -> None:
        """Set the lag of a task in a topic, in records."""
        self._lag.of(task, topic).set(records)

    def restored(
        self,
        task: TaskId,
        store: str,
        records: int,
        remaining: int | None = None,
    ) -> None:
        """Count changelog records read for a store.

        `remaining`: the records yet to be read. It is an upper bound, since compaction
        removes records.
        """
        self._restored.of(task.subtopology, store).inc(records)
        if remaining is not None:
            self._remaining.of(task, store).set(remaining)

    def standby_lag(
        self,
        task: TaskId,
        store: str,
        records: int,
    ) -> None:
        """Set how many changelog records a standby of a task is behind."""
        self._standby_lag.of(task, store).set(records)

    def snapshot(self, created_ms: int, size: int) -> None:
        """Set when the published snapshot was created, and its bytes."""
        self._snapshot_created.set(created_ms / 1000)
        self._snapshot_bytes.set(size)

    def standbys(self, quiet: int, warming: int) -> None:
        """Set how many standbys there are, and how many warm-ups."""
        self._standbys.of("standby").set(quiet)
        self._standbys.of("warm-up").set(warming)

    def standby_ended(self, task: TaskId) -> None:
        """Remove the gauges of a standby."""
        self._standby_lag.forget(task)

    def fetched(
        self,
        task: TaskId,
        store: str,
        bytes_: int,
        remaining: int,
    ) -> None:
        """Count downloaded bytes of a snapshot; set how many remain."""
        self._fetched.of(task.subtopology, store).inc(bytes_)
        self._to_fetch.of(task, store).set(remaining)

    def restored_from_snapshot(
        self,
        task: TaskId,
        store: str,
        keys: int,
    ) -> None:
        """Count keys restored from a snapshot."""
        self._snapshot_keys.of(task.subtopology, store).inc(keys)

    def committed(self, thread: int, seconds: float) -> None:
        """Count a commit, and observe its duration."""
        self._commits.of(thread).inc()
        self._commit_seconds.of(thread).observe(seconds)

    def latency(self, subtopology: int, seconds: float) -> None:
        """Observe the age of a batch's first record when the batch was processed."""
        self._latency.of(subtopology).observe(seconds)

    def aborted(self, thread: int) -> None:
        """Count an aborted commit."""
        self._aborts.of(thread).inc()

    def thread_failed(self, thread: int) -> None:
        """Count a stream thread that died."""
        self._failed_threads.of(thread).inc()

    def rebalanced(self, generation: int) -> None:
        """Count an assignment, and set its generation."""
        self._rebalances.inc()
        self._generation.set(generation)

    def tasks(self, counts: Mapping[str, int]) -> None:
        """Set how many tasks are in each state. A state that is not in `counts` has
        none.
        """
        for state in {*TASK_STATES, *counts}:
            self._tasks.of(state).set(counts.get(state, 0))

    def health(self, codes: Mapping[str, int]) -> None:
        """Set how many health reasons of each code there are."""
        for code, reasons in codes.items():
            self._reasons.of(code).set(reasons)

    def task_closed(self, task: TaskId) -> None:
        """Remove the gauges of a task that was closed."""
        for family in self._families:
            family.forget(task)

    def answered(
        self,
        route: str,
        status: int,
        seconds: float,
    ) -> None:
        """Count an HTTP request. `route` is the pattern, not the path."""
        self._queries.of(route, status).inc()
        self._query_seconds.of(route).observe(seconds)

    def totals(self) -> Totals:
        """Return the current counters, for people to read."""
        seconds = sum(seconds for _, seconds in self._commit_seconds.values())
        return Totals(
            commits=_sum(self._commits),
            commit_seconds=round(seconds, 6),
            aborts=_sum(self._aborts),
            failed_stream_threads=_sum(self._failed_threads),
            consumed=_counts(self._consumed, TopicCount),
            produced=_counts(self._produced, TopicCount),
            dropped=_counts(self._dropped, DropCount),
            dead_letters=_counts(self._dead_letters, LetterCount),
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, says: str, *labels: str) -> _Family[Counter]:
        return self._family(
            Counter(f"coopstreams_{name}", says, labels, registry=self.registry),
            labels,
        )

    def _gauge(self, name: str, says: str, *labels: str) -> _Family[Gauge]:
        return self._family(
            Gauge(f"coopstreams_{name}", says, labels, registry=self.registry),
            labels,
        )

    def _histogram(
        self, name: str, says: str, buckets: tuple[float, ...], *labels: str
    ) -> _Family[Histogram]:
        return self._family(
            Histogram(
                f"coopstreams_{name}",
                says,
                labels,
                registry=self.registry,
                buckets=buckets,
            ),
            labels,
        )

    def _family(self, metric: M, labels: tuple[str, ...]) -> _Family[M]:
        family = _Family(metric, by_task=labels[0] == "task")
        self._families.append(family)
        return family


def _counts(family: _Family[Counter], row: Callable[..., R]) -> tuple[R, ...]:
    """Return the series of a counter as rows, without zeros."""
    return tuple(row(*labels, int(n)) for labels, n in sorted(family.values()) if n)


def _sum(family: _Family[Counter]) -> int:
    return sum(int(value) for _, value in family.values())
