"""The interface between a member and its group's coordinator: all that a group needs of
Kafka, without a client.

Two classes implement `Coordinator`: `GroupCoordinator` (kafka-python) and the model of
the simulation, which answers late, twice, or never.

Relies on: `membership` (makes the decisions of `Hooks`).
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
    """The time limits of a membership. Units: ms."""

    session: int = 10_000
    """The time without heartbeats after which the group removes a member.

    A C call that keeps the GIL for longer costs the membership, but nothing else. The
    group also waits this long for a member to join in a rebalance (Kafka's rebalance
    time-out). More is not needed: a join runs on the same thread as the heartbeats and
    waits for no record, and a member that dies inside a join holds up all the others.
    """
    heartbeat: int = 400
    """The interval of heartbeats. Each round of a rebalance takes about one interval.
    """
    connect: int = 60_000
    """How long a starting member looks for the brokers."""
    request: int = 30_000
    """How long a request is retried while brokers are unreachable."""
    patience: int = 1000
    """How long a commit waits for a join, or a join for commits, before it goes on
    regardless.
    """


class Hooks(Protocol):
    """The decisions of a member, which the coordinator calls on its I/O thread. They
    must return at once.
    """

    def alive(self) -> bool:
        """Return whether this process makes progress. If not, it leaves the group until
        it does.
        """
        ...

    def subscription(self) -> bytes:
        """Return the encoded subscription for the leader."""
        ...

    def assignments(self, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the encoded assignment of each member. Called on the leader."""
        ...

    def may_join(self) -> bool:
        """Return whether a join may begin now."""
        ...

    def answered(self, generation: int) -> None:
        """Handle the answer to a join: this generation has begun, with the subscription
        that was sent last.

        Called before `Coordinator.identity` names the generation.
        """

    def joined(self, generation: int, assignment: bytes) -> bool:
        """Apply an assignment; return whether to join again at once."""
        ...

    def lost(self) -> None:
        """Handle the end of the membership."""

    def failed(self, error: GroupError) -> None:
        """Handle that Kafka refuses this process for good: it has to stop."""


class Coordinator(Protocol):
    """The membership of one process in one group. Thread-safe, but not for the thread
    that calls the hooks.
    """

    @property
    def problem(self) -> str:
        """Why this process is not in the group, in words; empty: it is in the group."""
        ...

    def start(self) -> None:
        """Begin to join; the hooks are called from now on."""

    def identity(self) -> tuple[int, str]:
        """Return the current generation and member id; a generation below 0: no member."""
        ...

    @property
    def broker(self) -> int | None:
        """The connected broker that coordinates the group; None: it is being looked
        for.
        """
        ...

    def settled_in(self, generation: int) -> bool:
        """Return whether this is a member in that generation, and is not joining the
        next one.

        The next generation cannot begin before this member joins it.
        """
        ...

    @property
    def sure_until(self) -> float:
        """The time (`Host.elapsed`) until which certainly no other member has this
        member's tasks; 0: no member.
        """
        ...

    @property
    def heard_at(self) -> float:
        """The time (`Host.elapsed`) at which this member sent the last request that was
        answered; 0: no member.
        """
        ...

    def rejoin(self) -> None:
        """Have this member join the group again soon, which makes the group rebalance."""

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
            LogError: the coordinator refused, or did not answer in time; the message
                has the reason.
        """

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> FetchedOffset:
        """Return the group's offsets; `partitions` None: of all partitions.

        `stable`: leave out offsets that an open transaction may still change.

        Raises:
            LogError: the coordinator refused, or did not answer in time; the message
                has the reason.
        """
        ...

    def end_transaction(
        self,
        transactional_id: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        Raises:
            LogError: the request was refused, or not answered in time.
        """

    def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        """Return the transactional ids with an open transaction that this principal may
        see, from the brokers that answer in time.
        """
        ...

    def close(self, *, leave: bool) -> None:
        """End the membership and all connections. Idempotent.

        `leave` False: the group learns of it when the session has timed out.
        """


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process is in its group, over its restarts."""

    instance: str | None = None
    """The id of a static member (`group.instance.id`): a process that joins with the id
    of one that has ended takes its place, and no rebalance moves tasks. None: none.
    """
    predecessor: str = ""
    """The member id of a process that is certainly dead; empty: none. It leaves the
    group before this process joins, unless this is a static member.
    """
    waits: bool = False
    """Whether a static member with this id in the group may still be alive, and no
    broker fences its records: then this process joins when the group has removed it.
    """


Connector = Callable[[str, Identity, Timings, Hooks], Coordinator]
"""A function that returns a `Coordinator` for a group."""
