"""The thread that writes snapshots of a running application.

Every process writes the slices of the tasks that it owns; one of them, the owner of hash
0 of the first partition that has stores, publishes. `state.snapshot_round` decides.

Invariant: a slice is read between two writes of its database, where rows and checkpoint
agree. A database has nothing but what a commit has made durable, so a snapshot has
nothing else either. No stream thread waits for it, or does anything for it.
Invariant: all slices of a task in a savepoint, and its positions, are those of one commit:
the stream thread opens iterators for them between two commits, and reads none.
Invariant: an error of the storage or the brokers delays the snapshot alone: it is logged,
and the next look goes on.
Relies on: `state/snapshot.py` (files, publications, leases), `slice_versions` (`Written`:
what need not be written again).
Turned down: RocksDB's checkpoints, made at a commit by the
stream thread (hard links of all key ranges of the database, and the rows are read from
them all the same); a publisher elected by the group (publications are conditional, so a
second one does no harm).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from coopstreams.common.host import SYSTEM, Empty, Host, Inbox
from coopstreams.common.metrics import Metrics
from coopstreams.instance.task_registry import Standing, State
from coopstreams.opening.seeding import position_of
from coopstreams.state import snapshot
from coopstreams.state.checkpoints import NO_TOPIC, Checkpoint
from coopstreams.state.database import Database, FamilyRows
from coopstreams.state.directory import Databases
from coopstreams.state.engine import Rows
from coopstreams.state.layout import groups_of
from coopstreams.state.manifest import (
    DamagedManifestError,
    Manifest,
    Slice,
    manifest_of,
    pieces,
)
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.snapshot import (
    NOTHING_PUBLISHED,
    PARTS,
    WRITING_MS,
    Lease,
    SnapshotWriter,
    Written,
    new_run,
)
from coopstreams.state.snapshot_round import (
    ROUND,
    SAVEPOINT,
    Act,
    Part,
    PartStore,
    Round,
    Rounds,
    SavepointRequest,
    TaskPositions,
    assembled,
    missing,
    of_parts,
)
from coopstreams.state.storage import GivenUpError, Storage
from coopstreams.tasks.task import Task
from coopstreams.topology.errors import LogError, SnapshotError, StateError
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 5.0
"""The longest time between two looks at the storage."""
LIST_S = 60.0
"""The time after which a look lists the publications although no round is open."""
KEPT = 2
"""The newest snapshots that are kept: who has begun to read one may end it while the
next is published.
"""
PACE_ROWS = 500
"""The rows that are read at once: it takes about a millisecond."""
ANSWER_S = 10.0
"""How long the thread waits until a stream thread has come to its request."""
REST = 3.0
"""How long the thread rests after each batch of rows, in times of what it took: it has
the interpreter for a quarter of the time.
"""


class StoreTopics(NamedTuple):
    """The stores that have changelogs, and these as they are now, by store."""

    specs: Mapping[str, StoreSpec]
    changelogs: Mapping[str, Changelog]


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The published snapshot, as this process saw it last. Units: the wall clock in
    milliseconds; bytes.
    """

    run: str
    created_ms: int
    bytes: int


