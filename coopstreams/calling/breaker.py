"""A circuit breaker, as a state machine: after failures in a row, attempts pause and
one probe decides.

    closed   attempts begin; `failures` that fail in a row open it
    open     none begins for `pause`
    probing  then one begins; when it succeeds, the breaker closes; when it fails, it stays open for another `pause`

An attempt that began before the breaker opened and ends later has no effect: only the
probe closes an open breaker.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from coopstreams.topology.calls import CircuitBreaker

Admission: TypeAlias = Literal["free", "probe", "wait"]
"""Whether an attempt may begin: `free`: yes, beside others; `probe`: yes, as the only
one; `wait`: not now.
"""


class Breaker:
    """A circuit breaker. No clock of its own: `now` in seconds of any clock that does
    not go back.

    Belongs to the event loop; `why` is thread-safe: it reads each field once.
    """

    def __init__(self, how: CircuitBreaker) -> None:
        self._how = how
        self._in_a_row = 0
        self._open_until: float | None = None
        """The time at which a probe may begin; None: the breaker is closed."""
        self._probing = False
        self._last_error: Exception | None = None

    def admit(self, now: float) -> Admission:
        """Return whether an attempt may begin now; if so, it has begun."""
        if self._open_until is None:
            return "free"
        if self._probing or now < self._open_until:
            return "wait"
        self._probing = True
        return "probe"

    def ended(
        self,
        admission: Admission,
        error: Exception | None,
        now: float,
    ) -> None:
        """Note that an attempt has ended, which began with this answer of `admit`."""
        failed = isinstance(error, self._how.on)
        if failed:
            self._last_error = error
        if admission == "probe":
            self._probing = False
            self._open_until = now + self._how.pause_s if failed else None
            self._in_a_row = 0
        elif self._open_until is None:
            self._in_a_row = self._in_a_row + 1 if failed else 0
            if self._in_a_row >= self._how.failures:
                self._open_until = now + self._how.pause_s

    def wait_s(self, now: float) -> float | None:
        """Return in how many seconds to ask again; None: after the probe, or the
        breaker is closed.
        """
        until = self._open_until
        return None if until is None or self._probing else max(0.0, until - now)

    def why(self, now: float) -> str:
        """Return why attempts wait, in words; empty: they do not."""
        if self._open_until is None:
            return ""
        left_s = self.wait_s(now)
        error = self._last_error
        when = (
            "one is tried now" if left_s is None else f"one is tried in {left_s:.0f} s"
        )
        return f"{self._how.failures} in a row have failed, the last with {type(error).__name__}: {error}; {when}"
