"""The states of an instance's tasks, and the next action for each."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coopstreams.instance.task_registry import Action, Do, State, TaskRegistry
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId


def task(first: int, last: int, partition: int = 0) -> TaskId:
    return TaskId(0, partition, KeyRange.of_groups(first, last))


def test_a_task_is_opened_then_runs_then_is_closed_and_released() -> None:
    registry = TaskRegistry()
    assert registry.assigned([task(0, 127)], []) == [Action(Do.OPEN, task(0, 127))]
    assert registry.opened(task(0, 127)) == [Action(Do.RUN, task(0, 127))]
    assert registry.assigned([], [task(0, 127)]) == [Action(Do.CLOSE, task(0, 127))]
    assert registry.closed(task(0, 127)) == [Action(Do.RELEASE, task(0, 127))]
    assert registry.states == {}


def test_a_range_that_is_cut_anew_waits_for_its_predecessor() -> None:
    registry = TaskRegistry()
    registry.assigned([task(0, 127)], [])
    registry.opened(task(0, 127))
    assert registry.assigned([task(0, 63)], [task(0, 127)]) == [
        Action(Do.CLOSE, task(0, 127))
    ]
    assert registry.states[task(0, 63)] is State.WAITING
    assert registry.closed(task(0, 127)) == [
        Action(Do.RELEASE, task(0, 127)),
        Action(Do.OPEN, task(0, 63)),
    ]


def test_nothing_is_opened_while_the_group_has_not_heard_of_this_process() -> None:
    """The next generation has; it adds nothing."""
    registry = TaskRegistry()
    registry.unheard = True
    assert registry.assigned([task(0, 127)], []) == []
    assert registry.states == {task(0, 127): State.WAITING}
    registry.unheard = False
    assert registry.assigned([], []) == [Action(Do.OPEN, task(0, 127))]


def test_a_task_revoked_while_it_opens_is_cancelled_and_released_once() -> None:
    registry = TaskRegistry()
    registry.assigned([task(0, 127)], [])
    assert registry.assigned([], [task(0, 127)]) == [Action(Do.CANCEL, task(0, 127))]
    assert registry.opened(task(0, 127)) == [
        Action(Do.DROP, task(0, 127)),
        Action(Do.RELEASE, task(0, 127)),
    ]
    assert registry.closed(task(0, 127)) == []


def test_an_aborted_task_is_opened_again_if_it_is_still_wanted() -> None:
    registry = TaskRegistry()
    registry.assigned([task(0, 127), task(128, 255)], [])
    registry.opened(task(0, 127))
    registry.opened(task(128, 255))
    registry.assigned([], [task(128, 255)])
    actions = registry.aborted([task(0, 127), task(128, 255)])
    assert actions == [
        Action(Do.RELEASE, task(128, 255)),
        Action(Do.OPEN, task(0, 127)),
    ]


def test_a_task_that_waits_for_its_calls_is_closed_at_once_when_it_is_lost() -> None:
    registry = TaskRegistry()
    registry.assigned([task(0, 127), task(128, 255)], [])
    registry.opened(task(0, 127))
    registry.assigned([], [task(0, 127), task(128, 255)])
    assert registry.lost() == [Action(Do.CLOSE_DIRTY, task(0, 127))]
    assert registry.closed(task(0, 127)) == [], "nothing is released"


def test_an_instance_that_ends_opens_nothing_and_releases_what_is_revoked_meanwhile() -> (
    None
):
    registry = TaskRegistry()
    registry.assigned([task(0, 63), task(64, 127)], [])
    for opened in (task(0, 63), task(64, 127)):
        registry.opened(opened)
    registry.stop()
    assert registry.closed(task(0, 63)) == []
    assert registry.assigned([task(128, 255)], [task(0, 63), task(64, 127)]) == [
        Action(Do.RELEASE, task(0, 63))
    ]
    assert registry.closed(task(64, 127)) == [Action(Do.RELEASE, task(64, 127))]


def test_tasks_that_read_other_topics_are_closed_cleanly_and_opened_again_and_the_group_hears_nothing() -> (
    None
):
    registry = TaskRegistry()
    registry.assigned(
        [
            task(0, 127),
            task(128, 255),
            other := TaskId(1, 0, KeyRange.of_groups(0, 255)),
        ],
        [],
    )
    for opened in (task(0, 127), other):
        registry.opened(opened)
    assert registry.reopen(registry.of({0})) == [
        Action(Do.CLOSE, task(0, 127)),
        Action(Do.CANCEL, task(128, 255)),
    ]
    assert registry.closed(task(0, 127)) == [Action(Do.OPEN, task(0, 127))]
    assert registry.opened(task(128, 255)) == [
        Action(Do.DROP, task(128, 255)),
        Action(Do.OPEN, task(128, 255)),
    ]
    assert registry.states[other] is State.RUNNING


def test_a_standby_runs_on_hashes_of_no_task_here_that_is_wanted_or_not_closed() -> (
    None
):
    registry = TaskRegistry()
    registry.assigned([task(0, 127)], [])
    registry.opened(task(0, 127))
    registry.standbys = (task(128, 255),)
    assert registry.stands_by == (task(128, 255),)
    registry.standbys = (task(64, 191),)  # cut anew: the task is given up, in part
    registry.assigned([task(0, 63)], [task(0, 127)])
    assert registry.stands_by == (task(128, 191),)
    registry.closed(task(0, 127))
    assert registry.stands_by == (task(64, 191),)
    assert task(64, 191) in registry.here, "its rows stay"


def test_after_the_membership_is_lost_nothing_is_owed_and_everything_is_given_up() -> (
    None
):
    registry = TaskRegistry()
    registry.assigned([task(0, 127), task(128, 255)], [])
    registry.opened(task(0, 127))
    assert registry.lost() == [
        Action(Do.CLOSE_DIRTY, task(0, 127)),
        Action(Do.CANCEL, task(128, 255)),
    ]
    assert registry.closed(task(0, 127)) == []
    assert registry.assigned([task(0, 127)], []) == [Action(Do.OPEN, task(0, 127))]


def test_rows_of_a_task_that_still_closes_stay_when_another_that_was_promised_is_released() -> (
    None
):
    registry = TaskRegistry()
    registry.assigned([task(0, 127)], [])
    registry.opened(task(0, 127))
    registry.assigned([task(64, 191)], [task(0, 127)])
    assert registry.assigned([task(64, 95)], [task(64, 191)]) == [
        Action(Do.RELEASE, task(64, 191))
    ]
    assert registry.here == {task(0, 127), task(64, 95)}


CUTS = [(0, 255), (0, 127), (128, 255), (0, 63), (64, 191), (192, 255)]


class AnyHistory(RuleBasedStateMachine):
    """In any history of the group, the opener and the threads, no two overlapping tasks
    run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry = TaskRegistry()
        self.held: set[TaskId] = set()
        self.owed: set[TaskId] = set()
        self.work: dict[TaskId, Do] = {}

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if action.do is Do.RELEASE:
                assert action.task in self.owed, "released twice, or never revoked"
                assert action.task not in self.work, (
                    "released while somebody works on it"
                )
                self.owed.discard(action.task)
            elif action.do is Do.DROP:
                self.work.pop(action.task, None)
            else:
                self.work[action.task] = action.do

    @rule(cuts=st.sets(st.sampled_from(CUTS), max_size=3))
    def the_group_assigns(self, cuts: set[tuple[int, int]]) -> None:
        target: set[TaskId] = set()
        for cut in sorted(cuts):
            if not any(task(*cut).conflicts(other) for other in target):
                target.add(task(*cut))
        target -= self.owed
        added, revoked = target - self.held, self.held - target
        self.held, self.owed = target, self.owed | revoked
        self.act(self.registry.assigned(sorted(added), sorted(revoked)))

    @rule()
    def topics_come_to_match(self) -> None:
        self.act(self.registry.reopen(self.registry.of({0})))

    @rule()
    def the_group_goes_on_without_us(self) -> None:
        self.held, self.owed = set(), set()
        self.act(self.registry.lost())

    @precondition(
        lambda self: any(do in (Do.OPEN, Do.CANCEL) for do in self.work.values())
    )
    @rule(data=st.data())
    def the_opener_answers(self, data: st.DataObject) -> None:
        which = data.draw(
            st.sampled_from(
                sorted(t for t, do in self.work.items() if do in (Do.OPEN, Do.CANCEL))
            )
        )
        if self.work.pop(which) is Do.CANCEL and data.draw(st.booleans()):
            self.act(self.registry.closed(which))
        else:
            self.act(self.registry.opened(which))

    @precondition(
        lambda self: any(
            do in (Do.RUN, Do.CLOSE, Do.CLOSE_DIRTY) for do in self.work.values()
        )
    )
    @rule(data=st.data())
    def a_thread_closes_or_aborts(self, data: st.DataObject) -> None:
        which = data.draw(
            st.sampled_from(
                sorted(
                    t for t, do in self.work.items() if do not in (Do.OPEN, Do.CANCEL)
                )
            )
        )
        do = self.work.pop(which)
        self.act(
            self.registry.aborted([which])
            if do is Do.RUN
            else self.registry.closed(which)
        )

    @invariant()
    def nothing_overlaps(self) -> None:
        busy = sorted(self.work)
        assert not any(
            a.conflicts(b) for i, a in enumerate(busy) for b in busy[i + 1 :]
        )

    @invariant()
    def rows_of_whatever_is_at_work_stay(self) -> None:
        assert self.work.keys() <= self.registry.here

    @invariant()
    def whatever_is_wanted_is_on_its_way(self) -> None:
        for wanted in self.held:
            blocked = any(
                wanted != other and wanted.conflicts(other) for other in self.work
            )
            assert wanted in self.work or blocked


AnyHistory.TestCase.settings = settings(max_examples=100, deadline=None)
TestAnyHistory = AnyHistory.TestCase
