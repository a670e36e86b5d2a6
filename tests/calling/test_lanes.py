"""Lanes: the order of calls, attempts, time-outs, and the ends of calls."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.calling.lanes import MOST_THREADS, Call, Lane
from coopstreams.topology.calls import CallOrder, CircuitBreaker, Retry, calling
from coopstreams.topology.errors import ProcessingError
from tests.calling.lanes import PATIENCE_S, LeapingHost, ended, made_by, one
from tests.durations import ms


def test_a_call_that_waits_for_a_thread_is_not_late() -> None:
    function = partial(time.sleep, 1.0)
    calls = [Call(function, (), None) for _ in range(MOST_THREADS + 1)]
    assert {
        call.error
        for call in ended(calls, order="none", timeout=timedelta(seconds=1.8))
    } == {None}


@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    ),
    order=st.sampled_from(["key", "partition", "none"]),
    threads=st.booleans(),
)
def test_calls_of_a_chain_are_made_one_after_the_other_in_their_order(
    calls: list[tuple[bytes | None, int]], order: str, threads: bool
) -> None:
    under_way: dict[bytes, list[int]] = defaultdict(list)
    met: dict[bytes, list[int]] = defaultdict(list)

    def begin(number: int) -> bytes:
        key = (
            calls[number][0]
            if order == "key"
            else b""
            if order == "partition"
            else None
        )
        chain = b"%d alone" % number if key is None else key
        assert not under_way[chain], "another call of the chain has not ended"
        under_way[chain].append(number)
        met[chain].append(number)
        return chain

    async def awaited(number: int) -> int:
        chain = begin(number)
        await asyncio.sleep(calls[number][1] / 1000)
        under_way[chain].remove(number)
        return -number

    def on_thread(number: int) -> int:
        chain = begin(number)
        time.sleep(calls[number][1] / 1000)
        under_way[chain].remove(number)
        return -number

    function = on_thread if threads else awaited
    made = ended(
        [Call(function, (number,), key) for number, (key, _) in enumerate(calls)],
        order=order,
    )
    assert [(call.value, call.error) for call in made] == [
        (-number, None) for number in range(len(calls))
    ]
    assert all(numbers == sorted(numbers) for numbers in met.values())


def test_calls_of_different_keys_are_under_way_together() -> None:
    together = asyncio.Barrier(50)

    async def meets(number: int) -> int:
        await together.wait()
        return number

    made = ended([Call(meets, (number,), b"%d" % number) for number in range(50)])
    assert [call.value for call in made] == list(range(50))


def test_threads_are_as_many_as_calls_may_be_in_flight() -> None:
    together, under_way, lock = threading.Barrier(8), 0, threading.Lock()

    def meets(number: int) -> int:
        nonlocal under_way
        with lock:
            under_way += 1
            met = under_way
        together.wait(PATIENCE_S)
        with lock:
            under_way -= 1
        return met

    made = ended(
        [Call(meets, (number,), None) for number in range(64)], max_in_flight=8
    )
    assert max(call.value for call in made) == 8


@pytest.mark.parametrize("threads", [False, True])
def test_a_call_that_fails_is_made_again_and_the_last_error_counts(
    threads: bool,
) -> None:
    attempts: list[int] = []

    def fails(value: int) -> int:
        attempts.append(value)
        raise ConnectionError(f"attempt {len(attempts)}")

    async def fails_later(value: int) -> int:
        return fails(value)

    call = one(fails if threads else fails_later, retry=Retry(times=2, backoff=ms(1)))
    assert (str(call.error), len(attempts)) == ("attempt 3", 3)


def test_a_call_that_succeeds_at_last_has_no_error() -> None:
    attempts: list[int] = []

    async def fails_twice(value: int) -> int:
        attempts.append(value)
        if len(attempts) < 3:
            raise ConnectionError
        return value

    call = one(fails_twice, retry=Retry(times=5, backoff=ms(1)))
    assert (call.value, call.error, len(attempts)) == (7, None, 3)


def test_errors_of_other_kinds_are_not_tried_again() -> None:
    attempts: list[int] = []

    async def fails(value: int) -> int:
        attempts.append(value)
        raise ValueError("no")

    call = one(fails, retry=Retry(times=5, backoff=ms(1), on=(ConnectionError,)))
    assert (repr(call.error), attempts) == ("ValueError('no')", [7])


@pytest.mark.parametrize("threads", [False, True])
def test_an_attempt_that_takes_too_long_is_a_time_out_that_can_be_tried_again(
    threads: bool,
) -> None:
    attempts: list[int] = []
    let_go = threading.Event()

    def hangs(value: int) -> int:
        attempts.append(value)
        if len(attempts) == 1:
            let_go.wait(PATIENCE_S)
        return value

    async def hangs_later(value: int) -> int:
        attempts.append(value)
        if len(attempts) == 1:
            await asyncio.sleep(PATIENCE_S)
        return value

    call = one(
        hangs if threads else hangs_later,
        timeout=ms(1000),
        retry=Retry(backoff=ms(1), on=(TimeoutError,)),
    )
    assert (call.value, call.error, attempts) == (7, None, [7, 7])
    assert "no answer within 0.05 s" in str(
        one(lambda _: time.sleep(1), timeout=ms(50)).error
    )
    let_go.set()


def test_a_time_out_of_the_function_itself_keeps_its_words() -> None:
    async def gives_up(value: int) -> int:
        raise TimeoutError("the database is slow")

    assert str(one(gives_up).error) == "the database is slow"


class Odd(BaseException):
    """A library's exception outside of `Exception`."""


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        StopIteration(1),
        Odd(),
    ],
)
@pytest.mark.parametrize("threads", [False, True])
def test_what_would_end_the_loop_fails_the_call(
    threads: bool, error: BaseException
) -> None:
    def raises(value: int) -> int:
        raise error

    async def raises_later(value: int) -> int:
        raise error

    call = one(raises if threads else raises_later)
    assert isinstance(call.error, ProcessingError | RuntimeError), call.error
    assert one(abs).value == 7, "the loop goes on"


