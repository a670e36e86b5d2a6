"""Holds back errors until the group confirms the membership: a state machine without
I/O.

A process that was stopped and resumes does not know that another member owns its tasks.
The new owner has processed records of the repartition topics and deleted them. So the
old process reads on there and gets an out-of-range error, which would be fatal for an
owner.

    an error                                               held; the group is asked at once
    the group has confirmed this member since the error    it counts
    the epoch under which it happened is over              void

Invariant: an error counts only if this process certainly owned its tasks when it
happened. No other member gets the tasks under the same epoch before they are released,
and the answer to a heartbeat sent after the error proves that the epoch goes on. Turned
down: retrying for a while (an owner's error would be repeated for as long, and a group
that does not answer takes longer).
Relies on: `instance.instance` (asks the group, then `settle`), `group.membership`
(confirms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from coopstreams.tasks.events import Failed

Confirmed: TypeAlias = Callable[[float, int], bool]
"""Returns whether the group has answered a heartbeat that this member sent after a
moment, in an epoch. Arguments: the moment and the epoch.
"""


@dataclass(frozen=True, slots=True)
class DoubtedFailure:
    """An error that a lost membership may explain. `epoch`: that of the membership
    under which it happened. `since`: when it came (`Host.now`).
    """

    failure: Failed
    epoch: int
    since: float


@dataclass(slots=True)
class Doubts:
    """The held errors of one instance. Used by the control thread; any thread may read
    `held`.
    """

    epoch: int = 0
    """The epoch of the membership, as far as the control thread knows."""
    held: tuple[DoubtedFailure, ...] = field(default=())

    def hold(self, failure: Failed, now: float) -> DoubtedFailure:
        """Hold an error under the epoch that it names, or under the present epoch if it
        names none; return what is held. `now`: when the group was asked to confirm this
        member.
        """
        held = DoubtedFailure(
            failure,
            self.epoch if failure.epoch is None else failure.epoch,
            now,
        )
        self.held = (*self.held, held)
        return held

    def settle(self, confirmed: Confirmed) -> tuple[Failed | None, list[Failed]]:
        """Return the first error that now counts (None: none does), and all errors that
        are void; keep holding the others.
        """
        counts: Failed | None = None
        void = list[Failed]()
        held = list[DoubtedFailure]()
        for one in self.held:
            if one.epoch < self.epoch:
                void.append(one.failure)
            elif counts is None and confirmed(one.since, one.epoch):
                counts = one.failure
            else:
                held.append(one)
        self.held = tuple(held)
        return counts, void
