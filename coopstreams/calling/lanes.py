"""Makes the calls of asynchronous operators: coroutines on one event loop, other functions on threads.

    lane = Lane(node.calling, ended)    # of one node in one task
    lane.begin(calls)                   # any thread; `ended()` follows, on another thread
    lane.cancel()                       # the task was closed: nothing follows any more

Invariant: calls of a lane with the same chain (`Calling.order`) are made one after the other, in the order in which
they were begun, each with all of its attempts.
Invariant: every call of a lane that is not cancelled ends, with a value or an error. Without a time-out, that is up to
the user's function.
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
from dataclasses import dataclass
from functools import partial
from typing import Any

from coopstreams.state.worker_pool import WorkerPool
from coopstreams.topology.calls import Calling
from coopstreams.topology.errors import ProcessingError

TOGETHER_S = 0.001
"""To wake a stream thread costs as much as several calls: those that end together are told together."""
MOST_THREADS = 64
"""The threads of a lane. Functions that wait on more of them at a time are better written as coroutines."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a user's function for one record. Once `ended`, it has a value or an error, and does not change."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    key: bytes | None
    failed: int = 0
    """How many attempts have failed."""
    value: Any = None
    error: Exception | None = None
    ended: bool = False


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


class Lane:
    """The calls of one node in one task."""

    def __init__(self, calling: Calling, ended: Callable[[], None]) -> None:
        """`ended` is called on another thread, at most `TOGETHER_S` after a call has ended, once for several."""
        self._loop = _event_loop()
        self._calling = calling
        self._ended = ended
        self._threads = None if calling.coroutine else WorkerPool("call", min(calling.max_in_flight, MOST_THREADS))
        self._waiting: dict[bytes, deque[Call]] = {}
        """The calls that wait for one of their chain that is under way."""
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._telling = False

    def begin(self, calls: Sequence[Call]) -> None:
        """Begin these calls, as far as none waits for another one."""
        self._loop.call_soon_threadsafe(self._begin, calls)

    def cancel(self) -> None:
        """Cancel the calls under way, and begin no other. A thread is not interrupted; what it returns is ignored."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, calls: Sequence[Call]) -> None:
        if self._cancelled:
            return
        for call in calls:
            chain = self._chain(call)
            if chain is None:
                self._start(call)
            elif (waiting := self._waiting.get(chain)) is not None:
                waiting.append(call)
            else:
                self._waiting[chain] = deque()
                self._start(call)

    def _cancel(self) -> None:
        self._cancelled = True
        self._waiting.clear()
        for task in self._running:
            task.cancel()

    def _chain(self, call: Call) -> bytes | None:
        """Return the name of the chain of a call; None: it waits for no other."""
        match self._calling.order:
            case "key":
                return call.key
            case "partition":
                return b""
            case "none":
                return None

    def _start(self, call: Call) -> None:
        task = self._loop.create_task(self._make(call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _make(self, call: Call) -> None:
        """Make a call, with its attempts, then begin the next one of its chain."""
        await self._attempts(call)
        if self._cancelled:  # and the function did not mind
            return
        chain = self._chain(call)
        if chain is not None:
            if waiting := self._waiting[chain]:
                self._start(waiting.popleft())
            else:
                del self._waiting[chain]
        call.ended = True
        if not self._telling:
            self._telling = True
            self._loop.call_later(TOGETHER_S, self._tell)

    def _tell(self) -> None:
        self._telling = False
        if not self._cancelled:
            self._ended()

    async def _attempts(self, call: Call) -> None:
        retry, timeout_s = self._calling.retry, self._calling.timeout_s
        while True:
            limit = asyncio.timeout(timeout_s)
            try:
                async with limit:
                    call.value = await self._attempt(call)
                return
            except Exception as error:  # noqa: BLE001 the record's failure: its task reports it
                call.error = error
                if isinstance(error, TimeoutError) and limit.expired():
                    call.error = TimeoutError(f"no answer within {timeout_s:g} s")
            except BaseException as error:  # else the call would not end, or the loop would
                if self._cancelled:
                    raise
                call.error = ProcessingError(f"the function raised {error!r}")
            call.failed += 1
            if retry is None or self._cancelled or not retry.again(call.failed, call.error):
                return
            await asyncio.sleep(retry.pause_s(call.failed, random.random()))
            call.error = None

    async def _attempt(self, call: Call) -> Any:
        if self._threads is None:
            return await call.function(*call.arguments)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._threads.put(self, partial(self._on_thread, call, answer))
        return await answer

    def _on_thread(self, call: Call, answer: asyncio.Future[Any]) -> None:
        try:
            value, error = call.function(*call.arguments), None
        except BaseException as raised:  # noqa: BLE001 whatever it is, it belongs to this call
            value, error = None, raised
        self._loop.call_soon_threadsafe(_settle, answer, value, error)


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
