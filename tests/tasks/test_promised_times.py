"""What a silent partition promises, and when time marks are due."""

from __future__ import annotations

from coopstreams.tasks.mark_schedule import REPEAT_S, MarkSchedule
from coopstreams.tasks.promised_times import Advance, Advances, promised
from coopstreams.topology.columns import TopicPartition

IDLE_S = 5.0
FIRST = TopicPartition("timed", 0)
SECOND = TopicPartition("timed", 1)


def test_a_silent_partition_promises_the_least_time_of_those_that_go_on() -> None:
    others = [Advance(90, seen_at=99.0), Advance(70, seen_at=98.0)]
    assert promised(others, 100.0, IDLE_S) == 70


def test_a_partition_that_is_silent_itself_holds_nobody() -> None:
    others = [Advance(90, seen_at=99.0), Advance(10, seen_at=50.0)]
    assert promised(others, 100.0, IDLE_S) == 90


def test_where_all_are_silent_everything_has_been_read() -> None:
    others = [Advance(90, seen_at=50.0), Advance(70, seen_at=50.0)]
    assert promised(others, 100.0, IDLE_S) == 90
    assert promised([], 100.0, IDLE_S) == -1


def test_two_that_fall_silent_together_see_each_others_last_time() -> None:
    times = Advances()
    times.look({FIRST: 10, SECOND: 20}, now=0.0)
    times.look({FIRST: 10, SECOND: 20}, now=IDLE_S)
    assert times.promised(FIRST, IDLE_S, IDLE_S) == 20
    assert times.promised(SECOND, IDLE_S, IDLE_S) == 10  # it has passed that itself


def test_a_silent_topic_follows_those_that_are_read_with_it() -> None:
    """Their records wait for it."""
    clicks = TopicPartition("clicks", 0)
    times = Advances()
    times.look({FIRST: 10, SECOND: 20, clicks: 20}, now=0.0)
    times.look({FIRST: 10, SECOND: 20, clicks: 90}, now=100.0)
    assert times.promised(FIRST, 100.0, IDLE_S) == 90
    assert times.promised(SECOND, 100.0, IDLE_S) == 90


def test_a_partition_whose_process_is_down_is_waited_for() -> None:
    """It makes no promise; what the others promise is theirs alone."""
    times = Advances()
    times.look({FIRST: 10, SECOND: -1}, now=0.0)
    times.look({FIRST: 60, SECOND: -1}, now=100.0)
    assert times.promised(SECOND, 100.0, IDLE_S) == 60
    assert times.promised(FIRST, 100.0, IDLE_S) == -1


def test_a_mark_is_due_where_time_has_advanced_and_now_and_then() -> None:
    marks = MarkSchedule()
    assert marks.due({"t": -1}, 0.0, 0.2) == {}
    assert marks.due({"t": 5}, 0.0, 0.2) == {"t": 5}
    marks.stage({"t": 5}, 0.0)
    assert marks.due({"t": 5}, 0.1, 0.2) == {"t": 5}, "not before the commit"
    marks.committed()
    assert marks.due({"t": 6}, 0.1, 0.2) == {}
    assert marks.due({"t": 6}, 0.3, 0.2) == {"t": 6}
    assert marks.due({"t": 5}, REPEAT_S - 0.1, 0.2) == {}
    assert marks.due({"t": 5}, REPEAT_S, 0.2) == {"t": 5}
