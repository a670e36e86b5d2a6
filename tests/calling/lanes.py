"""Calls that are made by a lane, for tests."""

from __future__ import annotations

import asyncio
import queue
import selectors
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coopstreams.calling.lanes import Call, Lane
from coopstreams.common.host import System
from coopstreams.topology.calls import Calling, calling

PATIENCE_S = 60.0


def made_by(how: Calling, calls: list[Call]) -> Lane[Call]:
    """Make these calls; return their lane when all have ended."""
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    lane = Lane(how, told.put)
    lane.begin(calls)
    left = Counter(calls)
    while left:
        over = Counter(told.get(timeout=PATIENCE_S))
        assert over <= left, "a call ends once"
        left -= over
    return lane


def ended(calls: list[Call], **options: Any) -> list[Call]:
    """Make these calls of one function; return them when all have ended."""
    made_by(calling("f", calls[0].function, **options), calls)
    return calls


def one(function: Callable[..., Any], **options: Any) -> Call:
    return ended([Call(function, (7,), b"k")], **options)[0]


class Leaping(selectors.SelectSelector):
    """Waits for no time: `now` leaps to the end of each wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time leaps to the next timer."""

    def __init__(self) -> None:
        self._leaping = Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


class LeapingHost(System):
    def __init__(self) -> None:
        self.loop = LeapingLoop()

    def event_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop
