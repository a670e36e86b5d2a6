"""Health follows from what the threads have published: which reasons there are, their
order, and whether the instance is live and ready.
"""

from __future__ import annotations

from typing import get_args

import pytest

from coopstreams.sharing.share_thread import ShareFigures
from coopstreams.status.reasons import (
    HEALTH_CODES,
    KINDS,
    HealthCode,
    Seen,
    by_code,
    health,
)
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.task_figures import (
    AwaitedTime,
    CallFigures,
    Calls,
    TimeStatus,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

TASK, OTHER = TaskId(0, 0, WHOLE), TaskId(0, 1, WHOLE)
AT = TopicPartition("in", 0)
PAUSE = CallFigures(Calls(0, 0.0, 0, 0), pauses="calls of ask pause")


def standing(since_s: float, owner: str | None = "b") -> TimeStatus:
    """A clock that stands since so long for a part of partition 3."""
    awaited = AwaitedTime(0, 3, "0..127", 1_700_000_000_000, owner, since_s)
    return TimeStatus(1_700_000_000_000, awaited)


def stalled() -> StallDetector:
    """A task that stands at offset 5 of 8 since time 0."""
    stalls = StallDetector(30.0, 3.0)
    for second in range(101):
        stalls.look(TASK, second, {AT: 5}, {AT: 8}, 5)
    return stalls


def test_an_instance_without_reasons_is_live_and_ready() -> None:
    said = health(Seen(now=0.0))
    assert (said.live, said.ready, said.reasons) == (True, True, ())


@pytest.mark.parametrize(
    ("seen", "code", "live", "ready"),
    [
        (Seen(now=0, paused=True), "paused", True, True),
        (Seen(now=0, sure=False, silence="no answer"), "not-a-member", True, False),
        (Seen(now=0, member=False, silence="new"), "not-a-member", True, False),
        (Seen(now=0, version="another"), "another-version", True, False),
        (Seen(now=0, unreadable="a record"), "unreadable-commit", True, False),
        (Seen(now=0, doubts=("reader: away",)), "asking-the-group", True, False),
        (Seen(now=0, resting=("it has died",)), "resting", True, False),
        (Seen(now=0, twins=("a copy",)), "same-process-id", True, False),
        (Seen(now=0, misplaced=("in",)), "partitioner", True, True),
        (Seen(now=0, lost=("late",)), "records-dropped", True, True),
        (Seen(now=0, not_shared=("windows",)), "not-shared", True, True),
        (Seen(now=0, times={TASK: standing(61.0)}), "waits-for-time", True, True),
        (Seen(now=0, states={TASK: "waiting"}), "waiting", True, False),
        (Seen(now=0, states={TASK: "closing"}), "closing", True, False),
        (
            Seen(now=0, states={TASK: "closing"}, draining={TASK: "3 calls"}),
            "draining",
            True,
            True,
        ),
        (
            Seen(
                now=0,
                states={TASK: "closing"},
                draining={TASK: "3 calls"},
                ends=True,
            ),
            "closing",
            True,
            False,
        ),
        (Seen(now=0, calls={TASK: PAUSE}), "calls-pause", True, True),
        (Seen(now=100, stalls=stalled()), "slow", True, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_reason_says_whether_the_instance_is_live_and_ready(
    seen: Seen, code: HealthCode, live: bool, ready: bool
) -> None:
    said = health(seen)
    assert [reason.code for reason in said.reasons] == [code]
    assert (said.live, said.ready) == (live, ready)


def test_a_task_that_is_opened_says_what_it_waits_for_and_one_that_runs_says_nothing() -> (
    None
):
    states = {TASK: "restoring", OTHER: "running"}
    (reason,) = health(Seen(now=0, states=states, opening={TASK: "waits"})).reasons
    assert (reason.code, reason.message, reason.task) == (
        "restoring",
        "waits",
        str(TASK),
    )


def test_a_stalled_task_whose_calls_pause_is_no_reason_to_restart() -> None:
    said = health(Seen(now=100, stalls=stalled(), calls={TASK: PAUSE}))
    assert [reason.code for reason in said.reasons] == ["calls-pause"]
    assert said.live


def test_what_makes_an_instance_not_live_is_told_first_then_why_it_is_not_ready() -> (
    None
):
    stuck = ShareFigures(number=0, waits="", moved_at=0.0, held={"in": 2})
    seen = Seen(now=100, paused=True, shares=(stuck,), version="another")
    said = health(seen)
    assert [reason.code for reason in said.reasons] == [
        "no-progress",
        "another-version",
        "paused",
    ]
    assert not said.live
    assert (
        said.reasons[0].message
        == "share thread 0 has 2 records and has finished none for 100 s"
    )


@pytest.mark.parametrize("paused", [False, True])
def test_share_threads_that_wait_make_it_not_ready_unless_it_is_paused(
    paused: bool,
) -> None:
    waits = ShareFigures(number=1, waits="processing is paused", moved_at=0.0)
    assert health(Seen(now=9, paused=paused, shares=(waits,))).ready is paused


def test_every_code_has_a_meaning_and_a_count() -> None:
    assert KINDS.keys() == set(get_args(HealthCode))
    said = health(Seen(now=0, paused=True))
    counted = by_code(said.reasons)
    assert counted.keys() == set(HEALTH_CODES)
    assert [code for code, count in counted.items() if count] == ["paused"]


def test_a_clock_that_stands_is_told_once_for_all_tasks_with_the_longest_wait() -> None:
    times = {TaskId(1, n, WHOLE): standing(60.0 + n) for n in range(3)}
    (reason,) = health(Seen(now=0, times=times)).reasons
    assert reason.task is None
    assert reason.message == (
        "the clock of sub-topology 1 stands at 2023-11-14T22:13:20Z: sub-topology 0, partition 3, key groups 0..127 "
        "have told no time after 2023-11-14T22:13:20Z for 62 s; b has them"
    )


def test_a_short_wait_for_time_and_one_while_paused_are_no_reasons() -> None:
    assert not health(Seen(now=0, times={TASK: standing(59.0)})).reasons
    assert not health(Seen(now=0, times={TASK: TimeStatus(5)})).reasons
    paused = health(Seen(now=0, paused=True, times={TASK: standing(70.0)}))
    assert [reason.code for reason in paused.reasons] == ["paused"]


def test_a_partition_that_is_held_back_names_the_setting_and_that_nobody_has_the_slowest() -> (
    None
):
    awaited = AwaitedTime(0, 1, "0..255", None, None, 75.0)
    times = {TASK: TimeStatus(1_700_000_000_000, awaited, held_back=True)}
    (reason,) = health(Seen(now=0, times=times)).reasons
    assert reason.message == (
        "sub-topology 0 reads no further than 2023-11-14T22:13:20Z (max.time.skew.ms): sub-topology 0, partition 1, "
        "key groups 0..255 have told no time for 75 s; no process has them"
    )
