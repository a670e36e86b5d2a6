"""A table that is restored from its source topic has the rows that its tasks had read,
and no later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import Restore
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import json, text
from coopstreams.topology.stores import StoreSpec
from tests.state.bounds import bounds
from tests.state.rows import stored

SPEC = StoreSpec("people", "key_value", text, json, logged=False, source="people-topic")
Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value; the timestamp is the offset times ten."""
Rows = dict[bytes, tuple[bytes, int]]

VALUES = st.sampled_from(
    [None, b"null", b'{"a": 1}', b'{ "a":1 }', b"[1,2]", b"no JSON", b""]
)
LOG = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.none() | st.sampled_from([b"%d" % key for key in range(12)]),
        VALUES,
    ),
    max_size=40,
)
QUARTERS = KeyRange.split(4)


def processed(log: list[Record], positions: Mapping[KeyRange, int]) -> Rows:
    """Return the expected table of tasks at these positions, computed from the log."""
    rows: Rows = {}
    for offset, key, value in log:
        if key is None or not any(
            key_hash(key) in part and offset < position
            for part, position in positions.items()
        ):
            continue
        try:
            read = None if value is None else json.deserialize(value)
        except SerdeError:
            continue  # as the handler decides
        if read is None:
            rows.pop(key, None)
        else:
            rows[key] = (json.serialize(read), offset * 10)
    return rows


def feed(restore: Restore, log: list[Record], end: int, batch: int = 5) -> None:
    """Read as a caller does: from the position on, including records above the target."""
    while not restore.done:
        found = [record for record in log if record[0] >= restore.position][:batch]
        times = [offset * 10 for offset, _, _ in found]
        columns = Columns(
            [key for _, key, _ in found],
            [value for _, _, value in found],
            times,
            [offset for offset, _, _ in found],
            times,
        )
        restore.feed(columns, found[-1][0] + 1 if len(found) == batch else end)


def with_offsets(
    records: list[tuple[int, bytes | None, bytes | None]],
) -> tuple[list[Record], int]:
    log, offset = list[Record](), 0
    for hole, key, value in records:
        offset += hole
        log.append((offset, key, value))
    return log, offset + 1


def test_a_key_that_the_task_refused_is_refused_again() -> None:
    def check(key: bytes | None) -> None:
        if key == b"bad":
            raise SerdeError("it has another schema id")

    spec = replace(SPEC, key=replace(text, check_key=check))
    database = Database(Memory(), [spec])
    log: list[Record] = [(0, b"bad", b"1"), (1, b"good", b"2"), (2, b"bad", None)]
    feed(Restore(database, spec, [WHOLE], bounds(2), stops={WHOLE: 2}), log, 3)
    assert stored(database, "people").keys() == {b"good"}


@pytest.mark.ci
@settings(max_examples=200, deadline=None)
@given(
    LOG,
    st.lists(
        st.lists(st.integers(0, 60), min_size=4, max_size=4), min_size=1, max_size=4
    ),
)
def test_each_range_holds_what_its_task_had_read(
    records: list[tuple[int, bytes | None, bytes | None]], stands: list[list[int]]
) -> None:
    """Tasks open repeatedly, each range at another position, even at a lower one:
    offsets of a group can be reset.
    """
    log, end = with_offsets(records)
    database = Database(Memory(), [SPEC])
    for stand in stands:
        positions = dict(zip(QUARTERS, (min(at, end) for at in stand), strict=True))
        restore = Restore(
            database, SPEC, QUARTERS, bounds(max(positions.values())), stops=positions
        )
        feed(restore, log, end)
        assert stored(database, SPEC.name) == processed(log, positions)
        assert [
            database.checkpoints("people").offset(layout.groups_of(part))
            for part in QUARTERS
        ] == list(positions.values())


@settings(max_examples=100, deadline=None)
@given(LOG, st.integers(0, 60), st.integers(0, 60), st.integers(0, 8))
def test_a_task_that_comes_while_another_one_is_restored_is_read_up_to_its_own_position(
    records: list[tuple[int, bytes | None, bytes | None]],
    first: int,
    second: int,
    batches: int,
) -> None:
    log, end = with_offsets(records)
    one, two = KeyRange.split(2)
    positions = {one: min(first, end), two: min(second, end)}
    database = Database(Memory(), [SPEC])
    restore = Restore(
        database, SPEC, [one], bounds(positions[one]), stops={one: positions[one]}
    )
    for _ in range(batches):
        if not restore.done:
            found = [record for record in log if record[0] >= restore.position][:2]
            columns = Columns(
                [r[1] for r in found],
                [r[2] for r in found],
                [r[0] * 10 for r in found],
                [r[0] for r in found],
                [0] * len(found),
            )
            restore.feed(columns, found[-1][0] + 1 if found else end)
    restore.retarget(
        [one, two], bounds=bounds(max(positions.values())), stops=positions
    )
    feed(restore, log, end)
    assert stored(database, SPEC.name) == processed(log, positions)


def test_a_commit_says_how_far_each_part_of_the_range_is_also_when_no_row_has_changed() -> (
    None
):
    one, two = KeyRange.split(2)
    database = Database(Memory(), [SPEC])
    state = TaskState(database, [SPEC], WHOLE, 1 << 20)
    entry = state.stores["people"].load(b"a")
    entry.value, entry.timestamp = {"a": 1}, 7
    state.stores["people"].touch(b"a", entry)
    assert state.changes() == []  # it has no changelog
    state.commit({}, {"people": {one: 5, two: 9}})
    assert [
        (run.first, run.last, run.offset) for run in database.checkpoints("people")
    ] == [(0, 127, 5), (128, 255, 9)]
    assert stored(database, SPEC.name) == {b"a": (b'{"a":1}', 7)}
    assert state.changes() == []
    state.commit({}, {"people": {WHOLE: 12}})
    assert [
        (run.first, run.last, run.offset) for run in database.checkpoints("people")
    ] == [(0, 255, 12)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (replace(SPEC, logged=True, source=None), SPEC),
        (SPEC, replace(SPEC, source="another-topic")),
    ],
)
def test_offsets_of_another_topic_are_not_taken_for_those_of_this_one(
    before: StoreSpec, after: StoreSpec, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Memory()
    Database(engine, [before]).write([], {"people": [Checkpoint(0, 255, 3)]})
    with caplog.at_level(logging.WARNING):
        database = Database(engine, [after])
    assert 'store "people" was key_value' in caplog.text
    assert database.checkpoints("people").offset(ALL_GROUPS) is None


def test_a_group_that_was_reset_to_an_earlier_offset_has_the_table_of_that_offset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[Record] = [(0, b"a", b"1"), (1, b"a", b"2")]
    database = Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(2), stops={WHOLE: 2}), log, 2)
    with caplog.at_level(logging.WARNING):
        feed(Restore(database, SPEC, [WHOLE], bounds(1), stops={WHOLE: 1}), log, 2)
    assert (
        "its checkpoint 2 is above the position 1 of its task: were the offsets of the group reset?"
        in caplog.text
    )
    assert stored(database, SPEC.name) == {b"a": (b"1", 0)}
