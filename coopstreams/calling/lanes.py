"""Makes the calls of asynchronous operators: coroutines on one event loop, other
functions on threads or in processes.

    lane = Lane(node.calling, ended)    # for one node in one task
    lane.begin(calls)                   # returns at once; `ended(some of them)` follows, on another thread
    lane.drain()                        # the task is being closed: calls under way end, waiting calls are dropped
    lane.cancel()                       # the task was closed: `ended` is not called any more

Invariant: calls of a lane with the same chain (`Calling.order`) are made one after the
other, in the order in which they were begun, each with all of its attempts. At most
`max_in_flight` are under way, a batch counting as one.
Invariant: every call of a lane that is neither drained nor cancelled ends, with a value
or an error. Without a time-out, that depends on the user's function.
Invariant: a time-out counts from the start of the function. A thread cannot be killed,
so a thread whose call took too long is abandoned, and another takes the next call.
While `MOST_LEFT` threads of a lane are abandoned, its calls wait. Closed tasks may be
reopened many times, so while their abandoned threads number `MOST_LOST`, all calls of
the process wait.
Invariant: a batch that fails for good is repeated record by record, so that only the
bad record fails. Turned down: an asyncio task for each call (it costs as much as half a
call; so a task makes several calls, one after the other), an event loop for each stream
thread (a function that computes would stop the records of the thread), or for each
application (a client that is made when the program is loaded belongs to one loop).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Self,
    TypeVar,
)

from coopstreams.calling.arrow_calls import awaited_with_arrow, called_with_arrow
from coopstreams.calling.breaker import Admission, Breaker
from coopstreams.calling.call_threads import CallThreads
from coopstreams.calling.process_pool import MOST_PROCESSES, ProcessCall
from coopstreams.common.host import SYSTEM, Host
from coopstreams.topology.calls import Calling
from coopstreams.topology.errors import ProcessingError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TOGETHER_S = 0.004
"""The time within which ended calls are reported together, because waking a stream
thread costs as much as several calls.
"""
IN_A_ROW = 8
"""The number of calls that one asyncio task makes before others run, for functions that
return without waiting.
"""
LOOKS = 16
"""The number of checks for late calls within the time-out of one call."""
MOST_THREADS = 64
"""The most threads of a lane that make calls. If a function needs more, it should be a
coroutine.
"""
MOST_LEFT = 64
"""The most abandoned threads of a lane, in addition to `MOST_THREADS`. More would be a
leak.
"""
MOST_LOST = 1000
"""The most abandoned threads of all cancelled lanes together."""
LOOK_S = 1.0
"""The pause between checks of whether abandoned threads have returned, while there are
too many.
"""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a user's function for one record. A call that has ended has a value
    or an error.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    key: bytes | None
    next: Self | None = field(default=None, init=False)
    """The next call of the chain, which begins when this call has ended."""
    value: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    span: Span | None = field(default=None, init=False)
    """The call's OpenTelemetry span, if calls are traced."""
    prompt: bool = field(default=False, init=False)
    """Whether the end of the call is reported at once because other calls wait for the
    report.
    """


AnyCall = TypeVar("AnyCall", bound=Call)


@dataclass(slots=True, eq=False)
class _Attempt(Generic[AnyCall]):
    """One attempt to make a call, or the calls of a batch.

    Either it rests (`rests`: for the breaker, for a thread, or before a retry), or its
    function runs. Its asyncio task is cancelled in three cases:

        rests   by `_drain`, or by `_rest` in a lane that drains   the task ends, its calls never do
        runs    by `_cancel_late`, which sets `late`               TimeoutError; the task makes other calls
        either  by `_cancel`                                       the task ends, its calls never do

    A CancelledError of the function's own is the error of its calls.
    """

    calls: list[AnyCall]
    until: float | None = None
    """The deadline of the function, or of the pause before a retry. None: the function
    is not running, or has no time-out.

    Units: `loop.time`.
    """
    late: bool = False
    """Whether the function is cancelled because it took too long; until the next one is
    called.
    """
    rests: bool = False
    """Whether the attempt is waiting to call the function."""


