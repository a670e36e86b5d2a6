"""The events that the threads of an instance send to its control thread, as values.

Only the control thread decides; the opener, the stream threads and the group member put
events into its inbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.group.holdings import Assigned, Lost, Refused
from coopstreams.tasks.outlasting import OutlastingError
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.tasks.task import Incarnation, Task
from coopstreams.tasks.tries import Held
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Opened:
    """The opener has resolved the positions and restored the state of a task."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream thread has committed a task (or, unclean, discarded it) and does not
    touch it again.
    """

    task: Task


@dataclass(frozen=True, slots=True)
class Aborted:
    """A stream thread could not commit; it has discarded these tasks, which must be
    opened again from the log.

    `held`: one of them is to be opened later than the others.
    """

    tasks: tuple[Task, ...]
    reason: str
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The opener has dropped a task that was revoked before it was open."""

    id: TaskId


@dataclass(frozen=True, slots=True)
class Failed:
    """A thread has failed: the instance stops with the error, or replaces the thread if
    it was a stream thread.
    """

    error: BaseException
    where: str
    thread: int | None = None
    """The number of the stream thread that has died, if one has; it touches nothing any
    more.
    """
    epoch: int | None = None
    """The epoch of the membership under which its tasks were opened, if known."""

    @property
    def doubtful(self) -> bool:
        """Whether a lost membership may explain it. Of a call that outlasts the
        time-outs it is a consequence.
        """
        return (self.thread is not None or self.where == "reader") and not isinstance(
            self.error,
            OutlastingError,
        )

    @property
    def raised(self) -> BaseException:
        """The error that the instance ends with.

        `sys.exit()` in a function of the program is an error as well: the process would
        end as if it had been asked to.
        """
        if not isinstance(self.error, SystemExit):
            return self.error
        error = CoopStreamsError(
            f"{self.where}: a function of the program raised {self.error!r}"
        )
        error.__cause__ = self.error
        return error


@dataclass(frozen=True, slots=True)
class ThreadAdded:
    """A stream thread with this number is to be started."""

    number: int


@dataclass(frozen=True, slots=True)
class ThreadRemoved:
    """The stream thread with this number is to end, and its tasks are for others."""

    number: int


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """A stream thread has closed its tasks and its producer, and ends."""

    number: int


@dataclass(frozen=True, slots=True)
class Matched:
    """Other topics match a pattern: the application reads `resolved` from now on."""

    resolved: ResolvedTopology


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The cluster's policy allows this application something else than before.

    Shape: `announced`: other sub-topologies than before may be cut by key range, and
    the group must hear of it.
    `reopened`: sub-topologies whose tasks pass their records in another order from now
    on.
    """

    announced: bool
    reopened: frozenset[int]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The instance shall end."""


Event: TypeAlias = (
    Assigned
    | Lost
    | Refused
    | Opened
    | Closed
    | Aborted
    | Cancelled
    | Failed
    | ThreadAdded
    | ThreadRemoved
    | ThreadEnded
    | Matched
    | PolicyChanged
    | Stopping
)
