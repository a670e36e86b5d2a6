"""The standbys of an instance: rows of tasks that other instances own, kept near the end
of their changelogs.

A standby is a restore that is done again and again: each round goes from the checkpoint
of its key range to the end that the changelog has now, with what a task's restore has
(snapshots, topic ids, log starts, ages). So a task that opens here continues from that
checkpoint. A standby of a task that is to move here is a warm-up: the group is told when
it is ready.

Invariant: no standby has a hash of a task that is opening, open or closing here. The
opener's thread has both: it stops a standby before the task is opened, and the control
thread wants no standby of a task that is not closed.
Invariant: a warm-up gets ready in the end: when it is no more than
`acceptable.recovery.lag` behind, or after `PATIENCE` measurements without coming nearer
(what is left is what the owner writes meanwhile, and it goes on until the task moves),
or after a minute of errors that repetition does not cure.
Invariant: the rounds of a warm-up follow each other at once, until it is ready. Each has
what was written during the one before, so they get shorter.
Invariant: tasks come first. A round takes one request, or one fetch, at a time, and only
while the opener has nothing to do; an error here delays the standbys alone.
Relies on: `restores` (a round is one of its restores), `opener` (calls `step`),
`group.warmups` (what the leader makes of a warm-up that is ready).
Turned down: one restore without an end (each restore already knows when a changelog was
made anew, was cut, or is too old; a restore without an end would need all of it again);
standbys of stores that are restored from a source topic (they must stand exactly where
their task does), or that have no changelog.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.log.log import Log
from coopstreams.opening.restores import Restores
from coopstreams.state.checkpoints import NEVER_TRUE
from coopstreams.state.database import Database
from coopstreams.state.directory import Databases
from coopstreams.state.layout import groups_of
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, StateError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""The time between two rounds."""
RENEWED_S = 600.0
"""The time after which a standby is restored although nothing was written: its
checkpoint then says that it was true.
"""
REST_S = 10.0
"""The pause after an error."""
PATIENCE = 60
"""How many measurements in a row may find a warm-up no nearer to the end than before.
There is one in `EVERY_S`, and one after each of its rounds.
"""


@dataclass(frozen=True, slots=True)
class StandbyFigures:
    """What is published of a standby, replaced as a whole."""

    lags: Mapping[str, int]
    """The changelog records that each store is behind; empty: not measured yet."""
    warming: bool = False
    """Whether its task is to move here."""
    ready: bool = False
    """Whether its task may move here."""
    eta_s: float | None = None
    """The expected time until it is at the end; None: not known."""
    true_ms: int = NEVER_TRUE
    """When its rows were last known to equal the end of their changelogs, by the wall
    clock.
    """

    @property
    def lag(self) -> int | None:
        """The records that it is behind, over all stores; None: not measured yet."""
        return sum(self.lags.values()) if self.lags else None


@dataclass(slots=True)
class _Standby:
    database: Database
    changelogs: Mapping[TopicPartition, StoreSpec]
    renewed_at: float | None = None
    """When a restore of it ended last; None: none has."""
    busy: bool = False
    """Whether it waits for its turn, or is being restored."""
    lags: Mapping[str, int] = field(default_factory=dict)
    ready: bool = False
    true_ms: int = NEVER_TRUE
    least: int | None = None
    """The least lag that was measured; None: none was."""
    no_nearer: int = 0
    """How many measurements in a row found no lesser lag."""

    def measured(self, acceptable: int, *, warming: bool, downloading: bool) -> None:
        """Take in new lags: a warm-up that was ready once stays so."""
        lag = sum(self.lags.values())
        if self.least is None or lag < self.least or downloading:
            self.least = lag
            self.no_nearer = 0
        else:
            self.no_nearer += 1
        patient = not warming or self.no_nearer < PATIENCE
        self.ready = (warming and self.ready) or lag <= acceptable or not patient


