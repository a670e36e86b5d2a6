"""`Backend`, the interface between the query server and its instance. The runtime
implements it.

All results are values, except an open view, which keeps a database open for the
duration of one read.

Invariant: an open view reads committed state of its whole key range. `owned()` is true
if and only if no other instance can have owned the range since the view was opened. An
instance that cannot be sure of its membership (no heartbeat answered within the session
time-out) owns nothing.
Relies on: `instance.serving` (implements it).
Turned down: returning stores and letting reads fail with exceptions (Kafka Streams'
users write retry loops around it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from coopstreams.common.setting_values import reachable
from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.status.model import InstanceStatus, Kind
from coopstreams.status.reasons import Health
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.task_id import TaskId

_LONGEST_URL = 2000
"""The most characters in the URL of a member, to which paths are appended."""


@dataclass(frozen=True, slots=True)
class History:
    """How far back a versioned store keeps versions: `history_ms` before the latest
    stream time of `topics`.
    """

    topics: tuple[str, ...]
    history_ms: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of the topology, over all instances.

    Shape: `partitions` are those of the sub-topology. A global table has no
    sub-topology (None); its `partitions` are those of its topic. `row_key` is the serde
    of stored keys with their window, None without windows. `window_ms` is None if
    windows differ in length. `value` is the serde of one value; in a versioned store,
    of one version's.
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
    """Whether a row has the headers of its record in front of its value."""
    misplaced: tuple[str, ...] = ()
    """The topics of its sub-topology in which this instance saw records outside the
    partitions that murmur2 gives their keys.
    """


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the group. `url` (no slash at the end) is None if the member serves
    no queries, or if its address is unknown or not accepted.

    `id` names one run of one process: after a restart an instance has another id, so it
    is not mistaken for the previous one.
    """

    id: str
    url: str | None
    tasks: tuple[TaskId, ...]
    unasked: str = "serves no queries (yet)"
    """Why the member is not asked, if it has no `url`."""
    standbys: tuple[TaskId, ...] = ()
    """The tasks of which it has standbys."""


def peer_of(
    id_: str,
    announced: str | None,
    tasks: tuple[TaskId, ...],
    standbys: tuple[TaskId, ...] = (),
    *,
    https: bool,
) -> Peer:
    """Return a member. If requests must not go to the address that it announces, the
    result has the reason instead of a URL.

    Whoever may join the group gets this instance's tokens at the address that it
    announces. So the form of an address is checked here, once for all requests.
    `https`: this instance has certificates, and sends nothing in clear text.
    """
    if announced is None:
        return Peer(id_, None, tasks, standbys=standbys)
    if problem := _problem(announced, https):
        shown = without_credentials(announced[:100])
        why = f'is not asked at "{shown}": {problem}'
        return Peer(id_, None, tasks, why, standbys)
    return Peer(id_, announced.rstrip("/"), tasks, standbys=standbys)


def _problem(address: str, https: bool) -> str:
    """Return why no request is sent to an address; empty: it is accepted."""
    if https and address.startswith("http://"):
        return (
            "this instance has certificates, and would send its token there in clear text. Give all instances "
            "http.ssl.certificate.location"
        )
    try:
        reachable(address)
        right = address.startswith(("http://", "https://")) and address.isprintable()
    except ValueError:
        right = False
    return "" if right and len(address) <= _LONGEST_URL else "it is no URL of a server"


class Staleness(NamedTuple):
    """How far the rows of a standby are behind. Units: `position` and `lag` in records
    of the store's changelog, of all key ranges; `staleness_ms`: how long ago they were
    known to equal its end.
    """

    position: int
    lag: int
    staleness_ms: int


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
    database open until the block ends.
    """

    @property
    def task(self) -> TaskId:
        """The task that has the store; the view covers its key range."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch of the ownership: it changes when the task is lost or moved, even
        if the task comes back.
        """
        ...

    @property
    def lag(self) -> int | None:
        """The records between the committed positions and the ends of the task's
        topics; None: not known yet.
        """
        ...

    @property
    def standby(self) -> Staleness | None:
        """How far the rows are behind; None: this instance owns the range."""
        ...

    @property
    def store(self) -> KeyRangeView:
        """The committed state of the key range. Reads block on the disk."""
        ...

    @property
    def past(self) -> KeyRangeView | None:
        """The committed versions that have ended, keyed by their ends; None: the store
        keeps no history.
        """
        ...

    def stream_time(self, topic: str) -> int:
        """Return the stream time of one of the task's topics. State that was read
        earlier is not newer.
        """
        ...

    def owned(self) -> bool:
        """Return whether the instance has owned the range, under this epoch, since the
        view was opened; of a standby: whether it has been kept, and has gone on.
        """
        ...

    def __enter__(self) -> OpenView: ...
    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class NotOpen:
    """The reason, in words, why this instance cannot read a key range now.
    `retry_after_ms`: when a client should ask again.
    """

    message: str
    retry_after_ms: int = 200


class Backend(Protocol):
    """An instance, as its query server sees it. Thread-safe. Only reads of a view
    block; all other calls return at once.
    """

    @property
    def application(self) -> str:
        """The application id; requests forwarded for another application are refused."""
        ...

    @property
    def topology(self) -> Structure:
        """The running topology, with the topics that its patterns match now."""
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

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the partitions that a task reads, whichever instance has it."""
        ...

    def view(
        self,
        store: str,
        partition: int,
        hash_: int,
    ) -> OpenView | NotOpen:
        """Return an open view of the local task that owns this key hash of a store, or
        why there is none.
        """
        ...

    def standby_view(
        self,
        store: str,
        partition: int,
        key_range: KeyRange,
        max_staleness_ms: int,
        *,
        cut: bool,
    ) -> OpenView | NotOpen:
        """Return an open view of the standby here that has a key range, or why there is
        none that is fresh enough. `cut`: of the key range only.
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

    def status(self) -> InstanceStatus:
        """Return the status of the instance."""
        ...

    def busy(self) -> bool:
        """Return whether records wait to be fetched or processed, so that queries slow
        the processing down.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Pause or resume processing."""
        ...
