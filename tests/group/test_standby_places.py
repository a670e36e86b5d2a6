"""Standbys in the assignment: each task has as many as there can be, on other processes
than its owner, evenly, and they move only with a cause; a dead owner's tasks go to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.group.active_version import assign_active
from coopstreams.group.assignor import assign
from coopstreams.group.claims import common, merge
from coopstreams.group.members import Assignment, MemberInfo, MemberState, Runs
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

Members = Mapping[str, MemberState]
Given = Mapping[str, Assignment]


def joined(threads: Mapping[str, int], **info: Mapping[str, Any]) -> Members:
    """Return members that have nothing yet. `info`: a field's value by member."""
    return {
        id_: MemberState(
            MemberInfo(
                id_,
                threads=count,
                **{name: values[id_] for name, values in info.items()},
            )
        )
        for id_, count in threads.items()
    }


def settled(
    members: Members,
    partitions: Mapping[int, int],
    replicas: int,
    ranges: int = 1,
    stateful: Iterable[int] = (0,),
) -> tuple[Members, Given]:
    """Return the members and their assignments once every hand-over is done, and
    standbys are where they stay.
    """
    for generation in range(2, 20):
        given = assign(
            partitions,
            members,
            ranges=ranges,
            replicas=replicas,
            replicated=tuple(stateful),
        )
        after = {
            id_: replace(
                state,
                tasks=given[id_].tasks,
                target=given[id_].target,
                standbys=given[id_].standbys,
                generation=generation,
            )
            for id_, state in members.items()
        }
        if all(
            (after[id_].tasks, after[id_].standbys)
            == (members[id_].tasks, members[id_].standbys)
            for id_ in members
        ):
            return after, given
        members = after
    raise AssertionError("standbys do not come to rest")


def places(given: Given) -> dict[TaskId, list[str]]:
    """Return the members with a standby of each task."""
    found: dict[TaskId, list[str]] = {
        task: [] for assignment in given.values() for task in assignment.target
    }
    for id_, assignment in sorted(given.items()):
        for task in assignment.standbys:
            found[task].append(id_)
    return found


def owners(given: Given) -> dict[TaskId, str]:
    return {task: id_ for id_, each in given.items() for task in each.target}


groups = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(8)]), st.integers(1, 3), min_size=1
)
shapes = st.dictionaries(st.integers(0, 1), st.integers(1, 8), min_size=1)
cuts = st.sampled_from([1, 1, 2, 4])


@settings(max_examples=80, deadline=None)
@given(shapes, groups, cuts, st.integers(0, 3))
def test_each_task_has_its_standbys_on_other_processes_than_its_owner(
    partitions: Mapping[int, int],
    threads: Mapping[str, int],
    ranges: int,
    replicas: int,
) -> None:
    _, given = settled(joined(threads), partitions, replicas, ranges)
    for task, at in places(given).items():
        wanted = min(replicas, len(threads) - 1) if task.subtopology == 0 else 0
        assert len(set(at)) == len(at) == wanted
        assert owners(given)[task] not in at


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), cuts, st.integers(1, 2))
def test_standbys_of_equal_processes_are_even_wherever_one_could_move(
    processes: int, partitions: int, ranges: int, replicas: int
) -> None:
    threads = dict.fromkeys([f"m{i}" for i in range(processes)], 1)
    _, given = settled(joined(threads), {0: partitions}, replicas, ranges)
    owned = owners(given)
    load = {id_: len(each.standbys) for id_, each in given.items()}
    units = Counter(
        (task.partition, owned[task], id_)
        for task, at in places(given).items()
        for id_ in at
    )
    for (partition, owner, here), size in units.items():
        has = {id_ for p, o, id_ in units if (p, o) == (partition, owner)}
        for there in threads.keys() - has - {owner}:
            assert load[here] - load[there] <= size, "it had better moved"


@settings(max_examples=60, deadline=None)
@given(shapes, groups, cuts, st.integers(1, 2), st.data())
def test_standbys_move_only_with_a_cause(
    partitions: Mapping[int, int],
    threads: Mapping[str, int],
    ranges: int,
    replicas: int,
    data: st.DataObject,
) -> None:
    """`settled` ends only when an assignment that is fed back stays as it is; and it
    does not matter in which order members are named.
    """
    members, given = settled(joined(threads), partitions, replicas, ranges)
    order = data.draw(st.permutations(sorted(members)))
    again = assign(
        partitions,
        {id_: members[id_] for id_ in order},
        ranges=ranges,
        replicas=replicas,
        replicated=(0,),
    )
    assert places(again) == places(given)
    assert owners(again) == owners(given)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), cuts, st.data())
def test_the_tasks_of_a_process_that_dies_go_to_its_standbys_as_far_as_they_have_room(
    processes: int, partitions: int, ranges: int, data: st.DataObject
) -> None:
    """A free partition is elsewhere than its standby only where each has its share: one
    more would be too many there, or one less too few.
    """
    threads = dict.fromkeys([f"m{i}" for i in range(processes)], 1)
    partitions = max(partitions, processes)  # no key range is cut anew
    members, before = settled(joined(threads), {0: partitions}, 1, ranges)
    dead = data.draw(st.sampled_from(sorted(members)))
    left = {id_: state for id_, state in members.items() if id_ != dead}
    _, given = settled(left, {0: partitions}, 1, ranges)
    had = {task: at[0] for task, at in places(before).items() if at}
    now = owners(given)
    least, most = partitions // len(left), -(-partitions // len(left))
    count = {
        id_: len({task.partition for task in each.target})
        for id_, each in given.items()
    }
    for task in before[dead].target:
        assert (
            now[task] == had[task]
            or count[had[task]] == most
            or count[now[task]] == least
        )
    for id_ in left:
        assert {*before[id_].target} <= {*given[id_].target}, "a survivor keeps its own"


