"""How code may look, as far as it can be counted: CONTRIBUTING.md has the reasons.

ruff holds the limits of a function (C901: 12 decisions, PLR0913: 9 parameters). The functions that are above them stand
here with their `noqa`; the list may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.test_tidy import LIBRARY, OTHERS, source

TOO_COMPLEX = {
    "tests/log/test_memory_log.py test_any_history_of_assigning_seeking_holding_and_fetching_reads_each_committed_record_once",
}
TOO_MANY_PARAMETERS = {
    "coopstreams/commands/backfill.py backfill",
    "coopstreams/commands/query.py query",
    "coopstreams/commands/rebuild.py rebuild",
    "coopstreams/commands/run.py run",
    "coopstreams/commit/positions.py __init__",
    "coopstreams/spark/source_rebuild.py rebuild_from_source",
    "state/native_table.py add",
}

NAMES_THAT_STAND_TWICE = {
    "aggregates",
    "log",
    "plan",
    "reader",
    "rebuild",
    "savepoint",
    "writer",
}

_EXCUSED = re.compile(r"#\s*noqa:(.*)")
_DEFINED = re.compile(r"\s*(?:async )?def (\w+)")


def excused(rule: str) -> Iterator[str]:
    """Yield the functions with a `noqa` of a rule, as `path name`."""
    for path in LIBRARY + OTHERS:
        for line in source(path).splitlines():
            defined = _DEFINED.match(line)
            excused_from = _EXCUSED.search(line)
            if defined and excused_from and rule in excused_from[1]:
                yield f"{path} {defined[1]}"


def test_no_function_more_is_too_complex() -> None:
    assert set(excused("C901")) == TOO_COMPLEX


def test_no_function_more_has_too_many_parameters() -> None:
    assert set(excused("PLR0913")) == TOO_MANY_PARAMETERS


def test_the_name_of_a_module_stands_once() -> None:
    stems = Counter(Path(path).stem for path in LIBRARY if "__" not in path)
    twice = {stem for stem, count in stems.items() if count > 1}
    assert twice == NAMES_THAT_STAND_TWICE, "CONTRIBUTING.md, Names"


def names(node: ast.AST) -> set[str]:
    """Return the names and attributes that an expression reads or assigns."""
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def unrelated(path: str) -> Iterator[str]:
    """Yield the assignments of several values of which none uses a target: `a, b = x, y`. An exchange, `a, b = b, a`, is
    one thing.
    """
    for node in ast.walk(ast.parse(source(path))):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and not names(node.value) & names(target):
            yield f"{path}:{node.lineno}"


def test_a_statement_assigns_one_thing() -> None:
    found = [place for path in LIBRARY for place in unrelated(path)]
    assert found == [], "one statement a line"
