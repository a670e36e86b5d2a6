"""The opener: a thread that opens tasks. It waits for the barrier, learns the positions
and restores the state.

    barrier    the true end of the commit topic, taken after the generation is known; wait until everything below it is
               read
    positions  individual commits and the group's plain offset -> segments, term
    restore    each changelog to the end it has now, filtered by key range, beside the tasks that run
    sink       of a task with an external sink: a session there, which ends all earlier ones

It also gives back the databases of closed tasks, and deletes what has moved away: in the
order of its requests, so a task that comes back finds its database closed.

Invariant: a task is open only when its barrier is passed (`commit.barrier`) and its
state matches its positions.
Relies on: `commit.positions`, `restores`, `standbys` (which give way to tasks),
`state.directory` (`enter` and `leave`: who has a database open).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.commit.barrier import Barrier, Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import Progress
from coopstreams.common.host import (
    SYSTEM,
    Empty,
    Host,
    Inbox,
)
from coopstreams.group.holdings import Assigned
from coopstreams.group.membership import GroupMember
from coopstreams.opening.restores import Restores
from coopstreams.opening.sink_openings import SinkOpenings
from coopstreams.opening.standbys import StandbyFigures, Standbys
from coopstreams.state.database import Database
from coopstreams.state.directory import Databases
from coopstreams.state.restore import RestoreProgress
from coopstreams.state.snapshot_download import DownloadProgress
from coopstreams.tasks.events import (
    Cancelled,
    Event,
    Failed,
    Opened,
)
from coopstreams.tasks.incarnation import Incarnation, committed_positions, store_times
from coopstreams.tasks.record_retries import Held
from coopstreams.topology.errors import (
    AccessDeniedError,
    GroupError,
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from coopstreams.topology.external_sinks import SinkSession
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""The longest wait for commits of the group while no task waits for them. A request
ends it.
"""
LOOK_S = 0.1
"""The longest wait for commits while tasks wait for them, or while transactions of
members that have left are to be ended.
"""
BUSY_S = 0.01
"""The longest wait for commits while tasks wait for answers of the brokers."""
FOLLOW_S = 0.05
"""The longest wait for commits while a standby waits for records."""
RETRY_S = 0.3
"""The pause after a failed request."""
GONE_S = 30.0
"""How long a topic may be missing until the process ends. Meanwhile the topics of
patterns are resolved again.
"""


@dataclass(frozen=True, slots=True)
class TaskWait:
    """What a task waits for before it is open, in words, with the progress of its
    restores and snapshot downloads.
    """

    why: str
    restores: Sequence[RestoreProgress] = ()
    downloads: Sequence[DownloadProgress] = ()


@dataclass(slots=True, eq=False)
class _TaskOpening(Opening):
    progress: Progress | None = None
    """None: the positions are not known yet."""
    database: Database | None = None
    """The database in which its stores are restored; None: the positions are not known
    yet, and no standby had the database open.
    """


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages that a task passes until it is open, in this order."""

    barrier: Barrier
    positions: Positions
    restores: Restores
    sinks: SinkOpenings


@dataclass(frozen=True, slots=True)
class _TakeOver:
    """A request to take over once more before the next task is opened."""


@dataclass(frozen=True, slots=True)
class _StandBy:
    """A request for standbys of these tasks, and no others."""

    tasks: tuple[TaskId, ...]
    warming: tuple[TaskId, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class _Closed:
    """A request to give back the database of a closed task."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class _MovedAway:
    """A request to delete the rows of a task, but those of `here`."""

    task: TaskId
    here: frozenset[TaskId]


_Request: TypeAlias = (
    _TaskOpening
    | _StandBy
    | _TakeOver
    | _Closed
    | _MovedAway
    | TaskId
    | Assigned
    | None
)


