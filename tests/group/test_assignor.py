"""The assignor: examples of the proposal, and its laws. Balanced, sticky, siblings
together, nothing owned twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.group.assignor import assign, problem_of
from coopstreams.group.balance import balance
from coopstreams.group.claims import check_granted, claims_of, common, merge
from coopstreams.group.members import (
    Assignment,
    Cluster,
    MemberInfo,
    MemberState,
    TaskPartition,
)
from coopstreams.group.slots import Layout
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import GROUPS, MAX_HASH, WHOLE, KeyRange, check_tiling
from coopstreams.topology.task_id import TaskId

Tasks = Mapping[str, tuple[TaskId, ...]]

A_PARTITION = MAX_HASH + 1


def member(
    process: str,
    threads: int = 1,
    tasks: Iterable[TaskId] = (),
    generation: int = 1,
    share: bool = True,
    target: Iterable[TaskId] = (),
    leaving: bool = False,
) -> MemberState:
    return MemberState(
        MemberInfo(process, threads=threads, allow_key_share=share, leaving=leaving),
        tuple(tasks),
        generation,
        tuple(target),
    )


def task(
    partition: int, first: int = 0, last: int = GROUPS - 1, subtopology: int = 0
) -> TaskId:
    return TaskId(subtopology, partition, KeyRange.of_groups(first, last))


def settle(
    partitions: Mapping[int, int],
    threads: Mapping[str, int],
    held: Tasks | None = None,
    ranges: int = 1,
    rounds: int = 2,
) -> Tasks:
    """Return the tasks of all members at rest; in every round each member first
    releases its revoked tasks.
    """
    held = held or {}
    states = {m: member(m, n, held.get(m, ())) for m, n in threads.items()}
    for generation in range(2, 2 + rounds):
        given = assign(partitions, states, ranges=ranges)
        if all(assignment.settled for assignment in given.values()):
            return {m: assignment.tasks for m, assignment in given.items()}
        states = {
            m: member(m, threads[m], a.tasks, generation, target=a.target)
            for m, a in given.items()
        }
    raise AssertionError(f"not at rest after {rounds} rounds")


def moved(before: Tasks, after: Tasks) -> Fraction:
    """Return the hash space with a new owner. Units: partitions."""
    kept = 0
    for owner, tasks in after.items():
        for mine in tasks:
            kept += sum(
                common([old.key_range], mine.key_range)
                for old in before.get(owner, ())
                if (old.subtopology, old.partition)
                == (mine.subtopology, mine.partition)
            )
    return size(t for tasks in after.values() for t in tasks) - Fraction(
        kept, A_PARTITION
    )


def size(tasks: Iterable[TaskId]) -> Fraction:
    return sum(
        (Fraction(t.key_range.end - t.key_range.start + 1, A_PARTITION) for t in tasks),
        Fraction(0),
    )


def stores(tasks: Tasks) -> int:
    return sum(
        len({(t.subtopology, t.partition) for t in mine}) for mine in tasks.values()
    )


groups = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(12)]), st.integers(1, 4), min_size=1
)
shapes = st.dictionaries(st.integers(0, 2), st.integers(1, 12), min_size=1)
cuts = st.sampled_from([1, 1, 2, 3, 8, 32])


# --- examples -----------------------------------------------------------------


def test_five_members_and_three_partitions_share_as_the_proposal_has_it() -> None:
    given = settle({0: 3}, {f"M{i}": 1 for i in range(1, 6)})
    assert {m: str(*tasks) for m, tasks in given.items()} == {
        "M1": "0_0[0..127]",
        "M2": "0_1[0..127]",
        "M3": "0_2[0..255]",
        "M4": "0_0[128..255]",
        "M5": "0_1[128..255]",
    }


def test_threads_of_one_member_share_one_partition_so_that_its_store_exists_once() -> (
    None
):
    given = settle({0: 2}, {"M1": 2, "M2": 2})
    assert given == {
        "M1": (task(0, 0, 127), task(0, 128, 255)),
        "M2": (task(1, 0, 127), task(1, 128, 255)),
    }


def test_with_more_partitions_than_threads_members_own_whole_partitions() -> None:
    given = settle({0: 5}, {"a": 1, "b": 1})
    assert sorted(t.partition for tasks in given.values() for t in tasks) == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert all(t.key_range == WHOLE for tasks in given.values() for t in tasks)
    assert sorted(map(len, given.values())) == [2, 3]


def test_more_ranges_than_slots_stay_together_on_their_member() -> None:
    given = settle({0: 2}, {"a": 1, "b": 1}, ranges=8)
    assert {
        m: ({t.partition for t in tasks}, len(tasks)) for m, tasks in given.items()
    } == {
        "a": ({0}, 8),
        "b": ({1}, 8),
    }


def test_three_slots_of_eight_ranges_take_two_or_three_neighbouring_ones() -> None:
    given = settle({0: 1}, {"a": 1, "b": 1, "c": 1}, ranges=8)
    assert sorted(map(len, given.values())) == [2, 3, 3]
    for tasks in given.values():
        assert len(merge(t.key_range for t in tasks)) == 1


def test_one_member_that_does_not_share_makes_all_partitions_whole() -> None:
    states = {"a": member("a"), "b": member("b", share=False), "c": member("c")}
    given = assign({0: 2}, states, ranges=4)
    assert sorted(len(a.tasks) for a in given.values()) == [0, 1, 1]
    assert all(t.key_range == WHOLE for a in given.values() for t in a.tasks)


def test_members_without_a_share_in_one_stage_get_one_in_the_next() -> None:
    states = {m: member(m, share=False) for m in "abc"}
    given = assign({0: 1, 1: 1, 2: 1}, states)
    assert sorted(len(a.tasks) for a in given.values()) == [1, 1, 1]


def test_a_partition_is_never_cut_finer_than_key_groups() -> None:
    given = settle({0: 1}, {f"m{i:03}": 2 for i in range(150)})
    assert sum(len(tasks) for tasks in given.values()) == GROUPS
    assert {len(tasks) for tasks in given.values()} == {1, 2}


def test_everybody_is_told_who_has_what_and_whose_transactions_are_alive() -> None:
    states = {
        "id-a": MemberState(
            MemberInfo("a", "host-a", "a:80", transactional_ids=("app-a-0", "app-a-1"))
        ),
        "id-b": MemberState(
            MemberInfo("b", "host-b", "b:80", transactional_ids=("app-b-0",))
        ),
    }
    given = assign({0: 2}, states)
    cluster = given["id-a"].cluster
    assert cluster is given["id-b"].cluster
    assert [(m.id, m.info.endpoint, m.tasks) for m in cluster.members] == [
        (i, states[i].info.endpoint, given[i].tasks) for i in ("id-a", "id-b")
    ]
    assert cluster.transactional_ids == {"app-a-0", "app-a-1", "app-b-0"}
    assert cluster.partitions == {0: 2}


def test_nobody_there_is_nobody_assigned() -> None:
    assert assign({0: 3}, {}) == {}


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="sub-topology 4 has 0 partitions"):
        assign({4: 0}, {"a": member("a")})
    with pytest.raises(ValueError, match="1 to 256 key ranges, not 257"):
        assign({0: 1}, {"a": member("a")}, ranges=257)
    with pytest.raises(ValueError, match="0 threads"):
        MemberInfo("a", threads=0)


# --- hand-over ------------------------------------------------------------------


def test_what_others_hold_is_withheld_and_the_rest_is_given_at_once() -> None:
    states = {"a": member("a", tasks=[task(0)]), "b": member("b", generation=-1)}
    given = assign({0: 1}, states)
    assert given["a"].tasks == (task(0, 0, 127),)
    assert given["b"].tasks == ()
    assert given["b"].target == (task(0, 128, 255),)
    assert not given["a"].settled


def test_a_range_partly_held_by_others_is_given_in_pieces() -> None:
    quarter = [task(0, 64 * i, 64 * i + 63) for i in range(4)]
    states = {m: member(m, tasks=[t]) for m, t in zip("abcd", quarter, strict=True)} | {
        "e": member("e", generation=-1)
    }
    given = assign({0: 1}, states)
    assert given["b"].target == (task(0, 51, 101),)
    assert given["b"].tasks == (task(0, 64, 101),)


def test_the_second_round_works_towards_the_same_end() -> None:
    quarter = [task(0, 64 * i, 64 * i + 63) for i in range(4)]
    states = {m: member(m, tasks=[t]) for m, t in zip("abcd", quarter, strict=True)} | {
        "e": member("e", generation=-1)
    }
    first = assign({0: 1}, states)
    second = assign(
        {0: 1},
        {
            m: member(m, tasks=a.tasks, generation=2, target=a.target)
            for m, a in first.items()
        },
    )
    assert {m: a.tasks for m, a in second.items()} == {
        m: a.target for m, a in first.items()
    }
    assert all(a.settled for a in second.values())


def test_a_task_that_is_still_closing_is_given_to_nobody_else() -> None:
    before = assign(
        {0: 1}, {"a": member("a", tasks=[task(0)]), "b": member("b", generation=-1)}
    )
    still = {
        "a": member(
            "a",
            tasks=[task(0), *before["a"].tasks],
            generation=2,
            target=before["a"].target,
        ),
        "b": member("b", generation=2, target=before["b"].target),
    }
    again = assign({0: 1}, still)
    assert again["b"].tasks == ()
    assert not again["b"].settled


def test_the_tasks_of_a_member_that_leaves_are_promised_to_others_and_given_as_it_releases_them() -> (
    None
):
    held = [task(0, 0, 127), task(0, 128, 255)]
    given = assign(
        {0: 1},
        {"a": member("a", 2, held, leaving=True), "b": member("b")},
    )
    assert given["a"].tasks == given["a"].target == given["b"].tasks == ()
    assert given["b"].target == (task(0),)
    assert not given["b"].settled
    given = assign(
        {0: 1},
        {
            "a": member("a", 2, held[1:], leaving=True),
            "b": member("b", target=given["b"].target),
        },
    )
    assert given["b"].tasks == (held[0],)
    given = assign({0: 1}, {"a": member("a", 2, held, leaving=True)})
    assert size(given["a"].tasks) == 1, "nobody else is there"


def test_the_claim_of_the_highest_generation_wins() -> None:
    zombie = member("z", tasks=[task(0), task(1)], generation=5)
    owner = member("o", tasks=[task(0)], generation=7)
    given = assign({0: 2}, {"z": zombie, "o": owner})
    assert given["o"].tasks == (task(0),)
    assert given["z"].tasks == (task(1),)


def test_a_zombie_is_believed_about_what_nobody_else_claims() -> None:
    claims = claims_of(
        {
            "z": member("z", tasks=[task(0)], generation=5),
            "o": member("o", tasks=[task(0, 0, 99)], generation=7),
        }
    )
    assert claims["z"] == {TaskPartition(0, 0): [KeyRange.of_groups(100, 255)]}


def test_two_owners_of_one_hash_are_an_error_that_names_them() -> None:
    with pytest.raises(AssignmentError, match="0_3: members a and b"):
        check_granted({"a": [task(3, 0, 100)], "b": [task(3, 100, 255)]}, {})
    with pytest.raises(AssignmentError, match="0_3: members"):
        check_granted(
            {"a": [task(3, 0, 100)]},
            claims_of({"b": member("b", tasks=[task(3, 50, 60)])}),
        )


# --- laws -----------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(shapes, groups, cuts)
def test_targets_tile_every_partition_and_are_fair(
    partitions: dict[int, int], threads: dict[str, int], ranges: int
) -> None:
    given = settle(partitions, threads, ranges=ranges, rounds=1)
    for subtopology, count in partitions.items():
        mine = {
            m: [t for t in tasks if t.subtopology == subtopology]
            for m, tasks in given.items()
        }
        for partition in range(count):
            check_tiling(
                [
                    t.key_range
                    for tasks in mine.values()
                    for t in tasks
                    if t.partition == partition
                ],
                f"{subtopology}_{partition}",
            )
        slots = {m: size(tasks) / threads[m] for m, tasks in mine.items()}
        finest = Fraction(
            min(
                t.key_range.end - t.key_range.start + 1
                for tasks in mine.values()
                for t in tasks
            ),
            A_PARTITION,
        )
        assert sum(size(tasks) for tasks in mine.values()) == count
        if sum(threads.values()) <= count:
            assert max(slots.values()) - min(slots.values()) <= 1
        else:
            assert min(slots.values()) > 0
            assert max(slots.values()) <= 1
            assert finest >= Fraction(1, GROUPS)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), cuts)
def test_slots_of_one_partition_differ_by_one_range_at_most(
    partitions: int, members: int, ranges: int
) -> None:
    given = settle(
        {0: partitions}, {f"m{i:02}": 1 for i in range(members)}, ranges=ranges
    )
    for partition in range(partitions):
        counts = [
            n
            for n in (
                sum(t.partition == partition for t in tasks) for tasks in given.values()
            )
            if n
        ]
        assert max(counts) - min(counts) <= 1


histories = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "threads"]),
        st.integers(0, 11),
        st.integers(1, 4),
    ),
    max_size=8,
)


def after(
    partitions: Mapping[int, int],
    threads: dict[str, int],
    history: list[tuple[str, int, int]],
    ranges: int,
) -> tuple[dict[str, int], Tasks]:
    """Return the members and their tasks after a history, at rest after each change."""
    threads = dict(threads)
    held = settle(partitions, threads, ranges=ranges)
    for what, number, count in history:
        name = f"m{number}"
        if what == "leave" and name in threads and len(threads) > 1:
            del threads[name]
        elif what == "join" or name in threads:
            threads[name] = count
        held = settle(
            partitions, threads, {m: held.get(m, ()) for m in threads}, ranges
        )
    return threads, held


@pytest.mark.ci
@settings(max_examples=75, deadline=None)
@given(shapes, groups, histories, cuts)
def test_at_rest_nothing_moves_without_a_cause(
    partitions: dict[int, int],
    threads: dict[str, int],
    history: list[tuple[str, int, int]],
    ranges: int,
) -> None:
    threads, held = after(partitions, threads, history, ranges)
    states = {m: member(m, threads[m], held[m], 9, target=held[m]) for m in threads}
    again = assign(partitions, states, ranges=ranges)
    assert {m: a.tasks for m, a in again.items()} == held
    assert all(a.settled for a in again.values())


@settings(max_examples=50, deadline=None)
@given(shapes, groups, cuts, st.randoms(use_true_random=False))
def test_the_order_in_which_members_are_listed_does_not_matter(
    partitions: dict[int, int], threads: dict[str, int], ranges: int, random: object
) -> None:
    shuffled = list(threads)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    states = {m: member(m, threads[m]) for m in threads}
    one = assign(partitions, states, ranges=ranges)
    other = assign(partitions, {m: states[m] for m in shuffled}, ranges=ranges)
    assert {m: one[m] for m in sorted(one)} == {m: other[m] for m in sorted(other)}


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 24), st.integers(1, 12), st.data())
def test_when_one_of_equal_members_leaves_whole_partitions_only_its_own_move(
    members: int, times: int, data: st.DataObject
) -> None:
    partitions = {0: members * times}
    before = settle(partitions, {f"m{i:02}": 1 for i in range(members)})
    gone = data.draw(st.sampled_from(sorted(before)))
    rest = {m: 1 for m in before if m != gone}
    assert moved(before, settle(partitions, rest, before, rounds=1)) == size(
        before[gone]
    )


@pytest.mark.ci
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 24), st.integers(2, 12))
def test_when_one_joins_equal_members_with_whole_partitions_only_its_own_move(
    members: int, times: int
) -> None:
    partitions = {0: (members + 1) * times}
    before = settle(partitions, {f"m{i:02}": 1 for i in range(members)})
    now = settle(partitions, dict.fromkeys([*before, "new"], 1), before)
    assert moved(before, now) == size(now["new"]) == times


@pytest.mark.ci
@settings(max_examples=100, deadline=None)
@given(st.integers(2, 40), cuts, st.data())
def test_when_one_of_n_sharers_leaves_its_share_and_at_most_a_third_more_moves(
    members: int, ranges: int, data: st.DataObject
) -> None:
    """All cuts of the partition shift, so more than the leaving member's share has to
    move: a quarter, for many sharers.
    """
    before = settle({0: 1}, {f"m{i:02}": 1 for i in range(members)}, ranges=ranges)
    gone = data.draw(st.sampled_from(sorted(before)))
    rest = {m: 1 for m in before if m != gone}
    assert moved(before, settle({0: 1}, rest, before, ranges)) <= size(
        before[gone]
    ) + Fraction(36, 100)


@given(
    threads=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), min_size=2),
    owners=st.lists(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
        min_size=1,
        max_size=2,
    ),
    ranges=cuts,
)
def test_a_member_keeps_the_cells_that_it_holds_completely_up_to_its_quota(
    threads: dict[str, int], owners: list[list[str]], ranges: int
) -> None:
    """The cells need not be neighbours. `owners`: those of each partition, one for each
    of its ranges.
    """
    held: dict[str, dict[int, list[KeyRange]]] = {name: {} for name in threads}
    for partition, names in enumerate(owners):
        for name, piece in zip(names, KeyRange.split(len(names)), strict=True):
            if name in held:
                held[name].setdefault(partition, []).append(piece)
    held = {
        name: {partition: merge(pieces) for partition, pieces in mine.items()}
        for name, mine in held.items()
    }
    balanced = balance(
        Layout(len(owners), threads, ranges), held, dict.fromkeys(threads, Fraction(0))
    )
    cells = [cell for mine in balanced.values() for cell in mine]
    for name, mine in balanced.items():
        complete = {
            cell
            for cell in cells
            if any(p.covers(cell.key_range) for p in held[name].get(cell.partition, ()))
        }
        assert len(complete & set(mine)) == min(len(complete), len(mine))


def test_when_the_first_of_four_sharers_leaves_the_others_shift_as_little_as_they_can() -> (
    None
):
    """b, c, d keep 21, 42 and 64 of their 64 key groups; by overlap alone c would have
    to take the first cell and keep none.
    """
    before = settle({0: 1}, dict.fromkeys("abcd", 1))
    assert moved(
        before, settle({0: 1}, dict.fromkeys("bcd", 1), before)
    ) == 1 - Fraction(21 + 42 + 64, GROUPS)


@pytest.mark.ci
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), cuts)
def test_when_one_joins_n_sharers_its_share_and_at_most_a_third_more_moves(
    members: int, ranges: int
) -> None:
    before = settle({0: 1}, {f"m{i:02}": 1 for i in range(members)}, ranges=ranges)
    now = settle({0: 1}, dict.fromkeys([*before, "new"], 1), before, ranges)
    assert moved(before, now) <= size(now["new"]) + Fraction(1, 3)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.data())
def test_a_partition_in_which_nothing_changed_keeps_its_tasks(
    partitions: int, per_partition: int, data: st.DataObject
) -> None:
    names = [f"m{i:02}" for i in range(partitions * (per_partition + 1))]
    before = settle({0: partitions}, dict.fromkeys(names, 1))
    gone = data.draw(st.sampled_from(names))
    lost = {t.partition for t in before[gone]}
    now = settle({0: partitions}, {m: 1 for m in names if m != gone}, before)
    for name in now:
        assert [t for t in now[name] if t.partition not in lost] == [
            t for t in before[name] if t.partition not in lost
        ]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_a_fresh_group_keeps_each_store_once_where_that_is_possible(
    members: int, threads: int, each: int
) -> None:
    """Each of `members` has as many slots as `each` partitions have, so no partition
    has to be on two members.
    """
    slots = max(threads, each)
    partitions = members * each
    given = settle({0: partitions}, {f"m{i}": slots * each for i in range(members)})
    assert stores(given) == partitions


@settings(max_examples=100, deadline=None)
@given(groups, st.integers(1, 6), cuts, st.lists(st.integers(0, 11), max_size=20))
def test_a_target_that_somebody_has_spoilt_is_not_believed(
    threads: dict[str, int], partitions: int, ranges: int, drop: list[int]
) -> None:
    held = settle({0: partitions}, threads, ranges=ranges)
    spoilt = {
        m: [t for i, t in enumerate(tasks) if i not in drop]
        for m, tasks in held.items()
    }
    states = {m: member(m, threads[m], target=tasks) for m, tasks in spoilt.items()}
    given = assign({0: partitions}, states, ranges=ranges)
    layout = Layout(partitions, threads, ranges)
    assert problem_of(layout, 0, {m: a.target for m, a in given.items()}) is None


def test_a_problem_is_named() -> None:
    layout = Layout(2, {"a": 1, "b": 3})
    halves = [task(0, 0, 127), task(0, 128, 255), task(1, 0, 127), task(1, 128, 255)]
    assert problem_of(layout, 0, {"a": halves[:1], "b": halves[1:]}) is None
    assert "there is no partition 7" in str(
        problem_of(layout, 0, {"a": [task(7)], "b": []})
    )
    assert "no key range has" in str(
        problem_of(layout, 0, {"a": halves[:1], "b": halves[2:]})
    )
    assert "overlaps" in str(
        problem_of(layout, 0, {"a": halves[:1], "b": [*halves, task(0, 3, 9)]})
    )
    assert "cut into 1 key ranges, not 2" in str(
        problem_of(layout, 0, {"a": [task(0)], "b": halves[2:]})
    )
    assert (
        "member a has 1.000 partitions; with 1 threads, 0.500 to 0.500 are fair"
        in str(problem_of(layout, 0, {"a": halves[:2], "b": halves[2:]}))
    )
    whole = Layout(2, {"a": 1, "b": 1}, ranges=2)
    assert "without their siblings" in str(
        problem_of(whole, 0, {"a": [halves[0], halves[2]], "b": [halves[1], halves[3]]})
    )


def test_an_assignment_is_a_value() -> None:
    assert Assignment("p", cluster=Cluster()) == Assignment("p")


def test_a_sub_topology_that_cannot_be_cut_has_one_task_a_partition() -> None:
    states = {name: member(name, threads=4) for name in ("m1", "m2", "m3")}
    given = assign({0: 2, 1: 2}, states, ranges=8, whole={1})
    tasks = sorted(task for assignment in given.values() for task in assignment.target)
    assert [task for task in tasks if task.subtopology == 1] == [
        TaskId(1, 0, WHOLE),
        TaskId(1, 1, WHOLE),
    ]
    assert len([task for task in tasks if task.subtopology == 0]) == 16
