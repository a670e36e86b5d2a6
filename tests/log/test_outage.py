"""Log lines during an outage of brokers: few, however many clients report it, and one
at its end.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.kafka.outage import EVERY_S, OVER_S, Outage

FAIL = "[thrd:h:1/1]: h:1/1: Connect to ipv4#10.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)"
OTHER = (
    "[thrd:GroupCoordinator]: GroupCoordinator: h:1: Connect to ipv4#10.0.0.1:1 failed: Connection refused (after 3ms "
    "in state CONNECT)"
)


def test_an_outage_begins_lasts_and_ends() -> None:
    outage = Outage()
    assert (
        outage.heard(FAIL, 100.0)
        == "Kafka broker h:1 does not answer: Connection refused; trying again"
    )
    assert outage.heard(OTHER, 101.0) is None, "another client, the same broker"
    assert outage.answered(100.5, 102.0) is None, (
        "asked before the last trouble: the answer may have been on its way"
    )
    assert (
        outage.heard(FAIL, 100.0 + EVERY_S)
        == "Kafka broker h:1 does not answer, for 60 s: Connection refused; trying again"
    )
    assert outage.answered(170.0, 175.0) == "Kafka answers again, after 75 s"
    assert outage.answered(176.0, 177.0) is None


def test_where_nobody_asks_a_later_outage_is_not_taken_for_the_same() -> None:
    outage = Outage()
    outage.heard(FAIL, 0.0)
    assert (
        outage.heard(FAIL, OVER_S + 1)
        == "Kafka broker h:1 does not answer: Connection refused; trying again"
    )


def test_a_broker_of_several_that_stays_away_is_said_once_a_minute() -> None:
    """The other brokers answer all the time."""
    outage, said = Outage(), list[str]()
    for second in range(240):
        said += [
            line
            for line in (
                outage.heard(FAIL, second),
                outage.answered(second + 0.5, second + 0.6),
            )
            if line
        ]
    assert len(said) <= 2 * 240 / EVERY_S


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FAIL, OTHER, FAIL.replace("h:1", "g:2"), None]),
            st.floats(0, 30),
        )
    )
)
def test_the_end_is_said_only_of_what_was_said_to_begin(
    events: list[tuple[str | None, float]],
) -> None:
    outage, now, away = Outage(), 0.0, False
    for trouble, later in events:
        now += later
        said = (
            outage.answered(now, now) if trouble is None else outage.heard(trouble, now)
        )
        if said is not None:
            assert away or trouble is not None
            away = trouble is not None
