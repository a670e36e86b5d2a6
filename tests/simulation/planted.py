"""Planted bugs: each oracle must find some.

A bug replaces a function of ours, which must still be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from coopstreams.calling.lanes import Lane
from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.hidden_commits import AboveTail
from coopstreams.commit.inflight import InFlight
from coopstreams.commit.progress import Progress
from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from coopstreams.group import partition_leader
from coopstreams.group.active_version import Members, assign_active
from coopstreams.group.members import Assignment
from coopstreams.group.partition_leader import BrokerView, Choice
from coopstreams.instance import components
from coopstreams.instance.instance import Instance
from coopstreams.instance.purge import Membership
from coopstreams.instance.serving import Serving
from coopstreams.instance.watcher import Watcher
from coopstreams.opening.changelog_topics import Changelogs
from coopstreams.opening.restores import Restores
from coopstreams.query import local_reads
from coopstreams.query.backend import NotOpen, OpenView
from coopstreams.query.router import Here, Route, There, route
from coopstreams.state import layout, published_snapshot
from coopstreams.state.manifest import File, StoreSlices
from coopstreams.state.restore import Bounds
from coopstreams.state.snapshot import FetchedFile
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.committer import Committer
from coopstreams.tasks.events import Cancelled
from coopstreams.tasks.pending_calls import NodeCall, PendingCalls, Turns
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.topology.errors import SnapshotError
from tests.simulation import planted_consumers as consumers
from tests.simulation import planted_members as members
from tests.simulation import planted_snapshots as snapshots
from tests.simulation import planted_standbys as standbys
from tests.simulation import planted_times as times
from tests.simulation import queries, shelf
from tests.simulation import world as worlds
from tests.simulation.fibers import Machine
from tests.simulation.hosts import Hosts
from tests.simulation.settings import RESET, WHILE_SUSPENDED, drawn_settings
from tests.simulation.shelf import Shelf
from tests.simulation.upkeep import Upkeep
from tests.simulation.world import World


@contextmanager
def _both(*bugs: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for bug in bugs:
            stack.enter_context(bug)
        yield


def _no_barrier() -> AbstractContextManager[Any]:
    """Tasks open with the group's commits that happen to be known."""
    return patch.object(Barrier, "passed", lambda _, waiting: list(waiting))


def _stale_barrier() -> AbstractContextManager[Any]:
    """The end of the commit topic comes from a broker with an outdated view."""
    return patch.object(Follower, "barrier", lambda self: self.tail)


def _beyond_all_that_is_open() -> AbstractContextManager[Any]:
    """A barrier is passed although records of the group are behind an open transaction."""
    look = AboveTail.look

    def all_clear(self: AboveTail, tail: int, barrier: int) -> int:
        look(self, tail, barrier)
        return self._at

    return patch.object(AboveTail, "look", all_clear)


def _leader_of_before() -> AbstractContextManager[Any]:
    """A broker that claims to be the leader is believed."""

    def first(answers: Mapping[int, BrokerView | None], _: int) -> Choice | None:
        leaders = [
            view
            for broker, view in answers.items()
            if view is not None and view.leader == broker
        ]
        return min(
            (Choice(view.leader, view.epoch) for view in leaders),
            key=lambda choice: choice.epoch,
            default=None,
        )

    return patch.object(partition_leader, "choose", first)


def _short_restore() -> AbstractContextManager[Any]:
    """A restore ends before the last rows of its changelog."""
    whole = Changelogs.all_bounds

    def short(self: Changelogs, changelogs: Any) -> Any:
        found = whole(self, changelogs)
        return {
            at: replace(bounds, target=max(bounds.log_start, bounds.target - 3))
            for at, bounds in found.items()
        }

    return patch.object(Changelogs, "all_bounds", short)


def _gaps_are_done() -> AbstractContextManager[Any]:
    """A task whose records are one line commits the gaps between those that wait as
    done.
    """
    begin = InFlight.__init__

    def in_any_order(self: InFlight, *given: Any, **_: Any) -> None:
        begin(self, *given)

    return patch.object(InFlight, "__init__", in_any_order)


