"""The circuit breaker: it admits attempts correctly for any order of beginnings and
ends.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams.calling.breaker import Admission, Breaker
from coopstreams.topology.calls import CircuitBreaker
from tests.durations import ms

PAUSE_S = 5.0
COUNTED, OTHER = ConnectionError("refused"), ValueError("a bad record")
EVENTS = st.one_of(
    st.just("begin"),
    st.just("begin"),
    st.tuples(
        st.integers(0, 20),
        st.sampled_from([None, COUNTED, COUNTED, COUNTED, COUNTED, OTHER]),
    ),
    st.sampled_from([2.0, PAUSE_S]),
)


@example(failures=1, events=["begin", (0, COUNTED), PAUSE_S, "begin", "begin"])
@example(
    failures=2,
    events=["begin"] * 4
    + [(0, COUNTED), (0, COUNTED), (0, None), PAUSE_S, "begin", (1, COUNTED)],
)
@example(
    failures=2,
    events=[
        "begin",
        "begin",
        (0, COUNTED),
        (0, COUNTED),
        PAUSE_S,
        "begin",
        (0, None),
        "begin",
        (0, COUNTED),
    ],
)
@example(
    failures=2,
    events=["begin", (0, COUNTED), "begin", (0, OTHER), "begin", (0, COUNTED), "begin"],
)
@given(failures=st.integers(1, 4), events=st.lists(EVENTS, max_size=80))
def test_it_opens_after_so_many_failures_in_a_row_and_only_a_probe_closes_it(
    failures: int, events: list[str | float | tuple[int, Exception | None]]
) -> None:
    breaker = Breaker(
        CircuitBreaker(failures=failures, pause=ms(5000), on=(ConnectionError,))
    )
    now, opened_at, in_a_row = 0.0, None, 0
    under_way: list[Admission] = []
    for event in events:
        if isinstance(event, float):
            now += event
        elif event == "begin":
            probed = "probe" in under_way
            expected = (
                "free"
                if opened_at is None
                else "wait"
                if probed or now < opened_at + PAUSE_S
                else "probe"
            )
            admission = breaker.admit(now)
            assert admission == expected
            if admission != "wait":
                under_way.append(admission)
        elif under_way:
            assert isinstance(event, tuple)
            admission = under_way.pop(event[0] % len(under_way))
            breaker.ended(admission, event[1], now)
            failed = event[1] is COUNTED
            if admission == "probe":
                opened_at, in_a_row = (now if failed else None), 0
            elif opened_at is None:
                in_a_row = in_a_row + 1 if failed else 0
                opened_at = now if in_a_row == failures else None
        left_s = breaker.wait_s(now)
        assert bool(breaker.why(now)) == (opened_at is not None)
        if opened_at is None or "probe" in under_way:
            assert left_s is None
        else:
            assert left_s == max(0.0, opened_at + PAUSE_S - now)


def test_it_says_what_failed_and_when_the_next_is_tried() -> None:
    breaker = Breaker(CircuitBreaker(failures=2, pause=ms(5000)))
    for now in (1.0, 2.0):
        breaker.ended(breaker.admit(now), COUNTED, now)
    said = (
        "2 in a row have failed, the last with ConnectionError: refused; one is tried "
    )
    assert breaker.why(4.0) == said + "in 3 s"
    assert breaker.admit(7.0) == "probe"
    assert breaker.why(7.0) == said + "now"