class Standbys:
    """The standbys of one instance. The opener's thread uses it; any thread may read
    `figures`.
    """

    def __init__(
        self,
        connect: Callable[[], Log],
        restores: Callable[[Log], Restores],
        databases: Databases,
        changelog: Callable[[StoreSpec], str],
        metrics: Metrics | None = None,
        host: Host = SYSTEM,
        acceptable: int = 10_000,
        caught_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` and `restores` are called when there are standbys first. The client
        has short time-outs: a broker that is away must not hold the opener up.

        `acceptable`: the lag with which a warm-up is ready; `caught_up`: called when one
        has got ready.
        """
        self._acceptable = acceptable
        self._caught_up = caught_up
        self._connect = connect
        self._make_restores = restores
        self._clients: tuple[Log, Restores] | None = None
        self._databases = databases
        self._changelog = changelog
        self._metrics = metrics or Metrics("", "")
        self._host = host
        self._wanted: tuple[TaskId, ...] = ()
        self._warming: frozenset[TaskId] = frozenset()
        self._standbys: dict[TaskId, _Standby] = {}
        self._were_ready: list[TaskId] = []
        """The standbys that have ended and were ready: a part of one is, too."""
        self._turn: deque[TaskId] = deque()
        """The standbys whose restore is to begin."""
        self._look_at = 0.0
        """The time (`Host.now`) of the next round."""
        self._said = ""
        self.figures: Mapping[TaskId, StandbyFigures] = {}
        """The standbys that may write to their databases. Replaced as a whole."""

    @property
    def wanted(self) -> bool:
        """Whether there are standbys to keep."""
        return bool(self._wanted)

    def want(
        self,
        tasks: Iterable[TaskId],
        warming: Iterable[TaskId] = (),
    ) -> None:
        """Keep standbys of these tasks from now on, and of no others. `warming`: those
        whose tasks are to move here.
        """
        self._wanted = tuple(tasks)
        self._warming = frozenset(warming)
        for task in [task for task in self._standbys if task not in self._wanted]:
            if self._standbys[task].ready:
                self._were_ready.append(task)
            self._end(task)
        self._publish()

    def overlaps(self, task: TaskId) -> bool:
        """Return whether there are rows of a task that a standby keeps here."""
        return any(task.conflicts(standby) for standby in self._standbys)

    def give_way(self, task: TaskId) -> None:
        """End the standbys that have hashes of a task, which is about to be opened."""
        self.want(
            [standby for standby in self._wanted if not task.conflicts(standby)],
            self._warming,
        )

    def step(self) -> bool:
        """Begin one restore, or do one step of those under way (a request or a fetch);
        every `EVERY_S`, measure the lags first. Return whether there is more to do at
        once.

        After an error, log it, cancel the restores, and do nothing for `REST_S`.
        """
        if self._host.now() < self._look_at and not self.busy:
            return False
        try:
            more = self._step()
            self._said = ""
        except (LogError, ConfigError, StateError) as error:
            self._rest(error)
            more = False
        return more

    def close(self) -> None:
        """End all standbys, and close the reader. Their rows stay."""
        self._wanted = ()
        for task in list(self._standbys):
            self._end(task)
        self._publish()
        if self._clients is not None:
            cluster, restores = self._clients
            restores.close()
            cluster.close()
            self._clients = None

    @property
    def busy(self) -> bool:
        """Whether a standby is being restored, or waits for its turn."""
        return any(standby.busy for standby in self._standbys.values())

    @property
    def _log(self) -> Log:
        return self._open()[0]

    @property
    def _restores(self) -> Restores:
        return self._open()[1]

    def _open(self) -> tuple[Log, Restores]:
        if self._clients is None:
            cluster = self._connect()
            self._clients = cluster, self._make_restores(cluster)
        return self._clients

    def _step(self) -> bool:
        if self._host.now() >= self._look_at:
            self._look_at = self._host.now() + EVERY_S
            self._begin()
            self._look()
            self._publish()
        if self._turn:
            task = self._turn.popleft()
            stores = self._standbys[task].changelogs.values()
            self._restores.add(task, stores, self._standbys[task].database, {})
        else:
            self._restores.step()
        for task in self._restores.finished():
            self._standbys[task].busy = False
            self._standbys[task].renewed_at = self._host.now()
            if task in self._warming and not self._standbys[task].ready:
                # What was written during this round is less than during the one before.
                self._look_at = self._host.now()
        return bool(self._turn) or self._restores.progressed

    def _begin(self) -> None:
        """Open the databases of new standbys."""
        for task in self._wanted:
            if task not in self._standbys:
                stores = self._databases.subtopology(task).stores
                self._standbys[task] = _Standby(
                    self._databases.enter(task),
                    {
                        TopicPartition(self._changelog(spec), task.partition): spec
                        for spec in stores
                        if has_standby(spec)
                    },
                    ready=any(
                        known.conflicts(task) and known.key_range.covers(task.key_range)
                        for known in self._were_ready
                    ),
                )
        self._were_ready.clear()

    def _look(self) -> None:
        """Measure the lags, and have those standbys restored whose changelogs were
        written to.
        """
        changelogs = {at for one in self._standbys.values() for at in one.changelogs}
        asked_ms = self._host.wall_ms()  # before the ends: records may come meanwhile
        ends = self._log.end_offsets(sorted(changelogs)) if changelogs else {}
        now = self._host.now()
        for task, standby in self._standbys.items():
            groups = groups_of(task.key_range)
            standby.lags = {
                spec.name: _lag(
                    standby.database.checkpoints(spec.name).offset(groups) or 0,
                    ends[at],
                )
                for at, spec in standby.changelogs.items()
            }
            for store, lag in standby.lags.items():
                self._metrics.standby_lag(task, store, lag)
            standby.measured(
                self._acceptable,
                warming=task in self._warming,
                downloading=bool(self._restores.downloading(task)),
            )
            standby.true_ms = (
                _true_ms(standby, groups) if any(standby.lags.values()) else asked_ms
            )
            renewed = standby.renewed_at
            due = renewed is None or now - renewed > RENEWED_S
            if not standby.busy and (due or any(standby.lags.values())):
                standby.busy = True
                self._turn.append(task)

    def _end(self, task: TaskId) -> None:
        """End a standby: nothing of it writes to the database any more."""
        del self._standbys[task]
        if task in self._turn:
            self._turn.remove(task)
        self._cancel(task)
        self._databases.leave(task)
        self._metrics.standby_ended(task)

    def _cancel(self, task: TaskId) -> None:
        if self._clients is not None:
            self._restores.cancel(task)

    def _rest(self, error: Exception) -> None:
        """Begin again after a pause, with what the databases have."""
        if str(error) != self._said:
            self._said = str(error)
            log.warning(
                "standbys: %s; they go on in %g s, and the tasks of this process at once",
                error,
                REST_S,
            )
        self._turn.clear()
        lasting = not (isinstance(error, LogError) and error.retryable)
        for task, standby in self._standbys.items():
            self._cancel(task)
            standby.busy = False
            if lasting and task in self._warming:
                # As a task it shows the error; as a warm-up it would keep others waiting.
                standby.no_nearer += int(REST_S / EVERY_S)
                standby.ready = standby.ready or standby.no_nearer >= PATIENCE
        self._look_at = self._host.now() + REST_S
        self._publish()

    def _publish(self) -> None:
        before = self.figures
        warming = len(self._warming & self._standbys.keys())
        self._metrics.standbys(len(self._standbys) - warming, warming)
        self.figures = {
            task: StandbyFigures(
                standby.lags,
                task in self._warming,
                standby.ready,
                self._eta_s(task, standby),
                standby.true_ms,
            )
            for task, standby in self._standbys.items()
        }
        if any(
            each.warming and each.ready and not (task in before and before[task].ready)
            for task, each in self.figures.items()
        ):
            log.info("warm-ups are ready, and their tasks may move here")
            self._caught_up()

    def _eta_s(self, task: TaskId, standby: _Standby) -> float | None:
        """Return the expected time until a standby is at the end; None: not known."""
        if not standby.busy or self._clients is None:
            return None if any(standby.lags.values()) or not standby.lags else 0.0
        to_go = [store.eta_s for store in self._restores.progress(task)]
        to_go += [store.eta_s for store in self._restores.downloading(task)]
        known = [eta_s for eta_s in to_go if eta_s is not None]
        return max(known) if known and len(known) == len(to_go) else None


def _lag(offset: int, end: int) -> int:
    """Return the changelog records behind a checkpoint.

    A checkpoint above the end is of a topic that was made anew since, or of records that
    a broker has lost: nothing of it counts, and the next restore has to find that.
    """
    return end - offset if offset <= end else max(1, end)


def _true_ms(standby: _Standby, groups: KeyGroups) -> int:
    """Return when all rows of a standby were last known to equal their changelogs."""
    return min(
        (
            run.true_ms
            for spec in standby.changelogs.values()
            for run in standby.database.checkpoints(spec.name).within(groups)
        ),
        default=NEVER_TRUE,
    )


def has_standby(spec: StoreSpec) -> bool:
    """Return whether a store can have standbys: it has a changelog of its own."""
    return spec.logged and spec.source is None


def can_stand_by(subtopologies: Iterable[SubTopology]) -> tuple[int, ...]:
    """Return the numbers of the sub-topologies with a store that can have standbys."""
    return tuple(
        part.id
        for part in subtopologies
        if any(has_standby(spec) for spec in part.stores)
    )
