"""The interface between a member and its group's coordinator: all that a group needs of
Kafka, without a client.

Two classes implement it: `GroupCoordinator` (kafka-python) and the model of the
simulation, which answers late, twice, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError


@dataclass(frozen=True, slots=True)
class Timings:
    """Time limits of a membership. Units: ms."""

    session: int = 10_000
    """Without heartbeats for this long, a member is out.

    A C call that keeps the GIL for longer costs the membership, but nothing else. The
    group waits no longer for a member to join again (Kafka's rebalance time-out): a
    join runs on the same thread as the heartbeats and waits for no record, and a member
    that dies inside one would hold up all the others.
    """
    heartbeat: int = 400
    """Interval of heartbeats. Each round of a rebalance takes about one interval."""
    connect: int = 60_000
    """How long to look for the brokers at start."""
    request: int = 30_000
    """How long a request is retried while brokers are unreachable."""
    patience: int = 1000
    """How long a commit waits for a join, or a join for commits, before it goes on
    regardless.
    """


class Hooks(Protocol):
    """The decisions of a member. Called on the I/O thread; must return at once."""

    def alive(self) -> bool:
        """Whether this process makes progress; if not, it leaves the group until it
        does.
        """
        ...

    def subscription(self) -> bytes:
        """Return the subscription for the leader."""
        ...

    def assignments(self, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the assignment of each member. Called on the leader."""
        ...

    def may_join(self) -> bool:
        """Whether a join may begin now."""
        ...

    def answered(self, generation: int) -> None:
        """Handle the answer to a join: this generation began with the subscription that
        was sent last.

        Called before `Coordinator.identity` names the generation.
        """

    def joined(self, generation: int, assignment: bytes) -> bool:
        """Apply an assignment; return whether to join again at once."""
        ...

    def lost(self) -> None:
        """Handle the end of the membership."""

    def failed(self, error: GroupError) -> None:
        """Stop: this process will never be a member."""


class Coordinator(Protocol):
    """Membership of one process in one group. Thread-safe; not for the thread that
    calls the hooks.
    """

    @property
    def problem(self) -> str:
        """Why this process is not in the group, in words; empty: it is."""
        ...

    def start(self) -> None:
        """Begin to join; the hooks are called from now on."""

    def identity(self) -> tuple[int, str]:
        """Return generation and member id as they are now; a generation below 0: no
        member.
        """
        ...

    @property
    def broker(self) -> int | None:
        """The broker that coordinates the group, and is connected; None: it is being
        looked for.
        """
        ...

    def settled_in(self, generation: int) -> bool:
        """Whether this is a member in that generation, and is not joining the next one.

        The next generation cannot begin before this member joins it.
        """
        ...

    @property
    def sure_until(self) -> float:
        """The time (`Host.elapsed`) until which certainly no other member has our
        tasks; 0: no member.
        """
        ...

    @property
    def heard_at(self) -> float:
        """The time (`Host.elapsed`) at which the last answered request of this member
        was sent; 0: no member.
        """
        ...

    def rejoin(self) -> None:
        """Rebalance soon."""

    def check(self) -> None:
        """Send a heartbeat soon, to learn whether this is still a member."""

    def commit_offsets(
        self,
        fence: GroupFence,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets, as the member and generation of the fence.

        Raises:
            MembershipLostError: the coordinator does not know this member and
            generation.
            LogError: it refused, or did not answer in time; the message has the reason.
        """

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> FetchedOffset:
        """Return the group's offsets (None: all). `stable`: without those that an open
        transaction may still change.

        Raises:
            LogError: it refused, or did not answer in time; the message has the reason.
        """
        ...

    def end_transaction(
        self,
        transactional_id: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort the open transaction of that id, and fence its producer.

        Raises:
            LogError: refused, or no answer in time.
        """

    def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        """Return the ids of open transactions that this principal may see, of the
        brokers that answer in time.
        """
        ...

    def close(self, *, leave: bool) -> None:
        """End everything. `leave` False: the group learns it when the session has timed
        out. Idempotent.
        """


Connector = Callable[[str, str | None, Timings, Hooks, str], Coordinator]
"""Returns a `Coordinator`, given the group, a static member's id (or None), time
limits, hooks and a predecessor.

The predecessor is the member id of a process that is certainly dead: it leaves the
group before this one joins; empty: none.
"""
