"""A process that is lost fails the test that it ran, and the run goes on."""

import os
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
    """The others have done whole modules before, and one of them has nothing more to do."""
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(MODULE.format(ends=number == 2))
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.dealing", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("1 failed, 47 passed", done.stdout), done.stdout
    assert set(re.findall(r"FAILED \S*/(\S+)", done.stdout)) == {"test_2.py::test_it[5]"}
