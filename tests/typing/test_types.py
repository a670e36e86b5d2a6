"""Types reach every operator, and a type checker rejects wrong programs: the files
beside this one, read by mypy.

`make check` reads them with mypy and pyright, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.slow  # `make check` runs mypy on them with all other files
def test_mypy_agrees_with_what_the_programs_say_about_their_types() -> None:
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--follow-imports=silent",
            str(HERE / "flows.py"),
            str(HERE / "mistakes.py"),
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
