"""The events that the threads of an instance send to its control thread, as values.

Only the control thread decides; the opener, the stream threads, the group member and
whoever else works beside it put events into its inbox.

Relies on: `instance.instance` (what follows an event; while it gives its tasks up, only
of some of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.group.holdings import Assigned, Lost, Refused
from coopstreams.tasks.incarnation import Incarnation
from coopstreams.tasks.record_retries import Held
from coopstreams.tasks.repeated_timeouts import OutlastingError
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.tasks.task import Task
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Opened:
    """The event that the opener has resolved the positions and restored the state of a
    task.
    """

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Closed:
    """The event that a stream thread has committed a task, or discarded it after an
    unclean end, and does not touch it again.
    """

    task: Task


@dataclass(frozen=True, slots=True)
class Drains:
    """The event that a task that is being closed waits for its calls, for longer than
    others should wait for it.
    """

    task: Task


@dataclass(frozen=True, slots=True)
class Aborted:
    """The event that a stream thread could not commit and has discarded these tasks,
    which must be opened again from the log.

    `held`: the task that is to be opened later than the others; None: none.
    """

    tasks: tuple[Task, ...]
    reason: str
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The event that a task that is to move here may do so: its warm-up is ready."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The event that the opener has dropped a task that was revoked before it was open."""

    id: TaskId


@dataclass(frozen=True, slots=True)
class Failed:
    """The event that a thread has failed. The instance stops with the error, or
    replaces the thread if it was a stream thread.
    """

    error: BaseException
    where: str
    thread: int | None = None
    """The number of the stream thread that has died and touches nothing any more; None:
    it was another thread.
    """
    epoch: int | None = None
    """The epoch of the membership under which the thread's tasks were opened, if known.
    """

    @property
    def doubtful(self) -> bool:
        """Whether a lost membership may explain the error. It does not explain an
        `OutlastingError`, whose call is what loses the membership.
        """
        return (self.thread is not None or self.where == "reader") and not isinstance(
            self.error,
            OutlastingError,
        )

    @property
    def raised(self) -> BaseException:
        """The error that the instance ends with.

        `sys.exit()` in a function of the program becomes an error: otherwise the
        process would end as if it had been asked to.
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
    """The request to start a stream thread with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class ThreadRemoved:
    """The request to end the stream thread with this number. Its tasks go to other
    threads.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """The event that a stream thread has closed its tasks and its producer, and ends."""

    number: int


@dataclass(frozen=True, slots=True)
class Matched:
    """The event that other topics match a pattern: the application now reads
    `resolved`.
    """

    resolved: ResolvedTopology


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The event that the cluster's policy has changed for this application.

    Shape: `announced`: which sub-topologies may be divided by key range has changed,
    and the group must be told. `reopened`: the sub-topologies whose tasks take their
    records in another order from now on.
    """

    announced: bool
    reopened: frozenset[int]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The request to end the instance."""


Event: TypeAlias = (
    Assigned
    | Lost
    | Refused
    | Opened
    | Closed
    | Drains
    | Aborted
    | Cancelled
    | CaughtUp
    | Failed
    | ThreadAdded
    | ThreadRemoved
    | ThreadEnded
    | Matched
    | PolicyChanged
    | Stopping
)
