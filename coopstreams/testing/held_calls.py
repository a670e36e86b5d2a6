"""Holds ended calls of a test driver, and reports them in an order chosen by a seed.

Invariant: the order depends only on the seed and the sent records: each choice waits
until all calls under way have ended.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from threading import Condition

from coopstreams.tasks.pending_calls import NodeCall, PendingCalls
from coopstreams.tasks.task import Task


class HeldCalls:
    """The calls of all tasks of a driver. `watch` and `tell_one` belong to the driver's
    thread.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._changed = Condition()
        self._tasks: list[tuple[Task, PendingCalls, list[NodeCall]]] = []
        """Each task with its calls that have ended and are not yet reported to it."""
        self._told = 0

    def watch(self, task: Task) -> None:
        """Hold the ended calls of a task from now on."""
        if task.calls is None:
            return
        held: list[NodeCall] = []

        def keep(calls: Collection[NodeCall]) -> None:
            with self._changed:
                held.extend(calls)
                self._changed.notify()

        task.calls.told = keep
        self._tasks.append((task, task.calls, held))

    def tell_one(self) -> Task | None:
        """Wait until all calls under way have ended, and report one of them; return its
        task, None if there is none.
        """
        self._tasks = [
            (task, calls, held) for task, calls, held in self._tasks if not task.closed
        ]
        with self._changed:
            self._changed.wait_for(self._all_ended)
            ended = [
                (number, _place(call), held, call)
                for number, (_, _, held) in enumerate(self._tasks)
                for call in held
            ]
            if not ended:
                return None
            ended.sort(key=lambda one: one[:2])
            number, _, held, call = self._random.choice(ended)
            held.remove(call)
            self._told += 1
        task, calls, _ = self._tasks[number]
        calls.ended([call])
        return task

    def _all_ended(self) -> bool:
        return sum(calls.begun for _, calls, _ in self._tasks) == self._told + sum(
            len(held) for _, _, held in self._tasks
        )


def _place(call: NodeCall) -> tuple[str, int, int, int]:
    """Return the position of a call's record, and the index of the call among its
    calls.
    """
    record = call.record
    assert record is not None
    topic, partition = record.taken.step.source
    return topic, partition, record.offset, record.calls.index(call)
