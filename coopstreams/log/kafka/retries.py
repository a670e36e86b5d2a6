"""Times the attempts of a request to the cluster: they grow, within the user's time
limit. A long wait is logged.

Turned down: one attempt for the whole time (its broker may be dead, and another one
responsible by now). Turned down: attempts that grow while a leader may be dead (a
process that started found the new leader 4 s after its election, because an attempt of
5 s at the old one had just begun: measured).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

ATTEMPT_S = 5.0
FIRST_ATTEMPT_S = 1.0
"""The length of the first attempt. Each next one takes twice as long, up to
`ATTEMPT_S`.
"""
FAILOVER_S = 20.0
"""How long a cluster may take to replace a dead leader: its `broker.session.timeout.ms`
and a controller's election.
"""
RETRY_S = 0.05
SILENT_S = 3.0
"""How long a request may go without an answer before it is logged."""

log = logging.getLogger(__name__)


class Patience:
    """The time limits of one request's attempts, which grow; a long wait is logged
    once.
    """

    def __init__(
        self,
        what: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._attempts = 0
        self._said = False

    @property
    def over(self) -> bool:
        """Whether the time limit has passed."""
        return self._clock() - self._began >= self._timeout_s

    def attempt_s(self, short_for_s: float = 0.0) -> float:
        """Return how long (s) the next attempt may take.

        `short_for_s`: for this long, attempts stay as short as the first one.
        """
        waited = self._clock() - self._began
        left = self._timeout_s - waited
        if waited >= short_for_s or self._attempts == 0:
            self._attempts += 1
        return min(
            max(left, 0.1),
            ATTEMPT_S,
            FIRST_ATTEMPT_S * 2.0 ** (self._attempts - 1),
        )

    def rest(self, answer: str) -> None:
        """Pause before the next attempt. `answer`: the result of the last one, for the
        log.
        """
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
