"""Brokers that do not answer: a line when it begins, one a minute while it lasts, one when it is over.

Each client of a process (readers, writers, the one that asks) meets the same trouble and its library says so again and
again. They tell it here, to the one object of the process; whoever gets an answer tells that.

Invariant: a broker has at most one line a minute, and "answers again" is said only of what was said to be away.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

EVERY_S = 60.0
OVER_S = 2 * EVERY_S
"""After so long without trouble an outage is over, also where nobody asks: clients that cannot connect say so more
often.
"""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+")
_PREFIX = re.compile(r"^\[thrd:.*?\]: ")


@dataclass(slots=True)
class Outage:
    """Decides what is said. Units: seconds of a clock that never goes back."""

    _since: dict[str, float] = field(default_factory=dict)
    _said: dict[str, float] = field(default_factory=dict)
    _last: float = float("-inf")
    _told: bool = False

    def heard(self, trouble: str, now: float) -> str | None:
        """Return what is to be said of trouble with a broker, as librdkafka words it; None: nothing, it was said
        lately.
        """
        said = _PREFIX.sub("", trouble).partition(" (after ")[0]
        address = _ADDRESS.search(said)
        broker = address.group() if address else said
        if now - self._last > OVER_S:
            self._since.clear()
        since, self._last = self._since.setdefault(broker, now), now
        if now - self._said.get(broker, float("-inf")) < EVERY_S:
            return None
        self._said[broker], self._told = now, True
        lasts = f", for {now - since:.0f} s" if now > since else ""
        return f"Kafka broker {broker} does not answer{lasts}: {said.rpartition(': ')[2]}; trying again"

    def answered(self, asked_at: float, now: float) -> str | None:
        """Return what is to be said of an answer to what was asked then; None: nothing, or trouble came since."""
        if not self._since or self._last >= asked_at:
            return None
        began, told, self._told = min(self._since.values()), self._told, False
        self._since.clear()
        return f"Kafka answers again, after {now - began:.0f} s" if told else None


_OUTAGE = Outage()
_LOCK = threading.Lock()


def heard(trouble: str) -> None:
    """Take note of trouble with a broker, and log it if it is new or has lasted. Any thread."""
    with _LOCK:
        said = _OUTAGE.heard(trouble, time.monotonic())
    if said:
        log.warning("%s", said)


def answered(asked_at: float) -> None:
    """Take note of an answer to what was asked then (`time.monotonic()`), and log it if there was an outage. Any
    thread.
    """
    with _LOCK:
        said = _OUTAGE.answered(asked_at, time.monotonic())
    if said:
        log.warning("%s", said)
