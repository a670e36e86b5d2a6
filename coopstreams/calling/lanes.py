"""Makes the calls of asynchronous operators: coroutines on one event loop, other functions on threads.

    lane = Lane(node.calling, ended)    # of one node in one task
    lane.begin(calls)                   # any thread; `ended(some of them)` follows, on another thread
    lane.drain()                        # the task is being closed: calls under way end, the others are forgotten
    lane.cancel()                       # it was closed: nothing follows any more

Invariant: calls of a lane with the same chain (`Calling.order`) are made one after the other, in the order in which
they were begun, each with all of its attempts. Not more than `max_in_flight` are under way, batches counted as one.
Invariant: every call of a lane that is neither drained nor cancelled ends, with a value or an error. Without a
time-out, that is up to the user's function.
Invariant: a batch that fails for good is made again record by record, so that only the record that is bad fails.
Turned down: an event loop for each stream thread (a function that computes would stop the records, too), or for each
application (a client that is made when the program is loaded belongs to one loop), and `concurrent.futures` (at its
end, a process waits for its threads).
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from coopstreams.state.worker_pool import WorkerPool
from coopstreams.topology.calls import Calling
from coopstreams.topology.errors import ProcessingError

TOGETHER_S = 0.004
"""To wake a stream thread costs as much as several calls: those that end together are told together."""
LOOKS = 16
"""How often it is looked for calls that take too long, in the time that they may take."""
MOST_THREADS = 64
"""The threads of a lane. Functions that wait on more of them at a time are better written as coroutines."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a user's function for one record. When it has ended, it has a value or an error."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    key: bytes | None
    value: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)


AnyCall = TypeVar("AnyCall", bound=Call)


class _EventLoop:
    """The event loop of the process for the functions of users: it begins with the first lane, and never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        """Return the loop. Any thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="calls", daemon=True).start()
            return self._loop


_event_loop = _EventLoop()


@dataclass(slots=True, eq=False)
class _Attempt(Generic[AnyCall]):
    """What is under way: calls made together, one unless the function takes a batch."""

    calls: list[AnyCall]
    until: float | None = None
    """Until when the function may take; None: it is not being called now, or has no limit. Units: `loop.time`."""
    late: bool = False
    """It was cancelled because it took longer."""


