"""Records of a task that wait for calls: their step, their calls, and the records in
flight of a source partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from coopstreams.calling.lanes import Call
from coopstreams.commit.inflight import InFlight
from coopstreams.commit.record import Segment
from coopstreams.log.log import Position
from coopstreams.tasks.queues import Step
from coopstreams.topology.columns import Columns
from coopstreams.topology.compile.operator_time import OperatorTimes
from coopstreams.topology.processors import Visit

ROW_BYTES = 100
"""The approximate memory of a record or a step beside the values."""


@dataclass(slots=True, eq=False)
class Taken:
    """A step whose records have begun their calls. `left`: the number of records that
    the nodes below have not processed.
    """

    step: Step
    began: float
    left: int
    held: int
    """The bytes of the step's records, also of those that have passed."""

    def keep(self, records: Sequence[WaitingRecord]) -> None:
        """Keep only these records."""
        self.step = replace(
            self.step,
            columns=self.step.columns.pick([record.row for record in records]),
        )
        for row, record in enumerate(records):
            record.row = row
        self.held = bytes_of(self.step.columns)


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits for calls, or for its turn. `waits_for`: the number of its
    calls that have not ended.
    """

    taken: Taken
    row: int
    offset: int
    waits_for: int
    before: Position
    """The last position before the record with a known stream time: records of siblings
    may be in between.
    """
    calls: list[NodeCall]
    line: bytes | None = None
    """The name of the record's queue; None: it waits in none."""
    turn: bytes | None = None
    """The key whose calls run in sequence, if the record has such calls."""


@dataclass(slots=True, eq=False)
class NodeCall(Call):
    """A call of a node for a record. `visit`: its input, if it reads state."""

    node: str
    visit: Visit | None = None
    record: WaitingRecord | None = None
    """The record of the call; None before it is known, and once the call has ended."""


@dataclass(slots=True)
class SourceInFlight:
    """The records in flight of one source partition."""

    inflight: InFlight
    reached: Position
    """The position that the program has reached, in the order in which it takes the
    records of all sources.
    """
    taken: Position
    """The position up to which steps were taken in."""
    taken_operator_times: list[int]
    """The operator times after the records taken in."""
    operator_times: Callable[[], OperatorTimes]
    """Returns the operator times that the program has reached."""
    partition_times: Sequence[int]
    """Which of the operator times are the partition's stream time."""
    waiting: dict[int, WaitingRecord] = field(default_factory=dict)
    """The records that wait for calls, or for their turn, in the order of their
    offsets.
    """
    segments: tuple[Segment, ...] | None = None
    """The segments of `now`; None: not computed yet."""

    def now(self) -> tuple[Segment, ...]:
        """Return the progress of each part of the range."""
        if self.segments is None:
            self.segments = self.inflight.segments(self.reached, self.operator_times())
        return self.segments

    def passed(self, record: WaitingRecord) -> None:
        """Note that a record was processed."""
        self.inflight.done(record.offset)
        del self.waiting[record.offset]
        self.segments = None

    def operator_times_of(self, step: Step) -> list[list[int]]:
        """Return the operator times before each record of a step; take in those after
        it.

        The reader's times begin again when an owner of the partition changes. The
        earlier ones are known here, not to the program, because a record that waits has
        not advanced it.
        """
        before = self.taken_operator_times
        if step.operator_times:
            self.taken_operator_times = list(map(max, before, step.operator_times))
        times = step.columns.operator_times
        return (
            [
                [max(time, least) for time in of]
                for of, least in zip(times, before, strict=True)
            ]
            if times
            else []
        )

    def over(self, step: Step) -> None:
        """Note that a step, and everything before it, is processed."""
        self.inflight.hand_out((), (), step.next_offset)
        self.reach(Position(step.next_offset, step.stream_time))

    def reach(self, position: Position) -> None:
        """Note the position that the program has reached. It may be further already:
        after a log went back.
        """
        self.reached = Position(
            max(self.reached.offset, position.offset),
            max(self.reached.stream_time, position.stream_time),
        )
        self.segments = None


def bytes_of(columns: Columns) -> int:
    """Return about how many bytes a step with these records takes."""
    return ROW_BYTES * (1 + len(columns)) + sum(map(len, filter(None, columns.values)))
