"""What each request for an instance passes, whichever server answers it: its access, its
error, its count.

    `Access.check` -> the answer of `QueryApp` or of `KeyAnswers` -> `error`, if it failed
    -> `Metrics.answered`

Invariant: the same request is refused for the same reason by both, an error has the
form of `problems`, and each request is counted once.
"""

from __future__ import annotations

import logging

from coopstreams.common.metrics import Metrics
from coopstreams.query.access import Access
from coopstreams.query.backend import Backend
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.problems import internal, moving, timed_out
from coopstreams.topology.errors import QueryError

log = logging.getLogger(__name__)


class Gate:
    """The rules of one instance for all requests."""

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        limits: RequestLimits,
        access: Access,
    ) -> None:
        self.backend = backend
        self.metrics = metrics
        self.limits = limits
        self.access = access
        self.ended = False
        """Whether the server stops: requests that are cut off by that are asked again.
        """

    @property
    def here(self) -> str:
        """The id of the instance, for the header of each answer."""
        return self.backend.placement().here

    def error(self, raised: Exception, request: str) -> QueryError:
        """Return the error with which a request is answered; log one that is a bug."""
        if isinstance(raised, QueryError):
            return raised
        if isinstance(raised, TimeoutError):
            return timed_out(f"no answer within {self.limits.request_s:g} s")
        if self.ended:
            return not_running()
        log.error("%s failed", request, exc_info=raised)
        return internal(raised)


def not_running() -> QueryError:
    """Return the error for a request to an instance that does not run, or whose end it
    has met.
    """
    return moving("this instance does not run (yet, or any more)")
