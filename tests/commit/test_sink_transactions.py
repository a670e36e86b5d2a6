"""Records of an external sink, through crashes at every moment between its commit and
the group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.progress import Progress
from coopstreams.commit.sink_transactions import Applying
from coopstreams.log.log import Position
from coopstreams.testing.memory_sink import MemorySession, MemorySink
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import ProcessingError, SinkUnavailableError
from coopstreams.topology.external_sinks import (
    Applied,
    OnRefused,
    SinkPartition,
    SinkRecord,
)
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE

SOURCE = TopicPartition("app-s-repartition", 0)
END = 60
BAD = {7, 8, 20, 59}
MARKERS = set(range(5, END, 9))
"""Offsets of the log without a record."""


class Picky(MemorySink):
    """Refuses some records."""

    def refuse(self, record: SinkRecord) -> None:
        if record.offset in BAD:
            raise ValueError("no such number")


class Flaky:
    """A session whose answer may be lost, whether the records were applied or not."""

    def __init__(self, inner: MemorySession) -> None:
        self._inner = inner
        self.lost: Literal["", "before", "after"] = ""

    @property
    def position(self) -> int:
        return self._inner.position

    @property
    def refused(self) -> frozenset[int]:
        return self._inner.refused

    def apply(
        self,
        records: Sequence[SinkRecord],
        position: int,
        on_refused: OnRefused,
        settled: int,
    ) -> None:
        if self.lost == "before":
            raise SinkUnavailableError("away")
        self._inner.apply(records, position, on_refused, settled)
        if self.lost == "after":
            raise SinkUnavailableError("away")

    def close(self) -> None:
        self._inner.close()


@dataclass
class World:
    """A task with its sink, the group's position, and the dead letters of its
    transactions.
    """

    sink: Picky = field(default_factory=Picky)
    committed: int = 0
    letters: list[int] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reopen(0)

    def reopen(self, begin: int | None = None) -> None:
        """Open the task as after a crash: uncommitted work is void."""
        self.under_way = []
        self.session = Flaky(self.sink.open(SinkPartition("app", "s", 0, "id"), begin))
        self.progress = Progress.beginning(WHOLE, {SOURCE: Position(self.committed)})
        self.applying = Applying(
            self.session, "s", SOURCE, self.progress, self.on_failure
        )
        assert self.session.position >= self.committed

    def on_failure(self, failure: Failure) -> None:
        assert failure.offset is not None
        assert failure.node == "s"
        assert failure.value == b"%d" % failure.offset
        self.under_way.append(failure.offset)

    def step(self, records: int) -> None:
        """Process the next records of the log."""
        at = self.progress.position(SOURCE).offset
        offsets = [
            offset
            for offset in range(at, min(at + records, END))
            if offset not in MARKERS
        ]
        values = [b"%d" % offset for offset in offsets]
        columns = Columns([b"k"] * len(offsets), values, offsets, offsets, offsets)
        self.progress.advance(SOURCE, min(at + records, END), 0)
        self.applying.apply(
            [
                Applied((SOURCE, columns, i), "k", offset)
                for i, offset in enumerate(offsets)
            ]
        )

    def commit(self) -> None:
        self.applying.apply([], all_of_it=True)
        position = self.progress.position(SOURCE).offset
        assert self.session.position >= position
        self.progress.records(SOURCE)
        self.progress.committed()
        self.committed, self.letters = position, self.letters + self.under_way
        self.under_way = []


EVENTS = st.one_of(
    st.integers(1, 12),
    st.sampled_from(
        ["commit", "crash", "sink commits, group does not", "before", "after"]
    ),
)


@given(st.lists(EVENTS, max_size=40))
def test_every_record_is_applied_or_told_once_whenever_a_process_ends(
    events: list[int | str],
) -> None:
    world = World()
    for event in [*events, END, "commit"]:
        if isinstance(event, int):
            world.step(event)
        elif event == "commit":
            world.commit()
        elif event == "crash":
            world.reopen()
        elif event == "sink commits, group does not":
            world.applying.apply([], all_of_it=True)
            world.reopen()
        else:
            world.session.lost = event  # type: ignore[assignment]
            with suppress(SinkUnavailableError):
                world.step(3)
            world.reopen()
    assert [record.offset for _, record in world.sink.records] == [
        offset for offset in range(END) if offset not in BAD | MARKERS
    ]
    assert world.letters == sorted(BAD - MARKERS)


def test_a_handler_that_fails_the_task_leaves_the_record_to_be_tried_again() -> None:
    world = World()
    world.step(5)

    def fail(failure: Failure) -> None:
        raise ProcessingError(f"offset {failure.offset}")

    world.applying = Applying(world.session, "s", SOURCE, world.progress, fail)
    with pytest.raises(ProcessingError, match="offset 7"):
        world.step(10)
    assert [record.offset for _, record in world.sink.records] == [0, 1, 2, 3, 4]
    BAD.remove(7)
    try:
        world.reopen()
        world.step(8)
        assert world.sink.records[-1][1].offset == 7
    finally:
        BAD.add(7)
