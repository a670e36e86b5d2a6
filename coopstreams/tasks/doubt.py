"""Which errors of an instance count: a state machine without I/O.

A process that was stopped and wakes does not know that its tasks are another's by now. The successor has committed what
it processed and deleted it from the repartition topics, so whoever goes on to read there is told that the offset is
gone, which would be fatal for an owner.

    an error                                        held; the group is asked at once
    the group has confirmed this member since then  it counts
    the membership under which it happened is over  void

Invariant: an error counts only if this process certainly owned its tasks when it happened: nobody else gets them under
the same epoch before they are released, and a heartbeat that was sent after the error says that the epoch goes on.
Turned down: trying again for a while (an owner's error would be repeated for as long, and a group that does not answer
takes longer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from coopstreams.tasks.events import Failed

Confirmed: TypeAlias = Callable[[float, int], bool]
"""Whether the group has answered a heartbeat that was sent after that moment, to this member in that epoch."""


@dataclass(frozen=True, slots=True)
class DoubtedFailure:
    """An error that may be explained by a lost membership."""

    failure: Failed
    epoch: int
    since: float


@dataclass(slots=True)
class Doubts:
    """The errors of one instance that are held. Used by the control thread; `held` may be read by any."""

    epoch: int = 0
    """Of the membership, as far as the control thread has heard."""
    held: tuple[DoubtedFailure, ...] = field(default=())

    def hold(self, failure: Failed, now: float) -> DoubtedFailure:
        """Hold an error; it happened under the epoch that it names, or else under the present one."""
        held = DoubtedFailure(failure, self.epoch if failure.epoch is None else failure.epoch, now)
        self.held = (*self.held, held)
        return held

    def settle(self, confirmed: Confirmed) -> tuple[Failed | None, list[Failed]]:
        """Return the first error that counts from now on, and all that are void; hold the others."""
        counts: Failed | None = None
        void, held = list[Failed](), list[DoubtedFailure]()
        for one in self.held:
            if one.epoch < self.epoch:
                void.append(one.failure)
            elif counts is None and confirmed(one.since, one.epoch):
                counts = one.failure
            else:
                held.append(one)
        self.held = tuple(held)
        return counts, void
