"""State of tasks that open, brought up to their changelogs, beside the tasks that run.

A changelog partition is read once for all tasks of an instance that restore from it; one that opens later joins the reading.

What a published snapshot has of them is taken from there first; the changelog is read from where that ends.

Invariant: a task is finished when every store of it stands at the end its changelog had when the task was added: whatever an
earlier owner committed lies below that (the caller has passed the barrier of the commit topic before). A store that is restored from its
source topic ends where the task begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from coopstreams.log.log import Log, Position
from coopstreams.state.database import Database
from coopstreams.state.pickup import Changelog, Snapshots
from coopstreams.state.restore import NO_STOPS, PickUp, Restore, RestoreProgress
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

BATCH = 10_000
PATIENCE_S = 0.3
"""A restore that does not move for so long is waiting for somebody's open transaction."""


@dataclass(slots=True)
class _Job:
    """One store of one partition, for the tasks that wait for it."""

    restore: Restore
    tasks: dict[TaskId, Mapping[KeyRange, int]] = field(default_factory=dict)
    """With where each of its ranges ends, if that is not at the target."""
    moved_at: float = field(default_factory=time.monotonic)

    def retarget(self, target: int | None = None) -> None:
        """Restore what these tasks wait for."""
        stops = {key_range: stop for each in self.tasks.values() for key_range, stop in each.items()}
        self.restore.retarget([task.range for task in self.tasks], target=max(stops.values(), default=target), stops=stops)


class Restoring:
    """The restores of one instance. Used by the opener thread; `progress` by any."""

    def __init__(
        self,
        log: Log,
        changelog: Callable[[StoreSpec], str],
        counted: Callable[[TaskId, str, int, int], None],
        snapshots: Snapshots | None,
        picked_up: Callable[[TaskId, str, int], None],
        listener: RestoreListener | None = None,
    ) -> None:
        self._log = log
        self._listener = listener or RestoreListener()
        self._changelog = changelog
        self._counted = counted
        self._snapshots = snapshots
        self._picked_up = picked_up
        self._reader = log.reader()
        self._jobs: dict[TopicPartition, _Job] = {}
        self._waiting: dict[TaskId, set[TopicPartition]] = {}
        self._done: list[TaskId] = []
        self._known: dict[str, Changelog] = {}
        """What the brokers said of changelogs since the last step: tasks that open together ask once."""

    def add(self, task: TaskId, stores: Iterable[StoreSpec], database: Database, positions: Mapping[str, Mapping[KeyRange, int]]) -> None:
        """Restore the stores of a task; it is `finished` at once if it has none that can be.

        `positions`: where the task begins, for each store that is restored from its source topic.

        Raises:
            LogError: the brokers did not answer; nothing was added.
        """
        topics = [(spec, spec.source or self._changelog(spec)) for spec in stores if spec.logged or spec.name in positions]
        changelogs = {TopicPartition(topic, task.partition): (spec, positions.get(spec.name, NO_STOPS)) for spec, topic in topics}
        bounds = {changelog: self._bounds(changelog, stops) for changelog, (_, stops) in changelogs.items()}
        pick_ups = {changelog: self._pick_up(task, changelog, spec, database) for changelog, (spec, _) in changelogs.items()}
        self._waiting[task] = set()  # only now: when the brokers do not answer, nothing is half added
        for changelog, (spec, stops) in changelogs.items():
            self._join(task, changelog, spec, database, *bounds[changelog], stops, pick_ups[changelog])
        if self._waiting[task]:
            self._place()
        else:
            self._finish(task)

    def cancel(self, task: TaskId) -> None:
        """Stop restoring for a task; what is in the database stays, with its checkpoint."""
        for changelog in self._waiting.pop(task, set()):
            job = self._jobs[changelog]
            del job.tasks[task]
            if job.tasks:
                job.retarget()
            else:
                del self._jobs[changelog]
                self._listener.on_restore_suspended(changelog, job.restore.spec.name, job.restore.progress().read)
        if task in self._done:
            self._done.remove(task)
        self._place()

    def step(self) -> bool:
        """Read on once; return whether there is more to do."""
        self._known.clear()
        if not self._jobs:
            return False
        for run in self._reader.fetch(BATCH, 0.005):
            job = self._jobs.get(run.partition)
            if job is None:
                continue
            before = job.restore.position
            job.restore.feed(run.columns, run.next_offset)
            if job.restore.position > before:
                job.moved_at = time.monotonic()
            progress = job.restore.progress()
            if len(run.columns):
                self._listener.on_batch_restored(run.partition, progress.store, progress.position, len(run.columns))
            for task in job.tasks:
                self._counted(task, progress.store, len(run.columns), progress.remaining)
        self._complete()
        return bool(self._jobs)

    def finished(self) -> list[TaskId]:
        """Return the tasks whose state is complete since the last call."""
        done, self._done = self._done, []
        return done

    def stuck(self) -> bool:
        """Whether some restore has not moved for a while: an open transaction keeps the end of its changelog back."""
        return any(time.monotonic() - job.moved_at > PATIENCE_S for job in self._jobs.values())

    def progress(self, task: TaskId) -> list[RestoreProgress]:
        """Return how far each store is that a task still waits for."""
        jobs = [self._jobs.get(changelog) for changelog in list(self._waiting.get(task, ()))]
        return [job.restore.progress() for job in jobs if job is not None]

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _bounds(self, changelog: TopicPartition, stops: Mapping[KeyRange, int]) -> tuple[int, int]:
        return self._log.start_offset(changelog), max(stops.values()) if stops else self._log.end_offset(changelog)

    def _join(
        self,
        task: TaskId,
        changelog: TopicPartition,
        spec: StoreSpec,
        database: Database,
        log_start: int,
        target: int,
        stops: Mapping[KeyRange, int],
        pick_up: PickUp | None,
    ) -> None:
        job = self._jobs.get(changelog)
        if job is None:
            job = _Job(Restore(database, spec, [task.range], log_start=log_start, target=target, stops=stops, pick_up=pick_up), {task: stops})
            if job.restore.done:
                return
            self._listener.on_restore_start(changelog, spec.name, job.restore.position, target)
        else:
            job.tasks[task] = stops
            job.retarget(target)
        self._jobs[changelog] = job
        self._waiting[task].add(changelog)

    def _pick_up(self, task: TaskId, changelog: TopicPartition, spec: StoreSpec, database: Database) -> PickUp | None:
        if self._snapshots is None or spec.source is not None:  # a snapshot ends where a changelog does
            return None
        topic = changelog.topic
        if topic not in self._known:
            self._known[topic] = Changelog(topic, self._log.topic_id(topic), self._log.partitions([topic]).get(topic, 0))
        return partial(self._snapshots.pick_up, database, spec, changelog.partition, self._known[topic], partial(self._picked_up, task, spec.name))

    def _place(self) -> None:
        self._reader.assign({changelog: Position(job.restore.position) for changelog, job in self._jobs.items()})

    def _complete(self) -> None:
        complete = [changelog for changelog, job in self._jobs.items() if job.restore.done]
        for changelog in complete:
            job = self._jobs.pop(changelog)
            self._listener.on_restore_end(changelog, job.restore.spec.name, job.restore.progress().read)
            for task in job.tasks:
                self._waiting[task].discard(changelog)
                if not self._waiting[task]:
                    self._finish(task)
        if complete:
            self._place()

    def _finish(self, task: TaskId) -> None:
        del self._waiting[task]
        self._done.append(task)
