"""Deletes the state of key ranges that earlier runs of an instance have left on its
disk.

A revoked range is deleted when it is released. But a process that was killed, stopped,
or removed from the group releases nothing, and may get other ranges when it is back.
Its old state is kept for a while, because it often gets the same ranges again. Then the
state is deleted. Otherwise each process would end with the state of all key ranges, and
the time segments of windows, which are dropped once they have expired for all key
groups, would stay for ever.

Invariant: nothing is deleted while the instance is not in the group, or gets no tasks
for now: the ranges may come back.
Relies on: `state.directory` (deletes, and keeps what is about to be opened).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

from coopstreams.state.directory import Databases
from coopstreams.topology.errors import StateError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

KEPT_S = 600.0
"""How long an instance is in the group until it deletes state on its disk that none of
its tasks has. Units: seconds.

Source: Kafka Streams' `state.cleanup.delay.ms`.
"""


class Leftovers:
    """The state on an instance's disk that none of its tasks has. Used by the control
    thread.
    """

    def __init__(
        self,
        databases: Databases,
        here: Callable[[], Iterable[TaskId]],
    ) -> None:
        """`here`: returns the tasks whose rows stay."""
        self._databases = databases
        self._here = here
        self._member = False
        self._due = inf

    def note(self, member: bool, now: float) -> None:
        """Note whether this process is a member of the group that gets tasks."""
        if member is not self._member:
            self._member = member
            self._due = now + KEPT_S if member else inf

    def look(self, now: float) -> None:
        """Delete the state that no task or standby here has, every `KEPT_S`. Databases
        that are about to be opened are kept.
        """
        if now < self._due:
            return
        self._due = now + KEPT_S
        try:
            self._databases.keep(self._here())
        except (StateError, OSError) as error:
            log.warning(
                "state that no task here has any more is not deleted: %s",
                error,
            )