class SnapshotTaker:
    """The snapshot thread of one instance. Any thread may read `figures`."""

    def __init__(
        self,
        url: str,
        application: str,
        interval_s: float | None,
        stores: Mapping[int, Sequence[StoreSpec]],
        topics: Callable[[], StoreTopics],
        standing: Callable[[], Standing],
        databases: Databases,
        metrics: Metrics | None = None,
        host: Host = SYSTEM,
    ) -> None:
        """Make the thread, which `start` starts.

        `interval_s`: the time between two rounds; None: it only takes part in
        savepoints.
        `stores`: the stores with a changelog of each sub-topology that has any.
        `topics`: asks the brokers for their changelogs.
        """
        self._url = url
        self._application = application
        self._stores = stores
        self._topics = topics
        self._standing = standing
        self._databases = databases
        self._metrics = metrics or Metrics("", "")
        self._host = host
        self._storage = Storage(url)
        self._rounds = None if interval_s is None else Rounds(interval_s)
        self._look_s = LOOK_S if interval_s is None else min(LOOK_S, interval_s / 4)
        self._lease = Lease(url, application, host.wall_ms, host.unique())
        self._last = NOTHING_PUBLISHED
        """The publication that was seen last."""
        self._list_at = 0.0
        self._manifest: Manifest | None = None
        """The manifest of the publication `_last`; None: it cannot be used."""
        self._written = Written()
        self._saved_run = ""
        """The run of the savepoint that this process has written for last."""
        self._saved: set[TaskId] = set()
        """The tasks of which this process has written a part in that run."""
        self._saved_files = Written()
        """The files that parts in that run may name."""
        self._run = ""
        """The run of the round that this process has begun to write for last."""
        self._done: set[TaskId] = set()
        """The tasks of which this process has written a part in that run."""
        self._parts: dict[str, Part | None] = {}
        """The parts of the open round by name; None: it is damaged."""
        self._said = ""
        self.figures: SnapshotFigures | None = None
        """The published snapshot; None: there is none. Replaced as a whole."""
        self._stop = host.signal()
        self._thread = host.thread(self._work, "snapshot-taker")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it has not published stays for the next round."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def look(self) -> None:
        """Do what is due: write the slices of the tasks here, publish.

        Raises:
            SnapshotError: the storage does not answer.
            StateError: a database cannot be read.
            LogError: the brokers do not answer.
        """
        request = self._read(SAVEPOINT, SavepointRequest.from_json)
        if request is not None and self._host.wall_ms() < request.until_ms:
            self._see_publication()
            self._write_savepoint(request)
        if self._rounds is None:
            return
        at = self._read(ROUND, Round.from_json)
        now = self._host.now()
        news = at is not None and at.behind >= self._last.number
        if news or self._rounds.open is not None or now >= self._list_at:
            self._list_at = now + LIST_S
            self._see_publication()
        if at is not None and at.behind == self._last.number:
            self._write_parts(at)
        self._publish_if_due(self._rounds)

    def _work(self) -> None:
        """Look again and again, until `stop`; an error is logged once."""
        while not self._stop.wait(self._look_s):
            try:
                self.look()
                self._said = ""
            except GivenUpError:
                continue
            except (SnapshotError, StateError, LogError, OSError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("the snapshot of this application waits: %s", error)

    def _read(self, name: str, parsed: Callable[[bytes], T]) -> T | None:
        """Return what a file of the application says; None if it is missing or damaged."""
        data = self._storage.read(f"{self._application}/{name}")
        try:
            return None if data is None else parsed(data)
        except DamagedManifestError as error:
            log.debug("%s: %s", name, error)
            return None

    def _see_publication(self) -> None:
        """Read the manifest that is published now, if it is another one."""
        last = snapshot.published(self._url, self._application)
        if last == self._last:
            return
        self._last = last
        self._manifest = None
        try:
            if last != NOTHING_PUBLISHED:
                self._manifest = snapshot.load(self._url, self._application, last.run)
        except DamagedManifestError as error:
            log.warning("%s. The next snapshot takes nothing of it over.", error)
        self.figures = _figures(self._manifest)
        if self.figures is not None:
            self._metrics.snapshot(self.figures.created_ms, self.figures.bytes)

    def _write_parts(self, at: Round) -> None:
        """Write a part for each task that runs here and has none in this round."""
        if at.run != self._run:
            self._run = at.run
            self._done = set()
            self._written.keep(self._published_files())
        writer = SnapshotWriter(self._url, self._application, at.run)
        standing = self._standing()
        for task in sorted(standing.states):
            running = standing.states[task] is State.RUNNING
            if running and task.subtopology in self._stores and task not in self._done:
                self._write_part(writer, task)

    def _published_files(self) -> frozenset[str]:
        """Return the names of the files of the published snapshot. Nobody sweeps them
        while a round behind it can be published.
        """
        older = () if self._manifest is None else self._manifest.files()
        return frozenset(file.name for file in older)

    def _write_savepoint(self, request: SavepointRequest) -> None:
        """Write a part, with its positions, for each task that runs here and has none in
        this savepoint.
        """
        if request.run != self._saved_run:
            self._saved_run = request.run
            self._saved = set()
            same = request.behind == self._last.number
            self._saved_files = Written(self._written)
            self._saved_files.keep(self._published_files() if same else ())
        writer = SnapshotWriter(self._url, self._application, request.run)
        standing = self._standing()
        for task in standing.homes.keys() - self._saved:
            if standing.states.get(task) is State.RUNNING:
                self._save(writer, request.run, standing, task)

    def _save(
        self,
        writer: SnapshotWriter,
        run: str,
        standing: Standing,
        id_: TaskId,
    ) -> None:
        """Write the part of a task in a savepoint. Its stream thread opens the iterators,
        between two commits; this thread reads them.
        """
        answers: Inbox[_Moment | StateError] = self._host.inbox()
        specs = self._stores.get(id_.subtopology, ())
        database = self._databases.borrow(id_) if specs else None
        if specs and database is None:
            return

        def look(task: Task) -> None:
            try:
                answers.put(_moment(task, database, specs, self._saved_files))
            except StateError as error:
                answers.put(error)

        try:
            standing.homes[id_].look_at(standing.tasks[id_], look)
            moment = answers.get(timeout=ANSWER_S)
            if isinstance(moment, StateError):
                raise moment
            part = Part(
                {
                    spec.name: PartStore(
                        _the_id(moment.rows[spec.name]),
                        tuple(
                            writer.write_rows(
                                spec,
                                id_.partition,
                                moment.rows[spec.name],
                                self._saved_files,
                                self._paced,
                            )
                        ),
                    )
                    for spec in specs
                },
                moment.at,
            )
        except Empty:
            return  # it has been closed, or its function takes long: the next look asks again
        finally:
            if database is not None:
                self._databases.leave(id_)
        self._storage.write(
            f"{self._application}/{run}/{PARTS}/{_part_name(id_)}",
            part.to_json(),
        )
        self._saved.add(id_)

    def _write_part(self, writer: SnapshotWriter, task: TaskId) -> None:
        """Write the part of a task in the open round, if its database is open."""
        database = self._databases.borrow(task)
        if database is None:
            return
        try:
            part = Part(
                {
                    spec.name: store
                    for spec in self._stores[task.subtopology]
                    if (store := self._slices(writer, task, database, spec)) is not None
                }
            )
        finally:
            self._databases.leave(task)
        self._storage.write(
            f"{self._application}/{self._run}/{PARTS}/{_part_name(task)}",
            part.to_json(),
        )
        self._done.add(task)

    def _slices(
        self,
        writer: SnapshotWriter,
        task: TaskId,
        database: Database,
        spec: StoreSpec,
    ) -> PartStore | None:
        """Write the slices of a store of a task; None: its changelog is not known."""
        # Before and after: the changelog may be made anew meanwhile.
        before = _topic_ids(database, spec, task)
        slices = writer.export(
            database,
            spec,
            task.partition,
            task.key_range,
            self._written,
            self._paced,
        )
        ids = before | _topic_ids(database, spec, task)
        if len(ids) != 1 or NO_TOPIC in ids:
            return None
        return PartStore(ids.pop(), tuple(slices))

    def _paced(self, rows: Rows) -> Rows:
        """Yield rows, and rest between them, so that stream threads find the
        interpreter free.

        Raises:
            GivenUpError: the thread ends.
        """
        began = self._host.now()
        for number, row in enumerate(rows, 1):
            yield row
            if number % PACE_ROWS == 0:
                took_s = self._host.now() - began
                if self._stop.wait(took_s * REST):
                    raise GivenUpError("the process ends")
                began = self._host.now()

    def _publish_if_due(self, rounds: Rounds) -> None:
        """Begin or publish a round, if this process publishes and it is time."""
        publisher = self._publisher
        topics = self._topics() if publisher and rounds.open else StoreTopics({}, {})
        act = rounds.look(
            self._host.now(),
            self._last,
            self._age_s,
            publisher=publisher,
            missing=self._missing(rounds.open, topics),
        )
        if act is Act.BEGIN:
            self._begin(rounds)
        elif act is Act.PUBLISH and rounds.open is not None:
            self._publish(rounds.open, topics)
            rounds.ended()

    @property
    def _publisher(self) -> bool:
        """Whether this process publishes."""
        first = min(self._stores, default=-1)
        return any(
            task.subtopology == first
            and not task.partition
            and not task.key_range.start
            and state is State.RUNNING
            for task, state in self._standing().states.items()
        )

    @property
    def _age_s(self) -> float:
        """The age of the published snapshot."""
        if self._manifest is None:
            return 0.0
        return (self._host.wall_ms() - self._manifest.created_ms) / 1000

    def _missing(self, open_: Round | None, topics: StoreTopics) -> int:
        """Read the parts of the open round that have come; return how many key groups
        they do not cover.
        """
        if open_ is None:
            return 0
        for name in self._storage.names(f"{self._application}/{open_.run}/{PARTS}"):
            if name not in self._parts and (data := self._storage.read(name)):
                self._parts[name] = _part(name, data)
        counts = {name: of.partitions for name, of in topics.changelogs.items()}
        return missing(self._came, counts)

    @property
    def _came(self) -> list[Part]:
        return [part for part in self._parts.values() if part is not None]

    def _begin(self, rounds: Rounds) -> None:
        """Begin a round, as the publisher."""
        self._see_publication()
        run = new_run(self._host.wall_ms(), self._host.unique())
        begun = Round(run, self._last.number)
        # First: nobody may sweep what is written for it.
        self._lease.take(run, WRITING_MS)
        self._storage.write(f"{self._application}/{ROUND}", begun.to_json())
        self._parts = {}
        rounds.begun(begun, self._host.now())

    def _publish(self, open_: Round, topics: StoreTopics) -> None:
        """Publish the parts of a round that have come, and delete old files."""
        if not self._came:
            log.warning("no task has written its part of snapshot %s", open_.run)
            return
        found: dict[str, list[Slice]] = of_parts(
            open_.run,
            self._came,
            self._manifest,
            topics.changelogs,
        )
        manifest = assembled(
            manifest_of(
                self._application,
                open_.run,
                "running",
                self._host.wall_ms(),
            ),
            self._manifest,
            found,
            topics.specs,
            topics.changelogs,
        )
        if snapshot.publish_behind(self._url, manifest, self._last):
            self._see_publication()
            log.info(
                "snapshot %s is published: %d slices of %d stores",
                open_.run,
                sum(len(slices) for slices in found.values()),
                len(found),
            )
            snapshot.sweep(
                self._url,
                self._application,
                keep=KEPT,
                now_ms=self._host.wall_ms,
            )


class _Moment(NamedTuple):
    """The progress of a task, and the rows of its stores, since its last commit."""

    at: TaskPositions
    rows: dict[str, list[tuple[Checkpoint, list[FamilyRows]]]]


def _moment(
    task: Task,
    database: Database | None,
    specs: Sequence[StoreSpec],
    written: Written,
) -> _Moment:
    """Return the positions of a task and iterators over its rows, of one commit.
    `written`: what need not be read. On the stream thread, between two commits.
    """
    rows: dict[str, list[tuple[Checkpoint, list[FamilyRows]]]] = {}
    if database is not None:
        groups = groups_of(task.id.key_range)
        for spec in specs:
            rows[spec.name] = [
                found
                for piece in pieces(groups)
                for found in database.as_of_now(spec.name, piece, written)
            ]
    positions = {
        source.topic: tuple(map(position_of, task.progress.committed_segments(source)))
        for source in task.sources
    }
    key_range = task.id.key_range
    at = TaskPositions(
        task.id.subtopology,
        task.id.partition,
        key_range.start,
        key_range.end,
        positions,
        {topic: task.progress.topic_ids.get(topic, NO_TOPIC) for topic in positions},
    )
    return _Moment(at, rows)


def _the_id(rows: Sequence[tuple[Checkpoint, list[FamilyRows]]]) -> str:
    """Return the id of the changelog to which the checkpoints belong; `NO_TOPIC` if
    they belong to several.
    """
    ids = {at.topic_id for at, _ in rows}
    return ids.pop() if len(ids) == 1 else NO_TOPIC


def _part_name(task: TaskId) -> str:
    """Return the name of a task's part, by its hashes: tasks without stores may be cut
    within a key group.
    """
    start, end = task.key_range.start, task.key_range.end
    return f"{task.subtopology}_{task.partition}-{start}-{end}.json"


def _figures(manifest: Manifest | None) -> SnapshotFigures | None:
    """Return what the status says of a snapshot; None: there is none."""
    if manifest is None:
        return None
    return SnapshotFigures(
        manifest.run,
        manifest.created_ms,
        sum(file.bytes for file in manifest.files()),
    )


def _part(name: str, data: bytes) -> Part | None:
    """Return a part from its file (`name`, for the log); None: it cannot be read."""
    try:
        return Part.from_json(data)
    except SnapshotError as error:
        log.warning("%s: %s. Its slices are not in this snapshot.", name, error)
        return None


def _topic_ids(
    database: Database,
    spec: StoreSpec,
    task: TaskId,
) -> set[str]:
    """Return the ids of the changelogs that the checkpoints of a task's store name."""
    runs = database.checkpoints(spec.name).within(groups_of(task.key_range))
    return {run.topic_id for run in runs}
