"""The time of a task in its status: its clock, and which partition it waits for. Pure:
from values that the dispatcher has published (`tasks/time_waits.py`). What a clock and
an unheard writer are, `log/clocks.py` says; the fields are `tasks/task_figures.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coopstreams.log.clocks import UNHEARD, Awaited
from coopstreams.tasks.task_figures import AwaitedTime, TimeStatus
from coopstreams.tasks.time_waits import ClockWait, HeldBack
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.task_id import TaskId

OwnerOf = Callable[[int, int, KeyGroups], str | None]
"""Returns the instance that has the first of the key groups, given a sub-topology, a
partition and key groups.
"""


def time_status(
    task: TaskId,
    sources: Iterable[TopicPartition],
    clocks: Mapping[TopicPartition, ClockWait],
    held_back: Mapping[TopicPartition, HeldBack],
    writer_of: Callable[[str], int | None],
    owner_of: OwnerOf,
    now: float,
) -> TimeStatus | None:
    """Return the status of a task's time; None: the task has no clock and is not held
    back.

    `writer_of`: returns the sub-topology that writes to a timed topic. `owner_of`:
    returns the instance that has key groups.
    """

    def awaited(
        subtopology: int,
        whom: Awaited,
        since: float,
        topic: str | None = None,
    ) -> AwaitedTime:
        return AwaitedTime(
            subtopology=subtopology,
            partition=whom.partition,
            key_groups=str(whom.groups),
            time=_known(whom.time),
            owner=owner_of(subtopology, whom.partition, whom.groups),
            since_s=round(max(0.0, now - since), 1),
            topic=topic,
        )

    told = list[tuple[ClockWait, int, str | None]]()
    for source in sources:
        if (held := held_back.get(source)) is not None:
            whom = awaited(task.subtopology, held.awaited, held.since)
            return TimeStatus(_known(held.time), whom, held_back=True)
        writer = writer_of(source.topic)
        clock = clocks.get(source)
        if clock is None:
            continue
        if writer is None:  # a topic of the user, which the task reads itself
            told.append((clock, task.subtopology, source.topic))
        else:
            told.append((clock, writer, None))
    if not told:
        return None
    # The task's time is that of its slowest topic.
    clock, waited_for, topic = min(told, key=lambda each: each[0].time)
    waits = clock.awaited and awaited(waited_for, clock.awaited, clock.since, topic)
    return TimeStatus(_known(clock.time), waits)


def _known(time: int) -> int | None:
    """Return a time for the status; None: no writer has told one."""
    return None if time == UNHEARD else time
