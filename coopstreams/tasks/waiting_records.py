"""Records of a task that wait for calls: the step that brought them, each record, and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coopstreams.calling.lanes import Call
from coopstreams.tasks.queues import Step
from coopstreams.topology.columns import Columns
from coopstreams.topology.processors import Visit

ROW_BYTES = 100
"""The memory of a record or a step beside the values, about."""


@dataclass(slots=True, eq=False)
class Taken:
    """A step whose records have begun their calls. `left`: how many of them have not passed on to the nodes below."""

    step: Step
    began: float
    left: int
    held: int
    """The bytes of its records, also of those that have passed."""

    def keep(self, records: Sequence[WaitingRecord]) -> None:
        """Forget its records but for these."""
        self.step = replace(self.step, columns=self.step.columns.pick([record.row for record in records]))
        for row, record in enumerate(records):
            record.row = row
        self.held = bytes_of(self.step.columns)


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that has not passed. `waits_for`: how many of its calls have not ended."""

    taken: Taken
    row: int
    offset: int
    waits_for: int
    before: int
    """The stream time before it."""
    calls: list[NodeCall]
    line: bytes | None = None
    """The name of the queue in which it waits, if it waits in one."""
    turn: bytes | None = None
    """The key whose calls run one after the other, if the record has such calls."""


@dataclass(slots=True, eq=False)
class NodeCall(Call):
    """A call of a node for a record. `visit`: what it is given, if it reads state."""

    node: str
    visit: Visit | None = None
    record: WaitingRecord | None = None
    """None before it is known, and once the call has ended."""


def bytes_of(columns: Columns) -> int:
    """Return about how many bytes a step with these records takes."""
    return ROW_BYTES * (1 + len(columns)) + sum(map(len, filter(None, columns.values)))
