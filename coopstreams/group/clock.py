"""The clock of the membership: one that goes on while the machine is suspended.

The broker's session time-out does not wait for a laptop that sleeps or a virtual machine that is moved, but Linux's monotonic clock stands still
meanwhile: by it, a process that wakes would be sure of its membership for up to a session time-out that is long over.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has the first. The second goes on during a sleep on macOS, where `time.monotonic` does not."""


def elapsed_s() -> float:
    """Return seconds since some moment, those of a suspended machine included."""
    return time.clock_gettime(_CLOCK)
