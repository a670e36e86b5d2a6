"""`Backend`, the interface between the query server and the instance that it serves.
The runtime implements it.

Everything here is a value except the open view, which keeps a database open for the
duration of one read.

Invariant: an open view reads committed state of its whole key range. `owned()` is true
if and only if no other instance can have owned the range since the view was opened. An
instance that cannot be sure of its membership (no heartbeat answered within the session
time-out) owns nothing. Turned down: returning stores and letting reads fail with
exceptions (Kafka Streams' users write retry loops around it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from coopstreams.common.metrics import HealthCode, Totals
from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.task_id import TaskId

Kind = Literal["key_value", "versioned", "window", "session", "global"]
"""The kind of a store, which decides the requests that it answers."""
TimedKind = Literal["window", "session"]
"""The kinds of stores whose keys have many rows, each of a time."""


@dataclass(frozen=True, slots=True)
class History:
    """The history of a versioned store: its length, counted back from the latest stream
    time of these topics.
    """

    topics: tuple[str, ...]
    history_ms: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store as a whole, over all instances.

    Shape: `partitions` are those of the sub-topology that keeps it; a global table is
    kept by no sub-topology (None), and `partitions` are those of its topic. `row_key`
    is the serde of stored keys where they have a window; `window_ms` the length of all
    windows, None if they differ. `value` is the serde of one value: of one version in a
    versioned store.
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
    headers: bool = False
    """Whether its rows have headers, in front of their values."""
    misplaced: tuple[str, ...] = ()
    """The topics above it of which this instance saw records in other partitions than
    murmur2 gives their keys.
    """


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the group. `url` (no slash at the end) is None if it serves no
    queries, or its address is not known yet.

    `id` names one life of one process: after a restart an instance has another id, so
    it is not mistaken for the previous one.
    """

    id: str
    url: str | None
    tasks: tuple[TaskId, ...]
    unasked: str = "serves no queries (yet)"
    """Why it is not asked, if it has no `url`."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A task, and the instance that owns it."""

    instance: Peer
    task: TaskId


@dataclass(frozen=True)
class Placement:
    """The owners of all tasks, by the last assignment that this instance received.

    `here` is this instance's id; it need not be among `instances`.
    """

    generation: int
    here: str
    instances: tuple[Peer, ...]
    waits: str = ""
    """Why this instance does not know the owners; empty: it knows them."""

    @cached_property
    def by_partition(self) -> Mapping[tuple[int, int], Sequence[Owner]]:
        """The owners in each (sub-topology, partition)."""
        owners: dict[tuple[int, int], list[Owner]] = {}
        for instance in self.instances:
            for task in instance.tasks:
                owners.setdefault((task.subtopology, task.partition), []).append(
                    Owner(instance, task)
                )
        return owners


