"""coopstreams has the results of the real Kafka Streams library for these cases: on
both stores, and with any number of ranges.

`vectors_found.jsonl` has earlier differences, found with random cases.
"""

from itertools import accumulate
from pathlib import Path

import pytest

from tests.conformance.run import (
    Backend,
    Case,
    Level,
    Outcome,
    read_cases,
    run,
    translated,
)

HERE = Path(__file__).parent
CASES = read_cases(HERE / "vectors.jsonl")
FOUND = read_cases(HERE / "vectors_found.jsonl")
DONE = (HERE / "done.txt").read_text(encoding="utf-8").split()
EXPLAINED = "processor_misc-11"
"""The only one: `tests/docs/test_semantics.py` counts them."""


@pytest.mark.parametrize(
    ("ranges", "level", "backend"),
    [
        (4, "per-key", "rocksdb"),
        # With one range, and in memory, tests/docs/test_semantics.py checks the number
        # of passed cases.
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in [
                (1, "strict", "memory"),
                (1, "strict", "rocksdb"),
                (4, "per-key", "memory"),
            ]
        ),
    ],
)
@pytest.mark.parametrize("family", DONE)
def test_a_family_comes_out_as_in_kafka_streams(
    family: str, ranges: int, level: Level, backend: Backend
) -> None:
    outcomes = [
        run(case, ranges=ranges, level=level, backend=backend)
        for case in CASES
        if case["family"] == family
    ]
    assert outcomes
    assert differences(outcomes) == []


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ranges", "level", "backend"), [(1, "strict", "memory"), (4, "per-key", "rocksdb")]
)
def test_a_difference_that_was_found_is_gone(
    ranges: int, level: Level, backend: Backend
) -> None:
    assert (
        differences(
            [run(case, ranges=ranges, level=level, backend=backend) for case in FOUND]
        )
        == []
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ranges", "level", "backend"),
    [
        (1, "strict", "memory"),
        (4, "per-key", "rocksdb"),
        pytest.param(1, "strict", "rocksdb", marks=pytest.mark.slow),
        pytest.param(4, "per-key", "memory", marks=pytest.mark.slow),
    ],
)
def test_no_case_shows_whether_the_topology_was_optimized(
    ranges: int, level: Level, backend: Backend
) -> None:
    outcomes = [
        run(case, ranges=ranges, level=level, backend=backend, optimization="all")
        for case in CASES
        if is_changed(case)
    ]
    assert {outcome.family for outcome in outcomes} >= {
        "join_fk",
        "join_ss_self",
        "join_st",
        "join_tt",
        "table_stateless",
    }
    assert differences(outcomes) == []


def is_changed(case: Case) -> bool:
    """Whether the optimizations change anything about a topology: if not, the case was
    run with its family.
    """
    _, topology = translated(case)
    return topology.optimized("all") != topology


@pytest.mark.parametrize(("ranges", "level"), [(1, "strict"), (4, "per-key")])
def test_what_is_explained_differs_in_the_stream_time_of_the_processor_and_in_nothing_else(
    ranges: int, level: Level
) -> None:
    """Here, as in production, it is the largest timestamp that the processor's
    sub-topology has received.
    """
    (case,) = [case for case in CASES if case["name"] == EXPLAINED]
    assert run(case, ranges=ranges, level=level).explained is not None
    times = accumulate((given["timestamp_ms"] for given in case["inputs"]), max)
    outputs = [
        {**row, "value": next(times)} if row["topic"] == "st" else row
        for row in case["expected"]["outputs"]
    ]
    assert (
        run(
            {**case, "expected": {**case["expected"], "outputs": outputs}},
            ranges=ranges,
            level=level,
        ).differences
        == []
    )


def differences(outcomes: list[Outcome]) -> list[str]:
    return [
        f"{outcome.name}: {difference}"
        for outcome in outcomes
        if outcome.explained is None
        for difference in outcome.differences
    ]


def test_what_cannot_be_expressed_fails_its_case_and_no_other() -> None:
    case = {
        "name": "n",
        "family": "f",
        "topology": [{"op": "unheard_of", "id": "x"}],
        "inputs": [],
        "expected": {"outputs": [], "stores": {}},
    }
    assert run(case).differences == ["not supported: unheard_of"]


def test_a_difference_names_the_line_that_differs() -> None:
    case = next(case for case in CASES if case["name"] == "stateless-12")
    first, *rest = case["expected"]["outputs"]
    changed = {
        **case,
        "expected": {
            **case["expected"],
            "outputs": [{**first, "timestamp_ms": 12345}, *rest],
        },
    }
    (difference,) = run(changed).differences
    assert difference.startswith("outputs")
    assert "12345" in difference
