"""What a process tells the group of its rows: which tasks have many, which standbys are
near the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from coopstreams.group.members import Warmth
from coopstreams.instance.row_warmth import RowWarmth
from coopstreams.instance.task_registry import Standing, State
from coopstreams.opening.standbys import StandbyFigures, can_stand_by
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.state.layout import groups_of
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.task_id import TaskId

LOW, HIGH = (TaskId(0, 0, part) for part in KeyRange.split(2))
OTHER = TaskId(0, 1, WHOLE)
WITHOUT_STORES = TaskId(1, 0, WHOLE)
RUNS = cast(Any, object())
"""A task that runs: only that there is one is asked."""


class Process:
    """A process with databases, whose tasks are in any state."""

    def __init__(self, directory: StateDirectory, found: list[tuple[int, int]]) -> None:
        builder = StreamsBuilder("app")
        numbers = builder.stream("in", key=text, value=int64)
        numbers.group_by_key().count(store="counts")
        builder.stream("letters", key=text, value=text).to("copied")
        parts = {part.id: part for part in builder.build().subtopologies}
        self._databases = Databases(directory, parts, 1 << 30)
        self.states: dict[TaskId, State] = {}
        self.standbys: Mapping[TaskId, StandbyFigures] = {}
        self.rows = RowWarmth(
            self._databases,
            found,
            can_stand_by(parts.values()),
            100,
            lambda: Standing(
                states=dict(self.states),
                tasks={
                    task: RUNS
                    for task, state in self.states.items()
                    if state is State.RUNNING
                },
            ),
            lambda: self.standbys,
        )

    def reach(self, task: TaskId, offset: int) -> None:
        """Have the rows of a task stand at this offset of the changelog."""
        database = self._databases.enter(task)
        at = Checkpoint(*groups_of(task.key_range), offset)
        database.write([], {"counts": [at]})

    def close(self, task: TaskId) -> None:
        """Have the database of a task closed."""
        self._databases.leave(task)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    made = StateDirectory(tmp_path, "app", 0)
    yield made
    made.close()


def test_a_task_with_more_changelog_records_than_the_limit_is_heavy(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [])
    process.states = dict.fromkeys((LOW, HIGH, OTHER), State.RUNNING)
    process.reach(LOW, 100)
    process.reach(HIGH, 101)
    assert process.rows.warmth((LOW, HIGH, OTHER)) == Warmth()
    process.rows.look()
    assert process.rows.warmth((LOW, HIGH, OTHER)) == Warmth((HIGH,))


def test_what_was_heavy_stays_so_while_it_is_closed_and_opened_again(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [])
    process.states = {HIGH: State.RUNNING}
    process.reach(HIGH, 101)
    process.rows.look()
    for state in (State.CLOSING, State.WAITING, State.OPENING):
        process.states = {HIGH: state}
        process.rows.look()
        assert process.rows.warmth((HIGH,)).heavy == (HIGH,)
    process.states = {}
    process.rows.look()
    assert not process.rows.warmth((HIGH,)).heavy, "what is known of it is forgotten"


def test_a_database_that_was_closed_meanwhile_is_not_opened_to_be_measured(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [])
    process.states = {HIGH: State.RUNNING}
    process.reach(HIGH, 101)
    process.close(HIGH)
    process.rows.look()
    assert process.rows.warmth((HIGH,)) == Warmth(), "it was measured"


def test_after_a_restart_what_was_on_the_disk_counts_as_heavy_until_it_is_known(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [(0, 0)])
    assert process.rows.warmth((LOW, OTHER)).heavy == (LOW,)
    process.states = {LOW: State.OPENING}
    process.rows.look()
    assert process.rows.warmth((LOW,)).heavy == (LOW,)
    process.reach(LOW, 3)
    process.states = {LOW: State.RUNNING}
    process.rows.look()
    assert not process.rows.warmth((LOW,)).heavy


def test_a_database_of_another_version_makes_no_task_heavy_that_can_have_no_standby(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [(0, 0), (1, 0)])
    assert process.rows.warmth((LOW, WITHOUT_STORES)).heavy == (LOW,)


def test_of_standbys_it_is_said_how_far_they_are_and_which_are_ready(
    directory: StateDirectory,
) -> None:
    process = Process(directory, [])
    process.standbys = {
        HIGH: StandbyFigures({"counts": 900, "sums": 200}),
        LOW: StandbyFigures({"counts": 3}, ready=True),
        OTHER: StandbyFigures({}),
    }
    assert process.rows.warmth(()) == Warmth(ready=(LOW,), lags=((LOW, 2), (HIGH, 11)))
