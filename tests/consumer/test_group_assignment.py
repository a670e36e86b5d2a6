"""The leader of a group of consumers: a range that is held is not assigned again, and a
foreign member gets none.
"""

from __future__ import annotations

import pytest

from coopstreams.consumer.assignors import sticky
from coopstreams.consumer.group_assignment import assign_consumers, topic_number
from coopstreams.group.members import MemberInfo, MemberState, Runs
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

ORDERS = TaskId(topic_number("orders"), 0, WHOLE)


def consumer(*tasks: TaskId, shares: bool = True) -> MemberState:
    return MemberState(
        MemberInfo("consumer", allow_key_share=shares), tasks, 3, tasks, ("orders",)
    )


def instance(*tasks: TaskId) -> MemberState:
    """Return a member of an application that reads the same topic: its tasks have
    numbers of its own.
    """
    return MemberState(
        MemberInfo("app", topology=(Runs("reads orders", 1),)),
        tasks,
        3,
        tasks,
        ("orders",),
    )


def test_an_instance_of_an_application_in_the_group_is_refused() -> None:
    given = assign_consumers(
        sticky, {"orders": 1}, ["orders"], {"a": consumer(), "app": instance()}
    )
    assert given["a"].tasks == (ORDERS,)
    assert given["app"].tasks == ()
    assert given["app"].error.startswith(
        "member app is an instance of an application, and the group is one of consumers. Give"
    )
    assert [member.tasks for member in given["a"].cluster.members] == [(ORDERS,), ()]


def test_while_it_holds_tasks_nobody_reads_what_it_may_be_reading() -> None:
    given = assign_consumers(
        sticky,
        {"orders": 1},
        ["orders"],
        {"a": consumer(), "app": instance(TaskId(0, 0, WHOLE))},
    )
    assert (given["a"].tasks, given["a"].target) == ((), (ORDERS,))
    assert not given["app"].settled


@pytest.mark.parametrize(("shares", "shareable"), [(False, ["orders"]), (True, [])])
def test_whoever_reads_whole_partitions_waits_until_all_of_one_is_free(
    shares: bool, shareable: list[str]
) -> None:
    half = TaskId(topic_number("orders"), 0, KeyRange.split(2)[1])
    members = {
        "a": consumer(shares=shares),
        "b": MemberState(MemberInfo("consumer"), (half,), 3),
    }
    given = assign_consumers(sticky, {"orders": 1}, shareable, members)
    assert (given["a"].tasks, given["a"].target) == ((), (ORDERS,))
    assert not given["a"].settled
    members["b"] = MemberState(MemberInfo("consumer"), (), 4)
    assert assign_consumers(sticky, {"orders": 1}, shareable, members)["a"].tasks == (
        ORDERS,
    )
