"""`ttl=`: rows of tables and of processors' stores expire by stream time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopstreams import (
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyBuilder,
    key_value_store,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import TopologyError
from tests.durations import ms
from tests.topology.operators.results import Outputs, Tables, results

Input: TypeAlias = tuple[str, str, int | None, int]

INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "names"]),
        st.sampled_from("abcdefgh"),
        st.one_of(st.none(), st.integers(0, 5)),
        st.integers(0, 60),
    ),
    max_size=30,
)
STORES = ("counts", "names", "per-name", "totals", "taken", "seen")


def lasting(store: str, ttl: int = 15) -> Materialized:
    return Materialized(store, ttl=ms(ttl))


class Seen(Processor[str, int, str, int]):
    """Forwards the number of unexpired records of a key, and whether its row was there."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.seen: KeyValueStore[str, int] = context.store("seen")

    def process(self, record: Record[str, int]) -> None:
        known = self.seen.get(record.key)
        assert (known is None) == (self.seen.timestamp(record.key) is None)
        assert (known is None) == (
            record.key
            not in [key for key, _ in self.seen.range(record.key, record.key)]
        )
        self.seen.put(record.key, (known or 0) + 1)
        self.context.forward(Record(record.key, (known or 0) + 1, record.timestamp))


def added(_: str, value: int | None, total: int) -> int:
    return total + (value or 0)


def program() -> Topology:
    """Every operator with a ttl, and some below."""
    builder = StreamsBuilder("app")
    names = builder.table(
        "names", key=serdes.text, value=serdes.int64, store=lasting("names")
    )
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    counts = (
        stream.filter(lambda _, value: value != 3)
        .group_by_key()
        .count(store=lasting("counts"))
    )
    counts.to_stream().to("counts")
    stream.left_join(names, lambda one, name: [one, name], value=serdes.json).to(
        "joined"
    )
    names.map_values(lambda name: name % 2, value=serdes.int64).group_by(
        lambda _, parity: (str(parity), parity), key=serdes.text, value=serdes.int64
    ).count(store="per-name")
    names.left_join(
        counts, lambda name, count: [name, count], value=serdes.json
    ).to_stream().to("both")
    stream.to_table(store=lasting("taken", 5)).filter(
        lambda _, value: value > 1
    ).to_stream().to("large")
    stream.group_by_key().cogroup(added).aggregate(
        int, value=serdes.int64, store=lasting("totals", 20)
    ).to_stream().to("totals")
    seen = key_value_store("seen", key=serdes.text, value=serdes.int64, ttl=ms(10))
    stream.process(Seen, stores=[seen], by_key=True).to(
        "seen", key=serdes.text, value=serdes.int64
    )
    return builder.build()


PROGRAM = program()


def run(inputs: list[Input], ranges: int, **options: Any) -> tuple[Outputs, Tables]:
    return results(PROGRAM, inputs, STORES, ranges, **options)


@settings(max_examples=15, deadline=None)
@given(INPUTS, st.sampled_from([2, 3, 16]), st.integers(1, 5))
def test_rows_expire_alike_for_any_number_of_ranges(
    inputs: list[Input], ranges: int, commit_every: int
) -> None:
    expected = run(inputs, 1)
    assert run(inputs, ranges, commit_every=commit_every) == expected


def counted(stores: dict[str, list[Any]]) -> dict[str, int]:
    return {row.key: row.value for row in stores["per-name"] if row.value}


@settings(max_examples=15, deadline=None)
@example([("names", "a", 0, 1), ("names", "b", 0, 0), ("names", "a", None, 0)], 1, 3)
@given(INPUTS, st.sampled_from([1, 4]), st.integers(1, 5))
def test_the_record_cache_changes_no_row(
    inputs: list[Input], ranges: int, commit_every: int
) -> None:
    outputs, stores = run(inputs, 1)
    cached, same = run(inputs, ranges, caching=True, commit_every=commit_every)
    for store in STORES:
        if store != "per-name":
            assert same[store] == stores[store]
    # Rows of a table that come and go between two flushes are never counted: they leave
    # neither a count of 0 nor their time.
    assert counted(same) == counted(stores)
    for topic in ("counts", "totals"):
        for key in "abcdefgh":
            assert (
                cached.get((topic, key), [(None, 0)])[-1][0]
                == outputs.get((topic, key), [(None, 0)])[-1][0]
            )


def counting(store: Materialized) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(
        store=store
    ).to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
