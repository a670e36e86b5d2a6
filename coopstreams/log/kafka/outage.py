"""Logs outages of brokers: one line when a broker stops answering, one a minute
meanwhile, one at the end.

Each client of a process (readers, writers, `KafkaLog`'s own) meets the same outage, and
its library reports it again and again. They report it to the one `Outage` of the
process; a client that gets an answer reports that as well.

Invariant: a broker has at most one line a minute, and "answers again" follows only a
line on an outage.
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
"""An outage is over after this long without a report of trouble, even without a
request.

Clients that cannot connect report more often than that.
"""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+")
_PREFIX = re.compile(r"^\[thrd:.*?\]: ")


@dataclass(slots=True)
class Outage:
    """The outage of a process's brokers: decides which lines are logged. Units: seconds
    of a monotonic clock.
    """

    _since: dict[str, float] = field(default_factory=dict)
    _said: dict[str, float] = field(default_factory=dict)
    _last: float = float("-inf")
    _told: bool = False

    def heard(self, trouble: str, now: float) -> str | None:
        """Return the line to log when a client reports trouble with a broker; None: the
        last line is less than `EVERY_S` old.

        `trouble`: the report in librdkafka's words.
        """
        said = _PREFIX.sub("", trouble).partition(" (after ")[0]
        address = _ADDRESS.search(said)
        broker = address.group() if address else said
        if now - self._last > OVER_S:
            self._since.clear()
        since = self._since.setdefault(broker, now)
        self._last = now
        if now - self._said.get(broker, float("-inf")) < EVERY_S:
            return None
        self._said[broker] = now
        self._told = True
        lasts = f", for {now - since:.0f} s" if now > since else ""
        return f"Kafka broker {broker} does not answer{lasts}: {said.rpartition(': ')[2]}; trying again"

    def answered(self, asked_at: float, now: float) -> str | None:
        """Return the line to log when a broker has answered; None: there was no outage,
        or trouble was reported after `asked_at`.

        `asked_at`: when the answered request was sent.
        """
        if not self._since or self._last >= asked_at:
            return None
        began = min(self._since.values())
        told = self._told
        self._told = False
        self._since.clear()
        return f"Kafka answers again, after {now - began:.0f} s" if told else None


_OUTAGE = Outage()
_LOCK = threading.Lock()
"""Makes `heard` and `answered` thread-safe: the clients of a process share `_OUTAGE`."""


def heard(trouble: str) -> None:
    """Report trouble with a broker, and log it if it is new or has lasted."""
    with _LOCK:
        said = _OUTAGE.heard(trouble, time.monotonic())
    if said:
        log.warning("%s", said)


def answered(asked_at: float) -> None:
    """Report an answer to a request that was sent at `asked_at` (`time.monotonic()`);
    log the end of an outage.
    """
    with _LOCK:
        said = _OUTAGE.answered(asked_at, time.monotonic())
    if said:
        log.warning("%s", said)
