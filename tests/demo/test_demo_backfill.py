"""The demo of the backfill, on part of the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_by_spark_and_half_live_give_equal_answers_and_leave_nothing_running(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.demo.backfill",
        "--once",
        "--data",
        str(tmp_path / "demo"),
        "--departures",
        "20000",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=550
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Spark took " in done.stdout
    assert "10,000 departures are in Kafka" in done.stdout
    assert done.stdout.count("\nequal: ") == 2
    left = subprocess.run(
        ["ps", "-eo", "command"], capture_output=True, text=True, check=True
    ).stdout
    assert str(tmp_path) not in left
