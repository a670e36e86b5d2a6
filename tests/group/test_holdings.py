"""The holdings of a member: a revoked task is held until it is released, a lost one is
void, stale answers are ignored.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.group.holdings import Holdings
from coopstreams.group.members import NO_GENERATION, Assignment, MemberInfo
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId
from tests.group.processes import Process

A, B, C = (
    TaskId(0, 0, KeyRange.of_groups(first, first + 63)) for first in (0, 64, 128)
)


def assignment(
    *tasks: TaskId, settled: bool = False, process: str = "me"
) -> Assignment:
    return Assignment(process, tuple(sorted(tasks)), tuple(sorted(tasks)), settled)


def holding(*tasks: TaskId) -> Holdings:
    holdings = Holdings("me")
    holdings.assigned(1, assignment(*tasks))
    holdings.state(MemberInfo("me"))
    return holdings


def test_an_assignment_says_what_to_open_and_what_to_give_up() -> None:
    holdings = holding(A, B)
    event = holdings.assigned(2, assignment(B, C))
    assert (event.tasks, event.added, event.revoked) == ((B, C), (C,), (A,))
    assert (event.generation, event.epoch) == (2, 0)


def test_what_is_revoked_is_held_until_it_is_released() -> None:
    holdings = holding(A, B)
    event = holdings.assigned(2, assignment(B))
    assert list(holdings.held) == [A, B]
    holdings.released([A], event.serial)
    assert list(holdings.held) == [B]


def test_a_rebalance_is_wanted_when_the_last_one_is_released() -> None:
    holdings = holding(A, B, C)
    event = holdings.assigned(2, assignment(C))
    holdings.released([A], event.serial)
    assert not holdings.wants_rebalance
    holdings.released([B], event.serial)
    assert holdings.wants_rebalance


def test_a_rebalance_does_not_wait_for_a_task_that_takes_long_to_close() -> None:
    holdings = holding(A, B, C)
    event = holdings.assigned(2, assignment())
    holdings.released([A], event.serial)
    assert not holdings.wants_rebalance
    holdings.drains([B, C])
    assert holdings.wants_rebalance
    assert list(holdings.held) == [B, C], "revoked is not released"
    holdings.state(MemberInfo("me"))
    event = holdings.assigned(3, assignment())
    holdings.drains([B])
    assert not holdings.wants_rebalance, "the leader knows of A"
    for task in (B, C):
        holdings.released([task], event.serial)
        assert holdings.wants_rebalance, "each one as it is closed"
        holdings.state(MemberInfo("me"))


def test_a_task_may_take_long_before_it_is_revoked() -> None:
    """A process that ends closes its tasks first, and then tells the group."""
    holdings = holding(A, B)
    holdings.drains([B])
    event = holdings.assigned(2, assignment())
    holdings.released([A], event.serial)
    assert holdings.wants_rebalance
    assert list(holdings.held) == [B]


def test_when_nobody_waits_for_it_no_rebalance_is_wanted() -> None:
    holdings = holding(A)
    event = holdings.assigned(2, assignment(settled=True))
    holdings.released([A], event.serial)
    assert not holdings.wants_rebalance


def test_a_rebalance_that_was_asked_for_while_one_ran_is_still_wanted() -> None:
    holdings = holding(A)
    holdings.ask()
    holdings.state(MemberInfo("me"))  # the leader gets it
    holdings.ask()
    holdings.assigned(2, assignment(A))
    assert holdings.wants_rebalance


def test_each_rebalance_that_is_asked_for_has_its_own_number() -> None:
    holdings = holding(A)
    numbers = []
    for _ in range(3):
        holdings.ask()
        numbers.append(holdings.state(MemberInfo("me"))[1])
    assert len(set(numbers)) == 3
    assert holdings.state(MemberInfo("me"))[1] == numbers[-1]


def test_a_task_given_back_while_it_closes_is_opened_again_and_its_release_frees_nothing() -> (
    None
):
    holdings = holding(A)
    revoked = holdings.assigned(2, assignment())
    back = holdings.assigned(3, assignment(A))
    assert back.added == (A,)
    holdings.released([A], revoked.serial)
    assert holdings.held == (A,)


def test_a_late_release_does_not_free_a_task_that_was_given_back_and_revoked_again() -> (
    None
):
    holdings = holding(A)
    first = holdings.assigned(2, assignment())
    holdings.assigned(3, assignment(A))
    second = holdings.assigned(4, assignment())
    holdings.released(
        [A], first.serial
    )  # the caller is about to open it, then to close it
    assert list(holdings.held) == [A]
    holdings.released([A], second.serial)
    assert not holdings.held


def test_what_is_lost_is_gone_at_once_and_the_epoch_is_another() -> None:
    holdings = holding(A, B)
    holdings.assigned(2, assignment(B))
    event = holdings.lost()
    assert (event.epoch, event.tasks) == (1, (A, B))
    state, _ = holdings.state(MemberInfo("me"))
    assert (state.tasks, state.target, state.generation) == ((), (), NO_GENERATION)


def joined(holdings: Holdings, generation: int, *tasks: TaskId) -> None:
    """Join the group: apply the answer, then the assignment."""
    assert holdings.answered(generation) is None
    holdings.assigned(generation, assignment(*tasks))


def test_what_is_held_is_void_when_a_generation_began_without_an_answer() -> None:
    """The broker had an old request of this member, which did not name the tasks
    assigned since.
    """
    holdings = Holdings("me")
    joined(holdings, 4, A, B)
    joined(holdings, 5, B, C)
    event = holdings.answered(7)
    assert event is not None
    assert (event.epoch, event.tasks) == (1, (A, B, C))
    assert (
        holdings.wants_rebalance
    )  # the answered request names them, so the leader assigns them to no other member
    assert not holdings.held


def test_a_generation_that_ends_before_its_assignment_comes_voids_nothing() -> None:
    holdings = Holdings("me")
    joined(holdings, 4, A)
    assert holdings.answered(5) is None
    assert holdings.answered(6) is None
    assert holdings.answered(6) is None  # the same broker again
    assert (
        holdings.answered(5) is None
    )  # another broker, which does not know the generations of the first one
    assert holdings.held == (A,)


def test_whoever_holds_nothing_may_miss_any_number_of_generations() -> None:
    holdings = Holdings("me")
    joined(holdings, 17, A)
    holdings.lost()
    joined(holdings, 23, A)
    assert holdings.epoch == 1


def test_after_a_loss_an_old_release_frees_nothing() -> None:
    holdings = holding(A)
    old = holdings.assigned(2, assignment())
    holdings.lost()
    holdings.assigned(3, assignment(A))
    new = holdings.assigned(4, assignment())
    holdings.released([A], old.serial)
    assert holdings.held == (A,)
    assert new.epoch == 1


def test_an_assignment_made_for_a_predecessor_asks_for_a_new_one() -> None:
    holdings = Holdings("second life")
    event = holdings.assigned(7, assignment(A, process="first life"))
    assert event.added == (A,)
    assert holdings.wants_rebalance
    state, _ = holdings.state(MemberInfo("second life"))
    holdings.assigned(8, assignment(A, process=state.info.process))
    assert not holdings.wants_rebalance


tasks = st.sets(st.sampled_from([A, B, C]))
steps = st.lists(
    st.one_of(tasks, st.sampled_from(["lost", "handle", "handle", "release"])),
    max_size=40,
)


@pytest.mark.ci
@settings(max_examples=500)
@given(steps)
def test_whatever_may_be_open_is_held_however_late_the_control_thread_is(
    history: list[set[TaskId] | str],
) -> None:
    control = Process("me", 1)
    holdings = control.holdings
    for generation, step in enumerate(history):
        match step:
            case "handle":
                control.handle()
            case "release":
                control.release()
            case "lost":
                control.inbox.append(holdings.lost())
            case set():
                control.inbox.append(holdings.assigned(generation, assignment(*step)))
        if control.epoch == holdings.epoch:
            assert control.open <= {*holdings.held}
    while control.inbox:
        control.handle()
    control.release()
    if control.epoch == holdings.epoch:
        assert control.open == {*holdings.tasks} == {*holdings.held}