def _unproven() -> AbstractContextManager[Any]:
    """A table is restored from a topic that was compacted ahead of its task."""
    return patch.object(Restores, "_checking", lambda *_: None)


def _done_again() -> AbstractContextManager[Any]:
    """A task repeats what an earlier owner of part of its range has done."""
    return patch.object(Progress, "unseen", lambda _, __, columns: columns)


def _early_database() -> AbstractContextManager[Any]:
    """The database has records before they are durable in the log. The databases are
    checked often.
    """
    write = Committer._write

    def early(self: Committer, tasks: Any) -> Any:
        written = write(self, tasks)
        for task in tasks:
            TaskState.commit(task.state, {}, {}, 0)
        return written

    return _both(
        patch.object(worlds, "STATES", 1),
        patch.object(Committer, "_write", early),
    )


def _told_in_state_only() -> AbstractContextManager[Any]:
    """Under at-least-once, too, changelogs are flushed together with their results."""
    write = Committer._write

    def together(self: Committer, tasks: Any) -> Any:
        guarantee, self._transactional = self._transactional, True
        try:
            return write(self, tasks)
        finally:
            self._transactional = guarantee

    return patch.object(Committer, "_write", together)


def _only_who_moved() -> AbstractContextManager[Any]:
    """A commit leaves out tasks that have written without taking a record."""

    def moved(self: Committer, tasks: Any) -> list[Any]:
        return [
            task
            for task in tasks
            if task.progress.moved or task.progress.mirror_due(self._follower)
        ]

    return patch.object(Committer, "_due", moved)


def _silent_opener() -> AbstractContextManager[Any]:
    """Cancelled openings are forgotten without an event."""
    handle = Instance._handle
    return patch.object(
        Instance,
        "_handle",
        lambda self, event: (
            None if isinstance(event, Cancelled) else handle(self, event)
        ),
    )


def _one_version() -> AbstractContextManager[Any]:
    """Members do not announce their version of the topology: the leader assumes one for
    all. Versions change often.
    """

    def assign(members: Members, **asked: int) -> dict[str, Assignment]:
        one = next(iter(members.values())).info.topology
        alike = {
            id_: replace(state, info=replace(state.info, topology=one))
            for id_, state in members.items()
        }
        return assign_active(alike, **asked)

    return _both(
        _events("produce", "produce", "start", "start", "stop", "host", "rest"),
        patch.object(Hosts, "happen", _version_changes),
        patch.object(components, "assign_active", assign),
    )


def _unreadable_skipped() -> AbstractContextManager[Any]:
    """Records fetched together with an unreadable one are lost."""

    def poll(self: Follower, timeout_s: float) -> bool:
        before = self._tail
        for batch in self._reader.fetch(2000, timeout_s):
            for key, value in zip(
                batch.columns.keys, batch.columns.values, strict=True
            ):
                if key is not None:
                    self._view.apply(key, value)
            self._tail = max(self._tail, batch.next_offset)
        return self._tail > before

    return patch.object(Follower, "poll", poll)


def _ranges_change(self: Hosts, *_: Any) -> None:
    """Who begins from now on cuts partitions, or no longer does."""
    self.ranges = 1 if self.ranges > 1 else 4
    self._say(f"who begins from now on has {self.ranges} ranges")


def _version_changes(self: Hosts, *_: Any) -> None:
    """Who begins from now on runs the other version."""
    self.newer = not self.newer
    self._say("who begins from now on runs the other version")


def _disk_is_lost(self: Hosts, _: object, down: Sequence[int]) -> None:
    """A process that ended has lost its disk."""
    if down:
        self._lose(self._random.choice(down))


def _events(*events: str) -> AbstractContextManager[Any]:
    """The only events are these."""
    return patch.object(World, "events_that_happen", events)


def _only_alone(event: str) -> AbstractContextManager[Any]:
    """The only event of topics while no process runs is this one."""
    happen = Upkeep.happen_alone

    def happens(self: Upkeep) -> None:
        with patch.object(self, "_random", SimpleNamespace(choice=lambda _: event)):
            happen(self)

    return patch.object(Upkeep, "happen_alone", happens)


