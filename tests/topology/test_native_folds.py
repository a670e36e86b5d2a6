"""Folds over native rows equal those over live objects: outputs, changelogs, rows,
counters, failures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cache
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from coopstreams import count, count_distinct, last, quantile, sum_
from coopstreams.common.config import Config
from coopstreams.log.kafka.native import native_parts, native_tables
from coopstreams.state.database import Database
from coopstreams.state.layout import TIMESTAMP
from coopstreams.state.memory_engine import Memory
from coopstreams.state.native_table import NativeWindowTable
from coopstreams.state.task_state import NO_TABLES, ChangelogBatch, TaskState
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import Program
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError, StateError
from coopstreams.topology.failures import Failure
from coopstreams.topology.fields import field
from coopstreams.topology.graph.known_folds import folds
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.stores import session_key, window_key
from coopstreams.topology.suppression import (
    until_time_limit,
    until_window_closes,
)
from coopstreams.topology.windows import SessionWindows, SlidingWindows, TimeWindows
from tests.conftest import needs_native
from tests.durations import ms
from tests.topology.operators.results import outputs

pytestmark = [needs_native, pytest.mark.usefixtures("native_plane")]


IN = TopicPartition("in", 0)
CONFIG = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
Build = Callable[[Any, Any], Any]
INT, FLOAT = serdes.int64, serdes.float64
TUMBLING = TimeWindows(milliseconds=10, grace=ms(7))
SESSIONS = SessionWindows(milliseconds=5, grace=ms(8))
HOPPING = TimeWindows(milliseconds=10, advance=ms(4), grace=ms(3))


def numbers(stream: Any, value: Any) -> Any:
    """Return the numbers of the JSON values, grouped."""
    return stream.map_values(lambda number: number, value=value).group_by_key()


def final(stream: Any, windows: Any) -> Any:
    """Return the windows of a stream, each forwarded once, when it closes."""
    return windowed(stream, windows).emit_strategy("on_window_close")


def windowed(stream: Any, windows: Any) -> Any:
    """Return the windows of a stream."""
    return stream.group_by_key().windowed_by(windows)


FLOWS: dict[str, Build] = {
    "count": lambda stream, _: stream.group_by_key().count(store="s"),
    "count of some": lambda stream, _: (
        stream.filter(lambda _, number: number).group_by_key().count(store="s")
    ),
    "count of more": lambda stream, other: (
        stream.merge(other).group_by_key().count(store="s")
    ),
    "count of several": lambda stream, _: (
        stream.flat_map_values(lambda number: [number] * (1 + (number is None)))
        .group_by_key()
        .count(store="s")
    ),
    "tumbling count": lambda stream, _: (
        stream.group_by_key().windowed_by(TUMBLING).count(store="s")
    ),
    "hopping count": lambda stream, _: (
        stream.group_by_key().windowed_by(HOPPING).count(store="s")
    ),
    "sum": lambda stream, _: numbers(stream, INT).reduce(operator.add, store="s"),
    "float sum": lambda stream, _: numbers(stream, FLOAT).reduce(
        operator.add, store="s"
    ),
    "least": lambda stream, _: numbers(stream, INT).reduce(min, store="s"),
    "greatest": lambda stream, _: numbers(stream, INT).reduce(max, store="s"),
    "least float": lambda stream, _: numbers(stream, FLOAT).reduce(min, store="s"),
    "greatest float": lambda stream, _: numbers(stream, FLOAT).reduce(max, store="s"),
    "mean": lambda stream, _: numbers(stream, INT).mean(store="s"),
    "mean of what may be too large": lambda stream, _: (
        stream.map_values(lambda number: 10**400 if number == 9 else number, value=INT)
        .group_by_key()
        .mean(store="s")
    ),
    "hopping float mean": lambda stream, _: (
        numbers(stream, FLOAT).windowed_by(HOPPING).mean(store="s")
    ),
    "mean part": lambda stream, _: (
        stream.map_values(field("a"), value=INT).group_by_key().mean(store="s")
    ),
    "part": lambda stream, _: (
        stream.map_values(field("a"), value=INT)
        .group_by_key()
        .reduce(operator.add, store="s")
    ),
    "greatest part": lambda stream, _: (
        stream.map_values(field("a"), value=INT)
        .group_by_key()
        .windowed_by(HOPPING)
        .reduce(max, store="s")
    ),
    "float part": lambda stream, _: (
        stream.map_values(field("a"), value=FLOAT)
        .group_by_key()
        .windowed_by(TUMBLING)
        .reduce(operator.add, store="s")
    ),
    "part of some": lambda stream, _: (
        stream.filter(field("b") != 1)
        .map_values(field("a"), value=INT)
        .group_by_key()
        .reduce(operator.add, store="s")
    ),
    "part count": lambda stream, _: (
        stream.filter(field("a")).group_by_key().count(store="s")
    ),
    "tumbling sum": lambda stream, _: (
        numbers(stream, INT).windowed_by(TUMBLING).reduce(operator.add, store="s")
    ),
    "hopping float sum": lambda stream, _: (
        numbers(stream, FLOAT).windowed_by(HOPPING).reduce(operator.add, store="s")
    ),
}
"""Operators on two streams."""


@dataclass
class Seen:
    """A typed row: its serde reads it back before a commit."""

    count: int = 0
    last: int | None = None


def remembered(_key: bytes, value: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Change a row in place, and fail between two changes."""
    row["n"] += 1
    if value == 9:
        raise ValueError("nine")
    row["last"] = value
    return row


