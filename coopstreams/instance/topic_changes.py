"""Finds topics that were deleted, recreated, or have got partitions while tasks run.

A recreated source ends the instance. So does a recreated topic of a global table, in
which the reader would go on in the middle of the new topic. If a changelog was deleted,
the local state is right as long as its task runs, but the next opening restores only
what was written since. So that is reported, and the tasks go on. (Turned down: opening
them again at once. It would lose state that can still be rebuilt from the source.) A
source that has got partitions is reported as well: no task reads the new ones, and none
can before all instances start anew.

Relies on: `commit.positions` (`made_anew`, the cure), `opening` (the ids with which a
task was opened), `status.stall_detector` (reports the findings).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from coopstreams.commit.positions import made_anew
from coopstreams.instance.task_registry import Standing
from coopstreams.log.log import Log
from coopstreams.opening.globals import MADE_ANEW
from coopstreams.state.checkpoints import NO_TOPIC
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.task import Task
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)


class _Ids:
    """The present ids of topics. Each is fetched once."""

    def __init__(self, cluster: Log) -> None:
        self._log = cluster
        self._known: dict[str, str] = {}

    def of(self, topic: str) -> str:
        """Return the id of a topic; `NO_TOPIC`: it does not exist."""
        if topic not in self._known:
            try:
                self._known[topic] = self._log.topic_id(topic)
            except UnknownTopicError:
                self._known[topic] = NO_TOPIC
        return self._known[topic]

    def is_another(self, topic: str, known: str) -> bool:
        """Return whether a topic exists and has another id than `known`."""
        now = self.of(topic)
        return NO_TOPIC not in (known, now) and known != now


class TopicChanges:
    """Compares the topics that exist with those that running tasks were opened with."""

    def __init__(
        self,
        cluster: Log,
        changelog: Callable[[StoreSpec], str],
        global_ids: Mapping[str, str],
        grown: Callable[[], Mapping[str, str]],
        standing: Callable[[], Standing],
        found: StallDetector,
        emit: Callable[[Event], None],
    ) -> None:
        """Make the comparison; nothing is compared yet.

        `grown`: returns a sentence for each source topic that has got partitions.
        `found`: stores the findings to be reported.
        """
        self._log = cluster
        self._changelog = changelog
        self._global_ids = global_ids
        self._grown = grown
        self._standing = standing
        self._found = found
        self._emit = emit

    def compare(self) -> None:
        """Compare the present topics with those of the running tasks, and report
        changes.

        Raises:
            ConfigError: a source was recreated, so that its reader's offsets are those
            of another topic.
        """
        ids = _Ids(self._log)
        tasks = self._standing().tasks
        self._check_sources(tasks, ids)
        self._compare_globals(ids)
        made_anew = self._changelogs_made_anew(tasks, ids)
        for id_ in made_anew.keys() - self._found.made_anew.keys():
            log.error(
                "task %s: %s, until the task is opened again. Stop all instances and rebuild it from the source.",
                id_,
                made_anew[id_],
            )
        self._found.made_anew = made_anew
        grown = self._grown()
        for topic in grown.keys() - self._found.grown.keys():
            log.error("%s.", grown[topic].rstrip("."))
        self._found.grown = grown

    def explained(self, failure: Failed) -> Failed:
        """Return the failure; if it is an out-of-range offset in a recreated source,
        with the cause as its error.
        """
        try:
            if isinstance(failure.error, OffsetOutOfRangeError):
                self._check_sources(self._standing().tasks, _Ids(self._log))
        except ConfigError as cause:
            return replace(failure, error=cause)
        except LogError as error:
            log.warning("cannot see whether topics were made anew: %s", error)
        return failure

    def _check_sources(self, tasks: Mapping[TaskId, Task], ids: _Ids) -> None:
        """Raise the error of `compare` if a source of these tasks has another id than
        when its task was opened.
        """
        for task in tasks.values():
            for source in task.sources:
                known = task.progress.topic_ids.get(source.topic, NO_TOPIC)
                if ids.is_another(source.topic, known):
                    group = task.progress.author.group
                    raise made_anew(group, source, task.figures.committed[source])

    def _compare_globals(self, ids: _Ids) -> None:
        """Emit a failure if the topic of a global table was recreated: rows of the old
        topic stay, and records of the new one were missed.

        The reader does not notice it if the new topic already has a record at its next
        offset.
        """
        for topic, known in self._global_ids.items():
            if ids.is_another(topic, known):
                error = OffsetOutOfRangeError(f"{MADE_ANEW} ({topic})")
                self._emit(Failed(error, "global tables"))

    def _changelogs_made_anew(
        self,
        tasks: Mapping[TaskId, Task],
        ids: _Ids,
    ) -> dict[TaskId, str]:
        """Return a sentence for each task of which a changelog was recreated or
        deleted.
        """
        found: dict[TaskId, str] = {}
        for id_, task in tasks.items():
            for store, topic_id in task.state.topic_ids.items():
                spec = task.state.stores[store].spec
                topic = spec.source or self._changelog(spec)
                if topic_id not in (NO_TOPIC, ids.of(topic)):
                    anew = " and made anew" if ids.of(topic) else ""
                    found[id_] = (
                        f'{topic} was deleted{anew}: what store "{store}" had before is only on this host'
                    )
        return found
