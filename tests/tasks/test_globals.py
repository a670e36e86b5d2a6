"""Global tables: read whole before anybody looks, then followed."""

import time

from coopstreams.log.log import TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.tasks.globals import Globals
from coopstreams.topology import serdes
from coopstreams.topology.global_tables import GlobalTable
from coopstreams.topology.stores import StoreSpec

TABLE = GlobalTable("names", StoreSpec("all-names", "key_value", serdes.text, serdes.text, logged=False))


def written(*rows: tuple[bytes | None, bytes | None]) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec("names", 3)])
    for key, value in rows:
        log.writer().append("names", [key], [value], [0])
    return log


def test_what_is_in_the_topic_is_there_when_load_returns() -> None:
    table = Globals(written((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None), (None, b"5")), [TABLE], {"names": 3})
    table.load(lambda: False)
    assert {key: entry.value for key, entry in table.rows["all-names"].scan(None, None)} == {b"a": "3", b"b": "2"}
    assert table.rows["all-names"].load(b"c").value is None
    table.stop()


def test_an_empty_topic_is_loaded_at_once_and_a_cancelled_load_ends() -> None:
    empty, full = Globals(written(), [TABLE], {"names": 3}), Globals(written((b"a", b"1")), [TABLE], {"names": 3})
    empty.load(lambda: False)
    full.load(lambda: True)
    empty.stop()
    full.stop()


def test_what_comes_later_is_followed_and_an_error_is_told() -> None:
    log, errors = written(), list[BaseException]()
    table = Globals(log, [TABLE], {"names": 3})
    table.load(lambda: False)
    table.follow(errors.append)
    log.writer().append("names", [b"a"], [b"1"], [0])
    deadline = time.monotonic() + 90
    while table.rows["all-names"].load(b"a").value != "1" and time.monotonic() < deadline:
        time.sleep(0.005)
    assert table.rows["all-names"].load(b"a").value == "1"
    log.writer().append("names", [b"a"], [b"\xff"], [0])
    while not errors and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "serde text cannot read" in str(errors[0])
    table.stop()


def test_without_global_tables_nothing_is_read() -> None:
    table = Globals(written(), [], {})
    table.load(lambda: False)
    table.follow(lambda error: None)
    table.stop()
    assert table.rows == {}
