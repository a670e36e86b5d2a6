"""Restores the state of tasks that open from their changelogs, while other tasks run.

A changelog partition is read once for all tasks of an instance that restore from it,
and only the records of their key ranges are used. A task that opens later joins the
restore.

    snapshot   download the slices of a published snapshot whose key groups the database lacks           `_begin`, `_look`
    join       begin the changelog's restore, or add the task to it; it starts where its rows stop       `_join`
    read       apply records up to the end, or to the position of the task                               `_read`
    checking   of a restore from a source topic: read on to learn whether compaction removed a row       `_proven`
    proven     the restore counts, if the topic is still the same; the tasks go on                       `_complete`

    begin anew   the changelog was recreated, or has lost the next offset: read the topic that is there  `_begin_anew`
    start over   a row may be missing: restore these key groups from the start of the log                `_start_over`

Standbys (`standbys`), rebuilt snapshots (`admin/rebuild.py`) and repaired changelogs
(`spark/changelog_repair.py`) are restored by it as well.

Invariant: a task is finished when each of its stores is at the end that its changelog
had when the task was added. Every commit of an earlier owner lies below that end,
because the caller has passed the barrier of the commit topic before. A store that is
restored from its source topic ends where the task begins.
Invariant: a restore reads one topic from the first record to the last. If the changelog
is recreated meanwhile, the restore begins again with the new topic: the topic's id is
fetched before the offsets and checked again later.
Relies on: `state/restore.py` (one store: from which checkpoint, up to where),
`snapshot_download`, `changelog_topics` (ids, ends and settings, fetched once a step), and
`compacted_rows` (what a source topic may have lost).
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from coopstreams.commit.offset_runs import Runs, contains
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Segment
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.common.topic_settings import setting_command
from coopstreams.log.log import Log, Position, RecordBatch
from coopstreams.opening.changelog_topics import Changelogs
from coopstreams.opening.compacted_rows import CompactedRows, Lost
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.published_snapshot import Changelog, Snapshots
from coopstreams.state.restore import (
    NO_STOPS,
    Bounds,
    Restore,
    RestoreProgress,
    lacking,
)
from coopstreams.state.snapshot_download import (
    DownloadProgress,
    Downloads,
    SnapshotDownload,
)
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.topology.columns import TopicPartition, joined
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRangeError,
    SerdeError,
)
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

BATCH = 10_000
PATIENCE_S = 0.3
"""The time without progress after which a restore is taken to wait for an open
transaction.
"""
COMPARE_S = 1.0
"""The time between two checks whether the changelog of a stuck restore is still the
same topic.
"""
NO_TIMES: Mapping[str, int] = {}
LOOK_S = 0.005
"""The longest wait of a step for records or downloads."""
RUNS_PATIENCE_S = 10.0
"""How long brokers may return no record of a done run until the opening is tried again.
"""
RUNS_LOOK_S = 0.1


class _Wanted(NamedTuple):
    """One store that a task has to restore."""

    spec: StoreSpec
    database: Database
    stops: Mapping[KeyRange, int]
    """The end of each range that ends before the target."""
    stream_time: int | None
    """The stream time at which the task begins; None: it is not known."""


@dataclass(slots=True)
class _SnapshotRestore:
    """One store that a task restores from a snapshot.

    `wanted`: the restore from the changelog that follows.
    """

    download: SnapshotDownload
    wanted: _Wanted
    bytes: int = 0
    """The downloaded bytes that the metrics have already."""


@dataclass(slots=True)
class _Job:
    """The restore of one changelog partition, for all tasks that wait for it."""

    restore: Restore
    moved_at: float
    tasks: dict[TaskId, _Wanted] = field(default_factory=dict)
    check: CompactedRows | None = None
    """Looks for missing rows, after a restore from a source topic."""
    end_seen: int | None = None
    """The offset at which the topic ended when its end was last reached."""

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self.restore.position if self.check is None else self.check.position

    def feed(self, batches: Sequence[RecordBatch]) -> None:
        """Take in the records read from `position` on."""
        last = batches[-1]
        if last.at_end:
            self.end_seen = last.next_offset
        if self.check is None:
            self.restore.feed(
                joined(batch.columns for batch in batches),
                last.next_offset,
            )
        else:
            self.check.feed(batches)

    def retarget(self, bounds: Bounds | None = None) -> None:
        """Change the restore to the ranges of the tasks that wait now."""
        self.check = None
        bounds = bounds or self.restore.bounds
        self.restore.retarget(
            self.ranges,
            bounds=replace(
                bounds,
                target=max(self.stops.values(), default=bounds.target),
            ),
            stops=self.stops,
            times=self.times,
        )

    def anew(self, bounds: Bounds) -> None:
        """Start the restore again, from the topic that has replaced the changelog."""
        self.check = None
        self.end_seen = None
        bounds = replace(bounds, target=max(self.stops.values(), default=bounds.target))
        database = self.restore.database
        spec = self.restore.spec
        self.restore = Restore(
            database,
            spec,
            self.ranges,
            bounds,
            stops=self.stops,
            times=self.times,
        )

    @property
    def ranges(self) -> list[KeyRange]:
        """The ranges of the waiting tasks."""
        return [task.key_range for task in self.tasks]

    @property
    def stops(self) -> dict[KeyRange, int]:
        """The end of each range that ends before the target."""
        return {
            key_range: stop
            for each in self.tasks.values()
            for key_range, stop in each.stops.items()
        }

    @property
    def times(self) -> dict[KeyRange, int]:
        """The stream time at which the task of each range begins."""
        known = (
            (task.key_range, wanted.stream_time) for task, wanted in self.tasks.items()
        )
        return {key_range: at for key_range, at in known if at is not None}


class Restores:
    """The restores of one instance.

    The opener thread uses it; any thread may call `progress` and `downloading`.
    """

    def __init__(
        self,
        log: Log,
        changelog: Callable[[StoreSpec], str],
        snapshots: Snapshots | None = None,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
        host: Host = SYSTEM,
    ) -> None:
        self._host = host
        self._log = log
        self._changelogs = Changelogs(log, host.wall_ms)
        self._listener = listener or RestoreListener()
        self._changelog = changelog
        self._metrics = metrics or Metrics("", "")
        self._snapshots = snapshots
        self._downloads = Downloads(
            host.now,
            lambda job, name: host.thread(job, name).start(),
            host.signal(),
        )
        self._reader = log.reader()
        self._moved = False
        """Whether the reader must be assigned before the next fetch, because jobs have
        begun, moved or ended.
        """
        self.progressed = False
        """Whether the last step has come further in a changelog."""
        self._jobs: dict[TopicPartition, _Job] = {}
        self._snapshot_restores: dict[
            tuple[TaskId, TopicPartition], _SnapshotRestore
        ] = {}
        self._waiting: dict[TaskId, set[TopicPartition]] = {}
        """The changelogs for which each task still waits."""
        self._compare_at = 0.0
        """The time (`Host.now`) of the next check of stuck changelogs."""
        self._done: list[TaskId] = []

    def settle_runs(
        self,
        task: TaskId,
        stores: Iterable[StoreSpec],
        progress: Progress,
    ) -> None:
        """Drop the done runs from a task's progress, for tables that are restored from
        their source topic.

        Such a table has everything up to one offset, so its task processes the records
        in order, and needs only a position. A commit may have done runs (offsets above
        the position whose records are done) for two reasons. An earlier version of
        coopstreams wrote them for gaps without records: these are dropped. Or the table
        had a changelog then, and records overtook each other: then no offset describes
        the state, and the task cannot open.

        Raises:
            LogError: retryable: the brokers did not answer.
            ConfigError: a record lies in a done run; the message has the cure.
        """
        for spec in stores:
            source = TopicPartition(spec.source or "", task.partition)
            if source not in progress.partitions:
                continue
            parted = [segment for segment in progress.segments(source) if segment.runs]
            done = None
            if parted:
                done = _first_record_in_runs(self._log, source, parted, self._host)
            if done is not None:
                raise ConfigError(
                    f"{task}: the record of {source} at offset {done} was done before "
                    f"earlier ones, beside calls that had not ended. The table "
                    f'"{spec.name}" had a changelog then; now it is restored from this '
                    "topic (topology.optimization), of which it must have everything "
                    "up to one offset. Run the topology as it was (with "
                    "topology.optimization=none, say) until its lag is 0, stop it, "
                    "and then start it so; or begin anew (`coopstreams reset`)"
                )
            progress.drop_runs(source)

    def add(
        self,
        task: TaskId,
        stores: Iterable[StoreSpec],
        database: Database,
        positions: Mapping[str, Mapping[KeyRange, int]],
        times: Mapping[str, int] = NO_TIMES,
    ) -> None:
        """Begin to restore the stores of a task. If there is none to restore, the task
        is `finished` at once.

        `positions`: where the task begins, for each store that is restored from its
        source topic. `times`: the stream time at which each store begins, where it is
        known.

        Raises:
            LogError: the brokers did not answer; nothing was added.
            ConfigError: a changelog was deleted, or the brokers delete its rows.
        """
        wanted = {
            self._topic_of(spec, task): _Wanted(
                spec,
                database,
                positions.get(spec.name, NO_STOPS),
                times.get(spec.name),
            )
            for spec in stores
            if spec.logged or spec.name in positions
        }
        bounds = self._changelogs.all_bounds(
            {changelog: one.stops for changelog, one in wanted.items()}
        )
        self._changelogs.check_compacted(
            {
                changelog.topic: one.spec.name
                for changelog, one in wanted.items()
                if one.spec.source is None and one.spec.retention_ms is None
            }
        )
        downloads = {
            changelog: (groups, self._changelogs.topic(changelog.topic))
            for changelog, one in wanted.items()
            if (groups := self._missing(task, one, bounds[changelog]))
        }
        # Only now: if the brokers do not answer, nothing is added in part.
        self._waiting[task] = set()
        for changelog, one in wanted.items():
            if changelog in downloads:
                missing = downloads[changelog]
                self._begin(task, changelog, one, bounds[changelog], *missing)
            else:
                self._join(task, changelog, one, bounds[changelog])
        self._go_on(task)

    def _topic_of(self, spec: StoreSpec, task: TaskId) -> TopicPartition:
        return TopicPartition(spec.source or self._changelog(spec), task.partition)

    def cancel(self, task: TaskId) -> None:
        """Stop restoring for a task. Restored rows stay in the database, with their
        checkpoint.
        """
        for changelog in self._waiting.pop(task, set()):
            from_snapshot = self._snapshot_restores.pop((task, changelog), None)
            if from_snapshot is not None:
                from_snapshot.download.give_up()
                continue
            job = self._jobs[changelog]
            del job.tasks[task]
            if job.tasks:
                job.retarget()
            else:
                del self._jobs[changelog]
                self._listener.on_restore_suspended(
                    changelog,
                    job.restore.spec.name,
                    job.restore.progress().read,
                )
        if task in self._done:
            self._done.remove(task)
        self._moved = True

    def step(self) -> bool:
        """Fetch and apply records once; return whether restores are left.

        Raises:
            StateError: a database does not take the slices of a snapshot.
            LogError: the brokers or the schema registry do not answer.
        """
        # Ids are kept for one step, and for the tasks that are added between two: a
        # topic may be made anew at any time.
        self._changelogs.forget()
        self.progressed = False
        if self._snapshot_restores:
            if not self._jobs:
                self._downloads.ended.wait(LOOK_S)
            self._look()
        if self._moved:
            self._assign()
        if self._jobs:
            self._read()
        self._changelogs.forget()
        return bool(self._jobs or self._snapshot_restores)

    def _read(self) -> None:
        """Apply what one fetch returns, and end the restores that are done."""
        for changelog, slots in groupby(
            self._fetch(),
            key=lambda batch: batch.partition,
        ):
            job = self._jobs.get(changelog)
            if job is None:
                continue
            batches = list(slots)
            before = job.position
            restored = job.check is None
            try:
                job.feed(batches)
            except SerdeError as error:
                self._moved = True  # what was fetched is read again
                raise LogError(
                    f"{changelog} cannot be restored yet: {error}",
                    retryable=True,
                ) from error
            if job.position != before:
                job.moved_at = self._host.now()
                self.progressed = True
            if not restored and job.position != batches[-1].next_offset:
                self._moved = True  # it looks for something else now
            progress = job.restore.progress()
            count = sum(len(batch.columns) for batch in batches) if restored else 0
            if count:
                self._listener.on_batch_restored(
                    changelog,
                    progress.store,
                    progress.position,
                    count,
                )
            for task in job.tasks:
                self._metrics.restored(task, progress.store, count, progress.remaining)
        self._complete()

    def _fetch(self) -> list[RecordBatch]:
        """Fetch from the changelogs. If an offset is out of range or a restore is
        stuck, check whether the changelog was recreated.
        """
        try:
            batches = self._reader.fetch(BATCH, LOOK_S)
        except OffsetOutOfRangeError:
            if not self._changed():
                raise
            return []
        if not batches and self.stuck() and self._host.now() >= self._compare_at:
            self._compare_at = self._host.now() + COMPARE_S
            self._changed()
        return batches

    def _changed(self) -> bool:
        """Restart the restores whose changelog was recreated or has lost the next
        record; return whether there were any.
        """
        changed = False
        for changelog, job in self._jobs.items():
            bounds = self._changelogs.bounds(changelog, job.stops)
            if (
                bounds.topic_id != job.restore.bounds.topic_id
                or job.position < bounds.log_start
            ):
                self._begin_anew(changelog, job, bounds)
                changed = True
        if changed:
            self._complete()
            self._moved = True
        return changed

    def finished(self) -> list[TaskId]:
        """Return the tasks whose restore has completed since the last call."""
        done = self._done
        self._done = []
        return done

    def stuck(self) -> bool:
        """Return whether a restore has not moved for `PATIENCE_S`. Its changelog then
        has an open transaction, which holds back the last stable offset.
        """
        return any(
            self._host.now() - job.moved_at > PATIENCE_S for job in self._jobs.values()
        )

    def progress(self, task: TaskId) -> list[RestoreProgress]:
        """Return the progress of each store that a task is restoring from its
        changelog.
        """
        jobs = [
            self._jobs.get(changelog) for changelog in list(self._waiting.get(task, ()))
        ]
        return [job.restore.progress() for job in jobs if job is not None]

    def downloading(self, task: TaskId) -> list[DownloadProgress]:
        """Return the progress of each store that a task is restoring from a snapshot."""
        from_snapshots = [
            self._snapshot_restores.get((task, changelog))
            for changelog in list(self._waiting.get(task, ()))
        ]
        return [
            from_snapshot.download.progress()
            for from_snapshot in from_snapshots
            if from_snapshot is not None
        ]

    def close(self) -> None:
        """Close the reader and cancel running downloads."""
        for from_snapshot in self._snapshot_restores.values():
            from_snapshot.download.give_up()
        self._snapshot_restores.clear()
        self._reader.close()

    def _join(
        self,
        task: TaskId,
        changelog: TopicPartition,
        wanted: _Wanted,
        bounds: Bounds,
    ) -> None:
        """Have a task wait for the restore of a changelog, which begins with its first
        task; or not, if the store is at its end already.
        """
        job = self._jobs.get(changelog)
        if job is None:
            spec = wanted.spec
            times = (
                {}
                if wanted.stream_time is None
                else {task.key_range: wanted.stream_time}
            )
            restore = Restore(
                wanted.database,
                spec,
                [task.key_range],
                bounds,
                stops=wanted.stops,
                times=times,
            )
            job = _Job(restore, self._host.now(), {task: wanted})
            if job.restore.done and not job.restore.unproven:
                return
            self._listener.on_restore_start(
                changelog,
                spec.name,
                job.restore.position,
                bounds.target,
            )
        else:
            job.tasks[task] = wanted
            if bounds.topic_id == job.restore.bounds.topic_id:
                job.retarget(bounds)
            else:
                self._begin_anew(changelog, job, bounds)
        self._jobs[changelog] = job
        self._waiting[task].add(changelog)

    def _missing(
        self,
        task: TaskId,
        wanted: _Wanted,
        bounds: Bounds,
    ) -> list[int]:
        """Return the key groups without a checkpoint from which a restore can continue.
        A snapshot may have them.
        """
        if self._snapshots is None or wanted.spec.source is not None:
            return []  # snapshots are of changelogs, not of source topics
        return lacking(
            wanted.database.checkpoints(wanted.spec.name),
            task.key_range,
            bounds,
        )

    def _begin(
        self,
        task: TaskId,
        changelog: TopicPartition,
        wanted: _Wanted,
        bounds: Bounds,
        groups: Sequence[int],
        known: Changelog,
    ) -> None:
        """Begin the download of a store. Its restore from the changelog follows."""
        assert self._snapshots is not None
        bounds = replace(bounds, begins=wanted.stream_time)
        store = (wanted.database, wanted.spec)
        download = SnapshotDownload(
            self._downloads,
            self._snapshots,
            *store,
            changelog.partition,
            known,
            groups,
            bounds,
        )
        self._snapshot_restores[task, changelog] = _SnapshotRestore(download, wanted)
        self._waiting[task].add(changelog)

    def _look(self) -> None:
        """Join the changelog restores of the stores whose downloads have ended."""
        self._downloads.ended.clear()
        for (task, changelog), from_snapshot in list(self._snapshot_restores.items()):
            ended = from_snapshot.download.look()
            progress = from_snapshot.download.progress()
            self._metrics.fetched(
                task,
                progress.store,
                progress.fetched_bytes - from_snapshot.bytes,
                progress.total_bytes - progress.fetched_bytes,
            )
            from_snapshot.bytes = progress.fetched_bytes
            if ended:
                # Fetched again, since a download takes long; if the brokers do not
                # answer, the next step asks.
                bounds = self._changelogs.bounds(changelog)
                self._metrics.restored_from_snapshot(
                    task,
                    progress.store,
                    from_snapshot.download.keys,
                )
                del self._snapshot_restores[task, changelog]
                self._waiting[task].discard(changelog)
                self._join(task, changelog, from_snapshot.wanted, bounds)
                self._go_on(task)

    def _go_on(self, task: TaskId) -> None:
        """Finish a task if none of its stores is left to restore."""
        if self._waiting[task]:
            self._moved = True
        else:
            del self._waiting[task]
            self._done.append(task)

    def _assign(self) -> None:
        """Assign the changelogs of all jobs to the reader, each with the key ranges to
        restore.

        Raises:
            LogError: the brokers did not answer; the next step does it again.
        """
        for changelog, job in self._jobs.items():
            ranges = self._ranges(job) if job.check is None else job.check.ranges
            self._reader.route(
                changelog,
                ranges,
                suffix=layout.changelog_suffix_bytes(job.restore.spec),
            )
        self._reader.assign(
            {changelog: Position(job.position) for changelog, job in self._jobs.items()}
        )
        self._moved = False

    @staticmethod
    def _ranges(job: _Job) -> list[KeyRange]:
        """Return the key ranges to restore, adjacent ranges merged.

        A single range of the whole hash space spares the reader from hashing keys.
        """
        return WHOLE.minus(WHOLE.minus(job.ranges))

    def _complete(self) -> None:
        """End the restores that are at their target, and proven."""
        complete = [
            changelog for changelog, job in self._jobs.items() if job.restore.done
        ]
        for changelog in complete:
            job = self._jobs[changelog]
            if not self._proven(changelog, job):
                continue
            # Last: nothing counts of a topic that was made anew meanwhile.
            now_id = self._changelogs.topic_id(changelog.topic)
            if now_id != job.restore.bounds.topic_id:
                bounds = self._changelogs.bounds(changelog, job.stops)
                self._begin_anew(changelog, job, bounds)
                self._moved = True
                continue
            job.restore.prove()
            del self._jobs[changelog]
            self._moved = True
            self._listener.on_restore_end(
                changelog,
                job.restore.spec.name,
                job.restore.progress().read,
            )
            for task in job.tasks:
                self._waiting[task].discard(changelog)
                self._go_on(task)

    def _proven(self, changelog: TopicPartition, job: _Job) -> bool:
        """Return whether it is certain that compaction has removed no row of a finished
        restore.

        False: it is not known yet, and more records are read.

        Raises:
            ConfigError: a row may be missing; the message has the cures.
        """
        if job.check is None:
            job.check = self._checking(changelog, job)
            if job.check is None:
                return True
            self._moved = True
        if job.check.lost is not None:
            self._start_over(changelog, job, job.check.lost)
            return False
        return job.check.done

    def _checking(self, changelog: TopicPartition, job: _Job) -> CompactedRows | None:
        """Return a check for missing rows; None if no row can be missing."""
        unproven = job.restore.unproven
        if not unproven:
            return None
        since_ms = self._changelogs.compacted_until_ms(changelog.topic)
        position = min(stop for _, stop in unproven.values())
        # What has come since the end was last reached was not there when rows were
        # read.
        if since_ms is None or (job.end_seen or position + 1) <= position:
            return None
        end = self._log.end_offset(changelog)
        return CompactedRows(job.restore, self._ranges(job), since_ms, end)

    def _start_over(
        self,
        changelog: TopicPartition,
        job: _Job,
        lost: Lost,
    ) -> None:
        """Restore the key groups again from the start of the log, if they were restored
        from a checkpoint.

        Raises:
            ConfigError: they were restored from the start of the log already; the
            message has the cures.
        """
        start, stop = job.restore.unproven[lost.groups[0]]
        spec = job.restore.spec
        topic = changelog.topic
        found = (
            f"the record of {changelog} at offset {lost.waits}, which its task has still "
            f"to process, is older than min.compaction.lag.ms, and offset {lost.hole} has "
            "no record: compaction may have removed the row that this key had"
        )
        job.check = None
        job.restore.start_over(lost.groups, found)
        self._moved = True
        if start > job.restore.bounds.log_start:
            return
        raise ConfigError(
            f'the table "{spec.name}" is restored from its topic (topology.optimization) '
            f"up to offset {stop}, where its task stands, but {found}. Without it, what "
            "is counted, joined or grouped from the table would be wrong, and nothing "
            "else has it. Start a process that has the table in its state folder; or "
            "have what was made of the table follow the rows that there are (`coopstreams "
            "rebuild APP --from source`, while all instances are stopped), and then, as "
            "also where you know that nothing was compacted, give the topic a lag that "
            "is longer than the oldest record waits, with which it starts: "
            f"{setting_command(topic, 'min.compaction.lag.ms', '604800000')}; or begin "
            "anew (`coopstreams reset`). A table with a changelog "
            "(topology.optimization=none, from a reset on) cannot lose a row in this way"
        )

    @staticmethod
    def _begin_anew(
        changelog: TopicPartition,
        job: _Job,
        bounds: Bounds,
    ) -> None:
        what = (
            "no longer has the next offset to read"
            if bounds.topic_id == job.restore.bounds.topic_id
            else "was deleted and made anew"
        )
        log.warning(
            '%s %s while store "%s" was restored from it; that begins again',
            changelog,
            what,
            job.restore.spec.name,
        )
        job.anew(bounds)


def _first_in(runs: Runs, offsets: Iterable[int]) -> int | None:
    """Return the first of these offsets that lies in a run; None: none does."""
    return next((offset for offset in offsets if contains(runs, offset)), None)


def _first_record_in_runs(
    log: Log,
    source: TopicPartition,
    parted: Sequence[Segment],
    host: Host,
) -> int | None:
    """Return the offset of a record that lies in the done runs of its segment; None:
    there is none.

    `parted`: the segments with done runs.

    Raises:
        LogError: retryable: the brokers did not return all records in time.
    """
    start = max(min(segment.runs[0][0] for segment in parted), log.start_offset(source))
    end = max(segment.end for segment in parted)
    with closing(log.reader()) as reader:
        reader.route(source, [segment.key_range for segment in parted])
        reader.assign({source: Position(start)})
        at = start
        moved_at = host.now()
        while at < end:
            batches = reader.fetch(BATCH, RUNS_LOOK_S)
            for batch in batches:
                done = _first_in(parted[batch.slot].runs, batch.columns.offsets)
                if done is not None:
                    return done
            reached = max((batch.next_offset for batch in batches), default=at)
            if reached > at:
                at = reached
                moved_at = host.now()
            elif host.now() - moved_at > RUNS_PATIENCE_S:
                raise LogError(
                    f"{source} returned no record between offsets {at} and {end} for "
                    f"{RUNS_PATIENCE_S:g} s: the group has committed done records there",
                    retryable=True,
                )
    return None
