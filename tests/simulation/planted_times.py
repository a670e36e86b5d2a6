"""Planted bugs of operator times: see `planted`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from coopstreams.commit.progress import Progress
from coopstreams.log.log import Position
from coopstreams.state.checkpoints import NOTHING_OBSERVED, Checkpoint
from coopstreams.state.restore import Restore
from coopstreams.state.task_state import TaskState
from coopstreams.tasks import pending_calls
from coopstreams.tasks import task as tasks_at_work
from coopstreams.tasks.pending_calls import PendingCalls, SourceInFlight, WaitingRecord
from coopstreams.tasks.queues import SourceQueues
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.operators.join_memory import EmissionGate, _Side
from coopstreams.topology.operators.moving_windows import Closing
from tests.simulation import world


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


def newest_of_all_rows() -> AbstractContextManager[Any]:
    """Records of a join expire by all rows of the task, also by those of an earlier
    owner of other keys.
    """
    init = _Side.__init__

    def newest(self: _Side, store: Any, retention_ms: int) -> None:
        init(self, store, retention_ms)
        self._newest = self._swept = self._of_all[0]

    return patch.object(_Side, "__init__", newest)


def begun_with_the_partition() -> AbstractContextManager[Any]:
    """Windows below a filter expire by the stream time of their partition when a task
    begins.
    """
    return patch.object(tasks_at_work, "operators_of", lambda _: {})


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
    parts = tasks_at_work._parts
    return patch.object(
        tasks_at_work, "_parts", lambda segments, **_: parts(segments, apart=False)
    )
