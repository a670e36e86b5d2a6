"""What the query room asks of the instance it serves. The runtime implements `Backend`; nothing else is shared between
the two.

Everything here is a value but the open view, which pins a database for the time of one read.

Invariant: an open view answers for committed state of its whole key range, and `owned()` is true from before a read
until after it if and only if nobody else can have been the owner meanwhile. An instance that cannot be sure that it is
still a member of the group (no heartbeat answered within the session time-out) owns nothing.
Turned down: handing out stores and letting the query room find out by exceptions (Kafka Streams' users write retry
loops around it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Protocol

from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.task_id import TaskId

TaskState = Literal["waiting", "restoring", "running", "closing"]


Kind = Literal["key_value", "versioned", "window", "session", "global"]
"""What can be asked of a store."""


@dataclass(frozen=True, slots=True)
class History:
    """Of a versioned store: how far back it goes, and the topics whose stream time, the latest of them, that is counted
    from.
    """

    topics: tuple[str, ...]
    history_ms: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store as a whole, over all instances.

    Shape: `partitions` are those of the sub-topology that keeps it; a global table is kept by no sub-topology (None),
    and `partitions` are those of its topic. `row_key` is the serde of stored keys where they have a window; `window_ms`
    the length of all windows, None if they differ. `value` is the serde of one value: of one version in a versioned
    store.
    """

    name: str
    kind: Kind
    subtopology: int | None
    partitions: int
    key: Serde[Any]
    value: Serde[Any]
    window_ms: int | None = None
    row_key: Serde[Windowed[Any]] | None = None
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the group. `url` (no slash at the end) is None while it has not said where it serves, or does not
    serve.

    `id` names one life of one process: an instance that starts again has another, so that nobody takes it for the one
    before.
    """

    id: str
    url: str | None
    tasks: tuple[TaskId, ...]
    ready: bool = True
    """Whether its tasks were all open when it was last heard of. For people; routing asks the instance itself."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has a task."""

    instance: Peer
    task: TaskId


@dataclass(frozen=True)
class Placement:
    """Who owns what, by the last assignment this instance received. `here` is this instance's id; it need not be among
    `instances`.
    """

    generation: int
    here: str
    instances: tuple[Peer, ...]
    waits: str = ""
    """Why this instance knows nobody's tasks; empty: it knows them."""

    @cached_property
    def by_partition(self) -> Mapping[tuple[int, int], Sequence[Owner]]:
        """The owners in each (sub-topology, partition)."""
        owners: dict[tuple[int, int], list[Owner]] = {}
        for instance in self.instances:
            for task in instance.tasks:
                owners.setdefault((task.subtopology, task.partition), []).append(Owner(instance, task))
        return owners


class OpenView(Protocol):
    """A store of one local task, open for reading. A context manager: the database is not closed under it."""

    @property
    def task(self) -> TaskId:
        """The task; its range is what the view answers for."""
        ...

    @property
    def epoch(self) -> int:
        """Which ownership this is: another one after the task was lost or moved, even if it came back."""
        ...

    @property
    def lag(self) -> int | None:
        """Records between what is committed and the end of the task's topics; None: not known yet."""
        ...

    @property
    def store(self) -> KeyRangeView:
        """The committed state. Reads block on the disk."""
        ...

    def stream_time(self, topic: str) -> int:
        """Return how far stream time is in a topic of the task: at least as far as in the state that was read
        before.
        """
        ...

    def owned(self) -> bool:
        """Whether the instance has been the owner, under this epoch, from when the view was opened until now."""
        ...

    def __enter__(self) -> OpenView: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class NotOpen:
    """Why a range cannot be read here now. `range` is what of it this instance has, None if nothing."""

    reason: Literal["not owned", "waiting", "restoring", "closing"]
    message: str
    partition: int
    range: KeyRange | None = None
    retry_after_ms: int = 200


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that keeps an instance from being well. `code` is a word for programs: `restoring`, `no-progress`,
    `another-version`, ...
    """

    code: str
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: the process does its work or waits for good reason. `ready`: a member of the group, with all its tasks
    open.
    """

    live: bool
    ready: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a task is in one topic partition. None: not known (yet)."""

    source: TopicPartition
    position: int
    committed: int | None = None
    end: int | None = None
    stream_time: int | None = None
    """Of the latest commit. Units: ms."""

    @property
    def lag(self) -> int | None:
        """Records of the partition not yet committed, those of other key ranges included."""
        return None if self.end is None or self.committed is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """How far a store is restored. Units: records, records/s, seconds."""

    store: str
    restored: int
    remaining: int
    rate: float
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """How far a store has come from a snapshot. Units: bytes, bytes/s, seconds."""

    store: str
    fetched_bytes: int
    total_bytes: int
    rate: float
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task of this instance, and what it has done since it was opened. Units: `rate` in records/s over the last
    seconds.

    Shape: `written` by topic, changelogs left out; `dropped` by node and reason.
    """

    task: TaskId
    state: TaskState
    epoch: int
    processed: int = 0
    rate: float = 0.0
    sources: tuple[SourceStatus, ...] = ()
    restore: tuple[RestoreStatus, ...] = ()
    download: tuple[DownloadStatus, ...] = ()
    written: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead_letters: int = 0
    behind_ms: int | None = None
    """How far stream time is behind the clock; None: there is none yet. Of several sources, the latest counts."""

    @property
    def stream_time(self) -> int | None:
        """The latest stream time of its sources."""
        return max((source.stream_time for source in self.sources if source.stream_time is not None), default=None)


@dataclass(frozen=True, slots=True)
class Status:
    """What this instance is doing. `state` is a word for people: `joining`, `waiting`, `rebalancing`, `running`,
    `stopping`.
    """

    application: str
    state: str
    health: Health
    tasks: tuple[TaskStatus, ...] = ()
    uptime_s: float = 0.0
    details: Mapping[str, str | int | float] = field(default_factory=dict)


class Backend(Protocol):
    """An instance, as its query server sees it. Any thread may call; everything returns at once, but reads in a
    view.
    """

    @property
    def application(self) -> str:
        """The application id: a forwarded request for another application is refused."""
        ...

    def stores(self) -> Mapping[str, StoreInfo]:
        """Return every store of the topology by name, whoever owns it."""
        ...

    def placement(self) -> Placement:
        """Return who owns what. The same object until an assignment or an instance's url changes: what is derived from
        it is kept.
        """
        ...

    def view(self, store: str, partition: int, hash_: int) -> OpenView | NotOpen:
        """Return an open view of the local task that holds this key hash of a store, or why there is none."""
        ...

    def views(self, store: str) -> Sequence[OpenView | NotOpen]:
        """Return one view for each task of this instance that keeps a part of a store, in no order."""
        ...

    def global_view(self, store: str) -> GlobalView | None:
        """Return a global table of this instance; None while it is still being read."""
        ...

    def health(self) -> Health:
        """Return whether the instance is well, and why not."""
        ...

    def status(self) -> Status:
        """Return what the instance is doing."""
        ...
