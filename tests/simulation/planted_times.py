"""Planted bugs of operator times: see `planted`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any
from unittest.mock import patch

from coopstreams.commit import view
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Ahead
from coopstreams.instance.source_times import SourceTimes
from coopstreams.log import batches
from coopstreams.log.clocks import UNHEARD, Clock, Mark
from coopstreams.log.log import Position
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.state.checkpoints import NOTHING_OBSERVED, Checkpoint
from coopstreams.state.restore import Restore
from coopstreams.state.task_state import TaskState
from coopstreams.tasks import birth_order, incarnation, mark_schedule, pending_calls
from coopstreams.tasks import task as tasks_at_work
from coopstreams.tasks.birth_order import BirthOrder
from coopstreams.tasks.committer import Committer
from coopstreams.tasks.mark_schedule import MarkSchedule
from coopstreams.tasks.pending_calls import PendingCalls, SourceInFlight, WaitingRecord
from coopstreams.tasks.queues import SourceQueues
from coopstreams.tasks.stream_thread import Promised, StreamThread
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import Columns
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.operators.join_memory import (
    EmissionGate,
    _LiveSide,
    _NativeSide,
)
from coopstreams.topology.operators.moving_windows import Closing
from tests.simulation import world
from tests.simulation.fibers import Scheduler
from tests.simulation.world import World


def behind_siblings() -> AbstractContextManager[Any]:
    """The position of a step that ends within a batch is behind siblings' records whose
    time is unknown.
    """
    take = SourceQueues._take

    def far(name: Any, source: Any, *given: Any, **ties: Any) -> Any:
        batch = source.waiting[0]
        step = take(name, source, *given, **ties)
        cut = source.waiting and source.waiting[0] is batch and batch.left
        return (
            replace(step, next_offset=batch.columns.offsets[batch.begun])
            if cut
            else step
        )

    return patch.object(SourceQueues, "_take", staticmethod(far))


def at_who_waits() -> AbstractContextManager[Any]:
    """The position of a commit is that of the waiting record, with the time of the one
    before it.
    """

    def waiting(
        taken: Any, row: int, offset: int, waits_for: int, before: Position, calls: Any
    ) -> WaitingRecord:
        return WaitingRecord(
            taken, row, offset, waits_for, Position(offset, before.stream_time), calls
        )

    return patch.object(pending_calls, "WaitingRecord", waiting)


def own_time() -> AbstractContextManager[Any]:
    """A task that takes over from several owners has only the time of its own records."""
    return patch.object(Progress, "parted", property(lambda _: False))


def times_of_the_reader() -> AbstractContextManager[Any]:
    """Below a call, records are late by the reader's operator times, which start again
    with each owner.
    """
    return patch.object(
        SourceInFlight,
        "operator_times_of",
        lambda self, step: step.columns.operator_times,
    )


@contextmanager
def newest_of_all_rows() -> Iterator[None]:
    """Records of a join expire by all rows of the task, also by those of an earlier
    owner of other keys.
    """
    with ExitStack() as patched:
        for side in (_LiveSide, _NativeSide):
            patched.enter_context(patch.object(side, "__init__", _by_all(side)))
        yield


def _by_all(side: type[_LiveSide | _NativeSide]) -> Callable[..., None]:
    init: Callable[..., None] = side.__init__

    def newest(
        self: Any,
        store: Any,
        retention_ms: int,
        _: int,
        of_all: list[int],
        found: Any,
    ) -> None:
        init(self, store, retention_ms, of_all[0], of_all, found)

    return newest


def begun_with_the_partition() -> AbstractContextManager[Any]:
    """Windows below a filter expire by the stream time of their partition when a task
    begins.
    """
    return patch.object(incarnation, "operators_of", lambda _: {})


@contextmanager
def observed_by_restored() -> Iterator[None]:
    """Key groups with no restored window get the observed window start of those
    restored with them.

    The seed was found when tasks did not tell what stores without changes have
    observed.
    """
    checkpoints = Restore._checkpoints

    def unbounded(self: Restore, groups: Sequence[int]) -> Iterator[Checkpoint]:
        for one in checkpoints(self, groups):
            known = [
                group
                for group in one.groups.numbers
                if self._seen[group] != NOTHING_OBSERVED
            ]
            expired = (min(self._seen[group], self._times[group]) for group in known)
            yield replace(one, observed=min(expired, default=NOTHING_OBSERVED))

    with (
        patch.object(Restore, "_checkpoints", unbounded),
        patch.object(TaskState, "_observed", lambda *_: {}),
    ):
        yield


@contextmanager
def expired_in_a_snapshot() -> Iterator[None]:
    """A snapshot tells the smallest window start of its key groups, although windows
    are missing by the largest one. Every history has snapshots.
    """

    def smallest(self: Restore, run: Checkpoint) -> Iterator[Checkpoint]:
        seen, times = (
            each[run.first : run.last + 1] for each in (self._seen, self._times)
        )
        starts = [start for start in seen if start != NOTHING_OBSERVED]
        yield replace(run, observed=min(*starts, *times)) if starts else run

    with (
        patch.object(world, "SHELVES", 1.0),
        patch.object(Restore, "_observing", smallest),
    ):
        yield


def gate_of_siblings() -> AbstractContextManager[Any]:
    """Only the task that takes a record emits unmatched ones that it makes due."""
    return patch.object(
        BoundProgram,
        "elsewhere",
        property(lambda _: False, lambda *_: None),
        create=True,
    )


def search_of_siblings() -> AbstractContextManager[Any]:
    """Unmatched records wait for those that a sibling's search has seen last, which may
    be ahead.
    """
    return patch.object(EmissionGate, "open", lambda self, now: self.look(now, 0))


def closed_by_others() -> AbstractContextManager[Any]:
    """Windows of a task count as forwarded up to the time of the part of its range that
    is furthest ahead.
    """
    return patch.object(Closing, "_part_of", lambda *_: ())


def no_operator_times() -> AbstractContextManager[Any]:
    """Commits lack operator times."""
    return patch.object(BoundProgram, "operator_times", lambda *_: ())


def behind_its_commit() -> AbstractContextManager[Any]:
    """A commit has the time before the first waiting record, which the program has not
    reached.
    """
    reached = PendingCalls.reached

    def untold(self: PendingCalls) -> Iterator[Any]:
        deque(reached(self), 0)  # the sources advance, but the program is not informed
        return iter(())

    return patch.object(PendingCalls, "reached", untold)


def one_for_all_owners() -> AbstractContextManager[Any]:
    """Under at-least-once, too, key groups whose commits are at one position count as
    one part.
    """
    parts = incarnation.parts_of
    return patch.object(
        tasks_at_work, "parts_of", lambda segments, **_: parts(segments, apart=False)
    )


def newest_mark() -> AbstractContextManager[Any]:
    """The clock of a timed topic is its newest mark, whoever has written it."""

    def hear(self: Clock, mark: Mark) -> None:
        self.now = max(self.now, mark.time)

    return patch.object(Clock, "hear", hear)


def late_by_arrival() -> AbstractContextManager[Any]:
    """In a timed topic, too, a record is late by those that arrived before it."""
    clocked = batches._clocked

    def arrived(
        where: Any, columns: Columns, routes: Any, clock: Any, before: int
    ) -> Any:
        records, after = clocked(where, columns, routes, clock, before)
        times = accumulate(records.timestamps, max, initial=before)
        records.births = list(times)[1:]
        return records, after

    return patch.object(batches, "_clocked", arrived)


@contextmanager
def silent_to_the_reader() -> Iterator[None]:
    """A clock leaves out the partitions of which the reader has heard nothing for some
    seconds.
    """
    begin, hear = Scheduler.__init__, Clock.hear
    schedulers: list[Scheduler] = []

    def begun(self: Scheduler, *given: Any) -> None:
        begin(self, *given)
        schedulers[:] = [self]

    def heard(self: Clock, mark: Mark) -> None:
        hear(self, mark)
        now = schedulers[0].now
        at = self.__dict__.setdefault("heard_at", {})
        at[mark.partition] = now
        lately = [self._least[one] for one, when in at.items() if now - when < 3.0]
        self.now = max(self.now, min(lately, default=UNHEARD))

    with (
        patch.object(Scheduler, "__init__", begun),
        patch.object(Clock, "hear", heard),
    ):
        yield


@contextmanager
def marks_of_what_waits() -> Iterator[None]:
    """A mark has the time that is reached when everything that was delivered has been
    processed.
    """
    add, marks = Task.add, Committer._marks_of

    def added(self: Task, batch: Any) -> None:
        add(self, batch)
        times = self.program._compiled.operator_times[batch.partition.topic]
        known = dict(zip(times, batch.operator_times, strict=False))
        self.marks.__dict__["delivered"] = {
            topic: known.get(node, -1)
            for topic, node in self.program._timed_sinks.items()
        }

    def due(self: Committer, task: Task) -> dict[str, int]:
        delivered = task.marks.__dict__.get("delivered", {})
        return {
            topic: max(time, delivered.get(topic, -1))
            for topic, time in marks(self, task).items()
        }

    with patch.object(Task, "add", added), patch.object(Committer, "_marks_of", due):
        yield


@contextmanager
def marks_beside_their_commit() -> Iterator[None]:
    """Marks are not in the transaction of the records that they speak of."""
    begin, write = World.__init__, Committer._write_marks
    worlds: list[World] = []

    def begun(self: World, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        worlds[:] = [self]

    def beside(_: Committer, *given: Any, **named: Any) -> None:
        MemoryWriter(worlds[0].cluster.state, None).append(*given, **named)

    def written(self: Committer, tasks: Sequence[Task]) -> None:
        with patch.object(Committer, "_append", beside):
            write(self, tasks)

    with (
        patch.object(World, "__init__", begun),
        patch.object(Committer, "_write_marks", written),
    ):
        yield


@contextmanager
def marks_of_news_only() -> Iterator[None]:
    """A task writes a mark only where its time has advanced since it was opened: not
    for the key groups of a new cut, and not again for readers that open.
    """
    due = MarkSchedule.due

    def news(
        self: MarkSchedule, times: Mapping[str, int], now: float, interval_s: float
    ) -> dict[str, int]:
        for topic, time in times.items():
            self._told.setdefault(topic, (time, now))
        return due(self, times, now, interval_s)

    with (
        patch.object(mark_schedule, "REPEAT_S", math.inf),
        patch.object(MarkSchedule, "due", news),
    ):
        yield


def promised_over_waiting_records() -> AbstractContextManager[Any]:
    """A task promises although records that were delivered before still wait."""
    advance = StreamThread._advance_time

    def regardless(self: StreamThread, message: Any) -> None:
        if isinstance(message, Promised):
            message = replace(message, ends=dict.fromkeys(message.ends, 0))
        advance(self, message)

    return patch.object(StreamThread, "_advance_time", regardless)


def ahead_again() -> AbstractContextManager[Any]:
    """In the order of births, a successor does again what is done above the position."""
    return patch.object(Ahead, "has", lambda *_: False)


def beyond_what_waits() -> AbstractContextManager[Any]:
    """In the order of births, the position of a commit is behind the records that wait
    for the clock.
    """
    born = Progress.born_up_to

    def read(self: Progress, partition: Any, _: int, ahead: Ahead) -> None:
        born(self, partition, ahead.read_to, ahead)

    return patch.object(Progress, "born_up_to", read)


def before_the_clock() -> AbstractContextManager[Any]:
    """In the order of births, records come by their births, but as soon as they are
    read: the clock need not have reached them.
    """
    release = birth_order._Source.release
    return patch.object(
        birth_order._Source, "release", lambda self, _: release(self, 1 << 62)
    )


def time_of_the_lowest() -> AbstractContextManager[Any]:
    """In the order of births, too, the stable offset has the time of the part with the
    lowest position, and windows are deleted by it that another part still needs.
    """
    return patch.object(view, "earliest", view.lowest)


def beside_the_order() -> AbstractContextManager[Any]:
    """A topic of the user holds up nobody: records of timed topics need not wait until
    it was read that far.
    """

    def least(self: BirthOrder) -> int:
        return min(source.clock for _, source in self._in_order if not source.own)

    return patch.object(BirthOrder, "_clock", property(least))


def where_it_was_read() -> AbstractContextManager[Any]:
    """The position of a user's topic is where it was read, although records of it wait
    for the clock of a timed topic.
    """

    def told(self: birth_order._Source, _: int) -> Position:
        last = self.ends[-1]
        self.ends.clear()
        return last

    return patch.object(birth_order._Source, "told", told)


def silent_beside_others() -> AbstractContextManager[Any]:
    """A silent topic promises no time of a topic that is read with it."""
    return patch.object(SourceTimes, "_times_beside", lambda *_: {})