def test_of_a_partition_that_is_cut_anew_the_standby_keeps_what_it_has() -> None:
    threads = {"a": 1, "b": 1, "c": 1}
    members, before = settled(joined(threads), {0: 1}, 1)
    left = {id_: state for id_, state in members.items() if id_ != "a"}
    _, given = settled(left, {0: 1}, 1)
    (lost,) = before["a"].target
    (stood_by,) = places(before)[lost]
    mine = merge(task.key_range for task in given[stood_by].target)
    assert common(mine, lost.key_range) > 0
    for task, at in places(given).items():
        assert at == [id_ for id_ in sorted(left) if id_ != owners(given)[task]]


def test_a_standby_is_on_another_rack_than_its_owner_where_there_is_one() -> None:
    racks = {"a": "one", "b": "one", "c": "two", "d": "two"}
    _, given = settled(joined(dict.fromkeys(racks, 1), rack=racks), {0: 8}, 1)
    for task, (at,) in places(given).items():
        assert racks[at] != racks[owners(given)[task]]


def test_processes_of_one_host_count_as_one_where_there_is_another() -> None:
    hosts = {"a": "x", "b": "x", "c": "y", "d": "y"}
    _, given = settled(joined(dict.fromkeys(hosts, 1), host=hosts), {0: 8}, 1)
    for task, (at,) in places(given).items():
        assert hosts[at] != hosts[owners(given)[task]]


def test_who_gave_a_task_up_is_its_standby() -> None:
    """It has the rows already."""
    alone, _ = settled(joined({"a": 1}), {0: 2}, 1)
    members = {**alone, **joined({"b": 1})}
    _, given = settled(members, {0: 2}, 1)
    (moved,) = given["b"].target
    assert given["a"].standbys == (moved,)


def test_who_is_leaving_is_no_standby_and_its_tasks_go_to_theirs() -> None:
    members, before = settled(joined({"a": 1, "b": 1, "c": 1}), {0: 3}, 1)
    gone = members["a"]
    leaving = {**members, "a": replace(gone, info=replace(gone.info, leaving=True))}
    _, given = settled(leaving, {0: 3}, 1)
    assert not given["a"].target
    assert not given["a"].standbys
    (lost,) = before["a"].target
    assert [owners(given)[lost]] == places(before)[lost]
    for task, at in places(given).items():
        assert at == [id_ for id_ in "bc" if id_ != owners(given)[task]]


def test_siblings_stand_by_together() -> None:
    _, given = settled(joined({"a": 1, "b": 1, "c": 1}), {0: 3}, 1, ranges=4)
    for each in given.values():
        partitions = Counter(task.partition for task in each.standbys)
        assert set(partitions.values()) <= {4}


@pytest.mark.parametrize(
    ("stands_by", "wanted"), [((0,), 1), ((), 0), ((1,), 0), (None, 0)]
)
def test_a_group_with_a_member_that_knows_no_standbys_gets_none(
    stands_by: tuple[int, ...] | None, wanted: int
) -> None:
    topology = (Runs("f", 2), Runs("g", 2))
    members = {
        "a": MemberState(MemberInfo("a", topology=topology, stands_by=(0, 1))),
        "b": MemberState(MemberInfo("b", topology=topology, stands_by=stands_by)),
    }
    given = assign_active(members, replicas=1)
    of_first = [
        task
        for each in given.values()
        for task in each.standbys
        if task.subtopology == 0
    ]
    assert len(of_first) == 2 * wanted


def test_while_members_of_another_version_hold_tasks_there_are_no_standbys() -> None:
    old = MemberState(
        MemberInfo("a", topology=(Runs("f", 1),), stands_by=(0,)),
        (TaskId(0, 0, WHOLE),),
        5,
    )
    new = MemberInfo("b", topology=(Runs("g", 1),), stands_by=(0,))
    members = {
        "a": old,
        "b": MemberState(new),
        "c": MemberState(replace(new, process="c")),
    }
    given = assign_active(members, replicas=1)
    assert not any(each.standbys for each in given.values())
    free = {**members, "a": replace(old, tasks=())}
    given = assign_active(free, replicas=1)
    assert not given["a"].standbys
    assert sum(len(given[id_].standbys) for id_ in "bc") == len(
        given["b"].tasks + given["c"].tasks
    )


def test_ranges_of_standbys_do_not_overlap_on_one_member() -> None:
    members, _ = settled(joined({"a": 2, "b": 2}), {0: 1}, 1)
    for state in members.values():
        ranges = sorted(task.key_range for task in state.standbys)
        assert all(one.end < other.start for one, other in pairwise(ranges))
        assert all(isinstance(each, KeyRange) for each in ranges)
