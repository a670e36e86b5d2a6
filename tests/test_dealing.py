"""A lost process fails its current test, and the run continues."""

import re
from pathlib import Path

import pytest

from tests.nested import run_pytest

MODULE = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_it(number):
    if {ends} and number == 5:
        os._exit(1)
"""


@pytest.mark.ci
def test_a_test_that_ends_its_process_fails_and_all_others_run(tmp_path: Path) -> None:
    """The others have finished whole modules before, and one of them has no work left."""
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(MODULE.format(ends=number == 2))
    done = run_pytest(
        tmp_path, ["tests.dealing"], "-q", "-n", "2", "--no-loadscope-reorder"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("1 failed, 47 passed", done.stdout), done.stdout
    assert set(re.findall(r"FAILED \S*/(\S+)", done.stdout)) == {
        "test_2.py::test_it[5]"
    }
