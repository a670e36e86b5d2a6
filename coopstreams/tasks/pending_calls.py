"""The records of a task whose calls are under way, in the order in which they are processed.

    begin    records come: the part of the program above the asynchronous nodes finds their calls, which are begun
    ready    yields records, from the first on, as far as all of their calls have ended

So a record passes the program when its calls have ended and all records before it have passed. Nothing of it has
happened before: its position is not committed, and after a crash it comes again.

Invariant: not more than `max_in_flight` calls of a node have begun and wait to be passed on, unless one record needs
more; and not more than `MOST_RECORDS` records wait, those that need no call included. The others stay in the queues,
where the dispatcher bounds them.
Turned down: records of other keys that pass one that waits. State, stream time and outputs would then depend on how
long calls take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coopstreams.calling.lanes import Call, Lane
from coopstreams.common.host import Host
from coopstreams.tasks.queues import Step
from coopstreams.tasks.tally import Tally
from coopstreams.topology.compile.program import BoundProgram, Program
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import AsyncMap

MOST_RECORDS = 10_000


@dataclass(slots=True)
class _Waiting:
    """A step, less the first `done` records, which have been passed on."""

    step: Step
    began: float
    done: int = 0
    calls: deque[tuple[int, str, Call]] = field(default_factory=deque)
    """Row in the step, node and call, of the records that have not been passed on."""


class PendingCalls:
    """The calls of one task. One thread, but for `_ended`."""

    def __init__(
        self,
        program: Program,
        ahead: Program,
        bound: BoundProgram,
        tally: Tally,
        host: Host,
    ) -> None:
        self._nodes = {node.name: node for node in program.subtopology.nodes if isinstance(node, AsyncMap)}
        self._lanes = {name: Lane(node.calling, self._ended) for name, node in self._nodes.items()}
        self._most = min(node.calling.max_in_flight for node in self._nodes.values())
        self._ahead = ahead.bind({}, _leave_to_the_program, caching=False)
        self._topics = frozenset(ahead.subtopology.topics)
        self._results = bound.results
        self._tally = tally
        self._host = host
        self._waiting: deque[_Waiting] = deque()
        self._count = self._records = 0
        self._news = host.signal()
        self._told = False
        self.tell: Callable[[], None] = self._news.set
        """Called on another thread when there may be something in `ready`, once until the next `look`."""

    def __len__(self) -> int:
        """Return how many calls have begun whose records have not been passed on."""
        return self._count

    @property
    def room(self) -> int:
        """How many records may come now."""
        return max(0, min(self._most - self._count, MOST_RECORDS - self._records))

    @property
    def oldest(self) -> float | None:
        """Since when the first record waits; None if none does. Units: `Host.now`."""
        return self._waiting[0].began if self._waiting else None

    def begin(self, step: Step) -> None:
        """Take records in, and begin their calls."""
        waiting = _Waiting(step, self._host.now())
        self._waiting.append(waiting)
        self._records += _size(step)
        if not len(step.columns) or step.source.topic not in self._topics:
            return
        wanted = self._ahead.wanted
        wanted.clear()
        self._ahead.process(step.source, step.columns)
        keys = step.columns.keys
        begun: dict[str, list[Call]] = {}
        for row, name, key, value in wanted:
            node = self._nodes[name]
            call = Call(node.mapper, (key, value) if node.with_key else (value,), keys[row])
            waiting.calls.append((row, name, call))
            begun.setdefault(name, []).append(call)
        self._count += len(wanted)
        for name, calls in begun.items():
            self._lanes[name].begin(calls)

    def ready(self, most: int) -> Iterator[Step]:
        """Yield the records whose turn it is, in steps of at most `most`, and give the program their results."""
        while self.look():
            first = self._waiting[0]
            end = min(self._ended_until(first), first.done + most)
            if end == len(first.step.columns):
                self._waiting.popleft()
                self._records -= _size(first.step)
            begin, first.done = first.done, end
            self._hand_over(first, end)
            yield first.step.part(begin, end)

    def look(self) -> bool:
        """Return whether `ready` has a record, or the time that the partition has reached; if not, `tell` follows."""
        self._told = False
        if not self._waiting:
            return False
        first = self._waiting[0]
        return self._ended_until(first) > first.done or not len(first.step.columns)

    def wait(self, timeout_s: float) -> bool:
        """Block until a call has ended since the last `look`; return False if none is under way."""
        if not self._count:
            return False
        self._news.wait(timeout_s)
        self._news.clear()
        return True

    def cancel(self) -> None:
        """Cancel all calls, and forget the records."""
        for lane in self._lanes.values():
            lane.cancel()
        self._waiting.clear()
        self._count = self._records = 0

    def _ended(self) -> None:
        if not self._told:
            self._told = True
            self.tell()

    @staticmethod
    def _ended_until(waiting: _Waiting) -> int:
        """Return the row of the first record with a call that has not ended; the end of the step if there is none."""
        return next((row for row, _, call in waiting.calls if not call.ended), len(waiting.step.columns))

    def _hand_over(self, waiting: _Waiting, end: int) -> None:
        """Give the program the results of the records before this row."""
        self._results.clear()
        offsets, calls = waiting.step.columns.offsets, waiting.calls
        while calls and calls[0][0] < end:
            row, name, call = calls.popleft()
            self._count -= 1
            self._tally.retries += call.failed - (call.error is not None)
            self._results.give(name, offsets[row], call)


def _size(step: Step) -> int:
    """Return what a step counts towards `MOST_RECORDS`: one without records takes a place, too."""
    return max(1, len(step.columns))


def _leave_to_the_program(_failure: Failure) -> None:
    """Drop a record that fails above the call: the program meets the same failure, and reports it."""
