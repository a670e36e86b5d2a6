"""Implements a circuit breaker as a state machine: after failures in a row, attempts
pause, and a single probe decides when they resume.

    closed   attempts begin; after `failures` failed attempts in a row, it opens
    open     no attempt begins for `pause`
    probing  one attempt begins; if it succeeds, the breaker closes; if it fails, it opens for another `pause`

An attempt that began before the breaker opened and ends later has no effect: only the
probe closes an open breaker.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from coopstreams.topology.calls import CircuitBreaker

Admission: TypeAlias = Literal["free", "probe", "wait"]
"""The answer to an attempt that wants to begin. `free`: begin, beside others. `probe`:
begin, as the only one. `wait`: do not begin now.
"""


class Breaker:
    """A circuit breaker without a clock. `now`: the seconds of any clock that does not
    go back.

    Use it on the event loop. Only `why` is thread-safe: it reads each field once.
    """

    def __init__(self, how: CircuitBreaker) -> None:
        self._how = how
        self._in_a_row = 0
        self._open_until: float | None = None
        """The time at which a probe may begin, or None if the breaker is closed."""
        self._probing = False
        self._last_error: Exception | None = None

    def admit(self, now: float) -> Admission:
        """Return whether an attempt may begin now. With `free` or `probe`, it counts as
        begun.
        """
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
        """Note the end of an attempt. `admission`: the answer of `admit` with which it
        began. `error`: its error, None if it succeeded.
        """
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
        """Return in how many seconds an attempt should ask `admit` again. None: the
        breaker is closed, or the end of the probe decides.
        """
        until = self._open_until
        return None if until is None or self._probing else max(0.0, until - now)

    def why(self, now: float) -> str:
        """Return why attempts wait, in words; empty if they do not wait."""
        if self._open_until is None:
            return ""
        left_s = self.wait_s(now)
        error = self._last_error
        when = (
            "one is tried now" if left_s is None else f"one is tried in {left_s:.0f} s"
        )
        return f"{self._how.failures} in a row have failed, the last with {type(error).__name__}: {error}; {when}"
