"""The gate between commits and joins: each waits for the other, for a limited time."""

from __future__ import annotations

import threading

from coopstreams.group.membership import CommitGate

LONG = 10.0
SHORT = 0.01


def test_commits_go_on_side_by_side() -> None:
    gate = CommitGate()
    assert gate.enter(LONG)
    assert gate.enter(LONG)


def test_a_join_waits_until_the_last_commit_is_over() -> None:
    gate = CommitGate()
    gate.enter(LONG)
    gate.enter(LONG)
    assert not gate.close()
    gate.leave()
    assert not gate.close()
    gate.leave()
    assert gate.close()


def test_a_commit_waits_for_a_join_to_end() -> None:
    gate = CommitGate()
    assert gate.close()
    entered: list[bool] = []
    committer = threading.Thread(target=lambda: entered.append(gate.enter(LONG)))
    committer.start()
    assert not entered
    gate.open()
    committer.join(LONG)
    assert entered == [True]


def test_a_join_that_waits_keeps_new_commits_out_so_that_its_turn_comes() -> None:
    gate = CommitGate()
    gate.enter(LONG)
    assert not gate.close()
    assert not gate.enter(SHORT)


def test_an_impatient_commit_goes_on_beside_a_join_and_is_counted() -> None:
    gate = CommitGate()
    assert gate.close()
    assert not gate.enter(SHORT)
    assert not gate.close()
    gate.leave()
    assert gate.close()
