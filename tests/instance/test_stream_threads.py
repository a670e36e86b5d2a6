"""Assigns tasks while stream threads are added and removed, and moves tasks to the
added ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams.instance.stream_threads import StreamThreads, uneven
from coopstreams.tasks.events import Event, ThreadAdded, ThreadRemoved
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId


@given(
    homes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40),
    threads=st.sets(st.integers(0, 6), min_size=1),
)
@example(
    homes=[(1, 0), (1, 0), (1, 0), (1, 1), (1, 1)], threads={0, 1, 2}
)  # one moves, from the fullest
def test_tasks_that_move_leave_each_thread_its_share_and_no_other_task_moves(
    homes: list[tuple[int, int]], threads: set[int]
) -> None:
    spread = sorted(threads)
    before = {
        TaskId(subtopology, number, KeyRange.split(1)[0]): spread[home % len(spread)]
        for number, (subtopology, home) in enumerate(homes)
    }
    moving = uneven(before, threads)
    assert len(moving) == len(set(moving))
    after = {task: home for task, home in before.items() if task not in moving}
    for task in moving:  # as `home` chooses
        alike = Counter(
            home
            for other, home in after.items()
            if other.subtopology == task.subtopology
        )
        every = Counter(after.values())
        after[task] = min(
            threads, key=lambda number: (alike[number], every[number], number)
        )
    for subtopology in {task.subtopology for task in before}:
        counts = Counter(
            home for task, home in after.items() if task.subtopology == subtopology
        )
        shares = [counts[number] for number in threads]
        assert max(shares) - min(shares) <= 1
    if len({task.subtopology for task in before}) == 1:
        held = Counter(before.values())
        assert len(moving) == sum(
            max(0, held[number] - share)
            for number, share in zip(
                sorted(threads, key=lambda number: -held[number]),
                _shares(len(before), len(threads)),
                strict=True,
            )
        )


def _shares(tasks: int, threads: int) -> list[int]:
    """Return the most tasks of each thread, the largest number first."""
    return [tasks // threads + (number < tasks % threads) for number in range(threads)]


class Thread:
    """A stream thread that records the calls of its instance."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")

    def retire(self) -> None:
        self.done.append("retire")

    def pause(self, paused: bool) -> None:
        self.done.append(f"pause {paused}")

    def stop(self, timeout_s: float) -> bool:
        self.done.append(f"stop in {timeout_s:g} s")
        return timeout_s > 1

    @property
    def committer(self) -> Thread:
        return self

    def close(self) -> None:
        self.done.append("close")

    def successor(self, _: float) -> Thread:
        return Thread(self.number)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def threads(told: list[Event]) -> StreamThreads:
    make: Any = Thread
    made = StreamThreads(2, told.append)
    made.make(make)
    made.start()
    made.known([0, 1])
    return made


def task(number: int) -> TaskId:
    return TaskId(0, number, KeyRange.split(1)[0])


def test_a_thread_takes_tasks_once_the_group_knows_it(
    threads: StreamThreads, told: list[Event]
) -> None:
    assert threads.add() == "stream-2"
    assert told == [ThreadAdded(2)]
    assert threads.capacity() == (3, [0, 1, 2])
    threads.added(2)
    first, second, third = threads
    homes = {task(0): first, task(1): first, task(2): second, task(3): second}
    assert threads.home(task(4), homes) is first
    assert threads.to_move(homes) == []
    threads.known([0, 1, 2])
    assert threads.home(task(4), homes) is third
    assert len(threads.to_move(homes)) == 1
    assert threads.to_move(homes) == [], "once"


def test_no_thread_takes_tasks_before_the_group_knows_one() -> None:
    """A static member has its predecessor's tasks at once, and other transactions."""
    threads = StreamThreads(1, lambda _: None)
    threads.known([])
    assert not threads.take_tasks
    threads.known([0])
    assert threads.take_tasks


def test_the_last_threads_end_first_and_one_stays(
    threads: StreamThreads, told: list[Event]
) -> None:
    assert threads.remove() == "stream-1"
    assert threads.remove() is None
    assert told == [ThreadRemoved(1)]
    assert threads.capacity() == (1, [0, 1]), (
        "it may have a transaction until it has ended"
    )
    first, _ = threads
    assert threads.home(task(0), {task(1): first, task(2): first}) is first
    assert threads.add() == "stream-2", "its number is not free before it has ended"
    threads.ended(1)
    assert threads.capacity() == (2, [0, 2])
    assert threads.add() == "stream-1"


def test_the_writer_of_a_thread_is_closed_when_it_has_ended_and_of_no_other(
    threads: StreamThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that has died leaves its writer to a successor, which does not come if
    the instance ends.
    """
    made: list[Any] = list(threads)
    left = iter([5.0, 0.1])
    threads.stop(lambda: next(left))
    assert made[0].done[-2:] == ["stop in 5 s", "close"]
    assert made[1].done[-1] == "stop in 0.1 s"
    assert "stream thread 1 did not stop in time" in caplog.text


def _away(_: int) -> Any:
    raise LogError("no broker answered", retryable=True)


def test_a_thread_that_brokers_do_not_let_write_is_forgotten_and_may_be_asked_for_again(
    threads: StreamThreads,
    told: list[Event],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads.add()
    assert threads.remove() == "stream-2", "it was asked for, and is not there yet"
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_make", _away)
        threads.added(2)
    assert (
        "stream thread 2 is not added: no broker answered. Add it again when brokers answer"
        in caplog.text
    )
    assert threads.leaves(2) is None
    assert threads.capacity() == (2, [0, 1])
    assert threads.add() == "stream-2"
    threads.added(2)
    assert told == [ThreadAdded(2), ThreadRemoved(2), ThreadAdded(2)]
    assert threads.leaves(2) is list(threads)[-1]


def test_a_thread_that_dies_while_it_is_to_end_has_a_successor_that_ends(
    threads: StreamThreads,
) -> None:
    threads.remove()
    threads.replace(1, 0.0)
    _, successor = threads
    made: Any = successor
    assert made.done == ["start", "retire"]


def test_a_thread_that_comes_while_the_instance_is_paused_is_paused(
    threads: StreamThreads,
) -> None:
    threads.pause(True)
    threads.add()
    threads.added(2)
    made: Any = list(threads)[-1]
    assert made.done == ["pause True", "start"]
