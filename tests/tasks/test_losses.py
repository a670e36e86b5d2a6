"""When it is said that a sub-topology leaves out many records."""

from __future__ import annotations

from coopstreams.tasks.losses import AGAIN_S, LEAST_RECORDS, WINDOW_S, Losses

LATE = ("windows", "late")


def lost(
    processed: int, dropped: int, drop: tuple[str, str] = LATE, now: float = 0.0
) -> Losses:
    losses = Losses({"windows": "counts"})
    losses.add(1, processed, {drop: dropped}, now)
    return losses


def test_more_than_a_few_percent_is_said_with_place_share_and_cure() -> None:
    (text,) = lost(10_000, 400).look(0.0)
    assert text.startswith(
        'sub-topology 1 left out 400 of its last 10,000 records at windows (store "counts"): late. Their windows'
    )
    assert "grace" in text


def test_a_small_share_few_records_and_what_loses_nothing_are_not_said() -> None:
    assert lost(10_000, 200).look(0.0) == []
    assert lost(LEAST_RECORDS, LEAST_RECORDS - 1).look(0.0) == []
    assert lost(1000, 1000, ("table", "not-the-latest")).look(0.0) == []


def test_the_share_is_that_of_all_tasks_of_a_sub_topology() -> None:
    losses = lost(1000, 200)
    losses.add(1, 20_000, {}, 1.0)
    assert losses.look(1.0) == []
    losses.add(2, 1_000_000, {}, 1.0)
    losses.add(1, 0, {LATE: 600}, 2.0)
    assert len(losses.look(2.0)) == 1


def test_it_is_known_while_it_lasts_and_logged_again_from_time_to_time() -> None:
    losses = Losses({})
    logged = []
    for second in range(0, int(2.5 * AGAIN_S), 10):
        losses.add(0, 100, {LATE: 50}, float(second))
        logged += losses.look(float(second))
        assert len(losses.known) == (second >= 10)
    assert len(logged) == 3


def test_what_was_mended_is_forgotten() -> None:
    losses = lost(1000, 1000)
    assert losses.look(1.0)
    assert losses.look(WINDOW_S) == []
    assert losses.known
    assert losses.look(WINDOW_S + 1) == []
    assert losses.known == ()
