"""The programs that `benchmarks.stateful` measures do the same on both data planes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stateful import CASES, measured
from tests.conftest import needs_native

RECORDS = 40_000
"""80 s: the first window closes after 40 s."""


@needs_native
@pytest.mark.parametrize("case", CASES)
def test_both_planes_write_as_many_rows_and_outputs(tmp_path: Path, case: str) -> None:
    pure, native = (
        measured(case, RECORDS, tmp_path / plane, native=plane == "native")
        for plane in ("pure", "native")
    )
    assert (pure.rows, pure.outputs) == (native.rows, native.outputs)
    assert pure.outputs > 0.2


def test_the_order_of_steps_changes_no_pair(tmp_path: Path) -> None:
    by_time, in_long_steps = (
        measured(case, RECORDS, tmp_path / case, native=False)
        for case in ("stream join", "stream join, long steps")
    )
    assert by_time.outputs == in_long_steps.outputs