def left(_key: bytes, value: Any, total: int) -> int | None:
    """Return the sum, or None, which deletes the row."""
    return None if value == 3 else total + value


def itself(value: Any) -> Any:
    return value


SEVERAL: dict[str, Any] = {
    "n": count(),
    "median": quantile(itself, 0.5),
    "total": sum_(itself),
    "values": count_distinct(itself),
    "last": last(itself),
}

FUNCTIONS: dict[str, Build] = {
    "sum by function": lambda stream, _: numbers(stream, INT).reduce(
        lambda one, other: one + other, store="s"
    ),
    "tumbling sum by function": lambda stream, _: (
        numbers(stream, INT)
        .windowed_by(TUMBLING)
        .reduce(lambda one, other: one + other, store="s")
    ),
    "float sum by function": lambda stream, _: (
        numbers(stream, FLOAT)
        .windowed_by(TUMBLING)
        .reduce(lambda one, other: one + other, store="s")
    ),
    "deleting": lambda stream, _: stream.group_by_key().aggregate(
        lambda: 0, left, value=INT, store="s"
    ),
    "tumbling deleting": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(TUMBLING)
        .aggregate(lambda: 0, left, value=INT, store="s")
    ),
    "in place": lambda stream, _: stream.group_by_key().aggregate(
        lambda: {"n": 0}, remembered, value=serdes.json, store="s"
    ),
    "tumbling in place": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(TUMBLING)
        .aggregate(lambda: {"n": 0}, remembered, value=serdes.json, store="s")
    ),
    "hopping in place": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(HOPPING)
        .aggregate(lambda: {"n": 0}, remembered, value=serdes.json, store="s")
    ),
    "typed": lambda stream, _: stream.group_by_key().aggregate(
        Seen,
        lambda _, value, seen: Seen(seen.count + 1, value),
        value=serdes.json(Seen),
        store="s",
    ),
    "what has no bytes": lambda stream, _: stream.group_by_key().aggregate(
        lambda: 0,
        lambda _, value, row: {1, 2} if value == 9 else row,
        value=serdes.json,
        store="s",
    ),
    "several aggregates": lambda stream, _: stream.group_by_key().aggregate(
        **SEVERAL, store="s"
    ),
    "hopping several aggregates": lambda stream, _: (
        stream.group_by_key().windowed_by(HOPPING).aggregate(**SEVERAL, store="s")
    ),
    "several aggregates that need no copies": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(TUMBLING)
        .aggregate(n=count(), total=sum_(itself), store="s")
    ),
    "final count": lambda stream, _: final(stream, TUMBLING).count(store="s"),
    "final hopping sum": lambda stream, other: final(
        stream.merge(other).map_values(lambda number: number, value=INT), HOPPING
    ).reduce(operator.add, store="s"),
    "final float sum": lambda stream, _: final(
        stream.map_values(lambda number: number, value=FLOAT), TUMBLING
    ).reduce(lambda one, other: one + other, store="s"),
    "final in place": lambda stream, _: final(stream, TUMBLING).aggregate(
        lambda: {"n": 0}, remembered, value=serdes.json, store="s"
    ),
    "final hopping deleting": lambda stream, _: final(stream, HOPPING).aggregate(
        lambda: 0, left, value=serdes.json, store="s"
    ),
    "final what has no bytes": lambda stream, _: final(stream, TUMBLING).aggregate(
        lambda: 0,
        lambda _, value, row: {1, 2} if value == 9 else row,
        value=serdes.json,
        store="s",
    ),
    "final mean": lambda stream, _: final(
        stream.map_values(lambda number: number, value=INT), TUMBLING
    ).mean(store="s"),
    "sessions of means": lambda stream, _: (
        numbers(stream, INT).windowed_by(SESSIONS).mean(store="s")
    ),
    "final several aggregates": lambda stream, _: final(stream, TUMBLING).aggregate(
        **SEVERAL, store="s"
    ),
    "final sessions": lambda stream, _: final(stream, SESSIONS).count(store="s"),
    "final sessions in place": lambda stream, _: final(stream, SESSIONS).aggregate(
        lambda: {"n": 0},
        remembered,
        lambda key, one, other: {**other, "n": one["n"] + other["n"]},
        value=serdes.json,
        store="s",
    ),
    "sessions": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(SESSIONS)
        .aggregate(
            lambda: {"n": 0},
            remembered,
            lambda key, one, other: {**other, "n": one["n"] + other["n"]},
            value=serdes.json,
            store="s",
        )
    ),
    "sessions counted": lambda stream, _: (
        stream.group_by_key().windowed_by(SESSIONS).count(store="s")
    ),
    "sessions without grace": lambda stream, _: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=7))
        .count(store="s")
    ),
    "sessions reduced": lambda stream, _: (
        numbers(stream, INT)
        .windowed_by(SESSIONS)
        .reduce(lambda one, other: one + other, store="s")
    ),
    "sessions of several aggregates": lambda stream, _: (
        stream.group_by_key().windowed_by(SESSIONS).aggregate(**SEVERAL, store="s")
    ),
    "several by function": lambda stream, other: (
        stream.merge(other)
        .group_by_key()
        .windowed_by(HOPPING)
        .aggregate(
            list,
            lambda key, value, row: [*row[-3:], value],
            value=serdes.json,
            store="s",
        )
    ),
}
"""Operators whose rows change one by one."""
NEAR = JoinWindows(milliseconds=6, grace=ms(9))


