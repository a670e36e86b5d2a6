"""The data that members of the group exchange, as values: member information, held
tasks, assignments.

    MemberInfo     an instance's description of itself      instance -> subscription
    MemberState    that, and the tasks it holds             subscription -> leader
    Assignment     its tasks, and those of all members      leader -> each member
    Cluster        the owners, for routing and barriers     in every assignment

Invariant: plain data. `codec.py` defines the bytes and has each field a second time;
`assignor.py` has the leader's decision.
Invariant: a new field has a default, and the default means "a member of an older
version", which does not send it. If such a member could not do what the field asks for,
the field belongs to a new level (`format_level.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coopstreams.topology.task_id import TaskId

NO_GENERATION = -1
"""The generation of a member that holds no tasks from any assignment."""


class TaskPartition(NamedTuple):
    """A partition of a sub-topology. Sibling tasks share it, and it has a part of each
    store.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


class Runs(NamedTuple):
    """A sub-topology that a member can run, as the member announces it."""

    fingerprint: str
    partitions: int
    """The partition count that this member sees; another member may see more topics of
    a pattern. 0: no topic matches yet.
    """
    divisible: bool = True
    """Whether this member may divide the partitions by key range. They are divided only
    if all members may.
    """


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """An instance's description of itself."""

    process: str
    """The name of one run of the process: the same instance gets another name when it
    starts again.
    """
    host: str = ""
    endpoint: str | None = None
    """The address of the instance's query server; None: there is none (yet)."""
    threads: int = 1
    """The instance's number of stream threads, each with one slot. At least 1."""
    transactional_ids: tuple[str, ...] = ()
    """The transactional ids of its producers. A transaction of this application under
    any other id has no living owner.
    """
    allow_key_share: bool = True
    """Whether partitions may be divided by key range; a False of one member holds for
    the whole group.
    """
    ending: str = ""
    """Why every instance of the application has to stop; empty: none has to."""
    topology: tuple[Runs, ...] = ()
    """Its sub-topologies, by number: they define its task ids.

    Empty: a consumer, or a member of an older version that does not announce them.
    """
    leaving: bool = False
    """Whether the instance ends once it has released its tasks, and takes none."""
    rack: str = ""
    """Its rack (`client.rack`); empty: it is not known."""
    stands_by: tuple[int, ...] | None = None
    """The sub-topologies of which it can keep standbys; None: a member of an older
    version, beside which no member gets any.
    """
    level: int = 1
    """The newest level of formats that it can write (`format_level`); 1: a member of
    release 0.1, which does not announce one.
    """

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(
                f"member {self.process} offers {self.threads} threads; it needs one at least"
            )


@dataclass(frozen=True, slots=True)
class Warmth:
    """What a member says of the rows that it has."""

    heavy: tuple[TaskId, ...] = ()
    """Of the tasks that it holds: those with more changelog records than
    `acceptable.recovery.lag`. They move when their next owner has caught up.
    """
    ready: tuple[TaskId, ...] = ()
    """Of its standbys: those that are no further behind than that, and those that come no
    nearer. They may be moved here.
    """
    lags: tuple[tuple[TaskId, int], ...] = ()
    """How far each standby is behind: the binary digits of the number of changelog
    records (coarse, so that a repeated request to join has the same bytes). One that
    was not measured is missing.
    """


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member as the leader sees it."""

    info: MemberInfo
    tasks: tuple[TaskId, ...] = ()
    """All tasks held here: assigned, or revoked but not yet released."""
    generation: int = NO_GENERATION
    """The generation of the assignment that gave the tasks: of two claims the one of
    the later generation is right.
    """
    target: tuple[TaskId, ...] = ()
    """Its share of the last target: the tasks it gets once all hand-overs are done."""
    # Not compared: a member's own state has none, and equals what the leader decodes.
    topics: tuple[str, ...] = field(default=(), compare=False)
    """Its subscribed topics; only the leader gets them."""
    standbys: tuple[TaskId, ...] = ()
    """The tasks of which it has standbys: their rows are in its databases."""
    warmth: Warmth | None = None
    """What it says of its rows; None: a member of an older version, which gets no
    warm-ups.
    """


@dataclass(frozen=True, slots=True)
class Member:
    """A member as all members see it after a rebalance. `tasks` are granted: no other
    member holds any of them.
    """

    id: str
    info: MemberInfo
    tasks: tuple[TaskId, ...]
    standbys: tuple[TaskId, ...] = ()
    """The tasks of which it is to have standbys."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The whole group in one generation. Shape: `members` sorted by id; `partitions` is
    the partition count of each sub-topology.
    """

    members: tuple[Member, ...] = ()
    partitions: Mapping[int, int] = field(default_factory=dict)

    @property
    def transactional_ids(self) -> frozenset[str]:
        """The transactional ids of all producers of this generation."""
        return frozenset(
            name for member in self.members for name in member.info.transactional_ids
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leader's assignment for one member."""

    process: str
    """The process for which it was made: a restarted static member gets its
    predecessor's assignment.
    """
    tasks: tuple[TaskId, ...] = ()
    target: tuple[TaskId, ...] = ()
    """`tasks`, and the tasks that other members must release first."""
    settled: bool = True
    """Whether no member waits for another: then releasing revoked tasks needs no
    further rebalance.
    """
    cluster: Cluster = field(default_factory=Cluster)
    error: str = ""
    """Why the leader never gives this member a task, and it has to stop; empty: no
    reason.
    """
    waits: str = ""
    """Why the leader gives this member no tasks for now; empty: no reason. The member
    stays, and takes over when it can.
    """
    standbys: tuple[TaskId, ...] = ()
    """The tasks of which it is to have standbys. Those of its target are warm-ups: they
    move here when it has caught up.
    """
