"""Calls that may never return."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from coopstreams.log.kafka.time_limit import Bounded


def refuse() -> None:
    raise ValueError("no")


def test_a_call_gives_its_result_or_its_error() -> None:
    bounded = Bounded()
    assert [bounded.run(partial(pow, number, 2), 60) for number in range(3)] == [
        0,
        1,
        4,
    ]
    with pytest.raises(ValueError, match="no"):
        bounded.run(refuse, 60)
    assert bounded.run(lambda: "after", 60) == "after"
    bounded.close()
    bounded.close()


def test_a_call_that_does_not_come_back_is_given_up_and_the_next_one_is_made() -> None:
    bounded, stuck, came_back = Bounded(), threading.Event(), threading.Event()

    def never() -> None:
        stuck.wait()
        came_back.set()

    with pytest.raises(TimeoutError):
        bounded.run(never, 0.1)
    assert bounded.run(lambda: "next", 60) == "next"
    stuck.set()
    assert came_back.wait(60)
    bounded.close()


def test_its_thread_ends_when_it_is_closed() -> None:
    bounded = Bounded()
    thread = bounded.run(threading.current_thread, 60)
    assert thread is not threading.current_thread()
    bounded.close()
    thread.join(60)
    assert not thread.is_alive()
