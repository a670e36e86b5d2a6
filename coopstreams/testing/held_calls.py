"""Calls of asynchronous operators in a test driver: ended calls are held, and reported
to their tasks in an order that a seed chooses.

Invariant: the order depends only on the seed and the sent records. The next call is
chosen only when all calls under way have ended.
Relies on: `tasks.pending_calls` (whose calls they are), `driver`.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from threading import Condition

from coopstreams.tasks.pending_calls import NodeCall, PendingCalls
from coopstreams.tasks.task import Task


class HeldCalls:
    """The calls of all tasks of a driver. Only the driver's thread uses `watch` and
    `tell_one`.
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
        """Wait until all calls under way have ended, and report one of them to its
        task; return the task, or None if no call is held.
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
    """Return what orders a call: partition and offset of its record, and its index
    among the record's calls.
    """
    record = call.record
    assert record is not None
    topic, partition = record.taken.step.source
    return topic, partition, record.offset, record.calls.index(call)
