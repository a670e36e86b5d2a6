"""What the status says of a task's time, and of whom it waits for."""

from __future__ import annotations

from coopstreams.log.clocks import Awaited
from coopstreams.status.reasons import wait_for_time
from coopstreams.status.time_status import time_status
from coopstreams.tasks.task_figures import AwaitedTime, TimeStatus
from coopstreams.tasks.time_waits import ClockWait, HeldBack
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyGroups
from coopstreams.topology.task_id import TaskId

READER, WRITER = TaskId(1, 0, WHOLE), TaskId(0, 2, WHOLE)
TIMED, SOURCE = TopicPartition("timed", 0), TopicPartition("in", 2)
CLOCK = ClockWait(100, 200, Awaited(3, KeyGroups(0, 9), 100), 40.0)
HELD = HeldBack(500, Awaited(3, ALL_GROUPS, -1), 45.0)


def told(task: TaskId, source: TopicPartition) -> TimeStatus | None:
    return time_status(
        task,
        (source,),
        {TIMED: CLOCK},
        {SOURCE: HELD},
        {"timed": 0}.get,
        lambda subtopology, partition, groups: f"{subtopology}_{partition} {groups}",
        50.0,
    )


def test_the_reader_of_a_timed_topic_waits_for_the_sub_topology_that_writes_it() -> (
    None
):
    awaited = AwaitedTime(0, 3, "0..9", 100, "0_3 0..9", 10.0)
    assert told(READER, TIMED) == TimeStatus(100, awaited)


def test_a_topic_of_the_user_that_the_task_reads_itself_is_named() -> None:
    clicks = TopicPartition("clicks", 0)
    slower = ClockWait(50, 200, Awaited(0, ALL_GROUPS, 50), 40.0)
    status = time_status(
        READER,
        (clicks, TIMED),
        {TIMED: CLOCK, clicks: slower},
        {},
        {"timed": 0}.get,
        lambda *_: "b",
        50.0,
    )
    awaited = AwaitedTime(1, 0, "0..255", 50, "b", 10.0, "clicks")
    assert status is not None
    assert status == TimeStatus(50, awaited)
    assert '"clicks" partition 0, which it reads beside' in wait_for_time(1, status)


def test_a_task_that_is_held_back_waits_for_one_of_its_own_sub_topology() -> None:
    awaited = AwaitedTime(0, 3, "0..255", None, "0_3 0..255", 5.0)
    assert told(WRITER, SOURCE) == TimeStatus(500, awaited, held_back=True)


def test_other_tasks_have_no_time() -> None:
    assert told(WRITER, TopicPartition("in", 0)) is None
