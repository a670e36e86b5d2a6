"""Types reach every operator, and a type checker rejects what would fail: the files beside this one, read by mypy.

`make check` reads them with pyright, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("program", ["flows.py", "mistakes.py"])
def test_mypy_agrees_with_what_a_program_says_about_its_types(program: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", str(HERE / program)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
