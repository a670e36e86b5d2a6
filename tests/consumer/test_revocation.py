"""The three lists of KIP-983, and the deadline."""

from __future__ import annotations

from coopstreams.consumer.revocation import Revocations


def test_what_is_asked_for_in_one_poll_is_given_up_in_the_next() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.poll(0)
    lists.ask(["a"], 0)
    assert lists.next == {"a"}
    assert lists.poll(1) == ({"a"}, set())
    assert lists.next == frozenset()
    assert "a" not in lists


def test_a_delay_moves_it_one_poll_further_each_time() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.ask(["a", "b"], 0)
    for now in range(1, 5):
        assert lists.delay(["a"])
        given_up, _ = lists.poll(now)
        assert given_up == ({"b"} if now == 1 else set())
        assert lists.next == {"a"}
    assert lists.poll(6) == ({"a"}, set())


def test_after_the_deadline_it_is_lost_and_cannot_be_delayed() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.ask(["a", "b"], 0)
    assert lists.delay(["a", "b"])
    assert lists.poll(61) == (set(), {"a", "b"})
    assert lists.lost == {"a", "b"}
    assert not lists.delay(["a"])
    assert "a" not in lists


def test_what_is_lost_leaves_both_lists_and_is_told_until_the_next_poll() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.ask(["a", "b", "c"], 0)
    lists.delay(["b"])
    lists.lose(["a", "b", "d"])
    assert lists.lost == {"a", "b", "d"}
    assert not lists.delay(["c", "a"]), "one of them is lost: nothing is delayed"
    assert lists.poll(1) == ({"c"}, set())
    assert lists.lost == set()


def test_asking_twice_does_not_move_the_deadline() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.ask(["a"], 0)
    lists.delay(["a"])
    lists.ask(["a"], 50)
    assert lists.expire(60) == {"a"}


def test_what_the_group_gives_back_stays() -> None:
    lists: Revocations[str] = Revocations(60)
    lists.ask(["a", "b"], 0)
    lists.delay(["b"])
    lists.keep(["a", "b"])
    assert lists.poll(1) == (set(), set())
    assert "b" not in lists
