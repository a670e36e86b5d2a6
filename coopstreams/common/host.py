"""What the runtime asks of the machine it is on: the time, threads, and places where a thread waits for another.

In production that is the operating system (`SYSTEM`). In the simulation (`tests/simulation`) it is one scheduler with
virtual time: every wait below is a point at which it decides who goes on, so the interleavings of a whole group can be
chosen, and played again.

    now        a clock that never goes back: time-outs, intervals
    elapsed    the same, but it goes on while the machine is suspended: sessions
    wall_ms    what the clock on the wall shows, and may jump: timestamps, punctuation

Invariant: what runs a task, commits it or gives it away (`instance/`, `opening/`, `tasks/`, `commit/`, `group/` but for
its connection) asks nobody else for these; a `threading.Lock` that is held only for a moment, and never across a wait,
is nothing that anybody waits for.
Turned down: actors as objects with a `step(now)` each. A commit is one step then, and whatever happens between its
flush, its fence and its end would have to be written as states by hand, or not be simulated; as plain code that waits
here, each of these is a point of its own.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty
from types import TracebackType
from typing import Any, Protocol, TypeVar

__all__ = ["SYSTEM", "Condition", "Empty", "Host", "HostThread", "Inbox", "Signal", "System", "Timed"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has the first. The second goes on during a sleep on macOS, where `time.monotonic` does not."""

T = TypeVar("T")


class Inbox(Protocol[T]):
    """What waits for one thread, in order. Any thread may put."""

    def put(self, item: T) -> None:
        """Add an item."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the first item, waited for.

        Raises:
            Empty: there was none in time.
        """
        ...

    def get_nowait(self) -> T:
        """Take the first item.

        Raises:
            Empty: there is none.
        """
        ...


class Signal(Protocol):
    """A flag that is waited for: `threading.Event`."""

    def set(self) -> None:
        """Raise it."""

    def clear(self) -> None:
        """Lower it."""

    def is_set(self) -> bool:
        """Whether it is raised."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is raised; return whether it is."""
        ...


class Condition(Protocol):
    """A lock, and a place to wait for what it guards: `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until this holds; return whether it does."""
        ...

    def notify_all(self) -> None:
        """Have everybody who waits look again."""


class HostThread(Protocol):
    """A thread."""

    def start(self) -> None:
        """Begin."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        ...


class Host(Protocol):
    """A machine. Any thread."""

    def now(self) -> float:
        """Return seconds of a clock that never goes back."""
        ...

    def elapsed(self) -> float:
        """Return seconds since some moment, those of a suspended machine included."""
        ...

    def wall_ms(self) -> int:
        """Return what time it is, in milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def called(self) -> str:
        """Return what the machine is called."""
        ...

    def unique(self) -> str:
        """Return a name that nobody else has: 32 hexadecimal digits."""
        ...

    def thread(self, body: Callable[[], None], name: str) -> HostThread:
        """Return a thread, not yet started; it does not keep the process from ending."""
        ...

    def inbox(self) -> Inbox[Any]:
        """Return an empty inbox."""
        ...

    def signal(self) -> Signal:
        """Return a lowered flag."""
        ...

    def condition(self) -> Condition:
        """Return a lock to wait with."""
        ...


class System:
    """The operating system."""

    now = staticmethod(time.monotonic)

    def elapsed(self) -> float:
        """Return seconds since the machine began, suspended or not."""
        return time.clock_gettime(_CLOCK)

    def wall_ms(self) -> int:
        """Return what time it is."""
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def called(self) -> str:
        """Return the name of the host."""
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
        """Return a lowered flag."""
        return threading.Event()

    def condition(self) -> Condition:
        """Return a lock to wait with."""
        return threading.Condition()


SYSTEM: Host = System()
"""The machine that this process runs on."""


class Timed(System):
    """The operating system, with a time that somebody else tells, in milliseconds. Work takes none."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def now(self) -> float:
        """Return the time told."""
        return self._now_ms() / 1000

    def wall_ms(self) -> int:
        """Return the time told."""
        return self._now_ms()
