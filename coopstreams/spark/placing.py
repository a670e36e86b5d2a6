"""What goes between sub-topologies that wait for each other, each record with its place: the time at which its task
forwarded it.

By their timestamps alone, records could come before what they answer: an answer has the timestamp of its row, which may
be late.
"""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.topology.compile.outputs import Output


class PlacedOutput(Output):
    """An output that knows what time it was, for the task, when each record was forwarded.

    Shape: `times` is a column like the others; `now` says what time it is.
    """

    __slots__ = ("times",)

    def __init__(self, topic: str, now: Callable[[], int]) -> None:
        super().__init__(topic)
        self.times: list[int] = []
        self.timestamps: list[int] = _Noting(self.times, now)

    def clear(self) -> None:
        """Forget the records: somebody has them now."""
        super().clear()
        self.times.clear()


class _Noting(list[int]):
    """Timestamps; with each that is appended, the time is noted. Compiled code knows of a list and its `append`, and of
    nothing else.
    """

    def __init__(self, times: list[int], now: Callable[[], int]) -> None:
        super().__init__()
        self._note, self._now = times.append, now

    def append(self, timestamp: int) -> None:
        super().append(timestamp)
        self._note(self._now())
