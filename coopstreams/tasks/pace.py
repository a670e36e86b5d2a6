"""How many records a step takes: as many as fit into `STEP_S`, whatever the functions cost."""

from __future__ import annotations

STEP_S = 0.05
"""How long a step works before its thread checks the clock.

It is far below a commit interval and far above the cost of the check.
"""
FIRST_STEP = 1
"""Records of the first step, before the functions' speed is known; doubled while a step fits into the time."""


class Pace:
    """The size of the next step. `bound`: above it, a step does not grow; None: none."""

    def __init__(self, bound: int | None = None) -> None:
        self.most = FIRST_STEP
        self._bound = bound

    def took(self, records: int, seconds: float) -> None:
        """Adjust the size to what a step took."""
        if seconds > STEP_S:
            self.most = max(1, int(records * STEP_S / seconds))
        elif records >= self.most and (self._bound is None or self.most < self._bound):
            self.most *= 2
