"""One minute of `python -m tests.broker.chaos_cluster`; and the computation of its
stalls.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.broker.chaos_cluster import EXACTLY_ONCE, chaos
from tests.broker.reading import Record
from tests.broker.stalls import Said, Stall, stalls, waits


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("guarantee", "calls"), [(EXACTLY_ONCE, True), ("at_least_once", False)]
)
def test_brokers_and_workers_come_and_go(
    tmp_path: Path, guarantee: str, calls: bool
) -> None:
    seed = random.SystemRandom().randrange(1, 1_000_000)
    assert chaos(tmp_path, 1, guarantee, seed, calls=calls) == []


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deploys", [False, True], ids=["chaos", "deploys"])
def test_with_standbys_nothing_is_lost_or_doubled_either(
    tmp_path: Path, deploys: bool
) -> None:
    seed = random.SystemRandom().randrange(1, 1_000_000)
    assert chaos(tmp_path, 1, EXACTLY_ONCE, seed, standbys=1, deploys=deploys) == []


def record(key: str, value: int, second: float, partition: int = 0) -> Record:
    return Record(
        key.encode(), value.to_bytes(8, "big"), int(second * 1000), partition, 0, {}
    )


def test_an_order_waits_for_the_count_that_it_makes() -> None:
    orders = [
        record("a", 7, 1.0),
        record("b", 8, 2.0),
        record("a", 9, 3.0),
        Record(b"a", b"unreadable", 4000, 0, 0, {}),
    ]
    counts = [
        record("a", 1, 1.5),
        record("a", 2, 9.0),
        record("a", 2, 20.0),
        record("b", 1, 2.25),
    ]
    assert [
        (wait.start, wait.end, wait.longest_s) for wait in waits(orders, counts)
    ] == [
        (1.0, 1.5, 0.5),
        (2.0, 2.25, 0.25),
        (3.0, 9.0, 6.0),
    ]


def test_waits_that_overlap_are_one_stall_of_their_partition() -> None:
    waited = [
        Stall(0, 1, 6, 5),
        Stall(0, 3, 9, 6),
        Stall(1, 3, 9, 6),
        Stall(0, 20, 24, 4),
        Stall(0, 30, 31, 1),
    ]
    assert stalls(waited, 3.0) == [
        Stall(0, 1, 9, 6),
        Stall(1, 3, 9, 6),
        Stall(0, 20, 24, 4),
    ]


@pytest.mark.parametrize(
    ("task", "concerns"),
    [
        (None, True),
        ("0_3[0..127]", True),
        ("0_1[0..255]", False),
        ("1_3[0..255]", False),
    ],
)
def test_a_reason_of_another_task_does_not_explain_a_stall(
    task: str | None, concerns: bool
) -> None:
    assert Said(0.0, 1, "restoring", "...", task).concerns(3) is concerns
