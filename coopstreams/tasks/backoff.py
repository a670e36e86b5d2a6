"""How long the successor of a stream thread rests: not at all after the first death, then longer and longer.

A record that kills every thread is met again at once, and each time what was not committed is done again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_S = 0.5
MOST_S = 10.0
FORGOTTEN_AFTER_S = 60.0
"""A death after so long a time without any is the first again."""


@dataclass(slots=True)
class BackOff:
    """The deaths of an instance's stream threads: of all, since the tasks of one may go on with another."""

    _died_at: float = -math.inf
    _rest_s: float = 0.0

    def died(self, now: float) -> float:
        """Note a death; return how many seconds the successor rests."""
        again = now - self._died_at < FORGOTTEN_AFTER_S
        self._died_at = now
        self._rest_s = min(MOST_S, max(FIRST_S, 2 * self._rest_s)) if again else 0.0
        return self._rest_s
