"""Warm-ups in the assignment: what has many rows moves when its next owner has caught up,
and nothing waits for a process that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.group.active_version import assign_active
from coopstreams.group.assignor import assign
from coopstreams.group.claims import claims_of, task_partition_of
from coopstreams.group.holdings import Holdings
from coopstreams.group.members import (
    Assignment,
    MemberInfo,
    MemberState,
    Runs,
    TaskPartition,
    Warmth,
)
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

Given = Mapping[str, Assignment]


class Group:
    """Members whose tasks have many rows, as the leader sees them."""

    def __init__(
        self,
        partitions: Mapping[int, int],
        *,
        ranges: int = 1,
        limit: int = 2,
        replicas: int = 0,
    ) -> None:
        self._partitions = partitions
        self._ranges = ranges
        self._limit = limit
        self._replicas = replicas
        self._generation = 1
        self.members: dict[str, MemberState] = {}
        self.given: Given = {}

    def join(self, *ids: str, threads: int = 1) -> None:
        for id_ in ids:
            info = MemberInfo(id_, threads=threads)
            self.members[id_] = MemberState(info, warmth=Warmth())

    def die(self, id_: str) -> None:
        del self.members[id_]

    def leave(self, id_: str) -> None:
        state = self.members[id_]
        self.members[id_] = replace(state, info=replace(state.info, leaving=True))

    def rebalance(self) -> Given:
        """Give all members their assignments. What is revoked stays held until
        `release`.
        """
        self._generation += 1
        self.given = assign(
            self._partitions,
            self.members,
            ranges=self._ranges,
            replicas=self._replicas,
            replicated=tuple(self._partitions),
            warmups=self._limit,
        )
        before = dict(self.members)
        for id_, mine in self.given.items():
            tasks = tuple(sorted({*mine.tasks, *before[id_].tasks}))
            self.members[id_] = replace(
                before[id_],
                tasks=tasks,
                target=mine.target,
                standbys=mine.standbys,
                generation=self._generation,
                warmth=self._warmth(id_, tasks, mine.standbys),
            )
        return self.given

    def release(self) -> None:
        """Have all members release what was revoked."""
        for id_, mine in self.given.items():
            if id_ in self.members:
                self.members[id_] = replace(
                    self.members[id_],
                    tasks=mine.tasks,
                    warmth=self._warmth(id_, mine.tasks, mine.standbys),
                )

    def catch_up(self, id_: str, tasks: Iterable[TaskId] | None = None) -> None:
        """Have a member say that it is ready to take tasks; None: all its standbys."""
        state = self.members[id_]
        ready = {*self.warmth(id_).ready, *(state.standbys if tasks is None else tasks)}
        warmth = replace(self.warmth(id_), ready=tuple(sorted(ready)))
        self.members[id_] = replace(state, warmth=warmth)

    def settle(self, *, warm: bool = True) -> Given:
        """Rebalance until nothing changes; `warm`: all warm-ups catch up."""
        for _ in range(100):
            before = dict(self.members)
            self.rebalance()
            self.release()
            if warm:
                for id_ in self.members:
                    self.catch_up(id_)
            now = {id_: replace(m, generation=0) for id_, m in self.members.items()}
            if now == {id_: replace(m, generation=0) for id_, m in before.items()}:
                return self.given
        raise AssertionError("tasks do not come to rest")

    def warmth(self, id_: str) -> Warmth:
        known = self.members[id_].warmth
        assert known is not None
        return known

    def warmups(self, id_: str) -> list[TaskId]:
        """Return the standbys of a member of what it is to get."""
        given = self.given[id_]
        return [
            standby
            for standby in given.standbys
            if any(standby.conflicts(task) for task in given.target)
        ]

    def _warmth(
        self,
        id_: str,
        tasks: tuple[TaskId, ...],
        standbys: Iterable[TaskId],
    ) -> Warmth | None:
        """Return what a member says of its rows: parts of what was ready are ready."""
        before = self.members[id_].warmth
        if before is None:
            return None
        ready = tuple(
            replace(task, key_range=both)
            for task in standbys
            for old in before.ready
            if task_partition_of(old) == task_partition_of(task)
            and (both := old.key_range.intersect(task.key_range)) is not None
        )
        return replace(before, heavy=tasks, ready=ready)


def owner(given_: Given, task: TaskId) -> str:
    (found,) = [id_ for id_, each in given_.items() if task in each.tasks]
    return found


def moving(given_: Given) -> list[tuple[str, TaskId]]:
    """Return what members are to get and do not have."""
    return [
        (id_, task)
        for id_, each in given_.items()
        for task in each.target
        if task not in each.tasks
    ]


def two_and_a_third(**settings_: int) -> Group:
    """Two members with all tasks, and a third that has just come."""
    group = Group({0: 6}, **settings_)
    group.join("a", "b")
    group.settle()
    group.join("c")
    return group


def test_a_task_stays_with_its_owner_until_the_next_one_is_ready() -> None:
    group = two_and_a_third()
    before = dict(group.given)
    given_ = group.rebalance()
    assert {id_: given_[id_].tasks for id_ in "ab"} == {
        id_: before[id_].tasks for id_ in "ab"
    }
    assert not given_["c"].tasks
    first, second = given_["c"].target
    assert set(group.warmups("c")) == {first, second}
    assert all(each.settled for each in given_.values()), "nobody waits for a release"
    group.catch_up("c", [first])
    given_ = group.rebalance()
    assert first not in {task for id_ in "ab" for task in given_[id_].tasks}
    assert not given_["a"].settled
    group.release()
    given_ = group.rebalance()
    assert owner(given_, first) == "c"
    assert owner(given_, second) in "ab"
    group.catch_up("c", [second])
    group.rebalance()
    group.release()
    assert owner(group.rebalance(), second) == "c"
    assert not group.warmups("c")


def test_only_so_many_are_warmed_up_at_a_time_and_those_that_have_begun_go_on() -> None:
    group = two_and_a_third(limit=1)
    given_ = group.rebalance()
    (begun,) = group.warmups("c")
    assert group.rebalance()["c"].standbys == (begun,)
    group.catch_up("c")
    group.rebalance()
    (next_,) = {*given_["c"].target} - {begun}
    assert set(group.warmups("c")) == {begun, next_}, "a place is free at once"


def test_what_has_few_rows_moves_at_once() -> None:
    group = two_and_a_third()
    for id_ in "ab":
        group.members[id_] = replace(group.members[id_], warmth=Warmth())
    given_ = group.rebalance()
    assert not group.warmups("c")
    assert not any(
        task in given_[id_].tasks for id_ in "ab" for task in given_["c"].target
    )


@pytest.mark.parametrize("old", ["a", "b", "c"])
def test_a_member_of_an_older_version_gets_no_warm_up_and_its_tasks_move_at_once(
    old: str,
) -> None:
    group = two_and_a_third()
    group.members[old] = replace(group.members[old], warmth=None)
    given_ = group.rebalance()
    held = {id_: group.members[id_].tasks for id_ in "ab"}
    for task in given_["c"].target:
        (had,) = [id_ for id_ in "ab" if task in held[id_]]
        assert (task in given_[had].tasks) is (old not in ("c", had))
    assert bool(group.warmups("c")) is (old != "c")


def test_a_sub_topology_without_logged_stores_moves_at_once() -> None:
    topology = (Runs("f", 2), Runs("g", 2))
    heavy = tuple(TaskId(sub, at, WHOLE) for sub in (0, 1) for at in (0, 1))
    infos = [
        MemberInfo(id_, topology=topology, stands_by=(0,)) for id_ in ("one", "other")
    ]
    members = {
        "one": MemberState(infos[0], heavy, 3, heavy, warmth=Warmth(heavy)),
        "other": MemberState(infos[1], warmth=Warmth()),
    }
    given_ = assign_active(members, warmups=2)
    kept = by_number(given_["one"].tasks)
    assert kept == {0: 2, 1: 1}
    assert [task.subtopology for task in given_["other"].standbys] == [0]


def by_number(tasks: Iterable[TaskId]) -> dict[int, int]:
    """Return the number of tasks of each sub-topology."""
    found: dict[int, int] = {}
    for task in tasks:
        found[task.subtopology] = found.get(task.subtopology, 0) + 1
    return found


def test_a_move_is_released_when_its_target_dies() -> None:
    group = two_and_a_third()
    group.rebalance()
    group.die("c")
    given_ = group.settle(warm=False)
    assert not moving(given_)
    assert not any(each.standbys for each in given_.values())


def test_what_a_dead_owner_had_is_free_at_once_though_nobody_has_caught_up() -> None:
    group = two_and_a_third()
    group.rebalance()
    lost = group.members["a"].tasks
    group.die("a")
    given_ = group.rebalance()
    assert all(owner(given_, task) in "bc" for task in lost)


def test_who_is_leaving_gives_its_tasks_up_at_once() -> None:
    group = two_and_a_third()
    group.settle()
    group.leave("a")
    given_ = group.rebalance()
    assert not given_["a"].tasks


def test_a_partition_is_cut_anew_once_when_all_its_parts_may_move() -> None:
    group = Group({0: 1}, limit=5)
    group.join("a", "b")
    group.settle()
    before = dict(group.given)
    group.join("c")
    given_ = group.rebalance()
    assert [given_[id_].tasks for id_ in "ab"] == [before[id_].tasks for id_ in "ab"]
    (middle,) = group.warmups("c")
    first, last = middle.key_range.groups
    for part in (KeyRange.of_groups(first, 127), KeyRange.of_groups(128, last)):
        assert [given_[id_].tasks for id_ in "ab"] == [
            before[id_].tasks for id_ in "ab"
        ]
        group.catch_up("c", [replace(middle, key_range=part)])
        given_ = group.rebalance()
    group.release()
    assert not moving(group.rebalance())


def test_of_several_standbys_the_freshest_takes_over() -> None:
    for fresh, stale in (("b", "c"), ("c", "b")):
        group = Group({0: 3}, replicas=2)
        group.join("a", "b", "c")
        group.settle()
        (lost,) = group.given["a"].target
        for id_, behind in ((fresh, 3), (stale, 14)):
            state = group.members[id_]
            lags = tuple((task, behind) for task in state.standbys)
            warmth = replace(group.warmth(id_), lags=lags)
            group.members[id_] = replace(state, warmth=warmth)
        group.die("a")
        assert owner(group.rebalance(), lost) == fresh


def test_a_warm_up_is_not_in_vain_when_another_process_comes() -> None:
    """What an owner gives up in a new balance is what others have prepared to take."""
    group = Group({0: 12}, limit=4)
    group.join("a")
    group.settle()
    group.join("b")
    group.rebalance()
    begun = {*group.warmups("b")}
    assert len(begun) == 4
    group.join("c")
    group.rebalance()
    assert {*group.warmups("b")} == begun


def claimed(group: Group, partition: TaskPartition) -> list[tuple[str, KeyRange]]:
    return [
        (id_, key_range)
        for id_, mine in claims_of(group.members).items()
        for key_range in mine.get(partition, ())
    ]


def check(before: Group, given_: Given, limit: int) -> None:
    """Check one assignment against what members had said before it."""
    granted = [
        (id_, task) for id_, each in given_.items() for task in sorted(each.tasks)
    ]
    target = [(id_, task) for id_, each in given_.items() for task in each.target]
    for partition in {task_partition_of(task) for _, task in target}:
        mine = [
            (id_, task.key_range)
            for id_, task in granted
            if task_partition_of(task) == partition
        ]
        held = claimed(before, partition)
        nobody = WHOLE.minus(key_range for _, key_range in (*mine, *held))
        assert not nobody, f"{nobody} of {partition} waits for nobody"
        for id_, key_range in held:
            if before.members[id_].info.leaving:
                continue
            taken = key_range.minus(each for other, each in mine if other == id_)
            for part in taken:
                for to, task in target:
                    both = task.key_range.intersect(part)
                    if task_partition_of(task) == partition and both is not None:
                        ready = before.warmth(to).ready
                        assert not both.minus(
                            each.key_range
                            for each in ready
                            if task_partition_of(each) == partition
                        ), f"{both} of {partition} is taken from {id_} for {to}"
    had = {
        (id_, task_partition_of(task))
        for id_, state in before.members.items()
        for task in state.standbys
    }
    begun = [
        (id_, partition)
        for id_, each in given_.items()
        for partition in {
            task_partition_of(standby)
            for standby in each.standbys
            if any(standby.conflicts(task) for task in each.target)
        }
        if (id_, partition) not in had
    ]
    assert len(begun) <= limit


events = st.lists(
    st.tuples(
        st.sampled_from(
            ["join", "die", "leave", "catch up", "rebalance", "rebalance", "release"]
        ),
        st.integers(0, 9),
    ),
    max_size=14,
)


@pytest.mark.ci
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(0, 1), st.integers(1, 5), min_size=1),
    st.sampled_from([1, 1, 2, 4]),
    st.integers(0, 1),
    st.integers(1, 3),
    events,
)
def test_whatever_happens_no_move_is_early_and_none_is_stuck(
    partitions: Mapping[int, int],
    ranges: int,
    replicas: int,
    limit: int,
    history: list[tuple[str, int]],
) -> None:
    group = Group(partitions, ranges=ranges, limit=limit, replicas=replicas)
    group.join("m0", "m1")
    group.rebalance()
    group.release()
    names = 2
    for what, number in history:
        ids = sorted(group.members)
        some = ids[number % len(ids)]
        staying = [id_ for id_ in ids if not group.members[id_].info.leaving]
        match what:
            case "join":
                group.join(f"m{names}", threads=1 + number % 2)
                names += 1
            case "die" if len(staying) > 1 or some not in staying:
                group.die(some)
            case "leave" if len(staying) > 1:
                group.leave(some)
            case "catch up":
                group.catch_up(some)
            case "release":
                group.release()
            case "rebalance":
                before = Group(partitions)
                before.members = dict(group.members)
                check(before, group.rebalance(), limit)
    given_ = group.settle()
    assert not moving(given_)
    assert all(each.settled for each in given_.values())


def test_the_leader_is_told_once_that_a_warm_up_is_ready() -> None:
    moves = TaskId(0, 0, WHOLE)
    stands = TaskId(0, 1, WHOLE)
    holdings = Holdings("me")

    def told(*ready: TaskId) -> None:
        holdings.state(MemberInfo("me"), lambda _: Warmth(ready=ready))

    told()
    assigned = holdings.assigned(
        2, Assignment("me", target=(moves,), standbys=(moves, stands))
    )
    assert assigned.warming == (moves,)
    holdings.caught_up([stands])
    assert not holdings.wants_rebalance, "it moves nowhere"
    holdings.caught_up([stands, moves])
    assert holdings.wants_rebalance
    told(moves)
    holdings.caught_up([moves])
    assert not holdings.wants_rebalance
    holdings.caught_up([TaskId(0, 0, KeyRange.of_groups(0, 99))])
    assert not holdings.wants_rebalance, "a part of it, because the rest is here"