def _back_to_life() -> AbstractContextManager[Any]:
    """A task of a whole partition writes only its plain offset beside older commits of
    ranges: if it expires, they count again. Offsets expire and ranges change often.
    """
    records = Progress.records

    def plain_only(
        self: Progress, *given: Any, claim: bool = False, **options: Any
    ) -> Any:
        if self.key_range.is_whole and not claim:
            for source in self._sources.values():
                source.claim = False
        return records(self, *given, claim=claim, **options)

    return _both(
        _events("produce", "produce", "start", "outage", "outage", "host", "rest"),
        patch.object(Hosts, "happen", _ranges_change),
        _only_alone("expired"),
        patch.object(Progress, "records", plain_only),
    )


def _any_changelog() -> AbstractContextManager[Any]:
    """A restore continues from a checkpoint in any topic with the name of its
    changelog.
    """
    refusal = Bounds.refusal
    return patch.object(
        Bounds,
        "refusal",
        lambda self, at: refusal(self, replace(at, topic_id=self.topic_id)),
    )


def _always_sure() -> AbstractContextManager[Any]:
    """A paused process that resumes answers queries before the group has answered it."""
    return patch.object(
        Serving,
        "owns",
        lambda self, task: self._instance.standing.tasks.get(task.id) is task,
    )


def _all_at_once() -> AbstractContextManager[Any]:
    """No call waits for another one of its key."""
    return patch.object(Lane, "_chain", lambda *_: None)


def _no_lines() -> AbstractContextManager[Any]:
    """A record is ready when its own calls have ended, regardless of earlier records."""
    line_up = PendingCalls._line_up
    return patch.object(
        PendingCalls, "_line_up", lambda self, record, _: line_up(self, record, None)
    )


def _called_again() -> AbstractContextManager[Any]:
    """A task calls and processes again what an earlier owner has done above the
    position.
    """

    def everything(
        self: InFlight, keys: Sequence[bytes | None], offsets: Sequence[int], end: int
    ) -> list[int]:
        fresh = hand_out(self, keys, offsets, end)
        return list(range(len(offsets))) if offsets else fresh

    hand_out = InFlight.hand_out
    return patch.object(InFlight, "hand_out", everything)


def _rows_of_before() -> AbstractContextManager[Any]:
    """A call gets the rows as of the arrival of its record, without the changes of
    earlier calls of its key.
    """
    add = Turns.add

    def early(self: Turns, calls: Sequence[NodeCall]) -> NodeCall | None:
        begun, key = add(self, calls), calls[0].key
        assert key is not None
        for name in self._nodes[calls[0].node].store_names:
            entry = self._stores[name].load(key)
            self._of_keys[key][-1].rows[name] = entry.value, entry.timestamp
        return begun

    return patch.object(Turns, "add", early)


_OF_DISKS = ("produce", "produce", "produce", "start", "kill", "host", "rest")


def _any_slice() -> AbstractContextManager[Any]:
    """Slices of snapshots are used with any changelog of the name. Every history has
    snapshots; changelogs are made anew and disks are lost often.
    """
    choose = published_snapshot.choose

    def chosen(
        store: StoreSlices, partition: int, groups: Sequence[int], bounds: Bounds
    ) -> Any:
        taken, refusal = choose(
            replace(store, topic_id=bounds.topic_id), partition, groups, bounds
        )
        return taken, refusal

    return _both(
        _events(*_OF_DISKS, "outage"),
        patch.object(Hosts, "happen", _disk_is_lost),
        _only_alone("anew"),
        patch.object(worlds, "SHELVES", 1.0),
        patch.multiple(published_snapshot, choose=chosen, misfit=lambda *_: ""),
    )


def _slice_of_the_end() -> AbstractContextManager[Any]:
    """A slice claims the current end of its changelog."""
    choose = published_snapshot.choose

    def chosen(
        store: StoreSlices, partition: int, groups: Sequence[int], bounds: Bounds
    ) -> Any:
        taken, refusal = choose(store, partition, groups, bounds)
        return [replace(each, offset=bounds.target) for each in taken], refusal

    return patch.object(published_snapshot, "choose", chosen)


