"""The progress of the application, and the key groups of each process, from the reports
of its processes. Pure.

Invariant: `done` is never early. Committed positions never go back. So once all 256 key
groups have reached the end of each source topic, all records are processed, whichever
process owns the groups now. The brokers are asked for the end of a topic after its
writers are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coopstreams.topology.keys import GROUPS

Report = Mapping[str, Any]
"""An answer to `/v1/status`."""


@dataclass(frozen=True, slots=True)
class RunningRange:
    """A task that a process runs: an inclusive range of key groups of a sub-topology."""

    subtopology: int
    first: int
    last: int
    state: str

    @property
    def groups(self) -> int:
        """The number of its key groups."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


@dataclass(slots=True)
class HighestPositions:
    """The highest committed position of each key group, by sub-topology and source
    topic.
    """

    _committed: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        """Add the positions of the processes that answered."""
        for task in _tasks(report):
            part = _part(task)
            for source in task.get("sources", ()):
                groups = self._committed.setdefault(
                    (part.subtopology, source["topic"]), [0] * GROUPS
                )
                for group in range(part.first, part.last + 1):
                    groups[group] = max(groups[group], source["committed"])

    def records(self, subtopology: int, topic: str) -> float:
        """Return the number of done records of a topic; one that some key groups have
        not passed counts in part.
        """
        return sum(self._committed.get((subtopology, topic), ())) / GROUPS

    def done(self, subtopology: int, ends: Mapping[str, int]) -> bool:
        """Whether every key group has reached the end of all these topics."""
        return all(
            min(self._committed.get((subtopology, topic), [-1])) >= end
            for topic, end in ends.items()
        )


def owned(report: Report) -> dict[str, list[RunningRange]]:
    """Return the ranges of each process, by its url; a process that does not answer has
    none.
    """
    return {
        str(instance["url"]): [_part(task) for task in instance["tasks"]]
        if instance["state"] != "unreachable"
        else []
        for instance in report["instances"]
    }


def shared(
    parts: Mapping[str, list[RunningRange]],
    urls: Iterable[str],
    subtopologies: Iterable[int],
) -> bool:
    """Whether each process runs a part of each sub-topology, and the parts cover it."""
    mine = [
        [part for part in parts.get(url, ()) if part.state == "running"] for url in urls
    ]
    return all(
        all(any(part.subtopology == number for part in tasks) for tasks in mine)
        and sum(
            part.groups
            for tasks in mine
            for part in tasks
            if part.subtopology == number
        )
        == GROUPS
        for number in subtopologies
    )


def _tasks(report: Report) -> Iterator[Mapping[str, Any]]:
    for instance in report["instances"]:
        yield from instance["tasks"]


def _part(task: Mapping[str, Any]) -> RunningRange:
    first, _, last = task["key_range"].partition("..")
    return RunningRange(
        task["subtopology"], int(first), int(last), task["state"] or "unknown"
    )
