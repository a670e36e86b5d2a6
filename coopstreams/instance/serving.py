"""Answers the query server's requests for an instance, from the task registry, the open
tasks and the last assignment.

Invariant: a view counts as owned only while this very opening of its task runs here and
the group has lately answered a heartbeat. A suspended process that resumes owns nothing
until the group has answered it. A forked child owns nothing: its copy of the instance
has no threads, so what it reads would never change.
Relies on: `task_registry.Standing` (what the control thread publishes),
`query/backend.py` (what a view promises), `status/reasons.py` (health from `Seen`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from msgspec import structs

from coopstreams.group.active_version import short
from coopstreams.group.format_level import in_words
from coopstreams.group.members import Cluster
from coopstreams.instance.instance import Instance
from coopstreams.instance.task_registry import Standing, State
from coopstreams.log.kafka.native import data_plane
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.opening.opener import TaskWait
from coopstreams.query.backend import (
    NotOpen,
    OpenView,
    Placement,
    Staleness,
    StoreInfo,
    peer_of,
)
from coopstreams.query.catalog import stores_of
from coopstreams.query.problems import moving
from coopstreams.state.database import Database
from coopstreams.state.layout import groups_of
from coopstreams.state.views import GlobalView, KeyRangeView
from coopstreams.status.model import InstanceStatus, SnapshotStatus, StandbyStatus
from coopstreams.status.reasons import Health, Seen, health
from coopstreams.status.time_status import time_status
from coopstreams.tasks.lifecycle import ENDING
from coopstreams.tasks.task import Task
from coopstreams.tasks.task_figures import (
    DownloadStatus,
    RestoreStatus,
    TaskStatus,
    TimeStatus,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.keys import KeyGroups, KeyRange
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId


class TaskView:
    """A store of a running task, open for one read."""

    def __init__(
        self,
        serving: Serving,
        task: Task,
        spec: StoreSpec,
        lag: int | None,
    ) -> None:
        self.task = task.id
        self.epoch = task.progress.author.generation
        self.lag = lag
        self.standby: Staleness | None = None
        self._serving = serving
        self._opened = task
        # Until the end of the read, which then asks `owned`: the task may be closed.
        self._database: Database = serving.pin(task.id)
        self.store = KeyRangeView(self._database, spec, [task.id.key_range])
        self.past = (
            None
            if spec.past is None
            else KeyRangeView(self._database, spec.past, [task.id.key_range])
        )

    def stream_time(self, topic: str) -> int:
        """Return the committed stream time of a source topic of the task. The view's
        rows are not newer.
        """
        source = TopicPartition(topic, self.task.partition)
        return (
            self._opened.progress.stream_time(source)
            if source in self._opened.sources
            else NO_STREAM_TIME
        )

    def owned(self) -> bool:
        """Return whether this opening of the task still owns the key range."""
        return self._serving.owns(self._opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.unpin(self.task)


class StandbyView:
    """A key range of a standby, open for one read."""

    def __init__(
        self,
        serving: Serving,
        kept: TaskId,
        spec: StoreSpec,
        key_range: KeyRange,
        behind: tuple[int, int],
    ) -> None:
        """`kept`: the standby, which has the key range; `behind`: its lag, and how old
        its rows may be.
        """
        self.task = replace(kept, key_range=key_range)
        self.epoch = serving.placement().generation
        self.lag = None
        self.past = None
        self._serving = serving
        self._kept = kept
        self._database: Database = serving.pin(kept)
        self.store = KeyRangeView(self._database, spec, [key_range])
        self._position = self._offset()
        lag, staleness_ms = behind
        self.standby = Staleness(self._position or 0, lag, staleness_ms)

    def stream_time(self, topic: str) -> int:  # noqa: ARG002 an owner knows it
        """Return that it is not known: commits tell it to owners."""
        return NO_STREAM_TIME

    def owned(self) -> bool:
        """Return whether the standby is still kept, and was not begun anew meanwhile."""
        at = self._offset()
        return (
            at is not None
            and self._position is not None
            and at >= self._position
            and self._serving.stands_by(self._kept)
        )

    def _offset(self) -> int | None:
        checkpoints = self._database.checkpoints(self.store.spec.name)
        return checkpoints.offset(groups_of(self._kept.key_range))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.unpin(self._kept)


class Serving:
    """The `Backend` of one instance. Thread-safe: it reads what the threads publish."""

    def __init__(
        self,
        instance: Instance,
        details: Mapping[str, str | int | float],
    ) -> None:
        self._instance = instance
        self._details = details
        self._ended = False
        self._pid = os.getpid()
        self._components = instance.components
        self._placement: tuple[object, Placement] = (
            None,
            Placement(-1, instance.components.plan.process, ()),
        )
        self._specs = {
            store.name: store
            for subtopology in instance.components.plan.topology.subtopologies
            for store in subtopology.stores
        }
        self._stores: tuple[object, object, dict[str, StoreInfo]] = (None, None, {})

    @property
    def application(self) -> str:
        """The application id."""
        return self._components.plan.application

    @property
    def topology(self) -> Structure:
        """The topology that runs."""
        return self._components.plan.topology

    def stores(self) -> Mapping[str, StoreInfo]:
        """Return what queries need to know of each store of the topology, by name."""
        topics = self._components.plan.topics
        misplaced = self._components.misplaced.topics
        known, then, stores = self._stores
        if known is not topics or then is not misplaced:
            stores = stores_of(
                self._components.plan.topology,
                topics.tasks,
                topics.partitions,
                misplaced,
            )
            self._stores = (topics, misplaced, stores)
        return stores

    def placement(self) -> Placement:
        """Return the instances and their tasks by the last assignment."""
        if self._forked:
            return replace(self._placement[1], waits=self._forked)
        assigned = self._instance.standing.assigned
        if assigned is not None and self._placement[0] is not assigned:
            # In another version of the topology the same task ids mean other tasks.
            members = assigned.cluster.members
            foreign = bool(assigned.waits)
            https = (
                self._components.plan.config["http.ssl.certificate.location"]
                is not None
            )
            peers = tuple(
                peer_of(
                    member.info.process,
                    member.info.endpoint,
                    () if foreign else member.tasks,
                    () if foreign else member.standbys,
                    https=https,
                )
                for member in members
            )
            self._placement = (
                assigned,
                Placement(
                    assigned.generation,
                    self._components.plan.process,
                    peers,
                    assigned.waits,
                ),
            )
        return self._placement[1]

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the partitions that a task reads, whichever instance has it."""
        return self._components.sources(task)

    def view(
        self,
        store: str,
        partition: int,
        hash_: int,
    ) -> OpenView | NotOpen:
        """Return an open view of the local task that has this key hash, or the reason
        why there is none.
        """
        subtopology = self.stores()[store].subtopology
        standing = self._instance.standing
        for task, state in standing.states.items():
            if (
                task.subtopology == subtopology
                and task.partition == partition
                and hash_ in task.key_range
            ):
                return self._open(store, task, state, standing)
        return NotOpen(
            f"this instance has no task for partition {partition} and key hash {hash_}"
        )

    def standby_view(
        self,
        store: str,
        partition: int,
        key_range: KeyRange,
        max_staleness_ms: int,
        *,
        cut: bool,
    ) -> OpenView | NotOpen:
        """Return an open view of the standby here that has a key range, or the reason why
        there is none that is fresh enough. `cut`: of the key range only.
        """
        subtopology = self.stores()[store].subtopology
        for task, figures in self._instance.opener.standbys.items():
            if (
                (task.subtopology, task.partition) == (subtopology, partition)
                and task.key_range.covers(key_range)
                and store in figures.lags
                and not self._over
            ):
                age_ms = max(0, self._components.host.wall_ms() - figures.true_ms)
                if age_ms > max_staleness_ms:
                    return NotOpen(
                        f"the standby of {task} here was up to date {age_ms} ms ago, and {max_staleness_ms} ms are allowed"
                    )
                spec = self._specs[store]
                behind = (figures.lags[store], age_ms)
                mine = key_range if cut else task.key_range
                return StandbyView(self, task, spec, mine, behind)
        return NotOpen(
            self._over or f"this instance has no standby of partition {partition} there"
        )

    def stands_by(self, task: TaskId) -> bool:
        """Return whether this standby is kept here now."""
        return not self._over and task in self._instance.opener.standbys

    def views(self, store: str) -> Sequence[OpenView | NotOpen]:
        """Return a view, or the reason why there is none, for each task of this
        instance that has a part of a store.
        """
        subtopology = self.stores()[store].subtopology
        standing = self._instance.standing
        return [
            self._open(store, task, state, standing)
            for task, state in standing.states.items()
            if task.subtopology == subtopology
        ]

    def global_view(self, store: str) -> GlobalView | None:
        """Return a global table of this instance; None while it is being loaded.

        Raises:
            QueryError: TASK_MOVING: no thread updates it any more.
        """
        if self._over:
            raise moving(self._over)
        return (
            GlobalView(self._components.globals.rows[store])
            if self._components.globals.loaded
            else None
        )

    def health(self) -> Health:
        """Return whether the instance is live and ready, with the reasons if not."""
        return health(self.seen())

    def seen(self) -> Seen:
        """Return the facts from which `health` is computed."""
        instance = self._instance
        made = self._components
        now = made.host.now()
        standing = instance.standing
        assigned = standing.assigned
        ranges = made.plan.config["ranges.per.partition"]
        member = instance.member
        return Seen(
            now=now,
            paused=instance.paused,
            states={task: state.value for task, state in standing.states.items()},
            ends=instance.lifecycle.state in ENDING,
            opening={
                task: self._why(task, state)
                for task, state in standing.states.items()
                if state is State.OPENING
            },
            draining={
                id_: _why_closing(task, until - now)
                for id_, task in standing.tasks.items()
                if (until := task.drains_until) is not None
            },
            calls={
                id_: calls
                for id_, task in standing.tasks.items()
                if (calls := task.figures.calls) is not None
            },
            homes=standing.homes,
            stalls=instance.stalls,
            nodes=made.plan.topology.nodes,
            limit_s=made.plan.config["max.poll.interval.ms"] / 1000,
            reader_s=instance.reader.asking_s,
            reader=instance.reader.asking_for,
            shares=instance.share.figures(),
            sure=not self._forked and member.sure(member.epoch),
            member=assigned is not None,
            silence=self._silence(),
            doubts=standing.doubts,
            twins=() if assigned is None else tuple(made.twins(assigned.cluster)),
            version=standing.waits,
            resting=tuple(
                f"stream thread {number} has died and is replaced in {until - now:.1f} s: {why}"
                for number, (until, why) in standing.resting.items()
                if until > now
            ),
            unreadable=made.follower.trouble,
            misplaced=tuple(made.misplaced.topics.values()),
            times=self._times(standing),
            lost=made.tallies.losses.known,
            not_shared=()
            if assigned is None
            else tuple(made.restrictions.reasons(assigned.cluster, ranges)),
        )

    def status(self) -> InstanceStatus:
        """Return the status of the instance."""
        standing = self._instance.standing
        assigned = standing.assigned
        seen = self.seen()
        well = health(seen)
        placement = self.placement()
        version = short(
            tuple(part.fingerprint for part in self._components.plan.resolved.announced)
        )
        uptime_s = self._components.host.now() - self._instance.began
        return InstanceStatus(
            id=placement.here,
            url=self._instance.presence.url,
            state=self._state(standing),
            generation=placement.generation,
            uptime_s=round(uptime_s, 1),
            live=well.live,
            ready=well.ready,
            reasons=well.reasons,
            tasks=tuple(
                self._task(task, standing, seen.times)
                for task in sorted(standing.states)
            ),
            standbys=tuple(
                StandbyStatus.of(
                    task,
                    each.lag,
                    warming=each.warming,
                    eta_s=each.eta_s,
                )
                for task, each in sorted(self._instance.opener.standbys.items())
            ),
            snapshot=self._snapshot(),
            details={
                **self._details,
                "version": version,
                "formats": in_words(
                    self._components.plan.resolved.level,
                    Cluster() if assigned is None else assigned.cluster,
                ),
            },
            data_plane=data_plane(),
            totals=self._components.metrics.totals(),
            failures=self._components.tallies.latest,
            shares=self._instance.share.status(),
        )

    def _snapshot(self) -> SnapshotStatus | None:
        taker = self._instance.snapshots
        seen = None if taker is None else taker.figures
        if seen is None:
            return None
        age_ms = self._components.host.wall_ms() - seen.created_ms
        return SnapshotStatus(
            seen.run,
            seen.created_ms,
            round(age_ms / 1000, 1),
            seen.bytes,
        )

    def _state(self, standing: Standing) -> str:
        """Return the state of the instance in one word."""
        if self._instance.lifecycle.state in ENDING:
            return self._instance.lifecycle.state.value
        if standing.assigned is None:
            return "joining"
        if standing.waits and not standing.states:
            return "waiting"
        if any(state is not State.RUNNING for state in standing.states.values()):
            return "rebalancing"
        return "paused" if self._instance.paused else "running"

    def busy(self) -> bool:
        """Return whether records wait to be processed or fetched."""
        return self._instance.busy

    def pause(self, paused: bool) -> None:
        """Pause or resume processing."""
        self._instance.pause(paused)

    def end(self) -> None:
        """Own no task from now on, because the databases are about to be closed."""
        self._ended = True

    def owns(self, task: Task) -> bool:
        """Return whether this very opening of a task runs here now."""
        standing = self._instance.standing
        here = (
            standing.tasks.get(task.id) is task
            and standing.states.get(task.id) is State.RUNNING
        )
        return (
            here
            and not self._over
            and not task.closed
            and self._instance.member.sure(task.epoch)
        )

    @property
    def _forked(self) -> str:
        """A sentence that this process is a forked child; empty: it is not."""
        if self._pid == os.getpid():
            return ""
        return f"this process was forked from {self._pid}, where the instance runs: ask that one over HTTP"

    @property
    def _over(self) -> str:
        """Why no store can be read here any more; empty: they can be read."""
        return self._forked or ("this instance has ended" if self._ended else "")

    def pin(self, task: TaskId) -> Database:
        """Keep a task's database open until `unpin`."""
        return self._components.databases.enter(task)

    def unpin(self, task: TaskId) -> None:
        """Release a task's database from `pin`."""
        self._components.databases.leave(task)

    def _open(
        self,
        store: str,
        id_: TaskId,
        state: State,
        standing: Standing,
    ) -> OpenView | NotOpen:
        """Return a view of a task in this state, or why it cannot be read."""
        task = standing.tasks.get(id_)
        if state is not State.RUNNING or task is None or not self.owns(task):
            return NotOpen(self._unread(id_, task, state))
        sample = self._instance.stalls.samples.get(id_)
        return TaskView(
            self,
            task,
            self._specs[store],
            sample.lag if sample is not None else None,
        )

    def _unread(
        self,
        id_: TaskId,
        task: Task | None,
        state: State,
    ) -> str:
        """Return why a task of this instance cannot be read."""
        if self._over:
            return self._over
        if state is not State.RUNNING or task is None:
            return self._why(id_, state)
        if self._instance.member.sure(task.epoch):
            return f"task {id_} is being given up"
        return f"task {id_} runs here, but another instance may own it by now: {self._silence()}"

    def _silence(self) -> str:
        """Return why it is not certain that this process is a member, in words."""
        loading = self._components.globals.waits_for
        return (
            self._forked
            or loading
            or self._instance.member.problem
            or "the group has not answered this process lately"
        )

    def _why(self, task: TaskId, state: State) -> str:
        """Return, in words, for what a task waits that does not run."""
        if state is State.OPENING:
            return f"task {task} waits for {self._instance.opener.waits_for(task).why}"
        return f"task {task} is {state.value}"

    def _times(self, standing: Standing) -> dict[TaskId, TimeStatus]:
        """Return the times of the tasks that have a clock or are held back."""
        reader = self._instance.reader
        now = self._components.host.now()
        told = {
            id_: time_status(
                id_,
                task.sources,
                reader.clocks,
                reader.held_back,
                self._components.plan.resolved.writer_of,
                self._owner_of,
                now,
            )
            for id_, task in standing.tasks.items()
        }
        return {id_: status for id_, status in told.items() if status is not None}

    def _owner_of(
        self,
        subtopology: int,
        partition: int,
        groups: KeyGroups,
    ) -> str | None:
        """Return the id of the instance that has the first of these key groups; None:
        none has.
        """
        owners = self.placement().by_partition.get((subtopology, partition), ())
        return next(
            (
                owner.instance.id
                for owner in owners
                if groups.first in owner.task.key_range.groups.numbers
            ),
            None,
        )

    def _task(
        self,
        id_: TaskId,
        standing: Standing,
        times: Mapping[TaskId, TimeStatus],
    ) -> TaskStatus:
        instance = self._instance
        host = self._components.host
        state = standing.states[id_]
        opening = state is State.OPENING
        waits = instance.opener.waits_for(id_) if opening else TaskWait("")
        restore = tuple(
            RestoreStatus(r.store, r.passed, r.remaining, round(r.rate, 1), r.eta_s)
            for r in waits.restores
        )
        download = tuple(
            DownloadStatus(
                p.store,
                p.fetched_bytes,
                p.total_bytes,
                round(p.rate, 1),
                p.eta_s,
            )
            for p in waits.downloads
        )
        task = standing.tasks.get(id_)
        if task is None:
            status = TaskStatus.of(id_, state.value)
        else:
            # Ends as of the watcher's last look, which asks the brokers.
            sample = instance.stalls.samples.get(id_)
            status = task.figures.status(
                state.value,
                0.0 if sample is None else sample.rate,
                {} if sample is None else sample.ends,
                {source: instance.reader.silent_s(source) for source in task.sources},
                host.now(),
                host.wall_ms(),
            )
        return structs.replace(
            status,
            restore=restore,
            download=download,
            time=times.get(id_),
        )


def _why_closing(task: Task, left_s: float) -> str:
    """Return for what a task that is being closed waits, as a sentence."""
    calls = task.figures.calls
    under_way = 0 if calls is None else calls.shown.in_flight
    return (
        f"{task} is being given up, and waits for its calls: {under_way} are under way; in {max(0.0, left_s):.0f} s "
        "at the longest (max.revoke.delay.ms) the next owner makes them again"
    )
