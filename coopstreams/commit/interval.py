"""How many records a thread processes between two commits, learnt from commits that ran
out of time.

A commit waits until the brokers have all results of its interval: under exactly-once
for `transaction.timeout.ms`, else for as long as the group surely knows this process.
Where brokers hold a client back (a quota), or the way to them is narrow, the results of
a full interval do not get there in that time. Done again, they would not either, and
under at-least-once each attempt leaves its results in the topics.

    it fails, after half of that time or more      the next intervals have a quarter of its records at most
    a commit of as many as that is well in time    twice as many; from `ANY` on there is no bound

Invariant: until a commit has run out of time there is no bound, and a step costs one
look-up in a dictionary. Turned down: a longer wait (the brokers end the transaction,
the group may give the tasks away), a bound from the quota (brokers tell how long they
hold a client back, not what they allow).
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
"""The parts of the time for a commit within which it is well in time, and behind which
its failure is one of time.
"""


class Processing(Protocol):
    """A task, as far as an interval counts it."""

    processed: int
    """The number of records that it has processed."""


T = TypeVar("T", bound=Processing)


@dataclass(slots=True)
class Interval(Generic[T]):
    """The tasks of one thread that did something since its last commit, and how much
    more they may do. One thread.
    """

    limit_s: float
    """How long a commit may take."""
    most: int = ANY
    tasks: dict[T, int] = field(default_factory=dict)
    """Each with what it had processed before."""
    _began: float = 0.0

    def begin(self, task: T, now: float) -> None:
        """Note that a task is about to do something."""
        if not self.tasks:
            self._began = now
        self.tasks.setdefault(task, task.processed)

    @property
    def room(self) -> int:
        """How many more records may be processed before the next commit; none: it is
        due.
        """
        return ANY if self.most >= ANY else max(0, self.most - self._processed())

    def committed(self, seconds: float) -> None:
        """Let the next intervals be longer if this one was full, and its commit, which
        took so long, well in time.
        """
        if self.most < ANY and not self.room and seconds < WELL * self.limit_s:
            self.most *= MORE

    def failed(self, now: float) -> str:
        """Bound the next intervals if this one failed for want of time; return that in
        words, behind a space.
        """
        processed = self._processed()
        if not processed or now - self._began < LATE * self.limit_s:
            return ""
        self.most = max(1, processed // LESS)
        return f" (The next commits come after {self.most} records at the latest, until they are well in time.)"

    def _processed(self) -> int:
        return sum(task.processed - before for task, before in self.tasks.items())
