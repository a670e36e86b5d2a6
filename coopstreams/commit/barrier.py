"""Waiting until everything that earlier owners of a range can still commit is decided and known.

The barrier is the true end of the commit topic, taken after the generation is known: whoever was fenced out has nothing
above it. Transactions of members that are gone would hold it for their time-out, so they are ended at once.

Invariant: nothing an earlier owner can still commit is missed: it lies below the barrier, or its fence is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from coopstreams.commit.follower import Follower
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.holdings import Assigned
from coopstreams.topology.errors import LogError

log = logging.getLogger(__name__)

PATIENCE_S = 0.3
"""How long a barrier may hold before open transactions of members that are gone are looked for again."""


END_MS = 3000
"""How long ending one transaction may take (10 to 20 ms as a rule): the thread that asks opens tasks as well."""


HANGING_S = 5.0
"""How long somebody waits before transactions are looked for that have ended and still hold a partition: three requests
to each broker.
"""


class Group(Protocol):
    """What a hunt needs of the group: `membership.GroupMember`."""

    def sure(self, epoch: int, generation: int | None = None) -> bool:
        """See `GroupMember.sure`."""
        ...

    def open_transactions(self) -> frozenset[str]:
        """See `GroupMember.open_transactions`."""
        ...

    def end_transaction(self, transactional_id: str, timeout_ms: int | None = None) -> None:
        """See `GroupMember.end_transaction`."""


class Waiter(Protocol):
    """Somebody who waits. `barrier` is None until it is taken."""

    barrier: int | None


W = TypeVar("W", bound=Waiter)


class Barrier:
    """The barrier of one member of a group. Belongs to the thread that polls the follower."""

    def __init__(
        self,
        member: Group | None,
        follower: Follower,
        ours: Callable[[str], bool],
        settle: Callable[[Callable[[str], bool]], None],
        host: Host = SYSTEM,
    ) -> None:
        """`member` None: nobody tells who is alive, so nothing is ended.

        `ours`: whether a transactional id belongs to some member, present or past, of this group. `settle`: ends what
        hangs of dead ones.
        """
        self._host = host
        self._member = member
        self._follower = follower
        self._ours = ours
        self._settle = settle
        self._settle_at: float | None = None
        self._living: frozenset[str] = frozenset()
        self.epoch = -1
        """The one that the last assignment belongs to."""
        self._hunt_at: float | None = None
        self.generation = -1
        """The one that the last assignment belongs to."""

    def follow_generation(self, assigned: Assigned) -> None:
        """Learn who is in the group now: transactions of anybody else are ended."""
        self._living = assigned.cluster.transactional_ids
        self.generation, self.epoch = assigned.generation, assigned.epoch
        self._hunt_at = self._host.now()

    def passed(self, waiting: Sequence[W]) -> list[W]:
        """Return those who need not wait any longer; take the barrier for those who have none yet."""
        if any(one.barrier is None for one in waiting):
            end = self._follower.barrier()
            for one in waiting:
                one.barrier = end if one.barrier is None else one.barrier
        return [one for one in waiting if one.barrier is not None and self._follower.passed(one.barrier)]

    @property
    def hunting(self) -> bool:
        """Whether transactions of members that are gone are to be ended."""
        return self._hunt_at is not None and bool(self._living)

    def hunt_later(self) -> None:
        """Somebody still waits: look for dead members' transactions again in a moment."""
        if self._hunt_at is None:
            self._hunt_at = self._host.now() + PATIENCE_S
        if self._settle_at is None:
            self._settle_at = self._host.now() + HANGING_S

    def hunt(self) -> None:
        """End transactions of members that are gone, if it is time. Only while nobody can have joined whom this process
        does not know of.

        That is asked again before each ending: a generation may have begun during the listing, or the ending before
        this one.
        """
        if self._member is None or self._hunt_at is None or self._host.now() < self._hunt_at or not self._living:
            return
        if not self._member.sure(self.epoch, self.generation):
            return
        self._hunt_at = None
        for name in sorted(filter(self._ours, self._member.open_transactions() - self._living)):
            if not self._member.sure(self.epoch, self.generation):
                return
            log.info("ending the transaction that %s left open", name)
            try:
                self._member.end_transaction(name, END_MS)
            except LogError as error:
                log.warning("the transaction that %s left open cannot be ended yet: %s", name, error)
        self._end_hanging()

    def _end_hanging(self) -> None:
        """End what hangs of members that are gone, if somebody has waited for long: the brokers do not count it among
        the open ones.
        """
        if (
            self._settle_at is None
            or self._host.now() < self._settle_at
            or self._member is None
            or not self._member.sure(self.epoch, self.generation)
        ):
            return
        self._settle_at = None
        living = self._living
        try:
            self._settle(lambda name: self._ours(name) and name not in living)
        except LogError as error:
            log.warning("what transactions of dead members left open cannot be ended yet: %s", error)
