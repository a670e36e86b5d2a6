"""A stream thread: it processes its tasks, writes their outputs, and commits them
together.

Invariant: its inbox is bounded. The dispatcher bounds the records; of batches without
records only the last of each partition is kept.
Invariant: its tasks take turns. A task whose records outlast a step goes on behind the
messages that came meanwhile.
Invariant: only this thread touches a task's state, program and progress, from `open` to
`Closed` or `Aborted`.
Invariant: no work of an interval counts unless its commit succeeded. After any doubt
about the outcome the tasks are discarded and opened again from the log, which has the
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
    Drains,
    Event,
    Failed,
    ThreadEnded,
)
from coopstreams.tasks.failure_handlers import paused_without_registry
from coopstreams.tasks.record_retries import TriedLaterError
from coopstreams.tasks.repeated_timeouts import InVain, Outlasting, OutlastingError
from coopstreams.tasks.task import Task
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
"""How often a thread that waits for its start updates `moved_at`."""
PUBLISHED_S = 0.1
"""The shortest time between two publications of the tasks' figures."""
PUBLISHING_PART = 0.05
"""The largest share of its time that a thread spends on publishing figures: it may have
a thousand tasks.
"""
IDLE_S = 1.0
"""The longest time for which an idle thread does not update `moved_at`."""
FLUSH = (
    "the flush of record caches, which runs the functions below them (record by record with "
    "statestore.cache.max.bytes=0),"
)
"""The flush before a commit, in words, for messages."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """The message that gives the thread a task."""

    task: Task


@dataclass(frozen=True, slots=True)
class Records:
    """The message that gives a task records."""

    task: Task
    batch: RecordBatch


@dataclass(slots=True, eq=False)
class Moved:
    """A batch without records: it moves a task's partition to a later position or time.

    While the message waits, a later batch of the partition takes the place of this one.
    So a busy thread has one message for each partition, not one for each fetch.
    """

    task: Task
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class TimeMark:
    """The message to append a time mark with this stream time to a silent source of a
    task.
    """

    task: Task
    source: TopicPartition
    stream_time: int


@dataclass(frozen=True, slots=True)
class Promised:
    """The message that a task promises these times, by topic: to the readers of timed
    topics, or to itself those of topics of the user.

    `ends`: the offsets up to which its silent sources were read.
    """

    task: Task
    ends: Mapping[TopicPartition, int]
    times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CallsEnded:
    """The message that calls of a task's asynchronous operators have ended."""

    task: Task


@dataclass(frozen=True, slots=True)
class Turn:
    """The message that it is the turn of a task that had records left."""

    task: Task


@dataclass(frozen=True, slots=True)
class Leaving:
    """The message to close tasks. `clean`: commit what they have done first."""

    tasks: tuple[Task, ...]
    clean: bool


@dataclass(frozen=True, slots=True)
class Hurry:
    """The message to wait for no calls of tasks that are being closed."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The message that ends a pause."""


@dataclass(frozen=True, slots=True)
class CommitDue:
    """The message that wakes an idle thread: siblings may have committed, so that it
    has to commit, too.

    It only ends the wait. The loop commits if a commit is due.
    """


@dataclass(frozen=True, slots=True)
class Look:
    """The message to call a function with a task. It finds what the last commit has
    made durable: the database and the committed progress change in commits only.
    """

    task: Task
    function: Callable[[Task], None]


@dataclass(frozen=True, slots=True)
class End:
    """The message to commit and end the thread."""


Message: TypeAlias = (
    NewTask
    | Records
    | Moved
    | TimeMark
    | Promised
    | CallsEnded
    | Turn
    | Leaving
    | Hurry
    | Resumed
    | CommitDue
    | Look
    | End
)


