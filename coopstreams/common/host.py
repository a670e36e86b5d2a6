"""The services of the machine that the runtime uses: clocks, threads, and the objects
on which threads wait.

In production they are the operating system's (`SYSTEM`). In the simulation
(`tests/simulation`) they are a scheduler with virtual time. Every wait below is a point
at which the scheduler chooses the next thread, so it can choose and replay the
interleavings of a whole group.

    now        a monotonic clock: time-outs, intervals
    elapsed    a monotonic clock that includes the time in which the machine is suspended: sessions
    wall_ms    the wall clock, which may jump: timestamps, punctuation

Invariant: code that runs, commits or hands over a task (`instance/`, `opening/`,
`tasks/`, `commit/`, `consumer/`, `group/` except its connection) uses only these
services. A plain `threading.Lock` is allowed if it is held for a moment only, and never
across a wait. Turned down: actors as objects with a `step(now)` each. A commit is one
step then, and its flush, its fence and its end would have to be written as states by
hand to be simulated separately. As plain code that waits here, each of them is a
scheduling point of its own.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty
from types import TracebackType
from typing import Any, Protocol, TypeVar

__all__ = [
    "SYSTEM",
    "Empty",
    "Host",
    "HostCondition",
    "HostThread",
    "Inbox",
    "Signal",
    "System",
    "Timed",
]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that includes the time in which the machine is suspended: on Linux
CLOCK_BOOTTIME. On macOS CLOCK_MONOTONIC does, unlike `time.monotonic`.
"""

T = TypeVar("T")


class Inbox(Protocol[T]):
    """A queue with one reading thread. `put` is thread-safe."""

    def put(self, item: T) -> None:
        """Add an item."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Remove and return the first item; block until there is one.

        Raises:
            Empty: no item came in time.
        """
        ...

    def get_nowait(self) -> T:
        """Remove and return the first item.

        Raises:
            Empty: the queue is empty.
        """
        ...


class Signal(Protocol):
    """A flag that threads can wait for, as `threading.Event`."""

    def set(self) -> None:
        """Set the flag."""

    def clear(self) -> None:
        """Clear the flag."""

    def is_set(self) -> bool:
        """Whether the flag is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set; return whether it is."""
        ...


class HostCondition(Protocol):
    """A condition variable with its lock, as `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def wait_for(
        self,
        predicate: Callable[[], bool],
        timeout: float | None = None,
    ) -> bool:
        """Block until the predicate holds; return whether it does."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting threads, which check their predicates again."""


class HostThread(Protocol):
    """A thread of a host."""

    def start(self) -> None:
        """Start the thread."""

    def join(self, timeout: float | None = None) -> None:
        """Block until the thread has ended."""

    def is_alive(self) -> bool:
        """Whether the thread has started and not ended."""
        ...


class Host(Protocol):
    """A machine: its clocks, its threads, and the objects on which threads wait.
    Thread-safe.
    """

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def elapsed(self) -> float:
        """Return the seconds of a monotonic clock that includes suspended time."""
        ...

    def wall_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for this long."""

    def called(self) -> str:
        """Return the host name."""
        ...

    def unique(self) -> str:
        """Return a unique name: 32 hexadecimal digits."""
        ...

    def thread(self, body: Callable[[], None], name: str) -> HostThread:
        """Return a daemon thread, not yet started."""
        ...

    def inbox(self) -> Inbox[Any]:
        """Return an empty inbox."""
        ...

    def signal(self) -> Signal:
        """Return an event flag that is not set."""
        ...

    def condition(self) -> HostCondition:
        """Return a condition variable."""
        ...

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the process's event loop for functions of users; it runs on a thread
        of its own, and never ends.
        """
        ...


class System:
    """The `Host` of the operating system."""

    now = staticmethod(time.monotonic)

    def elapsed(self) -> float:
        """Return the seconds since the machine started, including suspended time."""
        return time.clock_gettime(_CLOCK)

    def wall_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Block for this long."""
        time.sleep(seconds)

    def called(self) -> str:
        """Return the host name."""
        return socket.gethostname()

    def unique(self) -> str:
        """Return a random name."""
        return uuid.uuid4().hex

    def thread(self, body: Callable[[], None], name: str) -> HostThread:
        """Return a thread, not yet started."""
        return threading.Thread(target=body, name=name, daemon=True)

    def inbox(self) -> Inbox[Any]:
        """Return an empty inbox."""
        return queue.SimpleQueue()

    def signal(self) -> Signal:
        """Return an event flag that is not set."""
        return threading.Event()

    def condition(self) -> HostCondition:
        """Return a condition variable."""
        return threading.Condition()

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the one event loop of this process; the first call starts it."""
        return _event_loop()


class _EventLoop:
    """An event loop that the first call starts. Thread-safe: a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of asynchronous calls. The first call starts it, on a
        thread of its own.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever,
                    name="calls",
                    daemon=True,
                ).start()
            return self._loop


_event_loop = _EventLoop()

SYSTEM: Host = System()
"""The machine that this process runs on."""


class Timed(System):
    """The operating system, except that its times are those of a given clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def now(self) -> float:
        """Return the given clock's time in seconds."""
        return self._now_ms() / 1000

    def wall_ms(self) -> int:
        """Return the given clock's time in milliseconds."""
        return self._now_ms()
