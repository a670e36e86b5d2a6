"""Gives records between mutually dependent sub-topologies a *place*: the time when
their task forwarded them.

Ordered by timestamp, a record could come before the one that it answers: an answer has
the timestamp of its row, which may be late.
"""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.topology.compile.outputs import Output


class PlacedOutput(Output):
    """An output that stores the task's time at which each record was forwarded.

    Shape: `times` is a column like the others; `now` returns the time.
    """

    __slots__ = ("times",)

    def __init__(self, topic: str, now: Callable[[], int]) -> None:
        super().__init__(topic)
        self.times: list[int] = []
        self.timestamps: list[int] = _Noting(self.times, now)

    def clear(self) -> None:
        """Forget the records, which the caller has taken."""
        super().clear()
        self.times.clear()


class _Noting(list[int]):
    """A list of timestamps that notes the time of each append. Compiled code knows only
    a list and its `append`.
    """

    def __init__(self, times: list[int], now: Callable[[], int]) -> None:
        super().__init__()
        self._note = times.append
        self._now = now

    def append(self, timestamp: int) -> None:
        super().append(timestamp)
        self._note(self._now())