class StreamThread:
    """One thread of an instance. The control thread calls its methods, which return at
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
        drain_s: float = 0.0,
        rests_s: float = 0.0,
        host: Host = SYSTEM,
    ) -> None:
        """Make the thread; `start` starts it.

        `drain_s`: how long a task that is closed waits for its calls. `rests_s`: how
        long the thread waits before its first message, unless tasks are closed or it is
        stopped.
        """
        self.number = number
        self._host = host
        self.backlog = 0
        """The number of records delivered and not yet processed. The dispatcher bounds
        it.
        """
        self.moved_at = host.now()
        """The last time at which this thread showed that it is alive. Units:
        `Host.now`.
        """
        self.ident: int | None = None
        """The id of the Python thread that runs this one; None: it has not started."""
        self.committer = committer
        self._emit = emit
        self._interval = commit_interval_s
        self._inbox: Inbox[Message] = host.inbox()
        self._moved: dict[Task, dict[TopicPartition, Moved]] = {}
        """For each task, the `Moved` messages in the inbox that lie behind all of its
        records.
        """
        self._have([])
        self._in_turn: dict[Task, int] = {}
        """The tasks that wait for their next turn, with the number of their records
        that count as backlog.
        """
        self._stepped: dict[Task, None] = {}
        """The tasks that have processed records since the last check whether their
        write buffers are full.
        """
        self._thread = host.thread(self._run, f"stream-{number}")
        self._lock = threading.Lock()
        self._due = 0.0
        """The time (`Host.now`) of the next commit."""
        self._idle = False
        """Whether the last due commit had nothing to commit, and no message has come
        since.
        """
        self._in_vain = InVain()
        self._outlasting = outlasting
        self._idle_s = min(IDLE_S, outlasting.least_s / 3)
        self._drain_s = drain_s
        self._draining = Draining(drain_s, host)
        self._slowest = 0.0, ""
        """The longest call since the last commit: its seconds, and its name."""
        self._epoch: int | None = None
        """The epoch of the task that was opened last."""
        self._publish_at = 0.0
        """The earliest time of the next publication of figures."""
        self._worked = False
        """Whether the tasks' figures may differ from those published."""
        self._rests_s = rests_s
        self._awake = host.signal()
        self._paused = False

    def successor(self, rests_s: float) -> StreamThread:
        """Return a new thread, not yet started, that replaces this dead one. It has the
        same transactional id.
        """
        made = StreamThread(
            self.number,
            self.committer,
            self._emit,
            self._interval,
            self._outlasting,
            drain_s=self._drain_s,
            rests_s=rests_s,
            host=self._host,
        )
        made._paused = self._paused
        return made

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def open(self, task: Task) -> None:
        """Give the thread a task."""
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
        """Append a time mark to a silent source of a task. It counts with the next
        commit.
        """
        self._inbox.put(TimeMark(task, source, stream_time))

    def promise(
        self,
        task: Task,
        ends: Mapping[TopicPartition, int],
        times: Mapping[str, int],
    ) -> None:
        """Promise times to the readers of timed topics.

        `ends`: the offsets up to which the silent sources were read.
        """
        self._inbox.put(Promised(task, ends, times))

    def close(self, tasks: tuple[Task, ...], *, clean: bool) -> None:
        """Close these tasks; a `Closed` event follows for each. `clean`: commit first;
        otherwise discard what is uncommitted.

        Records in their queues are left to the next owner. So a hand-over takes as long
        as one record, or as the calls being made, not as long as a queue.
        """
        for task in tasks:
            task.leaving = True
        self._inbox.put(Leaving(tasks, clean))
        self._awake.set()

    def look(self) -> None:
        """Wake an idle thread if it may have something to commit."""
        if self._idle and any(task.progress.mirrors for task in list(self._tasks)):
            self._inbox.put(CommitDue())

    def pause(self, paused: bool) -> None:
        """Pause or resume the processing of records and punctuations.

        A paused thread still takes records in, up to the dispatcher's bounds, and
        commits those that it has processed.
        """
        goes_on = self._paused and not paused
        self._paused = paused
        if goes_on:  # last: the thread may take the message at once
            self._inbox.put(Resumed())

    def look_at(self, task: Task, function: Callable[[Task], None]) -> None:
        """Have the thread call a function with a task, as it is since its last commit.
        A task that is closed by then is left out. The function must not raise.
        """
        self._inbox.put(Look(task, function))

    def retire(self) -> None:
        """Commit and end the thread after the messages sent so far. A `ThreadEnded`
        event follows.
        """
        self._inbox.put(End())
        self._awake.set()

    def hurry(self) -> None:
        """Wait for no calls of tasks that are closed, now or later. Signal handlers may
        call it.
        """
        self._inbox.put(Hurry())

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Commit and end the thread; return whether it ended within the time."""
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
        """Publish the figures of the tasks, if they may have changed and the last
        publication is long enough ago.
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
        """Wait for the next message and return it; None: the wait timed out."""
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
        """Return how long the thread may wait for a message: until a commit, a
        punctuation or a task is due.
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
            case Hurry():
                self._draining.hurry()
            case Look(task, function) if not task.closed:
                function(task)
            case Resumed():
                for task in list(self._tasks):
                    self._step(task)

    def _advance_time(self, message: TimeMark | Promised) -> None:
        """Append a time mark to a silent source, or promise times in the topics that a
        task writes.
        """
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
                task.promise(source, message.times)
            if task.own_sources:  # the promise releases records of other sources
                self._step(task)

    def _wake(self) -> None:
        """Note that the thread is no longer idle, and set the time of the next commit:
        a whole number of commit intervals after the last due time.
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
        """Set the tasks of this thread. Those that need regular checks are listed
        apart: there may be a thousand tasks.
        """
        self._tasks = tasks
        self._merging = [task for task in tasks if len(task.sources) > 1]
        self._punctuating = [task for task in tasks if task.program.may_punctuate]
        self._calling = any(task.calls is not None for task in tasks)

    def _forget(self, message: Moved) -> None:
        """Take this message out of `_moved`: the next batch without records makes a new
        one.
        """
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
        """Add to the number of records that wait in this thread; a negative number
        removes them.
        """
        with self._lock:
            self.backlog += records

    def _wait_for_turn(self, task: Task) -> None:
        """Queue a task's next turn behind the messages that wait."""
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
        """Process the records of a task until none is left, it has to wait for calls,
        or it is another task's turn.
        """
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
        """Return whether a task may process records. A leaving task processes only
        those whose calls were begun.
        """
        return (
            not self._paused
            and not task.closed
            and (not task.leaving or task.calls is not None)
        )

    def _write_outputs(self, task: Task) -> None:
        """Write a task's outputs, and commit if a commit is due.

        Called after each step: commits, heartbeats and revocations must not wait until
        slow functions end the batch.
        """
        self._stepped[task] = None
        self._worked = True
        self.committer.write_outputs(task)
        self._commit_if_due()
        self._publish_if_due()

    @contextmanager
    def _timed(self, task: Task, call: str = "") -> Iterator[None]:
        """Time the functions of a task that run inside; remember a slow call by the
        name `call`, or as the task's last step.

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
        """Log and remember a call that may have outlasted a time-out of the broker or
        the group.
        """
        log.warning("stream thread %d: %s took %.0f s", self.number, call, seconds)
        self._slowest = max(self._slowest, (seconds, call))

    def _go_on(self) -> None:
        """Process the records of tasks whose wait for another source has ended."""
        now = self._host.now()
        for task in [task for task, until in self._waiting() if until <= now]:
            self._step(task)

    def _waiting(self) -> list[tuple[Task, float]]:
        """Return the tasks that wait for another source, and until when. Leaving tasks
        take no more records, and are left out.
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
        """Return whether a commit is needed to make room: in the write buffers of a
        task, or for records in the interval.
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
        """Discard all tasks, to be opened again from the log. The records that were not
        delivered may be those of any task.
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
        """Raise the error if repetition cannot cure it.

        Raises:
            LogError: no repetition helps; the error names the topics that are gone, if
            any.
            OutlastingError: one call takes too long each time.
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
        """Return the records of all tasks since the last commit, in words."""
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
        """Close tasks, or let their calls end first."""
        drains = clean and not self._paused  # their results could not be processed
        if now := [
            task for task in tasks if not drains or not self._draining.begin(task)
        ]:
            self._close(now, clean=clean)

    def _close_drained(self) -> None:
        """Close the draining tasks whose calls have ended, or whose time is over, and
        report those that take long.
        """
        for task in self._draining.ready():
            self._step(task)
        for task in self._draining.slow():
            self._emit(Drains(task))
        # A paused thread could not process the results.
        if over := list(self._draining.over(all_of_them=self._paused)):
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
