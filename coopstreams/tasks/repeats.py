"""Which of many similar things are logged: the first ones in full, then how many there were, from time to time.

Invariant: nothing that was heard is missing in what was said: `FIRST` of a kind in full, all others in a count, by
`due` or by `rest`.
Turned down: a filter of log records (it knows texts, not kinds, and cannot say what it left out).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from coopstreams.common.host import SYSTEM, Host

log = logging.getLogger(__name__)

FIRST = 5
"""Of each kind these are said in full."""
EVERY_S = 60.0
"""How often the others are counted."""


@dataclass(slots=True)
class _Kind:
    heard: int = 0
    unsaid: int = 0
    said_at: float = 0.0
    last: str = ""


@dataclass(slots=True)
class Repeats:
    """Decides. Shape: a kind is what is counted together; `now` from a clock that never goes back."""

    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def hear(self, kind: Hashable, text: str, now: float) -> bool:
        """Return whether this one is said in full; if not, it is counted."""
        known = self.kinds.setdefault(kind, _Kind())
        known.heard += 1
        known.last = text
        if known.heard <= FIRST:
            known.said_at = now
            return True
        known.unsaid += 1
        return False

    def due(self, now: float) -> list[str]:
        """Return what is to be said now of what was only counted."""
        return [self._count(kind, now) for kind in self.kinds.values() if kind.unsaid and now - kind.said_at >= EVERY_S]

    def rest(self) -> list[str]:
        """Return what is still to be said in the end."""
        return [self._count(kind, kind.said_at) for kind in self.kinds.values() if kind.unsaid]

    @staticmethod
    def _count(kind: _Kind, now: float) -> str:
        text = f"{kind.unsaid:,} more like this, {kind.heard:,} so far; the last: {kind.last}"
        kind.unsaid, kind.said_at = 0, now
        return text


class Sayings:
    """Logs warnings as `Repeats` decides. Any thread."""

    def __init__(self, host: Host = SYSTEM) -> None:
        self._host = host
        self._repeats = Repeats()
        self._lock = threading.Lock()

    def warn(self, kind: Hashable, text: str) -> None:
        """Log this, or count it."""
        with self._lock:
            said = self._repeats.hear(kind, text, self._host.now())
        if said:
            log.warning("%s", text)

    def tick(self) -> None:
        """Log the counts that are due. To be called about once a second."""
        with self._lock:
            due = self._repeats.due(self._host.now())
        for text in due:
            log.warning("%s", text)

    def close(self) -> None:
        """Log what was counted and not yet said."""
        with self._lock:
            rest = self._repeats.rest()
        for text in rest:
            log.warning("%s", text)
