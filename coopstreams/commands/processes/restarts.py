"""Decides whether a worker that ended is restarted, or ends the run: a state machine without I/O.

    0               it drained, because another process asked it to         restarted
    below 0         a signal killed it                                      restarted
    WRONG, STOPPED  each worker would end so, now or later                  the run ends
    any other       an error                                                restarted

The first restart is at once, the next ones after 1, 2, 4, ... 60 s; after ten minutes without an end the count begins
again. A worker that ends more than `most` times in a row ends the run: a record that cannot be processed would
otherwise kill one worker after the other for ever.

Invariant: the ends of one worker do not count for the others, except WRONG and STOPPED.
Turned down: one count for all workers (a machine that stands still for a moment may kill all of them at once).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.common.backoff import BackOff
from coopstreams.topology.errors import ApplicationStoppedError, ConfigError, CoopStreamsError, TopologyError

FAILED = 1
WRONG = 2
"""Exit status: settings, program or topics do not fit each other. Typer uses the same for a wrong command line."""
STOPPED = 3
"""Exit status: an instance has stopped the whole application."""

MOST_RESTARTS = 10
FIRST_REST_S = 1.0
MOST_REST_S = 60.0
FORGOTTEN_AFTER_S = 600.0


def exit_status(error: CoopStreamsError) -> int:
    """Return the exit status of an error."""
    if isinstance(error, ApplicationStoppedError):
        return STOPPED
    return WRONG if isinstance(error, ConfigError | TopologyError) else FAILED


@dataclass(frozen=True, slots=True)
class Again:
    """Restart the worker after this many seconds. `said` is a sentence for the log."""

    rest_s: float
    said: str


@dataclass(frozen=True, slots=True)
class Over:
    """End all workers, and the run with this status. `said` is a sentence for the log."""

    status: int
    said: str


Verdict: TypeAlias = Again | Over


class Restarts:
    """The ends of one worker."""

    def __init__(self, worker: int, most: int) -> None:
        self._worker = worker
        self._most = most
        self._back_off = BackOff(FIRST_REST_S, MOST_REST_S, FORGOTTEN_AFTER_S)

    def ended(self, status: int, why: str, now: float) -> Verdict:
        """Note an end; return the decision. `status`: as in `Popen.returncode`. `why`: the worker's reason, if any."""
        rest_s = self._back_off.died(now)
        told = f"worker {self._worker} {describe_end(status, why)}"
        if status in (WRONG, STOPPED):
            return Over(status, f"{told}; the others would end in the same way, so all are stopped")
        row = self._back_off.in_a_row
        if row > self._most:
            times = f"; it has ended {row} times in a row" if row > 1 else ""
            return Over(
                128 - status if status < 0 else status or FAILED,
                f"{told}{times}; all are stopped (--max-restarts {self._most})",
            )
        again = f"starting it again in {rest_s:g} s" if rest_s else "starting it again"
        counted = f" ({row} ends in a row; more than {self._most} stop all)" if row > 1 else ""
        return Again(rest_s, f"{told}; {again}{counted}")


def describe_end(status: int, why: str) -> str:
    """Return how a worker ended, in words that follow its name."""
    if status < 0:
        return f"was killed by {_signal(-status)}"
    if status == 0:
        return "ended normally after a signal from outside"
    return f"ended with status {status}" + (f": {why}" if why else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
