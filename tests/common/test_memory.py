"""The settings of a process that runs a topology."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMITS = """
import resource, sys
from coopstreams.common.process_limits import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"), [(64, 900, 900), (900, 900, 900), (64, 1 << 14, 1 << 14)]
)
def test_a_process_may_open_as_many_files_as_the_system_allows(
    soft: int, hard: int, then: int
) -> None:
    command = [sys.executable, "-c", LIMITS, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(then), str(hard)]