def test_an_expired_row_is_forwarded_as_a_deletion_and_begins_anew(ranges: int) -> None:
    with TopologyTestDriver(counting(lasting("counts", 50)), ranges) as driver:
        for key, timestamp in [("a", 0), ("a", 30), ("b", 79), ("a", 80), ("b", 500)]:
            driver.input("in").send(key, b"", timestamp)
        driver.commit()
        of_a = [
            (record.value, record.timestamp)
            for record in driver.outputs()
            if record.key == "a"
        ]
        assert of_a == [(1, 0), (2, 30), (None, 80), (1, 80), (None, 130)]
        assert [row.key for row in driver.store("counts").all()] == ["b"]


def test_rows_expire_on_disk_after_a_restart(tmp_path: Path) -> None:
    for key, timestamp, left in [
        ("a", 0, ["a"]),
        ("b", 40, ["a", "b"]),
        ("c", 60, ["b", "c"]),
        ("d", 95, ["c", "d"]),
    ]:
        with TopologyTestDriver(
            counting(lasting("counts", 50)), 2, state_dir=tmp_path
        ) as driver:
            driver.input("in").send(key, b"", timestamp)
            driver.commit()
            assert sorted(row.key for row in driver.store("counts").all()) == left


def test_a_deletion_has_no_headers() -> None:
    with TopologyTestDriver(counting(lasting("counts", 5))) as driver:
        driver.input("in").send("a", b"", 0, headers=[("trace", b"1")])
        driver.input("in").send("b", b"", 9, headers=[("trace", b"2")])
        assert [
            (record.key, record.value, list(record.headers))
            for record in driver.outputs()
        ] == [
            ("a", 1, [("trace", b"1")]),
            ("a", None, []),
            ("b", 1, [("trace", b"2")]),
        ]


REFUSED: dict[str, Callable[[StreamsBuilder], object]] = {
    "retention= says how long": lambda builder: (
        stream(builder)
        .group_by_key()
        .windowed_by(TimeWindows(seconds=1))
        .count(store=lasting("kept"))
    ),
    "history= says how long": lambda builder: builder.table(
        "topic",
        key=serdes.text,
        value=serdes.int64,
        store=lasting("kept"),
        history=ms(10),
    ),
    "Give the ttl to these": lambda builder: table(builder).filter(
        lambda _, value: value > 1, store=lasting("kept")
    ),
    "deletions arrive here": lambda builder: (
        table(builder)
        .group_by(lambda key, value: (key, value), key=serdes.text, value=serdes.int64)
        .count(store=lasting("kept"))
    ),
    'store "kept": ttl= cannot be given': lambda builder: table(builder).join(
        table(builder, "other"),
        lambda one, other: one,
        value=serdes.int64,
        store=lasting("kept"),
    ),
    "follow those of other tables": lambda builder: table(builder).join(
        table(builder, "other"),
        lambda one, other: one,
        foreign_key=str,
        value=serdes.int64,
        store=lasting("kept"),
    ),
    "must be at least 1 ms": lambda _: Materialized("kept", ttl=timedelta(0)),
    "a number without a unit": lambda _: key_value_store(
        "kept",
        key=serdes.text,
        value=serdes.text,
        ttl=5,  # type: ignore[arg-type]
    ),
    "cannot expire: each instance": lambda _: TopologyBuilder("app").add_global_store(
        key_value_store("kept", key=serdes.text, value=serdes.text, ttl=ms(5)), "topic"
    ),
}


def stream(builder: StreamsBuilder) -> Any:
    return builder.stream("in", key=serdes.text, value=serdes.int64)


def table(builder: StreamsBuilder, topic: str = "topic") -> Any:
    return builder.table(topic, key=serdes.text, value=serdes.int64)


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_expire_is_refused_with_the_cure(words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        REFUSED[words](StreamsBuilder("app"))


def test_a_call_that_waits_has_no_store_whose_rows_expire() -> None:
    builder = StreamsBuilder("app")
    kept = key_value_store("kept", key=serdes.text, value=serdes.int64, ttl=ms(5))

    async def look(record: Any, context: Any) -> None: ...

    stream(builder).process_async(look, stores=[kept])
    with pytest.raises(TopologyError, match="might expire while a call"):
        builder.build()


def test_a_table_whose_rows_expire_keeps_its_changelog() -> None:
    builder = StreamsBuilder("app")
    builder.table("topic", key=serdes.text, value=serdes.int64, store=lasting("kept"))
    assert [
        topic.name for topic in builder.build().optimized("all").internal_topics
    ] == ["app-kept-changelog"]


def test_a_program_without_a_ttl_has_the_code_of_before() -> None:
    builder = StreamsBuilder("app")
    builder.table(
        "topic", key=serdes.text, value=serdes.int64, store="kept"
    ).to_stream().to("out")
    topology = builder.build()
    text = compile_subtopology(topology, topology.subtopologies[0]).compiled(False).text
    assert "due_ms" not in text
    assert "note_" not in text
