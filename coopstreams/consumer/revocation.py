"""The lists by which a consumer gives up key ranges without stopping: a key range is
revoked in one poll and released in a later one.

    asked       -> revoke-next                       nothing more of it is handed out; its records are finished and
                committed meanwhile
    poll begins    revoke-next -> released;  revoke-thereafter -> revoke-next
    delayed        revoke-next -> revoke-thereafter  each poll anew, until the deadline
    deadline    -> lost                              its uncommitted work is void; other members may own it

Invariant: a key range on a list is not handed out. It leaves the lists once, released
or lost.
Source: KIP-983 (`getToBeRevokedPartitions`, `getLostPartitions`, `delayRevoke`), with
its three lists, for key ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Revocations(Generic[T]):
    """The revoked and lost key ranges of one consumer. The caller passes the time.
    Units: seconds.
    """

    def __init__(self, deadline_s: float) -> None:
        self.lost: set[T] = set()
        """The key ranges lost since the last poll began."""
        self._deadline_s = deadline_s
        self._next: dict[T, float] = {}
        """The deadline of each key range on `revoke-next`."""
        self._thereafter: dict[T, float] = {}
        """The same of `revoke-thereafter`: a delay does not move it."""

    @property
    def next(self) -> frozenset[T]:
        """The key ranges that the next poll gives up, unless the user delays them."""
        return frozenset(self._next)

    def __contains__(self, one: object) -> bool:
        return one in self._next or one in self._thereafter

    def poll(self, now: float) -> tuple[set[T], set[T]]:
        """Begin a poll: return the key ranges to commit and release now, and those that
        are lost because their deadline has passed.
        """
        self.lost = set()
        given_up = set(self._next)
        self._next = self._thereafter
        self._thereafter = {}
        # last: a key range given up now is not lost, even if its deadline has passed
        late = self.expire(now)
        return given_up, late

    def expire(self, now: float) -> set[T]:
        """Move the key ranges whose deadline has passed to `lost`, and return them."""
        late = {
            one
            for waiting in (self._next, self._thereafter)
            for one, until in waiting.items()
            if until <= now
        }
        self.lose(late)
        return late

    def ask(self, some: Iterable[T], now: float) -> None:
        """Note that the group revokes these key ranges."""
        for one in some:
            if one not in self:
                self._next[one] = now + self._deadline_s

    def keep(self, some: Iterable[T]) -> None:
        """Take these key ranges off the lists, because the group assigns them again."""
        for one in some:
            self._next.pop(one, None)
            self._thereafter.pop(one, None)

    def lose(self, some: Iterable[T]) -> None:
        """Note that these key ranges are lost, whether they were on a list or not."""
        gone = set(some)
        self.keep(gone)
        self.lost |= gone

    def delay(self, some: Iterable[T]) -> bool:
        """Keep these key ranges for one more poll. Return False, and change nothing, if
        one of them is already lost.
        """
        wanted = list(some)
        if any(one in self.lost for one in wanted):
            return False
        for one in wanted:
            if one in self._next:
                self._thereafter[one] = self._next.pop(one)
        return True
