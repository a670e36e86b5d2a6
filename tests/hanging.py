"""A plugin of pytest that ends a hanging test with the stacks of all threads;
`tests/conftest.py` loads it.

After the time-out of a test, pytest-timeout raises an error in the main thread
(`timeout_method = "signal"`): the test fails with the place where it hung and the
stacks of the other threads, and the process goes on with the next test. Where the error
has no effect (a call in C, the end of a `with subprocess.Popen(...)`), the process ends
a minute later and writes the stacks of all threads to the output of the run:
pytest-xdist only names the test.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

import pytest

GRACE_S = 60.0
_ERROR_OUTPUT = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the error output of the process: during a test, pytest replaces it."""
    config.stash[_ERROR_OUTPUT] = os.dup(
        sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    )


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """End the process long after the time-out of the test; pytest-timeout has its own
    timer besides.
    """
    faulthandler.dump_traceback_later(
        settings.timeout + GRACE_S, exit=True, file=item.config.stash[_ERROR_OUTPUT]
    )


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Cancel the timer at the end of the test."""
    faulthandler.cancel_dump_traceback_later()
