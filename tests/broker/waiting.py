"""Waiting for something to become true, with a reason when it does not.

Time-outs are for what never comes: they are long, because a machine may be busy, and cost nothing when all is well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def eventually(true: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    """Return as soon as it is true; fail with `what()` when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(what())
        time.sleep(0.1)
