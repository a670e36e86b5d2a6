"""Only transactions of dead members are ended: a model of a group changes during each
request.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.group.holdings import Assigned
from coopstreams.group.members import Cluster, Member, MemberInfo
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.errors import LogError


class Model:
    """A group as one of its members sees it, and its brokers.

    During a request, members join and die, and transactions begin. A generation begins
    only when this member has joined it; until it gets the assignment, it is `settled`
    in none.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.members = {"app-0", "app-1"}
        self.open: set[str] = set()
        self.generation = 1
        self.told = 1
        self.fresh = 2
        self.ended: list[str] = []
        self.wronged: list[str] = []

    def happen(self) -> None:
        """Cause an event, or none."""
        match self.rng.choice(("begin", "begin", "join", "die", "nothing")):
            case "begin":
                self.open.add(self.rng.choice(sorted(self.members)))
            case "join":
                self.members.add(f"app-{self.fresh}")
                self.generation, self.fresh = self.generation + 1, self.fresh + 1
            case "die" if len(self.members) > 1:
                self.members.discard(self.rng.choice(sorted(self.members - {"app-0"})))
                self.generation += 1
            case _:
                pass

    def sure(self, epoch: int, generation: int | None = None) -> bool:
        return epoch == 0 and generation == self.generation == self.told

    def open_transactions(self) -> frozenset[str]:
        listed: set[str] = set()
        for broker in range(
            3
        ):  # one by one: a member may join, and begin its transaction on the next
            for _ in range(3):
                self.happen()
            listed |= {
                name for name in self.open if int(name.partition("-")[2]) % 3 == broker
            }
        return frozenset(listed)

    def end_transaction(
        self, transactional_id: str, timeout_ms: int | None = None
    ) -> None:
        if transactional_id in self.members:
            self.wronged.append(transactional_id)
        self.open.discard(transactional_id)
        self.ended.append(transactional_id)
        self.happen()
        if self.rng.random() < 0.2:
            raise LogError("no success in 3.0 s", retryable=True)

    def assignment(self) -> Assigned:
        self.told = self.generation
        living = tuple(
            Member(name, MemberInfo(name, transactional_ids=(name,)), ())
            for name in sorted(self.members)
        )
        return Assigned(
            self.generation, self.generation, 0, (), (), (), Cluster(living)
        )


@pytest.mark.ci
@given(st.randoms(use_true_random=False))
def test_a_hunt_never_ends_the_transaction_of_a_member_that_lives(rng: Random) -> None:
    group = Model(rng)
    barrier = Barrier(
        group,
        Follower(MemoryLog(), "app"),
        lambda name: name.startswith("app-"),
        lambda dead: None,
    )
    for _ in range(30):
        group.happen()
        if rng.random() < 0.5:
            barrier.follow_generation(group.assignment())
        barrier.hunt()
    assert not group.wronged


def test_what_the_dead_left_open_is_ended_although_one_of_them_cannot_be_yet() -> None:
    group = Model(Random(1))
    group.happen = lambda: None  # type: ignore[method-assign]
    group.open = {"app-1", "app-7", "app-8", "other-1"}
    barrier = Barrier(
        group,
        Follower(MemoryLog(), "app"),
        lambda name: name.startswith("app-"),
        lambda dead: None,
    )
    barrier.follow_generation(group.assignment())
    barrier.hunt()
    assert group.ended == ["app-7", "app-8"]


def test_what_hangs_of_the_dead_is_ended_when_somebody_has_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, asked = Model(Random(1)), list[list[str]]()
    group.happen = lambda: None  # type: ignore[method-assign]

    def settle(dead: Callable[[str], bool]) -> None:
        asked.append(
            [name for name in ("app-0", "app-1", "app-7", "other-1") if dead(name)]
        )
        raise LogError("a partition has no leader", retryable=True)

    barrier = Barrier(
        group,
        Follower(MemoryLog(), "app"),
        lambda name: name.startswith("app-"),
        settle,
    )
    barrier.follow_generation(group.assignment())
    barrier.hunt()
    assert not asked, "nobody waits"
    monkeypatch.setattr("coopstreams.commit.barrier.PATIENCE_S", 0.0)
    barrier.hunt_later()
    barrier.hunt()
    assert not asked, "nobody has waited for long"
    monkeypatch.setattr("coopstreams.commit.barrier.HANGING_S", -10.0)
    barrier.follow_generation(group.assignment())
    barrier._settle_at = None
    barrier.hunt_later()
    barrier.hunt()
    assert asked == [["app-7"]]
