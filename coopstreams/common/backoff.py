"""How long a successor rests, of a stream thread or of a worker: not at all after the first death, then longer and
longer.

A record that kills whoever processes it is met again at once, and each time what was not committed is done again.
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
    """Deaths that may have one cause. The defaults are those of an instance's stream threads: of all, since the tasks
    of one may go on with another.
    """

    first_s: float = FIRST_S
    """The rest after the second death in a row; each further one doubles it."""
    most_s: float = MOST_S
    forgotten_after_s: float = FORGOTTEN_AFTER_S
    in_a_row: int = 0
    """Deaths since the last one that was forgotten."""
    _died_at: float = -math.inf
    _rest_s: float = 0.0

    def died(self, now: float) -> float:
        """Note a death; return how many seconds the successor rests."""
        again = now - self._died_at < self.forgotten_after_s
        self._died_at = now
        self.in_a_row = self.in_a_row + 1 if again else 1
        self._rest_s = min(self.most_s, max(self.first_s, 2 * self._rest_s)) if again else 0.0
        return self._rest_s
