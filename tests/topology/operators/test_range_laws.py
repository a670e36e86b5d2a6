"""Laws of the project: results depend neither on the number of key ranges nor, finally,
on the record cache.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    Processor,
    Record,
    SessionStore,
    WindowStore,
    session_store,
    window_store,
)
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.windows import SlidingWindows, TimeWindows, Windows
from tests.durations import ms
from tests.topology.operators.results import Outputs, Tables, results

Input: TypeAlias = tuple[str, str | None, int | None, int]

STORES = ("counts", "totals", "windows", "names", "parity")

INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "names"]),
        st.one_of(st.none(), st.sampled_from("abcdefgh")),
        st.one_of(st.none(), st.integers(-5, 5)),
        st.integers(0, 60),
    ),
    max_size=25,
)


def below_four(_: str, value: int | None) -> bool:
    return value is None or value < 4


def twice(value: int | None) -> list[int]:
    return [value] * 2 if value else []


def program() -> Topology:
    """Every operator at once."""
    builder = StreamsBuilder("app")
    names = builder.table("names", key=serdes.text, value=serdes.int64, store="names")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.group_by_key().count(store="counts").filter(
        lambda _, count: count % 2 == 0
    ).to_stream().to("even-counts")
    small = stream.filter(below_four)
    small.group_by_key().reduce(
        lambda total, value: total + value or None, store="totals"
    ).to_stream().to("totals")
    small.left_join(
        names, lambda value, name: value * 10 + (name or 0), value=serdes.int64
    ).to("joined")
    stream.group_by_key().windowed_by(
        TimeWindows(milliseconds=10, grace=ms(5))
    ).aggregate(
        lambda: 0,
        lambda _, value, total: total + (value or 100),
        value=serdes.int64,
        store="windows",
        retention=ms(1000),
    ).to_stream().to("windows")
    stream.flat_map_values(twice).group_by(
        lambda _, value: "even" if value % 2 == 0 else "odd",
        key=serdes.text,
        value=serdes.int64,
    ).count(store="parity").to_stream().to("parity")
    names.filter(lambda _, name: name > 0).to_stream().to("positive")
    return builder.build()


PROGRAM = program()


def run(inputs: list[Input], ranges: int, **options: Any) -> tuple[Outputs, Tables]:
    return results(PROGRAM, inputs, STORES, ranges, **options)


def is_subsequence(part: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


@settings(max_examples=40, deadline=None)
@given(INPUTS)
def test_tables_and_outputs_of_each_key_do_not_depend_on_the_number_of_ranges(
    inputs: list[Input],
) -> None:
    expected = run(inputs, ranges=1)
    for ranges in (2, 3, 8):
        assert run(inputs, ranges) == expected


class SinceEachRecord(Windows):
    """User-defined windows that begin with their records, at times that no clock
    determines.
    """

    size_ms = 12
    grace_ms = 3

    def starts(self, timestamp: int) -> Sequence[int]:
        return (timestamp - timestamp % 3, timestamp) if timestamp % 3 else (timestamp,)

    def end(self, start_ms: int) -> int:
        return start_ms + (self.size_ms if start_ms % 3 else 5)


@cache
def beginning(difference: int, grace: int) -> Topology:
    sliding = SlidingWindows(milliseconds=difference, grace=ms(grace))
    windows: dict[str, Windows | SlidingWindows] = {
        "sliding": sliding,
        "own": SinceEachRecord(),
    }
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    for store, cut in windows.items():
        stream.group_by_key().windowed_by(cut).aggregate(
            list, lambda _, value, seen: [*seen, value], value=serdes.json, store=store
        ).to_stream().to(store)
    return builder.build()


@pytest.mark.ci
@settings(max_examples=100, deadline=None)
@given(INPUTS, st.integers(1, 12), st.integers(0, 12), st.sampled_from([2, 3, 7, 16]))
def test_windows_that_begin_with_their_records_expire_alike_for_any_number_of_ranges(
    inputs: list[Input], difference: int, grace: int, ranges: int
) -> None:
    topology, records = (
        beginning(difference, grace),
        [record for record in inputs if record[0] == "in"],
    )
    stores = ("sliding", "own")
    assert results(topology, records, stores, ranges) == results(
        topology, records, stores
    )


class Recent(Processor[str, int, str, Any]):
    """Forwards the rows that its stores still have of a key."""

    def process(self, record: Record[str, int]) -> None:
        windows: WindowStore[str, int] = self.context.store("windows")
        sessions: SessionStore[str, int] = self.context.store("sessions")
        windows.put(record.key, record.value, record.timestamp)
        sessions.put(
            record.key, record.value, max(0, record.timestamp - 3), record.timestamp
        )
        kept = [
            list(windows.fetch(record.key, 0, 100)),
            [[*at, value] for at, value in sessions.sessions(record.key)],
        ]
        self.context.forward(record.with_value(kept))


@cache
def recent() -> Topology:
    stores = [
        window_store(
            "windows", key=serdes.text, value=serdes.int64, size=ms(5), retention=ms(20)
        ),
        session_store(
            "sessions", key=serdes.text, value=serdes.int64, retention=ms(15)
        ),
    ]
    builder = StreamsBuilder("app")
    numbers = builder.stream("in", key=serdes.text, value=serdes.int64).filter(
        lambda key, value: None not in (key, value)
    )
    numbers.process(
        Recent, stores=stores, key=serdes.text, value=serdes.json, by_key=True
    ).to("out")
    return builder.build()


@settings(max_examples=60, deadline=None)
@given(INPUTS, st.sampled_from([2, 3, 7]))
def test_windows_that_a_processor_keeps_by_key_expire_alike_for_any_number_of_ranges(
    inputs: list[Input], ranges: int
) -> None:
    topology, records = recent(), [record for record in inputs if record[0] == "in"]
    names = ("windows", "sessions")
    assert results(topology, records, names, ranges) == results(
        topology, records, names
    )


@pytest.mark.ci
@settings(max_examples=40, deadline=None)
@given(INPUTS, st.integers(1, 10), st.sampled_from([1, 3]))
def test_outputs_with_the_record_cache_are_a_subsequence_of_those_without_and_end_alike(
    inputs: list[Input], commit_every: int, ranges: int
) -> None:
    every, tables = run(inputs, ranges=1)
    cached, tables_of_cache = run(
        inputs, ranges, caching=True, commit_every=commit_every
    )
    assert tables_of_cache == tables
    for place, records in cached.items():
        assert is_subsequence(records, every[place])


@pytest.mark.ci
@settings(max_examples=40, deadline=None)
@given(INPUTS, st.integers(1, 10))
def test_outputs_do_not_depend_on_when_commits_happen(
    inputs: list[Input], commit_every: int
) -> None:
    assert run(inputs, ranges=2, commit_every=commit_every) == run(inputs, ranges=1)
