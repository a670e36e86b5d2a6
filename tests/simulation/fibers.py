"""Deterministic threads in virtual time: a seed chooses which one runs.

A thread of a simulated machine is a fiber: code that runs until it waits (`Machine` is
its `Host`). Then the scheduler picks a ready one at random; if there is none, it
advances the time to the first time-out.

    machine    one process: its threads, its clocks, whether it is paused or dead
    fiber      one thread
    scheduler  chooses the next fiber, and keeps the time

Invariant: the same seed gives the same schedule: nothing here or above uses time,
threads or randomness of the operating system.
Source: the idea is FoundationDB's simulation (Zhou et al., SIGMOD 2021).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from queue import Empty
from random import Random
from types import TracebackType
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.loops import VirtualLoop

EPOCH_MS = 1_700_000_000_000
"""The wall clocks' time at the beginning."""
LEAST_S = 1e-9
"""The shortest wait: one that rounding makes zero would never end."""
MOST_TURNS = 100_000
"""After this many turns, the simulated program does not end."""


MOST_LOOKS = 10_000
"""After this many polls in one turn, a thread will never wait."""


class StuckError(AssertionError):
    """All fibers wait without a time-out, or a run does not end."""


class Fiber(greenlet):
    """One thread of a machine."""

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Machine,
        body: Callable[[], None],
        name: str,
    ) -> None:
        super().__init__(self._run, scheduler.hub)
        self.scheduler, self.machine, self.name = scheduler, machine, name
        self.waits: int | None = None
        """The number of the fiber's current wait; None: it is ready."""
        self.woken = False
        self.stalled = False
        """Whether the fiber gets no turn although it is ready."""
        self.started = self.ended = False
        self._body = body
        self._ends: set[Fiber] = set()

    def _run(self) -> None:
        try:
            self._body()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 whoever runs the simulation raises it
            self.scheduler.crashed(self, error)
        self.ended = True
        self.scheduler.wake(self._ends)

    def start(self) -> None:
        """Make the fiber ready for its first turn."""
        self.started = True
        self.scheduler.ready.append(self)

    def is_alive(self) -> bool:
        """Whether the fiber has started and not ended."""
        return self.started and not self.ended

    def join(self, timeout: float | None = None) -> None:
        """Block until the fiber has ended."""
        if self.is_alive():
            self.scheduler.wait(timeout, self._ends)


class Scheduler:
    """Chooses the next fiber, and keeps the time."""

    def __init__(self, random: Random) -> None:
        self.hub = getcurrent()
        self.now = 0.0
        self.turns = 0
        self.random = random
        self.ready: list[Fiber] = []
        self.errors: list[tuple[Fiber, BaseException]] = []
        self._timers: list[
            tuple[float, int, Fiber | None, int, Callable[[], None] | None]
        ] = []
        self._numbers = count()
        self._closed = False
        self._looks = 0

    def look(self) -> None:
        """Note that a thread has polled without a result.

        Raises:
            StuckError: it does nothing else, and time does not advance.
        """
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise StuckError(
                f"a thread looks again and again without waiting, and it is {self.now:.3f} s"
            )

    def run(self, until_s: float) -> None:
        """Run all fibers until that moment, or until a thread has ended with an error.

        Raises:
            StuckError: too many turns without an end.
        """
        timers, ready, pop = self._timers, self.ready, heapq.heappop
        while not self.errors:
            while timers and timers[0][0] <= self.now:
                _, _, fiber, number, then = pop(timers)
                if then is not None:
                    then()
                elif fiber is not None and fiber.waits == number:
                    self._go_on(fiber, woken=False)
            if ready:
                self._turn()
                continue
            if not timers or timers[0][0] > until_s:
                self.now = max(self.now, until_s)
                return
            self.now = timers[0][0]

    def _turn(self) -> None:
        ready = self.ready
        at = int(self.random.random() * len(ready))
        fiber = ready[at]
        ready[at] = ready[-1]
        ready.pop()
        if fiber.machine.dead or fiber.ended:
            return
        if fiber.machine.paused or fiber.stalled:
            fiber.machine.parked.append(fiber)
            return
        self.turns += 1
        self._looks = 0
        if self.turns > MOST_TURNS:
            raise StuckError(
                f"{self.turns} turns, and it is {self.now:.3f} s: {fiber.machine.name} {fiber.name} had the last one"
            )
        fiber.switch()

    def at(self, seconds: float, then: Callable[[], None]) -> None:
        """Call this function from the scheduler at that moment."""
        heapq.heappush(self._timers, (seconds, next(self._numbers), None, 0, then))

    def wait(self, timeout: float | None, among: set[Fiber] | None = None) -> bool:
        """Block the calling fiber until it is woken, or for this long; return whether
        it was woken.
        """
        if self._closed:
            raise GreenletExit
        fiber = getcurrent()
        assert isinstance(fiber, Fiber), "only the threads of a machine can wait"
        number = fiber.waits = next(self._numbers)
        if timeout is not None:
            at = self.now + (max(timeout, LEAST_S) if timeout > 0 else 0.0)
            heapq.heappush(self._timers, (at, number, fiber, number, None))
        if among is not None:
            among.add(fiber)
        self.hub.switch()
        if among is not None:
            among.discard(fiber)
        if self._closed:
            raise GreenletExit
        return fiber.woken

    def wake(self, waiting: set[Fiber]) -> None:
        """Make these fibers ready."""
        if not waiting:
            return
        for fiber in (
            sorted(waiting, key=lambda one: one.waits or 0)
            if len(waiting) > 1
            else waiting
        ):
            if fiber.waits is not None:
                self._go_on(fiber, woken=True)
        waiting.clear()

    def stall(self, fiber: Fiber, seconds: float) -> None:
        """Give a thread no turn for this long, whether or not it is ready."""
        fiber.stalled = True
        self.at(self.now + seconds, lambda: self._end_stall(fiber))

    def _end_stall(self, fiber: Fiber) -> None:
        fiber.stalled = False
        if fiber in fiber.machine.parked and not fiber.machine.paused:
            fiber.machine.parked.remove(fiber)
            self.ready.append(fiber)

    def crashed(self, fiber: Fiber, error: BaseException) -> None:
        """Note that a thread has ended with an uncaught error."""
        self.errors.append((fiber, error))

    def close(self, machines: list[Machine]) -> None:
        """End all fibers in any state."""
        self._closed = True
        for fiber in [fiber for machine in machines for fiber in machine.fibers]:
            while bool(fiber) and not fiber.dead:  # false before its first turn
                fiber.throw(GreenletExit)
        for machine in machines:
            if machine.loop is not None:
                machine.loop.end()
        self.errors.clear()

    def _go_on(self, fiber: Fiber, *, woken: bool) -> None:
        fiber.waits, fiber.woken = None, woken
        self.ready.append(fiber)


