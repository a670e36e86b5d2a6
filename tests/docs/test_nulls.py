"""The guide's table of nulls: exactly the listed nulls are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from tests.docs.pages import ROOT, table_headed

ROWS = table_headed(
    ROOT / "docs" / "guide" / "concepts.md",
    "operator",
    "null key",
    "null value",
    "a late record",
    "the result's timestamp",
)


def stream(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.stream(topic, key=serdes.text, value=serdes.int64)


def table(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.table(topic, key=serdes.text, value=serdes.int64)


def pair(one: Any, other: Any) -> list[Any]:
    return [one, other]


def counted(windows: Any) -> Callable[[StreamsBuilder], Any]:
    return lambda builder: stream(builder).group_by_key().windowed_by(windows).count()


PROGRAMS: dict[str, Callable[[StreamsBuilder], Any]] = {
    "`filter`": lambda builder: stream(builder).filter(lambda _key, _value: True),
    "`table`": table,
    "`count`": lambda builder: stream(builder).group_by_key().count(),
    "the same, in `TimeWindows`": counted(TimeWindows(milliseconds=10)),
    "the same, in `SlidingWindows`": counted(SlidingWindows(milliseconds=10)),
    "the same, in `SessionWindows`": counted(SessionWindows(milliseconds=10)),
    "stream with table": lambda builder: stream(builder).join(
        table(builder, "other"), pair, value=serdes.json
    ),
    "stream with global table": lambda builder: stream(builder).join(
        builder.global_table("other", key=serdes.text, value=serdes.int64),
        pair,
        on=lambda _, value: str(value),
        value=serdes.json,
    ),
    "stream with stream": lambda builder: stream(builder).join(
        stream(builder, "other"),
        pair,
        windows=JoinWindows(milliseconds=5),
        value=serdes.json,
    ),
    "table with table": lambda builder: table(builder).join(
        table(builder, "other"), pair, value=serdes.json
    ),
    "`foreign_key=`": lambda builder: table(builder).join(
        table(builder, "other"), pair, foreign_key=str, value=serdes.json
    ),
}


@pytest.mark.parametrize("operator", PROGRAMS)
@pytest.mark.parametrize(
    ("column", "record", "reason"),
    [(1, (None, 1, 20), "null-key"), (2, ("a", None, 20), "null-value")],
)
def test_what_the_table_says_is_dropped_is_counted_as_dropped(
    operator: str, column: int, record: tuple[Any, Any, int], reason: str
) -> None:
    (row,) = [row for row in ROWS if row[0].startswith(operator)]
    builder = StreamsBuilder("nulls")
    PROGRAMS[operator](builder)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.text, serdes.int64).send(*record)
        dropped = [why for _, why in driver.dropped]
    says = row[column].startswith(("dropped", "inner: dropped"))
    assert dropped == ([reason] if says else [])
