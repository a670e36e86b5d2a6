"""The stream threads of an instance: their numbers, which of them take tasks, and which
are to end.

    added      starts, and takes tasks once the group knows its transactional id
    removed    takes no more tasks, and ends when those that it has are closed
    replaced   has died; its successor has its number, and its producer

Invariant: a thread has tasks only in generations whose members know its transactional
id. Other members would end its transaction as that of a dead process.
Invariant: a number is free again only when its thread has ended: two producers with one
transactional id fence each other.
Relies on: `presence` (tells the group the ids), `tasks.stream_thread` (how a thread
ends).
Source: Kafka Streams `KafkaStreams.addStreamThread`, `removeStreamThread` (KIP-663).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from itertools import count

from coopstreams.tasks.events import Event, ThreadAdded, ThreadRemoved
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.topology.errors import LogError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)


class StreamThreads:
    """The stream threads of one instance.

    The control thread uses it; `add`, `remove` and `capacity` are thread-safe (a lock),
    and so is iteration (over a copy).
    """

    def __init__(
        self,
        threads: int,
        tell: Callable[[Event], None],
    ) -> None:
        self._make: Callable[[int], StreamThread]
        self._tell = tell
        self._threads: dict[int, StreamThread] = {}
        self._numbers = set(range(threads))
        """The numbers in use, including those of threads that are to be started."""
        self._leaving: set[int] = set()
        self._known = set[int]()
        """The numbers of the threads whose transactional ids the group knows."""
        self._uneven = False
        """Whether a thread was added, and the local tasks were not spread over all
        threads since.
        """
        self._paused = False
        self._lock = threading.Lock()

    def paused(self) -> bool:
        """Return whether processing is paused."""
        return self._paused

    def __iter__(self) -> Iterator[StreamThread]:
        return iter(list(self._threads.values()))

    def make(self, make: Callable[[int], StreamThread]) -> None:
        """Create the first threads with the function `make`, and keep it for later
        ones.

        `make`: returns a thread with this number, not yet started.
        """
        self._make = make
        self._threads = {number: self._make(number) for number in sorted(self._numbers)}

    def start(self) -> None:
        """Start the first threads."""
        for thread in self:
            self._pause_as_all(thread)
            thread.start()

    def capacity(self) -> tuple[int, list[int]]:
        """Return how many threads take tasks, and the numbers of all threads that may
        have a transaction.
        """
        with self._lock:
            return len(self._numbers - self._leaving), sorted(self._numbers)

    def add(self) -> str:
        """Ask for one more thread; return its name."""
        with self._lock:
            number = next(number for number in count() if number not in self._numbers)
            self._numbers.add(number)
            self._tell(ThreadAdded(number))
        return _name(number)

    def remove(self) -> str | None:
        """Ask the last thread to end; return its name. None: it is the only one."""
        with self._lock:
            staying = self._numbers - self._leaving
            if len(staying) == 1:
                return None
            number = max(staying)
            self._leaving.add(number)
            self._tell(ThreadRemoved(number))
        return _name(number)

    def added(self, number: int) -> None:
        """Start a requested thread. If the brokers do not answer its producer, log it,
        and drop the thread.
        """
        try:
            thread = self._threads[number] = self._make(number)
        except LogError as error:
            if not error.retryable:
                raise
            log.error(
                "stream thread %d is not added: %s. Add it again when brokers answer",
                number,
                error,
            )
            with self._lock:
                self._forget(number)
            return
        self._pause_as_all(thread)
        thread.start()
        self._uneven = True

    def leaves(self, number: int) -> StreamThread | None:
        """Return the thread that is to end; None: it was never started."""
        return self._threads.get(number)

    def ended(self, number: int) -> None:
        """Forget a thread that has ended, if it was asked to end."""
        with self._lock:
            if number in self._leaving:
                del self._threads[number]
                self._forget(number)

    def _forget(self, number: int) -> None:
        """Free the number of a thread. The caller holds the lock."""
        for numbers in (self._leaving, self._numbers, self._known):
            numbers.discard(number)

    def replace(self, number: int, rests_s: float) -> StreamThread:
        """Start the successor of a dead thread, which first rests for `rests_s`; return
        the dead one.
        """
        with self._lock:  # it is paused as the dead one is
            dead = self._threads[number]
            successor = self._threads[number] = dead.successor(rests_s)
        successor.start()
        if number in self._leaving:
            successor.retire()
        return dead

    def hurry(self) -> None:
        """Have no thread wait for calls of tasks that are closed. Signal handlers may
        call it.
        """
        for thread in self:
            thread.hurry()

    def stop(self, left_s: Callable[[], float]) -> bool:
        """End all threads; return whether all have ended in time. Close the writers of dead threads as well, which their
        successors would have used.
        """
        in_time = True
        for thread in self:
            if thread.stop(left_s()):
                thread.committer.close()
            else:
                in_time = False
                log.error(
                    "stream thread %d did not stop in time; its uncommitted records are processed again elsewhere",
                    thread.number,
                )
        return in_time

    def release(self) -> None:
        """Close the writers of threads that were not started."""
        for thread in self:
            thread.committer.close()

    def pause(self, paused: bool) -> None:
        """Pause or resume all threads, and those that are added later."""
        with self._lock:
            self._paused = paused
            for thread in self:
                thread.pause(paused)

    def look(self) -> None:
        """Have idle threads check whether they have something to commit."""
        for thread in self:
            thread.look()

    def _pause_as_all(self, thread: StreamThread) -> None:
        """Pause a new thread if the others are paused."""
        with self._lock:
            thread.pause(self._paused)

    def known(self, numbers: Iterable[int]) -> None:
        """Note that the group knows the transactional ids of the threads with these
        numbers.
        """
        self._known.update(numbers)

    @property
    def take_tasks(self) -> bool:
        """Whether the group knows the transactional id of some thread."""
        return bool(self._known)

    def home(self, task: TaskId, homes: Mapping[TaskId, StreamThread]) -> StreamThread:
        """Return the thread that takes a task: the one with the fewest tasks of the
        sub-topology, then with the fewest tasks.
        """
        every = Counter[int]()
        alike = Counter[int]()
        for other, home in homes.items():
            every[home.number] += 1
            alike[home.number] += other.subtopology == task.subtopology
        taking = [
            thread for thread in self if thread.number in self._known - self._leaving
        ]
        return min(
            taking,
            key=lambda thread: (
                alike[thread.number],
                every[thread.number],
                thread.number,
            ),
        )

    def to_move(self, homes: Mapping[TaskId, StreamThread]) -> list[TaskId]:
        """Return the tasks to open again so that an added thread gets its share. They
        are returned once, when the thread may have tasks.

        If the group gives this instance no more key ranges, its own tasks are spread
        over the threads.
        """
        staying = self._numbers - self._leaving
        if not self._uneven or not staying <= self._known & self._threads.keys():
            return []
        self._uneven = False
        return uneven({task: home.number for task, home in homes.items()}, staying)


def uneven(homes: Mapping[TaskId, int], threads: Collection[int]) -> list[TaskId]:
    """Return the tasks that have to move so that no thread has two tasks more than
    another, of one sub-topology or in all.
    """
    at = dict(homes)
    moved = set[TaskId]()
    while (step := _step(at, threads)) is not None:
        task, to = step
        at[task] = to
        moved.add(task)
    return sorted(task for task in moved if at[task] != homes[task])


def _step(
    homes: Mapping[TaskId, int],
    threads: Collection[int],
) -> tuple[TaskId, int] | None:
    """Return a task, and the thread to which it should move; None: the tasks are spread
    evenly.

    The task comes from the fullest thread. One from another thread might have to move a
    second time.
    """
    every = Counter(homes.values())
    alike = Counter((home, task.subtopology) for task, home in homes.items())
    found = []
    for task, home in homes.items():
        to = min(
            threads,
            key=lambda number: (alike[number, task.subtopology], every[number], number),
        )
        more = alike[home, task.subtopology] - alike[to, task.subtopology]
        more_of_all = every[home] - every[to]
        if more >= 2 or (more == 1 and more_of_all >= 2):
            found.append((more, more_of_all, task, to))
    return max(found)[2:] if found else None


def _name(number: int) -> str:
    return f"stream-{number}"