class Machine:
    """A process on a machine of its own: the `Host` of its code."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler, self.name = scheduler, name
        self.paused = self.dead = False
        self.ahead_ms = 0
        """How far the machine's wall clock is ahead."""
        self.slept_s = 0.0
        """How long the machine was suspended in total."""
        self._suspended_at: float | None = None
        self.parked: list[Fiber] = []
        self.fibers: list[Fiber] = []
        self.loop: VirtualLoop | None = None
        """The machine's event loop; None: not used yet."""

    # --- what happens to it ---

    def pause(self, *, suspended: bool = False) -> None:
        """Pause, as by SIGSTOP; `suspended`: the whole machine, which its `elapsed`
        clock counts.
        """
        self.paused = True
        self._suspended_at = self.scheduler.now if suspended else None

    def resume(self) -> None:
        """Continue after `pause`."""
        self.paused = False
        if self._suspended_at is not None:
            self.slept_s, self._suspended_at = (
                self.slept_s + self.scheduler.now - self._suspended_at,
                None,
            )
        parked, self.parked = self.parked, []
        self.scheduler.ready += parked

    def kill(self) -> None:
        """End the process between two instructions, as SIGKILL does."""
        self.dead = True
        self.parked.clear()

    # --- as a host ---

    def now(self) -> float:
        return self.scheduler.now - self.slept_s

    def elapsed(self) -> float:
        return self.scheduler.now

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.scheduler.now * 1000) + self.ahead_ms

    def sleep(self, seconds: float) -> None:
        self.scheduler.wait(seconds)

    def called(self) -> str:
        return self.name

    def unique(self) -> str:
        return f"{self.scheduler.random.getrandbits(128):032x}"

    def thread(self, body: Callable[[], None], name: str) -> Fiber:
        fiber = Fiber(self.scheduler, self, body, name)
        self.fibers.append(fiber)
        return fiber

    def inbox(self) -> Inbox:
        return Inbox(self.scheduler)

    def signal(self) -> Signal:
        return Signal(self.scheduler)

    def condition(self) -> Condition:
        return Condition(self.scheduler)

    def event_loop(self) -> VirtualLoop:
        if self.loop is None:
            self.loop = VirtualLoop(self)
        return self.loop


class Inbox:
    """See `host.Inbox`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiting: set[Fiber] = set()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._scheduler.wake(self._waiting)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            self._scheduler.wait(timeout, self._waiting)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            self._scheduler.look()
            raise Empty
        return self._items.popleft()


class Signal:
    """See `host.Signal`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: set[Fiber] = set()

    def set(self) -> None:
        self._set = True
        self._scheduler.wake(self._waiting)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._scheduler.wait(timeout, self._waiting)
        return self._set


class Condition:
    """See `host.Condition`. No other fiber runs inside of it, so nothing is locked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: set[Fiber] = set()

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        pass

    def wait_for(
        self, predicate: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        give_up = None if timeout is None else self._scheduler.now + timeout
        while not (holds := predicate()):
            left = None if give_up is None else give_up - self._scheduler.now
            if left is not None and left <= 0:
                break
            self._scheduler.wait(left, self._waiting)
        return holds

    def notify_all(self) -> None:
        self._scheduler.wake(self._waiting)
