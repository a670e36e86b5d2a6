"""What members of the group tell each other, as values: who they are, what they hold, what they are given.

    MemberInfo     what an instance says about itself          instance -> subscription
    MemberState    that, and the tasks it holds                subscription -> leader
    Assignment     the tasks it gets, and everybody's          leader -> each member
    Cluster        who has what, for routing and barriers      in every assignment

Invariant: plain data. What the bytes look like is `codec.py`'s business, what the leader decides `assignor.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coopstreams.topology.task_id import TaskId

NO_GENERATION = -1
"""The generation of a member that holds nothing from any assignment."""


class TaskPartition(NamedTuple):
    """A partition of a sub-topology: what siblings share, and where a store is."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


class Runs(NamedTuple):
    """A sub-topology that a member can run, as it announces it."""

    fingerprint: str
    partitions: int
    """As this member sees them: of topics by pattern, another one may see more. 0: there is nothing to read yet."""
    divisible: bool = True


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What an instance says about itself."""

    process: str
    """Names one life of one process: the same instance started again has another."""
    host: str = ""
    endpoint: str | None = None
    """Where its queries are served; None: not (yet)."""
    threads: int = 1
    """Its capacity: how many slots it has. At least 1."""
    transactional_ids: tuple[str, ...] = ()
    """Of its producers. A transaction of this application under any other id belongs to nobody alive."""
    rack: str | None = None
    allow_key_share: bool = True
    """False: whole partitions only, for the whole group."""
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    """Units: records."""
    ending: str = ""
    """Why it has every instance of the application stop; empty: it does not."""
    topology: tuple[Runs, ...] = ()
    """Its sub-topologies, by number: what its task ids mean. Empty: a consumer, or of a version of the format that does
    not say.
    """

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"member {self.process} offers {self.threads} threads; it needs one at least")


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member as the leader sees it."""

    info: MemberInfo
    tasks: tuple[TaskId, ...] = ()
    """Everything physically held here: assigned, and revoked but not yet released."""
    generation: int = NO_GENERATION
    """Of the assignment that the tasks come from: of two claims the newer one is true."""
    target: tuple[TaskId, ...] = ()
    """What the last assignment promised, once all hand-overs are done."""
    topics: tuple[str, ...] = field(default=(), compare=False)
    """What it subscribes to; only the leader is told."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as everybody sees it after a rebalance. `tasks` are granted: nobody else holds any of them."""

    id: str
    info: MemberInfo
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The whole group in one generation.

    Shape: `members` sorted by id; `partitions` of each sub-topology. `generation` is filled in by who receives it.
    """

    generation: int = NO_GENERATION
    members: tuple[Member, ...] = ()
    partitions: Mapping[int, int] = field(default_factory=dict)

    @property
    def transactional_ids(self) -> frozenset[str]:
        """The transactional ids of all producers of this generation."""
        return frozenset(name for member in self.members for name in member.info.transactional_ids)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives one member."""

    process: str
    """Whom it was made for: a static member that starts again is handed its predecessor's."""
    tasks: tuple[TaskId, ...] = ()
    target: tuple[TaskId, ...] = ()
    """`tasks`, and what others must release first."""
    settled: bool = True
    """Nobody waits for anybody: releasing what is revoked needs no further rebalance."""
    cluster: Cluster = field(default_factory=Cluster)
    error: str = ""
    """Why the leader never gives this member anything: it has to stop."""
    waits: str = ""
    """Why the leader gives this member nothing for now: it stays, and takes over when it can."""
