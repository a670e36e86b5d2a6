"""The answers of an instance over HTTP about itself and its group: status, metadata,
stores.

Each `Struct` is one JSON object, and its schema in the OpenAPI description. The
docstrings and the `Meta` of fields are the descriptions there.

Invariant: a field has a default if an answer may lack it, because an instance does not
answer or is of an earlier release. An instance's answer about itself has all fields.
Turned down: separate types for the runtime's values and for JSON (each field would
stand in five files).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
)

import msgspec
from msgspec import Meta

from coopstreams.common.metrics import Totals
from coopstreams.sharing.share_group import ShareStatus
from coopstreams.status.reasons import Reason
from coopstreams.tasks.tally import FailureStatus
from coopstreams.tasks.task_figures import TaskPlace, TaskStatus
from coopstreams.topology.task_id import TaskId

Kind: TypeAlias = Literal["key_value", "versioned", "window", "session", "global"]
"""The kind of a store, which decides which requests it answers."""


class UnreachableInstance(msgspec.Struct, frozen=True):
    """An instance that does not answer, with its tasks by the last assignment."""

    id: str
    url: str | None
    state: str
    live: bool
    ready: bool
    reasons: tuple[Reason, ...]
    tasks: tuple[TaskPlace, ...]


class StandbyStatus(TaskPlace, frozen=True, kw_only=True):
    """A standby: the rows of a task that another instance owns."""

    lag: Annotated[
        int | None,
        Meta(
            description="Changelog records that it is behind, over all stores; those of other key ranges included. Null: "
            "not measured yet."
        ),
    ]
    warming: Annotated[
        bool,
        Meta(
            description="Whether it is a warm-up: its task moves to this instance once it has caught up."
        ),
    ] = False
    eta_s: Annotated[
        float | None,
        Meta(
            description="The expected time until it has caught up, in seconds; null: not known."
        ),
    ] = None

    @classmethod
    def of(
        cls,
        task: TaskId,
        lag: int | None,
        *,
        warming: bool = False,
        eta_s: float | None = None,
    ) -> StandbyStatus:
        """Return the status of a standby of a task."""
        place = TaskPlace.at(task)
        return StandbyStatus(
            id=place.id,
            subtopology=place.subtopology,
            partition=place.partition,
            key_range=place.key_range,
            lag=lag,
            warming=warming,
            eta_s=eta_s,
        )


class SnapshotStatus(msgspec.Struct, frozen=True):
    """The published snapshot of the application's state, as an instance saw it last."""

    run: str
    created: Annotated[int, Meta(description="When, in milliseconds since the epoch.")]
    age_s: float
    bytes: int


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One instance.

    `state`: `joining`, `waiting`, `rebalancing`, `running`, `paused`; while it ends
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
    standbys: tuple[StandbyStatus, ...] = ()
    snapshot: Annotated[
        SnapshotStatus | None,
        Meta(description="Null: there is none, or `snapshots.interval.ms` is not set."),
    ] = None
    details: Mapping[str, str | int | float] = {}
    data_plane: Annotated[
        str,
        Meta(
            description="`native`, or `pure Python` with the reason. Empty: it is of a release that does not say."
        ),
    ] = ""
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
    """The answer of `/v1/status`: the instances of an application."""

    application: str
    generation: int
    here: Annotated[str, Meta(description="The instance that was asked.")]
    at: Annotated[
        int, Meta(description="When, by its clock, in milliseconds since the epoch.")
    ]
    instances: tuple[InstanceStatus, ...]


class LocatedTask(TaskPlace, frozen=True, kw_only=True):
    """A task, its sources and its stores. State and lag are null except for tasks of
    the instance that was asked.
    """

    first_hash: Annotated[
        str,
        Meta(
            description="The bounds of `key_range`, both included. Texts, because 63 bits are too many for a number in "
            "JavaScript."
        ),
    ]
    last_hash: str
    topics: Annotated[
        tuple[str, ...],
        Meta(description="The topics of which it reads `partition`."),
    ]
    stores: tuple[str, ...]
    lag: int | None


class LocatedStandby(TaskPlace, frozen=True, kw_only=True):
    """A standby: an instance that follows the changelogs of a key range. `first_hash` and
    `last_hash` as of a task.
    """

    first_hash: str
    last_hash: str


class LocatedInstance(msgspec.Struct, frozen=True):
    """An instance and its tasks, by the last assignment. `ready` is null except for the
    instance that was asked.
    """

    id: str
    url: str | None
    ready: bool | None
    tasks: tuple[LocatedTask, ...]
    standbys: tuple[LocatedStandby, ...]


class DealtTopics(msgspec.Struct, frozen=True):
    """The topics of a sub-topology whose records a share group delivers."""

    subtopology: int
    group: str
    topics: tuple[str, ...]


class Metadata(msgspec.Struct, frozen=True):
    """The answer of `/v1/metadata`: the instances with their tasks and key ranges."""

    application: str
    generation: int
    here: str
    share_groups: tuple[DealtTopics, ...]
    instances: tuple[LocatedInstance, ...]


class KeyStandby(msgspec.Struct, frozen=True):
    """An instance with a standby of a key's range."""

    id: str
    url: str | None


class KeyOwner(msgspec.Struct, frozen=True):
    """The instance and the task that own a key."""

    id: str
    url: str | None
    task: str
    key_range: str


class KeyMetadata(msgspec.Struct, frozen=True):
    """The partition, key group and owner of a key. `owner` is null while no instance
    has its task.
    """

    store: str
    key: Any
    partition: int
    key_hash: str
    key_group: int
    generation: int
    owner: KeyOwner | None
    standbys: tuple[KeyStandby, ...]


class StoreStatus(msgspec.Struct, frozen=True):
    """A store over all instances.

    `misplaced`: the topics upstream of the store that have records in other partitions
    than murmur2 gives their keys.
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
    """All stores. Sizes do not include `unreachable` instances; they are null if they
    were not counted.
    """

    stores: tuple[StoreStatus, ...]
    unreachable: tuple[str, ...]


class Paused(msgspec.Struct, frozen=True):
    """The answer to a request to pause or resume an instance: its id, and whether it is
    paused now.
    """

    id: str
    paused: bool
