"""The moments of heartbeats: all members of a group have the same ones, so that all hear
of a rebalance at once.
"""

from __future__ import annotations

import math
import time

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.common.host import System
from coopstreams.group.heartbeats import Heartbeats, until_heartbeat

INTERVAL_S = 0.4
EARLY = 0.1
"""A tenth of an interval: more than a heartbeat may be early."""
moments = st.integers(1_700_000_000_000, 1_900_000_000_000).map(lambda ms: ms / 1000)
parts = st.floats(0, 1)


class Stopped(System):
    """A host whose wall clock stands."""

    def __init__(self, at_s: float) -> None:
        super().__init__()
        self.at_s = at_s

    def wall_ms(self) -> int:
        return round(self.at_s * 1000)


def heartbeats(group: str, at_s: float) -> Heartbeats:
    return Heartbeats(
        group,
        Stopped(at_s),
        group_id=group,
        heartbeat_interval_ms=round(INTERVAL_S * 1000),
        session_timeout_ms=10_000,
    )


@given(at_s=moments, first=parts, second=parts)
def test_members_that_have_just_sent_one_send_the_next_at_the_same_moment(
    at_s: float, first: float, second: float
) -> None:
    """Whenever in the interval before that was."""
    moment = math.ceil(at_s / INTERVAL_S) * INTERVAL_S
    now = moment - EARLY * INTERVAL_S
    for part in (first, second):
        ago_s = part * (1 - 2 * EARLY) * INTERVAL_S
        left_s = until_heartbeat(now, ago_s, INTERVAL_S)
        assert math.isclose(left_s, EARLY * INTERVAL_S, abs_tol=1e-5)


@given(at_s=moments, ago=st.floats(0, 100))
def test_a_heartbeat_is_due_within_little_more_than_an_interval(
    at_s: float, ago: float
) -> None:
    left_s = until_heartbeat(at_s, ago * INTERVAL_S, INTERVAL_S)
    assert 0 <= left_s <= max(0.0, (1 + EARLY - ago) * INTERVAL_S)


@given(at_s=moments)
def test_one_that_was_a_little_early_is_not_sent_again(at_s: float) -> None:
    moment = math.ceil(at_s / INTERVAL_S) * INTERVAL_S
    early = moment - 0.01
    assert until_heartbeat(early, 0.0, INTERVAL_S) > INTERVAL_S


def test_groups_have_moments_of_their_own() -> None:
    groups = [f"group-{number}" for number in range(5)]
    waits = {
        heartbeats(group, 1_800_000_000.0).time_to_next_heartbeat() for group in groups
    }
    assert len({round(wait, 2) for wait in waits}) > 1


def test_one_that_was_asked_for_is_due_at_once() -> None:
    """`Member.heartbeat_now`."""
    one = heartbeats("orders", 1_800_000_000.0)
    one.last_send = time.monotonic()
    assert not one.should_heartbeat()
    one.last_send = one.last_reset = float("-inf")
    assert one.should_heartbeat()
