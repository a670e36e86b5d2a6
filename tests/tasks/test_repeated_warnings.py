"""Rate limit of repeated log lines: the first are logged in full, the others counted;
none is missing.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.tasks.repeated_warnings import EVERY_S, FIRST, Repeats


def counted(lines: list[str]) -> int:
    return sum(int(line.split(" more like this")[0].replace(",", "")) for line in lines)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, EVERY_S))))
def test_whatever_is_heard_is_said_in_full_or_counted(
    heard: list[tuple[str, float]],
) -> None:
    repeats, now, full, lines = Repeats(), 0.0, Counter[str](), list[str]()
    for kind, later in heard:
        now += later
        full[kind] += repeats.hear(kind, "text", now)
        lines += repeats.due(now)
    lines += repeats.rest()
    every = Counter(kind for kind, _ in heard)
    assert full == {kind: min(FIRST, count) for kind, count in every.items()}
    assert counted(lines) + full.total() == len(heard)
    assert len(lines) <= len(every) * (2 + now / EVERY_S)


def test_what_is_counted_is_said_at_intervals_with_the_last_of_it() -> None:
    repeats = Repeats()
    for number in range(FIRST + 3):
        repeats.hear("kind", f"the number {number}", 0.0)
    assert repeats.due(EVERY_S - 1) == []
    assert repeats.due(EVERY_S) == [
        f"3 more like this, {FIRST + 3} so far; the last: the number {FIRST + 2}"
    ]
    assert repeats.due(2 * EVERY_S) == [], "nothing more was heard"
    repeats.hear("kind", "one more", 2 * EVERY_S)
    assert repeats.due(2 * EVERY_S) == [
        f"1 more like this, {FIRST + 4} so far; the last: one more"
    ]
