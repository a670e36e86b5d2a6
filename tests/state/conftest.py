"""Engines to test against: each test that takes `new_engine` runs on memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest

from coopstreams.state.engine import Engine
from coopstreams.state.memory import Memory
from coopstreams.state.rocks import Rocks

NewEngine: TypeAlias = Callable[[], Engine]


@pytest.fixture(params=["memory", "rocks"])
def new_engine(request: pytest.FixtureRequest, tmp_path: Path) -> NewEngine:
    """Return a function that makes an empty engine."""
    numbers = count()

    def rocks() -> Engine:
        folder = tmp_path / f"rocks-{next(numbers)}"
        folder.mkdir()
        return Rocks(folder)

    return Memory if request.param == "memory" else rocks