class OpenView(Protocol):
    """A store of one local task, open for reading. As a context manager it keeps the
    database open.
    """

    @property
    def task(self) -> TaskId:
        """The task; the view covers its key range."""
        ...

    @property
    def epoch(self) -> int:
        """The ownership's epoch: it changes when the task is lost or moved, even if the
        task comes back.
        """
        ...

    @property
    def lag(self) -> int | None:
        """Records between the committed positions and the ends of the task's topics;
        None: not known yet.
        """
        ...

    @property
    def store(self) -> KeyRangeView:
        """The committed state. Reads block on the disk."""
        ...

    @property
    def past(self) -> KeyRangeView | None:
        """The committed versions before the latest, by their ends; None: the store
        keeps none.
        """
        ...

    def stream_time(self, topic: str) -> int:
        """Return the stream time of a topic of the task, at least that of the state
        read before.
        """
        ...

    def owned(self) -> bool:
        """Return whether the instance has owned the range, under this epoch, since the
        view was opened.
        """
        ...

    def __enter__(self) -> OpenView: ...
    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class NotOpen:
    """Why a key range cannot be read here now, in words."""

    message: str
    retry_after_ms: int = 200


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why an instance is not healthy. `code`: for programs, such as
    `restoring` or `no-progress`.
    """

    code: HealthCode
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an instance.

    `live`: it makes progress, or waits for a known reason. `ready`: it is a member of
    the group, with all its tasks open.
    """

    live: bool
    ready: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The progress of a task in one topic partition. None: not known (yet)."""

    source: TopicPartition
    position: int
    committed: int | None = None
    end: int | None = None
    stream_time: int | None = None
    """The stream time of the latest commit. Units: ms."""
    silent_s: float | None = None
    """How long the partition has been silent: then its stream time advances with the
    clock (`idle_advance`). None: records come, or time advances with records only.
    """

    @property
    def lag(self) -> int | None:
        """Records of the partition not yet committed, those of other key ranges
        included.
        """
        return (
            None
            if self.end is None or self.committed is None
            else max(0, self.end - self.committed)
        )


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """The progress of a store's restore. Units: offsets of the changelog, offsets/s,
    seconds.
    """

    store: str
    restored: int
    remaining: int
    rate: float
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """The progress of a store's download from a snapshot. Units: bytes, bytes/s,
    seconds.
    """

    store: str
    fetched_bytes: int
    total_bytes: int
    rate: float
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The calls of a task's asynchronous operators.

    `in_flight`: calls that are being made; `waiting`: those that have not begun.
    `oldest_s`: how long its first record has waited. `blocked_keys`: keys of which a
    record waits behind another. `retries`: calls that were made again since the task
    was opened.
    """

    in_flight: int
    waiting: int
    oldest_s: float
    blocked_keys: int
    retries: int


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task of this instance, and its work since it was opened.

    Shape: `state` of `metrics.TASK_STATES`; `written` by topic, without changelogs;
    `dropped` by node and reason.
    Units: `rate` in records/s over the last seconds.
    """

    task: TaskId
    state: str
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
    """How far stream time is behind the wall clock; None: no stream time yet. Of
    several sources, the latest counts.
    """
    hot: tuple[tuple[int, float], ...] = ()
    """Key groups that have much of its records, with their shares, the largest first.
    """
    calls: CallStatus | None = None
    """None: no operator is asynchronous."""

    @property
    def stream_time(self) -> int | None:
        """The latest stream time of the task's sources."""
        return max(
            (
                source.stream_time
                for source in self.sources
                if source.stream_time is not None
            ),
            default=None,
        )


@dataclass(frozen=True, slots=True)
class FailureStatus:
    """A record that failed here. Without the message of the error, which may quote the
    record.

    Shape: `task` None: of a global table. `offset` None: of what was held back, or of a
    punctuation. `answer`: what was done. Units: `at` in ms.
    """

    at: int
    task: TaskId | None
    node: str
    phase: str
    source: TopicPartition
    offset: int | None
    error: str
    answer: str


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A sub-topology whose records a share group deals, and its state on this instance.

    Shape: `acquired`: records that this instance has and has not acknowledged.
    `redelivered`: records that were delivered before. `waits`: why no thread takes
    records, in words; empty: they do.
    """

    subtopology: int
    group: str
    topics: tuple[str, ...]
    threads: int
    waits: str
    acquired: int = 0
    processed: int = 0
    redelivered: int = 0
    written: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The status of this instance.

    `state` is a word for people: `joining`, `waiting`, `rebalancing`, `running`,
    `paused`; of an instance that ends `pending-shutdown`, `not-running`,
    `pending-error`, `error`.
    """

    application: str
    state: str
    health: Health
    tasks: tuple[TaskStatus, ...] = ()
    uptime_s: float = 0.0
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    failures: tuple[FailureStatus, ...] = ()
    """The latest failures, the oldest first."""
    shares: tuple[ShareStatus, ...] = ()


class Backend(Protocol):
    """An instance, as its query server sees it. Thread-safe. All calls return at once;
    only reads of a view block.
    """

    @property
    def application(self) -> str:
        """The application id; requests forwarded for another application are refused."""
        ...

    @property
    def topology(self) -> Structure:
        """The program that runs, with the topics that its patterns match now."""
        ...

    def stores(self) -> Mapping[str, StoreInfo]:
        """Return every store of the topology by name, whichever instance owns it."""
        ...

    def placement(self) -> Placement:
        """Return the owners of all tasks.

        The same object until an assignment or an instance's url changes, so that
        derived values can be cached in it.
        """
        ...

    def view(self, store: str, partition: int, hash_: int) -> OpenView | NotOpen:
        """Return an open view of the local task that owns this key hash of a store, or
        why there is none.
        """
        ...

    def views(self, store: str) -> Sequence[OpenView | NotOpen]:
        """Return one view for each local task of a store, in no order."""
        ...

    def global_view(self, store: str) -> GlobalView | None:
        """Return a global table of this instance; None while it is still being loaded."""
        ...

    def health(self) -> Health:
        """Return the health of the instance."""
        ...

    def status(self) -> Status:
        """Return the status of the instance."""
        ...

    def busy(self) -> bool:
        """Return whether records wait to be processed, or to be fetched, so that
        queries cost the processing.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Pause or resume processing."""
        ...
