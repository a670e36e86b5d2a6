"""A stream thread: runs the tasks it was given, writes their outputs, commits them
together.

Invariant: its inbox is bounded: the dispatcher bounds the records; of batches without
records only the last of each partition is kept.
Invariant: its tasks take turns: one whose records outlast a step goes on behind the
messages that came meanwhile.
Invariant: only this thread touches a task's state, program and progress, from `open` to
`Closed` or `Aborted`.
Invariant: nothing of an interval counts unless its commit did. After any doubt about
the outcome the tasks are discarded and opened again from the log, which has the
outcome. An error that repetition cannot cure (a record that every broker refuses) ends
the instance instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from threading import get_ident
from typing import TypeAlias

from coopstreams.common.host import (
    SYSTEM,
    Empty,
    Host,
    Inbox,
)
from coopstreams.log.log import RecordBatch
from coopstreams.tasks.committer import Committer
from coopstreams.tasks.draining import Draining
from coopstreams.tasks.events import (
    Aborted,
    Closed,
    Event,
    Failed,
    ThreadEnded,
)
from coopstreams.tasks.failure_handlers import paused_without_registry
from coopstreams.tasks.outlasting import InVain, Outlasting, OutlastingError
from coopstreams.tasks.task import Task
from coopstreams.tasks.tries import TriedLaterError
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    DeliveryError,
    FencedError,
    LogError,
    MembershipLostError,
    RefusedError,
)

log = logging.getLogger(__name__)

ALIVE_S = 1.0
"""How often a resting thread updates `moved_at`."""
PUBLISHED_S = 0.1
"""How often a thread publishes the figures of its tasks, at most ..."""
PUBLISHING_PART = 0.05
"""... and which part of its time it spends on that, at most: it may have a thousand."""
IDLE_S = 1.0
"""How often an idle thread updates `moved_at`, at least."""
FLUSH = (
    "the flush of record caches, which runs the functions below them (record by record with "
    "statestore.cache.max.bytes=0),"
)
"""The flush before a commit, in words."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that this thread has from now on."""

    task: Task


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a task."""

    task: Task
    batch: RecordBatch


@dataclass(slots=True, eq=False)
class Moved:
    """A batch without records: the partition of a task has moved on.

    While the message waits, a later batch of the partition takes the place of this one:
    a thread that is busy for long has one message for each partition, not one for each
    fetch.
    """

    task: Task
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class TimeMark:
    """The stream time to append to a silent source of a task."""

    task: Task
    source: TopicPartition
    stream_time: int


@dataclass(frozen=True, slots=True)
class Promised:
    """The times that a task promises to the readers of timed topics, by topic: its
    sources are silent, and were read up to these ends.
    """

    task: Task
    ends: Mapping[TopicPartition, int]
    times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CallsEnded:
    """Calls of asynchronous operators have ended, for which a task waits."""

    task: Task


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of a task that has more records than it could process in the last one."""

    task: Task