def joined(kind: str) -> Build:
    """Return the join of two streams of this kind; of a stream with itself: `self`."""

    def build(stream: Any, other: Any) -> Any:
        how = "join" if kind == "self" else kind
        right = stream if kind == "self" else other
        results = getattr(stream, how)(
            right,
            lambda one, two: [one, two],
            windows=NEAR,
            value=serdes.json,
            store="s",
        )
        return SimpleNamespace(to_stream=lambda: results)

    return build


JOINS = {
    f"joined streams: {kind}": joined(kind)
    for kind in ("join", "left_join", "outer_join", "self")
}
CLOSED = until_window_closes()
SUPPRESSED: dict[str, Build] = {
    "suppressed count": lambda stream, _: (
        windowed(stream, HOPPING).count(store="s").suppress(CLOSED)
    ),
    "suppressed sum by function": lambda stream, _: (
        windowed(stream.map_values(lambda number: number, value=INT), TUMBLING)
        .reduce(lambda one, other: one + other, store="s")
        .suppress(CLOSED)
    ),
    "suppressed deleting": lambda stream, _: (
        windowed(stream, HOPPING)
        .aggregate(lambda: 0, left, value=INT, store="s")
        .suppress(CLOSED)
    ),
    "suppressed in place": lambda stream, _: (
        windowed(stream, TUMBLING)
        .aggregate(lambda: {"n": 0}, remembered, value=serdes.json, store="s")
        .suppress(CLOSED)
    ),
    "suppressed several aggregates": lambda stream, _: (
        windowed(stream, TUMBLING).aggregate(**SEVERAL, store="s").suppress(CLOSED)
    ),
    "suppressed sessions": lambda stream, _: (
        windowed(stream, SESSIONS).count(store="s").suppress(CLOSED)
    ),
    "suppressed for some time": lambda stream, _: (
        stream.group_by_key()
        .count(store="s")
        .suppress(until_time_limit(ms(10), max_records=3))
    ),
}
"""Operators whose updates are held back for longer than a commit."""
ALL = {**FLOWS, **FUNCTIONS, **SUPPRESSED, **JOINS}
OF_TWO_TOPICS = {"count of more", "several by function", "final hopping sum", *JOINS}

