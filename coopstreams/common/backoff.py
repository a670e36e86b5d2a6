"""The back-off before a stream thread or a worker is replaced: none after the first
death, then doubled each time.

Without it, a record that kills its processor would be read again at once, and all
uncommitted work repeated each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_S = 0.5
MOST_S = 10.0
FORGOTTEN_AFTER_S = 60.0
"""After this long without a death, the next one counts as the first again."""


@dataclass(slots=True)
class BackOff:
    """The back-off for threads or workers whose deaths may have one cause.

    The defaults are those of an instance's stream threads. All threads count together,
    since the tasks of a dead one may continue on another.
    """

    first_s: float = FIRST_S
    """The back-off after the second death in a row; each further death doubles it."""
    most_s: float = MOST_S
    forgotten_after_s: float = FORGOTTEN_AFTER_S
    """How long after a death the next one counts as the first of a new row."""
    in_a_row: int = 0
    """The deaths in a row: each within `forgotten_after_s` after the one before."""
    _died_at: float = -math.inf
    _rest_s: float = 0.0

    def died(self, now: float) -> float:
        """Count a death; return the seconds until the replacement starts."""
        again = now - self._died_at < self.forgotten_after_s
        self._died_at = now
        self.in_a_row = self.in_a_row + 1 if again else 1
        self._rest_s = (
            min(self.most_s, max(self.first_s, 2 * self._rest_s)) if again else 0.0
        )
        return self._rest_s