class Lane(Generic[AnyCall]):
    """The calls of one node in one task."""

    def __init__(self, calling: Calling, ended: Callable[[Sequence[AnyCall]], None]) -> None:
        """`ended` is called on another thread, at most `TOGETHER_S` after a call has ended, once for several."""
        self._loop = _event_loop()
        self._calling = calling
        self._ended = ended
        self._threads = None if calling.coroutine else WorkerPool("call", min(calling.max_in_flight, MOST_THREADS))
        self.retried = 0
        """How often the function was called again because it had failed; for a batch once, not once for each record."""
        self._waiting: dict[bytes, deque[AnyCall]] = {}
        """The calls that wait for one of their chain that is under way."""
        self._queue: deque[AnyCall] = deque()
        """The calls that wait for a place among `max_in_flight`, or for a batch to become full."""
        self._running: dict[asyncio.Task[None], _Attempt[AnyCall]] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self._full = False
        """The queue is a batch, although it is short: it has waited long enough."""
        self._watching = False
        self._draining = self._cancelled = False
        self.drained = False
        """Since `drain`, every call that was under way has ended and was told. Any thread."""
        self._over: list[AnyCall] = []
        """The calls that have ended and were not told yet."""

    def begin(self, calls: Sequence[AnyCall]) -> None:
        """Begin these calls, as far as none waits for another one."""
        self._loop.call_soon_threadsafe(self._begin, calls)

    def drain(self) -> None:
        """Begin no other call, and forget those that wait. `ended` follows, with no call, when none is under way."""
        self._loop.call_soon_threadsafe(self._drain)

    def cancel(self) -> None:
        """Cancel the calls under way, and begin no other. A thread is not interrupted; what it returns is ignored."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, calls: Sequence[AnyCall]) -> None:
        if self._draining:
            return
        for call in calls:
            chain = self._chain(call)
            if chain is None:
                self._queue.append(call)
            elif (waiting := self._waiting.get(chain)) is not None:
                waiting.append(call)
            else:
                self._waiting[chain] = deque()
                self._queue.append(call)
        self._fill()

    def _drain(self) -> None:
        self._draining = True
        self._waiting.clear()
        self._queue.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        if self._draining and not self._running and not self._cancelled:
            self._tell()
            self.drained = True
            self._ended(())

    def _cancel(self) -> None:
        self._cancelled = True
        self._drain()
        for task in self._running:
            task.cancel()

    def _chain(self, call: AnyCall) -> bytes | None:
        """Return the name of the chain of a call; None: it waits for no other."""
        match self._calling.order:
            case "key":
                return call.key
            case "partition":
                return b""
            case "none":
                return None

    def _fill(self) -> None:
        """Begin the calls in the queue for which there is a place."""
        most = self._calling.max_records
        while self._queue and len(self._running) < self._calling.max_in_flight:
            if len(self._queue) < most and not self._full:
                if self._gathering is None:
                    self._gathering = self._loop.call_later(self._calling.max_wait_s, self._waited)
                return
            if self._gathering is not None:
                self._gathering.cancel()
            self._gathering, self._full = None, False
            attempt = _Attempt([self._queue.popleft() for _ in range(min(most, len(self._queue)))])
            task = self._loop.create_task(self._make(attempt))
            self._running[task] = attempt
            task.add_done_callback(self._left)

    def _waited(self) -> None:
        self._gathering, self._full = None, True
        self._fill()

    def _left(self, task: asyncio.Task[None]) -> None:
        """Note that calls are over, and begin others that wait for their place."""
        del self._running[task]
        self._fill()
        self._look_whether_drained()

    async def _make(self, attempt: _Attempt[AnyCall]) -> None:
        """Make calls, with all attempts, then begin the next ones of their chains."""
        calls = attempt.calls
        await self._attempts(attempt)
        if len(calls) > 1 and calls[0].error is not None:  # which of them is it?
            for call in calls:
                self.retried += 1
                attempt.calls = [call]
                await self._attempts(attempt)
        if self._cancelled:  # and the function did not mind
            return
        for call in calls:
            chain = self._chain(call)
            if chain is not None and not self._draining:
                if waiting := self._waiting[chain]:
                    self._queue.append(waiting.popleft())
                else:
                    del self._waiting[chain]
        if not self._over:
            self._loop.call_later(TOGETHER_S, self._tell)
        self._over += calls

    def _tell(self) -> None:
        over, self._over = self._over, []
        if not self._cancelled:
            self._ended(over)

    async def _attempts(self, attempt: _Attempt[AnyCall]) -> None:
        """Call the function until it answers or is not tried again, and give each call its value or its error."""
        retry, timeout_s = self._calling.retry, self._calling.timeout_s
        calls, failed = attempt.calls, 0
        while True:
            try:
                if timeout_s is not None:
                    attempt.until, attempt.late = self._loop.time() + timeout_s, False
                    self._watch(timeout_s)
                values = await self._attempt(calls)
                for call, value in zip(calls, values, strict=True):
                    call.value, call.error = value, None
                return
            except Exception as raised:  # noqa: BLE001 the records' failure: their task reports it
                error = raised
            except BaseException as raised:  # else the call would not end, or the loop would
                if self._cancelled:
                    raise
                error = ProcessingError(f"the function raised {raised!r}")
                if attempt.late:
                    error = TimeoutError(f"no answer within {timeout_s:g} s")
                    running = asyncio.current_task()
                    assert running is not None
                    running.uncancel()
            finally:
                attempt.until = None
            failed += 1
            for call in calls:
                call.error = error
            if retry is None or self._cancelled or not retry.again(failed, error):
                return
            await asyncio.sleep(retry.pause_s(failed, random.random()))
            self.retried += 1

    async def _attempt(self, calls: Sequence[AnyCall]) -> Sequence[Any]:
        """Return what the function answers: a value for each call."""
        function = calls[0].function
        if not self._calling.together:
            (call,) = calls
            return [await self._answer(function, call.arguments)]
        columns = [list(column) for column in zip(*(call.arguments for call in calls), strict=True)]
        values = await self._answer(function, columns)
        if not isinstance(values, Sequence) or len(values) != len(calls):
            got = f"{len(values)} of them" if isinstance(values, Sequence) else f"a {type(values).__name__}"
            raise ProcessingError(f"for {len(calls)} values the function must return a list of as many, not {got}")
        return values

    async def _answer(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        if self._threads is None:
            return await function(*arguments)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._threads.put(self, partial(self._on_thread, function, arguments, answer))
        return await answer

    def _on_thread(self, function: Callable[..., Any], arguments: Sequence[Any], answer: asyncio.Future[Any]) -> None:
        try:
            value, error = function(*arguments), None
        except BaseException as raised:  # noqa: BLE001 whatever it is, it belongs to this call
            value, error = None, raised
        self._loop.call_soon_threadsafe(_settle, answer, value, error)

    def _watch(self, timeout_s: float) -> None:
        """Look for calls that take too long, from time to time: a timer for each costs as much as half a call."""
        if not self._watching:
            self._watching = True
            self._loop.call_later(timeout_s / LOOKS, self._cancel_late, timeout_s)

    def _cancel_late(self, timeout_s: float) -> None:
        self._watching = False
        now = self._loop.time()
        for task, attempt in self._running.items():
            if attempt.until is not None:
                if attempt.until <= now and not attempt.late:
                    attempt.late = True
                    task.cancel()
                self._watch(timeout_s)


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a thread's answer to whoever awaits it, if anybody still does."""
    if answer.done():
        return
    if isinstance(error, StopIteration):  # a future cannot raise it
        error = ProcessingError(f"the function raised {error!r}")
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
