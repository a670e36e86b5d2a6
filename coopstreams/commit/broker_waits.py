"""What a stream thread waits for while it commits, and what the brokers' last answer
was. Other threads read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from coopstreams.common.host import Host
from coopstreams.topology.errors import FencedError, LogError

ANSWER_PART = 4
"""In time-outs of a transaction: a client asks for what is open, flushes or sends,
commits, and awaits its markers.
"""


class Wait(NamedTuple):
    """The answer for which a thread waits, in words, and since when; of the brokers, or
    of an external sink.
    """

    what: str
    since: float
    of_brokers: bool


class Asking:
    """The waits of one committer, whose thread writes. Reads are thread-safe: `waiting`
    and `trouble` are replaced as a whole. Units: seconds, and times of `Host.now`.
    """

    def __init__(self, timeout_s: float, host: Host) -> None:
        """`timeout_s`: of a transaction."""
        self._host = host
        self.waiting: Wait | None = None
        self.trouble: tuple[str, float] | None = None
        """Why the brokers failed the last commit, and when they last did; None: they
        took it.
        """
        self.answer_s = ANSWER_PART * timeout_s
        """How long the client may wait for the answers to one commit before it gives
        up. Later it hangs.
        """

    @property
    def asked_at(self) -> float | None:
        """Since when the thread waits for the brokers; None: it does not, or waits for
        a sink.
        """
        waiting = self.waiting
        return waiting.since if waiting is not None and waiting.of_brokers else None

    def begin(self, what: str) -> None:
        """Note that the thread waits for the brokers from now on."""
        self.waiting = Wait(what, self._host.now(), of_brokers=True)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Note trouble with the brokers within, and end the wait that begins within or
        has begun before.
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
        """Note what the thread waits for within, then what it did before. An error ends
        the commit and leaves it so.
        """
        before = self.waiting
        self.waiting = Wait(what, self._host.now(), of_brokers)
        yield
        self.waiting = before