class Lane(Generic[AnyCall]):
    """The calls of one node in one task.

    Thread-safe: calls are passed to the event loop; a property copies the attempts
    under way in one step, and reads each of their fields once.
    """

    _lost = 0
    """The number of abandoned threads of all cancelled lanes. A class attribute; use it
    on the event loop.
    """

    def __init__(
        self,
        calling: Calling,
        ended: Callable[[Sequence[AnyCall]], None],
        host: Host = SYSTEM,
    ) -> None:
        """Make a lane without calls.

        `ended`: called on another thread with the calls that have ended, at most
        `TOGETHER_S` later.
        """
        self._loop = host.event_loop()
        self._calling = calling
        self._ended = ended
        self._processes = calling.executor == "process"
        places = (
            calling.max_in_flight
            if calling.coroutine
            else MOST_PROCESSES
            if self._processes
            else MOST_THREADS
        )
        self._most = min(calling.max_in_flight, places)
        self._most_out = self._most + MOST_LEFT
        self._threads = None if calling.coroutine else CallThreads()
        self._out = 0
        """The number of threads with a call, including abandoned threads."""
        self._returned = asyncio.Event()
        """An event that is set for a moment whenever a thread has returned."""
        self.retried = 0
        """How often the function was called again after a failure. A repeated batch
        counts once.
        """
        self._by_key = calling.order == "key"
        self._chain_of_all = b"" if calling.order == "partition" else None
        self._last: dict[bytes, AnyCall] = {}
        """The last call of each chain. The first call of a chain is in the queue or
        under way, and the others wait for it.
        """
        self._queue: deque[AnyCall] = deque()
        """The calls that wait for a place among `max_in_flight`, or for a batch to
        become full.
        """
        self._running: dict[asyncio.Task[None], _Attempt[AnyCall]] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self._full = False
        """Whether the queue counts as a full batch because it has waited long
        enough.
        """
        self._watching = False
        self._breaker = None if calling.breaker is None else Breaker(calling.breaker)
        self._probed = asyncio.Event()
        """An event that is set for a moment whenever an attempt has ended, if there is
        a breaker.
        """
        self._closing = False
        """Whether no call may begin any more. The thread that closes the task sets it
        at once: a call that ends just then must not begin the next of its chain, which
        the task's successor will make.
        """
        self._draining = False
        """Whether the event loop knows of a `drain` or a `cancel`."""
        self._cancelled = False
        """Whether it knows of a `cancel`: nothing is reported any more."""
        self.drained = False
        """Whether every call that was under way at `drain` has ended and was
        reported.
        """
        self._over: list[AnyCall] = []
        """The calls that have ended and are not yet reported."""

    @property
    def pauses(self) -> str:
        """The reason why no call is begun, in words; empty if calls are begun, or none
        is under way.
        """
        return (
            ""
            if self._breaker is None or not self._running
            else self._breaker.why(self._loop.time())
        )

    @property
    def under_way(self) -> int:
        """The number of calls that have a place among `max_in_flight`, a batch counting
        as one.
        """
        return len(self._running)

    @property
    def begun(self) -> int:
        """The number of calls under way, counting each call of a batch."""
        return sum(len(attempt.calls) for attempt in list(self._running.values()))

    @property
    def within_limits(self) -> bool:
        """Whether a call is under way whose time-out, or pause before a retry, has not
        passed.
        """
        now = self._loop.time()
        deadlines = [attempt.until for attempt in list(self._running.values())]
        return any(until is not None and now < until for until in deadlines)

    def begin(self, calls: Sequence[AnyCall]) -> None:
        """Begin these calls, except calls that must wait for an earlier call of their
        chain.
        """
        self._loop.call_soon_threadsafe(self._begin, calls)

    def drain(self) -> None:
        """Begin no other call, and drop the waiting calls. When no call is under way,
        `ended` is called once without calls.
        """
        self._closing = True
        self._loop.call_soon_threadsafe(self._drain)

    def cancel(self) -> None:
        """Cancel the calls under way, and begin no others. A thread is not interrupted;
        its result is ignored.
        """
        self._closing = True
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, calls: Sequence[AnyCall]) -> None:
        """On the loop: queue calls, each behind the last one of its chain."""
        if self._draining:
            return
        for call in calls:
            chain = self._chain(call)
            before = None
            if chain is not None:
                before = self._last.get(chain)
                self._last[chain] = call
            if before is None:
                self._queue.append(call)
            else:
                before.next = call
        self._fill()

    def _drain(self) -> None:
        """On the loop: see `drain`. A call that rests before its next attempt ends now."""
        self._draining = True
        self._last.clear()
        self._queue.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        for task, attempt in self._running.items():
            if attempt.rests:
                task.cancel()
        self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        if self._draining and not self._running and not self._cancelled:
            self._tell()
            self.drained = True
            self._ended(())

    def _cancel(self) -> None:
        """On the loop: see `cancel`. Threads whose calls go on count as lost."""
        if not self._cancelled:
            Lane._lost += self._out
        self._cancelled = True
        self._drain()
        for task in self._running:
            task.cancel()

    def _chain(self, call: AnyCall) -> bytes | None:
        """Return the chain of a call, or None if the call waits for no other call."""
        return call.key if self._by_key else self._chain_of_all

    def _fill(self) -> None:
        """Begin the calls in the queue for which there is a place. If a batch is not
        full yet, start the timer of its longest wait.
        """
        while len(self._running) < self._most and (calls := self._next()):
            attempt = _Attempt(calls)
            self._running[self._loop.create_task(self._work(attempt))] = attempt
        if (
            self._queue
            and self._calling.max_records > 1
            and self._gathering is None
            and not self._full
        ):
            self._gathering = self._loop.call_later(
                self._calling.max_wait_s,
                self._waited,
            )

    def _next(self) -> list[AnyCall]:
        """Remove and return the next calls of the queue. The list is empty if the queue
        is empty, or waits for a full batch, or no call may begin any more.
        """
        if self._closing:
            return []
        queue = self._queue
        most = self._calling.max_records
        if len(queue) < most and not (queue and self._full):
            return []
        if self._gathering is not None:
            self._gathering.cancel()
        self._gathering = None
        self._full = False
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    def _waited(self) -> None:
        self._gathering = None
        self._full = True
        self._fill()

    async def _work(self, attempt: _Attempt[AnyCall]) -> None:
        """Make the calls of an attempt, and then others that wait for a place, up to
        `IN_A_ROW` attempts.
        """
        task = asyncio.current_task()
        assert task is not None
        left = IN_A_ROW
        try:
            while attempt.calls:
                await self._attempts(attempt)
                if len(attempt.calls) > 1 and attempt.calls[0].error is not None:
                    await self._one_by_one(attempt)
                if self._cancelled:  # and the function ignored it
                    return
                self._end(attempt.calls)
                left -= 1
                attempt.calls = self._next() if left else []
                if self._queue:
                    self._fill()
        finally:
            del self._running[task]
            self._fill()
            self._look_whether_drained()

    async def _one_by_one(self, attempt: _Attempt[AnyCall]) -> None:
        """Repeat the calls of a failed batch one by one, to find the calls that
        fail.
        """
        calls = attempt.calls
        for call in calls:
            self.retried += 1
            attempt.calls = [call]
            await self._attempts(attempt)
        attempt.calls = calls

    def _end(self, calls: Sequence[AnyCall]) -> None:
        """Schedule the report that these calls have ended, and queue the next calls of
        their chains.
        """
        if not self._draining:
            for call in calls:
                chain = self._chain(call)
                if chain is None:
                    continue
                if call.next is not None:
                    self._queue.append(call.next)
                else:
                    del self._last[chain]
        if any(call.prompt for call in calls):
            self._loop.call_soon(self._tell)
        elif not self._over:
            self._loop.call_later(TOGETHER_S, self._tell)
        self._over += calls

    def _tell(self) -> None:
        over = self._over
        self._over = []
        if over and not self._cancelled:
            self._ended(over)

    async def _attempts(self, attempt: _Attempt[AnyCall]) -> None:
        """Call the function until it succeeds or may not be retried, and set the value
        or the error of each call.
        """
        retry = self._calling.retry
        failed = 0
        while (error := await self._attempted(attempt)) is not None:
            failed += 1
            for call in attempt.calls:
                call.error = error
            if retry is None or self._cancelled or not retry.again(failed, error):
                return
            pause_s = retry.pause_s(failed, random.random())
            attempt.until = self._loop.time() + pause_s
            await self._rest(attempt, asyncio.sleep(pause_s))
            attempt.until = None
            self.retried += 1

    async def _attempted(self, attempt: _Attempt[AnyCall]) -> Exception | None:
        """Call the function once the breaker lets an attempt begin. Return the error,
        or None.
        """
        breaker = self._breaker
        if breaker is None:
            return await self._called(attempt)
        admission = await self._admission(breaker, attempt)
        error = await self._called(attempt)
        breaker.ended(admission, error, self._loop.time())
        self._probed.set()
        self._probed.clear()
        return error

    async def _called(self, attempt: _Attempt[AnyCall]) -> Exception | None:
        """Call the function once and set the value of each call. Return the error if it
        failed, else None.
        """
        calls = attempt.calls
        attempt.late = False
        try:
            if self._threads is None:
                self._begun(attempt)
            values: Sequence[Any]
            if self._calling.together:
                values = await self._together(attempt)
            else:
                (call,) = calls
                values = [await self._answer(attempt, call.function, call.arguments)]
            for call, value in zip(calls, values, strict=True):
                call.value = value
                call.error = None
        except Exception as raised:  # noqa: BLE001 the records' failure: their task reports it
            return raised
        except BaseException as raised:
            # Which of the cases of `_Attempt` it is. Otherwise the call would not end,
            # or the loop would.
            if self._cancelled or attempt.rests:
                raise
            if attempt.late:
                timeout_s = self._calling.timeout_s
                return TimeoutError(f"no answer within {timeout_s:g} s")
            return ProcessingError(f"the function raised {raised!r}")
        finally:
            attempt.until = None
            if attempt.late and (task := asyncio.current_task()) is not None:
                # The task makes other calls. With this request still counted, a
                # TaskGroup in their functions would end as cancelled from outside.
                task.uncancel()
        return None

    async def _admission(
        self,
        breaker: Breaker,
        attempt: _Attempt[AnyCall],
    ) -> Admission:
        """Wait until the breaker lets an attempt begin, and return its answer."""
        while (admission := breaker.admit(self._loop.time())) == "wait":
            left_s = breaker.wait_s(self._loop.time())
            await self._rest(
                attempt,
                self._probed.wait() if left_s is None else asyncio.sleep(left_s),
            )
        return admission

    async def _rest(self, attempt: _Attempt[AnyCall], until: Awaitable[object]) -> None:
        """Wait before an attempt. If the lane is drained before or during the wait, the
        attempt is cancelled.
        """
        attempt.rests = True
        if self._draining and (task := asyncio.current_task()) is not None:
            task.cancel()
        await until
        attempt.rests = False

    def _begun(self, attempt: _Attempt[AnyCall]) -> None:
        """Start the time-out of an attempt, because its function begins."""
        if (timeout_s := self._calling.timeout_s) is not None:
            attempt.until = self._loop.time() + timeout_s
            self._watch(timeout_s)

    async def _together(self, attempt: _Attempt[AnyCall]) -> Sequence[Any]:
        """Return the function's result for a batch: a value for each call."""
        calls = attempt.calls
        columns = [
            list(column)
            for column in zip(*(call.arguments for call in calls), strict=True)
        ]
        function = calls[0].function
        if self._calling.arrow:
            function = partial(
                awaited_with_arrow if self._calling.coroutine else called_with_arrow,
                function,
            )
        values = await self._answer(attempt, function, columns)
        if not isinstance(values, Sequence) or len(values) != len(calls):
            got = (
                f"{len(values)} of them"
                if isinstance(values, Sequence)
                else f"a {type(values).__name__}"
            )
            raise ProcessingError(
                f"for {len(calls)} values the function must return a list of as many, not {got}"
            )
        return values

    def _answer(
        self,
        attempt: _Attempt[AnyCall],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> Awaitable[Any]:
        """Return an awaitable of the function's result."""
        if self._threads is None:
            return function(*arguments)  # type: ignore[no-any-return]  # it is a coroutine function
        return self._threaded(self._threads, attempt, function, arguments)

    async def _threaded(
        self,
        threads: CallThreads,
        attempt: _Attempt[AnyCall],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> Any:
        """Return the result of a function that runs on a thread, or in a process for
        which a thread waits.
        """
        # Look at both bounds after each wait, and take the thread at once: while one
        # call waits for the second bound, others may take the last threads of the
        # first.
        while True:
            if self._out >= self._most_out:
                await self._rest(attempt, self._returned.wait())
            elif Lane._lost >= MOST_LOST:
                await self._rest(attempt, asyncio.sleep(LOOK_S))
            else:
                break
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._processes:
            call = ProcessCall(function, arguments)
            begun = partial(
                self._loop.call_soon_threadsafe,
                self._begun,
                attempt,
            )  # there are places for all lanes
            function = call.make
            arguments = (begun,)
            answer.add_done_callback(
                lambda answer: call.abandon() if answer.cancelled() else None
            )
        else:
            self._begun(attempt)
        threads.put(partial(self._on_thread, function, arguments, answer))
        self._out += 1
        return await answer

    def _on_thread(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        answer: asyncio.Future[Any],
    ) -> None:
        """On a thread: call the function, and set `answer` on the loop."""
        try:
            value = function(*arguments)
            error = None
        except BaseException as raised:  # noqa: BLE001 whatever it is, it belongs to this call
            value = None
            error = raised
        self._loop.call_soon_threadsafe(self._settle, answer, value, error)

    def _settle(
        self,
        answer: asyncio.Future[Any],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Count a thread as returned, and set the future `answer` to the value or error
        unless it was cancelled.
        """
        self._out -= 1
        Lane._lost -= self._cancelled
        self._returned.set()
        self._returned.clear()
        if answer.done():
            return
        if isinstance(error, StopIteration):  # a future cannot raise it
            error = ProcessingError(f"the function raised {error!r}")
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def _watch(self, timeout_s: float) -> None:
        """Schedule a check for late calls, unless one is scheduled. A timer for each
        call would cost as much as half a call.
        """
        if not self._watching:
            self._watching = True
            self._loop.call_later(timeout_s / LOOKS, self._cancel_late, timeout_s)

    def _cancel_late(self, timeout_s: float) -> None:
        """On the loop: cancel the attempts whose time is over; look again if some are
        left.
        """
        self._watching = False
        now = self._loop.time()
        for task, attempt in self._running.items():
            if attempt.until is not None and not attempt.rests:
                if attempt.until <= now and not attempt.late:
                    attempt.late = True
                    task.cancel()
                self._watch(timeout_s)


def pauses_of(lanes: Mapping[str, Lane[Any]]) -> str:
    """Return the reason why lanes begin no calls, in words; empty if all begin calls.

    `lanes`: by the name of their node.
    """
    return "; ".join(
        f"calls of {name} pause: {why}"
        for name, lane in lanes.items()
        if (why := lane.pauses)
    )
