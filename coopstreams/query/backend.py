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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from coopstreams.common.setting_values import reachable
from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.status.model import InstanceStatus, Kind
from coopstreams.status.reasons import Health
from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.task_id import TaskId

_LONGEST_URL = 2000
"""The most characters of the address of a member: paths follow."""


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


def peer_of(
    id_: str,
    announced: str | None,
    tasks: tuple[TaskId, ...],
    *,
    https: bool,
) -> Peer:
    """Return a member; without its address if it may not be asked there, and with the
    reason.

    Whoever may join the group is a member, and gets this instance's tokens at the
    address that it announces: what can be seen of an address is checked once, here.
    `https`: this instance has certificates, and sends nothing in clear text.
    """
    if announced is None:
        return Peer(id_, None, tasks)
    if problem := _problem(announced, https):
        shown = without_credentials(announced[:100])
        return Peer(id_, None, tasks, f'is not asked at "{shown}": {problem}')
    return Peer(id_, announced.rstrip("/"), tasks)


def _problem(address: str, https: bool) -> str:
    """Return why nothing is sent to an address; empty: it is accepted."""
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
        """Return whether records wait to be processed, or to be fetched, so that
        queries cost the processing.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Pause or resume processing."""
        ...
