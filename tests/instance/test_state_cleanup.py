"""State that earlier runs of an instance have left on its disk, of key ranges that it
does not have any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coopstreams.instance.state_cleanup import KEPT_S, Leftovers
from coopstreams.instance.task_registry import TaskRegistry
from coopstreams.state.database import Database
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import window_key
from coopstreams.topology.task_id import TaskId
from coopstreams.topology.windows import TimeWindows

MINUTE_MS = 60_000
LOW, HIGH = (TaskId(0, 0, part) for part in KeyRange.split(2))
ELSEWHERE = TaskId(0, 1, WHOLE)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    opened = StateDirectory(tmp_path, "app", 0)
    yield opened
    opened.close()


@pytest.fixture
def databases(directory: StateDirectory) -> Databases:
    builder = StreamsBuilder("app")
    numbers = builder.stream("in", key=text, value=int64)
    numbers.group_by_key().windowed_by(TimeWindows(minutes=1)).count(store="counts")
    return Databases(
        directory, {part.id: part for part in builder.build().subtopologies}, 1 << 30
    )


def count(databases: Databases, task: TaskId, minutes: range) -> Database:
    """Open a task and count keys in each of these minutes; return its database."""
    database = databases.enter(task)
    state = databases.state(task, database)
    table: Any = state.stores["counts"]
    for minute in minutes:
        table.advance(minute * MINUTE_MS)
        for key in (b"%d" % number for number in range(20)):
            if key_hash(key) in task.key_range:
                table.put(window_key(key, minute * MINUTE_MS), 1, minute * MINUTE_MS)
        state.changes()
        state.commit({"counts": minute + 1})
    return database


def windows(database: Database) -> set[int]:
    """Return the minutes of the rows on disk."""
    return {
        int.from_bytes(key[-8:]) // MINUTE_MS
        for key, _ in database.scan("counts", range(256), None, None)
    }


@pytest.mark.ci
def test_an_instance_that_got_other_key_ranges_deletes_its_former_ones_after_a_while(
    databases: Databases, directory: StateDirectory
) -> None:
    for task in (LOW, ELSEWHERE):  # by the run before, which was killed
        count(databases, task, range(1))
        databases.leave(task)
    registry = TaskRegistry()
    leftovers = Leftovers(databases, lambda: registry.here)
    registry.assigned([HIGH], [])
    database = count(databases, HIGH, range(100))
    registry.opened(HIGH)
    leftovers.note(member=True, now=1000.0)
    leftovers.look(1000.0 + KEPT_S - 1)
    assert directory.partitions() == [(0, 0), (0, 1)]
    assert (
        len(windows(database)) == 100
    )  # segments go once they have expired for all key groups
    leftovers.look(1000.0 + KEPT_S)
    assert directory.partitions() == [(0, 0)]
    assert len(windows(database)) < 5
    assert [(run.first, run.last) for run in database.checkpoints("counts")] == [
        tuple(HIGH.key_range.groups)
    ]


def test_an_instance_that_is_not_in_the_group_deletes_nothing(
    databases: Databases, directory: StateDirectory
) -> None:
    count(databases, ELSEWHERE, range(1))
    databases.leave(ELSEWHERE)
    leftovers = Leftovers(databases, set)
    leftovers.look(10 * KEPT_S)  # it has not joined
    leftovers.note(member=True, now=10 * KEPT_S)
    leftovers.note(member=False, now=11 * KEPT_S - 1)
    leftovers.look(20 * KEPT_S)
    leftovers.note(member=True, now=20 * KEPT_S)
    leftovers.look(21 * KEPT_S - 1)
    assert directory.partitions() == [(0, 1)]
    leftovers.look(21 * KEPT_S)
    assert directory.partitions() == []