SHAPES: dict[str, Callable[[Any], Any]] = {
    "sink": lambda table: table.to_stream().to("out"),
    "sinks": lambda table: (table.to_stream().to("out"), table.to_stream().to("copy")),
    "mapped": lambda table: (
        table.to_stream().map_values(lambda number: number, value=serdes.json).to("out")
    ),
    "alone": lambda _: None,
}
"""Receivers of the updates of a table."""


@cache
def program(flow: str, shape: str, native: bool = True) -> Program:
    builder = StreamsBuilder("app")
    streams = [
        builder.stream(topic, key=serdes.raw, value=serdes.json)
        for topic in ("in", "more")
    ]
    SHAPES[shape](ALL[flow](*streams))
    if flow not in OF_TWO_TOPICS:
        streams[1].to("in-any-case")
    topology = builder.build()
    part = next(part for part in topology.subtopologies if part.stores)
    return compile_subtopology(
        topology,
        part,
        parts=native_parts() if native else None,
        may_drop=flow not in FLOWS,
    )


@dataclass(frozen=True)
class Batch:
    """Records, each (key, value, timestamp, operator times before it, headers)."""

    topic: str
    records: list[tuple[bytes | None, bytes | None, int, int, Headers | None]]


Step = Batch | str
"""A batch, `commit`, `abort`, or `full`: the buffers are checked."""


@dataclass
class Run:
    """A task, and all its results."""

    program: Program
    native: bool
    buffer: int
    caching: bool
    shared: bool
    seen: list[Any] = attribute(default_factory=list)

    def __post_init__(self) -> None:
        self.part = self.program.subtopology
        self.database = Database(Memory(), self.part.stores)
        self.offset = 0
        self.time = -1
        self.open()

    def open(self) -> None:
        """Open the task at the last commit."""
        tables = (
            native_tables(self.part, CONFIG, caching=self.caching)
            if self.native
            else NO_TABLES
        )
        assert not self.native or tables
        self.state = TaskState(
            self.database, self.part.stores, WHOLE, self.buffer, tables
        )
        self.bound = self.program.bind(
            self.state.stores, self.fail, caching=self.caching, shared=self.shared
        )
        self.bound.resume(IN, self.time)

    def fail(self, failure: Failure) -> None:
        self.seen.append(
            (
                failure.phase,
                failure.node,
                repr(failure.error),
                failure.offset,
                failure.key,
            )
        )

    def step(self, step: Step) -> None:
        if isinstance(step, Batch):
            self.process(step)
        elif step == "commit":
            self.commit()
        elif step == "abort":
            self.state.discard()
            self.open()
        else:
            self.state.full  # noqa: B018 it removes rows
            for _, table in sorted(self.state.stores.items()):
                self.seen.append(
                    [
                        (key, deepcopy(entry.value), entry.timestamp)
                        for key, entry in table.scan(None, None)
                    ]
                )

    def process(self, batch: Batch) -> None:
        if batch.topic not in self.part.topics:
            return
        timestamps = [row[2] for row in batch.records]
        headers = [row[4] for row in batch.records]
        times = list(accumulate(timestamps, max, initial=self.time))[1:]
        self.time = times[-1] if times else self.time
        offsets = list(range(self.offset, self.offset + len(times)))
        self.offset += len(times)
        nodes = self.bound._compiled.operator_times[batch.topic] if self.shared else ()
        columns = Columns(
            [row[0] for row in batch.records],
            [row[1] for row in batch.records],
            timestamps,
            offsets,
            times,
            headers if any(headers) else None,
            [[row[3] for row in batch.records] for _ in nodes],
        )
        try:
            self.bound.process(TopicPartition(batch.topic, 0), columns)
        except (TypeError, SerdeError) as error:  # nothing tells what the row was
            self.seen.append(repr(error))
            self.take_outputs()
            self.step("abort")

    def commit(self) -> None:
        try:
            self.bound.flush()
            changes: list[ChangelogBatch] = self.state.changes()
        except (SerdeError, StateError) as error:
            self.seen.append(repr(error))
            self.take_outputs()
            self.state.discard()
            self.open()
            return
        self.seen += changes
        self.take_outputs()
        self.state.commit(dict.fromkeys(self.state.stores, self.offset))
        for name in sorted(self.state.stores):
            rows = self.database.scan(name, range(256), None, None)
            self.seen.append(dict(rows))
        self.seen.append(self.bound.dropped)

    def take_outputs(self) -> None:
        for output in self.bound.outputs.values():
            self.seen.append(
                (
                    output.topic,
                    [*output.keys],
                    [*output.values],
                    [*output.timestamps],
                    output.headers,
                )
            )
            output.clear()


