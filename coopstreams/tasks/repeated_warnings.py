"""Limits the rate of repeated warnings: the first of a kind are logged in full, the
rest as a count from time to time.

Invariant: every warning is reported: the first `FIRST` of a kind in full, all others in
a count, which `due` or `rest` returns. Turned down: a filter of log records (it knows
texts, not kinds, and cannot report what it left out).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from coopstreams.common.host import SYSTEM, Host

log = logging.getLogger(__name__)

FIRST = 5
"""How many warnings of a kind are logged in full."""
EVERY_S = 60.0
"""How often the number of further warnings is logged."""


@dataclass(slots=True)
class _Kind:
    """The warnings of one kind so far: all (`heard`), those since the last logged line
    (`unsaid`), the time of that line, and the last text.
    """

    heard: int = 0
    unsaid: int = 0
    said_at: float = 0.0
    last: str = ""


@dataclass(slots=True)
class Repeats:
    """Decides which warnings are logged.

    Shape: a kind is any hashable value; warnings of one kind are counted together.
    `now` is from a monotonic clock.
    """

    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def hear(
        self,
        kind: Hashable,
        text: str,
        now: float,
    ) -> bool:
        """Count a warning; return whether it is to be logged in full."""
        known = self.kinds.setdefault(kind, _Kind())
        known.heard += 1
        known.last = text
        if known.heard <= FIRST:
            known.said_at = now
            return True
        known.unsaid += 1
        return False

    def due(self, now: float) -> list[str]:
        """Return the counts that are to be logged now, as texts."""
        return [
            self._count(kind, now)
            for kind in self.kinds.values()
            if kind.unsaid and now - kind.said_at >= EVERY_S
        ]

    def rest(self) -> list[str]:
        """Return the counts that were not logged yet, as texts, for the end."""
        return [
            self._count(kind, kind.said_at)
            for kind in self.kinds.values()
            if kind.unsaid
        ]

    @staticmethod
    def _count(kind: _Kind, now: float) -> str:
        text = f"{kind.unsaid:,} more like this, {kind.heard:,} so far; the last: {kind.last}"
        kind.unsaid = 0
        kind.said_at = now
        return text


class Sayings:
    """Logs warnings as `Repeats` decides. Thread-safe: a lock."""

    def __init__(self, host: Host = SYSTEM) -> None:
        self._host = host
        self._repeats = Repeats()
        self._lock = threading.Lock()

    def warn(self, kind: Hashable, text: str) -> None:
        """Log a warning in full, or only count it."""
        with self._lock:
            said = self._repeats.hear(kind, text, self._host.now())
        if said:
            log.warning("%s", text)

    def tick(self) -> None:
        """Log the counts that are due. Call it about once a second."""
        with self._lock:
            due = self._repeats.due(self._host.now())
        for text in due:
            log.warning("%s", text)

    def close(self) -> None:
        """Log the counts that were not logged yet."""
        with self._lock:
            rest = self._repeats.rest()
        for text in rest:
            log.warning("%s", text)
