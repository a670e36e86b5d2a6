"""How a consumer comes to have key ranges: alone, by what it is told to read, or as a member of a group. And what it
may commit.

    wanted -> barrier -> positions -> opened           `Openings`, for both
    Alone          nobody assigns anything; a later opener of the same hashes speaks louder (a higher term)
    Shared         the group assigns; what it wants back stays held until it is released

Invariant: of one partition, nothing is opened that overlaps what this consumer still holds.
Invariant: alone or not, a range is opened behind the barrier, at a term above all that was seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import CommitPlan, Progress
from coopstreams.commit.record import Committed
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.holdings import Assigned
from coopstreams.group.membership import GroupMember
from coopstreams.group.requests import FetchedOffset
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

COMPLAIN_S = 5.0
"""How long a key range may wait for the barrier before that is said, and said again."""


@dataclass(slots=True, eq=False)
class Opening:
    """A key range that is wanted and not yet open."""

    id: TaskId
    epoch: int
    barrier: int | None = None
    doubted_at: float | None = None
    plain: dict[TopicPartition, Committed | None] = field(default_factory=dict)
    said_at: float = field(default_factory=time.monotonic)
    """When it was wanted, or was last said to wait."""


class Openings:
    """The key ranges that wait for the barrier. One thread."""

    def __init__(self, follower: Follower, barrier: Barrier, positions: Positions) -> None:
        self.barrier = barrier
        self._follower = follower
        self._positions = positions
        self._waiting: dict[TaskId, Opening] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def want(self, ids: Iterable[TaskId], epoch: int) -> None:
        """Open these when that is possible."""
        for id_ in ids:
            self._waiting[id_] = Opening(id_, epoch)

    def drop(self, ids: Iterable[TaskId]) -> list[TaskId]:
        """Open these no more; return those that were waiting."""
        return [id_ for id_ in ids if self._waiting.pop(id_, None) is not None]

    def clear(self) -> None:
        """Open nothing."""
        self._waiting.clear()

    def step(self, held: Collection[TaskId]) -> list[tuple[Progress, Opening]]:
        """Return what is open now; ends transactions of dead members that stand in the way.

        Raises:
            LogError: the brokers did not answer (ask again), or a position that the log no longer has.
        """
        self.barrier.hunt()
        ready = [one for one in self._waiting.values() if not any(one.id.conflicts(other) for other in held)]
        passed = {one.id: one for one in self.barrier.passed(ready)}
        opened = self._positions.resolve(list(passed.values()), self.barrier.generation)
        if len(opened) < len(ready):
            self.barrier.hunt_later()
            self._complain([one for one in ready if one.id not in opened])
        return [(progress, self._waiting.pop(id_)) for id_, progress in opened.items()]

    def _complain(self, waiting: Iterable[Opening]) -> None:
        """Say who waits for long, and for what."""
        now = time.monotonic()
        for one in waiting:
            if now - one.said_at > COMPLAIN_S and one.barrier is not None:
                one.said_at = now
                if trouble := self._follower.trouble:
                    log.warning("%s waits: %s", one.id, trouble)
                    continue
                if self._follower.passed(one.barrier):
                    log.warning("%s waits for %s", one.id, self._positions.waits_for(one.id))
                    continue
                names = (
                    ", ".join(sorted(self._follower.blockers(one.barrier))) or "of another group in the same partition"
                )
                log.warning(
                    "%s waits: %s is known up to %d, and has to be up to %d. An open transaction keeps the rest back: "
                    "%s",
                    one.id,
                    self._follower.partition,
                    self._follower.tail,
                    one.barrier,
                    names,
                )


class Transaction(Protocol):
    """What a commit needs of a writer: ours, or a producer of the user's."""

    def begin(self) -> None:
        """See `Writer`."""

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        *,
        partitions: int,
    ) -> None:
        """See `Writer`."""

    def flush(self, timeout_s: float) -> None:
        """See `Writer`."""

    def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], fence: GroupFence) -> None:
        """See `Writer`."""

    def commit(self, timeout_s: float) -> None:
        """See `Writer`."""

    def abort(self) -> None:
        """See `Writer`."""


class Ownership(Protocol):
    """What a commit needs: whose it is."""

    alone: bool

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """Return the plain offset and metadata of each partition."""
        ...

    def commit(self, writer: Transaction, plan: CommitPlan, epoch: int, timeout_s: float) -> None:
        """Make what was written in the open transaction count, with the plain offsets of the plan.

        Raises:
            MembershipLostError: refused: the group went on. What is uncommitted is void.
            LogError: it may or may not have counted.
        """


class Alone:
    """Without a membership: `assign`."""

    alone = True

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """Return the plain offset and metadata of each partition."""
        return self._admin.committed(partitions)

    def fetch_offsets(self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True) -> FetchedOffset:
        """Return what is known of these partitions now."""
        return self._admin.fetch_offsets(partitions, stable=stable)

    def commit(self, writer: Transaction, plan: CommitPlan, epoch: int, timeout_s: float) -> None:  # noqa: ARG002
        """End the transaction; then tell the coordinator, for monitors: the individual commits say it all."""
        writer.commit(timeout_s)
        if offsets := {at: offset for at, offset in plan.offsets.items() if offset[1]}:
            self._admin.commit(offsets)

    def close(self) -> None:
        """Let go."""
        self._admin.close()


class Shared:
    """As a member of a group: `subscribe`."""

    alone = False

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self.assigned: Assigned | None = None

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """Return the plain offset and metadata of each partition."""
        return self.member.committed(partitions)

    def fetch_offsets(self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True) -> FetchedOffset:
        """Return what is known of these partitions now."""
        return self.member.fetch_offsets(partitions, stable=stable)

    def commit(self, writer: Transaction, plan: CommitPlan, epoch: int, timeout_s: float) -> None:
        """Ask for the fence, which comes last; end the transaction."""
        with self.member.fence(epoch) as fence:
            writer.send_offsets(plan.offsets, fence)
        writer.commit(timeout_s)

    def released(self, ids: Iterable[TaskId]) -> None:
        """Say that these are committed and closed."""
        assert self.assigned is not None
        self.member.released(ids, self.assigned.serial)

    def close(self) -> None:
        """Leave the group."""
        self.member.close()