class Opener:
    """Opens tasks for an instance. `open`, `cancel` and `follow_generation` return at
    once; their results come as events.

    Thread-safe: requests go through an inbox; `waits_for` reads each field once, and
    copies each collection in one step.
    """

    def __init__(
        self,
        member: GroupMember,
        follower: Follower,
        stages: Stages,
        standbys: Standbys,
        databases: Databases,
        take_over: Callable[[int], None],
        emit: Callable[[Event], None],
        moved: Callable[[], None],
        host: Host = SYSTEM,
    ) -> None:
        """`moved`: called when more of the group's commits are known. `take_over`:
        called with the epoch of the membership before its tasks open.
        """
        self._sinks = stages.sinks
        self._host = host
        self._moved = moved
        self._member = member
        self._barrier = stages.barrier
        self._doubt: tuple[int, float] | None = None
        """After a position was out of range: the epoch, and when the group was asked to
        confirm it. None: no such error.
        """
        self._missing_since: float | None = None
        """Since when a topic of an opening task has not existed; None: all exist."""
        self._follower = follower
        self._positions = stages.positions
        self._restores = stages.restores
        self._standbys = standbys
        self._standby_epoch = 0
        """The epoch of the membership that the standbys are of."""
        self._take_over = take_over
        self._taken: int | None = None
        """The epoch in which `take_over` last ran; None: it must run, as tasks of
        another topology version may have run since.
        """
        self._databases = databases
        self._emit = emit
        self._requests: Inbox[_Request] = host.inbox()
        self._openings: dict[TaskId, _TaskOpening] = {}
        self._held: dict[TaskId, Held] = {}
        """The tasks that must not be opened before a time."""
        self._trouble = ""
        """Why the last pass of the loop failed, in words; empty if it succeeded."""
        self._thread = host.thread(self._run, "opener")

    def start(self) -> None:
        """Start the thread, which follows the commit topic."""
        self._thread.start()

    def follow_generation(self, assigned: Assigned) -> None:
        """Take in the members of a new generation. Transactions of all other members
        are ended.
        """
        self._ask(assigned)

    def take_over_again(self) -> None:
        """Record what the plan says now before the next task is opened: it is another
        plan than before.
        """
        self._ask(_TakeOver())

    def open(self, task: TaskId, epoch: int) -> None:
        """Open a task under this epoch of the membership. An `Opened` event follows,
        unless it is cancelled.
        """
        self._ask(_TaskOpening(task, epoch))

    def hold(self, held: Held) -> None:
        """Delay the opening of a task until `held.until`, even if `open` is called
        earlier.
        """
        self._held[held.task] = held

    def stand_by(
        self,
        tasks: tuple[TaskId, ...],
        warming: tuple[TaskId, ...],
        epoch: int,
    ) -> None:
        """Keep standbys of these tasks, and of no others. No task here that is not
        closed may overlap one. `warming`: those whose tasks are to move here.
        """
        self._ask(_StandBy(tasks, warming, epoch))

    @property
    def standbys(self) -> Mapping[TaskId, StandbyFigures]:
        """The standbys that may write to their databases."""
        return self._standbys.figures

    def cancel(self, task: TaskId) -> None:
        """Stop opening a task. A `Cancelled` event follows if it was not open yet."""
        self._ask(task)

    def moved_away(self, task: TaskId, here: Iterable[TaskId]) -> None:
        """Delete the rows of a task that has moved away, except those of `here`."""
        self._ask(_MovedAway(task, frozenset(here)))

    def closed(self, task: TaskId) -> None:
        """Give back the database of a task that was closed. The last task closes it,
        which takes a while, as does the deletion of its files.
        """
        self._ask(_Closed(task))

    def stop(self) -> None:
        """End the thread and close the readers."""
        self._ask(None)
        if self._thread.is_alive():
            self._thread.join(10)

    def release(self) -> None:
        """Close the readers of an opener that was not started."""
        self._restores.close()
        self._standbys.close()
        self._follower.close()

    def waits_for(self, task: TaskId) -> TaskWait:
        """Return what a task waits for before it is open."""
        opening = self._openings.get(task)
        if not self._positions.sources(task):
            return TaskWait(
                "topics that match a pattern: this process has not seen them yet"
            )
        trouble = (
            f", which failed and is done again: {self._trouble}"
            if self._trouble
            else ""
        )
        if unreadable := self._follower.trouble:
            return TaskWait(f"the group's progress to be readable: {unreadable}")
        held = self._held.get(task)
        if held is not None and held.until > self._host.now():
            return TaskWait(
                f"a pause to end, in {held.until - self._host.now():.0f} s: {held.why}"
            )
        # Once: the opener takes a doubted barrier again.
        barrier = None if opening is None else opening.barrier
        if opening is None or barrier is None:
            return TaskWait(f"its turn with the opener{trouble}")
        if not self._follower.passed(barrier):
            held_back = self._follower.held_back(barrier)
            return TaskWait(f"the barrier: {held_back}{trouble}")
        if opening.progress is None:
            return TaskWait(f"{self._positions.waits_for(task)}{trouble}")
        if (why := self._sinks.why(task)) is not None:
            return TaskWait(why)
        restores = self._restores.progress(task)
        downloads = self._restores.downloading(task)
        return TaskWait(
            f"its state to be restored{' from a snapshot' if downloads else ''}{trouble}",
            restores,
            downloads,
        )

    def _run(self) -> None:
        try:
            while self._take_requests():
                self._try_turn()
        except BaseException as error:  # any error: the control thread must get it
            log.debug("the opener ends", exc_info=True)
            self._emit(Failed(error, "opener"))
        finally:
            self._restores.close()
            self._standbys.close()
            self._sinks.close()
            for opening in self._openings.values():
                self._leave(opening)
            self._follower.close()

    def _try_turn(self) -> None:
        try:
            self._turn()
            self._doubt = None
            self._trouble = ""
            if (
                not self._unresolved()
            ):  # a turn that asks for no position says nothing of its topic
                self._missing_since = None
        except OffsetOutOfRangeError as error:
            self._heed(error)
        except AccessDeniedError:
            raise  # only a user can add the ACL
        except (LogError, GroupError) as error:
            if isinstance(error, UnknownTopicError):
                self._missing_since = self._missing_since or self._host.now()
                if self._host.now() - self._missing_since > GONE_S:
                    raise
            self._trouble = str(error)
            log.warning("opening tasks: %s; trying again", error)
            self._host.sleep(RETRY_S)

    def _heed(self, error: OffsetOutOfRangeError) -> None:
        """Hold back an out-of-range error until the group confirms this member.
        Meanwhile the positions are fetched again.

        A member that has taken over the tasks may have processed the records and
        deleted them.

        Raises:
            OffsetOutOfRangeError: the group has confirmed this member since the error:
            the records are lost.
        """
        epoch = self._barrier.epoch
        if self._doubt is None or self._doubt[0] != epoch:
            self._doubt = epoch, self._member.ask()
            self._trouble = f"{error}; the group is asked whether this process still is a member before that counts"
            log.warning("opening tasks: %s", self._trouble)
        elif self._member.confirmed(self._doubt[1], epoch):
            raise error
        self._host.sleep(RETRY_S)

    def _ask(self, request: _Request) -> None:
        self._requests.put(request)
        self._follower.wake()

    def _take_requests(self) -> bool:
        """Carry out the requests, in their order; return False if the last one is to
        end the thread.
        """
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return True
            if request is None:
                return False
            if isinstance(request, Assigned):
                self._barrier.follow_generation(request)
                self._taken = None if request.waits else self._taken
            elif isinstance(request, _TakeOver):
                self._taken = None
            elif isinstance(request, _MovedAway):
                self._databases.moved_away(request.task, request.here)
            elif isinstance(request, _Closed):
                self._databases.leave(request.task)
            elif isinstance(request, _StandBy):
                self._standbys.want(request.tasks, request.warming)
                self._standby_epoch = request.epoch
            elif isinstance(request, _TaskOpening):
                self._openings[request.id] = request
                self._take_from_standbys(request)
            elif (opening := self._openings.pop(request, None)) is not None:
                self._restores.cancel(opening.id)
                self._sinks.cancel(opening.id)
                self._leave(opening)
                self._emit(Cancelled(opening.id))

    def _take_from_standbys(self, opening: _TaskOpening) -> None:
        """End the standbys of a task. Its database stays open in between: a store in
        memory would be empty.
        """
        if self._standbys.overlaps(opening.id):
            opening.database = self._databases.enter(opening.id)
        self._standbys.give_way(opening.id)

    def _stand_by(self) -> bool:
        """Do one thing for the standbys, if no task can be opened meanwhile; return
        whether there is more to do for them.
        """
        if not self._standbys.wanted or any(
            self._positions.sources(opening.id) for opening in self._unresolved()
        ):
            return False
        # Before the first database is opened, as for tasks.
        self._take_over_in(self._standby_epoch)
        return self._standbys.step()

    def _turn(self) -> None:
        """Do one step of each stage, and wait for commits of the group in between."""
        self._barrier.hunt()
        busy = self._restores.step() or self._stand_by()
        known = self._follower.known
        self._follower.poll(0.0 if busy else self._wait_s())
        if self._follower.known > known:
            self._moved()
        if self._openings:
            self._pass_barrier()
        for id_ in self._restores.finished():
            if (node := self._databases.subtopology(id_).applies_to) is None:
                self._hand_over(id_)
            elif (progress := self._openings[id_].progress) is not None:
                self._sinks.begin(id_, node, self._positions.sources(id_)[0], progress)
        for id_, session in self._sinks.take():
            self._hand_over(id_, session)

    def _hand_over(self, id_: TaskId, session: SinkSession | None = None) -> None:
        """Emit `Opened` for a task whose stages are passed."""
        opening = self._openings.pop(id_)
        assert opening.progress is not None
        assert opening.database is not None
        state = self._databases.state(id_, opening.database)
        sources = self._positions.sources(id_)
        self._emit(
            Opened(
                Incarnation(
                    id_,
                    sources,
                    state,
                    opening.progress,
                    opening.epoch,
                    session,
                )
            )
        )

    def _wait_s(self) -> float:
        """Return how long to wait for commits. The wait is short while a task behind
        its barrier waits for other answers.
        """
        waiting = [opening.barrier for opening in self._unresolved()]
        if any(
            barrier is None or self._follower.passed(barrier) for barrier in waiting
        ):
            return BUSY_S
        if self._standbys.busy:
            return FOLLOW_S
        return LOOK_S if self._openings or self._barrier.hunting else IDLE_S

    def _unresolved(self) -> list[_TaskOpening]:
        """Return the openings whose positions may be looked up now."""
        now = self._host.now()
        for held in list(self._held.values()):
            if held.until <= now:
                del self._held[held.task]
        return [
            opening
            for opening in self._openings.values()
            if opening.progress is None and opening.id not in self._held
        ]

    def _pass_barrier(self) -> None:
        """Look up the positions of tasks whose barrier is passed, and begin to restore
        those that have them.
        """
        for opening in self._openings.values():
            self._take_over_in(opening.epoch)
        waiting = [
            opening
            for opening in self._unresolved()
            if self._positions.sources(opening.id)
        ]
        passed = {opening.id: opening for opening in self._barrier.passed(waiting)}
        opened = self._positions.resolve(
            list(passed.values()),
            self._barrier.generation,
        )
        for id_, progress in opened.items():
            opening = passed[id_]
            if opening.database is None:
                opening.database = self._databases.enter(id_)
            subtopology = self._databases.subtopology(id_)
            self._restores.settle_runs(id_, subtopology.stores, progress)
            at = committed_positions(id_, subtopology.stores, progress)
            times = store_times(subtopology, progress)
            self._restores.add(id_, subtopology.stores, opening.database, at, times)
            opening.progress = (
                progress  # last: if a request fails, all of this is repeated
            )
        if len(opened) < len(waiting) or self._restores.stuck():
            self._barrier.hunt_later()

    def _take_over_in(self, epoch: int) -> None:
        """Call `take_over`, once in an epoch of the membership."""
        if epoch != self._taken:
            self._take_over(epoch)
            self._taken = epoch

    def _leave(self, opening: _TaskOpening) -> None:
        if opening.database is not None:
            self._databases.leave(opening.id)
