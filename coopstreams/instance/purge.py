"""Deletes the records of repartition topics that every owner has processed: these
topics have no retention.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coopstreams.instance.task_registry import Standing
from coopstreams.log.log import Log
from coopstreams.log.precondition import Precondition
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError

log = logging.getLogger(__name__)


class Purge:
    """The purges of one instance: below the stable offset, of the partitions whose hash
    0 is owned here.
    """

    def __init__(
        self,
        cluster: Log,
        topics: frozenset[str],
        standing: Callable[[], Standing],
        sure: Callable[[int], bool],
    ) -> None:
        """`sure`: whether this process certainly is a member under an epoch
        (`GroupMember.sure`).
        """
        self._log = cluster
        self._topics = topics
        self._standing = standing
        self._sure = sure
        self._deleted: dict[TopicPartition, int] = {}
        self._failed: dict[TopicPartition, None] = {}
        """The partitions in which nothing could be deleted the last time, in the order
        in which that was tried.
        """

    def purge(self) -> None:
        """Delete what can be deleted now.

        A process that is not certainly a member deletes nothing: who is, does, and a
        reset may have made topics anew.

        Raises:
            LogError: the records of a partition are not deleted. The next purge tries
            the others first.
        """
        due = self._stable()
        failed = self._failed
        first = [source for source in due if source not in failed]
        last = [source for source in failed if source in due]
        for source in (*first, *last):
            failed[source] = failed.pop(source, None)
            stable, task = due[source]
            try:
                self._log.delete_before(source, stable, self._may_purge(source, task))
            except FencedError as error:
                log.debug("not purged: %s", error)
                return
            self._deleted[source] = stable
            del failed[source]

    def _stable(self) -> dict[TopicPartition, tuple[int, Task]]:
        """Return the stable offset of each partition that has more to delete, and a
        task that knows it.
        """
        due: dict[TopicPartition, tuple[int, Task]] = {}
        for task in self._standing().tasks.values():
            for source in task.sources:
                if source.topic in self._topics:
                    stable = task.progress.stable(source)
                    if stable is not None and stable > self._deleted.get(source, 0):
                        due[source] = stable, task
        return due

    def _may_purge(self, source: TopicPartition, task: Task) -> Precondition:
        """Return on what a purge relies: the topic in which the task's offsets are, and
        the membership in its epoch.
        """
        return Precondition(
            self._log,
            {source.topic: task.progress.topic_ids.get(source.topic, NO_TOPIC)},
            lambda: self._sure(task.epoch),
            f"this process is not certainly in the group any more under epoch {task.epoch}",
        )
