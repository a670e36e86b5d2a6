"""How many records an interval may have, after commits that ran out of time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.records_per_commit import ANY, Interval

LIMIT_S = 10.0


@dataclass(eq=False)
class Counted:
    """A task that counts only."""

    processed: int = 0


def attempt(
    interval: Interval[Counted], task: Counted, waiting: int, seconds_each: float
) -> int:
    """Process what waits, as far as the interval lets it, and commit in a time that
    grows with the records; return how many were committed.
    """
    interval.begin(task, 0.0)
    done = min(waiting, interval.room)
    task.processed += done
    late = (took := done * seconds_each) > LIMIT_S
    interval.failed(took) if late else interval.committed(took)
    interval.tasks.clear()
    return 0 if late else done


@given(st.floats(1e-6, LIMIT_S))
def test_commits_get_through_however_slowly_results_are_taken(
    seconds_each: float,
) -> None:
    """With a quota far below what an interval writes, each commit failed after 10 s,
    and was done again as large.
    """
    interval, task = Interval[Counted](LIMIT_S), Counted()
    results = [attempt(interval, task, 10 * ANY, seconds_each) for _ in range(40)]
    failed = results.index(next(filter(None, results)))
    assert failed <= 12
    assert 0 not in results[failed:], (
        "a bound that has let a commit through never grows until one fails again"
    )


def test_when_results_are_taken_fast_again_there_is_no_bound_after_some_commits() -> (
    None
):
    interval, task = Interval[Counted](LIMIT_S), Counted()
    assert interval.room == ANY
    for _ in range(12):
        attempt(interval, task, ANY, LIMIT_S + 1)
    assert interval.room == 1
    for _ in range(20):
        attempt(interval, task, ANY, 0.0)
    assert interval.room == ANY


def test_a_commit_that_fails_at_once_or_of_nothing_says_nothing_about_time() -> None:
    interval, task = Interval[Counted](LIMIT_S), Counted()
    interval.begin(task, 100.0)
    assert interval.failed(120.0) == "", "nothing was processed"
    task.processed = 400
    assert interval.failed(100.1) == "", "another owner, a coordinator that has moved"
    assert (
        interval.failed(109.8)
        == " (The next commits come after 100 records at the latest, until they are well in time.)"
    )
    assert interval.room == 0, "those of the failed one count until it is void"
    interval.tasks.clear()
    assert interval.room == 100
