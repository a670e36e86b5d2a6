"""A process that is lost fails the test that it ran, and the run goes on."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_it(number):
    if {ends} and number == 5:
        os._exit(1)
"""


def test_a_test_that_ends_its_process_fails_and_all_others_run(tmp_path: Path) -> None:
    """With processes that have done whole modules before, and others that have none to do."""
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(MODULE.format(ends=number in (2, 3)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.dealing", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"2 failed, 70 passed", done.stdout), done.stdout
    assert set(re.findall(r"FAILED \S*/(\S+)", done.stdout)) == {f"test_{number}.py::test_it[5]" for number in (2, 3)}