def _unchecked_file() -> AbstractContextManager[Any]:
    """The files of a snapshot are not checked. Every history has snapshots; files are
    damaged and disks are lost often, and the databases are checked often.
    """

    def fetched(
        storage: Any, application: str, file: File, folder: Path, heard: Any
    ) -> FetchedFile:
        path = folder / f"{file.sha256}.sst"
        if not storage.download(f"{application}/{file.name}", path, heard):
            raise SnapshotError("it is missing")
        return FetchedFile(file, path)

    return _both(
        _events(*_OF_DISKS),
        patch.object(Hosts, "happen", _disk_is_lost),
        patch.multiple(worlds, SHELVES=1.0, STATES=1),
        patch.object(shelf, "EVERY_S", 5.0),
        patch.object(Shelf, "_publish_another", Shelf._spoil),
        patch.object(published_snapshot, "fetch", fetched),
    )


def _found_before() -> AbstractContextManager[Any]:
    """An answer counts although the key moved during the read; reads are frequent and
    slow, so that it happens.
    """
    return _both(
        patch.object(local_reads.Views, "lost", lambda _: ""),
        patch.multiple(queries, EVERY_S=0.3, READ_S=2.0),
    )


def _unstored() -> AbstractContextManager[Any]:
    """The database loses the rows of some keys; the changelog has them."""
    commit = TaskState.commit

    def without(self: TaskState, *given: Any, **options: Any) -> None:
        for table in self._tables.values():
            for number, change in enumerate(table.frozen):
                kept = [
                    i for i, key in enumerate(change.keys) if not key.endswith(b"3")
                ]
                table.frozen[number] = replace(
                    change,
                    keys=[change.keys[i] for i in kept],
                    values=[change.values[i] for i in kept],
                )
        commit(self, *given, **options)

    return patch.object(TaskState, "commit", without)


@contextmanager
def _any_range() -> Iterator[None]:
    """Any range of the partition answers for a key."""

    def here(*given: Any) -> Route:
        found = route(*given)
        return Here(found.owner.task) if isinstance(found, There) else found

    def view(self: Serving, store: str, partition: int, _: int) -> OpenView | NotOpen:
        opened = (view for view in self.views(store) if not isinstance(view, NotOpen))
        none = NotOpen("it has none")
        return next((view for view in opened if view.task.partition == partition), none)

    with patch.object(local_reads, "route", here), patch.object(Serving, "view", view):
        yield


def _fragile() -> AbstractContextManager[Any]:
    """A stream thread does not handle a commit that fails because the group has a new
    generation.
    """

    def abort(_: StreamThread, error: Exception) -> None:
        raise error

    return patch.object(StreamThread, "_abort", abort)


def _no_turn() -> AbstractContextManager[Any]:
    """A task that has more records waits for a turn that never comes."""
    return patch.object(
        StreamThread,
        "_wait_for_turn",
        lambda self, task: self._in_turn.setdefault(task, 0),
    )


