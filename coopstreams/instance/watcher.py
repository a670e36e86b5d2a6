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
restart could not heal it (`instance.excuses`).

Invariant: `StallDetector` decides from the numbers it is given (positions, ends, a
clock); the `Watcher` collects them.
Invariant: it only reads what the other threads publish; it never makes them wait.
Turned down: a time-out that restarts tasks (it hides the reason, and a slow call looks
like a dead one).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coopstreams.commit.positions import made_anew
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.quiet import QuietSources
from coopstreams.instance.task_registry import State, TaskRegistry
from coopstreams.log.kafka import outage
from coopstreams.log.log import Log
from coopstreams.log.precondition import Precondition
from coopstreams.opening.globals import MADE_ANEW
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.tasks.events import Event, Failed, PolicyChanged
from coopstreams.tasks.repeats import Sayings
from coopstreams.tasks.tally import Tallies
from coopstreams.tasks.task import Task
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

STALLED_S = 30.0
"""A task with waiting records that has not moved for this long is stalled.

The limit is higher if a task may rest for longer: until a commit, or for another
source.
"""
SLOW_S = 3.0
"""A task that waits for this long reports the reason. It stays live: a leader election
takes longer.
"""


@dataclass(slots=True)
class LagSample:
    """The numbers of a task at the last look."""

    committed: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    processed: int
    at: float
    rate: float = 0.0
    """Records/s, smoothed over the last looks."""
    moved_at: float = 0.0
    """The last look at which a position had moved."""
    committed_at: float = 0.0
    """The last look at which anything was committed, also above a record that waits for
    a call.
    """
    segments: object = ()
    """All that is committed, to compare it."""
    busy_at: float = float("-inf")
    """The last look at which it had processed records, and had not yet done what was
    there at the look before.
    """
    all_read: Collection[TopicPartition] = ()
    """The sources of which it has done everything that is committed."""

    @property
    def lag(self) -> int:
        """Records between the committed positions and the ends of the sources."""
        return sum(
            max(0, self.ends.get(source, position) - position)
            for source, position in self.committed.items()
        )

    @property
    def behind(self) -> dict[TopicPartition, int]:
        """The sources that have more than is committed here, each with the committed
        position.
        """
        return {
            source: at
            for source, at in self.committed.items()
            if at < self.ends.get(source, at)
        }


