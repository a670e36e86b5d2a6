"""What a member and its group's coordinator ask of each other: everything a group needs of Kafka, and nothing of a
client.

Two coordinators speak it: `GroupCoordinator` (kafka-python) and the model of the simulation, which answers late, twice,
or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from coopstreams.group.requests import FetchedOffset
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError


@dataclass(frozen=True, slots=True)
class Timings:
    """How long things may take. Units: ms."""

    session: int = 10_000
    """Without heartbeats for so long, a member is out. A C call that keeps the GIL for longer costs the membership,
    nothing else.

    The group waits no longer for a member to join again (Kafka's rebalance time-out): a join runs on the same thread as
    the heartbeats and waits for no record, and a member that dies inside one would hold up all the others.
    """
    heartbeat: int = 400
    """A rebalance takes about one heartbeat a round."""
    connect: int = 60_000
    """How long to look for the brokers at start."""
    request: int = 30_000
    """How long a request is repeated while brokers are away."""
    patience: int = 1000
    """How long commits wait for a join, and a join for commits, before they go on all the same."""


class Hooks(Protocol):
    """What the membership decides. Called on the I/O thread; must return at once."""

    def alive(self) -> bool:
        """Whether this process makes progress; if not, it leaves the group until it does."""
        ...

    def subscription(self) -> bytes:
        """What to tell the leader."""
        ...

    def assignments(self, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
        """As the leader: what each member gets."""
        ...

    def may_join(self) -> bool:
        """Whether nothing is in the way of a join now."""
        ...

    def joined(self, generation: int, assignment: bytes) -> bool:
        """Take an assignment; return whether to join again at once."""
        ...

    def lost(self) -> None:
        """The membership is over."""

    def failed(self, error: GroupError) -> None:
        """It will never be a member: stop."""


class Coordinator(Protocol):
    """Membership of one process in one group. Any thread but the one that calls the hooks."""

    @property
    def problem(self) -> str:
        """What keeps this process out of the group, in words; empty: nothing."""
        ...

    def start(self) -> None:
        """Begin to join; the hooks are called from now on."""

    def identity(self) -> tuple[int, str]:
        """Return generation and member id as they are now; a generation below 0 is nobody's."""
        ...

    @property
    def broker(self) -> int | None:
        """The broker that coordinates the group, and is connected; None: it is being looked for."""
        ...

    def settled_in(self, generation: int) -> bool:
        """Whether this is a member in that generation, and is not joining the next: then the group waits for it, and
        has none yet.
        """
        ...

    @property
    def sure_until(self) -> float:
        """Until when nobody else can have got our tasks, as far as we know: `Host.elapsed`; 0 while we are no
        member.
        """
        ...

    @property
    def heard_at(self) -> float:
        """When the last request of this member that was answered was sent: `Host.elapsed`; 0 while we are no member."""
        ...

    def rejoin(self) -> None:
        """Have a rebalance soon; come back if this process has left."""

    def leave(self) -> None:
        """Leave the group soon, and stay out until `rejoin`."""

    def check(self) -> None:
        """Find out soon whether this is still a member."""

    def commit_offsets(
        self, fence: GroupFence, offsets: Mapping[TopicPartition, tuple[int, str]], timeout_ms: int | None = None
    ) -> None:
        """Have the group keep offsets, as the member and generation of the fence.

        Raises:
            MembershipLostError: it does not know this member and generation.
            LogError: it refused, or did not answer in time; says what and why.
        """

    def fetch_offsets(self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True) -> FetchedOffset:
        """Return the group's offsets (all: None). `stable`: but for those that an open transaction may still change.

        Raises:
            LogError: it refused, or did not answer in time; says what and why.
        """
        ...

    def end_transaction(self, transactional_id: str, timeout_ms: int | None = None) -> None:
        """Abort whatever is open under that id, and fence its producer.

        Raises:
            LogError: refused, or no answer in time.
        """

    def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        """Return the ids of the open transactions that this principal may see, of those brokers that answer in time."""
        ...

    def close(self, *, leave: bool) -> None:
        """End everything; without `leave`, the group finds out when the session has timed out. Idempotent."""


Connector = Callable[[str, str | None, Timings, Hooks, str], Coordinator]
"""Makes what speaks with the coordinator of a group, for a static member's id (or None), with these times and hooks;
last, the member id of a process that is certainly dead, and leaves the group before this one joins; empty: of none.
"""
