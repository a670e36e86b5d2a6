"""The oracles of results accept those of one task, and reject a repeated, missing or
invented one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from tests.simulation.answers import Answer, LastCounts, Rows
from tests.simulation.programs import PROGRAMS

RECORDS = 80


LOOSE = " if updates are left out"
TOLD_IN_SILENCE = {"merged windows beside a repartition that are emitted in silence"}
"""One task tells no results of them: their left topic is nearly always silent, which a
test driver does not notice. Other programs have the same oracle.
"""
CASES = [
    *(name for name in PROGRAMS if name not in TOLD_IN_SILENCE),
    *(
        name + LOOSE
        for name, program in PROGRAMS.items()
        if program.loose not in (None, LastCounts)  # which knows the last count only
    ),
]


def answer(case: str, *, exactly_once: bool) -> Answer:
    """Return the expected results of some records, a second apart."""
    played, random = PROGRAMS[case.removesuffix(LOOSE)], Random(1)
    kind = played.loose if case.endswith(LOOSE) else played.answer
    assert kind is not None
    made = kind(played.answering(), played.driven, 2, exactly_once=exactly_once)
    made.write(
        played.write(random, number, 1_000_000 + 1000 * number)
        for number in range(RECORDS)
    )
    return made


def results(of: Answer) -> Rows:
    """Return the results of one task."""
    return [(key, value) for key, values in of.expected.items() for value in values]


@pytest.fixture(params=CASES)
def once(request: pytest.FixtureRequest) -> Iterator[Answer]:
    with closing(answer(request.param, exactly_once=True)) as made:
        yield made


@pytest.fixture(params=CASES)
def at_least_once(request: pytest.FixtureRequest) -> Iterator[Answer]:
    with closing(answer(request.param, exactly_once=False)) as made:
        yield made


def test_what_one_task_tells_is_right(once: Answer) -> None:
    assert results(once)
    assert once.tell(results(once)) == once.lacking() == []


def test_exactly_once_nothing_comes_twice_and_nothing_is_lost(once: Answer) -> None:
    *others, last = results(once)
    assert once.tell(others) == []
    assert once.lacking()
    assert once.tell([last]) == once.lacking() == []
    assert once.tell([last])


def test_at_least_once_all_may_come_twice_and_nothing_is_lost(
    at_least_once: Answer,
) -> None:
    key = next(
        key for key, values in at_least_once.expected.items() if values[-1] is not None
    )
    others, its = (
        [row for row in results(at_least_once) if (row[0] == key) is of_it]
        for of_it in (False, True)
    )
    assert at_least_once.tell([*others, *others]) == []
    assert at_least_once.lacking()
    assert at_least_once.tell([*its, *its]) == at_least_once.lacking() == []


def test_nobody_makes_other_results(once: Answer) -> None:
    key, value = results(once)[0]
    assert once.tell([(key, b"other" if value is None else value + b"?")])


@pytest.mark.parametrize(
    "program", [name for name, program in PROGRAMS.items() if program.stores]
)
def test_it_is_known_what_is_in_stores(program: str) -> None:
    with closing(answer(program, exactly_once=True)) as made:
        assert all(made.rows(store) for store in PROGRAMS[program].stores)
