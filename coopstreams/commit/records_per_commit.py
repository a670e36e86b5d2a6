"""The number of records that a thread may process between two commits, learnt from
commits that ran out of time.

A commit waits until the brokers have all results of its interval. Under exactly-once it
waits for `transaction.timeout.ms`, else for as long as the group surely knows this
process. If brokers throttle a client (a quota), or the network is slow, the results of
a full interval do not arrive in that time. A second attempt with as many records would
fail in the same way, and under at-least-once each attempt leaves its results in the
topics.

    it fails, after half of that time or more      the next intervals have a quarter of its records at most
    a full interval's commit is well in time       twice as many; from `ANY` on there is no bound

Invariant: until a commit has run out of time there is no bound, and a step costs one
look-up in a dictionary.
Turned down: a longer wait (the brokers end the transaction, the group may give the
tasks away), a bound from the quota (brokers tell how long they throttle a client, not
what they allow).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

ANY = 1_000_000
"""The number of records from which on an interval has no bound."""
LESS = 4
MORE = 2
WELL = 0.25
LATE = 0.5
"""The parts of a commit's time limit: within `WELL` a commit is well in time; after
`LATE` a failure is put down to lack of time.
"""


class Processing(Protocol):
    """A task that counts its processed records."""

    processed: int
    """The number of records that it has processed."""


T = TypeVar("T", bound=Processing)


@dataclass(slots=True)
class Interval(Generic[T]):
    """The tasks that one thread has run since its last commit, and the bound on their
    records. Belongs to one thread.
    """

    limit_s: float
    """How long a commit may take."""
    most: int = ANY
    tasks: dict[T, int] = field(default_factory=dict)
    """The tasks, each with its count of processed records at the beginning of the
    interval.
    """
    _began: float = 0.0

    def begin(self, task: T, now: float) -> None:
        """Add a task to the interval. Call it before the task processes anything."""
        if not self.tasks:
            self._began = now
        self.tasks.setdefault(task, task.processed)

    @property
    def room(self) -> int:
        """The number of records that may be processed before the next commit; 0: the
        commit is due.
        """
        return ANY if self.most >= ANY else max(0, self.most - self._processed())

    def committed(self, seconds: float) -> None:
        """Lengthen the next intervals if this one was full, and its commit well in
        time. `seconds`: how long the commit took.
        """
        if self.most < ANY and not self.room and seconds < WELL * self.limit_s:
            self.most *= MORE

    def failed(self, now: float) -> str:
        """Bound the next intervals if this commit ran out of time; return a sentence
        about it with a space in front, else nothing.
        """
        processed = self._processed()
        if not processed or now - self._began < LATE * self.limit_s:
            return ""
        self.most = max(1, processed // LESS)
        return f" (The next commits come after {self.most} records at the latest, until they are well in time.)"

    def _processed(self) -> int:
        return sum(task.processed - before for task, before in self.tasks.items())
