"""The thread that looks at an instance from outside: lags, rates, stalls, counts; and that deletes repartition records that are done.

Invariant: it only reads what the other threads publish; it never makes them wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from coopstreams.log.log import Log
from coopstreams.metrics import Metrics
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.roster import Roster, State
from coopstreams.tasks.task import Task
from coopstreams.tasks.watchdog import STALLED_S, Watch
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Watcher:
    """Looks once a second."""

    def __init__(
        self,
        cluster: Log,
        metrics: Metrics,
        roster: Roster,
        tasks: dict[TaskId, Task],
        purged: frozenset[str],
        purge_every_s: float,
        rests_s: float,
        emit: Callable[[Event], None],
    ) -> None:
        self.watch = Watch(max(STALLED_S, 3 * rests_s))
        self._log = cluster
        self._metrics = metrics
        self._roster = roster
        self._tasks = tasks
        self._purged = purged
        self._purge_every_s = purge_every_s
        self._purge_at = time.monotonic() + purge_every_s
        self._emit = emit
        self._deleted: dict[TopicPartition, int] = {}
        self._counted: dict[TaskId, tuple[Task, int, dict[tuple[str, str], int]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                try:
                    self._look()
                except LogError as error:
                    log.warning("cannot measure lags: %s", error)
        except BaseException as error:  # whatever it is, the control thread must learn of it: what nobody looks at any more seems to be well
            log.debug("the watcher ends", exc_info=True)
            self._emit(Failed(error, "watcher"))

    def _look(self) -> None:
        tasks = dict(self._tasks)
        ends = {source: self._log.end_offset(source) for source in {source for task in tasks.values() for source in task.sources}}
        now = time.monotonic()
        self._watch_tasks(tasks, ends, now)
        states = Counter(state.value for state in dict(self._roster.states).values())
        self._metrics.tasks(states)
        if now >= self._purge_at:
            self._purge_at = now + self._purge_every_s
            self._purge(tasks)

    def _watch_tasks(self, tasks: dict[TaskId, Task], ends: dict[TopicPartition, int], now: float) -> None:
        for id_, task in tasks.items():
            if self._roster.states.get(id_) is not State.RUNNING:
                continue
            committed = {source: task.progress.durable(source) for source in task.sources}
            self.watch.look(id_, now, committed, {source: ends[source] for source in task.sources}, task.processed)
            for source, at in committed.items():
                self._metrics.lag(id_, source.topic, max(0, ends[source] - at))
            self._count(id_, task)
        for gone in tasks.keys() - self._tasks.keys():
            self._metrics.task_closed(gone)  # it was closed while it was looked at, and its series may have come back
        self.watch.keep(set(tasks))
        self._counted = {id_: seen for id_, seen in self._counted.items() if id_ in tasks}

    def _count(self, id_: TaskId, task: Task) -> None:
        """Add what a task has done since the last look; another opening of it begins at nothing."""
        before, processed, dropped = self._counted.get(id_, (task, 0, {}))
        if before is not task:
            processed, dropped = 0, {}
        now, lost = task.processed, task.program.dropped
        self._metrics.processed(id_, now - processed)
        for (_, reason), count in lost.items():
            self._metrics.dropped(id_, reason.replace(" ", "-"), count - dropped.get((_, reason), 0))
        self._counted[id_] = (task, now, lost)

    def _purge(self, tasks: dict[TaskId, Task]) -> None:
        """Repartition topics keep their records for ever; whoever owns hash 0 deletes what everybody has done with."""
        for task in tasks.values():
            for source in task.sources:
                stable = task.progress.stable(source) if source.topic in self._purged else None
                if stable is not None and stable > self._deleted.get(source, 0):
                    self._log.delete_before(source, stable)
                    self._deleted[source] = stable