def _purged_whatever_it_is() -> AbstractContextManager[Any]:
    """A process that wakes deletes repartition records without asking whose topic it
    is, and whether it is a member. Every application is reset often; then a process
    wakes that has much to delete, and its main thread last.
    """
    resume = Machine.resume

    def sleepily(self: Machine) -> None:
        for fiber in self.fibers:
            if fiber.name == "main" and fiber.is_alive():
                self.scheduler.stall(fiber, 3.0)
        resume(self)

    with_resets = {
        RESET: WHILE_SUSPENDED,
        "repartition.purge.interval.ms": 30_000,
        "commit.interval.ms": 5_000,
    }
    return _both(
        _events("produce", "rest", "outage", "kill", "start"),
        patch.multiple(
            worlds,
            drawn_settings=lambda *given: {**drawn_settings(*given), **with_resets},
            AWAKE_S=(5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
        ),
        patch.object(Machine, "resume", sleepily),
        patch.object(Membership, "may_delete", lambda *_: None),
    )


def _open_windows_purged() -> AbstractContextManager[Any]:
    """Windows are deleted from their changelogs as soon as they begin."""
    return patch.object(layout, "horizon_at", lambda _, stream_time: stream_time)


def _restless() -> AbstractContextManager[Any]:
    """The watcher does not pause between two looks."""

    def look_at_once(self: Watcher) -> None:
        while not self._stop.wait(0.0):
            pass

    return patch.object(Watcher, "_run", look_at_once)


class Planted(NamedTuple):
    """A bug, and the program that finds it. `seed`: one of the next `WITHIN` histories
    finds it; None: one of hundreds does, or of many thousands (`once`).
    """

    put_in: Callable[[], AbstractContextManager[Any]]
    seed: int | None
    program: str
    guarantee: str = EXACTLY_ONCE
    oracle: str = ""
    """The oracle that finds the bug (`oracles.ORACLES`)."""
    once: str = ""
    """The commit and the seed that have found it, where nobody can wait for it: seeds
    are others after most changes.
    """


PLANTED: dict[str, Planted] = {
    "no barrier": Planted(_no_barrier, None, "a count behind a repartition"),
    "a stale barrier": Planted(_stale_barrier, None, "a join of streams"),
    "beyond all that is open": Planted(
        _beyond_all_that_is_open, 95, "a count", oracle="results"
    ),
    "a leader of before": Planted(
        _leader_of_before, 15, "a join of streams", oracle="answers"
    ),
    "any epoch commits": Planted(members.any_epoch, 0, "a count", oracle="results"),
    "a restore that ends early": Planted(
        _short_restore, 1, "a count", oracle="answers"
    ),
    "what was done is done again": Planted(
        _done_again, 25, "windows that close", oracle="results"
    ),
    "time of its own": Planted(times.own_time, None, "windows that close"),
    "revoked is released": Planted(
        members.given_away, None, "a count", oracle="results", once="b58c667a, 201"
    ),
    "what is kept without an answer": Planted(
        members.kept_without_answer,
        None,
        "consumers",
        AT_LEAST_ONCE,
        oracle="owners",
        once="829df63, 184",
    ),
    "rows of who still closes": Planted(
        members.rows_of_who_closes,
        None,
        "calls before sessions",
        oracle="answers",
        once="713ffa6, 178",
    ),
    "the database before the log": Planted(
        _early_database, 0, "a join with a table", oracle="rows"
    ),
    "results beside changelogs": Planted(
        _told_in_state_only, None, "windows that close", AT_LEAST_ONCE
    ),
    "a commit without who did not move": Planted(
        _only_who_moved, 0, "values that are held until punctuations", oracle="results"
    ),
    "a cancel that nobody hears": Planted(
        _silent_opener, 23, "a table", oracle="progress"
    ),
    "whoever wakes is sure": Planted(
        _always_sure, 76, "a join with a table", oracle="answers"
    ),
    "a place that is taken from a writer": Planted(
        members.no_wait_for_the_removal, 14, "a count", AT_LEAST_ONCE, oracle="progress"
    ),
    "an error of before counts": Planted(
        members.hasty, 76, "a table counted by groups", AT_LEAST_ONCE, oracle="errors"
    ),
    "one version for all": Planted(
        _one_version, 0, "a count behind a repartition", oracle="errors"
    ),
    "beside an unreadable record": Planted(
        _unreadable_skipped, 0, "a count", oracle="progress"
    ),
    "commits come back to life": Planted(_back_to_life, 0, "a table", oracle="results"),
    "a checkpoint of any changelog": Planted(
        _any_changelog, 15, "a join of streams", oracle="answers"
    ),
    "a hunt of before": Planted(
        members.hunt_of_before, 105, "a count", oracle="members"
    ),
    "a hunt of everybody": Planted(members.hunt_of_all, 7, "a count", oracle="members"),
    "a table without the rows that were compacted": Planted(
        _unproven, 6, "a table counted by groups", oracle="progress"
    ),
    "gaps between those that wait are done": Planted(
        _gaps_are_done, 4, "calls before a join with a table", oracle="errors"
    ),
    "calls of a key at once": Planted(
        _all_at_once, 0, "calls before a table", oracle="calls"
    ),
    "a record passes its key": Planted(
        _no_lines, 0, "calls before a table", oracle="results"
    ),
    "what has passed is called again": Planted(
        _called_again, 2, "calls before a table", oracle="results"
    ),
    "rows of who was ahead": Planted(
        times.newest_of_all_rows, 1_000_011, "a left join of streams", oracle="progress"
    ),
    "windows that others have closed": Planted(
        times.closed_by_others,
        1_000_011,
        "windows that are emitted at their close",
        oracle="progress",
    ),
    "windows that begin with the partition": Planted(
        times.begun_with_the_partition,
        None,
        "filtered sliding windows that are emitted at their close",
        oracle="progress",
        once="e7c279b, 42003206",
    ),
    "windows that expire beside others": Planted(
        times.observed_by_restored,
        None,
        "filtered windows that are emitted at their close",
        oracle="progress",
        once="7ba0ec5, 50056099",
    ),
    "windows that a snapshot lacks": Planted(
        times.expired_in_a_snapshot,
        None,
        "merged windows that are emitted at their close",
        AT_LEAST_ONCE,
        oracle="progress",
        once="f0b4a20c, 150",
    ),
    "operator times that nobody keeps": Planted(
        times.no_operator_times,
        6,
        "filtered windows that are emitted at their close",
        oracle="results",
    ),
    "a program behind its commit": Planted(
        times.behind_its_commit,
        30,
        "calls before windows that are emitted at their close",
        oracle="results",
    ),
    "one time for all owners": Planted(
        times.one_for_all_owners,
        None,
        "windows that are emitted at their close",
        AT_LEAST_ONCE,
        oracle="progress",
        once="b58c667a, 303",
    ),
    "a gate of siblings": Planted(
        times.gate_of_siblings,
        43,
        "a left join of streams",
        AT_LEAST_ONCE,
        oracle="progress",
    ),
    "a position behind siblings": Planted(
        times.behind_siblings,
        None,
        "calls before merged windows that are emitted at their close",
        oracle="progress",
        once="713ffa6, 40073364",
    ),
    "a position of who waits": Planted(
        times.at_who_waits,
        None,
        "calls before windows that are emitted at their close",
        oracle="progress",
        once="b58c667a, 24",
    ),
    "a search of siblings": Planted(
        times.search_of_siblings,
        None,
        "an outer join of a filtered stream",
        oracle="progress",
        once="1c26f02, 40058404",
    ),
    "a purge of before": Planted(
        _purged_whatever_it_is, 121, "a count behind a repartition", oracle="errors"
    ),
    "open windows are purged": Planted(
        _open_windows_purged, 4, "windows", oracle="answers"
    ),
    "rows of before": Planted(
        _rows_of_before, 0, "calls that keep state", oracle="results"
    ),
    "a slice of any changelog": Planted(_any_slice, 0, "a count", oracle="results"),
    "a slice of the end": Planted(_slice_of_the_end, 7, "a count", oracle="answers"),
    "a file that nobody checks": Planted(_unchecked_file, 0, "a count", oracle="rows"),
    "an answer of who has given away": Planted(
        _found_before, 1, "a count", oracle="queries"
    ),
    "a row that is not stored": Planted(
        _unstored, 0, "a join with a table", oracle="stores"
    ),
    "a standby of uncommitted rows": Planted(
        standbys.uncommitted_rows, 0, "a count", oracle="rows"
    ),
    "a standby of the end": Planted(
        standbys.checkpoint_of_the_end, 0, "a count", oracle="results"
    ),
    "a move before its warm-up": Planted(
        standbys.early_moves, 0, "a count", oracle="moves"
    ),
    "a move that waits for the dead": Planted(
        standbys.moves_of_the_dead, 0, "a count", oracle="progress"
    ),
    "a snapshot of uncommitted rows": Planted(
        snapshots.uncommitted_rows, 106, "a count", oracle="results"
    ),
    "two publishers mixed": Planted(
        snapshots.mixed_publishers, 0, "a count", oracle="answers"
    ),
    "any range of the partition": Planted(_any_range, 2, "windows", oracle="queries"),
    "a thread that dies of a lost group": Planted(
        _fragile, 4, "a count", oracle="errors"
    ),
    "a turn that never comes": Planted(_no_turn, 10, "a count", oracle="progress"),
    "a watcher that never rests": Planted(_restless, 0, "a count", oracle="turns"),
    "times of the reader alone": Planted(
        times.times_of_the_reader, 94, "calls before windows", oracle="results"
    ),
    "the newest mark": Planted(
        times.newest_mark,
        0,
        "late windows behind a repartition",
        oracle="progress",
    ),
    "late by arrival": Planted(
        times.late_by_arrival,
        0,
        "late windows behind a repartition",
        oracle="progress",
    ),
    "silence by the reader's clock": Planted(
        times.silent_to_the_reader,
        10,
        "late windows behind a repartition",
        oracle="results",
    ),
    "a mark of what waits": Planted(
        times.marks_of_what_waits,
        8,
        "late windows behind a repartition",
        oracle="births",
    ),
    "a mark beside its commit": Planted(
        times.marks_beside_their_commit,
        0,
        "late windows behind a repartition",
        oracle="births",
    ),
    "marks of news only": Planted(
        times.marks_of_news_only,
        0,
        "windows behind a repartition that are emitted in silence",
        oracle="progress",
    ),
    "what is ahead, again": Planted(
        times.ahead_again, 0, "sessions behind a repartition", oracle="results"
    ),
    "beyond what waits": Planted(
        times.beyond_what_waits, 0, "sessions behind a repartition", oracle="progress"
    ),
    "before the clock": Planted(
        times.before_the_clock, 0, "sessions behind a repartition", oracle="results"
    ),
    "a user's topic beside the order": Planted(
        times.beside_the_order,
        4,
        "a left join of a stream behind a repartition with one that is not",
        oracle="results",
    ),
    "a user's topic where it was read": Planted(
        times.where_it_was_read,
        6,
        "a left join of a stream behind a repartition with one that is not",
        AT_LEAST_ONCE,
        oracle="progress",
    ),
    "silence without those beside it": Planted(
        times.silent_beside_others,
        0,
        "merged windows beside a repartition that are emitted in silence",
        oracle="progress",
    ),
    "the time of the lowest position": Planted(
        times.time_of_the_lowest,
        None,
        "a left join of streams behind two repartitions",
        AT_LEAST_ONCE,
        oracle="progress",
        once="3399c042, 15",
    ),
    "a promise over waiting records": Planted(
        times.promised_over_waiting_records,
        3,
        "merged windows behind a repartition that are emitted in silence",
        oracle="results",
    ),
    "done before, and handed out": Planted(
        consumers.done_before, 3, "consumers", AT_LEAST_ONCE, oracle="again"
    ),
    "no way back": Planted(
        consumers.no_way_back, 2, "consumers", AT_LEAST_ONCE, oracle="order"
    ),
    "what is held is passed": Planted(
        consumers.what_is_held_is_passed, 8, "consumers", oracle="progress"
    ),
    "no fence": Planted(
        consumers.no_fence, 1, "consumers", AT_LEAST_ONCE, oracle="owners"
    ),
    "results without progress": Planted(
        consumers.results_first, 0, "consumers", oracle="results"
    ),
    "progress without results": Planted(
        consumers.commit_beside, 45, "consumers", oracle="progress"
    ),
    "an abort that keeps": Planted(
        consumers.abort_that_keeps, 0, "consumers", oracle="progress"
    ),
    "positions of any topic": Planted(
        consumers.positions_of_any_topic, 5, "consumers", oracle="order"
    ),
    "a topic that nobody looks at": Planted(
        consumers.nobody_looks, 13, "consumers", oracle="errors"
    ),
}
"""The planted bugs by name."""
WITHIN = 30
"""A change of the product changes the schedule, and so the history, of a seed. So one
of this many seeds must find the bug.
"""
