"""Fingerprints of sub-topologies: they cover all that changes the meaning of a task,
and nothing that differs by process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Optional
from zoneinfo import ZoneInfo

import msgspec
import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.fields import field
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.topic_patterns import matched
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import Processor
from coopstreams.topology.records import Record
from coopstreams.topology.suppression import until_time_limit, until_window_closes
from coopstreams.topology.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Windows,
)

Text = KStream[str, str]


def of(
    build: Callable[[StreamsBuilder], object], application: str = "app"
) -> tuple[str, ...]:
    """Return the fingerprints of a program, each sub-topology with two partitions."""
    builder = StreamsBuilder(application)
    build(builder)
    return prints(builder.build())


def prints(topology: Topology, partitions: int = 2) -> tuple[str, ...]:
    return fingerprints(topology, [partitions] * len(topology.subtopologies))


def text(builder: StreamsBuilder, topic: str = "in", **source: Any) -> Text:
    return builder.stream(topic, key=serdes.text, value=serdes.text, **source)


class Days(Windows):
    """User-defined windows, not a dataclass."""

    __slots__ = ("grace_ms", "size_ms")

    def __init__(self, size_ms: int = 86_400_000) -> None:
        self.size_ms, self.grace_ms = size_ms, 0


@dataclass(frozen=True)
class DaysOf(Windows):
    zone: Any
    size_ms: int = 86_400_000
    grace_ms: int = 0


class Passing(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def windowed(windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: (
        text(builder).group_by_key().windowed_by(windows).count(store="counts")
    )


def joined(
    windows: JoinWindows, kind: Literal["join", "left_join"] = "join"
) -> Callable[[StreamsBuilder], object]:
    return lambda b: getattr(text(b), kind)(
        text(b, "other"), str.__add__, windows=windows, value=serdes.text, name="pairs"
    ).to("out")


MINUTE = timedelta(minutes=1)
DIFFERENT: dict[str, Callable[[StreamsBuilder], object]] = {
    "a count": lambda b: text(b).group_by_key().count(store="counts"),
    "another source": lambda b: text(b, "other").group_by_key().count(store="counts"),
    "two sources": lambda b: (
        b.stream(["in", "other"], key=serdes.text, value=serdes.text)
        .group_by_key()
        .count(store="counts")
    ),
    "a pattern": lambda b: (
        b.stream(re.compile("in.*"), key=serdes.text, value=serdes.text)
        .group_by_key()
        .count(store="counts")
    ),
    "another pattern": lambda b: (
        b.stream(re.compile("in-.*"), key=serdes.text, value=serdes.text)
        .group_by_key()
        .count(store="counts")
    ),
    "a timestamp extractor": lambda b: (
        text(b, timestamp=lambda record: record.timestamp)
        .group_by_key()
        .count(store="counts")
    ),
    "another key serde": lambda b: (
        b.stream("in", key=serdes.raw, value=serdes.text)
        .group_by_key()
        .count(store="counts")
    ),
    "another value serde": lambda b: (
        b.stream("in", key=serdes.text, value=serdes.json)
        .group_by_key()
        .count(store="counts")
    ),
    "another store": lambda b: text(b).group_by_key().count(store="numbers"),
    "a reduce": lambda b: (
        text(b)
        .map_values(len, value=serdes.int64)
        .group_by_key()
        .reduce(int.__add__, store="counts")
    ),
    "an aggregate": lambda b: (
        text(b)
        .group_by_key()
        .aggregate(int, lambda k, v, n: n + 1, value=serdes.int64, store="counts")
    ),
    "one operator more": lambda b: (
        text(b).filter(lambda k, v: True).group_by_key().count(store="counts")
    ),
    "the opposite": lambda b: (
        text(b).filter_not(lambda k, v: True).group_by_key().count(store="counts")
    ),
    "a sink": lambda b: (
        text(b).group_by_key().count(store="counts").to_stream().to("out")
    ),
    "another sink": lambda b: (
        text(b).group_by_key().count(store="counts").to_stream().to("out-2")
    ),
    "a partitioner": lambda b: text(b).to("out", partitioner=lambda *_: 0),
    "no partitioner": lambda b: text(b).to("out"),
    "tumbling windows": windowed(TimeWindows(minutes=1)),
    "longer windows": windowed(TimeWindows(minutes=2)),
    "hopping windows": windowed(TimeWindows(minutes=2, advance=MINUTE)),
    "windows with grace": windowed(TimeWindows(minutes=1, grace=MINUTE)),
    "sliding windows": windowed(SlidingWindows(difference=MINUTE)),
    "sessions": windowed(SessionWindows(gap=MINUTE)),
    "windows of a user": windowed(Days()),
    "longer windows of a user": windowed(Days(2 * 86_400_000)),
    "windows of a zone": windowed(DaysOf(ZoneInfo("Europe/Berlin"))),
    "windows of another zone": windowed(DaysOf(ZoneInfo("Asia/Tokyo"))),
    "closed windows": lambda b: (
        windowed_counts(b)
        .suppress(until_window_closes(), name="held")
        .to_stream()
        .to("out")
    ),
    "slow updates": lambda b: (
        windowed_counts(b)
        .suppress(until_time_limit(MINUTE), name="held")
        .to_stream()
        .to("out")
    ),
    "slower updates": lambda b: (
        windowed_counts(b)
        .suppress(until_time_limit(2 * MINUTE), name="held")
        .to_stream()
        .to("out")
    ),
    "a join": joined(JoinWindows(MINUTE)),
    "a wider join": joined(JoinWindows(2 * MINUTE)),
    "a join with grace": joined(JoinWindows(MINUTE, grace=MINUTE)),
    "a left join": joined(JoinWindows(MINUTE), "left_join"),
    "a table": lambda b: b.table(
        "in", key=serdes.text, value=serdes.text, store="rows"
    ),
    "a versioned table": lambda b: b.table(
        "in", key=serdes.text, value=serdes.text, store="rows", history=MINUTE
    ),
    "a longer history": lambda b: b.table(
        "in", key=serdes.text, value=serdes.text, store="rows", history=2 * MINUTE
    ),
    "a processor": lambda b: (
        text(b)
        .process(Passing, key=serdes.text, value=serdes.text, by_key=False)
        .to("out")
    ),
    "a processor by key": lambda b: (
        text(b)
        .process(Passing, key=serdes.text, value=serdes.text, by_key=True)
        .to("out")
    ),
    "a global table": lambda b: looking_up(b, "rows"),
    "another global table": lambda b: looking_up(b, "other-rows"),
}


def windowed_counts(builder: StreamsBuilder) -> Any:
    return (
        text(builder)
        .group_by_key()
        .windowed_by(TimeWindows(minutes=1))
        .count(store="counts")
    )


def looking_up(builder: StreamsBuilder, topic: str) -> None:
    rows = builder.global_table(topic, key=serdes.text, value=serdes.text, store="rows")
    text(builder).join(rows, str.__add__, on=lambda k, v: v, value=serdes.text).to(
        "out"
    )


def test_whatever_makes_a_task_another_one_is_another_fingerprint() -> None:
    seen: dict[tuple[str, ...], str] = {}
    for name, build in DIFFERENT.items():
        assert seen.setdefault(of(build), name) == name
    assert {len(print_) for made in seen for print_ in made} == {16}


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_same_program_built_again_has_the_same(name: str) -> None:
    assert of(DIFFERENT[name]) == of(DIFFERENT[name])


def test_functions_are_not_in_it() -> None:
    def program(
        mapper: Callable[[str], str], chooser: Callable[[str, str], bool]
    ) -> Callable[[StreamsBuilder], object]:
        return lambda b: (
            text(b).map_values(mapper, value=serdes.text).filter(chooser).to("out")
        )

    assert of(program(str.upper, lambda k, v: True)) == of(
        program(lambda v: v + "!", lambda k, v: v > k)
    )


def test_conditions_are_functions() -> None:
    def program(condition: Any) -> Callable[[StreamsBuilder], object]:
        return lambda b: (
            b.stream("in", key=serdes.text, value=serdes.json)
            .filter(condition)
            .to("out")
        )

    assert of(program(field("amount") > 100)) == of(program(field("amount") > 200))


def test_generated_names_are_not_in_it_but_where_they_name_a_topic() -> None:
    def counts(builder: StreamsBuilder) -> None:
        text(builder, "in").group_by_key().count(store="counts")

    def behind_another(builder: StreamsBuilder) -> None:
        text(builder, "first").peek(print).to("out")
        counts(builder)

    assert of(behind_another)[1:] == of(counts)

    def unnamed(builder: StreamsBuilder) -> None:
        text(builder, "in").group_by_key().count()

    def unnamed_behind_another(builder: StreamsBuilder) -> None:
        text(builder, "first").peek(print).to("out")
        unnamed(builder)

    assert of(unnamed_behind_another)[1:] != of(unnamed), (
        "its changelog has another name"
    )


def test_where_a_store_is_kept_is_not_in_it() -> None:
    def program(store_type: str | None) -> Callable[[StreamsBuilder], object]:
        return lambda b: (
            text(b)
            .group_by_key()
            .count(store=Materialized("counts", store_type=store_type))
        )

    assert of(program("in_memory")) == of(program(None))


def test_both_sides_of_a_repartition_topic_change_with_its_serde() -> None:
    def program(serde: Any) -> Callable[[StreamsBuilder], object]:
        return lambda b: (
            text(b)
            .select_key(lambda k, v: v, key=serde)
            .group_by_key()
            .count(store="counts")
        )

    one, other = of(program(serdes.text)), of(program(serdes.json))
    assert len(one) == len(other) == 2
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_topics_that_match_a_pattern_now_are_not_in_it_nor_their_partitions() -> None:
    builder = StreamsBuilder("app")
    builder.stream(
        re.compile("orders-.*"), key=serdes.text, value=serdes.text
    ).select_key(lambda k, v: v).group_by_key(key=serdes.text).count(store="counts")
    built = builder.build()
    early, late = matched(built, []), matched(built, ["orders-a", "orders-b", "others"])
    assert early.subtopologies[0].topics != late.subtopologies[0].topics
    assert fingerprints(early, [0, 0]) == fingerprints(late, [3, 3])


def test_partition_counts_are_in_it_where_they_cannot_change() -> None:
    builder = StreamsBuilder("app")
    text(builder).group_by_key().count(store="counts")
    assert prints(builder.build(), 2) != prints(builder.build(), 3)


def test_an_optimisation_is_in_it_where_it_changes_what_is_kept() -> None:
    def table(builder: StreamsBuilder) -> None:
        builder.table("in", key=serdes.text, value=serdes.text, store="rows")

    def counts(builder: StreamsBuilder) -> None:
        text(builder).group_by_key().count(store="counts")

    for build, same in ((table, False), (counts, True)):
        builder = StreamsBuilder("app")
        build(builder)
        topology = builder.build()
        assert (
            prints(topology.optimized("all")) == prints(topology.optimized("none"))
        ) is same


class Order(msgspec.Struct):
    amount: int


def test_names_of_types_have_no_module_and_are_the_same_in_every_python() -> None:
    assert serdes.json(Order).name == "json(Order)"
    assert serdes.json(list[Order]).name == "json(list[Order])"
    assert serdes.json(dict[str, Order | None]).name == "json(dict[str, Order | None])"
    assert serdes.json(Optional[Order]).name == "json(Order | None)"  # noqa: UP045 as programs write it, and str() of it depends on the Python
    assert serdes.json(tuple[Order, ...]).name == "json(tuple[Order, ...])"
    assert serdes.json(Literal["a", "b"]).name == "json(Literal['a', 'b'])"


PROGRAM = """
import dataclasses, sys
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.windows import Windows

