"""`add_global_store`: all rows on every instance, from the topic or from a processor."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import KeyValueStore, Processor, Record, key_value_store
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.errors import ProcessingError
from tests.durations import ms
from tests.topology.test_named_nodes import TEXT, outputs, text_source


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_global_store_is_looked_into_by_every_task(ranges: int) -> None:
    class Name(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            names: KeyValueStore[str, str] = self.context.store("names")
            self.context.forward(record.with_value(names.get(record.value) or "?"))

    topology = (
        text_source()
        .add_global_store(key_value_store("names", **TEXT), "names-topic")
        .add_processor("name", Name, "lines", stores=["names"], by_key=True)
        .add_sink("named", "out", "name", **TEXT)
        .build()
    )
    records = [
        ("names-topic", "x", "Ann"),
        ("in", "a", "x"),
        ("in", "b", "y"),
        ("names-topic", "y", "Bob"),
        ("in", "b", "y"),
    ]
    assert [value for _, _, value in outputs(topology, *records, ranges=ranges)] == [
        "Ann",
        "?",
        "Bob",
    ]
    assert topology.internal_topics == ()


class Longest(Processor[str, str, Any, Any]):
    """Keeps the longest word of each first letter, and the metadata of its record."""

    def process(self, record: Record[str, str]) -> None:
        words: KeyValueStore[str, list[Any]] = self.context.store("longest")
        word = record.value or ""
        assert self.context.metadata is not None
        if len(word) > len((words.get(word[:1]) or [""])[0]):
            words.put(
                word[:1],
                [
                    word,
                    record.timestamp,
                    *self.context.metadata,
                    [name for name, _ in record.headers],
                ],
            )
        if word == "forget":
            for letter, _ in words.all():
                words.delete(letter)


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_processor_may_make_the_rows_of_a_global_store(ranges: int) -> None:
    class Find(Processor[str, str, str, Any]):
        def process(self, record: Record[str, str]) -> None:
            words: KeyValueStore[str, list[Any]] = self.context.store("longest")
            self.context.forward(
                record.with_value(
                    [words.get(record.value), [letter for letter, _ in words.all()]]
                )
            )

    topology = (
        text_source()
        .add_global_store(
            key_value_store("longest", key=serdes.text, value=serdes.json),
            "words",
            "longest-of",
            Longest,
            value=serdes.text,
        )
        .add_processor("find", Find, "lines", stores=["longest"], by_key=True)
        .add_sink("found", "out", "find", key=serdes.text, value=serdes.json)
        .build()
    )
    assert '"processor": "longest-of"' in topology.describe("json")
    with TopologyTestDriver(
        topology, ranges, partitions={"in": 1, "words": 3}
    ) as driver:
        words, lines = (
            driver.input("words", serdes.text, serdes.text),
            driver.input("in", serdes.text, serdes.text),
        )
        words.send("k", "be", 3)
        words.send("k", "bee", 4, headers=[("h", b"")])
        words.send("k", "b", 5)
        words.send("k", "to", 6)
        lines.send("x", "b")
        words.send("k", "forget", 7)
        lines.send("x", "b")
        assert [record.value for record in driver.outputs()] == [
            [["bee", 4, "words", 2, 1, ["h"]], ["b", "t"]],
            [None, []],
        ]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda context, record: context.forward(record),
            r"cannot forward\(\), nothing comes after it",
        ),
        (
            lambda context, _: context.schedule(ms(5), "stream_time", print),
            r"cannot schedule\(\), only records call it",
        ),
        (
            lambda context, _: context.store("other"),
            'has no store "other"; stores= names names',
        ),
    ],
    ids=["forward", "schedule", "store"],
)
def test_what_the_processor_of_a_global_store_cannot_do_is_an_error_that_says_where(
    act: Any, message: str
) -> None:
    class Wrong(Processor[str, str, Any, Any]):
        def process(self, record: Record[str, str]) -> None:
            act(self.context, record)

    topology = (
        text_source()
        .add_global_store(
            key_value_store("names", **TEXT), "names-topic", "wrong", Wrong
        )
        .build()
    )
    with pytest.raises(
        ProcessingError,
        match=f'the record at "names-topic" partition 0 offset 0 made a function raise at wrong: .*{message}',
    ):
        outputs(topology, ("names-topic", "a", "b"))


def test_a_global_store_that_a_processor_writes_to_stays_as_its_topic_says() -> None:
    class Write(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            names: KeyValueStore[str, str] = self.context.store("names")
            if record.value == "write":
                names.put(record.key, "wrong")
            self.context.forward(
                record.with_value(f"{names.get('a')} {names.get('b')}")
            )

    builder = (
        text_source()
        .add_global_store(key_value_store("names", **TEXT), "names-topic")
        .add_processor("write", Write, "lines", stores=["names"], by_key=False)
    )
    topology = builder.add_sink("out", "out", "write", **TEXT).build()
    records = [
        ("names-topic", "a", "Ann"),
        ("in", "a", "write"),
        ("in", "b", "write"),
        ("in", "a", "read"),
    ]
    assert outputs(
        topology, *records, config={"processing.exception.handler": "continue"}
    ) == [("out", "a", "Ann None")]
