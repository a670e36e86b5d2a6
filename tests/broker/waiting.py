"""Waits for a condition, and fails with a reason.

Time-outs are long, because a machine may be busy, and cost nothing in a passing test.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def eventually(
    true: Callable[[], bool], timeout_s: float, what: Callable[[], str]
) -> None:
    """Return when the condition holds; fail with `what()` after the time limit. A slow
    condition takes half of the time at most, to leave the processor to the program
    under test.
    """
    asked = time.monotonic()
    deadline = asked + timeout_s
    while not true():
        now = time.monotonic()
        if now > deadline:
            pytest.fail(what())
        time.sleep(max(0.1, now - asked))
        asked = time.monotonic()
