"""Makes snapshots from changelogs, without touching the application, which may run
meanwhile.

    to_rebuild  the partitions of sub-topologies to rebuild, with their stores: a pure function
    Rebuilder   one of them: an empty database, the published snapshot into it, then the changelog's tail; slices out of
                it
    publish     the manifest: the new slices, and those of the published one that remain

Invariant: a slice is the state at an offset X of its changelog, even if tasks write to
the changelog meanwhile. A task that restores the slice replays from X.
Invariant: the published manifest has the ids of the changelogs that were read. A
changelog that was created again meanwhile does not get slices of the deleted one.
Relies on: `opening/restores.py`, `state/snapshot.py` (files and leases), `snapshot_round`
(`assembled`: what of the published snapshot stays).
Turned down: copying the files of a running instance (they have all ranges, and a task
needs only its own).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import Log
from coopstreams.opening.restores import Restores
from coopstreams.state import snapshot
from coopstreams.state.database import Database
from coopstreams.state.manifest import (
    Manifest,
    Slice,
    manifest_of,
    whole_slices,
)
from coopstreams.state.published_snapshot import Changelog, Snapshots
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import WRITING_MS, Lease, SnapshotWriter
from coopstreams.state.snapshot_round import assembled
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    SnapshotError,
    UnknownTopicError,
)
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""How long a changelog may give no record before a rebuild fails: brokers are
unreachable, or a transaction hangs.
"""


@dataclass(frozen=True, slots=True)
class RebuildScope:
    """The stores, partitions and key range to rebuild. None: all.

    Shape: `partitions` are those of the stores' sub-topologies. `key_range` is cut at
    key groups, and widened to whole slices.
    """

    stores: Collection[str] | None = None
    partitions: Collection[int] | None = None
    key_range: KeyRange = WHOLE

    def names(self, known: Mapping[str, StoreSpec]) -> Collection[str]:
        """Return the names of the chosen stores among `known`, the stores with a
        changelog. A versioned store includes the store of its history.
        """
        chosen = known.keys() if self.stores is None else known.keys() & self.stores
        past = {
            spec.past.name for name in chosen if (spec := known[name]).past is not None
        }
        return {*chosen, *past}


WORK = "coopstreams-rebuild"
"""The default folder in which a rebuild from the source keeps what `resume` needs."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How state is rebuilt from the source topics.

    `ranges`: the number of key ranges, and so tasks, of each partition.
    `incomplete`: rebuild although topics have lost records.
    `work`: the folder of runs.
    `resume`: the run to continue, with its own options.
    """

    ranges: int | None = None
    dry_run: bool = False
    incomplete: bool = False
    work: str = WORK
    resume: str | None = None


@dataclass(frozen=True, slots=True)
class RebuiltPartition:
    """One partition of a sub-topology, with the stores to rebuild there."""

    task: TaskId
    stores: tuple[str, ...]


def to_rebuild(
    topology: Topology,
    tasks: Sequence[int],
    wanted: RebuildScope,
) -> list[RebuiltPartition]:
    """Return the partitions to rebuild. `tasks`: the partition count of each
    sub-topology.

    Raises:
        ConfigError: a store or partition does not exist; the message lists those that
            do.
    """
    known = logged(topology)
    _check_exists(wanted, known, tasks)
    chosen = wanted.names(known)
    result = []
    for subtopology in topology.subtopologies:
        stores = tuple(spec.name for spec in subtopology.stores if spec.name in chosen)
        if not stores:
            continue
        for number in range(tasks[subtopology.id]):
            if wanted.partitions is None or number in wanted.partitions:
                task = TaskId(subtopology.id, number, whole_slices(wanted.key_range))
                result.append(RebuiltPartition(task, stores))
    return result


def _check_exists(
    wanted: RebuildScope,
    known: Collection[str],
    tasks: Sequence[int],
) -> None:
    """Check that the stores and partitions of a scope exist."""
    if unknown := sorted(set(wanted.stores or ()) - set(known)):
        raise ConfigError(
            f"{', '.join(unknown)}: no such store with a changelog; there are {', '.join(sorted(known)) or 'none'}"
        )
    existing = range(max(tasks, default=0))
    if missing := sorted(set(wanted.partitions or ()) - set(existing)):
        raise ConfigError(
            f"there is no partition {', '.join(map(str, missing))}; sub-topologies have {list(tasks)} partitions"
        )


