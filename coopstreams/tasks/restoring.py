"""State of tasks that open, brought up to their changelogs, beside the tasks that run.

A changelog partition is read once for all tasks of an instance that restore from it; one that opens later joins the reading.

What a published snapshot has of them is taken from there first; the changelog is read from where that ends.

Invariant: a task is finished when every store of it stands at the end its changelog had when the task was added: whatever an
earlier owner committed lies below that (the caller has passed the barrier of the commit topic before).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from coopstreams.log.log import Log, Position
from coopstreams.state.database import Database
from coopstreams.state.pickup import Changelog, Snapshots
from coopstreams.state.restore import PickUp, Restore, RestoreProgress
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.nodes import SubTopology
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

BATCH = 10_000
PATIENCE_S = 0.3
"""A restore that does not move for so long is waiting for somebody's open transaction."""


@dataclass(slots=True)
class _Job:
    """One store of one partition, for the tasks that wait for it."""

    restore: Restore
    tasks: set[TaskId] = field(default_factory=set)
    moved_at: float = field(default_factory=time.monotonic)


class Restoring:
    """The restores of one instance. Used by the opener thread; `progress` by any."""

    def __init__(
        self,
        log: Log,
        changelog: Callable[[StoreSpec], str],
        counted: Callable[[TaskId, str, int, int], None],
        snapshots: Snapshots | None,
        picked_up: Callable[[TaskId, str, int], None],
    ) -> None:
        self._log = log
        self._changelog = changelog
        self._counted = counted
        self._snapshots = snapshots
        self._picked_up = picked_up
        self._reader = log.reader()
        self._jobs: dict[TopicPartition, _Job] = {}
        self._waiting: dict[TaskId, set[TopicPartition]] = {}
        self._done: list[TaskId] = []

    def add(self, task: TaskId, subtopology: SubTopology, database: Database) -> None:
        """Restore the stores of a task; it is `finished` at once if it has none with a changelog.

        Raises:
            LogError: the brokers did not answer; nothing was added.
        """
        changelogs = {TopicPartition(self._changelog(spec), task.partition): spec for spec in subtopology.stores if spec.logged}
        bounds = {changelog: (self._log.start_offset(changelog), self._log.end_offset(changelog)) for changelog in changelogs}
        pick_ups = {changelog: self._pick_up(task, changelog, spec, database) for changelog, spec in changelogs.items()}
        self._waiting[task] = set()  # only now: when the brokers do not answer, nothing is half added
        for changelog, spec in changelogs.items():
            self._join(task, changelog, spec, database, *bounds[changelog], pick_ups[changelog])
        if self._waiting[task]:
            self._place()
        else:
            self._finish(task)

    def cancel(self, task: TaskId) -> None:
        """Stop restoring for a task; what is in the database stays, with its checkpoint."""
        for changelog in self._waiting.pop(task, set()):
            job = self._jobs[changelog]
            job.tasks.discard(task)
            if job.tasks:
                job.restore.retarget([other.range for other in job.tasks])
            else:
                del self._jobs[changelog]
        if task in self._done:
            self._done.remove(task)
        self._place()

    def step(self) -> bool:
        """Read on once; return whether there is more to do."""
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

    def _join(
        self, task: TaskId, changelog: TopicPartition, spec: StoreSpec, database: Database, log_start: int, target: int, pick_up: PickUp | None
    ) -> None:
        job = self._jobs.get(changelog)
        if job is None:
            job = _Job(Restore(database, spec, [task.range], log_start=log_start, target=target, pick_up=pick_up))
        else:
            job.restore.retarget([task.range, *(other.range for other in job.tasks)], target=target)
        if job.restore.done and not job.tasks:
            return
        job.tasks.add(task)
        self._jobs[changelog] = job
        self._waiting[task].add(changelog)

    def _pick_up(self, task: TaskId, changelog: TopicPartition, spec: StoreSpec, database: Database) -> PickUp | None:
        if self._snapshots is None:
            return None
        topic = changelog.topic
        now = Changelog(topic, self._log.topic_id(topic), self._log.partitions([topic]).get(topic, 0))
        return partial(self._snapshots.pick_up, database, spec, changelog.partition, now, partial(self._picked_up, task, spec.name))

    def _place(self) -> None:
        self._reader.assign({changelog: Position(job.restore.position) for changelog, job in self._jobs.items()})

    def _complete(self) -> None:
        complete = [changelog for changelog, job in self._jobs.items() if job.restore.done]
        for changelog in complete:
            for task in self._jobs.pop(changelog).tasks:
                self._waiting[task].discard(changelog)
                if not self._waiting[task]:
                    self._finish(task)
        if complete:
            self._place()

    def _finish(self, task: TaskId) -> None:
        del self._waiting[task]
        self._done.append(task)