@dataclasses.dataclass
class Order:
    amount: int

class Days(Windows):
    def __init__(self):
        self.size_ms, self.grace_ms, self.zones = 86_400_000, 0, {"a", "b", "c", "d"}

@dataclasses.dataclass(frozen=True)
class DaysOf(Windows):
    size_ms: int = 86_400_000
    grace_ms: int = 0
    zones: frozenset[str] = frozenset("abcdef")
    of: object = dataclasses.field(default_factory=object, compare=False)

def topology():
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json(list[Order]))
    orders.group_by_key().windowed_by(Days()).count(store="one")
    orders.group_by_key().windowed_by(DaysOf()).count(store="two")
    orders.group_by(lambda k, v: v, key=serdes.json(Order | None)).count(store="three")
    return builder.build()
"""


@pytest.mark.ci
def test_it_is_the_same_in_another_process_from_another_path(tmp_path: Path) -> None:
    found = set()
    for number, module in enumerate(("orders", "warehouse.orders", "__main__")):
        folder = tmp_path / str(number)
        path = folder / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        run = "import sys; print(fingerprints(topology(), [1, 1]))"
        path.write_text(PROGRAM + (run if module == "__main__" else ""))
        command = (
            [str(path)]
            if module == "__main__"
            else ["-c", f"from {module} import *; {run}"]
        )
        environment = os.environ | {
            "PYTHONHASHSEED": str(number),
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        }
        found.add(
            subprocess.run(
                [sys.executable, *command],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
    assert len(found) == 1
    assert "(" in found.pop()