def check(
    flow: str,
    shape: str,
    steps: list[Step],
    *,
    buffer: int,
    caching: bool,
    shared: bool,
) -> None:
    """Compare both planes."""
    runs = [
        Run(program(flow, shape, native), native, buffer, caching, shared)
        for native in (False, True)
    ]
    for step in [*steps, "commit", "full"]:
        for run in runs:
            run.step(step)
        assert runs[0].seen == runs[1].seen


def known(flow: str, shape: str = "sink", *, caching: bool = True) -> bool:
    """Whether a flow's rows change by batches of records."""
    found = folds(program(flow, shape).subtopology, caching=caching)
    return not found["s"].by_record


@pytest.mark.parametrize("flow", FLOWS)
def test_the_flows_of_these_tests_are_known_folds(flow: str) -> None:
    assert known(flow)
    assert known(flow, "mapped")
    assert known(flow, caching=False) == ("count" in flow)
    assert not known(flow, "mapped", caching=False), (
        "what stands below would run behind the batch"
    )


@pytest.mark.parametrize("flow", SUPPRESSED)
def test_rows_whose_updates_are_suppressed_are_native(flow: str) -> None:
    assert folds(program(flow, "mapped").subtopology, caching=True)
    code = program(flow, "sink").compiled(
        True, False, False, frozenset(), frozenset({"s"})
    )
    closes = flow != "suppressed for some time"
    assert (".take(*updates)" in code.text) == closes
    assert (".columns(" in code.text) == closes


@pytest.mark.parametrize("flow", JOINS)
def test_the_sides_of_joins_have_native_rows(flow: str) -> None:
    found = folds(program(flow, "sink").subtopology, caching=False)
    assert len(found) == 2 or flow.endswith("self")


@pytest.mark.parametrize("flow", FUNCTIONS)
def test_the_rows_of_functions_change_one_by_one(flow: str) -> None:
    assert not known(flow, "mapped")
    assert not known(flow, "mapped", caching=False)


OTHERS: dict[str, Build] = {
    "of a table": lambda stream, _: (
        stream.group_by_key()
        .count(store="t")
        .group_by(lambda key, count: (key, count), key=serdes.raw, value=INT)
        .count(store="s")
    ),
    "sliding": lambda stream, _: windowed(stream, SlidingWindows(milliseconds=5)).count(
        store="s"
    ),
    "suppressed, then filtered": lambda stream, _: (
        windowed(stream, TUMBLING)
        .count(store="s")
        .suppress(CLOSED)
        .filter(lambda _, count: count > 1)
    ),
    "joined": lambda stream, other: (
        other.group_by_key()
        .count(store="s")
        .join(
            stream.group_by_key().count(store="t"),
            lambda one, two: one + two,
            value=INT,
        )
    ),
    "filtered": lambda stream, _: (
        stream.group_by_key().count(store="s").filter(lambda _, count: count > 1)
    ),
    "a filtered mean": lambda stream, _: (
        numbers(stream, INT).mean(store="s").filter(lambda _, mean: mean > 1)
    ),
}
"""Aggregations that are used by another node, or are no known fold."""


