"""The ways in which a consumer opens key ranges and fences its commits: alone
(`assign`), or as a member of a group (`subscribe`).

    wanted -> barrier -> positions -> opened           `Openings`, for both
    Alone          no group assigns; a later opener of the same hashes outranks this one (a higher term)
    Shared         the group assigns; a revoked range stays held until it is released

Invariant: no key range is opened that overlaps another one of its partition that this
consumer still holds.
Invariant: alone or not, a range is opened behind the barrier, at a term above all terms
seen before.
Relies on: `commit.barrier`, `commit.positions` (terms), `group.holdings` (what this
member may open).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.commit.barrier import Barrier, Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import CommitPlan, Progress
from coopstreams.common.host import Host
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.holdings import Assigned
from coopstreams.group.membership import GroupMember
from coopstreams.log.kafka.producer import ProducerTransaction
from coopstreams.log.log import Writer
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

COMPLAIN_S = 5.0
"""How long a key range waits for the barrier before a warning, and the time between
warnings.
"""

Transaction: TypeAlias = Writer | ProducerTransaction
"""The writer of a commit: the consumer's own, or the user's producer."""


@dataclass(slots=True, eq=False)
class RangeOpening(Opening):
    """A key range that is to be opened, and is not open yet."""

    said_at: float = 0.0
    """The time when `want` was called for the key range, or when it was last logged as
    waiting.
    """


class Openings:
    """The key ranges that are to be opened, and wait for the barrier. Belongs to one
    thread.
    """

    def __init__(
        self,
        follower: Follower,
        barrier: Barrier,
        positions: Positions,
        host: Host,
    ) -> None:
        self.barrier = barrier
        self._follower = follower
        self._positions = positions
        self._host = host
        self._waiting: dict[TaskId, RangeOpening] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def want(self, ids: Iterable[TaskId], epoch: int) -> None:
        """Open these key ranges as soon as the commit topic is read to the barrier."""
        for id_ in ids:
            self._waiting[id_] = RangeOpening(id_, epoch, said_at=self._host.now())

    def drop(self, ids: Iterable[TaskId]) -> list[TaskId]:
        """Cancel the opening of these key ranges; return those that were not open yet."""
        return [id_ for id_ in ids if self._waiting.pop(id_, None) is not None]

    def clear(self) -> None:
        """Cancel all openings."""
        self._waiting.clear()

    def remade(self, opened: Iterable[Progress]) -> list[Progress]:
        """Return the progresses whose topic was made anew; see `Positions.remade`."""
        return self._positions.remade(opened)

    def step(self, held: Collection[TaskId]) -> list[tuple[Progress, Opening]]:
        """Open the key ranges that can be opened now, and return them. End transactions
        of dead members that delay the barrier.

        `held`: the key ranges that this consumer still has.

        Raises:
            LogError: the brokers did not answer (call it again), or the log no longer
                has a position.
        """
        self.barrier.hunt()
        ready = [
            one
            for one in self._waiting.values()
            if not any(one.id.conflicts(other) for other in held)
        ]
        passed = {one.id: one for one in self.barrier.passed(ready)}
        opened = self._positions.resolve(list(passed.values()), self.barrier.generation)
        if len(opened) < len(ready):
            self.barrier.hunt_later()
            self._complain([one for one in ready if one.id not in opened])
        return [(progress, self._waiting.pop(id_)) for id_, progress in opened.items()]

    def _complain(self, waiting: Iterable[RangeOpening]) -> None:
        """Log the key ranges that have waited for `COMPLAIN_S`, and what they wait for."""
        now = self._host.now()
        for one in waiting:
            if now - one.said_at > COMPLAIN_S and one.barrier is not None:
                one.said_at = now
                if trouble := self._follower.trouble:
                    log.warning("%s waits: %s", one.id, trouble)
                    continue
                if self._follower.passed(one.barrier):
                    log.warning(
                        "%s waits for %s",
                        one.id,
                        self._positions.waits_for(one.id),
                    )
                    continue
                log.warning(
                    "%s waits for the barrier: %s",
                    one.id,
                    self._follower.held_back(one.barrier),
                )


class Alone:
    """The ownership of a consumer without a group membership: `assign`."""

    alone = True

    def __init__(self, group: GroupAdmin) -> None:
        self.group = group

    def commit(
        self,
        writer: Transaction,
        plan: CommitPlan,
        epoch: int,  # noqa: ARG002 - no fence asks for it
        timeout_s: float,
    ) -> None:
        """Commit the transaction, then the plain offsets without a fence.

        Positions are read from the individual commits; the plain offsets are for
        monitoring tools.
        """
        writer.commit(timeout_s)
        if offsets := {at: offset for at, offset in plan.offsets.items() if offset[1]}:
            self.group.commit(offsets)

    def close(self) -> None:
        """Close the connection to the group's coordinator."""
        self.group.close()


class Shared:
    """The ownership of a consumer as a member of a group: `subscribe`."""

    alone = False

    def __init__(self, member: GroupMember) -> None:
        self.group = member
        self.assigned: Assigned | None = None

    def commit(
        self,
        writer: Transaction,
        plan: CommitPlan,
        epoch: int,
        timeout_s: float,
    ) -> None:
        """Send the plain offsets with the group's fence as the last part of the
        transaction, and commit it.

        Raises:
            MembershipLostError: the fence was refused: the group has removed this
                member. Uncommitted work is void.
            LogError: it is unknown whether the commit counted.
        """
        with self.group.fence(epoch) as fence:
            writer.send_offsets(plan.offsets, fence)
        writer.commit(timeout_s)

    def released(self, ids: Iterable[TaskId]) -> None:
        """Report these key ranges to the group as committed and closed, so that it may
        assign them to others.
        """
        assert self.assigned is not None
        self.group.released(ids, self.assigned.serial)

    def close(self) -> None:
        """Leave the group."""
        self.group.close()


Ownership: TypeAlias = Alone | Shared
"""How the commits of a consumer are fenced. Its `group` knows the plain offsets."""
