"""What an instance says of itself and of its group, over HTTP: status, metadata, stores.

Each `Struct` is one JSON object, field by field, and its schema in the OpenAPI
description, with the docstring and the `Meta` of a field as descriptions.

Invariant: a field with a default is one that an answer may lack: of an instance that
does not answer, or is of an earlier release. What an instance says of itself has all.
Turned down: values of the runtime and other types for JSON (one field stood in five
files).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from coopstreams.status.reasons import Reason
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId

Kind: TypeAlias = Literal["key_value", "versioned", "window", "session", "global"]
"""The kind of a store, which decides the requests that it answers."""
Time: TypeAlias = Annotated[
    int, Meta(ge=0, description="Milliseconds since the epoch.")
]
Lag: TypeAlias = Annotated[
    int | None,
    Meta(
        description="Records between what the task has committed and the partition's end: of all its key ranges."
    ),
]


class SourceStatus(msgspec.Struct, frozen=True):
    """The progress of a task in one topic partition. Null: not known (yet)."""

    topic: str
    partition: int
    position: int
    committed: int | None
    end: int | None
    lag: Lag
    stream_time: int | None
    silent_s: Annotated[
        float | None,
        Meta(
            description="How long the partition has been silent while its stream time advances with the clock."
        ),
    ]

    @classmethod
    def of(
        cls,
        source: TopicPartition,
        position: int,
        committed: int | None = None,
        end: int | None = None,
        stream_time: int | None = None,
        silent_s: float | None = None,
    ) -> SourceStatus:
        """Return the progress with its lag."""
        lag = None
        if end is not None and committed is not None:
            lag = max(0, end - committed)
        return cls(
            source.topic,
            source.partition,
            position,
            committed,
            end,
            lag,
            stream_time,
            silent_s and round(silent_s, 1),
        )


class RestoreStatus(msgspec.Struct, frozen=True):
    """The progress of a store's restore. Units: offsets of the changelog, seconds."""

    store: str
    restored: int
    remaining: int
    rate: float
    eta_s: float | None


class DownloadStatus(msgspec.Struct, frozen=True):
    """The progress of a store's download from a snapshot. Units: bytes, seconds."""

    store: str
    fetched_bytes: int
    total_bytes: int
    rate: float
    eta_s: float | None


class Calls(msgspec.Struct, frozen=True):
    """Calls of asynchronous operators. `waiting` have not begun. `blocked_keys` have
    records that wait behind another of their key.
    """

    in_flight: int
    oldest_s: Annotated[float, Meta(description="How long the first record waits.")]
    blocked_keys: int
    retries: int
    waiting: int = 0


class Drop(msgspec.Struct, frozen=True):
    """Records that a node left out for one reason."""

    node: str
    reason: str
    records: int


class HotKeyGroup(msgspec.Struct, frozen=True):
    """A key group that has much of a task's records, and its share of them."""

    key_group: int
    share: float


class TaskPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A task by its name; the state is null if its instance does not answer."""

    id: str
    subtopology: int
    partition: int
    key_range: str
    state: str | None = None

    @classmethod
    def at(cls, task: TaskId) -> TaskPlace:
        """Return the place of a task."""
        return TaskPlace(**_place(task))


class TaskStatus(TaskPlace, frozen=True, kw_only=True):
    """A task of an instance, and its work since it was opened."""

    epoch: int = -1
    processed: int = 0
    rate: Annotated[
        float, Meta(description="Records per second over the last seconds.")
    ] = 0.0
    written: Annotated[
        Mapping[str, int],
        Meta(description="Records by topic since the task was opened; no changelogs."),
    ] = {}
    dropped: tuple[Drop, ...] = ()
    dead_letters: int = 0
    calls: Annotated[
        Calls | None, Meta(description="Null: no operator is asynchronous.")
    ] = None
    hot: Annotated[
        tuple[HotKeyGroup, ...],
        Meta(
            description="Key groups with much of the task's records of the last minute; their shares, by samples."
        ),
    ] = ()
    stream_time: Annotated[
        int | None, Meta(description="The latest of the task's sources.")
    ] = None
    behind_ms: Annotated[
        int | None,
        Meta(description="How far stream time is behind the instance's clock."),
    ] = None
    lag: Lag = None
    shared: Annotated[
        bool,
        Meta(
            description="Whether other tasks have key ranges of its partitions: then `lag` counts their records, too."
        ),
    ] = False
    sources: tuple[SourceStatus, ...] = ()
    restore: tuple[RestoreStatus, ...] = ()
    download: tuple[DownloadStatus, ...] = ()

    @classmethod
    def of(
        cls,
        task: TaskId,
        state: str,
        sources: tuple[SourceStatus, ...] = (),
        **figures: Any,
    ) -> TaskStatus:
        """Return the status of a task with these figures, and what follows from its
        sources.
        """
        times = [s.stream_time for s in sources if s.stream_time is not None]
        lags = [source.lag for source in sources]
        known = [lag for lag in lags if lag is not None]
        return cls(
            **_place(task),
            state=state,
            sources=sources,
            stream_time=max(times, default=None),
            lag=sum(known) if lags and len(known) == len(lags) else None,
            shared=not task.key_range.is_whole,
            **figures,
        )


class FailureStatus(msgspec.Struct, frozen=True):
    """A record that failed here, without the message of the error, which may quote it.

    `task` is null for a global table, `offset` for what was held back and for a
    punctuation.
    """

    at: Time
    task: str | None
    node: str
    phase: str
    topic: str
    partition: int
    offset: int | None
    error: Annotated[str, Meta(description="The type of the error.")]
    answer: Annotated[str, Meta(description="What was done.")]


class ShareStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-topology whose records a share group deals, on one instance."""

    subtopology: int
    group: str
    topics: tuple[str, ...]
    threads: int
    waits: Annotated[
        str, Meta(description="Why no thread takes records; empty: they do.")
    ]
    acquired: Annotated[
        int, Meta(description="Records that are here and not acknowledged.")
    ] = 0
    processed: int = 0
    redelivered: Annotated[
        int, Meta(description="Records that had been delivered before.")
    ] = 0
    written: Mapping[str, int] = {}
    dropped: tuple[Drop, ...] = ()
    dead_letters: int = 0


