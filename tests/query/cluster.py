"""A group of instances for the query tests: real databases, real servers on loopback, a
placement chosen by the test.

`Node` implements `Backend` as the runtime does: databases shared by siblings, changing
openings, reads that detect a lost opening. The test takes the place of the group:
`locate` sets the placement, `open` and `close` carry it out.

It models no group: these tests check the HTTP answers for each kind of store, key,
error and placement, and the node that answers. The simulated group
(`tests.simulation.queries`) checks answers while owners change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

from coopstreams.common.metrics import Metrics
from coopstreams.query.access import Access
from coopstreams.query.backend import (
    History,
    NotOpen,
    OpenView,
    Placement,
    Staleness,
    StoreInfo,
    peer_of,
)
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.serving.server import OPEN, QueryServer
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Change, Engine
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.state.window_table import VersionTable
from coopstreams.status.model import InstanceStatus, StandbyStatus
from coopstreams.status.reasons import Health, HealthCode, Reason
from coopstreams.tasks.tally import FailureStatus
from coopstreams.tasks.task_figures import (
    DownloadStatus,
    RestoreStatus,
    SourceStatus,
    TaskStatus,
    TimeStatus,
    drops,
    hot_groups,
)
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.keys import KeyRange, key_hash, partition_of
from coopstreams.topology.processors import key_value_store
from coopstreams.topology.row_versions import put_version, versions_of
from coopstreams.topology.serdes import session_windowed, windowed_by, windowed_ms
from coopstreams.topology.stores import StoreSpec, session_key, window_key
from coopstreams.topology.task_id import TaskId
from coopstreams.topology.windows import UnlimitedWindows


def _topology() -> Topology:
    builder = StreamsBuilder("words")
    lines = builder.stream("lines", key=serdes.raw, value=serdes.text)
    words = lines.flat_map_values(str.split).group_by(
        lambda _, word: word, key=serdes.text, name="by-word"
    )
    words.count(store="counts").to_stream().to("word-counts")
    return builder.build()


TOPOLOGY = _topology()
"""The topology that the nodes report. Their stores differ from it."""
PARTITIONS = 2
HOUR = 3_600_000
STORES = {
    "counts": StoreSpec("counts", "key_value", serdes.text, serdes.int64),
    "blobs": StoreSpec("blobs", "key_value", serdes.raw, serdes.raw),
    "numbers": StoreSpec("numbers", "key_value", serdes.int64, serdes.json),
    "points": StoreSpec("points", "key_value", serdes.json, serdes.json),
    "parcels": StoreSpec(
        "parcels", "key_value", serdes.avro({"type": "string"}), serdes.json
    ),
    "traced": key_value_store(
        "traced", key=serdes.text, value=serdes.raw, headers=True
    ),
    "hours": StoreSpec(
        "hours",
        "window",
        serdes.text,
        serdes.json,
        window_ms=HOUR,
        retention_ms=1000 * HOUR,
    ),
    "ever": StoreSpec(
        "ever",
        "window",
        serdes.text,
        serdes.int64,
        retention_ms=1 << 62,
        row_key=windowed_by(serdes.text, UnlimitedWindows(start_ms=5)),
    ),
    "visits": StoreSpec(
        "visits",
        "session",
        serdes.text,
        serdes.int64,
        retention_ms=1000 * HOUR,
        row_key=session_windowed(serdes.text),
        step_ms=1,
    ),
    "prices": (
        prices := StoreSpec(
            "prices", "key_value", serdes.text, versions_of(serdes.raw), history_ms=100
        )
    ),
    "prices-history": cast("StoreSpec", prices.past),
}
GLOBAL = StoreSpec("names", "key_value", serdes.text, serdes.json, logged=False)

Key = Any
Data = dict[str, dict[Key, tuple[Any, int]]]
"""Store -> key -> (value, timestamp). Keys of window stores are (key, start), of
session stores (key, start, end); a value of a versioned store is a list of (timestamp,
bytes).
"""


def place_of(store: str, key: Key) -> tuple[int, int]:
    """Return the partition and the hash of a key."""
    spec = STORES[store]
    data = _bytes(spec, key if spec.kind == "key_value" else key[0])
    return partition_of(data, PARTITIONS), key_hash(data)


def stored_key(store: str, key: Key) -> bytes:
    """Return the bytes under which a store keeps a key."""
    spec = STORES[store]
    if spec.kind == "window":
        return window_key(_bytes(spec, key[0]), key[1])
    return (
        session_key(_bytes(spec, key[0]), key[1], key[2])
        if spec.kind == "session"
        else _bytes(spec, key)
    )


def _bytes(spec: StoreSpec, key: Key) -> bytes:
    """Return the bytes of a key, which may be given as bytes that its serde cannot
    read.
    """
    return key if isinstance(key, bytes) else spec.key.serialize(key)


def tasks(ranges: int, partitions: Sequence[int] = range(PARTITIONS)) -> list[TaskId]:
    """Return the tasks of these partitions, each cut into `ranges` key ranges."""
    return [
        TaskId(0, partition, piece)
        for partition in partitions
        for piece in KeyRange.split(ranges)
    ]


def _info(spec: StoreSpec) -> StoreInfo:
    if isinstance(spec.value, KeptHeaders):
        return StoreInfo(
            spec.name,
            "key_value",
            0,
            PARTITIONS,
            spec.key,
            spec.value.one,
            headers=True,
        )
    if spec.kind == "key_value":
        return StoreInfo(spec.name, "key_value", 0, PARTITIONS, spec.key, spec.value)
    assert spec.kind in ("window", "session")
    row_key = windowed_ms(spec.key, spec.window_ms) if spec.window_ms else spec.row_key
    return StoreInfo(
        spec.name,
        "window" if spec.kind == "window" else "session",
        0,
        PARTITIONS,
        spec.key,
        spec.value,
        spec.window_ms,
        row_key,
    )


INFOS = {
    name: _info(spec) for name, spec in STORES.items() if name != "prices-history"
} | {
    "prices": StoreInfo(
        "prices",
        "versioned",
        0,
        PARTITIONS,
        serdes.text,
        serdes.raw,
        history=History(("price-changes",), 100),
    ),
    "names": StoreInfo("names", "global", None, 3, serdes.text, serdes.json),
}


class Opening:
    def __init__(self, task: TaskId, epoch: int, database: Database) -> None:
        self.task = task
        self.epoch = epoch
        self.database = database
        self.state = TaskState(database, list(STORES.values()), task.key_range, 1 << 20)


@dataclass
class View:
    node: Node
    opening: Opening
    store: KeyRangeView
    past: KeyRangeView | None
    lag: int | None = 3
    standby: Staleness | None = None

    @property
    def task(self) -> TaskId:
        return self.opening.task

    @property
    def epoch(self) -> int:
        return self.opening.epoch

    def stream_time(self, topic: str) -> int:
        assert topic == "price-changes"
        return self.node.stream_time

    def owned(self) -> bool:
        return self.node.openings.get(self.task) is self.opening

    def __enter__(self) -> Self:
        self.node.reads += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class StandingView:
    task: TaskId
    store: KeyRangeView
    standby: Staleness | None
    kept: Callable[[], bool]
    epoch: int = 5
    lag: int | None = None
    past: KeyRangeView | None = None

    def stream_time(self, topic: str) -> int:
        raise NotImplementedError(topic)

    def owned(self) -> bool:
        return self.kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Node:
    """An instance."""

    application = "words"

    def __init__(
        self, name: str, folder: Path | None = None, access: Access = OPEN
    ) -> None:
        self.name = name
        self._folder = folder
        self.server = QueryServer("127.0.0.1:0", access=access)
        self.metrics = Metrics(self.application, name)
        self.openings: dict[TaskId, Opening] = {}
        self.pending: dict[TaskId, Literal["waiting", "restoring", "closing"]] = {}
        self.reads = 0
        self.paused = self.working = False
        self.now = Health(live=True, ready=True)
        self.told = Placement(0, name, ())
        self.stream_time = -1
        self.misplaced: dict[str, tuple[str, ...]] = {}
        """Of some stores, the topics with records in other partitions."""
        self.failures: tuple[FailureStatus, ...] = ()
        self.standbys: tuple[StandbyStatus, ...] = ()
        self.hot: tuple[tuple[int, float], ...] = ()
        """The hot key groups of each of its tasks."""
        self.time: TimeStatus | None = None
        """The time of each of its tasks."""
        self.names: GlobalRows | None = GlobalRows(GLOBAL)
        """The global table; None while it is still being read."""
        self.standing: dict[TaskId, tuple[Opening, int]] = {}
        """Its standbys, and how old their rows are (ms)."""
        self._databases: dict[int, Database] = {}
        self._epochs = itertools.count(1)

    @property
    def url(self) -> str:
        return self.server.url

    def open(self, task: TaskId, data: Data) -> None:
        """Own a task, with its rows of the data."""
        database = self._databases.get(task.partition) or self._database(task.partition)
        opening = Opening(task, next(self._epochs), database)
        for store, entries in data.items():
            table = opening.state.stores[store]
            for key, (value, timestamp) in entries.items():
                partition, hash_ = place_of(store, key)
                if partition == task.partition and hash_ in task.key_range:
                    stored = stored_key(store, key)
                    entry, past = table.load(stored), table.spec.past
                    if past is None:
                        entry.value, entry.timestamp = value, timestamp
                    else:
                        ended = cast("VersionTable", opening.state.stores[past.name])
                        for since, version in value:
                            put_version(entry, ended, stored, since, version, -1, 100)
                    table.touch(stored, entry)
        opening.state.changes()
        opening.state.commit(dict.fromkeys(STORES, 1))
        self.pending.pop(task, None)
        self.openings[task] = opening

    def stand_by(self, task: TaskId, data: Data, age_ms: int = 0) -> None:
        """Have a standby of a task, with its rows of the data, as old as `age_ms`."""
        self.open(task, data)
        self.standing[task] = self.openings.pop(task), age_ms

    def close(self, task: TaskId) -> None:
        """Close a task, and drop its state; the last task of a partition closes its
        database, even during a read.
        """
        del self.openings[task]
        self._databases[task.partition].drop(task.key_range.groups)
        if not any(other.partition == task.partition for other in self.openings):
            self._databases.pop(task.partition).close()

    def damage(self, store: str, key: Key, value: bytes) -> None:
        """Replace the value of a key in a key-value store by these bytes."""
        data = STORES[store].key.serialize(key)
        change = Change(
            layout.family_of(store),
            [layout.database_key(data, data)],
            [layout.TIMESTAMP.pack(0) + value],
        )
        self._databases[place_of(store, key)[0]].write([change], {})

    @property
    def topology(self) -> Structure:
        return TOPOLOGY

    def stores(self) -> Mapping[str, StoreInfo]:
        return {
            name: replace(info, misplaced=self.misplaced.get(name, ()))
            for name, info in INFOS.items()
        }

    def placement(self) -> Placement:
        return self.told

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        return (TopicPartition("lines", task.partition),)

    def view(self, store: str, partition: int, hash_: int) -> OpenView | NotOpen:
        for opening in list(self.openings.values()):
            if opening.task.partition == partition and hash_ in opening.task.key_range:
                return self._view(opening, store)
        for task, reason in list(self.pending.items()):
            if task.partition == partition and hash_ in task.key_range:
                return NotOpen(f"task {task} is {reason}")
        return NotOpen(f"{self.name} does not own it")

    def standby_view(
        self,
        store: str,
        partition: int,
        key_range: KeyRange,
        max_staleness_ms: int,
        *,
        cut: bool,
    ) -> OpenView | NotOpen:
        for task, (opening, age_ms) in self.standing.items():
            if task.partition == partition and task.key_range.covers(key_range):
                if age_ms > max_staleness_ms:
                    return NotOpen(f"the standby of {task} is {age_ms} ms old")
                return StandingView(
                    replace(task, key_range=key_range) if cut else task,
                    KeyRangeView(
                        opening.database,
                        STORES[store],
                        [key_range if cut else task.key_range],
                    ),
                    Staleness(90, 10, age_ms),
                    partial(self.standing.__contains__, task),
                )
        return NotOpen(f"{self.name} has no standby of it")

    def views(self, store: str) -> Sequence[OpenView | NotOpen]:
        found: list[OpenView | NotOpen] = [
            self._view(opening, store) for opening in list(self.openings.values())
        ]
        found += [
            NotOpen(f"task {task} is {reason}")
            for task, reason in list(self.pending.items())
        ]
        return found

    def global_view(self, store: str) -> GlobalView | None:
        assert store == "names"
        return None if self.names is None else GlobalView(self.names)

    def busy(self) -> bool:
        return self.working

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def health(self) -> Health:
        return self.now

    def status(self) -> InstanceStatus:
        source = SourceStatus.of(TopicPartition("lines", 0), 10, 8, 12, 5000)
        running = tuple(
            TaskStatus.of(
                task,
                "running",
                (source,),
                epoch=opening.epoch,
                processed=10,
                rate=2.5,
                written={"out": 6},
                dropped=drops({("windowed", "late"): 3}),
                dead_letters=1,
                behind_ms=700,
                hot=hot_groups(self.hot),
                time=self.time,
            )
            for task, opening in list(self.openings.items())
        )
        pending = tuple(
            TaskStatus.of(
                task,
                reason,
                epoch=0,
                restore=(RestoreStatus("counts", 50, 50, 25.0, 2.0),),
                download=(DownloadStatus("counts", 10, 40, 5.0, 6.0),),
            )
            for task, reason in list(self.pending.items())
        )
        return InstanceStatus(
            id=self.told.here,
            url=self.url,
            state="running",
            generation=self.told.generation,
            uptime_s=12.5,
            live=self.now.live,
            ready=self.now.ready,
            reasons=self.now.reasons,
            tasks=tuple(sorted((*running, *pending), key=lambda task: task.id)),
            details={"threads": 2},
            totals=self.metrics.totals(),
            failures=self.failures,
            standbys=self.standbys,
        )

    def _database(self, partition: int) -> Database:
        engine: Engine = Memory()
        if self._folder is not None:
            path = self._folder / f"{self.name}-{partition}"
            path.mkdir(exist_ok=True)
            engine = Rocks(path)
        database = self._databases[partition] = Database(engine, STORES.values())
        return database

    def close_all(self) -> None:
        for database in self._databases.values():
            database.close()

    def _view(self, opening: Opening, store: str) -> View:
        spec, ranges = STORES[store], [opening.task.key_range]
        past = (
            None
            if spec.past is None
            else KeyRangeView(opening.database, spec.past, ranges)
        )
        return View(self, opening, KeyRangeView(opening.database, spec, ranges), past)


LIMITS = RequestLimits(request_s=60.0, forward_s=60.0, connect_s=60.0, retry_s=0.3)
"""Time limits for other tests: a machine that pauses for some seconds causes no error.
"""


class Cluster:
    """Nodes a, b, c, ... with servers; the test decides their tasks. A context manager."""

    def __init__(
        self,
        size: int,
        limits: RequestLimits | None = None,
        *,
        kind: type[Node] = Node,
        folder: Path | None = None,
        access: Sequence[Access] = (),
    ) -> None:
        """Bind the servers; `access`: the tokens of each node, if it has any."""
        self.nodes = [
            kind("abcdefgh"[i], folder, access[i] if access else OPEN)
            for i in range(size)
        ]
        self.generation = 0
        self.placed: dict[str, list[TaskId]] = {}
        self._limits = limits or LIMITS

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.server.start(node, node.metrics, self._limits)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.server.stop()
            node.close_all()

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def locate(
        self, placed: Mapping[str, Sequence[TaskId]], *, without_url: Sequence[str] = ()
    ) -> None:
        """Give all nodes a new placement, as a new generation; no task is opened or
        closed.
        """
        self.generation += 1
        self.placed = {name: list(owned) for name, owned in placed.items()}
        for node in self.nodes:
            node.told = Placement(
                self.generation,
                node.name,
                tuple(
                    peer_of(
                        n.name,
                        None if n.name in without_url else n.url,
                        tuple(placed.get(n.name, ())),
                        tuple(n.standing),
                        https=node.server.url.startswith("https:"),
                    )
                    for n in self.nodes
                ),
            )

    def deal(self, ranges: int, data: Data) -> None:
        """Deal the tasks to the nodes in turn, and open them."""
        hands: dict[str, list[TaskId]] = {node.name: [] for node in self.nodes}
        for task, node in zip(tasks(ranges), itertools.cycle(self.nodes), strict=False):
            node.open(task, data)
            hands[node.name].append(task)
        self.locate(hands)

    def owner(self, store: str, key: Key) -> Node:
        """Return the node that owns a key by the placement."""
        partition, hash_ = place_of(store, key)
        [name] = [
            name
            for name, owned in self.placed.items()
            for task in owned
            if task.partition == partition and hash_ in task.key_range
        ]
        return self[name]

    def other(self, store: str, key: Key) -> Node:
        """Return a node that does not own a key."""
        owner = self.owner(store, key)
        return next(node for node in self.nodes if node is not owner)

    def task(self, store: str, key: Key) -> TaskId:
        """Return the task of a key by the placement."""
        partition, hash_ = place_of(store, key)
        [task] = [
            task
            for owned in self.placed.values()
            for task in owned
            if task.partition == partition and hash_ in task.key_range
        ]
        return task


def reason(code: HealthCode, message: str, task: TaskId) -> Health:
    """Return the reason why a live node is not ready."""
    return Health(live=True, ready=False, reasons=(Reason(code, message, str(task)),))
