"""Finds the tasks that make no progress, and why, from figures of tasks, end offsets of
sources and a clock. Pure.

A task is slow if it has records waiting and commits nothing for some seconds, and
stalled after half a minute. A stalled task makes its instance not live, and its
supervisor restarts it. A restart heals a stuck thread. While brokers are unreachable,
it only costs all instances their open state. So a stalled task may have an excuse: a
reason why a restart would not help.

Invariant: without evidence there is no excuse. Evidence is one of these:
* a partition leader or a group coordinator that does not answer
* a recent error of the brokers
* a request that waits no longer than its client allows
* a source without any further committed record
* a call whose time-out is not over
* another task of the thread that makes progress
* that the task is on no thread, because it is opened again

A thread that is stuck elsewhere (in a sink, in a lock of coopstreams) has no excuse,
whatever brokers do.
Turned down: a time-out that restarts tasks (it hides the reason, and a slow call looks
like a dead one).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coopstreams.commit.broker_waits import Asking
from coopstreams.common.config import Config
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task_figures import CallFigures
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId

QUIET_S = 1.5
"""How long the end offset of a busy source may stay the same before its in-sync
replicas are asked.
"""
BUSY_S = 60.0
"""A source without new records for this long is idle, not busy."""


STALLED_S = 30.0
"""A task with waiting records that has committed nothing for this long is stalled.

