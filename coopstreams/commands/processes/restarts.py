"""Decides whether a worker that ended is restarted, or ends the run: a state machine
without I/O.

    0               it drained, because another process asked it to         restarted
    below 0         a signal killed it                                      restarted
    STOPPED         each worker ends so                                     the run ends
    WRONG           it has never run: somebody must mend something first    the run ends
                    it has run before                                       restarted
    any other       an error                                                restarted

The first restart is at once, the next ones after 1, 2, 4, ... 60 s. After ten minutes
without an end the count begins again. A worker that ends more than `most` times in a
row ends the run: a record that cannot be processed would otherwise kill one worker
after the other for ever. A worker that is refused at a restart (its port is taken, the
file of a secret is being replaced, the program is already the next version) does not
harm the others. While others run, it may be refused any number of times.

Invariant: the ends of one worker do not count for the others, except STOPPED and the
WRONG of a first start.
Turned down: one count for all workers (a machine that pauses for a moment may kill all
of them at once).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.common.backoff import BackOff
from coopstreams.topology.errors import (
    ApplicationStoppedError,
    ConfigError,
    CoopStreamsError,
    TopologyError,
    UnknownTopicError,
)

FAILED = 1
WRONG = 2
"""Exit status: settings, program or topics do not fit each other, or a topic does not
exist. Typer uses the same status for a wrong command line.
"""
STOPPED = 3
"""Exit status: an instance has stopped the whole application."""

MOST_RESTARTS = 10
FIRST_REST_S = 1.0
MOST_REST_S = 60.0
FORGOTTEN_AFTER_S = 600.0


def exit_status(error: CoopStreamsError) -> int:
    """Return the exit status of a process that this error ends."""
    if isinstance(error, ApplicationStoppedError):
        return STOPPED
    return (
        WRONG
        if isinstance(error, ConfigError | TopologyError | UnknownTopicError)
        else FAILED
    )


@dataclass(frozen=True, slots=True)
class Again:
    """The decision to restart the worker after `rest_s` seconds. `said`: a sentence for
    the log.
    """

    rest_s: float
    said: str


@dataclass(frozen=True, slots=True)
class Over:
    """The decision to end all workers, and the run with this status. `said`: a sentence
    for the log.
    """

    status: int
    said: str


Verdict: TypeAlias = Again | Over


class Restarts:
    """The ends of one worker, and the decision after each."""

    def __init__(self, worker: int, most: int) -> None:
        self._worker = worker
        self._most = most
        self._back_off = BackOff(FIRST_REST_S, MOST_REST_S, FORGOTTEN_AFTER_S)
        self._has_run = False
        self._last_status = 0

    @property
    def refused(self) -> bool:
        """Whether the worker's last end was WRONG."""
        return self._last_status == WRONG

    def ended(
        self,
        status: int,
        why: str,
        now: float,
        *,
        ran: bool,
        others: bool,
    ) -> Verdict:
        """Note an end of the worker; return the decision.

        `status`: as in `Popen.returncode`.
        `why`: the worker's reason, if any.
        `ran`: whether the process had its tasks open.
        `others`: whether another worker runs, or is about to be restarted after an end
        that was not WRONG.
        """
        rest_s = self._back_off.died(now)
        self._last_status = status
        self._has_run = self._has_run or ran
        told = f"worker {self._worker} {describe_end(status, why)}"
        if status == STOPPED:
            return Over(
                status,
                f"{told}; the others end in the same way, so all are stopped",
            )
        if status == WRONG and not self._has_run:
            return Over(
                status,
                f"{told}; it has not run yet, and cannot before this is mended, so all are stopped",
            )
        spared = status == WRONG and not ran and others and self._most > 0
        if self._back_off.in_a_row > self._most and not spared:
            return self._too_often(status, told)
        return self._again(rest_s, told, spared=spared)

    def _too_often(self, status: int, told: str) -> Over:
        """Return the end of the run, with the exit status of a shell: 128 plus the
        signal, if one killed the worker.
        """
        row = self._back_off.in_a_row
        times = f"; it has ended {row} times in a row" if row > 1 else ""
        return Over(
            128 - status if status < 0 else status or FAILED,
            f"{told}{times}; all are stopped (--max-restarts {self._most})",
        )

    def _again(
        self,
        rest_s: float,
        told: str,
        *,
        spared: bool,
    ) -> Again:
        row = self._back_off.in_a_row
        again = f"starting it again in {rest_s:g} s" if rest_s else "starting it again"
        bound = "the others go on" if spared else f"more than {self._most} stop all"
        counted = f" ({row} ends in a row; {bound})" if row > 1 else ""
        return Again(rest_s, f"{told}; {again}{counted}")


def describe_end(status: int, why: str) -> str:
    """Return how a worker ended, as the words after its name in a sentence."""
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
