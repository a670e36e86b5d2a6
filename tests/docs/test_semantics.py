"""The figures and exceptions on the page about semantics are the results of the
conformance cases.
"""

from __future__ import annotations

import pytest

from tests.conformance.run import Backend, Level, read_cases, run
from tests.docs.pages import ROOT, code_words, table_headed

SEMANTICS = ROOT / "docs" / "semantics.md"
CASES = read_cases(ROOT / "tests" / "conformance" / "vectors.jsonl")
FIGURES = [
    (int(row[0]), code_words(row[1])[0], int(row[2]), int(row[3]), int(row[4]))
    for row in table_headed(SEMANTICS, "ranges", "level", "passed", "explained", "of")
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ranges", "level", "passed", "explained", "total", "backend"),
    [
        # tests/conformance has them on the other store. Four ranges show what seven,
        # which are uneven, and sixteen do.
        pytest.param(
            *row,
            backend,
            marks=[pytest.mark.slow] * (backend == "rocksdb" or row[0] > 4),
        )
        for row in FIGURES
        for backend in ("memory", "rocksdb")
    ],
)
def test_as_many_cases_pass_as_the_page_says_and_those_that_do_not_are_named(
    ranges: int, level: Level, passed: int, explained: int, total: int, backend: Backend
) -> None:
    outcomes = [
        run(case, ranges=ranges, level=level, backend=backend) for case in CASES
    ]
    others = [
        outcome
        for outcome in outcomes
        if outcome.explained is not None and not outcome.passed
    ]
    assert (
        sum(outcome.passed for outcome in outcomes),
        len(others),
        len(outcomes),
    ) == (passed, explained, total)
    named = [
        code_words(row[0])[0]
        for row in table_headed(SEMANTICS, "case", "level", "what is different")
        if level in code_words(row[1])
    ]
    assert [
        outcome.name
        for outcome in outcomes
        if not outcome.passed and outcome.explained is None
    ] == (named if ranges > 1 else [])


def test_the_page_names_the_number_of_families_and_every_tagged_case() -> None:
    text = SEMANTICS.read_text(encoding="utf-8")
    assert f"there are {len({case['family'] for case in CASES})} families" in text
    for case in CASES:
        for quirk in case.get("quirks", []):
            assert f"`{quirk}`" in text
            assert f"`{case['name']}`" in text


def test_every_test_that_the_page_names_is_there() -> None:
    written = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = [
        name
        for row in table_headed(SEMANTICS, "behaviour", "shown by")
        for name in code_words(row[1])
    ]
    assert len(named) >= 25
    assert [name for name in named if f"def {name}(" not in written] == []
