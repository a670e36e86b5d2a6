"""The databases of an instance: one for each (sub-topology, partition), shared by the sibling tasks that are in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coopstreams.state.database import Database
from coopstreams.state.directory import StateDirectory
from coopstreams.state.task_state import TaskState
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.task_id import TaskId


class Rooms:
    """Opens a database with the first task that enters it and closes it with the last that leaves. Any thread.

    Units: `cache_bytes` bounds the buffers of one task.
    """

    def __init__(self, directory: StateDirectory, subtopologies: Mapping[int, SubTopology], cache_bytes: int) -> None:
        self._directory = directory
        self._subtopologies = subtopologies
        self._cache_bytes = cache_bytes

    def subtopology(self, task: TaskId) -> SubTopology:
        """Return what a task runs."""
        return self._subtopologies[task.subtopology]

    def enter(self, task: TaskId) -> Database:
        """Return the database of a task's partition; `leave` it once. One that is corrupt is made anew: the changelogs restore it."""
        return self._directory.open(task.subtopology, task.partition, self.subtopology(task).stores, wipe_corrupt=True)

    def state(self, task: TaskId, database: Database) -> TaskState:
        """Return the state of a task over its database, after the restore."""
        return TaskState(database, self.subtopology(task).stores, task.range, self._cache_bytes)

    def leave(self, task: TaskId) -> None:
        """Close the database if nobody else is in it."""
        self._directory.release(task.subtopology, task.partition)

    def moved_away(self, task: TaskId, wanted: Iterable[TaskId]) -> None:
        """Delete what was a task's and is none of ours any more: a moved range leaves no key behind."""
        kept = [other.range for other in wanted if other.conflicts(task)]
        gone, stores = task.range.minus(kept), self.subtopology(task).stores
        if gone and stores:
            self._directory.drop(task.subtopology, task.partition, gone, stores)
