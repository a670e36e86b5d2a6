"""How long a question to the cluster is asked: in attempts that grow, until a time that the user set, and not in
silence.

Turned down: one attempt for the whole time (who is asked may be dead, and another one be responsible by now).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

ATTEMPT_S = 5.0
FIRST_ATTEMPT_S = 1.0
"""Doubled with each attempt, up to `ATTEMPT_S`."""
RETRY_S = 0.05
SILENT_S = 3.0
"""How long a question may go without an answer before it is said."""

log = logging.getLogger(__name__)


class Patience:
    """How long a question is asked, in attempts that grow; who waits for longer than a moment says so, once."""

    def __init__(
        self,
        what: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._attempts = 0
        self._said = False

    @property
    def over(self) -> bool:
        """Whether it was asked for long enough."""
        return self._clock() - self._began >= self._timeout_s

    def attempt_s(self) -> float:
        """Return how long the next attempt may take."""
        left = self._began + self._timeout_s - self._clock()
        self._attempts += 1
        return min(max(left, 0.1), ATTEMPT_S, FIRST_ATTEMPT_S * 2.0 ** (self._attempts - 1))

    def rest(self, answer: str) -> None:
        """Wait a moment before it is asked again; `answer` is what came of it this time."""
        waited = self._clock() - self._began
        if waited > SILENT_S and not self._said:
            self._said = True
            log.warning(
                "%s: no answer for %.0f s, the last one was: %s; asking on, for %g s at most",
                self._what,
                waited,
                answer,
                self._timeout_s,
            )
        self._sleep(RETRY_S)
