"""An error counts only if the process owned its tasks when it happened, in any order of
the group's answers.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.tasks.events import Failed
from coopstreams.tasks.held_errors import Doubts

happenings = st.lists(
    st.sampled_from(["expire", "error", "old error", "answer", "told"]), max_size=40
)


@given(happenings)
def test_no_error_counts_that_happened_after_the_group_had_given_the_tasks_away(
    happens: list[str],
) -> None:
    """The group removes this member at times (`expire`); an answer informs the member,
    and later the control thread (`told`).
    """
    doubts, now = Doubts(), 0.0
    ours, member_epoch, heard_at = True, 0, 0.0
    """Whether the group still has this member; the member's epoch; the time of its last
    answered request.
    """
    real: dict[str, bool] = {}
    decided: set[str] = set()
    for what in happens:
        now += 1.0
        match what:
            case "expire":
                ours = False
            case "error" | "old error":
                # An error of the control thread's epoch, or of an earlier one: a thread
                # that dies late.
                epoch = doubts.epoch if what == "error" else max(0, doubts.epoch - 1)
                name = f"error {now}"
                real[name] = ours and epoch == member_epoch
                doubts.hold(Failed(ValueError(name), "reader", epoch=epoch), now)
            case "answer" if ours:
                heard_at = now
            case "answer":  # refused: it joins again, under another epoch
                member_epoch, heard_at, ours = member_epoch + 1, now, True
            case _:
                doubts.epoch = member_epoch

        def confirmed(
            since: float,
            epoch: int,
            heard_at: float = heard_at,
            member_epoch: int = member_epoch,
        ) -> bool:
            return heard_at > since and member_epoch == epoch

        counts, void = doubts.settle(confirmed)
        for failure in ([] if counts is None else [counts]) + void:
            name = str(failure.error)
            assert name not in decided
            decided.add(name)
        assert counts is None or real[str(counts.error)]
        assert not any(
            real[str(failure.error)] and member_epoch == doubts.epoch and ours
            for failure in void
            if failure.epoch == member_epoch
        )
    # The group answers, and the control thread gets the event: no error is held for
    # ever.
    if not ours:
        member_epoch += 1
    doubts.epoch = member_epoch
    for _ in range(len(doubts.held)):
        doubts.settle(lambda _, epoch: member_epoch == epoch)
    assert doubts.held == ()


def test_several_errors_that_count_are_told_one_by_one() -> None:
    doubts = Doubts()
    first, second = (
        Failed(ValueError("1"), "stream thread 0", 0),
        Failed(ValueError("2"), "stream thread 1", 1),
    )
    doubts.hold(first, 1.0)
    doubts.hold(second, 2.0)
    assert doubts.settle(lambda *_: False) == (None, [])
    assert doubts.settle(lambda *_: True) == (first, [])
    assert doubts.settle(lambda *_: True) == (second, [])
    assert doubts.settle(lambda *_: True) == (None, [])


def test_an_error_without_an_epoch_is_of_the_one_that_was_heard_of_last() -> None:
    doubts = Doubts(epoch=3)
    failure = Failed(ValueError(), "reader")
    assert doubts.hold(failure, 1.0).epoch == 3
    doubts.epoch = 4
    assert doubts.settle(lambda *_: True) == (None, [failure])
