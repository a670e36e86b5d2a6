"""The watcher: a thread that checks an instance once a second.

It measures lags and rates, finds stalled tasks, adds up counts, checks the cluster's
policy and changed topics, and purges repartition topics. A slow task is reported with
its reason, not restarted. After some seconds `/health` names what the task waits for,
and after half a minute the instance is not live, unless a restart could not heal it
(`status.stall_detector`).

Invariant: `status.stall_detector` decides from the numbers it is given (positions, ends, a
clock); `Lags` collects them.
Invariant: the watcher only reads what the other threads publish; it never makes them
wait. Turned down: a time-out that restarts tasks (it hides the reason, and a slow call
looks like a dead one).
Relies on: `task_registry` (`Standing`: what runs), `components` (what is called each
second, and in which order).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass

from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.task_registry import Standing, State
from coopstreams.log.kafka import outage
from coopstreams.log.log import Log
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.tally import Tallies
from coopstreams.tasks.task import Task
from coopstreams.tasks.task_figures import TaskFigures
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MOST_S = 2.0
"""How long one look waits for partition leaders. The next looks ask those that did not
answer.
"""


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of an instance that the watcher reads."""

    standing: Callable[[], Standing]
    """Returns what the control thread has published last."""
    paused: Callable[[], bool]
    """Returns whether the instance is paused."""
    all_read: Callable[[TopicPartition, int], bool]
    """See `Dispatcher.all_read`."""
    may_not_read: Callable[[TopicPartition, int], bool]
    """See `Dispatcher.may_not_read`."""


class Lags:
    """Measures how far running tasks are behind the ends of their sources."""

    def __init__(
        self,
        cluster: Log,
        silent_replicas: Callable[
            [Collection[TopicPartition]], Mapping[TopicPartition, Collection[int]]
        ],
        metrics: Metrics,
        tallies: Tallies,
        watched: Watched,
        stall_detector: StallDetector,
        host: Host,
    ) -> None:
        self._log = cluster
        self._silent_replicas = silent_replicas
        self._metrics = metrics
        self._tallies = tallies
        self._watched = watched
        self.stall_detector = stall_detector
        self._host = host
        self._ends: dict[TopicPartition, int] = {}
        """The end of each source that a broker reported last."""

    def look(self) -> None:
        """Measure the lag of all running tasks."""
        tasks = self._watched.standing().tasks
        asked_at = self._host.now()
        sources = {source for task in tasks.values() for source in task.sources}
        # Before the brokers are asked, which may take long: the samples of slow tasks
        # must not wait.
        figures = {id_: task.figures for id_, task in tasks.items()}
        self._measure(sources)
        self._look_for_silence(
            {at: self._ends[at] for at in sources if at in self._ends}
        )
        if sources and not self.stall_detector.unanswered:
            outage.answered(asked_at)
        self._watch_tasks(tasks, figures, self._ends, asked_at)
        states = self._watched.standing().states
        self._metrics.tasks(Counter(state.value for state in states.values()))

    def _measure(self, sources: set[TopicPartition]) -> None:
        """Fetch the ends of these sources: first where leaders answered the last time,
        then of the others in turn.
        """
        unanswered = self.stall_detector.unanswered
        give_up = self._host.now() + MOST_S
        for gone in unanswered.keys() - sources:
            del unanswered[gone]
        for source in [*sorted(sources - unanswered.keys()), *unanswered]:
            try:
                self._ends[source] = self._log.reported_end(source)
                unanswered.pop(source, None)
            except LogError as error:
                if source not in unanswered:
                    log.log(
                        logging.DEBUG if error.retryable else logging.WARNING,
                        "cannot measure lags: %s",
                        error,
                    )
                now = self._host.now()
                unanswered[source] = unanswered.pop(source, now)
                if now - unanswered[source] > self.stall_detector.slow_s:
                    self.stall_detector.away_at = now
                if now > give_up:
                    break

    def _look_for_silence(self, ends: Mapping[TopicPartition, int]) -> None:
        """Ask the replicas of busy sources whose ends do not advance whether they
        answer.
        """
        quiet = self.stall_detector.quiet
        still = quiet.look(ends, self._host.now())
        try:
            quiet.silent = self._silent_replicas(still) if still else {}
        except LogError as error:
            log.debug("which replicas answer is not known: %s", error)

    def _watch_tasks(
        self,
        tasks: Mapping[TaskId, Task],
        figures: Mapping[TaskId, TaskFigures],
        ends: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        """Tell the stall detector and the metrics how far the running tasks are.
        `figures`: what they publish; `ends`: those of their sources.
        """
        states = self._watched.standing().states
        for id_, task in tasks.items():
            if states.get(id_) is not State.RUNNING:
                continue
            said = figures[id_]
            committed = said.committed
            held_back = any(
                self._watched.may_not_read(source, at)
                for source, at in committed.items()
            )
            waits_for_time = any(
                self._watched.all_read(source, at)
                for source, at in said.waiting.items()
            )
            self.stall_detector.look(
                id_,
                now,
                committed,
                {source: ends.get(source, at) for source, at in committed.items()},
                said.counts.processed,
                paused=self._watched.paused() or held_back or waits_for_time,
                all_read={
                    source
                    for source, at in committed.items()
                    if self._watched.all_read(source, at)
                },
                segments=said.segments,
            )
            for source, at in committed.items():
                self._metrics.lag(id_, source.topic, max(0, ends.get(source, at) - at))
            if (calls := said.calls) is not None:
                shown = calls.shown
                self._metrics.calls(
                    id_,
                    shown.in_flight,
                    shown.waiting,
                    calls.waited_s(now),
                )
            self._tallies.look(task, said.counts)
        self._tallies.look_for_losses()
        standing = self._watched.standing()
        for gone in tasks.keys() - standing.tasks.keys():
            self._metrics.task_closed(
                gone
            )  # closed during this look, which may have added its series again
        self.stall_detector.keep(set(tasks), set(standing.states))


class Watcher:
    """The thread that calls functions which check an instance, once a second."""

    def __init__(
        self,
        looks: Sequence[tuple[float, Callable[[], None]]],
        stall_detector: StallDetector,
        emit: Callable[[Event], None],
        host: Host = SYSTEM,
    ) -> None:
        """Make the watcher, which `start` runs.

        `looks`: functions to call in this order, each with the least time between two
        calls. Units: seconds.
        """
        self._looks = looks
        self._stall_detector = stall_detector
        self.stalls = stall_detector.published()
        """The findings about stalled tasks, for other threads. Replaced as a whole."""
        self._due = [host.now() + every_s for every_s, _ in looks]
        self._emit = emit
        self._host = host
        self._stop = host.signal()
        self._thread = host.thread(self._run, "watcher")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def look(self) -> None:
        """Call all functions that are due.

        Raises:
            LogError: a function failed; those behind it were not called.
        """
        for at, (every_s, look) in enumerate(self._looks):
            now = self._host.now()
            if now >= self._due[at]:
                self._due[at] = now + every_s
                try:
                    look()
                finally:
                    self.stalls = self._stall_detector.published()

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                try:
                    self.look()
                except LogError as error:
                    log.warning(
                        "cannot measure lags, or delete repartition records that are done and windows that have expired: %s",
                        error,
                    )
        # any error: the control thread must get it, since without a watcher no problem
        # is reported
        except BaseException as error:
            log.debug("the watcher ends", exc_info=True)
            self._emit(Failed(error, "watcher"))
