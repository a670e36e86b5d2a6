"""A side activity gets its share of the CPU while the main work is busy, and any amount
while it is idle.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.common.budget import BURST_S, CpuBudget


@dataclass
class Clock:
    """A clock that advances only when a test waits or computes."""

    now: float = 100.0
    cpu: float = 7.0
    busy: bool = True

    def budget(self, share: float | None) -> CpuBudget:
        return CpuBudget(share, lambda: self.busy, lambda: self.now, lambda: self.cpu)

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds


@given(
    share=st.floats(0.01, 0.9),
    costs=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=200),
)
def test_who_asks_all_the_time_gets_the_share_and_no_more(
    share: float, costs: list[float]
) -> None:
    clock = Clock()
    budget = clock.budget(share)
    for cost in costs:
        while wait_s := budget.wait_s(share):
            clock.now += wait_s
        clock.compute(cost)
    spent, took = clock.cpu - 7.0, clock.now - 100.0
    assert spent <= share * took + BURST_S + max(costs) + 1e-6
    if spent > 2 * (BURST_S + max(costs)):
        assert took <= (spent / share) + 0.002 * len(costs), (
            "it does not wait for nothing"
        )


@given(costs=st.lists(st.floats(0.0001, 0.2), max_size=50))
def test_nobody_waits_while_the_main_work_does_not(costs: list[float]) -> None:
    clock = Clock(busy=False)
    budget = clock.budget(0.01)
    for cost in costs:
        assert budget.wait_s(0.01) == 0
        clock.compute(cost)


def test_requests_wait_in_line_and_go_on_when_the_main_work_has_nothing_to_do() -> None:
    async def run() -> list[int]:
        clock, done = Clock(), list[int]()
        budget = clock.budget(0.01)

        async def request(number: int) -> None:
            await budget.turn()
            done.append(number)
            clock.compute(1.0)

        requests = [asyncio.ensure_future(request(number)) for number in range(5)]
        while not done:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [0], "the others would wait for 100 s"
        clock.busy = False
        await asyncio.gather(*requests)
        return done

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_what_other_threads_compute_counts() -> None:
    clock = Clock()
    budget = clock.budget(0.5)
    assert budget.wait_s(0.5) == 0
    assert budget.counted(lambda: sum(range(3_000_000)))() == sum(range(3_000_000))
    budget._elsewhere += BURST_S
    assert budget.wait_s(0.5) > 0
    free = clock.budget(None)
    assert free.counted(lambda: 5)() == 5


def test_without_a_share_nothing_is_bound() -> None:
    async def run() -> None:
        clock = Clock()
        budget = clock.budget(None)
        for _ in range(10):
            await budget.turn()
            clock.compute(10.0)

    asyncio.run(run())
