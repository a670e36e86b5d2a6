"""A test that hangs fails with its stack, and the run continues."""

from pathlib import Path

import pytest

from tests.nested import run_pytest

CONFTEST = "import tests.hanging; tests.hanging.GRACE_S = 1.0"
MODULE = """
import subprocess
import sys
import threading

def test_waits_for_what_never_comes():
    threading.Event().wait()

def test_hears_nothing():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as process:
        process.communicate()  # the error ends this, and then `with` waits

def test_ends():
    pass
"""


@pytest.mark.ci
def test_a_test_that_hangs_fails_with_the_place_where_it_hung(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(MODULE)
    plugins = ["pytest_timeout", "tests.dealing", "tests.hanging"]
    done = run_pytest(
        tmp_path, plugins, "-n", "1", "-o", "timeout=1", "-o", "timeout_method=signal"
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "threading.Event().wait()" in done.stdout
    assert "in test_hears_nothing" in done.stderr
