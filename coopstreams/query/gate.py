"""The rules that every request to an instance passes, whichever server answers it: its
access check, its error, its count.

    `Access.check` -> the answer of `QueryApp` or of `KeyAnswers` -> `error`, if it failed
    -> `Metrics.answered`

Invariant: both servers refuse the same request for the same reason, an error has the
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
    """The access rules, the limits and the metrics that all requests to one instance
    share.
    """

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
        """Whether the server is stopping: a request that the stop cuts off gets a
        retryable error.
        """

    @property
    def here(self) -> str:
        """The id of the instance, for the header of each answer."""
        return self.backend.placement().here

    def error(self, raised: Exception, request: str) -> QueryError:
        """Return the error that answers a request in which this was raised; log it if
        it is a bug.
        """
        if isinstance(raised, QueryError):
            return raised
        if isinstance(raised, TimeoutError):
            return timed_out(f"no answer within {self.limits.request_s:g} s")
        if self.ended:
            return not_running()
        log.error("%s failed", request, exc_info=raised)
        return internal(raised)


def not_running() -> QueryError:
    """Return the error for a request to an instance that does not run yet, or is
    stopping.
    """
    return moving("this instance does not run (yet, or any more)")
