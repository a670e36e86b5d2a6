"""Commits of one stream thread: records first, fence last.

    exactly-once   begin | outputs, changelogs, individual commits | flush | fence (offsets in the transaction) |
                   commit | database
    at-least-once  outputs | flush | the past of versioned rows | flush | changelogs | flush | individual commits
                   | flush | fenced OffsetCommit | database

A new owner takes the high watermark after it knows its generation. Every commit of an
earlier owner lies below it, because that owner's records were in the log before it
asked for the fence. With the fence first, records double (measured).

Invariant: the fence belongs to the epoch of the membership under which the tasks were
opened. Under another epoch it fails, so a member that was lost and came back cannot
commit its earlier work. Under at-least-once brokers do not fence records, so a zombie's
records may land above those of its successor: a later restore would go back to them,
and readers of the results would end with old ones. Hence the committer writes nothing
unless the group has answered within the session time-out. A commit waits for its
records no longer than that answer counts; then it gives them up. Between commits the
producer gives up a result that it could not send for a session time-out
(`instance.components`). Two cases remain: a process that is stopped within the
milliseconds in which it writes; and results (no changelogs) in front of a function that
runs for longer than the session, when no broker could be reached meanwhile.
Relies on: `commit.progress` (`plan`, and what is durable), `refusals` (careful
intervals), `commit.sink_transactions`.
Source: KIP-447 for the fence; docs/internals/positions.md for the order.
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from coopstreams.commit.broker_waits import Asking
from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import CommitPlan, ask, plan
from coopstreams.commit.records_per_commit import Interval
from coopstreams.commit.sink_transactions import Applying
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.group.claims import task_partition_of
from coopstreams.log import time_marks
from coopstreams.log.clocks import Mark
from coopstreams.log.log import (
    UNKNOWN_FOR_S,
    GroupFence,
    Log,
    Writer,
)
from coopstreams.state.layout import changelog_suffix_bytes
from coopstreams.state.task_state import ChangelogBatch
from coopstreams.tasks.failure_handlers import paused_without_registry
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import (
    DeliveryError,
    FencedError,
    LogError,
    MembershipLostError,
    UnknownTopicError,
)
from coopstreams.topology.failures import Failure

log = logging.getLogger(__name__)

RETRY_S = 0.5
CONFIRM_S = 60.0
"""The time between two updates of the time up to which the state of tasks is true
(`Committer.confirm`).
"""
MOST_IN_VAIN = 5
"""The number of failed aborts with a non-retryable error at which `abort` raises."""


class Membership(Protocol):
    """The parts of a group membership that a commit needs: `membership.GroupMember`."""

    def fence(self, epoch: int) -> AbstractContextManager[GroupFence]:
        """See `GroupMember.fence`."""
        ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        fence: GroupFence,
    ) -> None:
        """See `GroupMember.commit`."""

    def sure(self, epoch: int) -> bool:
        """Return whether this process certainly is a member of the group under an
        epoch: see `GroupMember.sure`.
        """
        ...

    def sure_s(self, epoch: int) -> float:
        """See `GroupMember.sure_s`."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """The names that a stream thread has at the brokers, and the topics to which it
    writes.
    """

    number: int
    """The number of the thread."""
    transactional_id: str
    changelog: Callable[[str], str]
    """Returns the changelog topic of a store, by its name."""
    written: Callable[[], frozenset[str]]
    """Returns all topics to which the application writes."""


class Committer:
    """Writes and commits for the tasks of one stream thread; used by that thread only."""

    def __init__(
        self,
        cluster: Log,
        member: Membership,
        follower: Follower,
        config: Config,
        places: Places,
        metrics: Metrics,
        refusals: Refusals,
        host: Host = SYSTEM,
    ) -> None:
        """Open a writer to the cluster. Under exactly-once it is transactional, and
        takes over the transactional id in `places`.
        """
        self._host = host
        self._log = cluster
        self._places = places
        self._transactional = config.exactly_once
        self._writer: Writer = cluster.writer(
            places.transactional_id if self._transactional else None,
            places.written,
        )
        self._member = member
        self._follower = follower
        self._metrics = metrics
        self._timeout_s = config["transaction.timeout.ms"] / 1000
        self._mark_interval_s = config["time.mark.interval.ms"] / 1000
        self._refusals = refusals
        self.careful = False
        """Whether each output of this interval is checked against its topic's settings.
        Tasks then step record by record.
        """
        self._latest: dict[tuple[Task, bytes], str] = {}
        """In a careful interval, the latest record of each key, in words."""
        self.asking = Asking(self._timeout_s, host)
        """The answer of the brokers for which a commit waits."""
        self.flushed_s = 0.0
        """How long the last commit flushed record caches, which runs the functions
        below them. Units: seconds.
        """
        self._epoch: int | None = None
        """The epoch of the membership in which the interval began; None: no interval is
        open.
        """
        limits = "transaction.timeout.ms", "session.timeout.ms"
        self.interval = Interval[Task](min(config[name] for name in limits) / 1000)
        """The tasks that have worked in this interval, and how much more they may do.
        """
        self._confirm_at = self._host.now() + CONFIRM_S

    @property
    def begun(self) -> bool:
        """Whether an interval is open: a task has worked since the last commit."""
        return self._epoch is not None

    def begin(self, task: Task) -> None:
        """Begin an interval for this task if none is open. All records written from now
        on count with the next commit.

        Raises:
            MembershipLostError: the task was opened under another epoch than that in
            which the interval began.
        """
        if self._epoch is None:
            self._epoch = task.epoch
            self.careful = self._refusals.expected
            if self._transactional:
                self.asking.begin(
                    "the brokers to begin a transaction"
                )  # which may take a new producer
                with self.asking.during():
                    self._writer.begin()
        elif self._epoch != task.epoch:
            raise MembershipLostError(
                f"{task} was opened in epoch {task.epoch} of the membership, but the commit under way is of epoch "
                f"{self._epoch}"
            )
        self.interval.begin(task, self._host.now())

    def claim(self, task: Task, others: Sequence[Task]) -> None:
        """Make a task's first positions durable, and under at-least-once its claim,
        before it processes records.

        `others`: the other tasks of this thread; their open interval is committed
        first.

        Raises:
            MembershipLostError, LogError: the claim may or may not have counted: open
            the task again.
        """
        begin = task.progress.begin()
        if self._transactional:
            if begin:
                with self.asking.during():
                    self._commit_first(task, begin, others)
            return
        # The four steps are in docs/internals/positions.md, "At-least-once".
        claim = plan([task.progress], self._follower, claim=True)
        self.asking.begin("the group coordinator to take its first offsets")
        with self.asking.during():
            if begin or claim.records:
                with self._member.fence(task.epoch) as fence:
                    self._member.commit(begin or ask(self._follower), fence)
                task.progress.begun()
            if not claim.records:
                return
            self._write_plan(claim)
            self._writer.flush(self._timeout_s)
            with self._member.fence(task.epoch) as fence:
                self._member.commit(claim.offsets, fence)
            task.progress.committed()

    def _commit_first(
        self,
        task: Task,
        begin: Mapping[TopicPartition, tuple[int, str]],
        others: Sequence[Task],
    ) -> None:
        """Commit a task's first positions in a transaction of their own.

        An unanswered plain commit may arrive late. As long as the generation lasts, the
        coordinator accepts it, and it would overwrite the position that a later
        transaction committed. Offsets of a transaction cannot arrive after its end.
        """
        if self.begun:
            self.commit(others)
        self.begin(task)
        self.asking.begin("the coordinators to take its first offsets")
        with self._member.fence(task.epoch) as fence:
            self._writer.send_offsets(begin, fence)
        self._writer.commit(self._timeout_s)
        self._end_interval()
        task.progress.begun()

    def write_outputs(self, task: Task) -> None:
        """Append the outputs of a task to the log. They count with the next commit.

        Raises:
            ProcessingError: Kafka refuses an output, and the production handler says
            `fail`.
            MembershipLostError: another member may have the task by now: these results
            may be older than those in the topic.
        """
        if self.careful and task.last_key is not None:
            self._latest[task, task.last_key] = task.last_step
        for output in task.program.outputs.values():
            if self.careful and len(output):
                self._refusals.leave_out(output, partial(task.refused, output.topic))
            if len(output):
                self._check_sure(task.epoch)
                output.append_to(self._append)
                self._metrics.produced(task.id, output.topic, len(output))
                task.tally.written[output.topic] += len(output)
                output.clear()
        if task.applying is not None:
            self._apply(task, task.applying)

    def mark_time(
        self,
        task: Task,
        source: TopicPartition,
        stream_time: int,
    ) -> None:
        """Append a time mark to a source partition of a task. It counts with the next
        commit.

        Raises:
            MembershipLostError: another member may have the task by now.
        """
        self._append_mark(
            task,
            source.topic,
            [source.partition],
            stream_time,
            time_marks.headers_of(stream_time),
        )

    def dead_letter(
        self,
        failure: Failure,
        headers: Headers,
        topic: str,
    ) -> None:
        """Write a failed record to a dead-letter topic, in the same commit as the
        results around it.

        A timestamp in the future becomes the current time: it may be what the record
        failed for, and the broker would refuse the dead letter, too.

        Raises:
            DeliveryError: the topic does not take the dead letter.
        """
        timestamp = min(failure.timestamp, self._host.wall_ms())
        if self.careful:
            reason = self._refusals.reason(
                topic,
                failure.key,
                failure.value,
                headers,
                timestamp,
            )
            if reason is not None:
                raise DeliveryError(
                    f"A dead letter that cannot be written cannot be left out either: {reason}. Change that setting, "
                    "or write less."
                )
        self._append(
            topic,
            [failure.key],
            [failure.value],
            [timestamp],
            headers=[headers],
        )

    def expect_refusals(self) -> None:
        """Have each output checked before it is written, from the next interval on,
        because Kafka has refused a record.
        """
        self._refusals.expect()

    def commit(self, tasks: Sequence[Task]) -> bool:
        """Make all work of these tasks durable; return False if there is nothing to
        commit.

        `tasks`: all tasks of this thread.

        Raises:
            MembershipLostError, LogError: the commit may or may not have counted: call
            `abort`, discard the tasks, open them again.
        """
        self.flushed_s = 0.0
        due = self._due(tasks)
        if self._epoch is None and not due:
            return False
        for task in due:
            self.begin(task)
        with self.asking.during():
            self._commit(due)
            self.asking.trouble = None
        return True

    def _commit(self, tasks: Sequence[Task]) -> None:
        """Commit these tasks, in the order of the module's docstring."""
        assert self._epoch is not None
        started = self._host.now()
        written = self._write(tasks)
        self.asking.begin("its results to be in the log")
        commit = plan([task.progress for task in tasks], self._follower)
        if not self._transactional:
            # outputs and changelogs are in the log before the positions and the marks
            self._flush()
        self._write_marks(tasks)
        self._write_plan(commit)
        self._flush()
        # Before the fence: after it, these offsets may lie behind records of a
        # successor, which are not in this state.
        checkpoints = self._checkpoints(
            tasks,
            {changelog: self._writer.delivered_to(changelog) for changelog in written},
        )
        true_ms = (
            self._host.wall_ms()
        )  # likewise: a process suspended after the fence may resume days later
        self.asking.begin("the coordinators to take its offsets")
        with self._member.fence(self._epoch) as fence:
            if self._transactional:
                self._writer.send_offsets(commit.offsets, fence)
            else:
                self._member.commit(commit.offsets, fence)
        if self._transactional:
            self.asking.begin("the transaction coordinator to commit")
            self._writer.commit(self._timeout_s)
        self.interval.committed(self._host.now() - started)
        self._end_interval()
        # Last: a database is never ahead of its changelogs.
        for task in tasks:
            task.commit(checkpoints[task], true_ms)
        self._metrics.committed(self._places.number, self._host.now() - started)

    def confirm(self, tasks: Sequence[Task]) -> None:
        """Note in the databases, every `CONFIRM_S`, that the state of tasks without
        changes is still true.

        Call it between two intervals. While the group has answered lately, no other
        member has written for these tasks: every changelog record of their keys,
        including tombstones, lies below the checkpoints.

        Raises:
            StateError: a database does not take the note.
        """
        if self._epoch is not None or self._host.now() < self._confirm_at:
            return
        self._confirm_at = self._host.now() + CONFIRM_S
        true_ms = (
            self._host.wall_ms()
        )  # before the group is asked: its answer covers the time up to now
        for task in tasks:
            if self._member.sure(task.epoch):
                task.state.confirm(true_ms)

    def abort(self) -> None:
        """Abort the interval; return when the writer can be used again, which needs the
        brokers.

        Raises:
            LogError: the writer can never be used again.
        """
        self._metrics.aborted(self._places.number)
        self._end_interval()
        in_vain = 0
        while True:
            try:
                self.asking.begin("the transaction coordinator to end its transaction")
                with self.asking.during():
                    self._writer.abort()
                return
            except LogError as error:
                in_vain += not (error.retryable or isinstance(error, FencedError))
                if in_vain >= MOST_IN_VAIN:
                    raise
                log.warning(
                    "stream thread %d cannot end its transaction: %s; trying again",
                    self._places.number,
                    error,
                )
                self._host.sleep(RETRY_S)

    def check_topics(self) -> None:
        """Check that all topics exist to which the application writes. Return without a
        check if the brokers do not answer.

        A client that cannot deliver does not always report a missing topic.

        Raises:
            UnknownTopicError: a topic is gone; names it.
        """
        deadline = self._host.now() + UNKNOWN_FOR_S
        while True:
            try:
                missing = self._places.written() - self._log.partitions().keys()
            except LogError:
                return
            if not missing:
                return
            if self._host.now() > deadline:
                raise UnknownTopicError(
                    f"the application writes to {', '.join(sorted(missing))}, which Kafka has no longer. If you have "
                    "created it, create it again; of a topic that the application has made, the next start says what "
                    "is lost, and the cures."
                )
            self._host.sleep(0.2)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _due(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks to commit: those with something to commit, and their
        siblings, which share changelogs.
        """
        partitions = {
            task_partition_of(task.id)
            for task in tasks
            if task in self.interval.tasks
            or task.progress.moved
            or task.progress.mirror_due(self._follower)
            or self._marks_of(task)
        }
        return [task for task in tasks if task_partition_of(task.id) in partitions]

    def _end_interval(self) -> None:
        self._epoch = None
        self.interval.tasks.clear()
        self._latest.clear()

    def _write(self, tasks: Sequence[Task]) -> set[TopicPartition]:
        """Flush the record caches, write outputs and changelogs; return the changelog
        partitions written to.

        Under at-least-once the outputs are in the log before the changelogs are
        written. A crash may leave changelogs ahead of the positions, and a restored
        state that has emitted a result (closed a window) does not emit it again. In the
        same way the past of versioned rows is in the log before the rows: a repeated
        record finds its own version in the row, and would not move the version before
        it into the past.
        """
        changes = [(task, batch) for task in tasks for batch in self._flushed(task)]
        if changes and not self._transactional:
            self._flush()
        past: list[tuple[Task, ChangelogBatch]] = []
        rows: list[tuple[Task, ChangelogBatch]] = []
        for task, batch in changes:
            of_past = batch.store in task.state.pasts
            (past if of_past else rows).append((task, batch))
        written = self._write_changelogs(past)
        if written and not self._transactional:
            self._flush()
        return written | self._write_changelogs(rows)

    def _flushed(self, task: Task) -> Sequence[ChangelogBatch]:
        """Flush a task's record caches and write its outputs; return the changes of its
        stores.
        """
        began = self._host.now()
        with paused_without_registry(task.id):
            changes = task.flush()
        self.flushed_s += self._host.now() - began
        self.write_outputs(task)
        if task.applying is not None:
            self._apply(task, task.applying, all_of_it=True)
        return changes

    def _write_changelogs(
        self,
        batches: Iterable[tuple[Task, ChangelogBatch]],
    ) -> set[TopicPartition]:
        """Write changes to the changelogs; return the partitions written to."""
        written: set[TopicPartition] = set()
        for task, batch in batches:
            self._check_sure(task.epoch)
            changelog = TopicPartition(
                self._places.changelog(task.state.stores[batch.store].spec.name),
                task.id.partition,
            )
            if self.careful:
                self._check_rows(task, batch, changelog.topic)
            self._append(
                changelog.topic,
                batch.keys,
                batch.values,
                batch.timestamps,
                partitions=changelog.partition,
            )
            self._metrics.produced(task.id, changelog.topic, len(batch.keys))
            written.add(changelog)
        return written

    def _append(self, *records: Any, **columns: Any) -> None:
        """Append records, in batches that their topic takes: see `Refusals.append`.

        While brokers do not answer, it may wait for room in the client's queue.
        """
        with self.asking.awaiting("its client's queue to take records"):
            self._refusals.append(self._writer, self._timeout_s, *records, **columns)

    def _check_rows(
        self,
        task: Task,
        batch: ChangelogBatch,
        changelog: str,
    ) -> None:
        """Check that a changelog takes all rows of a store. No row can be left out.

        Raises:
            DeliveryError: it refuses one; names the row, and the record that changed
            it.
        """
        spec = task.state.stores[batch.store].spec
        rows = zip(batch.keys, batch.values, batch.timestamps, strict=True)
        for key, value, timestamp in rows:
            reason = self._refusals.reason(changelog, key, value, None, timestamp)
            if reason is None:
                continue
            plain_key = key[: len(key) - changelog_suffix_bytes(spec)]
            made = ""
            if latest := self._latest.get((task, plain_key)):
                made = f"The latest record of its key is {latest}. "
            elif records := task.uncommitted:  # of other keys: a processor's row
                made = f"The record that changed it last is among {records}. "
            raise DeliveryError(
                f'A row of store "{batch.store}" of {task} cannot be written: {reason}. {made}'
                "production.exception.handler does not apply to rows of a store: the state would lose what earlier "
                "records have put into the row. Keep less in it, or change that setting: a larger row needs both the "
                "topic's max.message.bytes and the application's producer.message.max.bytes. A function that raises "
                "before its row is too large passes the record to processing.exception.handler."
            )

    def _checkpoints(
        self,
        tasks: Sequence[Task],
        ends: Mapping[TopicPartition, int],
    ) -> dict[Task, dict[str, int]]:
        """Return the changelog offset of each store of each task. `ends`: the ends of
        the changelogs.

        A task that wrote nothing gets a new checkpoint, too. The records since its last
        one are its siblings', and need not be read when it is opened again.
        """
        checkpoints: dict[Task, dict[str, int]] = {task: {} for task in tasks}
        for task in tasks if ends else ():
            for name, table in task.state.stores.items():
                changelog = TopicPartition(
                    self._places.changelog(table.spec.name),
                    task.id.partition,
                )
                if changelog in ends:
                    checkpoints[task][name] = ends[changelog]
        return checkpoints

    def _apply(
        self,
        task: Task,
        applying: Applying,
        *,
        all_of_it: bool = False,
    ) -> None:
        """Apply a task's records to its external sink.

        Raises:
            SinkUnavailableError, FencedError: they may or may not have counted.
            ProcessingError: the sink refuses a record, and the production handler says
            `fail`.
        """
        with self.asking.awaiting(
            f'sink "{applying.sink}" to take its records',
            of_brokers=False,
        ):
            if applied := task.apply(all_of_it=all_of_it):
                self._metrics.produced(task.id, applying.sink, applied)

    def _flush(self) -> None:
        """Wait until all records are in the log; under at-least-once no longer than
        this member surely has its tasks.

        Raises:
            DeliveryError: they are not in the log; `abort` gives them up.
        """
        assert self._epoch is not None
        sure_s = (
            self._timeout_s if self._transactional else self._member.sure_s(self._epoch)
        )
        with self.asking.awaiting("its results to be in the log"):
            self._writer.flush(min(self._timeout_s, sure_s))

    def _check_sure(self, epoch: int) -> None:
        """Check that this member certainly has its tasks: under at-least-once brokers
        do not fence records.

        Raises:
            MembershipLostError: another member may own the tasks, and its records would
            be overwritten by older ones.
        """
        if not self._transactional and not self._member.sure(epoch):
            raise MembershipLostError(
                f"group {self._follower.group} has not answered this process lately; another member may have its tasks"
            )

    def _marks_of(self, task: Task) -> dict[str, int]:
        """Return the time marks of a task that are due, by topic."""
        if not task.timed:
            return {}
        times = task.program.marks()
        return task.marks.due(times, self._host.now(), self._mark_interval_s)

    def _write_marks(self, tasks: Sequence[Task]) -> None:
        """Write the due time marks to each partition of their topics, behind all
        records that these tasks have written.

        Raises:
            MembershipLostError: another member may have the tasks by now.
        """
        for task in tasks:
            marks = self._marks_of(task)
            task.marks.stage(marks, self._host.now())
            for topic, stream_time in marks.items():
                mark = Mark.of(task.id.partition, task.id.key_range, stream_time)
                count = task.program.partitions(topic)
                self._append_mark(
                    task,
                    topic,
                    list(range(count)),
                    stream_time,
                    mark.headers,
                )
                self._metrics.clock_marked(task.id, topic, count)

    def _append_mark(
        self,
        task: Task,
        topic: str,
        partitions: list[int],
        stream_time: int,
        headers: Headers,
    ) -> None:
        """Append a time mark of a task to partitions of a topic.

        A topic may refuse timestamps in the future, so the timestamp of a mark is never
        later than now.

        Raises:
            MembershipLostError: another member may have the task by now.
        """
        self._check_sure(task.epoch)
        at = max(0, min(stream_time, self._host.wall_ms()))
        count = len(partitions)
        self._append(
            topic,
            [None] * count,
            [None] * count,
            [at] * count,
            partitions=partitions,
            headers=[headers] * count,
        )

    def _write_plan(self, commit: CommitPlan) -> None:
        """Append the individual commits of a plan to the commit topic."""
        if commit.records:
            now = self._host.wall_ms()
            keys = [key for key, _ in commit.records]
            values = [value for _, value in commit.records]
            where = self._follower.partition
            self._writer.append(
                where.topic,
                keys,
                values,
                [now] * len(keys),
                partitions=where.partition,
            )
