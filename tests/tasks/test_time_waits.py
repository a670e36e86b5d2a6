"""Who is waited for where time stands, and since when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.clocks import UNHEARD, Awaited, Clock, Mark
from coopstreams.tasks.time_waits import ClockWait, HeldBack, held_back, looked_at
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyGroups, KeyRange

LEFT, RIGHT = KeyRange.split(2)
SLOW = Awaited(1, ALL_GROUPS, 100)


def test_a_clock_waits_from_when_a_later_record_has_come() -> None:
    clock = Clock(2)
    clock.hear(Mark.of(0, WHOLE, 20))
    clock.hear(Mark.of(1, WHOLE, 10))
    idle = looked_at(clock, 10, None, 1.0)
    assert idle == ClockWait(10, 10)
    waits = looked_at(clock, 15, idle, 500.0)
    assert waits == ClockWait(10, 15, Awaited(1, ALL_GROUPS, 10), 500.0)
    assert looked_at(clock, 30, waits, 501.0).since == 500.0
    clock.hear(Mark.of(1, WHOLE, 12))
    moved = looked_at(clock, 30, waits, 502.0)
    assert (moved.time, moved.since, moved.lag_ms) == (12, 502.0, 18)


def test_a_clock_waits_for_the_key_groups_that_have_told_nothing() -> None:
    clock = Clock(2)
    clock.hear(Mark.of(0, WHOLE, 20))
    clock.hear(Mark.of(1, RIGHT, 30))
    waits = looked_at(clock, 25, None, 1.0)
    assert waits.awaited == Awaited(1, KeyGroups(0, 127), UNHEARD)
    assert waits.lag_ms == 0
    clock.hear(Mark.of(1, LEFT, 30))
    waits = looked_at(clock, 25, waits, 2.0)
    assert waits == ClockWait(20, 25, Awaited(0, ALL_GROUPS, 20), 2.0)


marks = st.builds(
    Mark.of,
    st.integers(0, 1),
    st.sampled_from([LEFT, RIGHT, WHOLE]),
    st.integers(0, 9),
)


@given(st.lists(st.tuples(marks, st.integers(0, 9)), min_size=1, max_size=20))
def test_a_wait_is_as_long_as_the_clock_stands_below_a_record(
    heard: list[tuple[Mark, int]],
) -> None:
    clock, before, since, newest = Clock(2), None, 0.0, UNHEARD
    for second, (mark, birth) in enumerate(heard):
        stood = before is not None and before.time < newest
        newest = max(newest, birth)
        clock.hear(mark)
        if before is None or not stood or clock.now != before.time:
            since = float(second)
        before = looked_at(clock, newest, before, float(second))
        if clock.now < newest:
            assert before.since == since
            assert before.awaited == clock.waits_for
        else:
            assert before.awaited is None


def test_a_partition_is_held_back_above_the_most_and_goes_on_below_it() -> None:
    assert held_back(150, SLOW, 50, None, 1.0) is None
    held = held_back(151, SLOW, 50, None, 1.0)
    assert held == HeldBack(151, SLOW, 1.0)
    assert held_back(151, SLOW, 50, held, 9.0) == held
    faster = SLOW._replace(time=101)
    assert held_back(151, faster, 50, held, 9.0) is None
    assert held_back(152, faster, 50, held, 9.0) == HeldBack(152, faster, 9.0)


@given(st.lists(st.integers(-1, 1000), min_size=1, max_size=5), st.integers(0, 100))
def test_the_slowest_is_never_held_back(times: list[int], most_ms: int) -> None:
    """Otherwise all would stand for ever."""
    slowest = min(times)
    awaited = Awaited(times.index(slowest), ALL_GROUPS, slowest)
    assert held_back(slowest, awaited, most_ms, None, 0.0) is None


def test_who_has_told_no_time_holds_the_others_only() -> None:
    silent = Awaited(1, ALL_GROUPS, UNHEARD)
    assert held_back(UNHEARD, silent, 50, None, 1.0) is None
    assert held_back(0, silent, 50, None, 1.0) is not None
