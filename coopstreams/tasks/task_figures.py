"""What the thread of a task publishes of it: its figures, and its part of the status.

The thread that runs the task replaces `task.figures` as a whole. Other threads read
nothing else of a running task. `TaskStatus` is the JSON of the figures. A new field is
a field of `TaskStatus`, of `TaskFigures` if the thread has to publish it, and of
`TaskFigures.status`.

Turned down: readers that look into the task (each attribute was an interface of its
own, and two of them were read at different times).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Protocol,
    TypeAlias,
)

import msgspec
from msgspec import Meta

from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Segment
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.tasks.hot_key_groups import Heat
from coopstreams.tasks.pending_calls import PendingCalls
from coopstreams.tasks.tally import Counting, Counts
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId

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
        """Return the progress of a task in `source`, with its lag."""
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
    """The progress of a store's restore. `eta_s`: the expected time to its end; null:
    not known yet. Units: `restored` and `remaining` in offsets of the changelog, `rate`
    in offsets a second.
    """

    store: str
    restored: int
    remaining: int
    rate: float
    eta_s: float | None


class DownloadStatus(msgspec.Struct, frozen=True):
    """The progress of a store's download from a snapshot. `eta_s`: the expected time to
    its end; null: not known yet. Units: bytes, bytes a second, seconds.
    """

    store: str
    fetched_bytes: int
    total_bytes: int
    rate: float
    eta_s: float | None


class Calls(msgspec.Struct, frozen=True):
    """The calls of a task's asynchronous operators.

    `waiting`: calls that were not begun. `blocked_keys`: keys with records that wait
    behind another record of the key.
    """

    in_flight: int
    oldest_s: Annotated[float, Meta(description="How long the first record waits.")]
    blocked_keys: int
    retries: int
    waiting: int = 0


class Drop(msgspec.Struct, frozen=True):
    """The number of records that a node left out for one reason."""

    node: str
    reason: str
    records: int


class HotKeyGroup(msgspec.Struct, frozen=True):
    """A key group that has much of a task's records, and its share of them."""

    key_group: int
    share: float


class AwaitedTime(msgspec.Struct, frozen=True):
    """Key groups of a source partition that hold a clock back: they have told no later
    time.
    """

    subtopology: int
    partition: int
    key_groups: str
    time: Annotated[
        int | None, Meta(description="The time that they have told; null: none yet.")
    ]
    owner: Annotated[
        str | None,
        Meta(
            description="The instance that has the first of them; null: none has, by the last assignment."
        ),
    ]
    since_s: Annotated[float, Meta(description="How long time has stood for them.")]
    topic: Annotated[
        str | None,
        Meta(
            description="The topic of yours whose partition is waited for: the task itself reads it, beside re-keyed "
            "streams. Null: a source partition in front of a repartition topic is waited for."
        ),
    ] = None


class TimeStatus(msgspec.Struct, frozen=True):
    """The stream time of a task behind repartition topics."""

    time: Annotated[
        int | None,
        Meta(
            description="The clock by which its windows close; of a task that is held back the time of what it has "
            "read. Null: not known since the task was opened."
        ),
    ]
    waits_for: AwaitedTime | None = None
    held_back: Annotated[
        bool,
        Meta(
            description="Whether it reads nothing, because it is further ahead than `max.time.skew.ms`."
        ),
    ] = False


class TaskPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A task by its name. The state is null if its instance does not answer."""

    id: str
    subtopology: int
    partition: int
    key_range: str
    state: str | None = None

    @classmethod
    def at(cls, task: TaskId) -> TaskPlace:
        """Return the name of a task and its parts, without its state."""
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
    time: Annotated[
        TimeStatus | None,
        Meta(description="Null: records alone move its time, and it is not held back."),
    ] = None
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
        """Return the status of a task with these figures, and with those computed from
        its sources.
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


