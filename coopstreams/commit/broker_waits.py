"""The answers that a stream thread waits for while it commits, and the brokers' last
answer. Other threads read them.

Relies on: `tasks.committer` (notes its waits), `status.stall_detector` (judges them).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from coopstreams.common.host import Host
from coopstreams.topology.errors import FencedError, LogError

ANSWER_PART = 4
"""The number of transaction time-outs that one commit may take: a client ends an open
transaction, flushes or sends, commits, and awaits its markers.
"""


class Wait(NamedTuple):
    """An answer for which a thread waits, in words, and the time since when.

    `of_brokers` False: an external sink has to answer.
    """

    what: str
    since: float
    of_brokers: bool


class Asking:
    """The waits of one committer, whose thread writes them. Reads are thread-safe:
    `waiting` and `trouble` are replaced as a whole. Units: seconds, and times of
    `Host.now`.
    """

    def __init__(self, timeout_s: float, host: Host) -> None:
        """Make the record of a committer's waits. `timeout_s`: the time-out of a
        transaction.
        """
        self._host = host
        self.waiting: Wait | None = None
        self.trouble: tuple[str, float] | None = None
        """Why the brokers failed the last commit, and when; None: they accepted it."""
        self.answer_s = ANSWER_PART * timeout_s
        """How long the client may wait for all answers to one commit before it gives
        up. A longer wait means that it hangs.
        """

    @property
    def asked_at(self) -> float | None:
        """The time since which the thread waits for the brokers; None: it waits for no
        answer, or for a sink's.
        """
        waiting = self.waiting
        return waiting.since if waiting is not None and waiting.of_brokers else None

    def begin(self, what: str) -> None:
        """Note that the thread waits for the brokers from now on."""
        self.waiting = Wait(what, self._host.now(), of_brokers=True)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Record a retryable error of the brokers in the block as `trouble`. After the
        block, the thread waits for nothing.
        """
        try:
            yield
        except LogError as error:
            if (
                self.asked_at is not None
                and error.retryable
                and not isinstance(error, FencedError)
            ):
                self.trouble = str(error), self._host.now()
            raise
        finally:
            self.waiting = None

    @contextmanager
    def awaiting(self, what: str, *, of_brokers: bool = True) -> Iterator[None]:
        """Set what the thread waits for during the block, and afterwards what it waited
        for before. An error in the block ends the commit, so nothing is set back.
        """
        before = self.waiting
        self.waiting = Wait(what, self._host.now(), of_brokers)
        yield
        self.waiting = before
