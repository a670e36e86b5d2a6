"""The thread that looks at an instance from outside: lags, rates, stalls, counts; and that deletes repartition records
that are done.

It also compares what the topics of running tasks are with what they were when these opened. A source that was made anew
ends the instance. State whose changelog was deleted is right as long as its task runs, and nowhere else: whoever opens
it next has what was written since. So it is said, and the tasks go on. (Turned down: opening them again at once. It
would lose today what may be rebuilt from the source, or is made anyway, before anybody must restore.)

Slow is not dead, and dead is never silent: after some seconds `/health` says what a task waits for, and after half a
minute it turns red.

Invariant: `StallDetector` decides from numbers it is given (positions, ends, a clock); the `Watcher` collects them.
Invariant: it only reads what the other threads publish; it never makes them wait.
Turned down: a time-out that restarts things by itself (it hides the reason, and a slow call looks like a dead one).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coopstreams.commit.positions import made_anew
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.task_registry import State, TaskRegistry
from coopstreams.log.kafka import outage
from coopstreams.log.log import Log
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.repeats import Sayings
from coopstreams.tasks.tally import Tallies
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError, UnknownTopicError
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MOST_S = 2.0
"""How long a look asks leaders that have not answered before."""
COMPARE_EVERY_S = 60.0
"""Time between two looks whether changelogs are still the same topics."""

STALLED_S = 30.0
"""A task with records waiting that has not moved for so long is reported, unless it may rest for longer: until a
commit, for another source.
"""
SLOW_S = 3.0
"""A task that waits for so long says what for. It is not ill for that: brokers that move leaders take longer."""


@dataclass(slots=True)
class LagSample:
    """What was seen of a task when it was last looked at."""

    committed: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    processed: int
    at: float
    rate: float = 0.0
    """Records/s, smoothed over the last looks."""
    moved_at: float = 0.0

    @property
    def lag(self) -> int:
        """Records between what is committed and the ends of the sources."""
        return sum(max(0, self.ends.get(source, position) - position) for source, position in self.committed.items())


@dataclass(slots=True)
class StallDetector:
    """What is known of each running task over time."""

    stalled_s: float = STALLED_S
    slow_s: float = SLOW_S
    samples: dict[TaskId, LagSample] = field(default_factory=dict)
    unanswered: dict[TopicPartition, float] = field(default_factory=dict)
    """Sources whose leader does not say where they end, and since when it does not."""
    made_anew: dict[TaskId, str] = field(default_factory=dict)
    """Running tasks whose changelog is another topic now than the one that their state came from, in words."""

    def look(
        self,
        task: TaskId,
        now: float,
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        processed: int,
    ) -> LagSample:
        """Take in what a task has done; return what that means."""
        sample = LagSample(dict(committed), dict(ends), processed, now, moved_at=now)
        before = self.samples.get(task)
        if before is not None and now > before.at:
            fresh = (processed - before.processed) / (now - before.at)
            sample.rate = 0.5 * before.rate + 0.5 * max(0.0, fresh)
            if before.committed == sample.committed and before.lag > 0:
                sample.moved_at = before.moved_at
        self.samples[task] = sample
        return sample

    def keep(self, tasks: set[TaskId]) -> None:
        """Forget the tasks that are not here any more."""
        for task in self.samples.keys() - tasks:
            del self.samples[task]

    def stalled(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that have records waiting and do not move, each with the place where it stands."""
        return {
            task: _where(sample, now)
            for task, sample in self.samples.items()
            if sample.lag > 0 and now - sample.moved_at > self.stalled_s
        }

    def slow(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that have not committed for longer than they should, or cannot be read, each with what is
        known of why.
        """
        said = {}
        for task, sample in list(self.samples.items()):
            since = {
                source: at for source in sample.committed if (at := self.unanswered.get(source, now)) < now - SLOW_S
            }
            waited = now - sample.moved_at
            if since:
                said[task] = ", ".join(
                    f"the leader of {source} has not answered for {now - at:.0f} s" for source, at in since.items()
                )
            elif sample.lag > 0 and self.slow_s < waited <= self.stalled_s:
                said[task] = f"no commit for {waited:.0f} s with {sample.lag} records waiting"
        return said


class Watcher:
    """Looks once a second."""

    def __init__(
        self,
        cluster: Log,
        metrics: Metrics,
        tallies: Tallies,
        sayings: Sayings,
        registry: TaskRegistry,
        tasks: dict[TaskId, Task],
        purged: frozenset[str],
        purge_every_s: float,
        rests_s: float,
        emit: Callable[[Event], None],
        changelog: Callable[[StoreSpec], str],
        host: Host = SYSTEM,
    ) -> None:
        self._host = host
        self.stall_detector = StallDetector(max(STALLED_S, 3 * rests_s), max(SLOW_S, 3 * rests_s))
        self._ends: dict[TopicPartition, int] = {}
        """As far as they were heard of."""
        self._log = cluster
        self._metrics = metrics
        self._tallies = tallies
        self._sayings = sayings
        self._registry = registry
        self._tasks = tasks
        self._purged = purged
        self._purge_every_s = purge_every_s
        self._purge_at = self._host.now() + purge_every_s
        self._emit = emit
        self._changelog = changelog
        self._compare_at = self._host.now() + COMPARE_EVERY_S
        self._deleted: dict[TopicPartition, int] = {}
        self._stop = host.signal()
        self._thread = host.thread(self._run, "watcher")

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
        # whatever it is, the control thread must learn of it: what nobody looks at any more seems to be well
        except BaseException as error:
            log.debug("the watcher ends", exc_info=True)
            self._emit(Failed(error, "watcher"))

    def _look(self) -> None:
        self._sayings.tick()
        tasks = dict(self._tasks)
        asked_at, sources = self._host.now(), {source for task in tasks.values() for source in task.sources}
        # Before the brokers are asked, who may take long: a task is seen to stand still from now on.
        committed = {
            id_: {source: task.progress.durable(source) for source in task.sources} for id_, task in tasks.items()
        }
        self._measure(sources)
        if sources and not self.stall_detector.unanswered:
            outage.answered(asked_at)
        self._watch_tasks(tasks, committed, self._ends, asked_at)
        now = self._host.now()
        states = Counter(state.value for state in dict(self._registry.states).values())
        self._metrics.tasks(states)
        if now >= self._purge_at:
            self._purge_at = now + self._purge_every_s
            self._purge(tasks)
        if now >= self._compare_at:
            self._compare_at = now + COMPARE_EVERY_S
            self._compare(tasks)

    def _compare(self, tasks: dict[TaskId, Task]) -> None:
        """Find the tasks whose changelogs were made anew, or are gone.

        Raises:
            ConfigError: a source was made anew: the offsets that its reader goes on from are those of another topic.
        """
        ids: dict[str, str] = {}
        for task in tasks.values():
            for source in task.sources:
                if source.topic not in ids:
                    ids[source.topic] = self._id_of(source.topic)
                if (
                    NO_TOPIC not in (ids[source.topic], known := task.progress.topic_ids.get(source.topic, NO_TOPIC))
                    and known != ids[source.topic]
                ):
                    raise made_anew(task.progress.author.group, source, task.progress.durable(source))
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

    def _id_of(self, topic: str) -> str:
        try:
            return self._log.topic_id(topic)
        except UnknownTopicError:
            return NO_TOPIC

    def _measure(self, sources: set[TopicPartition]) -> None:
        """Ask where these end. A leader that does not answer keeps nobody from hearing of the others."""
        unanswered, give_up = self.stall_detector.unanswered, self._host.now() + MOST_S
        for source in sorted(sources, key=lambda source: unanswered.get(source, 0.0)):
            if source in unanswered and self._host.now() > give_up:
                break
            try:
                self._ends[source] = self._log.reported_end(source)
                unanswered.pop(source, None)
            except LogError as error:
                if source not in unanswered:
                    unanswered[source] = self._host.now()
                    log.log(logging.DEBUG if error.retryable else logging.WARNING, "cannot measure lags: %s", error)
        for gone in [source for source in unanswered if source not in sources]:
            del unanswered[gone]

    def _watch_tasks(
        self,
        tasks: dict[TaskId, Task],
        committed: Mapping[TaskId, Mapping[TopicPartition, int]],
        ends: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        for id_, task in tasks.items():
            if self._registry.states.get(id_) is not State.RUNNING:
                continue
            self.stall_detector.look(
                id_,
                now,
                committed[id_],
                {source: ends.get(source, at) for source, at in committed[id_].items()},
                task.processed,
            )
            for source, at in committed[id_].items():
                self._metrics.lag(id_, source.topic, max(0, ends.get(source, at) - at))
            self._tallies.look(task)
        for gone in tasks.keys() - self._tasks.keys():
            self._metrics.task_closed(gone)  # it was closed while it was looked at, and its series may have come back
        self.stall_detector.keep(set(tasks))

    def _purge(self, tasks: dict[TaskId, Task]) -> None:
        """Repartition topics keep their records for ever; whoever owns hash 0 deletes what everybody has done with."""
        for task in tasks.values():
            for source in task.sources:
                stable = task.progress.stable(source) if source.topic in self._purged else None
                if stable is not None and stable > self._deleted.get(source, 0):
                    self._log.delete_before(source, stable)
                    self._deleted[source] = stable


def _where(sample: LagSample, now: float) -> str:
    places = [
        f"{source} at offset {at} of {sample.ends[source]}"
        for source, at in sample.committed.items()
        if sample.ends.get(source, at) > at
    ]
    return f"no progress for {now - sample.moved_at:.0f} s with {sample.lag} records waiting: {', '.join(places)}"