class Rebuilder:
    """A run that makes a snapshot of an application in a storage. Belongs to one
    thread.

    `afresh`: read the changelogs from their beginning, instead of starting from the
    published snapshot. `run`: the name of the run, if several rebuilders share one.
    """

    def __init__(
        self,
        cluster: Log,
        topology: Topology,
        application: str,
        url: str,
        *,
        afresh: bool = False,
        run: str | None = None,
        host: Host = SYSTEM,
    ) -> None:
        self.run = run or snapshot.new_run()
        self._log = cluster
        self._host = host
        self._topology = topology
        self._application = application
        self._url = url
        self._afresh = afresh
        self._specs = logged(topology)
        self._lease = Lease(url, application, host.wall_ms)
        self._ids: dict[str, str] = {}
        """The ids of the rebuilt changelogs, taken before any of their records is read.
        """

    def to_rebuild(self, wanted: RebuildScope) -> list[RebuiltPartition]:
        """Return the partitions to rebuild.

        Raises:
            ConfigError: a store or partition does not exist.
            UnknownTopicError: a changelog does not exist: the application has never
            run.
            SnapshotError: the storage does not take files.
        """
        resolved = check_partitions(self._topology, self._log.partitions())
        result = to_rebuild(self._topology, resolved.tasks, wanted)
        needed = {
            self._changelog(self._specs[store])
            for rebuilt in result
            for store in rebuilt.stores
        }
        if missing := sorted(needed & {plan.name for plan in resolved.missing}):
            raise UnknownTopicError(
                f"there is no {', '.join(missing)}: {self._application} has never run here, there is no state to "
                "rebuild"
            )
        self._ids = {topic: self._log.topic_id(topic) for topic in needed}
        # The application, which may run, sweeps when it publishes snapshots of its own.
        self._lease.take(self.run, WRITING_MS)
        return result

    def rebuild(
        self,
        rebuilt: RebuiltPartition,
        listener: RestoreListener | None = None,
    ) -> dict[str, list[Slice]]:
        """Write the slices of a partition to the storage, and return them by store.
        They are unused before `publish`.

        `listener`: is called with the progress in the changelogs.

        Raises:
            LogError: a changelog gave no record for two minutes.
            SnapshotError: the storage does not accept the slices.
        """
        subtopology = self._subtopology(rebuilt)
        writer = SnapshotWriter(self._url, self._application, self.run)
        with tempfile.TemporaryDirectory(prefix="coopstreams-rebuild-") as folder:
            (Path(folder) / "database").mkdir()
            with closing(
                Database(Rocks(Path(folder) / "database"), subtopology.stores)
            ) as database:
                self._restore(rebuilt, subtopology, database, Path(folder), listener)
                return {
                    spec.name: writer.export(
                        database,
                        spec,
                        rebuilt.task.partition,
                        rebuilt.task.key_range,
                    )
                    for spec in subtopology.stores
                }

    def publish(self, found: Mapping[str, Sequence[Slice]]) -> Manifest:
        """Publish these slices, with the slices of the published snapshot that still
        fit; return the manifest.

        Raises:
            SnapshotError: a changelog was created again since `to_rebuild` was called.
        """
        try:
            older = snapshot.load(self._url, self._application)
        except SnapshotError as error:
            log.warning("%s. Nothing of it is kept.", error)
            older = None
        counts = self._log.partitions()
        topics = {name: self._changelog(spec) for name, spec in self._specs.items()}
        now = {
            name: Changelog(topic, self._log.topic_id(topic), counts[topic])
            for name, topic in topics.items()
            if topic in counts
        }
        if changed := sorted(
            each.topic
            for each in now.values()
            if self._ids.get(each.topic, each.topic_id) != each.topic_id
        ):
            raise SnapshotError(
                f"{', '.join(changed)}: deleted and made anew during the rebuild; the records read so far are "
                "useless. Rebuild it again."
            )
        if older is not None and (others := _of_other_topics(older, now)):
            log.warning(
                'snapshot "%s", which was published, followed other topics than %s are now: they were made anew, or it '
                "is of another cluster. Two clusters with one application id need a storage each: only the snapshot "
                "that is published last is used, and `coopstreams snapshots gc` deletes the other.",
                older.run,
                ", ".join(others),
            )
        new = manifest_of(
            self._application,
            self.run,
            "rebuild",
            self._host.wall_ms(),
        )
        manifest = assembled(new, older, found, self._specs, now)
        snapshot.publish(self._url, manifest)
        self._lease.give_back()
        return manifest

    def _restore(
        self,
        rebuilt: RebuiltPartition,
        subtopology: SubTopology,
        database: Database,
        folder: Path,
        listener: RestoreListener | None,
    ) -> None:
        """Bring the stores of a partition into a database: the published snapshot, then
        the rest of their changelogs.
        """
        snapshots = (
            None
            if self._afresh
            else Snapshots(self._url, self._application, folder / "snapshots")
        )
        with closing(
            Restores(
                self._log,
                self._changelog,
                snapshots,
                listener=listener,
                host=self._host,
            )
        ) as restoring:
            restoring.add(rebuilt.task, subtopology.stores, database, {})
            finish(restoring, rebuilt.task, rebuilt.stores, self._host)

    def _subtopology(self, rebuilt: RebuiltPartition) -> SubTopology:
        """Return the sub-topology of a partition with the stores to rebuild only."""
        whole = next(
            each
            for each in self._topology.subtopologies
            if each.id == rebuilt.task.subtopology
        )
        return replace(
            whole,
            stores=tuple(spec for spec in whole.stores if spec.name in rebuilt.stores),
        )

    def _changelog(self, store: StoreSpec) -> str:
        return changelog_topic(self._application, store.name)


def _of_other_topics(older: Manifest, now: Mapping[str, Changelog]) -> list[str]:
    """Return the changelogs whose topic id has changed since the older manifest was
    made, ascending.
    """
    return sorted(
        now[name].topic
        for name, store in older.stores.items()
        if name in now and store.topic_id != now[name].topic_id
    )


def finish(
    restoring: Restores,
    task: TaskId,
    stores: Sequence[str],
    host: Host = SYSTEM,
) -> None:
    """Restore the only task of `restoring` to the end of its changelogs.

    Raises:
        LogError: retryable: a changelog gave no record for two minutes.
    """
    moved_at = host.now()
    while not restoring.finished():
        restoring.step()
        if not restoring.stuck():
            moved_at = host.now()
        elif host.now() - moved_at > PATIENCE_S:
            raise LogError(
                f"the changelogs of {', '.join(stores)}, partition {task.partition}, have not moved for "
                f"{PATIENCE_S:.0f} s: the brokers are away, or a producer left a transaction open "
                "(kafka-transactions.sh find-hanging lists them)",
                retryable=True,
            )


def logged(topology: Topology) -> dict[str, StoreSpec]:
    """Return the stores that have a changelog, by name."""
    return {
        spec.name: spec
        for subtopology in topology.subtopologies
        for spec in subtopology.stores
        if spec.logged
    }
