"""The watcher: a thread that measures lags and rates, finds stalled tasks, counts,
looks at the cluster's policy, and purges repartition topics.

It also compares the topic ids of running tasks with those at their opening. A recreated
source ends the instance, and so does the recreated topic of a global table, of which
the reader would go on in the middle of the new one. If a changelog was deleted, the
local state is right as long as its task runs; the next opening restores only what was
written since. So the watcher reports it, and the tasks go on. (Turned down: opening
them again at once. It would lose state that can still be rebuilt from the source.) A
source that has got partitions is reported as well: no task reads them, and none can
before all instances start anew.

A slow task is reported with its reason, not restarted: after some seconds `/health`
names what a task waits for, and after half a minute the instance is not live, unless a
restart could not heal it (`status.detector`).

Invariant: `StallDetector` decides from the numbers it is given (positions, ends, a
clock); the `Watcher` collects them.
Invariant: it only reads what the other threads publish; it never makes them wait.
Turned down: a time-out that restarts tasks (it hides the reason, and a slow call looks
like a dead one).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from coopstreams.commit.positions import made_anew
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.task_registry import Standing, State
from coopstreams.log.kafka import outage
from coopstreams.log.log import Log
from coopstreams.log.precondition import Precondition
from coopstreams.opening.globals import MADE_ANEW
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.status.detector import SLOW_S, STALLED_S, StallDetector
from coopstreams.tasks.events import Event, Failed, PolicyChanged
from coopstreams.tasks.repeats import Sayings
from coopstreams.tasks.tally import Tallies
from coopstreams.tasks.task import Task
from coopstreams.tasks.task_figures import TaskFigures
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MOST_S = 2.0
"""How long one look waits for leaders. The next looks ask those that did not answer."""
COMPARE_EVERY_S = 60.0
"""Time between two comparisons of topic ids and partition counts."""


class Watcher:
    """Looks once a second."""

    def __init__(  # noqa: PLR0913
        self,
        cluster: Log,
        silent_replicas: Callable[
            [Collection[TopicPartition]], Mapping[TopicPartition, Collection[int]]
        ],
        metrics: Metrics,
        tallies: Tallies,
        sayings: Sayings,
        standing: Callable[[], Standing],
        purged: frozenset[str],
        purge_every_s: float,
        rests_s: float,
        emit: Callable[[Event], None],
        changelog: Callable[[StoreSpec], str],
        global_ids: Mapping[str, str],
        look_at_policy: Callable[[], PolicyChanged | None],
        look_at_growth: Callable[[], Mapping[str, str]],
        paused: Callable[[], bool],
        all_read: Callable[[TopicPartition, int], bool],
        sure: Callable[[int], bool],
        host: Host = SYSTEM,
    ) -> None:
        """`sure`: whether this process certainly is a member under an epoch
        (`GroupMember.sure`).
        """
        self._host = host
        self.stall_detector = StallDetector(
            max(STALLED_S, 3 * rests_s), max(SLOW_S, 3 * rests_s)
        )
        self.stalls = self.stall_detector.published()
        """What other threads read of it: replaced as a whole."""
        self._ends: dict[TopicPartition, int] = {}
        """The last reported ends of the sources."""
        self._log = cluster
        self._silent_replicas = silent_replicas
        self._metrics = metrics
        self._tallies = tallies
        self._sayings = sayings
        self._standing = standing
        self._purged = purged
        self._purge_every_s = purge_every_s
        self._purge_at = self._host.now() + purge_every_s
        self._emit = emit
        self._changelog = changelog
        self._global_ids = global_ids
        self._look_at_policy = look_at_policy
        self._look_at_growth = look_at_growth
        self._paused = paused
        self._all_read = all_read
        self._sure = sure
        self._compare_at = self._host.now() + COMPARE_EVERY_S
        self._deleted: dict[TopicPartition, int] = {}
        self._failed: dict[TopicPartition, None] = {}
        """The partitions in which nothing could be deleted the last time, in the order
        in which that was tried.
        """
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

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                try:
                    self._look()
                except LogError as error:
                    log.warning(
                        "cannot measure lags, or delete repartition records that are done: %s",
                        error,
                    )
        # any error: the control thread must get it, since without a watcher no problem
        # is reported
        except BaseException as error:
            log.debug("the watcher ends", exc_info=True)
            self._emit(Failed(error, "watcher"))

    def _look(self) -> None:
        self._sayings.tick()
        if (changed := self._look_at_policy()) is not None:
            self._emit(changed)
        tasks = self._standing().tasks
        asked_at = self._host.now()
        sources = {source for task in tasks.values() for source in task.sources}
        # Before the brokers are asked, which may take long: the samples of slow tasks
        # must not wait.
        figures = {id_: task.figures for id_, task in tasks.items()}
        self._measure(sources)
        self.stalls = self.stall_detector.published()
        self._look_for_silence(
            {at: self._ends[at] for at in sources if at in self._ends}
        )
        if sources and not self.stall_detector.unanswered:
            outage.answered(asked_at)
        self._watch_tasks(tasks, figures, self._ends, asked_at)
        self.stalls = self.stall_detector.published()
        now = self._host.now()
        states = Counter(state.value for state in self._standing().states.values())
        self._metrics.tasks(states)
        if now >= self._purge_at:
            self._purge_at = now + self._purge_every_s
            self._purge(tasks)
        if now >= self._compare_at:
            self._compare_at = now + COMPARE_EVERY_S
            self._compare(tasks)
            self._compare_counts()

    def explained(self, failure: Failed) -> Failed:
        """Return the failure, or its cause if it is an offset of a source that was
        recreated.
        """
        try:
            if isinstance(failure.error, OffsetOutOfRangeError):
                self._compare_sources(self._standing().tasks, {})
        except ConfigError as cause:
            return replace(failure, error=cause)
        except LogError as error:
            log.warning("cannot see whether topics were made anew: %s", error)
        return failure

    def _compare_sources(
        self, tasks: Mapping[TaskId, Task], ids: dict[str, str]
    ) -> None:
        """Look up the ids of the tasks' sources.

        Raises:
            ConfigError: a source was recreated: its reader's offsets are those of
            another topic.
        """
        for task in tasks.values():
            for source in task.sources:
                if source.topic not in ids:
                    ids[source.topic] = self._id_of(source.topic)
                if (
                    NO_TOPIC
                    not in (
                        ids[source.topic],
                        known := task.progress.topic_ids.get(source.topic, NO_TOPIC),
                    )
                    and known != ids[source.topic]
                ):
                    raise made_anew(
                        task.progress.author.group,
                        source,
                        task.figures.committed[source],
                    )

    def _compare_globals(self, ids: dict[str, str]) -> None:
        """Report a recreated topic of a global table: rows of the old one stay, and
        records of the new one were missed.

        The reader does not notice if the new topic already has a record at its next
        offset.
        """
        for topic, known in self._global_ids.items():
            if topic not in ids:
                ids[topic] = self._id_of(topic)
            if NO_TOPIC not in (known, ids[topic]) and known != ids[topic]:
                self._emit(
                    Failed(
                        OffsetOutOfRangeError(f"{MADE_ANEW} ({topic})"), "global tables"
                    )
                )

    def _compare(self, tasks: Mapping[TaskId, Task]) -> None:
        """Find the tasks whose changelogs were recreated or deleted.

        Raises:
            ConfigError: see `_compare_sources`.
        """
        ids: dict[str, str] = {}
        self._compare_sources(tasks, ids)
        self._compare_globals(ids)
        found: dict[TaskId, str] = {}
        for id_, task in tasks.items():
            for store, topic_id in task.state.topic_ids.items():
                spec = task.state.stores[store].spec
                topic = spec.source or self._changelog(spec)
                if topic not in ids:
                    ids[topic] = self._id_of(topic)
                if topic_id not in (NO_TOPIC, ids[topic]):
                    found[id_] = (
                        f'{topic} was deleted{" and made anew" if ids[topic] else ""}: what store "{store}" had before '
                        "is only on this host"
                    )
        for id_ in found.keys() - self.stall_detector.made_anew.keys():
            log.error(
                "task %s: %s, until the task is opened again. Stop all instances and rebuild it from the source.",
                id_,
                found[id_],
            )
        self.stall_detector.made_anew = found
        self.stalls = self.stall_detector.published()

    def _compare_counts(self) -> None:
        """Find the source topics that have got partitions."""
        found = self._look_at_growth()
        for topic in found.keys() - self.stall_detector.grown.keys():
            log.error("%s.", found[topic].rstrip("."))
        self.stall_detector.grown = found
        self.stalls = self.stall_detector.published()

    def _id_of(self, topic: str) -> str:
        try:
            return self._log.topic_id(topic)
        except UnknownTopicError:
            return NO_TOPIC

    def _measure(self, sources: set[TopicPartition]) -> None:
        """Fetch the ends of these sources: those first whose leaders answered, then
        each of the others in its turn.
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
        """Ask the replicas of busy sources whose ends do not advance."""
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
        states = self._standing().states
        for id_, task in tasks.items():
            if states.get(id_) is not State.RUNNING:
                continue
            said = figures[id_]
            committed = said.committed
            self.stall_detector.look(
                id_,
                now,
                committed,
                {source: ends.get(source, at) for source, at in committed.items()},
                said.counts.processed,
                paused=self._paused(),
                all_read={
                    source
                    for source, at in committed.items()
                    if self._all_read(source, at)
                },
                segments=said.segments,
            )
            for source, at in committed.items():
                self._metrics.lag(id_, source.topic, max(0, ends.get(source, at) - at))
            if (calls := said.calls) is not None:
                shown = calls.shown
                self._metrics.calls(
                    id_, shown.in_flight, shown.waiting, calls.waited_s(now)
                )
            self._tallies.look(task, said.counts)
        self._tallies.look_for_losses()
        standing = self._standing()
        for gone in tasks.keys() - standing.tasks.keys():
            self._metrics.task_closed(
                gone
            )  # closed during this look, which may have added its series again
        self.stall_detector.keep(set(tasks), set(standing.states))

    def _purge(self, tasks: Mapping[TaskId, Task]) -> None:
        """Delete the records of repartition topics below the stable offset, for
        partitions whose hash 0 is owned here.

        These topics have no retention. An error ends this purge, so partitions that had
        one come after the others. A process that is not certainly a member deletes
        nothing: who is, does, and a reset may have made topics anew.
        """
        due: dict[TopicPartition, tuple[int, Task]] = {}
        for task in tasks.values():
            for source in task.sources:
                stable = (
                    task.progress.stable(source)
                    if source.topic in self._purged
                    else None
                )
                if stable is not None and stable > self._deleted.get(source, 0):
                    due[source] = stable, task
        failed = self._failed
        for source in [
            *(at for at in due if at not in failed),
            *(at for at in failed if at in due),
        ]:
            failed[source] = failed.pop(source, None)
            stable, task = due[source]
            try:
                self._log.delete_before(source, stable, self._may_purge(source, task))
            except FencedError as error:
                log.debug("not purged: %s", error)
                return
            self._deleted[source] = stable
            del failed[source]

    def _may_purge(self, source: TopicPartition, task: Task) -> Precondition:
        """Return on what a purge relies: the topic in which the task's offsets are, and
        the membership in its epoch.
        """
        return Precondition(
            self._log,
            {source.topic: task.progress.topic_ids.get(source.topic, NO_TOPIC)},
            lambda: self._sure(task.epoch),
            f"this process is not certainly in the group any more under epoch {task.epoch}",
        )
