"""Global tables: read completely before the first look-up, then followed. Unreadable
records go to the handler.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from coopstreams import KeyValueStore, Processor, Record
from coopstreams.common.config import Config
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.globals import Globals
from coopstreams.tasks.failure_handlers import Answer, Count
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError, ProcessingError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import GlobalTable, GlobalUpdate
from coopstreams.topology.stores import StoreSpec

TABLE = GlobalTable(
    "names", StoreSpec("all-names", "key_value", serdes.text, serdes.text, logged=False)
)


def written(*rows: tuple[bytes | None, bytes | None]) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec("names", 3)])
    for key, value in rows:
        log.writer().append("names", [key], [value], [0])
    return log


def settings(**given: str) -> Config:
    names = {name.replace("_", "."): value for name, value in given.items()}
    return Config.of(
        {
            "bootstrap.servers": "in-memory",
            "errors.dead.letter.queue.topic.name": "dead",
            **names,
        },
        "app",
    )


def unexpected(failure: Failure, answer: Answer) -> None:
    raise AssertionError(failure, answer)


def no_drop(node: str, reason: str, records: int) -> None:
    raise AssertionError(node, reason, records)


def noted(reasons: list[str]) -> Count:
    """Return a counter of failures that notes their phases."""
    return lambda failure, _: reasons.append(failure.phase)


def tables_of(
    log: MemoryLog,
    count: Count = unexpected,
    tables: Sequence[GlobalTable] = (TABLE,),
    **given: str,
) -> Globals:
    return Globals(
        log, tables, {"names": 3}, settings(**given), count, Sayings(), no_drop
    )


def test_what_is_in_the_topic_is_there_when_load_returns() -> None:
    table = tables_of(
        written(
            (b"a", b"1"),
            (b"b", b"2"),
            (b"a", b"3"),
            (b"c", b"4"),
            (b"c", None),
            (None, b"5"),
        )
    )
    table.load(lambda: False)
    assert {
        key: entry.value for key, entry in table.rows["all-names"].scan(None, None)
    } == {b"a": "3", b"b": "2"}
    assert table.rows["all-names"].load(b"c").value is None
    table.stop()


def test_a_value_that_is_read_as_none_deletes_the_row_as_a_tombstone_does() -> None:
    """As in other tables; a row without a value would be found by queries, and by no
    inner join.
    """
    log = written((b"a", b"1"), (b"a", b"null"), (b"b", b"null"), (b"c", b"2"))
    spec = StoreSpec("all-names", "key_value", serdes.text, serdes.json, logged=False)
    table = tables_of(log, tables=[GlobalTable("names", spec)])
    table.load(lambda: False)
    assert {
        key: entry.value for key, entry in table.rows["all-names"].scan(None, None)
    } == {b"c": 2}
    table.stop()


def test_the_topics_are_noted_as_they_were_before_anything_was_read_of_them() -> None:
    log = written((b"a", b"1"))
    table, topic_id = tables_of(log), log.topic_id("names")

    def made_anew() -> bool:
        log.delete_topics(["names"])
        log.create_topics([TopicSpec("names", 3)])
        return True

    assert table.topic_ids == {}
    table.load(made_anew)
    assert table.topic_ids == {"names": topic_id}
    assert log.topic_id("names") != topic_id
    table.stop()


def test_an_empty_topic_is_loaded_at_once_and_a_cancelled_load_ends() -> None:
    empty, full = tables_of(written()), tables_of(written((b"a", b"1")))
    empty.load(lambda: False)
    full.load(lambda: True)
    empty.stop()
    full.stop()


def test_while_it_loads_it_says_where_it_is_and_what_it_waits_for() -> None:
    log = written(*((b"%d" % number, b"1") for number in range(10)))
    writer = log.writer("another-application")
    writer.begin()
    writer.append("names", [b"b"], [b"2"], [0], partitions=1)
    table, said = tables_of(log), list[str]()

    def look() -> bool:
        said.append(table.waits_for)
        if len(said) == 5:
            writer.commit(1)
        return False

    end = log.end_offsets([at := TopicPartition("names", 1)])[at]
    assert table.waits_for == ""
    table.load(look)
    assert said[4] == (
        f"its global tables are read first: {at} at offset {end - 1} of {end}. An open transaction of a producer keeps "
        f"back the rest of {at}: it has to end"
    )
    assert table.loaded
    assert table.waits_for == ""
    table.stop()


def test_what_comes_later_is_followed_and_an_error_is_told() -> None:
    log, errors = written(), list[BaseException]()
    table = tables_of(log)
    table.load(lambda: False)
    table.follow(errors.append)
    log.writer().append("names", [b"a"], [b"1"], [0])
    deadline = time.monotonic() + 90
    while (
        table.rows["all-names"].load(b"a").value != "1" and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    assert table.rows["all-names"].load(b"a").value == "1"
    log.writer().append("names", [b"a"], [b"\xff"], [0])
    while not errors and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "serde text cannot read" in str(errors[0])
    table.stop()


def test_a_topic_that_has_lost_what_comes_next_ends_the_instance_and_is_read_anew_by_the_next() -> (
    None
):
    log, errors = written((b"a", b"1")), list[BaseException]()
    table = tables_of(log)
    table.load(lambda: False)
    for value in (b"2", b"3"):
        log.writer().append("names", [b"a"], [value], [0])
    at = next(
        at
        for at in (TopicPartition("names", number) for number in range(3))
        if log.end_offset(at)
    )
    log.delete_before(at, 2)
    table.follow(errors.append)
    deadline = time.monotonic() + 90
    while not errors and time.monotonic() < deadline:
        time.sleep(0.005)
    assert (
        f"The next start reads it from its beginning (offset 1 of {at} is gone)"
        in str(errors[0])
    )
    table.stop()
    again = tables_of(log)
    again.load(lambda: False)
    assert again.rows["all-names"].load(b"a").value == "3"
    again.stop()


def test_without_global_tables_nothing_is_read() -> None:
    table = Globals(written(), [], {}, settings(), unexpected, Sayings(), no_drop)
    table.load(lambda: False)
    table.follow(lambda error: None)
    table.stop()
    assert table.rows == {}


class Counting(Processor[str, str, Any, Any]):
    """Counts the records of each value. `closed` has the closed ones."""

    closed: ClassVar[list[Any]] = []

    def process(self, record: Record[str, str]) -> None:
        counts: KeyValueStore[str, int] = self.context.store("counts")
        counts.put(record.value, (counts.get(record.value) or 0) + 1)

    def close(self) -> None:
        self.closed.append(self)


def test_a_processor_makes_the_same_rows_at_each_start() -> None:
    Counting.closed.clear()
    update = GlobalUpdate("count", Counting, serdes.text, serdes.text)
    table = GlobalTable(
        "names",
        StoreSpec("counts", "key_value", serdes.text, serdes.int64, logged=False),
        update,
    )
    log = written((b"a", b"x"), (b"b", b"y"), (b"c", b"x"), (None, b"x"))
    for closed in (1, 2):
        tables = tables_of(log, tables=[table])
        tables.load(lambda: False)
        assert {
            key: (entry.value, entry.stored)
            for key, entry in tables.rows["counts"].scan(None, None)
        } == {
            b"x": (3, serdes.int64.serialize(3)),
            b"y": (1, serdes.int64.serialize(1)),
        }
        tables.stop()
        tables.stop()
        assert len(Counting.closed) == closed


def test_an_error_of_the_processor_names_the_record() -> None:
    update = GlobalUpdate("count", Counting, serdes.text, serdes.int64)
    tables = tables_of(
        written((b"a", b"x")), tables=[GlobalTable("names", TABLE.store, update)]
    )
    with pytest.raises(
        ProcessingError,
        match=r'global tables: the record at "names" partition \d offset 0 cannot be read at count: SerdeError',
    ):
        tables.load(lambda: False)
    tables.stop()


class Refusing(Counting):
    """Counts, and refuses some values after it has counted them."""

    def process(self, record: Record[str, str]) -> None:
        super().process(record)
        if record.value == "bad":
            raise ValueError("bad")


def test_an_error_of_the_processor_is_for_the_handler_and_what_it_has_put_for_the_record_is_gone() -> (
    None
):
    update = GlobalUpdate("count", Refusing, serdes.text, serdes.text)
    table = GlobalTable(
        "names",
        StoreSpec("counts", "key_value", serdes.text, serdes.int64, logged=False),
        update,
    )
    log, reasons = written((b"a", b"x"), (b"a", b"bad"), (b"a", b"x")), list[str]()
    tables = tables_of(log, tables=[table])
    with pytest.raises(
        ProcessingError,
        match=r"offset 1 made a function raise at count: ValueError: bad",
    ):
        tables.load(lambda: False)
    tables.stop()
    tables = tables_of(
        log, noted(reasons), [table], processing_exception_handler="continue"
    )
    tables.load(lambda: False)
    assert {
        key: entry.value for key, entry in tables.rows["counts"].scan(None, None)
    } == {b"x": 2}
    assert reasons == ["processing"]
    tables.stop()


class Moving(Processor[str, str, Any, Any]):
    """Keeps the results of its scans; puts two rows for a record and deletes a third,
    then refuses some records.
    """

    seen: ClassVar[list[list[tuple[str, str]]]] = []

    def process(self, record: Record[str, str]) -> None:
        rows: KeyValueStore[str, str] = self.context.store("rows")
        rows.put("b", record.value)
        rows.put("c", record.value)
        rows.delete("a")
        self.seen.append(list(rows.range()))
        if record.value == "refused":
            raise ValueError(record.value)
        rows.put("a", record.value)
        rows.put("d", b"no text" if record.value == "unwritable" else record.value)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [b"refused", b"unwritable"])
def test_of_a_record_that_is_left_out_no_row_is_seen_but_by_the_processor_itself(
    bad: bytes,
) -> None:
    Moving.seen.clear()
    update = GlobalUpdate("move", Moving, serdes.text, serdes.text)
    table = GlobalTable(
        "names",
        StoreSpec("rows", "key_value", serdes.text, serdes.text, logged=False),
        update,
    )
    reasons = list[str]()
    tables = tables_of(
        written((b"k", b"good"), (b"k", bad)),
        noted(reasons),
        [table],
        processing_exception_handler="continue",
    )
    tables.load(lambda: False)
    assert {
        key: entry.value for key, entry in tables.rows["rows"].scan(None, None)
    } == dict.fromkeys((b"a", b"b", b"c", b"d"), "good")
    assert reasons == ["processing"]
    assert Moving.seen == [
        [("b", "good"), ("c", "good")],
        [("b", bad.decode()), ("c", bad.decode()), ("d", "good")],
    ]
    tables.stop()


class Exiting(Processor[str, str, Any, Any]):
    def process(self, record: Record[str, str]) -> None:
        sys.exit()


def test_a_processor_that_exits_ends_the_load_with_an_error() -> None:
    update = GlobalUpdate("exit", Exiting, serdes.text, serdes.text)
    table = GlobalTable(
        "names",
        StoreSpec("rows", "key_value", serdes.text, serdes.text, logged=False),
        update,
    )
    tables = tables_of(written((b"k", b"v")), tables=[table])
    with pytest.raises(
        CoopStreamsError,
        match=r"global tables: a function of the program raised SystemExit\(\)",
    ):
        tables.load(lambda: False)
    tables.stop()


BAD = ((b"a", b"1"), (b"a", b"\xff"), (b"b", b"\xfe"), (b"b", b"2"))


def test_a_value_that_cannot_be_read_ends_the_load_and_is_named() -> None:
    table = tables_of(written(*BAD))
    with pytest.raises(
        ProcessingError,
        match=r'global tables: the record at "names" partition \d offset 1 cannot be read at all-names',
    ) as caught:
        table.load(lambda: False)
    assert "deserialization.exception.handler" in str(caught.value)
    table.stop()


@pytest.mark.parametrize("answer", ["continue", "dead-letter"])
def test_a_value_that_cannot_be_read_may_be_left_out_and_the_row_stays_as_it_was(
    answer: str,
) -> None:
    log, reasons = written(*BAD), list[str]()
    log.create_topics([TopicSpec("dead", 1)])
    for start in (1, 2):  # nothing is committed: each start finds the same records
        table = tables_of(log, noted(reasons), deserialization_exception_handler=answer)
        table.load(lambda: False)
        assert {
            key: entry.value for key, entry in table.rows["all-names"].scan(None, None)
        } == {b"a": "1", b"b": "2"}
        table.stop()
        assert reasons == ["deserialization"] * 2 * start
        letters = dead_letters(log)
        assert [(key, value) for key, value, _ in letters] == (
            [(b"a", b"\xff"), (b"b", b"\xfe")] * start
            if answer == "dead-letter"
            else []
        )
        for _, _, headers in letters:
            assert headers["__coopstreams.errors.topic"] == b"names"
            assert headers["__coopstreams.errors.node"] == b"all-names"
            assert "__coopstreams.errors.task" not in headers


def dead_letters(
    log: MemoryLog,
) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    found: list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]] = []
    source, reader = TopicPartition("dead", 0), log.reader()
    reader.assign({source: Position(0)})
    while len(found) < log.end_offset(source):
        for run in reader.fetch(100, 0.01):
            assert run.columns.headers is not None
            found += [
                (key, value, dict(each or ()))
                for key, value, each in zip(
                    run.columns.keys,
                    run.columns.values,
                    run.columns.headers,
                    strict=True,
                )
            ]
    reader.close()
    return found