def test_calls_pause_while_a_service_fails_and_are_tried_one_at_a_time() -> None:
    healthy, lock, under_way = threading.Event(), threading.Lock(), 0
    begun: list[int] = []
    most: list[int] = []
    """The number of attempts under way at each beginning, from the third failure on."""

    async def asks(value: int) -> int:
        nonlocal under_way
        with lock:
            begun.append(value)
            under_way += 1
            most.append(under_way)
        await asyncio.sleep(0.001)
        with lock:
            under_way -= 1
        if not healthy.is_set():
            if len(begun) >= 8:
                healthy.set()
            raise ConnectionError("refused")
        return value

    breaker = CircuitBreaker(failures=3, pause=ms(20))
    calls = [Call(asks, (number,), b"%d" % number) for number in range(40)]
    lane = made_by(
        calling(
            "f",
            asks,
            max_in_flight=3,
            breaker=breaker,
            retry=Retry(times=20, backoff=ms(1)),
        ),
        calls,
    )
    assert [call.value for call in calls] == list(range(40)), "none has failed for good"
    assert len(begun) == 40 + 8
    assert most[3:9] == [1] * 6, "probes"
    assert max(most[9:]) > 1
    assert lane.pauses == ""


def test_a_lane_that_pauses_says_why_and_is_drained_at_once() -> None:
    failed = threading.Event()

    async def fails(value: int) -> None:
        failed.set()
        raise ConnectionError("refused")

    how = calling(
        "f",
        fails,
        breaker=CircuitBreaker(failures=1, pause=timedelta(hours=1)),
        retry=Retry(),
    )
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    lane: Lane[Call] = Lane(how, told.put)
    lane.begin([Call(fails, (number,), None) for number in range(3)])
    assert failed.wait(PATIENCE_S)
    while not lane.pauses:
        assert one(abs).value == 7
    assert "ConnectionError: refused" in lane.pauses
    lane.drain()
    while not lane.drained:
        told.get(timeout=PATIENCE_S)


def test_a_lane_without_calls_does_not_pause() -> None:
    """Its breaker stays open until there is a call to try, and health says nothing else
    of a task that pauses.
    """

    async def fails(value: int) -> None:
        raise ConnectionError("refused")

    lane = made_by(
        calling(
            "f", fails, breaker=CircuitBreaker(failures=1, pause=timedelta(hours=1))
        ),
        [Call(fails, (1,), None)],
    )
    assert lane.pauses == ""