@pytest.mark.parametrize("other", OTHERS)
def test_other_aggregations_stay_live_objects(other: str) -> None:
    builder = StreamsBuilder("app")
    streams = [
        builder.stream(topic, key=serdes.raw, value=serdes.json)
        for topic in ("in", "more")
    ]
    OTHERS[other](*streams).to_stream().to("out")
    streams[1].to("in-any-case")
    for part in builder.build().subtopologies:
        assert "s" not in native_tables(part, CONFIG, caching=True)


def test_a_window_that_ends_behind_the_last_moment_there_is_is_never_closed() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=INT)
    stream.group_by_key().windowed_by(TimeWindows(seconds=5)).count(
        store="s"
    ).to_stream().to("out")
    found = outputs(
        builder.build(), *(("in", key, 1, (1 << 63) - 1) for key in ("a", "b"))
    )
    assert [value for _, value, _ in found] == [1, 1]


FLOATS = (0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16, 1e308, float(1 << 62), 5e-324)
LARGE = ((1 << 63) - 1, -(1 << 63), 1 << 62, (1 << 64) - 1, 1 << 63)
NO_NUMBERS = (None, b"null", b'"text"', b"[]", b"{", b"2.5")
CONVERTED = (b"true", b"3")
"""Values that change their type in the database: their results depend on how long a row
is in memory.
"""
KEYS = (None, b"", b"a", b"b", b"c", b"a much longer key than all of the others have")
TIGHT, ROOMY = 1500, 1 << 20
"""Bytes of rows in memory: with the first, rows of earlier commits are evicted."""


def value_of(dice: Random, flow: str, buffer: int) -> bytes | None:
    """Return JSON: mostly a valid number, or an object with such a part, sometimes
    something else.
    """
    number = number_of(dice, flow, buffer)
    if "part" not in flow or number is None or dice.random() < 0.05:
        return number
    return b'{"b": %d, "a": %s}' % (dice.randint(0, 2), number)


def number_of(dice: Random, flow: str, buffer: int) -> bytes | None:
    if dice.random() < 0.55:
        return serdes.json.encode(
            dice.choice(FLOATS) if "float" in flow else dice.randint(-9, 9)
        )
    if dice.random() < 0.3 and "float" not in flow:
        return serdes.json.encode(dice.choice(LARGE))
    return dice.choice(NO_NUMBERS if buffer == TIGHT else NO_NUMBERS + CONVERTED)


def step_of(dice: Random, flow: str, buffer: int) -> Step:
    if dice.random() < 0.3:
        return dice.choice(("commit", "full", "abort"))
    headers: Sequence[Headers | None] = (None,)
    if dice.random() < 0.3:
        headers = (*[None] * 9, [("h", b"1")], [("h", b"2"), ("i", None)])
    records = [
        (
            dice.choice(KEYS),
            value_of(dice, flow, buffer),
            dice.randint(0, 60),
            dice.randint(-1, 40),
            dice.choice(headers),
        )
        for _ in range(dice.randint(1, 12))
    ]
    return Batch(dice.choice(("in", "in", "more")), records)


@pytest.mark.parametrize("flow", ALL)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(0, 12),
    shape=st.sampled_from(sorted(SHAPES)),
    buffer=st.sampled_from([TIGHT, ROOMY]),
    caching=st.booleans(),
    shared=st.booleans(),
)
def test_rows_in_native_memory_give_what_live_objects_give(
    flow: str,
    seed: int,
    length: int,
    shape: str,
    buffer: int,
    caching: bool,
    shared: bool,
) -> None:
    """The records are drawn from a seed: Hypothesis took four times as long to draw
    them as the test runs.
    """
    dice = Random(seed)
    steps = [step_of(dice, flow, buffer) for _ in range(length)]
    note(f"{steps}")
    check(flow, shape, steps, buffer=buffer, caching=caching, shared=shared)


