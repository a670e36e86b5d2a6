"""Lanes of batches: their size, their order, how long a partial one waits, and what a
failure concerns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.calling.lanes import Call, Lane
from coopstreams.topology.calls import Retry, batching
from tests.calling.lanes import LeapingHost, made_by
from tests.durations import ms


def batches(made: list[Call], **options: Any) -> list[Call]:
    made_by(batching("f", made[0].function, **options), made)
    return made


@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=30),
    order=st.sampled_from(["key", "partition", "none"]),
    most=st.sampled_from([1, 3, 100]),
    in_flight=st.sampled_from([1, 4]),
    threads=st.booleans(),
)
def test_batches_are_not_too_large_and_keep_the_order_of_their_keys(
    keys: list[bytes | None], order: str, most: int, in_flight: int, threads: bool
) -> None:
    met: list[list[int]] = []
    under_way, most_under_way, lock = 0, 0, threading.Lock()

    def begins(numbers: list[int]) -> None:
        nonlocal under_way, most_under_way
        with lock:
            met.append(numbers)
            under_way += 1
            most_under_way = max(most_under_way, under_way)

    def over(numbers: list[int]) -> list[int]:
        nonlocal under_way
        with lock:
            under_way -= 1
        return [-number for number in numbers]

    def on_thread(numbers: list[int]) -> list[int]:
        begins(numbers)
        return over(numbers)

    async def awaited(numbers: list[int]) -> list[int]:
        begins(numbers)
        await asyncio.sleep(0)
        return over(numbers)

    function = on_thread if threads else awaited
    made = batches(
        [Call(function, (number,), key) for number, key in enumerate(keys)],
        order=order,
        max_records=most,
        max_wait=ms(1),
        max_in_flight=in_flight,
    )
    assert [call.value for call in made] == [-number for number in range(len(keys))]
    assert max(map(len, met)) <= most
    assert most_under_way <= in_flight
    if order == "none":
        assert len(met) <= -(-len(keys) // most) + 1, (
            "full batches, and one after the wait"
        )
    for key in {key for key in keys if key is not None and order == "key"}:
        assert all(sum(keys[number] == key for number in batch) <= 1 for batch in met)
        of_key = [number for batch in met for number in batch if keys[number] == key]
        assert of_key == sorted(of_key)


def test_a_batch_that_waits_long_enough_is_short() -> None:
    met: list[int] = []

    async def awaited(numbers: list[int]) -> list[int]:
        met.append(len(numbers))
        return numbers

    batches(
        [Call(awaited, (number,), None) for number in range(7)],
        max_records=1000,
        max_wait=ms(20),
    )
    assert met == [7]


@pytest.mark.parametrize(("takes_s", "goes_out_at_s"), [(2.0, 3.0), (5.0, 5.0)])
def test_the_wait_for_a_full_batch_begins_while_another_one_is_under_way(
    takes_s: float, goes_out_at_s: float
) -> None:
    host, left, met = LeapingHost(), list(range(13)), list[tuple[float, list[int]]]()
    loop, over = host.loop, host.loop.create_future()

    async def awaited(numbers: list[int]) -> list[int]:
        met.append((loop.time(), numbers))
        await asyncio.sleep(takes_s)
        return numbers

    def told(calls: Sequence[Call]) -> None:
        for call in calls:
            left.remove(call.value)
        if not left:
            over.set_result(None)

    lane = Lane[Call](
        batching("f", awaited, max_records=10, max_wait=timedelta(seconds=3)),
        told,
        host,
    )
    lane.begin([Call(awaited, (number,), None) for number in range(13)])
    with closing(loop):
        loop.run_until_complete(over)
    assert met == [(0.0, list(range(10))), (goes_out_at_s, [10, 11, 12])]


def test_of_a_batch_that_fails_only_the_bad_record_fails() -> None:
    tried: list[list[int]] = []

    async def picky(numbers: list[int]) -> list[int]:
        tried.append(numbers)
        if 3 in numbers:
            raise ValueError("3 is bad")
        return [number * 2 for number in numbers]

    made = [Call(picky, (number,), b"%d" % number) for number in range(5)]
    lane = made_by(batching("f", picky, retry=Retry(times=1, backoff=ms(1))), made)
    assert [(call.value, str(call.error)) for call in made] == [
        (0, "None"), (2, "None"), (4, "None"), (None, "3 is bad"), (8, "None")
    ]  # fmt: skip
    assert tried == [[0, 1, 2, 3, 4]] * 2 + [[0], [1], [2], [3], [3], [4]]
    assert lane.retried == len(tried) - 1, "a batch counts once"


@pytest.mark.parametrize(
    ("answer", "says"),
    [([1], "not 1 of them"), (None, "not a NoneType"), (1, "not a int")],
)
def test_a_batch_has_as_many_answers_as_values(answer: Any, says: str) -> None:
    made = batches(
        [Call(lambda _: answer, (number,), b"k%d" % number) for number in range(2)]
    )
    assert says in str(made[1].error) or answer == [1], "one alone is answered"
    if answer == [1]:
        assert [call.value for call in made] == [1, 1]