@dataclass(frozen=True, slots=True)
class Leaving:
    """Tasks to close; `clean`: what they have done is committed before."""

    tasks: tuple[Task, ...]
    clean: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause is over."""


@dataclass(frozen=True, slots=True)
class CommitDue:
    """Siblings may have committed, so that an idle thread has something to commit, too.

    The message only ends the wait: the loop commits if it is time to.
    """


@dataclass(frozen=True, slots=True)
class End:
    """The thread is to commit and end."""


Message: TypeAlias = (
    NewTask
    | Records
    | Moved
    | TimeMark
    | Promised
    | CallsEnded
    | Turn
    | Leaving
    | Resumed
    | CommitDue
    | End
)


class StreamThread:
    """One thread of an instance. Methods are called by the control thread and return at
    once.
    """

    def __init__(
        self,
        number: int,
        committer: Committer,
        emit: Callable[[Event], None],
        commit_interval_s: float,
        outlasting: Outlasting,
        *,
        rests_s: float = 0.0,
        host: Host = SYSTEM,
    ) -> None:
        """`rests_s`: how long it waits before the first message, unless tasks are
        closed or the thread is stopped.
        """
        self.number = number
        self._host = host
        self.backlog = 0
        """Records delivered and not yet processed: the dispatcher bounds it."""
        self.moved_at = host.now()
        """The last time at which this thread showed that it is alive."""
        self.ident: int | None = None
        """The id of the thread of Python that runs this one; None: it has not started."""
        self.committer = committer
        self._emit = emit
        self._interval = commit_interval_s
        self._inbox: Inbox[Message] = host.inbox()
        self._moved: dict[Task, dict[TopicPartition, Moved]] = {}
        """The messages without records that wait behind the records of each task."""
        self._have([])
        self._in_turn: dict[Task, int] = {}
        """The tasks that wait for their next turn, with the number of their records
        that count as backlog.
        """
        self._stepped: dict[Task, None] = {}
        """The tasks whose buffers may have grown since they were last asked whether
        they are full.
        """
        self._thread = host.thread(self._run, f"stream-{number}")
        self._lock = threading.Lock()
        self._due = 0.0
        """The time (`Host.now`) of the next commit."""
        self._idle = False
        """Whether the last commit that was due had nothing to commit, and nothing has
        come since.
        """
        self._in_vain = InVain()
        self._outlasting = outlasting
        self._idle_s = min(IDLE_S, outlasting.least_s / 3)
        self._draining = Draining(outlasting.least_s / 3, host)
        self._slowest = 0.0, ""
        """The longest call since the last commit: its seconds, and its name."""
        self._epoch: int | None = None
        """The epoch of the task that was opened last."""
        self._publish_at = 0.0
        """The time from which on it publishes the figures of its tasks again."""
        self._worked = False
        """Whether its tasks may have other figures than were published."""
        self._rests_s = rests_s
        self._awake = host.signal()
        self._paused = False

    def successor(self, rests_s: float) -> StreamThread:
        """Return the thread, not yet started, that replaces this dead one; it has the
        same transactional id.
        """
        made = StreamThread(
            self.number,
            self.committer,
            self._emit,
            self._interval,
            self._outlasting,
            rests_s=rests_s,
            host=self._host,
        )
        made._paused = self._paused
        return made

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def open(self, task: Task) -> None:
        """Take over a task."""
        if task.calls is not None:
            task.calls.tell = partial(self._inbox.put, CallsEnded(task))
        self._inbox.put(NewTask(task))

    def deliver(self, task: Task, batch: RecordBatch) -> None:
        """Queue a batch of records for a task."""
        message: Message
        with self._lock:
            if len(batch.columns):
                self.backlog += len(batch.columns)
                self._moved.pop(task, None)
                message = Records(task, batch)
            else:
                waiting = self._moved.setdefault(task, {})
                before = waiting.get(batch.partition)
                if before is not None and before.batch.next_offset <= batch.next_offset:
                    before.batch = batch.behind(before.batch)
                    return
                message = waiting[batch.partition] = Moved(task, batch)
        self._inbox.put(message)

    def advance_time(
        self,
        task: Task,
        source: TopicPartition,
        stream_time: int,
    ) -> None:
        """Append a time mark to a silent source of a task; it counts with the next
        commit.
        """
        self._inbox.put(TimeMark(task, source, stream_time))

    def promise(
        self,
        task: Task,
        ends: Mapping[TopicPartition, int],
        times: Mapping[str, int],
    ) -> None:
        """Promise times for all that will still come of silent sources."""
        self._inbox.put(Promised(task, ends, times))

    def close(self, tasks: tuple[Task, ...], *, clean: bool) -> None:
        """Close these tasks; `Closed` follows for each. `clean`: commit before;
        otherwise discard what is uncommitted.

        Records in their queues are left to the next owner: a hand-over takes as long as
        one record, or as the calls under way, not as long as a queue.
        """
        for task in tasks:
            task.leaving = True
        self._inbox.put(Leaving(tasks, clean))
        self._awake.set()

    def look(self) -> None:
        """Have an idle thread check whether there is something to commit."""
        if self._idle and any(task.progress.mirrors for task in list(self._tasks)):
            self._inbox.put(CommitDue())

    def pause(self, paused: bool) -> None:
        """Pause or resume records and punctuations.

        A paused thread still takes records in, up to the dispatcher's bounds, and
        commits those that it has processed.
        """
        goes_on = self._paused and not paused
        self._paused = paused
        if goes_on:  # last: the thread may take the message at once
            self._inbox.put(Resumed())

    def retire(self) -> None:
        """Commit and end, after the messages sent before: `ThreadEnded` follows."""
        self._inbox.put(End())
        self._awake.set()

    def stop(self, timeout_s: float) -> bool:
        """Commit and end; return whether it ended within the time."""
        self.retire()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.ident = get_ident()
            self._rest()
            self._loop()
            self.committer.close()
            self._emit(ThreadEnded(self.number))
        except BaseException as error:  # any error: the control thread must get it
            log.debug("stream thread %d ends", self.number, exc_info=True)
            try:
                self._abandon()
            except LogError as second:
                log.warning(
                    "stream thread %d cannot end its transaction: %s",
                    self.number,
                    second,
                )
            self._emit(
                Failed(error, f"stream thread {self.number}", self.number, self._epoch)
            )

    def _rest(self) -> None:
        until = self._host.now() + self._rests_s
        while (left := until - self._host.now()) > 0 and not self._awake.wait(
            min(left, ALIVE_S)
        ):
            self.moved_at = self._host.now()

    def _loop(self) -> None:
        self._due = self._host.now() + self._interval
        ends = False
        while not ends or self._draining:
            self.moved_at = self._host.now()
            message = self._next_message()
            ends = ends or isinstance(message, End)
            try:
                if message is not None:
                    self._handle(message)
                if not self._paused:
                    self._go_on()
                    self._punctuate()
                self._commit_if_due()
                if self._draining:
                    self._close_drained()
            except (LogError, MembershipLostError) as error:
                self._abort(error)
            self._publish_if_due()
        self._commit_or_abort()

    def _publish_if_due(self) -> None:
        """Publish the figures of the tasks, if they may have changed since the last
        time and that is not just now.
        """
        began = self._host.now()
        if not self._worked or began < self._publish_at:
            return
        self._worked = False
        for task in self._tasks:
            task.publish()
        took_s = self._host.now() - began
        self._publish_at = began + max(PUBLISHED_S, took_s / PUBLISHING_PART)

    def _next_message(self) -> Message | None:
        """Wait for the next message; None: only time has passed."""
        wait_s = self._wait_s()
        try:
            message = (
                self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            )
        except Empty:
            # How long calls pause changes with time alone.
            self._worked = self._worked or self._calling
            return None
        if not isinstance(message, CommitDue) or self._host.now() < self._due:
            self._wake()
        self._worked = True
        return message

    def _wait_s(self) -> float:
        """Return how long it is until a commit, a punctuation or a task is due, even
        without a message.
        """
        waits = [
            max(self._due - self.moved_at, self._idle_s if self._idle else 0.0),
            self._draining.next_s(),
        ]
        if self._worked:
            waits.append(self._publish_at - self._host.now())
        if not self._paused:
            waits.append(self._idle_s)
            waits += [until - self._host.now() for _, until in self._waiting()]
            if self._punctuating:
                now_ms = self._host.wall_ms()
                due_ms = [
                    task.program.next_punctuation_ms for task in self._punctuating
                ]
                waits += [(at - now_ms) / 1000 for at in due_ms if at is not None]
        return max(0.0, min(waits))

    def _handle(self, message: Message) -> None:
        match message:
            case NewTask(task):
                self._open(task)
            case Records(task, batch):
                self._process(task, batch)
            case Moved(task):
                self._forget(message)
                self._process(task, message.batch)
            case TimeMark() | Promised():
                self._advance_time(message)
            case CallsEnded(task):
                self._step(task)
            case Turn(task):
                self._take_turn(task)
            case Leaving(tasks, clean):
                self._close_or_drain(tasks, clean=clean)
            case Resumed():
                for task in list(self._tasks):
                    self._step(task)

    def _advance_time(self, message: TimeMark | Promised) -> None:
        """Advance the time of a silent source: of its topic, or of what a task writes."""
        task = message.task
        if task.closed or task.leaving:
            return
        if isinstance(message, TimeMark):
            self.committer.begin(task)
            self.committer.mark_time(task, message.source, message.stream_time)
        elif all(
            task.progress.position(source).offset >= end
            for source, end in message.ends.items()
        ):
            # Nothing that was delivered before waits any more.
            self.committer.begin(task)
            for source in message.ends:
                task.program.promise(source, message.times)

    def _wake(self) -> None:
        """End idling; keep the next commit on the grid of intervals that it would have
        had without idling.
        """
        if self._idle:
            self._idle = False
            self._due += (
                max(0, ceil((self._host.now() - self._due) / self._interval))
                * self._interval
            )

    def _open(self, task: Task) -> None:
        self._epoch = task.epoch
        if task.program.may_punctuate and self.committer.begun:
            # its processors may take long to begin, and a transaction must not wait for
            # them
            self._commit_or_abort()
        self._have([*self._tasks, task])
        with self._timed(task, "the beginning of its processors"):
            task.begin()
        self.committer.claim(task, self._tasks[:-1])

    def _have(self, tasks: list[Task]) -> None:
        """Set the tasks of this thread. There may be a thousand: a message looks only
        at those that need it.
        """
        self._tasks = tasks
        self._merging = [task for task in tasks if len(task.sources) > 1]
        self._punctuating = [task for task in tasks if task.program.may_punctuate]
        self._calling = any(task.calls is not None for task in tasks)

    def _forget(self, message: Moved) -> None:
        """Have the next batch without records of this partition make a new message."""
        with self._lock:
            waiting = self._moved.get(message.task, {})
            if waiting.get(message.batch.partition) is message:
                del waiting[message.batch.partition]
                if not waiting:
                    del self._moved[message.task]

    def _process(self, task: Task, batch: RecordBatch) -> None:
        if task in self._in_turn:
            task.add(batch)
            self._in_turn[task] += len(batch.columns)
            return
        try:
            task.add(batch)
            self._step(task)
        finally:
            self._count(-len(batch.columns))

    def _count(self, records: int) -> None:
        """Add this many records to the backlog, which the dispatcher reads."""
        with self._lock:
            self.backlog += records

    def _wait_for_turn(self, task: Task) -> None:
        """Go on with a task behind the messages that wait."""
        left = max(1, sum(map(task.queues.waiting, task.sources)))
        counted = self._in_turn.get(task)
        self._in_turn[task] = left
        self._count(left - (counted or 0))
        if counted is None:
            self._inbox.put(Turn(task))

    def _take_turn(self, task: Task) -> None:
        counted = self._in_turn.pop(task)
        try:
            self._step(task)
        finally:
            self._count(-counted)

    def _step(self, task: Task) -> None:
        """Process the records of a task whose turn it is, unless they wait for calls."""
        while self._may_step(task):
            self.moved_at = self._host.now()
            if task.waits_for_calls():
                return
            self.committer.begin(task)
            with self._timed(task):
                more = task.step(
                    single=self.committer.careful,
                    most=max(1, self.committer.interval.room),
                )
            self._write_outputs(task)
            if not more:
                return
            if len(self._tasks) > 1 and not task.leaving:
                self._wait_for_turn(task)
                return

    def _may_step(self, task: Task) -> bool:
        """Whether a task may process records: one that leaves only those whose calls
        were begun.
        """
        return (
            not self._paused
            and not task.closed
            and (not task.leaving or task.calls is not None)
        )

    def _write_outputs(self, task: Task) -> None:
        """Write what a task has made, and commit if it is time to.

        After each step: commits, heartbeats and revocations must not wait until slow
        functions end the batch.
        """
        self._stepped[task] = None
        self._worked = True
        self.committer.write_outputs(task)
        self._commit_if_due()
        self._publish_if_due()

    @contextmanager
    def _timed(self, task: Task, call: str = "") -> Iterator[None]:
        """Run functions of a task, and note the call if it was slow; by default, the
        task's last step.

        Raises:
            TriedLaterError: the schema registry does not answer.
        """
        began = self._host.now()
        with paused_without_registry(task.id):
            yield
        seconds = self._host.now() - began
        if seconds > self._outlasting.least_s:
            self._note_slow(seconds, f"{task}: {call or task.last_step}")

    def _note_slow(self, seconds: float, call: str) -> None:
        """Remember a call that may have outlasted a time-out of the broker or the
        group.
        """
        log.warning("stream thread %d: %s took %.0f s", self.number, call, seconds)
        self._slowest = max(self._slowest, (seconds, call))

    def _go_on(self) -> None:
        """Process the records that have waited long enough for another source."""
        now = self._host.now()
        for task in [task for task, until in self._waiting() if until <= now]:
            self._step(task)

    def _waiting(self) -> list[tuple[Task, float]]:
        """Return the tasks that wait for another source, and until when; one that
        drains takes no more records.
        """
        waits = [
            (task, task.queues.waits_until)
            for task in self._merging
            if not task.leaving
        ]
        return [(task, until) for task, until in waits if until is not None]

    def _commit_if_due(self) -> None:
        if self.committer.begun:
            self._wake()
        if self._host.now() >= self._due or self._full():
            self._commit_or_abort()
            self._due = self._host.now() + self._interval

    def _full(self) -> bool:
        """Whether a commit is needed before there can be more: of a task's rows, or of
        records in an interval.
        """
        stepped = self._stepped
        self._stepped = {}
        full = [
            task for task in stepped if task.state.full
        ]  # each is asked, because that makes room
        return bool(full) or not self.committer.interval.room

    def _punctuate(self) -> None:
        """Run the wall-clock punctuations that are due. Those of many tasks together
        may outlast a time-out.
        """
        if not self._punctuating:
            return
        now_ms = self._host.wall_ms()
        for task in list(self._punctuating):
            if not task.closed and task.punctuation_due(now_ms):
                self._wake()
                self.committer.begin(task)
                self.moved_at = self._host.now()
                with self._timed(task, "its punctuators"):
                    task.punctuate(now_ms)
                self._write_outputs(task)

    def _commit_or_abort(self) -> None:
        try:
            self._idle = (
                True  # before the commit: records that come from now on end the idling
            )
            try:
                self._idle = not self.committer.commit(self._tasks)
                self._worked = self._worked or not self._idle
            finally:
                if self.committer.flushed_s > self._outlasting.least_s:
                    self._note_slow(self.committer.flushed_s, FLUSH)
            self.committer.confirm(self._tasks)
            self._slowest = 0.0, ""
        except (LogError, MembershipLostError) as error:
            self._abort(error)

    def _abort(self, error: LogError | MembershipLostError) -> None:
        """Discard all tasks, to be opened again from the log: the writer's undelivered
        records may be those of any of them.
        """
        self._check_hope(error)
        passes = isinstance(error, LogError) and error.retryable
        then = self.committer.interval.failed(self._host.now()) if passes else ""
        if refused := isinstance(error, RefusedError):
            then = f" Record by record, to find which are refused: they are among {self._uncommitted()}."
        log.warning(
            "stream thread %d: records since the last commit are processed again: %s%s",
            self.number,
            error,
            then,
        )
        tasks = tuple(self._tasks)
        self._abandon()
        if refused:
            self.committer.expect_refusals()
        held = (
            error.held(self._host.now()) if isinstance(error, TriedLaterError) else None
        )
        self._emit(Aborted(tasks, str(error), held))
        if isinstance(error, LogError) and not isinstance(
            error,
            (FencedError, TriedLaterError),
        ):
            self.committer.check_topics()  # the tasks are opened again meanwhile

    def _check_hope(self, error: LogError | MembershipLostError) -> None:
        """Check that repetition may cure the error.

        Raises:
            LogError: it cannot; names the topics that are gone, if any are.
            OutlastingError: it cannot, because one call takes too long each time.
        """
        (seconds, call) = self._slowest
        self._slowest = (0.0, "")
        if (
            call
            and (hopeless := self._outlasting.void(call, seconds, self._host.now()))
            is not None
        ):
            raise OutlastingError(f"{hopeless}.") from error
        if (
            not isinstance(error, LogError)
            or isinstance(error, FencedError)
            or error.retryable
        ):
            return
        too_often = self._in_vain.again(self._host.now())
        if isinstance(error, RefusedError):
            if too_often:
                raise RefusedError(
                    f"{error} The settings of the topics do not explain it. It was made from {self._uncommitted()}."
                ) from error
        elif too_often or isinstance(error, (AccessDeniedError, DeliveryError)):
            self.committer.check_topics()
            raise error

    def _uncommitted(self) -> str:
        """Return, in words, the tasks' records since the last commit."""
        return "; ".join(
            f"{task}: {done}" for task in self._tasks if (done := task.uncommitted)
        )

    def _abandon(self) -> None:
        tasks = self._tasks
        self._stepped = {}
        self._have([])
        for task in tasks:
            task.discard()
        self.committer.abort()

    def _close_or_drain(self, tasks: Sequence[Task], *, clean: bool) -> None:
        """Close tasks now, or let their calls end before."""
        drains = clean and not self._paused  # their results could not be processed
        if now := [
            task for task in tasks if not drains or not self._draining.begin(task)
        ]:
            self._close(now, clean=clean)

    def _close_drained(self) -> None:
        """Close the draining tasks whose calls have ended or timed out."""
        for task in self._draining.ready():
            self._step(task)
        if over := list(self._draining.over()):
            self._close(over, clean=True)

    def _close(self, tasks: Sequence[Task], *, clean: bool) -> None:
        if not all(task.closed for task in tasks):
            if clean:
                self._commit_or_abort()
            else:
                others = tuple(task for task in self._tasks if task not in tasks)
                self._abandon()
                if others:
                    self._emit(Aborted(others, "a sibling on this thread was given up"))
        self._have([task for task in self._tasks if task not in tasks])
        for task in tasks:
            self._stepped.pop(task, None)
            task.discard()
            self._emit(Closed(task))
