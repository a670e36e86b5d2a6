"""Threads that make calls, and those that do not come back from one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest

from coopstreams.calling import lanes
from coopstreams.calling.call_threads import CallThreads
from coopstreams.calling.lanes import MOST_LEFT, Call, Lane
from coopstreams.topology.calls import calling
from tests.calling.lanes import PATIENCE_S, ended
from tests.durations import ms


async def awaited(value: int) -> int:
    return value


def test_calls_that_come_one_after_the_other_share_a_few_threads() -> None:
    threads, over = CallThreads(), queue.SimpleQueue[threading.Thread]()
    used = set()
    for _ in range(200):
        threads.put(lambda: over.put(threading.current_thread()))
        used.add(over.get(timeout=PATIENCE_S))
    assert len(used) < 20
    assert all(thread.daemon for thread in used)


def test_a_call_does_not_wait_for_another_one() -> None:
    threads, together, over = (
        CallThreads(),
        threading.Barrier(50),
        queue.SimpleQueue[int](),
    )
    for _ in range(50):
        threads.put(lambda: over.put(together.wait(PATIENCE_S)))
    assert sorted(over.get(timeout=PATIENCE_S) for _ in range(50)) == list(range(50))


def test_a_call_behind_one_that_never_returns_is_made_on_another_thread() -> None:
    let_go, made = threading.Event(), list[int]()

    def hangs(number: int) -> int:
        made.append(number)
        if number == 0:
            let_go.wait(PATIENCE_S)
        return number

    first, *others = ended(
        [Call(hangs, (number,), None) for number in range(3)],
        max_in_flight=1,
        timeout=ms(1000),
    )
    let_go.set()
    assert isinstance(first.error, TimeoutError)
    assert [(call.value, call.error) for call in others] == [(1, None), (2, None)]
    assert made == [0, 1, 2]


def test_threads_that_never_return_are_not_more_and_more_and_calls_that_wait_for_them_are_made_later() -> (
    None
):
    let_go, begun = threading.Event(), threading.Semaphore(0)

    def hangs(number: int) -> int:
        begun.release()
        let_go.wait(PATIENCE_S)
        return number

    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    lane = Lane[Call](
        calling("f", hangs, order="none", max_in_flight=MOST_LEFT, timeout=ms(1000)),
        told.put,
    )
    calls = [Call(hangs, (number,), None) for number in range(2 * MOST_LEFT + 1)]
    lane.begin(calls)
    for _ in range(2 * MOST_LEFT):
        assert begun.acquire(timeout=PATIENCE_S)
    over = list[Call]()
    while len(over) < 2 * MOST_LEFT:
        over += told.get(timeout=PATIENCE_S)
    assert all(isinstance(call.error, TimeoutError) for call in over)
    let_go.set()
    assert told.get(timeout=PATIENCE_S) == [calls[-1]]
    assert (calls[-1].value, calls[-1].error) == (2 * MOST_LEFT, None)


def test_threads_that_closed_tasks_have_left_behind_are_not_more_and_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task whose failed records are processed again later is opened again each time."""
    monkeypatch.setattr(lanes, "MOST_LOST", 2)
    let_go, begun = threading.Event(), threading.Semaphore(0)

    def hangs() -> None:
        begun.release()
        let_go.wait(PATIENCE_S)

    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    for _ in range(2):
        lane = Lane[Call](calling("f", hangs), told.put)
        lane.begin([Call(hangs, (), None)])
        assert begun.acquire(timeout=PATIENCE_S)
        lane.cancel()
        lane.cancel()
    lane = Lane[Call](calling("f", hangs), told.put)
    lane.begin([Call(hangs, (), None)])
    assert ended([Call(awaited, (7,), None)])[0].value == 7, (
        "the loop has begun the other call, too"
    )
    lane.drain()
    assert told.get(timeout=PATIENCE_S) == ()
    assert lane.drained, "its call was not made"
    let_go.set()
    assert ended([Call(abs, (-7,), None)])[0].value == 7


def test_calls_that_waited_for_threads_of_closed_tasks_keep_to_the_threads_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two calls had seen that one thread is left before both waited for others: a lane
    that is beyond its bound by one never waited again.
    """
    monkeypatch.setattr(lanes, "MOST_LOST", 1)
    monkeypatch.setattr(lanes, "MOST_LEFT", 1)
    monkeypatch.setattr(lanes, "LOOK_S", 0.01)
    others_go, let_go = threading.Event(), threading.Event()
    begun = threading.Semaphore(0)
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    hanging = list[int]()

    def hangs() -> int:
        hanging.append(1)
        at_once = len(hanging)
        begun.release()
        let_go.wait(PATIENCE_S)
        return at_once

    def lost() -> None:
        begun.release()
        others_go.wait(PATIENCE_S)

    def late(count: int) -> None:
        over = list[Call]()
        while len(over) < count:
            over += told.get(timeout=PATIENCE_S)
        assert all(isinstance(call.error, TimeoutError) for call in over)

    of_two = calling("f", hangs, order="none", max_in_flight=2, timeout=ms(200))
    lane = Lane[Call](of_two, told.put)
    lane.begin([Call(hangs, (), None) for _ in range(2)])
    late(2)
    closed = Lane[Call](calling("g", lost), told.put)
    closed.begin([Call(lost, (), None)])
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE_S)
    closed.cancel()
    waiting = [Call(hangs, (), None) for _ in range(2)]
    lane.begin(waiting)
    assert ended([Call(awaited, (7,), None)])[0].value == 7, "both have seen a thread"
    others_go.set()
    late(1)  # the one that took the thread; the other one waits
    assert len(hanging) == 3
    let_go.set()
    assert told.get(timeout=PATIENCE_S)[0].value == 4


def test_a_call_that_waits_for_a_thread_is_forgotten_when_the_lane_is_drained() -> None:
    let_go, begun = threading.Event(), threading.Semaphore(0)

    def hangs() -> None:
        begun.release()
        let_go.wait(PATIENCE_S)

    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    lane = Lane[Call](calling("f", hangs, max_in_flight=1, timeout=ms(1)), told.put)
    lane.begin([Call(hangs, (), None) for _ in range(MOST_LEFT + 2)])
    for _ in range(MOST_LEFT + 1):
        assert begun.acquire(timeout=PATIENCE_S)
    over = list[Call]()
    while len(over) < MOST_LEFT + 1:
        over += told.get(timeout=PATIENCE_S)
    lane.drain()
    assert told.get(timeout=PATIENCE_S) == ()
    assert lane.drained
    let_go.set()
