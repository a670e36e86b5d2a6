"""The health of a task: good as long as it has no work or makes progress."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.status.stall_detector import (
    BUSY_S,
    LagSample,
    QuietSources,
    StallDetector,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

TASK, OTHER = TaskId(0, 0, WHOLE), TaskId(0, 1, WHOLE)
AT, TABLE = TopicPartition("orders", 0), TopicPartition("names", 0)
LIMIT_S = 30.0

NO_PROGRESS = (
    f"no progress for {{}} s with {{}} records waiting: {AT} at offset 5 of {{}}"
)


def test_a_task_with_nothing_to_do_never_stalls() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for now in range(0, 1000, 10):
        stall_detector.look(TASK, now, {AT: 5}, {AT: 5}, 5)
    assert stall_detector.stalled(2000) == {}


def test_a_task_with_records_waiting_that_does_not_move_stalls_and_says_where() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for now in (0, 10, 20, 30):
        stall_detector.look(TASK, now, {AT: 5, TABLE: 9}, {AT: 8, TABLE: 9}, 5)
    assert stall_detector.stalled(30) == {}
    [(task, why)] = stall_detector.stalled(31).items()
    assert task == TASK
    assert why == f"no progress for 31 s with 3 records waiting: {AT} at offset 5 of 8"


def test_the_clock_begins_when_records_come_and_not_with_the_idle_time_before() -> None:
    stall_detector = StallDetector(LIMIT_S)
    stall_detector.look(TASK, 0, {AT: 5}, {AT: 5}, 5)
    stall_detector.look(TASK, 100, {AT: 5}, {AT: 6}, 5)
    assert stall_detector.stalled(130) == {}
    stall_detector.look(TASK, 125, {AT: 5}, {AT: 6}, 5)
    assert set(stall_detector.stalled(131)) == {TASK}


def test_the_clock_stands_still_during_a_pause() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for now in range(0, 100, 10):
        stall_detector.look(TASK, now, {AT: 5}, {AT: 6}, 5, paused=True)
        assert stall_detector.stalled(now) == {}
    stall_detector.look(TASK, 110, {AT: 5}, {AT: 6}, 5)
    assert stall_detector.stalled(120) == {}, "it went on at 90"
    assert set(stall_detector.stalled(121)) == {TASK}


def test_the_smallest_progress_is_progress() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for step in range(10):
        stall_detector.look(TASK, step * 29, {AT: step}, {AT: 1000}, step)
        assert stall_detector.stalled(step * 29 + 30) == {}


def test_a_task_that_commits_records_behind_one_that_waits_for_a_call_is_slow_and_does_not_stall() -> (
    None
):
    """A restart would begin the call anew, and hold up the keys that do not wait for
    it.
    """
    stall_detector = StallDetector(LIMIT_S, slow_s=3.0)
    for now in range(101):
        stall_detector.look(
            TASK, now, {AT: 5}, {AT: 9 + now}, now, segments=min(now, 60)
        )
        assert stall_detector.stalled(now) == (
            {} if now <= 90 else {TASK: NO_PROGRESS.format(now - 60, 4 + now, 9 + now)}
        )
        if now == 50:
            assert stall_detector.slow(now) == {
                TASK: "no commit of the first record for 50 s with 54 records waiting"
            }
    assert stall_detector.slow(100) == {}, "by then it is `stalled`"


def test_a_task_that_is_opened_again_and_again_without_progress_stalls_too() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for now in (0, 10, 20, 40):
        sample = stall_detector.look(
            TASK, now, {AT: 5}, {AT: 8}, processed=now % 20
        )  # a new opening counts from zero
        assert sample.rate >= 0
    assert set(stall_detector.stalled(41)) == {TASK}


def test_tasks_that_are_gone_are_forgotten() -> None:
    stall_detector = StallDetector(LIMIT_S)
    for task in (TASK, OTHER):
        stall_detector.look(task, 0, {AT: 0}, {AT: 1}, 0)
    stall_detector.keep({OTHER}, {OTHER})
    assert set(stall_detector.stalled(100)) == {OTHER}
    stall_detector.look(TASK, 100, {AT: 0}, {AT: 1}, 0)
    assert set(stall_detector.stalled(101)) == {OTHER}


def test_a_task_whose_commits_fail_stalls_although_it_is_opened_again_after_each() -> (
    None
):
    stall_detector = StallDetector(LIMIT_S)
    for opened in (0, 20):
        for now in range(opened, opened + 16):
            stall_detector.look(TASK, now, {AT: 5}, {AT: 8}, 5)
        stall_detector.keep(set(), {TASK})
        assert stall_detector.stalled(opened + 19) == {}
    stall_detector.look(TASK, 600, {AT: 5}, {AT: 8}, 5)
    assert stall_detector.stalled(600) == {}, (
        "it ran for 30 s, and waited for its state"
    )
    assert set(stall_detector.stalled(601)) == {TASK}
    stall_detector.keep(set(), {TASK})
    stall_detector.look(TASK, 1000, {AT: 6}, {AT: 8}, 5)
    assert stall_detector.stalled(1030) == {}, "it has moved"


def test_health_is_told_while_the_watcher_looks_at_a_task_that_is_new() -> None:
    stall_detector = StallDetector(LIMIT_S)

    class Ends(dict[TopicPartition, int]):
        """Between two samples that a thread of the query server reads, the watcher adds
        one.
        """

        def get(self, source: TopicPartition, default: int = 0) -> int:  # type: ignore[override]
            stall_detector.look(OTHER, 0, {AT: 0}, {AT: 0}, 0)
            return self[source]

    stall_detector.samples[TASK] = LagSample({AT: 5}, Ends({AT: 8}), 5, 0.0)
    assert list(stall_detector.published().stalled(100)) == [TASK]


@given(
    st.lists(
        st.tuples(st.floats(0.1, 10), st.integers(0, 1000)), min_size=12, max_size=12
    )
)
def test_the_rate_stays_between_the_slowest_and_the_fastest_look(
    looks: list[tuple[float, int]],
) -> None:
    stall_detector, now, processed = StallDetector(LIMIT_S), 0.0, 0
    stall_detector.look(TASK, now, {AT: 0}, {AT: 1}, processed)
    fresh = [0.0]  # a task starts without a rate
    for seconds, records in looks:
        before, now, processed = now, now + seconds, processed + records
        fresh.append(records / (now - before))
        sample = stall_detector.look(TASK, now, {AT: 0}, {AT: 1}, processed)
        assert min(fresh) <= sample.rate <= max(fresh) * (1 + 1e-9)


def test_lag_is_the_sum_over_the_sources_and_never_negative() -> None:
    sample = StallDetector(LIMIT_S).look(
        TASK, 0, {AT: 5, TABLE: 9}, {AT: 8, TABLE: 7}, 0
    )
    assert sample.lag == 3


def test_a_task_that_waits_says_so_long_before_it_is_ill() -> None:
    stall_detector = StallDetector(stalled_s=30.0, slow_s=3.0)
    for now in range(10):
        stall_detector.look(TASK, float(now), {AT: 5}, {AT: 9}, 5)
    assert stall_detector.stalled(9.5) == {}
    assert stall_detector.slow(2.0) == {}
    assert stall_detector.slow(9.5) == {
        TASK: "no commit for 10 s with 4 records waiting"
    }
    stall_detector.look(TASK, 10.0, {AT: 9}, {AT: 9}, 9)
    assert stall_detector.slow(60.0) == {}
    stall_detector.look(TASK, 61.0, {AT: 9}, {AT: 12}, 9)
    stall_detector.look(TASK, 62.0, {AT: 9}, {AT: 12}, 9)
    assert stall_detector.slow(98.0) == {}, "by then it is `stalled`, and says more"
    assert list(stall_detector.stalled(98.0)) == [TASK]


def test_a_replica_that_does_not_answer_is_named_while_its_leader_reports_the_old_end() -> (
    None
):
    """The leader's end does not move while records come: no task has lag (seen: 10 of
    13 s without a reason).
    """
    stall_detector = StallDetector()
    for now, end in enumerate([7, 9, 9, 9, 9, 9, 9]):
        stall_detector.look(TASK, float(now), {AT: end}, {AT: end}, end)
        still = stall_detector.quiet.look({AT: end}, float(now))
        assert still == ({AT} if now >= 3 else set()), "those that move are not asked"
        stall_detector.quiet.silent = dict.fromkeys(still, (2,))
    assert stall_detector.slow(4.0) == {}
    assert stall_detector.slow(6.0) == {
        TASK: f"nothing new can be read from {AT} for 5 s: broker 2 has an in-sync replica of it and does not answer"
    }
    stall_detector.quiet.silent = {}  # the cluster has fenced it
    assert stall_detector.slow(7.0) == {}


def test_a_source_that_is_idle_has_nobody_asked() -> None:
    quiet = QuietSources()
    assert quiet.look({AT: 7}, 0.0) == set()
    assert quiet.look({AT: 7}, 30.0) == set(), "whether it was ever busy is not known"
    assert quiet.look({AT: 8}, 31.0) == set()
    assert quiet.look({AT: 8}, 31.0 + BUSY_S) == {AT}
    assert quiet.look({AT: 8}, 31.1 + BUSY_S) == set()
    assert quiet.look({AT: 9}, 32.0 + BUSY_S) == set()
    assert quiet.look({AT: 9, TABLE: 3}, 34.0 + BUSY_S) == {AT}
    assert quiet.look({TABLE: 3}, 35.0 + BUSY_S) == set(), "its task is gone"


def test_all_reasons_of_a_task_are_named() -> None:
    stall_detector = StallDetector()
    stall_detector.look(TASK, 1.0, {AT: 5, TABLE: 2}, {AT: 9, TABLE: 2}, 5)
    stall_detector.unanswered[TABLE] = 2.0
    assert stall_detector.slow(12.0) == {
        TASK: f"the leader of {TABLE} has not answered for 10 s, no commit for 11 s with 4 records waiting"
    }


def test_a_leader_that_does_not_answer_is_named_although_no_lag_is_known() -> None:
    stall_detector = StallDetector()
    stall_detector.look(TASK, 1.0, {AT: 9}, {AT: 9}, 9)
    stall_detector.unanswered[AT] = 2.0
    assert stall_detector.slow(4.0) == {}
    assert stall_detector.slow(12.0) == {
        TASK: f"the leader of {AT} has not answered for 10 s"
    }
    stall_detector.slow_s = 20.0  # of an application that commits rarely
    assert stall_detector.slow(12.0) == {}
