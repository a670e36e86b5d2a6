"""Counts of the work of tasks: for the status of each task, and for the metrics of the
process.

The stream thread of a task counts in the task's own `Tally`, batch by batch. `Tallies`
adds the difference to the metrics, once a second and when the task is closed, so that
the metrics keep the counts of closed tasks.

Invariant: the metrics of a process never go back, whichever tasks come and go. Work
that is aborted and repeated counts twice.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.tasks.failure_handlers import Answer
from coopstreams.tasks.losses import Losses
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.failures import Failure
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

NO_STORES: Mapping[str, str] = {}
MOST_FAILURES = 20
"""How many of its latest failures a process reports."""
Time: TypeAlias = Annotated[
    int, Meta(ge=0, description="Milliseconds since the epoch.")
]
Drop = tuple[str, str]
"""A node, and the reason why it dropped a record."""


class FailureStatus(msgspec.Struct, frozen=True):
    """A record that failed here, without the message of the error, which may quote the
    record.

    `task` is null for a global table. `offset` is null for a held-back result and for a
    punctuation.
    """

    at: Time
    task: str | None
    node: str
    phase: str
    topic: str
    partition: int
    offset: int | None
    error: Annotated[str, Meta(description="The type of the error.")]
    answer: Annotated[str, Meta(description="What was done.")]


@dataclass(slots=True)
class Tally:
    """The counts of one opening of a task. Used by the task's thread.

    Shape: `written` by topic, changelogs left out; `failed` by node and phase.
    """

    written: Counter[str] = field(default_factory=Counter)
    failed: Counter[Drop] = field(default_factory=Counter)
    dead_letters: int = 0
    closed: bool = False
    """Whether the metrics include all of these counts."""

    def failure(self, failure: Failure, answer: Answer) -> None:
        """Count a failed record and what the handler answered."""
        self.failed[failure.node, failure.phase] += 1
        self.dead_letters += answer == "dead-letter"


class Counting(Protocol):
    """The object whose work is counted: a `Task`, or a share thread's work."""

    id: TaskId
    processed: int
    tally: Tally
    program: BoundProgram

    @property
    def retries(self) -> int:
        """See `Task.retries`."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one opening of a task so far, as a frozen value.

    Shape: `written` is by topic, without changelogs; `dropped` has the records that the
    program dropped and those that failed.
    """

    processed: int = 0
    dead_letters: int = 0
    retries: int = 0
    written: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[Drop, int] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Counting) -> Counts:
        """Return the present counts of `work`. Call it on the thread that does the
        work.
        """
        tally = work.tally
        dropped = work.program.dropped | dict(tally.failed)
        return cls(
            work.processed,
            tally.dead_letters,
            work.retries,
            dict(tally.written),
            dropped,
        )


class Tallies:
    """Adds the counts of tasks to the metrics of the process. Several threads call it."""

    def __init__(
        self,
        metrics: Metrics,
        host: Host = SYSTEM,
        stores: Mapping[str, str] = NO_STORES,
    ) -> None:
        """`stores`: the name of each node's store."""
        self.losses = Losses(stores)
        self._metrics = metrics
        self._host = host
        self._latest: deque[FailureStatus] = deque(maxlen=MOST_FAILURES)
        self._seen: dict[int, tuple[Counting, Counts]] = {}
        self._lock = threading.Lock()

    def failure(self, failure: Failure, answer: Answer) -> None:
        """Count a failed record of a global table."""
        self._metrics.dropped(None, failure.node, failure.phase)
        self._metrics.dead_lettered(None, int(answer == "dead-letter"))
        self._note(None, failure, answer)

    def failed(
        self,
        task: TaskId,
        tally: Tally,
        failure: Failure,
        answer: Answer,
    ) -> None:
        """Count a failed record of a task."""
        tally.failure(failure, answer)
        self._note(task, failure, answer)

    @property
    def latest(self) -> tuple[FailureStatus, ...]:
        """The latest failures of the process, the oldest first."""
        return tuple(self._latest.copy())

    def _note(
        self,
        task: TaskId | None,
        failure: Failure,
        answer: Answer,
    ) -> None:
        """Keep a failure for the status."""
        self._latest.append(
            FailureStatus(
                at=self._host.wall_ms(),
                task=None if task is None else str(task),
                node=failure.node,
                phase=failure.phase,
                topic=failure.source.topic,
                partition=failure.source.partition,
                offset=failure.offset,
                error=type(failure.error).__name__,
                answer=answer,
            )
        )

    def look(self, task: Counting, counts: Counts) -> None:
        """Add to the metrics what a task has done since the last call."""
        with self._lock:
            self._add(task, counts)

    def look_for_losses(self) -> None:
        """Log a warning for each node that leaves out many records."""
        with self._lock:
            news = self.losses.look(self._host.now())
        for text in news:
            log.warning("%s", text)

    def closed(self, task: Counting) -> None:
        """Add the last counts of a closed task to the metrics, and forget the task."""
        with self._lock:
            self._add(task, Counts.of(task))
            task.tally.closed = True
            self._seen.pop(id(task), None)

    def _add(self, task: Counting, now: Counts) -> None:
        """Add what a task has done since the last call to the metrics. `now`: its
        counts.
        """
        if task.tally.closed:
            return  # the watcher may be a moment behind
        before = self._seen.get(id(task), (task, Counts()))[1]
        processed = now.processed - before.processed
        more = {
            drop: count - before.dropped.get(drop, 0)
            for drop, count in now.dropped.items()
            if count != before.dropped.get(drop, 0)
        }
        self._metrics.processed(task.id, processed)
        self._metrics.dead_lettered(task.id, now.dead_letters - before.dead_letters)
        self._metrics.retried(task.id, now.retries - before.retries)
        for (node, reason), count in more.items():
            self._metrics.dropped(task.id, node, reason, count)
        self.losses.add(task.id.subtopology, processed, more, self._host.now())
        self._seen[id(task)] = task, now
