"""Deletes the state of key ranges that earlier runs of an instance have left on its disk.

A range that is revoked is deleted when it is released. But a process that was killed, stopped, or removed from the
group releases nothing, and may get other ranges when it is back. What it had is kept for a while, because it often
comes back. Then it is deleted: otherwise each process would end with the state of all key ranges, and the time segments
of windows, which are dropped once they have expired for all key groups, would stay for ever.

Invariant: nothing is deleted while the instance waits: for tasks to open or to close, or for the group.
"""

from __future__ import annotations

import logging
from math import inf

from coopstreams.instance.task_registry import TaskRegistry
from coopstreams.state.directory import Databases
from coopstreams.topology.errors import StateError

log = logging.getLogger(__name__)

KEPT_S = 600.0
"""How long an instance has its tasks open, and no others, before it deletes what else is on its disk.

Source: Kafka Streams' `state.cleanup.delay.ms`.
"""


class Leftovers:
    """The state on the disk of an instance that none of its tasks has. Used by the control thread."""

    def __init__(self, databases: Databases, registry: TaskRegistry) -> None:
        self._databases = databases
        self._registry = registry
        self._settled = False
        self._due = inf

    def note(self, settled: bool, now: float) -> None:
        """Note whether this is a member of the group that has all of its tasks open."""
        if settled is not self._settled:
            self._settled, self._due = settled, now + KEPT_S if settled else inf

    def look(self, now: float) -> None:
        """Delete what no task of the registry has, once after each time that the instance became settled."""
        if now < self._due:
            return
        self._due = inf
        try:
            self._databases.keep(self._registry.here)
        except (StateError, OSError) as error:
            log.warning("state that no task here has any more is not deleted: %s", error)
