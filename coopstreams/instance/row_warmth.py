"""What a process tells the group of its rows (`Warmth`): which of its tasks move only
when their next owner has caught up, and how far its standbys are behind.

Invariant: a task of which this is not known counts as one with many rows if its database
was on the disk at the start: an owner that has started again is still restoring, and its
tasks must not move to a process without their rows meanwhile.
Invariant: a task that can have no standby has few rows, whatever is on the disk: another
version of the topology may have left the database of a sub-topology with its number.
Relies on: `group.members` (`Warmth`: what each part means, and why lags are coarse),
`group.warmups` (what the leader makes of it), `opening.standbys` (when a standby is
ready).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import starmap

from coopstreams.group.claims import task_partition_of
from coopstreams.group.members import TaskPartition, Warmth
from coopstreams.instance.task_registry import Standing, State
from coopstreams.opening.standbys import StandbyFigures, has_standby
from coopstreams.state.directory import Databases
from coopstreams.state.layout import groups_of
from coopstreams.topology.task_id import TaskId


class RowWarmth:
    """How warm the rows of one process are. The watcher calls `look`; any thread may
    call `warmth`, which returns at once.
    """

    def __init__(
        self,
        databases: Databases,
        found: Iterable[tuple[int, int]],
        can_stand_by: Collection[int],
        acceptable: int,
        standing: Callable[[], Standing],
        standbys: Callable[[], Mapping[TaskId, StandbyFigures]],
    ) -> None:
        """`found`: the sub-topologies and partitions with a database on the disk at the
        start; `can_stand_by`: the sub-topologies whose tasks can have standbys;
        `acceptable`: the most changelog records that a task restores on the way.
        """
        self._databases = databases
        self._found = frozenset(
            at for at in starmap(TaskPartition, found) if at.subtopology in can_stand_by
        )
        self._acceptable = acceptable
        self._standing = standing
        self._standbys = standbys
        self._heavy: Mapping[TaskId, bool] = {}
        """Of each task here that has run: whether it has many rows. Replaced as a whole."""

    def look(self) -> None:
        """Measure the tasks that run. Reads wait for a database that is being written."""
        before = self._heavy
        standing = self._standing()
        now = {}
        for task, state in standing.states.items():
            heavy = before.get(task)
            if state is State.RUNNING and task in standing.tasks:
                heavy = self._is_heavy(task, heavy)
            if heavy is not None:
                now[task] = heavy
        self._heavy = now

    def warmth(self, held: Iterable[TaskId]) -> Warmth:
        """Return what the leader gets to know. `held`: the tasks of this process."""
        known = self._heavy
        standbys = self._standbys()
        return Warmth(
            tuple(
                task
                for task in held
                if known.get(task, task_partition_of(task) in self._found)
            ),
            tuple(task for task, each in sorted(standbys.items()) if each.ready),
            tuple(
                # Coarse: a repeated request to join has the same bytes.
                (task, each.lag.bit_length())
                for task, each in sorted(standbys.items())
                if each.lag is not None
            ),
        )

    def _is_heavy(self, task: TaskId, before: bool | None) -> bool | None:
        """Return whether a task has more changelog records than are acceptable.
        `before`: the last answer, for a database that is not open.
        """
        database = self._databases.borrow(task)
        if database is None:  # it was closed meanwhile
            return before
        try:
            groups = groups_of(task.key_range)
            reached = sum(
                database.checkpoints(spec.name).offset(groups) or 0
                for spec in self._databases.subtopology(task).stores
                if has_standby(spec)
            )
        finally:
            self._databases.leave(task)
        return reached > self._acceptable
