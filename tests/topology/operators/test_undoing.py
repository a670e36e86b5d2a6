"""An aggregator that changes its aggregate in place, and then raises, leaves the row as
it was.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coopstreams import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from coopstreams.common.config import Config
from coopstreams.testing import TopologyTestDriver
from coopstreams.testing.compiled_programs import Identity
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.graph.topology import Topology

SKIP = {"processing.exception.handler": "continue"}


def add(_: Any, value: Any, total: Any) -> Any:
    """Count the record before it may fail."""
    total["count"] += 1
    total["sum"] += value["n"]
    return total


def take(_: Any, value: Any, total: Any) -> Any:
    """Take a record out of the totals."""
    total["count"] -= 1
    total["sum"] -= value["n"]
    return total


def start() -> dict[str, int]:
    """Return the totals of no record."""
    return {"count": 0, "sum": 0}


def merged(_: Any, one: Any, other: Any) -> Any:
    """Return the totals of two sessions."""
    return {name: one[name] + other[name] for name in one}


def put_together(one: Any, other: Any) -> Any:
    """Append the number of a record to a list before it may fail."""
    one["all"] = [*one.get("all", []), other["n"]]
    one["n"] += other["n"]
    return one


def totals(kind: str) -> Topology:
    """Return a program that keeps totals by key, in the store "totals"."""
    builder = StreamsBuilder("totals")
    if kind == "table":
        table = builder.table("in", key=serdes.text, value=serdes.json, store="rows")
        grouped = table.group_by(
            lambda key, value: ("all", value), key=serdes.text, value=serdes.json
        )
        grouped.aggregate(start, add, take, value=serdes.json, store="totals")
        return builder.build()
    stream = builder.stream("in", key=serdes.text, value=serdes.json).group_by_key()
    match kind:
        case "windows":
            stream.windowed_by(TimeWindows(seconds=10)).aggregate(
                start, add, value=serdes.json, store="totals"
            )
        case "hopping":
            stream.windowed_by(
                TimeWindows(timedelta(seconds=10), advance=timedelta(seconds=5))
            ).aggregate(start, add, value=serdes.json, store="totals")
        case "sliding":
            stream.windowed_by(SlidingWindows(seconds=10)).aggregate(
                start, add, value=serdes.json, store="totals"
            )
        case "sessions":
            stream.windowed_by(SessionWindows(seconds=10)).aggregate(
                start, add, merged, value=serdes.json, store="totals"
            )
        case "reduce":
            stream.reduce(put_together, store="totals")
        case "cogroup":
            stream.cogroup(add).aggregate(start, value=serdes.json, store="totals")
        case _:
            stream.aggregate(start, add, value=serdes.json, store="totals")
    return builder.build()


KINDS = [
    "rows",
    "windows",
    "hopping",
    "sliding",
    "sessions",
    "reduce",
    "cogroup",
    "table",
]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_fails_behind_a_change_in_place_changes_nothing(
    kind: str, caching: bool
) -> None:
    found = []
    for numbers in ([1, "no number", 2, "none", 3], [1, 2, 3]):
        with TopologyTestDriver(totals(kind), config=SKIP, caching=caching) as driver:
            for number in numbers:
                driver.input("in").send(
                    f"k{number}" if kind == "table" else "k",
                    {"n": number},
                    timestamp=20_000,
                )
                driver.commit()
            found.append(driver.store("totals").all())
            assert len(driver.failures) == len(numbers) - 3
    assert found[0] == found[1]


def test_where_a_failure_ends_the_task_nothing_is_kept_for_it() -> None:
    topology = totals("rows")
    (part,) = topology.subtopologies
    assert (
        "kept_"
        in compile_subtopology(topology, part, may_drop=True).compiled(False).text
    )
    assert "kept_" not in compile_subtopology(topology, part).compiled(False).text


def test_a_handler_of_bytes_that_cannot_be_read_keeps_nothing_for_the_calls() -> None:
    topology = totals("rows")
    (part,) = topology.subtopologies

    def of(phase: str) -> Identity:
        settings = {
            "bootstrap.servers": "none",
            f"{phase}.exception.handler": "continue",
        }
        return Identity(topology, part, Config.of(settings, "totals"))

    assert not of("deserialization").may_drop
    assert of("processing").may_drop


def test_where_nothing_tells_what_the_row_was_the_record_is_not_dropped() -> None:
    def gather(_: Any, value: Any, total: Any) -> Any:
        total["all"] = {*total.get("all", ()), value["n"]}  # a set is no JSON
        total["sum"] = total.get("sum", 0) + value["n"]
        return total

    builder = StreamsBuilder("totals")
    stream = builder.stream("in", key=serdes.text, value=serdes.json).group_by_key()
    stream.aggregate(dict, gather, value=serdes.json, store="totals")
    driver = TopologyTestDriver(builder.build(), config=SKIP)
    driver.input("in").send("k", {"n": 1})
    with pytest.raises(TypeError, match="unsupported operand"):
        driver.input("in").send("k", {"n": "no number"})
    assert driver.failures == []
    driver.close()
