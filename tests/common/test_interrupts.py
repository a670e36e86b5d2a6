"""Signals that ask a process to end."""

from __future__ import annotations

import time

import pytest

from coopstreams.common import interrupts


def test_signals_at_about_the_same_time_are_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service manager asks all processes of a service, and the supervisor asks its workers."""
    times = iter([100.0, 100.1, 101.9, 103.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    requests = interrupts.Requests()
    assert [requests.again() for _ in range(4)] == [False, False, False, True]
