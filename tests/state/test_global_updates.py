"""The rows of a global store with a processor: the changes of a record are published
together, or not at all.
"""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import (
    KeyValueStore,
    Processor,
    Record,
    TopologyBuilder,
    key_value_store,
)
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.global_updates import rows_of
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.failures import Failure
from coopstreams.topology.serdes import json, text

WORDS = TopicPartition("words", 0)


class Kept(Processor[str, str, str, str]):
    """Keeps the value of each key; `forget KEY` deletes a key, `twice` writes two rows
    and fails.
    """

    def process(self, record: Record[str, str]) -> None:
        rows: KeyValueStore[str, str] = self.context.store("kept")
        value = record.value or ""
        rows.put(record.key, value)
        if value.startswith("forget "):
            rows.delete(value.removeprefix("forget "))
        if value == "twice":
            rows.put("other", value)
            raise ValueError(value)


@pytest.fixture
def rows() -> GlobalRows:
    builder = TopologyBuilder("app").add_source("in", "in", key=text, value=text)
    builder.add_global_store(
        key_value_store("kept", key=text, value=text), WORDS.topic, "keeps", Kept
    )
    (table,) = (
        builder.add_sink("out", "out", "in", key=text, value=text).build().global_tables
    )
    return rows_of(table, lambda: 0, None)


def read(rows: GlobalRows, *values: tuple[bytes, bytes]) -> list[Failure]:
    """Give these records to the processor; return the failures."""
    failures: list[Failure] = []
    keys, texts = [key for key, _ in values], [value for _, value in values]
    numbers = list(range(len(values)))
    rows.apply(WORDS, Columns(keys, texts, numbers, numbers, numbers), failures.append)
    return failures


def kept(rows: GlobalRows) -> dict[bytes, Any]:
    return {key: entry.value for key, entry in rows.scan(None, None)}


def test_what_the_processor_puts_and_deletes_is_published(rows: GlobalRows) -> None:
    assert (
        read(rows, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"forget b")) == []
    )
    assert kept(rows) == {b"a": "3", b"c": "forget b"}
    assert rows.load(b"b").value is None


def test_what_a_record_that_fails_has_changed_in_place_is_not_published() -> None:
    class Counted(Processor[str, Any, str, str]):
        def process(self, record: Record[str, Any]) -> None:
            rows: KeyValueStore[str, Any] = self.context.store("kept")
            row = rows.get(record.key) or {"n": 0}
            row["n"] += 1
            if record.value == "fails":
                raise ValueError(record.value)
            rows.put(record.key, row)

    builder = TopologyBuilder("app").add_source("in", "in", key=text, value=text)
    builder.add_global_store(
        key_value_store("kept", key=text, value=json), WORDS.topic, "keeps", Counted
    )
    (table,) = (
        builder.add_sink("out", "out", "in", key=text, value=text).build().global_tables
    )
    rows = rows_of(table, lambda: 0, None)
    assert len(read(rows, (b"a", b'"counts"'), (b"a", b'"fails"'))) == 1
    assert kept(rows) == {b"a": {"n": 1}}


def test_nothing_of_a_record_that_fails_is_published(rows: GlobalRows) -> None:
    (failure,) = read(rows, (b"a", b"1"), (b"a", b"twice"), (b"b", b"2"))
    assert (failure.offset, failure.phase, str(failure.error)) == (
        1,
        "processing",
        "twice",
    )
    assert kept(rows) == {b"a": "1", b"b": "2"}
