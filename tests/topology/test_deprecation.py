"""A deprecated name works and warns for one release, then it is gone."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

import pytest

from coopstreams.topology.deprecation import deprecated
from tests.test_tidy import LIBRARY, source

VERSION = tomllib.loads(source("pyproject.toml"))["project"]["version"]


@deprecated("0.2", "Use `count`, which takes the same arguments")
def tally(words: list[str], *, start: int = 0) -> int:
    """Return how many there are."""
    return start + len(words)


def test_it_works_and_its_caller_is_warned() -> None:
    with pytest.warns(
        FutureWarning, match=r"^tally is deprecated since coopstreams 0\.2"
    ) as warned:
        assert tally(["to", "be"], start=40) == 42
    assert warned[0].filename == __file__
    assert str(warned[0].message).endswith(
        "Use `count`, which takes the same arguments."
    )


def test_it_keeps_its_name_and_documentation() -> None:
    assert (tally.__name__, tally.__doc__) == ("tally", "Return how many there are.")


def since(text: str) -> Iterator[tuple[int, ...]]:
    """Yield the releases since which names of a module are deprecated."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "deprecated":
            yield tuple(map(int, ast.literal_eval(node.args[0]).split(".")))


def overdue(release: tuple[int, ...], version: str) -> bool:
    """Return whether a name should be gone that is deprecated since a release."""
    return tuple(map(int, version.split(".")))[:2] > release[:2]


def test_no_deprecated_name_stays_longer_than_one_release() -> None:
    assert [
        path
        for path in LIBRARY
        if any(overdue(release, VERSION) for release in since(source(path)))
    ] == []


def test_a_name_that_stayed_longer_is_found() -> None:
    [release] = since('@deprecated("0.2", "Use count")\ndef tally(): ...')
    assert not overdue(release, "0.2.7")
    assert overdue(release, "0.3.0")
