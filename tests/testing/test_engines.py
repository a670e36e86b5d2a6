"""`check_engine` accepts engines that fulfil the contract, and names the fault of
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coopstreams import Change, Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.testing import check_engine
from tests.state.sqlite_engine import Sqlite


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "new_engine", [Rocks, Sqlite, lambda _: Memory()], ids=["rocks", "sqlite", "memory"]
)
def test_what_is_an_engine_passes(
    new_engine: Callable[[Path], Engine], tmp_path: Path, seed: int
) -> None:
    check_engine(new_engine, tmp_path, seed=seed)


class InclusiveEnd(Sqlite):
    """Scans one key too many."""

    def scan(
        self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Any:
        return super().scan(
            family, start, None if end is None else end + b"\x00", reverse=reverse
        )


class OneByOne(Sqlite):
    """Writes a batch change by change, not atomically."""

    def write(self, changes: Sequence[Change]) -> None:
        for change in changes:
            super().write([change])


class Backwards(Sqlite):
    """Writes the keys before the ranges vanish."""

    def write(self, changes: Sequence[Change]) -> None:
        super().write(
            [Change(change.family, change.keys, change.values) for change in changes]
        )
        super().write(
            [Change(change.family, vanishing=change.vanishing) for change in changes]
        )


class Live(Sqlite):
    """Has iterators that see later writes."""

    def scan(
        self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Any:
        yield from super().scan(family, start, end, reverse=reverse)


class Forgetful(Sqlite):
    """Loses the first write at a restart, and keeps the later ones."""

    def __init__(self, folder: Path) -> None:
        again = (folder / "rows.sqlite").exists()
        super().__init__(folder)
        if again:
            self._db.execute(
                "DELETE FROM rows WHERE key IN (SELECT key FROM rows LIMIT 1)"
            )


class Deaf(Memory):
    """Answers after `close`."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("new_engine", "words"),
    [
        (InclusiveEnd, r'scan\("one", .*should be'),
        (OneByOne, "a family that does not exist"),
        (Backwards, "after write"),
        (Live, "that was begun before write"),
        (Forgetful, "opened again"),
        (lambda _: Deaf(), r"after close\(\)"),
    ],
    ids=["inclusive-end", "one-by-one", "backwards", "live", "forgetful", "deaf"],
)
def test_what_is_none_is_told_why(
    new_engine: Callable[[Path], Engine], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=words):
        check_engine(new_engine, tmp_path)