@dataclass(slots=True)
class StallDetector:
    """The samples of each running task, and the problems they show."""

    stalled_s: float = STALLED_S
    slow_s: float = SLOW_S
    samples: dict[TaskId, LagSample] = field(default_factory=dict)
    _closed: dict[TaskId, LagSample] = field(default_factory=dict)
    """The last samples of tasks that are opened again: one whose commits fail has made
    no progress.
    """
    unanswered: dict[TopicPartition, float] = field(default_factory=dict)
    """Sources whose leader does not report their end, and since when; in the order in
    which they were last asked.
    """
    away_at: float = float("-inf")
    """The last time at which a leader had not answered for longer than `slow_s`."""
    quiet: QuietSources = field(default_factory=QuietSources)
    made_anew: dict[TaskId, str] = field(default_factory=dict)
    """Running tasks whose changelog was recreated or deleted since their state was
    restored, in words.
    """
    grown: Mapping[str, str] = field(default_factory=dict)
    """Source topics that have got partitions, which no task reads, in words."""

    def look(
        self,
        task: TaskId,
        now: float,
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        processed: int,
        *,
        paused: bool = False,
        all_read: Collection[TopicPartition] = (),
        segments: object = (),
    ) -> LagSample:
        """Add the numbers of a running task; return its sample. `paused`: no progress
        is expected.

        `segments`: all that is committed, also above the positions.
        """
        sample = LagSample(
            dict(committed),
            dict(ends),
            processed,
            now,
            moved_at=now,
            committed_at=now,
            segments=segments,
            all_read=all_read,
        )
        before = self.samples.get(task)
        if before is None and (before := self._closed.pop(task, None)) is not None:
            before.moved_at += (
                now - before.at
            )  # the time in which it was opened again does not count
            before.committed_at += now - before.at
        if before is not None and now > before.at:
            fresh = (processed - before.processed) / (now - before.at)
            sample.rate = 0.5 * before.rate + 0.5 * max(0.0, fresh)
            if before.committed == sample.committed and before.lag > 0 and not paused:
                sample.moved_at = before.moved_at
                if before.segments == segments:
                    sample.committed_at = before.committed_at
            behind = any(
                at < before.ends.get(source, at)
                for source, at in sample.committed.items()
            )
            sample.busy_at = (
                now if behind and processed != before.processed else before.busy_at
            )
        self.samples[task] = sample
        return sample

    def keep(self, running: set[TaskId], here: set[TaskId]) -> None:
        """Forget the tasks that are not here any more. Those that do not run, but will,
        have a stall to go on with.
        """
        for task in self.samples.keys() - running:
            self._closed[task] = self.samples.pop(task)
        for task in self._closed.keys() - here:
            del self._closed[task]

    def stalled(self, now: float) -> dict[TaskId, str]:
        """Return the tasks with waiting records that do not move, each with its
        positions.
        """
        return {
            task: _where(sample, now)
            for task, sample in list(self.samples.items())
            if sample.lag > 0 and now - sample.committed_at > self.stalled_s
        }

    def slow(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that commit late, or whose brokers do not answer, each with
        the known reasons.
        """
        said = {}
        for task, sample in list(self.samples.items()):
            why = [away] if (away := self.away(task, now)) else []
            waited = now - sample.moved_at
            if (
                sample.lag > 0
                and waited > self.slow_s
                and now - sample.committed_at <= self.stalled_s
            ):
                first = (
                    " of the first record"
                    if sample.committed_at > sample.moved_at
                    else ""
                )
                why.append(
                    f"no commit{first} for {waited:.0f} s with {sample.lag} records waiting"
                )
                why += [kept] if (kept := self.kept_back(task)) else []
            if why:
                said[task] = ", ".join(why)
        return said

    def away(self, task: TaskId, now: float) -> str:
        """Return which brokers of a task's sources do not answer; empty: all do."""
        sample = self.samples.get(task)
        sources = () if sample is None else sample.committed
        return ", ".join(
            reason for source in sources if (reason := self._brokers_of(source, now))
        )

    def kept_back(self, task: TaskId) -> str:
        """Return which sources an open transaction keeps back; empty: the task has
        records that are committed.
        """
        sample = self.samples.get(task)
        behind = {} if sample is None else sample.behind
        if (
            sample is None
            or not behind
            or not all(source in sample.all_read for source in behind)
        ):
            return ""
        where = ", ".join(
            f"{source} from offset {at} on" for source, at in behind.items()
        )
        return f"an open transaction keeps back what was written to {where}"

    def any_away(self, now: float) -> str:
        """Return the source of any task whose leader has not answered for the longest
        time; empty: all do.
        """
        since, source = min(
            ((at, source) for source, at in list(self.unanswered.items())),
            default=(now, None),
        )
        return "" if source is None else self._leader_of(source, now - since)

    def busy(self, tasks: Iterable[TaskId], now: float) -> TaskId | None:
        """Return which of these tasks has worked on a backlog last, and does move;
        None: none within `stalled_s`.
        """
        at, busy = max(
            (
                (sample.busy_at, task)
                for task in tasks
                if (sample := self.samples.get(task)) is not None
                and now - sample.committed_at <= self.stalled_s
            ),
            default=(float("-inf"), None),
        )
        return busy if now - at <= self.stalled_s else None

    def _leader_of(self, source: TopicPartition, waited: float) -> str:
        return (
            f"the leader of {source} has not answered for {waited:.0f} s"
            if waited > self.slow_s
            else ""
        )

    def _brokers_of(self, source: TopicPartition, now: float) -> str:
        waited = now - self.unanswered.get(source, now)
        return self._leader_of(source, waited) or self.quiet.why(
            source, now, self.slow_s
        )


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
        registry: TaskRegistry,
        tasks: dict[TaskId, Task],
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
        self._ends: dict[TopicPartition, int] = {}
        """The last reported ends of the sources."""
        self._log = cluster
        self._silent_replicas = silent_replicas
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
        tasks = dict(self._tasks)
        asked_at = self._host.now()
        sources = {source for task in tasks.values() for source in task.sources}
        # Before the brokers are asked, which may take long: the samples of slow tasks
        # must not wait.
        committed = {
            id_: {source: task.progress.durable(source) for source in task.sources}
            for id_, task in tasks.items()
        }
        self._measure(sources)
        self._look_for_silence(
            {at: self._ends[at] for at in sources if at in self._ends}
        )
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
            self._compare_counts()

    def explained(self, failure: Failed) -> Failed:
        """Return the failure, or its cause if it is an offset of a source that was
        recreated. Any thread.
        """
        try:
            if isinstance(failure.error, OffsetOutOfRangeError):
                self._compare_sources(dict(self._tasks), {})
        except ConfigError as cause:
            return replace(failure, error=cause)
        except LogError as error:
            log.warning("cannot see whether topics were made anew: %s", error)
        return failure

    def _compare_sources(self, tasks: dict[TaskId, Task], ids: dict[str, str]) -> None:
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
                        task.progress.durable(source),
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

    def _compare(self, tasks: dict[TaskId, Task]) -> None:
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

    def _compare_counts(self) -> None:
        """Find the source topics that have got partitions."""
        found = self._look_at_growth()
        for topic in found.keys() - self.stall_detector.grown.keys():
            log.error("%s.", found[topic].rstrip("."))
        self.stall_detector.grown = found

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
                paused=self._paused(),
                all_read={
                    source
                    for source, at in committed[id_].items()
                    if self._all_read(source, at)
                },
                segments=[
                    task.progress.committed_segments(source) for source in task.sources
                ],
            )
            for source, at in committed[id_].items():
                self._metrics.lag(id_, source.topic, max(0, ends.get(source, at) - at))
            if task.calls is not None:
                since = task.calls.oldest
                oldest_s = 0.0 if since is None else max(0.0, now - since)
                self._metrics.calls(
                    id_, task.calls.under_way, task.calls.not_begun, oldest_s
                )
            self._tallies.look(task)
        self._tallies.look_for_losses()
        for gone in tasks.keys() - self._tasks.keys():
            self._metrics.task_closed(
                gone
            )  # closed during this look, which may have added its series again
        self.stall_detector.keep(set(tasks), set(self._registry.states.copy()))

    def _purge(self, tasks: dict[TaskId, Task]) -> None:
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


def _where(sample: LagSample, now: float) -> str:
    places = [
        f"{source} at offset {at} of {sample.ends[source]}"
        for source, at in sample.behind.items()
    ]
    return f"no progress for {now - sample.committed_at:.0f} s with {sample.lag} records waiting: {', '.join(places)}"
