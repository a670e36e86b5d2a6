"""A whole group without a broker: every history that chance or hypothesis makes up must agree with a set model
(`group_model.py`).
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.commit.group_model import World

EVENTS = (
    ("work",) * 52 + ("wake",) * 14 + ("rebalance",) * 4 + ("crash", "compact", "restart") * 2 + ("upgrade", "forget")
)


def run_history(seed: int, exactly_once: bool) -> Counter[str]:
    rng = Random(seed)
    world = World(exactly_once, 1 if rng.random() < 0.75 else 2, rng)
    for _ in range(rng.choice((30, 70, 70, 200))):
        getattr(world, rng.choice(EVENTS))(rng)
    world.finish()
    return world.seen


@pytest.mark.parametrize("histories", [250, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly once", "at least once"])
def test_seeded_histories_agree_with_the_set_model(exactly_once: bool, histories: int) -> None:
    base = int(
        os.environ.get("COOPSTREAMS_SEED", "1000000")
    )  # the same in each run: others are looked at by setting it
    histories = int(os.environ.get("COOPSTREAMS_HISTORIES", histories))
    seen: Counter[str] = Counter()
    live = 0
    for seed in range(base, base + histories):
        try:
            history = run_history(seed, exactly_once)
        except AssertionError as wrong:
            raise AssertionError(f"history {seed} is wrong; again: run_history({seed}, {exactly_once})") from wrong
        live = max(live, history.pop("live"))
        seen += history
    print(f"seeds {base}..{base + histories - 1}: {dict(seen)}, at most {live} live records at the end")
    assert all(
        seen[what]
        for what in (
            "written",
            "refused",
            "compactions",
            "whole",
            "shared",
            "forgotten",
            "kept from opening by what cannot be read",
        )
    )


class Group(RuleBasedStateMachine):
    """The same world, driven by hypothesis."""

    @initialize(exactly_once=st.booleans(), topics=st.integers(1, 2), rng=st.randoms(use_true_random=False))
    def begin(self, exactly_once: bool, topics: int, rng: Random) -> None:
        self.world = World(exactly_once, topics, rng)

    @rule(rng=st.randoms(use_true_random=False), times=st.integers(1, 10))
    def work(self, rng: Random, times: int) -> None:
        for _ in range(times):
            self.world.work(rng)

    @rule(rng=st.randoms(use_true_random=False))
    def wake(self, rng: Random) -> None:
        self.world.wake(rng)

    @rule(
        rng=st.randoms(use_true_random=False),
        fault=st.sampled_from(["rebalance", "crash", "compact", "restart", "upgrade", "forget"]),
    )
    def fail(self, rng: Random, fault: str) -> None:
        getattr(self.world, fault)(rng)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def test_any_history_that_hypothesis_finds_agrees_with_the_set_model() -> None:
    tuned = settings(
        max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(Group, settings=tuned)
