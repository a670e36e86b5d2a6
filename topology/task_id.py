"""Defines the name of a shared task: sub-topology, partition, key range."""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.topology.keys import KeyRange


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """The name of a shared task. Siblings differ in the key range only. Printed
    `0_3[0..127]`.
    """

    subtopology: int
    """The number of the sub-topology. In a group of cooperative consumers, the number
    of a topic (`group_assignment.topic_number`).
    """
    partition: int
    key_range: KeyRange

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}[{self.key_range}]"

    def conflicts(self, other: TaskId) -> bool:
        """Return whether both tasks have a hash of the same partition and sub-topology
        in common, so that they must not run together.
        """
        return (
            self.subtopology == other.subtopology
            and self.partition == other.partition
            and self.key_range.overlaps(other.key_range)
        )
