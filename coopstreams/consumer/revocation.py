"""Giving key ranges up without stopping: asked for in one poll, done in the next, or in a later one if the user says
so.

    asked       -> revoke-next                       nothing more is handed out of it; its records are finished and
                committed meanwhile
    poll begins    revoke-next -> released;  revoke-thereafter -> revoke-next
    delayed        revoke-next -> revoke-thereafter  each poll anew, until the deadline
    deadline    -> lost                              what is not committed is void; others may have it

Invariant: what is on a list is not handed out; it leaves the lists by being released or lost, once.
Source: KIP-983 (`getToBeRevokedPartitions`, `getLostPartitions`, `delayRevoke`), with its three lists, for key ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Revocations(Generic[T]):
    """The lists of one consumer. No clock: the caller says what time it is. Units: seconds."""

    def __init__(self, deadline_s: float) -> None:
        self.lost: set[T] = set()
        """Lost during the last poll, or since."""
        self._deadline_s = deadline_s
        self._next: dict[T, float] = {}
        self._thereafter: dict[T, float] = {}
        """Until when each may be kept."""

    @property
    def next(self) -> frozenset[T]:
        """What the next poll gives up, unless it is delayed."""
        return frozenset(self._next)

    def __contains__(self, one: object) -> bool:
        return one in self._next or one in self._thereafter

    def poll(self, now: float) -> tuple[set[T], set[T]]:
        """Begin a poll: return what is to be given up now, committed first, and what is lost because its time is
        over.
        """
        self.lost = set()
        given_up = set(self._next)
        self._next, self._thereafter = self._thereafter, {}
        late = self.expire(now)
        return given_up, late

    def expire(self, now: float) -> set[T]:
        """Return what has been kept for too long; it is lost."""
        late = {one for waiting in (self._next, self._thereafter) for one, until in waiting.items() if until <= now}
        self.lose(late)
        return late

    def ask(self, some: Iterable[T], now: float) -> None:
        """The group wants these back."""
        for one in some:
            if one not in self:
                self._next[one] = now + self._deadline_s

    def keep(self, some: Iterable[T]) -> None:
        """The group gives these back: they stay."""
        for one in some:
            self._next.pop(one, None)
            self._thereafter.pop(one, None)

    def lose(self, some: Iterable[T]) -> None:
        """These are gone, whether they were to be given up or not."""
        gone = set(some)
        self.keep(gone)
        self.lost |= gone

    def delay(self, some: Iterable[T]) -> bool:
        """Keep these for one more poll; return False, and change nothing, if one of them is lost."""
        wanted = list(some)
        if any(one in self.lost for one in wanted):
            return False
        for one in wanted:
            if one in self._next:
                self._thereafter[one] = self._next.pop(one)
        return True