The limit is higher if a task may rest longer, until a commit or for another source.
"""
SLOW_S = 3.0
"""A task whose first waiting record is not committed for this long reports the reason.
It stays live, because a leader election takes longer.
"""


@dataclass(slots=True)
class QuietSources:
    """The busy sources whose end offset no longer advances, and the brokers that may be
    the reason.

    Units: seconds.

    A record can be read when all in-sync replicas have it. If the broker of one of them
    dies or hangs, nothing new can be read until the cluster removes it
    (`broker.session.timeout.ms`, 9 s by default; 3 s more if it was the active
    controller). Meanwhile the leader reports the old end, so no task has lag. Without
    this class, 10 of the 13 s of such a stall had no reason in the status (measured).

    Invariant: a source whose end advances, and an idle source, cost no request.
    Turned down: asking all brokers all the time; what librdkafka logs of lost
    connections (a client has no connection to a broker that only keeps replicas, and a
    broker that hangs breaks none).
    """

    silent: Mapping[TopicPartition, Collection[int]] = field(default_factory=dict)
    """By source: the brokers of in-sync replicas that do not answer."""
    _ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    _moved_at: Mapping[TopicPartition, float] = field(default_factory=dict)

    def look(
        self,
        ends: Mapping[TopicPartition, int],
        now: float,
    ) -> set[TopicPartition]:
        """Note the last reported end offset of each source; return the busy sources
        whose end has not advanced for `QUIET_S`.
        """
        moved = {
            source: now
            for source, end in ends.items()
            if self._ends.get(source, end) != end
        }
        busy = {
            source: at
            for source, at in self._moved_at.items()
            if source in ends and now - at <= BUSY_S
        }
        self._ends = dict(ends)
        self._moved_at = busy | moved
        return {source for source, at in self._moved_at.items() if now - at >= QUIET_S}

    def why(
        self,
        source: TopicPartition,
        now: float,
        slow_s: float,
    ) -> str:
        """Return which brokers' replicas block a source whose end has not advanced for
        `slow_s`; empty: none is known.
        """
        brokers = self.silent.get(source, ())
        at = self._moved_at.get(source, now)
        if not brokers or now - at <= slow_s:
            return ""
        names = ", ".join(map(str, sorted(brokers)))
        return (
            f"nothing new can be read from {source} for {now - at:.0f} s: broker {names} has an in-sync replica of it "
            "and does not answer"
        )


@dataclass(slots=True)
class LagSample:
    """The figures of a task at one look of the watcher. `committed` and `ends`: the
    lowest committed position and the end of each source. `processed`: the records since
    the task was opened. Units of times: seconds; `at` is the time of the look.
    """

    committed: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    processed: int
    at: float
    rate: float = 0.0
    """Records/s, smoothed over the last looks."""
    moved_at: float = 0.0
    """The last look at which a committed position had advanced, or no progress was
    expected.
    """
    committed_at: float = 0.0
    """The last look at which anything was committed, including records after one that
    waits for a call.
    """
    segments: object = ()
    """Everything that is committed, only to be compared with the next sample."""
    busy_at: float = float("-inf")
    """The last look at which the task had processed records, and had still not
    committed everything that its sources had at the look before.
    """
    all_read: Collection[TopicPartition] = ()
    """The sources of which the task has processed every committed record."""

    @property
    def lag(self) -> int:
        """The number of records between the committed positions and the ends of the
        sources.
        """
        return sum(
            max(0, self.ends.get(source, position) - position)
            for source, position in self.committed.items()
        )

    @property
    def behind(self) -> dict[TopicPartition, int]:
        """The sources with records after the task's committed position, each with that
        position.
        """
        return {
            source: at
            for source, at in self.committed.items()
            if at < self.ends.get(source, at)
        }


@dataclass(slots=True)
class StallDetector:
    """The last sample of each running task, and what the watcher knows of brokers and
    topics.
    """

    stalled_s: float = STALLED_S
    slow_s: float = SLOW_S
    samples: dict[TaskId, LagSample] = field(default_factory=dict)
    _closed: dict[TaskId, LagSample] = field(default_factory=dict)
    """The last samples of tasks that are being opened again. Such a task may be one
    whose commits fail, so reopening is no progress.
    """
    unanswered: dict[TopicPartition, float] = field(default_factory=dict)
    """The sources whose leader does not report their end, and since when, in the order
    in which they were last asked.
    """
    away_at: float = float("-inf")
    """The last time at which a leader had not answered for longer than `slow_s`."""
    quiet: QuietSources = field(default_factory=QuietSources)
    made_anew: dict[TaskId, str] = field(default_factory=dict)
    """By running task: that its changelog was recreated or deleted since its state was
    restored, in words.
    """
    grown: Mapping[str, str] = field(default_factory=dict)
    """By source topic that has got new partitions, which no task reads: that it has, in
    words.
    """

    @staticmethod
    def of(config: Config) -> StallDetector:
        """Return a detector whose limits fit these settings: a task may rest until the
        next commit, or for another source (`max.task.idle.ms`).
        """
        rests_s = config.commit_interval_s + max(0, config["max.task.idle.ms"]) / 1000
        return StallDetector(max(STALLED_S, 3 * rests_s), max(SLOW_S, 3 * rests_s))

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
        """Add the figures of a running task; return its sample.

        `paused`: whether no progress is expected. `segments`: everything that is
        committed, also above the positions.
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

    def published(self) -> StallDetector:
        """Return a copy, which other threads read."""
        return replace(
            self,
            samples=dict(self.samples),
            unanswered=dict(self.unanswered),
            quiet=replace(self.quiet),
        )

    def keep(self, running: set[TaskId], here: set[TaskId]) -> None:
        """Forget the tasks that are not in `here`. Keep the samples of tasks that are
        in `here` but not running, so that their stall continues when they run again.
        """
        for task in self.samples.keys() - running:
            self._closed[task] = self.samples.pop(task)
        for task in self._closed.keys() - here:
            del self._closed[task]

    def stalled(self, now: float) -> dict[TaskId, str]:
        """Return the stalled tasks: for each, how long it has made no progress, and at
        which positions.
        """
        return {
            task: _where(sample, now)
            for task, sample in self.samples.items()
            if sample.lag > 0 and now - sample.committed_at > self.stalled_s
        }

    def slow(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that commit late or whose brokers do not answer, each with
        the known reasons.
        """
        said = {}
        for task, sample in self.samples.items():
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
        """Return which brokers of a task's sources do not answer, in words; empty: all
        do.
        """
        sample = self.samples.get(task)
        sources = () if sample is None else sample.committed
        return ", ".join(
            reason for source in sources if (reason := self._brokers_of(source, now))
        )

    def kept_back(self, task: TaskId) -> str:
        """Return the sources of a task whose next records are of an open transaction,
        in words; empty: committed records wait.
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
        """Return the source, of any task, whose leader has not answered for the longest
        time, in words; empty: all leaders answer.
        """
        since, source = min(
            ((at, source) for source, at in self.unanswered.items()),
            default=(now, None),
        )
        return "" if source is None else self._leader_of(source, now - since)

    def busy(self, tasks: Iterable[TaskId], now: float) -> TaskId | None:
        """Return which of these tasks was the last to work on a backlog and makes
        progress; None: none within `stalled_s`.
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
            source,
            now,
            self.slow_s,
        )


def excuse(
    task: TaskId,
    calls: CallFigures | None,
    homes: Mapping[TaskId, StreamThread],
    group_answers: bool,
    detector: StallDetector,
    now: float,
) -> str:
    """Return why a restart would not help this stalled task, in words; empty: it may
    help.

    `calls`: those of the task, if it has any. `homes`: the thread of each task of the
    instance. `group_answers`: whether this process certainly is a member of the group.
    """
    home = homes.get(task)
    if home is None:  # the watcher, which asks brokers, has not looked since
        return "it is opened again"
    asking = home.committer.asking
    asked_at = asking.asked_at
    if asked_at is None and now - home.moved_at > detector.stalled_s:
        return ""  # its thread is stuck elsewhere
    if why := detector.away(task, now) or _failed_commit(asking, now):
        return why
    if asked_at is not None:
        why = _asked(asked_at, asking.answer_s, detector, now)
        return why or ("" if group_answers else "the group does not answer")
    return (
        detector.kept_back(task)
        or _called(calls, detector, now)
        or _busy(task, homes, detector, now)
    )


def _failed_commit(asking: Asking, now: float) -> str:
    """Return the error of the brokers that failed the last commit; empty: there is
    none, or it is old.
    """
    trouble = asking.trouble  # once: the committer's thread resets it
    if trouble is None:
        return ""
    error, at = trouble
    return (
        f"the brokers failed its commit {now - at:.0f} s ago: {error}"
        if now - at <= asking.answer_s
        else ""
    )


def _asked(
    asked_at: float,
    answer_s: float,
    detector: StallDetector,
    now: float,
) -> str:
    """Return why the answer to a request may still come; empty: it should have come.
    `asked_at`: when it was sent; `answer_s`: for how long its client waits.
    """
    if now - asked_at <= answer_s:
        return "the brokers have not answered yet"
    away_s = now - detector.away_at
    if detector.away_at <= asked_at or away_s > answer_s:
        return ""
    return detector.any_away(now) or f"brokers did not answer until {away_s:.0f} s ago"


def _called(
    calls: CallFigures | None,
    detector: StallDetector,
    now: float,
) -> str:
    """Return that the first record waits for calls that are within their time-outs;
    empty: it does not.
    """
    if (
        calls is None
        or not calls.within_limits
        or calls.waited_s(now) <= detector.stalled_s
    ):
        return ""
    return "the time-out of a call is not over, and a new process would begin it anew"


def _busy(
    task: TaskId,
    homes: Mapping[TaskId, StreamThread],
    detector: StallDetector,
    now: float,
) -> str:
    """Return, in words, on which other task the thread of this task works; empty: on
    none.
    """
    others = [
        other
        for other, thread in homes.items()
        if thread is homes[task] and other != task
    ]
    busy = detector.busy(others, now)
    return "" if busy is None else f"its thread is busy with task {busy}"


def wait_of(
    home: StreamThread | None,
    calls: CallFigures | None,
    now: float,
) -> str:
    """Return what a task or its thread waits for, as the end of a sentence; empty:
    nothing.
    """
    if home is not None and (waiting := home.committer.asking.waiting) is not None:
        return f"; its thread has waited {now - waiting.since:.0f} s for {waiting.what}"
    if calls is None or calls.oldest_at is None:
        return ""
    return f"; its first record has waited {calls.waited_s(now):.0f} s for a call"


def _where(sample: LagSample, now: float) -> str:
    places = [
        f"{source} at offset {at} of {sample.ends[source]}"
        for source, at in sample.behind.items()
    ]
    return f"no progress for {now - sample.committed_at:.0f} s with {sample.lag} records waiting: {', '.join(places)}"