def test_a_function_that_does_not_mind_being_cancelled_is_not_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, attempts, over = threading.Event(), [], threading.Event()

    async def minds_not(value: int) -> None:
        attempts.append(value)
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError as error:
            raise ConnectionError from error
        finally:
            over.set()

    lane: Lane[Call] = Lane(
        calling("f", minds_not, retry=Retry(backoff=ms(1))), lambda _: None
    )
    lane.begin([Call(minds_not, (1,), b"k"), Call(minds_not, (2,), b"k")])
    assert begun.wait(PATIENCE_S)
    lane.cancel()
    assert over.wait(PATIENCE_S)
    for _ in range(5):
        assert one(abs).value == 7
    assert attempts == [1]
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_lane_that_is_drained_lets_the_calls_under_way_end_and_begins_no_other(
    order: CallOrder,
) -> None:
    begun, let_go = threading.Semaphore(0), threading.Event()
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()

    async def waits(value: int) -> int:
        begun.release()
        while not let_go.is_set():
            await asyncio.sleep(0.001)
        return value

    lane: Lane[Call] = Lane(calling("f", waits, order=order, max_in_flight=2), told.put)
    lane.begin([Call(waits, (number,), b"k%d" % (number % 2)) for number in range(6)])
    assert begun.acquire(timeout=PATIENCE_S)
    assert begun.acquire(timeout=PATIENCE_S)
    assert not lane.drained
    lane.drain()
    let_go.set()
    over = [call.value for _ in range(2) for call in told.get(timeout=PATIENCE_S)]
    while not lane.drained:
        over += [call.value for call in told.get(timeout=PATIENCE_S)]
    assert sorted(over) == [0, 1]
    lane.begin([Call(waits, (7,), b"k")])
    assert one(abs).value == 7
    assert not begun.acquire(blocking=False)


@pytest.mark.parametrize("close", [Lane.drain, Lane.cancel])
def test_a_call_that_ends_just_when_the_lane_is_closed_begins_no_other(
    close: Callable[[Lane[Call]], None],
) -> None:
    """The next call of its chain is the successor's, which would make it again."""
    made = list[int]()
    over = threading.Event()

    async def closes(value: int) -> None:
        made.append(value)
        close(lane)
        over.set()

    lane: Lane[Call] = Lane(calling("f", closes, order="key"), lambda _: None)
    lane.begin([Call(closes, (number,), b"k") for number in range(2)])
    assert over.wait(PATIENCE_S)
    assert one(abs).value == 7, "the loop has gone on"
    assert made == [0]


def test_a_call_that_fails_while_the_lane_is_drained_is_made_by_the_next_owner() -> (
    None
):
    host, told = LeapingHost(), list[Sequence[Call]]()
    over = host.loop.create_future()

    async def fails(value: int) -> None:
        lane.drain()
        await asyncio.sleep(1)
        raise ConnectionError("refused")

    def tell(calls: Sequence[Call]) -> None:
        told.append(calls)
        if lane.drained:
            over.set_result(host.loop.time())

    lane = Lane[Call](
        calling(
            "f",
            fails,
            retry=Retry(backoff=timedelta(hours=1), longest=timedelta(hours=1)),
        ),
        tell,
        host,
    )
    lane.begin([Call(fails, (1,), None)])
    with closing(host.loop):
        assert host.loop.run_until_complete(over) == 1.0, (
            "it does not wait to be called again"
        )
    assert told == [()], "it has not failed"


def test_a_lane_without_calls_is_drained_at_once() -> None:
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    lane: Lane[Call] = Lane(calling("f", abs), told.put)
    lane.drain()
    assert list(told.get(timeout=PATIENCE_S)) == []
    while not lane.drained:
        told.get(timeout=PATIENCE_S)


def test_a_cancelled_lane_is_silent() -> None:
    begun, said = threading.Event(), []
    cancelled = threading.Event()

    async def hangs(value: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            cancelled.set()

    lane: Lane[Call] = Lane(calling("f", hangs), lambda _: said.append(1))
    calls = [Call(hangs, (number,), b"k") for number in range(3)]
    lane.begin(calls)
    assert begun.wait(PATIENCE_S)
    lane.cancel()
    assert cancelled.wait(PATIENCE_S)
    lane.begin(calls)
    assert one(abs).value == 7
    assert said == []


def test_it_is_told_at_once_when_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls that ended at the same moment are reported with it, each once."""
    monkeypatch.setattr("coopstreams.calling.lanes.TOGETHER_S", 2 * PATIENCE_S)
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()

    async def same(value: int) -> int:
        return value

    calls = [Call(same, (number,), b"%d" % number) for number in range(3)]
    calls[1].prompt = True
    Lane(calling("f", same), told.put).begin(calls)
    found = list(told.get(timeout=PATIENCE_S))
    assert calls[1] in found
    assert told.empty()
    assert len(found) == len(set(found))


def test_a_call_that_ends_while_another_thread_reads_its_deadline_is_no_error() -> None:
    class Torn:
        """An attempt whose function returns when its deadline has been read once."""

        left: ClassVar = [float("inf")]

        @property
        def until(self) -> float | None:
            return self.left.pop() if self.left else None

    lane: Lane[Call] = Lane(calling("f", time.sleep), lambda _: None)
    lane._running = cast(Any, {0: Torn()})
    assert lane.within_limits
    assert not lane.within_limits
