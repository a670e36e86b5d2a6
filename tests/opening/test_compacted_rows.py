"""Compaction of a topic that a table is restored from, beyond the position of its task."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from coopstreams.common.host import SYSTEM
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.restores import Restores
from coopstreams.state.checkpoints import PROVEN
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.serdes import text
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId
from tests.opening.test_restores import rows, run

TABLE = StoreSpec("table", "key_value", text, text, logged=False, source="people")
SOURCE = TopicPartition("people", 0)
TASK = TaskId(0, 0, WHOLE)
DAY_MS = 24 * 3600 * 1000
OLD_MS = SYSTEM.wall_ms() - 30 * DAY_MS
Rows = Sequence[tuple[bytes, bytes | None]]


def topic(written: Rows, timestamp: int = OLD_MS, **settings: str) -> MemoryLog:
    config = {"cleanup.policy": "compact"} | {
        name.replace("_", "."): value for name, value in settings.items()
    }
    log = MemoryLog()
    log.create_topics([TopicSpec("people", 1, config)])
    write(log, written, timestamp)
    return log


def write(log: MemoryLog, written: Rows, timestamp: int = OLD_MS) -> None:
    keys, values = [key for key, _ in written], [value for _, value in written]
    log.writer().append("people", keys, values, [timestamp] * len(keys), partitions=0)


def restored(log: MemoryLog, position: int, database: Database) -> dict[bytes, bytes]:
    """Return the rows of a task that stands at a position of the source."""
    reading = Restores(log, lambda spec: spec.name)
    reading.add(TASK, [TABLE], database, {"table": {WHOLE: position}})
    assert run(reading) == [TASK]
    known = database.checkpoints("table")
    assert all(at.offset == position for at in known)
    assert all(at.unproven_from == PROVEN for at in known)
    return rows(database, "table", WHOLE)


def empty() -> Database:
    return Database(Memory(), [TABLE])


def test_a_row_that_a_waiting_record_has_had_removed_is_not_done_without() -> None:
    """Where red is counted, blue would be counted beside it."""
    log = topic([(b"k", b"red"), (b"k", b"blue")])
    assert restored(log, 1, empty()) == {b"k": b"red"}
    log.compact("people")
    database = empty()
    for _ in range(2):  # the rows that were read before do not pass for whole
        with pytest.raises(
            ConfigError,
            match=r"(?s)offset 1, which its task has still to process, is older than "
            r"min.compaction.lag.ms, and offset 0 has no record.*rebuild APP --from "
            r"source.*kafka-configs.*min.compaction.lag.ms=.*reset",
        ):
            restored(log, 1, database)


def test_a_clock_that_is_behind_the_brokers_makes_no_record_too_young() -> None:
    """Without a lag brokers compact each record, of whatever time."""
    tomorrow = SYSTEM.wall_ms() + DAY_MS
    log = topic([(b"k", b"red"), (b"k", b"blue")], tomorrow)
    log.compact("people")
    with pytest.raises(ConfigError, match="compaction may have removed the row"):
        restored(log, 1, empty())


@pytest.mark.parametrize(
    ("timestamp", "settings"),
    [
        pytest.param(OLD_MS, {"min_compaction_lag_ms": str(60 * DAY_MS)}, id="young"),
        pytest.param(OLD_MS, {"cleanup_policy": "delete"}, id="not compacted"),
    ],
)
def test_a_topic_that_is_not_compacted_up_to_the_waiting_records_has_lost_nothing(
    timestamp: int, settings: dict[str, str]
) -> None:
    log = topic([(b"a", b"1"), (b"a", b"2"), (b"k", b"blue")], timestamp, **settings)
    log.compact("people")
    assert restored(log, 2, empty()) == {b"a": b"2"}


def test_the_rows_of_keys_that_wait_are_whole_where_they_have_one() -> None:
    log = topic([(b"k", b"1"), (b"k", b"2"), (b"l", b"1")])
    log.compact("people")
    write(log, [(b"k", b"3"), (b"l", None)])
    assert restored(log, 3, empty()) == {b"k": b"2", b"l": b"1"}


def test_a_new_key_that_waits_removes_nothing_from_a_topic_without_holes() -> None:
    log = topic([(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"c", b"2"), (b"d", b"1")])
    assert restored(log, 2, empty()) == {b"a": b"1", b"b": b"1"}


def test_records_of_a_checkpoint_before_may_be_followed_by_rows_that_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row of the checkpoint is not that of the position, and it passes for one."""
    log = topic([(b"k", b"red"), (b"other", b"1"), (b"k", b"green"), (b"k", b"blue")])
    database = empty()
    assert restored(log, 1, database) == {b"k": b"red"}
    log.compact("people")
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigError, match="offset 3"):
        restored(log, 3, database)
    assert "restoring them from the beginning" in caplog.text


def test_a_tail_that_is_in_doubt_is_read_from_the_start_where_nothing_is_lost() -> None:
    log = topic([(b"k", b"red"), (b"other", b"1")])
    database = empty()
    assert restored(log, 1, database) == {b"k": b"red"}
    writer = log.writer("another")
    writer.begin()
    writer.append("people", [b"l"], [b"1"], [OLD_MS], partitions=0)
    writer.commit(10)
    write(log, [(b"k", b"blue")])
    assert restored(log, 4, database) == {b"k": b"red", b"other": b"1", b"l": b"1"}