@pytest.mark.parametrize(
    "flow", ["count", "hopping count", "sum", "mean", "hopping in place"]
)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_many_keys_of_any_length_are_found_again_among_those_that_were_evicted(
    flow: str, seed: int
) -> None:
    """Short places lie in their rows, long ones beside; eviction frees places among
    hundreds.
    """
    dice = Random(seed)
    keys = [
        dice.randbytes(dice.choice((0, 1, 8, 20, 21, 22, 28, 29, 30, 60)))
        for _ in range(1500)
    ]

    def batch(begin: int) -> Batch:
        records = [
            (
                dice.choice(keys),
                b"%d" % dice.randint(-9, 9),
                dice.randint(begin, begin + 30),
            )
            for _ in range(800)
        ]
        return Batch("in", [(*record, -1, None) for record in records])

    steps: list[Step] = []
    for begin in range(0, 60, 10):
        steps += [batch(begin), dice.choice(("commit", "commit", "abort")), "full"]
    check(flow, "sink", steps, buffer=50_000, caching=True, shared=False)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("flow", ["tumbling count", "tumbling sum by function"])
def test_windows_that_were_evicted_are_read_again(flow: str, native: bool) -> None:
    """A window that is newer than all in the database is not looked up, unless some of
    its rows have left the buffer.
    """
    run = Run(program(flow, "alone", native), native, TIGHT, caching=True, shared=False)
    keys = [b"%d" % number for number in range(50)]
    for _ in range(3):
        run.step(Batch("in", [(key, b"1", 5, -1, None) for key in keys]))
        run.step("commit")
        assert len(run.state.stores["s"].entries) < len(keys)
    stored = run.database.scan("s", range(256), None, None)
    assert [data[8:] for _, data in stored] == [INT.encode(3)] * len(keys)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("buffer", [TIGHT, ROOMY])
@pytest.mark.parametrize("then", ["full", "abort"])
def test_sessions_of_earlier_commits_are_merged(
    native: bool, buffer: int, then: str
) -> None:
    """Also those that were evicted, and those before the task was opened anew."""
    run = Run(
        program("sessions counted", "alone", native),
        native,
        buffer,
        caching=True,
        shared=False,
    )
    keys = [b"%d" % number for number in range(50)]
    for time in (5, 8, 11):
        run.step(Batch("in", [(key, b"1", time, -1, None) for key in keys]))
        run.step("commit")
        run.step(then)
    stored = dict(run.database.scan("s", range(256), None, None))
    assert stored == {
        session_key(key, 5, 11): TIMESTAMP.pack(11) + INT.encode(3) for key in keys
    }


@pytest.mark.parametrize("shape", ["sink", "mapped"])
@pytest.mark.parametrize("then", ["full", "abort"])
@pytest.mark.parametrize(
    "flow", ["final count", "final in place", "final several aggregates"]
)
def test_windows_that_were_evicted_close(flow: str, then: str, shape: str) -> None:
    """Also those that began before the task was opened anew. Windows leave in the order
    of their starts and keys.
    """
    keys = [b"%d" % number for number in range(50)]

    def batch(time: int, *some: bytes) -> Batch:
        return Batch("in", [(key, b"1", time, -1, None) for key in some])

    steps: list[Step] = [
        batch(15, *keys),
        batch(5, *keys),
        "commit",
        then,
        batch(16, *keys[::2]),
        batch(5, *keys[::3]),
        "commit",
        "full",
        batch(18, b"1"),
        batch(40, b"1"),
    ]
    check(flow, shape, steps, buffer=TIGHT, caching=True, shared=False)
    run = Run(program(flow, shape), True, TIGHT, caching=True, shared=False)
    for step in steps:
        run.step(step)
    output = run.bound.outputs["out"]
    closed = [window_key(key, start) for start in (0, 10) for key in sorted(keys)]
    assert [*output.keys] == closed


def test_final_results_leave_as_columns() -> None:
    run = Run(
        program("final in place", "sink"), True, ROOMY, caching=True, shared=False
    )
    assert isinstance(run.state.stores["s"], NativeWindowTable)
    code = run.program.compiled(True, False, False, frozenset(), frozenset({"s"}))
    assert ".columns(" in code.text
