"""The barrier: an offset of the commit topic below which every commit of an earlier
owner lies.

The barrier is the true end of the group's partition, taken after this member knows its
generation. The group coordinator has fenced all earlier owners by then, so none of them
commits anything above it. Open transactions of members that have left would hold the
barrier until their time-out, so this module ends them at once.

Transactions of other groups in the partition cannot be ended here. They hold the
barrier only if commits of this group lie behind them (`hidden_commits`).

Invariant: no commit of an earlier owner is missed: it lies below the barrier, or
brokers refuse its fence.
Relies on: `follower` (what is known), `group.membership` (`sure`: nothing is ended by a
process that may have been removed), `group.missing_markers` (hanging transactions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from coopstreams.commit.follower import Follower
from coopstreams.commit.record import Committed
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.holdings import Assigned
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

PATIENCE_S = 0.3
"""How long a task waits at the barrier before open transactions of members that have
left are listed once more.
"""


END_MS = 3000
"""The time limit for ending one transaction (10 to 20 ms as a rule). It is short
because the opener thread, which also opens tasks, makes the call.
"""


HANGING_S = 5.0
"""How long a task waits before hanging transactions are searched for, which takes three
requests to each broker.
"""


AHEAD_S = 1.0
"""How long a task waits before the records above the tail are read: a transaction of
another group may keep the tail back.
"""


class Group(Protocol):
    """The part of the membership that `Barrier` needs: `membership.GroupMember`."""

    def sure(self, epoch: int, generation: int | None = None) -> bool:
        """Return whether this process is certainly a member: see `GroupMember.sure`."""
        ...

    def open_transactions(self) -> frozenset[str]:
        """Return the transactional ids with an open transaction: see `GroupMember`."""
        ...

    def end_transaction(
        self,
        transactional_id: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort the open transaction of a transactional id: see `GroupMember`."""


@dataclass(slots=True, eq=False)
class Opening:
    """A task, or a key range of a consumer, that is being opened: it waits for the
    barrier and then for its positions.
    """

    id: TaskId
    epoch: int
    """The epoch of the membership under which the task opens."""
    barrier: int | None = None
    """The offset of the barrier; None: it has to be taken."""
    doubted_at: float | None = None
    """The time (`Host.now`) since which its plain offsets have named unknown commits;
    None: they name no unknown commit.
    """
    plain: dict[TopicPartition, Committed | None] = field(default_factory=dict)
    """The plain offsets that were fetched behind the barrier, and that no open
    transaction can change.
    """


T = TypeVar("T", bound=Opening)


class Barrier:
    """The barrier of one member of a group. Belongs to the thread that polls the
    follower.
    """

    def __init__(
        self,
        member: Group | None,
        follower: Follower,
        ours: Callable[[str], bool],
        settle: Callable[[Callable[[str], bool]], None],
        host: Host = SYSTEM,
    ) -> None:
        """Make the barrier of a member; `member` None: the living members are unknown,
        so no transaction is ended.

        `ours`: whether a transactional id belongs to a member, present or past, of this
        group. `settle`: ends the hanging transactions whose ids pass the given
        predicate.
        """
        self._host = host
        self._member = member
        self._follower = follower
        self._ours = ours
        self._settle = settle
        self._settle_at: float | None = None
        """The time of the next search for hanging transactions; None: no search."""
        self._living: frozenset[str] = frozenset()
        self.epoch = -1
        """The epoch of the last assignment."""
        self._hunt_at: float | None = None
        """The time of the next search for open transactions; None: no search."""
        self._held_since: float | None = None
        """The time since which a barrier has not been passed; None: no task waits."""
        self.generation = -1
        """The generation of the last assignment."""

    def follow_generation(self, assigned: Assigned) -> None:
        """Set the members of a new generation; `hunt` then ends the transactions of all
        other members.
        """
        self._living = assigned.cluster.transactional_ids
        self.generation = assigned.generation
        self.epoch = assigned.epoch
        self._hunt_at = self._host.now()

    def passed(self, waiting: Sequence[T]) -> list[T]:
        """Return the openings whose barrier is passed; take the barrier for openings
        without one.
        """
        if any(one.barrier is None for one in waiting):
            end = self._follower.barrier()
            for one in waiting:
                one.barrier = end if one.barrier is None else one.barrier
        barriers = [one.barrier for one in waiting if one.barrier is not None]
        self._look_ahead([at for at in barriers if not self._follower.passed(at)])
        return [
            one
            for one in waiting
            if one.barrier is not None and self._follower.passed(one.barrier)
        ]

    def _look_ahead(self, held: Sequence[int]) -> None:
        """Read above the tail once these barriers have been held for `AHEAD_S`."""
        now = self._host.now()
        if not held:
            self._held_since = None
            self._follower.look_no_more()
        elif self._held_since is None:
            self._held_since = now
        elif now - self._held_since >= AHEAD_S:
            self._follower.look_ahead(max(held))

    @property
    def hunting(self) -> bool:
        """Whether transactions of members that have left still have to be ended."""
        return self._hunt_at is not None and bool(self._living)

    def hunt_later(self) -> None:
        """Schedule another search for transactions of members that have left, because a
        task still waits at the barrier.
        """
        if self._hunt_at is None:
            self._hunt_at = self._host.now() + PATIENCE_S
        if self._settle_at is None:
            self._settle_at = self._host.now() + HANGING_S

    def hunt(self) -> None:
        """End open transactions of members that have left, if a search is due and the
        list of members is certainly current.

        The membership is checked again before each transaction is ended: a new
        generation may have begun since the last check.
        """
        if (
            self._member is None
            or self._hunt_at is None
            or self._host.now() < self._hunt_at
            or not self._living
        ):
            return
        if not self._member.sure(self.epoch, self.generation):
            return
        self._hunt_at = None
        for name in sorted(
            filter(self._ours, self._member.open_transactions() - self._living)
        ):
            if not self._member.sure(self.epoch, self.generation):
                return
            log.info("ending the transaction that %s left open", name)
            try:
                self._member.end_transaction(name, END_MS)
            except LogError as error:
                log.warning(
                    "the transaction that %s left open cannot be ended yet: %s",
                    name,
                    error,
                )
        self._end_hanging()

    def _end_hanging(self) -> None:
        """End hanging transactions of members that have left, once a task has waited
        for `HANGING_S`.

        Coordinators do not list hanging transactions among the open ones.
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
            log.warning(
                "hanging transactions of dead members cannot be ended yet: %s",
                error,
            )