@dataclass(frozen=True, slots=True)
class CallFigures:
    """The calls of a task. Units: times of `Host.now`."""

    shown: Calls
    oldest_at: float | None = None
    """Since when the first record has waited; None: none waits."""
    pauses: str = ""
    """Why calls are not begun, in words; empty if they are begun."""
    within_limits: bool = False
    """Whether a call is being made that ends, or is made again, within its time-out."""

    @classmethod
    def of(cls, calls: PendingCalls) -> CallFigures:
        """Return the figures of these calls."""
        shown = Calls(
            in_flight=calls.under_way,
            waiting=calls.not_begun,
            oldest_s=0.0,
            blocked_keys=calls.blocked,
            retries=calls.retries,
        )
        return cls(shown, calls.oldest, calls.pauses, calls.within_limits)

    def waited_s(self, now: float) -> float:
        """Return for how long the first record has waited."""
        return 0.0 if self.oldest_at is None else max(0.0, now - self.oldest_at)

    def at(self, now: float) -> Calls:
        """Return the calls as they are shown at this time."""
        return msgspec.structs.replace(
            self.shown,
            oldest_s=round(self.waited_s(now), 1),
        )


class Working(Counting, Protocol):
    """A task as `TaskFigures` sees it, on the thread that runs it."""

    sources: tuple[TopicPartition, ...]
    progress: Progress
    heat: Heat
    calls: PendingCalls | None

    def read_to(self, source: TopicPartition) -> int:
        """See `Task.read_to`."""
        ...


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The figures of a task since it was opened.

    Shape: `hot` has the key groups with many of the records, and their shares.
    `committed` has the lowest position of each source, `stream_times` those of the
    latest commit, `segments` all committed progress.
    """

    task: TaskId
    generation: int
    counts: Counts
    hot: tuple[tuple[int, float], ...] = ()
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    stream_times: Mapping[TopicPartition, int] = field(default_factory=dict)
    segments: tuple[tuple[Segment, ...], ...] = ()
    calls: CallFigures | None = None
    """The figures of the task's calls; None: no operator is asynchronous."""
    waiting: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For each source with records that wait for the clock of its topic, the offset up
    to which it was read.
    """

    @classmethod
    def of(cls, task: Working) -> TaskFigures:
        """Return the figures of a task, on the thread that runs it."""
        progress = task.progress
        return cls(
            task.id,
            progress.author.generation,
            Counts.of(task),
            task.heat.hot(),
            {source: progress.durable(source) for source in task.sources},
            {source: progress.stream_time(source) for source in task.sources},
            tuple(progress.committed_segments(source) for source in task.sources),
            None if task.calls is None else CallFigures.of(task.calls),
            {
                source: read_to
                for source in (task.sources if progress.by_birth else ())
                if (read_to := task.read_to(source)) > progress.position(source).offset
            },
        )

    def status(
        self,
        state: str,
        rate: float,
        ends: Mapping[TopicPartition, int],
        silent_s: Mapping[TopicPartition, float | None],
        now: float,
        wall_ms: int,
    ) -> TaskStatus:
        """Return the status of the task. `ends` and `silent_s`: facts about its sources
        from other threads.
        """
        counts = self.counts
        sources = tuple(
            SourceStatus.of(
                source,
                at,
                at,
                ends.get(source),
                None if (time := self.stream_times[source]) == NO_STREAM_TIME else time,
                silent_s.get(source),
            )
            for source, at in self.committed.items()
        )
        status = TaskStatus.of(
            self.task,
            state,
            sources,
            epoch=self.generation,
            processed=counts.processed,
            rate=round(rate, 1),
            written=counts.written,
            dropped=drops(counts.dropped),
            dead_letters=counts.dead_letters,
            hot=hot_groups(self.hot),
            calls=None if self.calls is None else self.calls.at(now),
        )
        if status.stream_time is None:
            return status
        return msgspec.structs.replace(status, behind_ms=wall_ms - status.stream_time)


def drops(counts: Mapping[tuple[str, str], int]) -> tuple[Drop, ...]:
    """Return the counts by node and reason as a list of drops, without those of zero."""
    return tuple(Drop(*where, n) for where, n in sorted(counts.items()) if n)


def hot_groups(shares: Iterable[tuple[int, float]]) -> tuple[HotKeyGroup, ...]:
    """Return the key groups with their shares of a task's records."""
    return tuple(HotKeyGroup(group, round(share, 3)) for group, share in shares)


def _place(task: TaskId) -> dict[str, Any]:
    """Return the fields of a `TaskPlace` that follow from the task's name."""
    return {
        "id": str(task),
        "subtopology": task.subtopology,
        "partition": task.partition,
        "key_range": str(task.key_range),
    }