class TopicCount(msgspec.Struct, frozen=True):
    """Records of a topic in a sub-topology."""

    subtopology: str
    topic: str
    records: int


class DropCount(msgspec.Struct, frozen=True):
    """Records that a node of a sub-topology left out for one reason."""

    subtopology: str
    node: str
    reason: str
    records: int


class LetterCount(msgspec.Struct, frozen=True):
    """Records of a sub-topology that went to the dead-letter topic."""

    subtopology: str
    records: int


class Totals(msgspec.Struct, frozen=True):
    """Of the process since it started: counters of `/metrics`, over its threads."""

    commits: int = 0
    commit_seconds: float = 0.0
    aborts: int = 0
    failed_stream_threads: int = 0
    consumed: tuple[TopicCount, ...] = ()
    produced: tuple[TopicCount, ...] = ()
    dropped: tuple[DropCount, ...] = ()
    dead_letters: tuple[LetterCount, ...] = ()


class UnreachableInstance(msgspec.Struct, frozen=True):
    """What is known of an instance that does not answer: its last assignment."""

    id: str
    url: str | None
    state: str
    live: bool
    ready: bool
    reasons: tuple[Reason, ...]
    tasks: tuple[TaskPlace, ...]


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One instance.

    `state`: `joining`, `waiting`, `rebalancing`, `running`, `paused`; of one that ends
    `pending-shutdown`, `not-running`, `pending-error`, `error`; or `unreachable`.
    """

    id: str
    url: str | None
    state: str
    generation: int = -1
    uptime_s: float = 0.0
    live: bool
    ready: bool
    reasons: tuple[Reason, ...]
    tasks: tuple[TaskStatus, ...]
    details: Mapping[str, str | int | float] = {}
    totals: Totals = Totals()
    failures: Annotated[
        tuple[FailureStatus, ...],
        Meta(
            description="The latest records that failed, in order. Of errors the type: messages may quote records."
        ),
    ] = ()
    shares: Annotated[
        tuple[ShareStatus, ...],
        Meta(
            description="The sub-topologies whose records a share group deals, and what this instance does in it."
        ),
    ] = ()


class Status(msgspec.Struct, frozen=True):
    """The instances of an application."""

    application: str
    generation: int
    here: Annotated[str, Meta(description="The instance that was asked.")]
    at: Annotated[
        int, Meta(description="When, by its clock, in milliseconds since the epoch.")
    ]
    instances: tuple[InstanceStatus, ...]


class LocatedTask(TaskPlace, frozen=True, kw_only=True):
    """A task and its stores; state and lag are known of the instance asked only."""

    stores: tuple[str, ...]
    lag: int | None


class LocatedInstance(msgspec.Struct, frozen=True):
    """An instance and its tasks, by the last assignment; whether it is ready is known
    of the instance asked only.
    """

    id: str
    url: str | None
    ready: bool | None
    tasks: tuple[LocatedTask, ...]


class DealtTopics(msgspec.Struct, frozen=True):
    """The topics of a sub-topology that a share group deals."""

    subtopology: int
    group: str
    topics: tuple[str, ...]


class Metadata(msgspec.Struct, frozen=True):
    """The instances with their tasks and key ranges."""

    application: str
    generation: int
    here: str
    share_groups: tuple[DealtTopics, ...]
    instances: tuple[LocatedInstance, ...]


class KeyOwner(msgspec.Struct, frozen=True):
    """The instance and the task that own a key."""

    id: str
    url: str | None
    task: str
    key_range: str


class KeyMetadata(msgspec.Struct, frozen=True):
    """Where a key lies; `owner` is null while it has none."""

    store: str
    key: Any
    partition: int
    key_hash: str
    key_group: int
    generation: int
    owner: KeyOwner | None


class StoreStatus(msgspec.Struct, frozen=True):
    """A store over all instances. `misplaced`: the topics above it with records in
    other partitions than murmur2 gives their keys.
    """

    name: str
    kind: Kind
    subtopology: int | None
    partitions: int
    key: str
    value: str
    window_ms: int | None
    approximate_entries: int | None
    misplaced: tuple[str, ...]


class Stores(msgspec.Struct, frozen=True):
    """All stores; `unreachable` instances are missing from the sizes, which are null if
    they were not counted.
    """

    stores: tuple[StoreStatus, ...]
    unreachable: tuple[str, ...]


class Paused(msgspec.Struct, frozen=True):
    """Whether an instance is paused now."""

    id: str
    paused: bool


def drops(counts: Mapping[tuple[str, str], int]) -> tuple[Drop, ...]:
    """Return counts by node and reason, without those of nothing."""
    return tuple(Drop(*where, n) for where, n in sorted(counts.items()) if n)


def hot_groups(shares: Iterable[tuple[int, float]]) -> tuple[HotKeyGroup, ...]:
    """Return key groups with their shares of a task's records."""
    return tuple(HotKeyGroup(group, round(share, 3)) for group, share in shares)


def _place(task: TaskId) -> dict[str, Any]:
    return {
        "id": str(task),
        "subtopology": task.subtopology,
        "partition": task.partition,
        "key_range": str(task.key_range),
    }
