"""Cogroup: several streams are aggregated into one table, each by a function of its
own.
"""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import (
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from tests.topology.operators.results import outputs


def earn(_: str, value: int, total: int) -> int:
    return total + value


def take(_: str, value: int, total: int) -> int:
    return total - value


def balance(windows: Any = None, **more: Any) -> Topology:
    builder = StreamsBuilder("app")
    paid = builder.stream("paid", key=serdes.text, value=serdes.int64).group_by_key()
    spent = builder.stream("spent", key=serdes.text, value=serdes.int64).group_by_key()
    both: Any = paid.cogroup(earn).cogroup(spent, take)
    table: KTable[Any, int] = (
        both.windowed_by(windows) if windows else both
    ).aggregate(int, **more, value=serdes.int64, store="balance")
    table.to_stream().to("out")
    return builder.build()


def test_every_stream_updates_the_row_of_its_key() -> None:
    records = [("paid", "a", 5, 1), ("spent", "a", 2, 2), ("paid", "b", 1, 3)]
    assert outputs(balance(), *records) == [("a", 5, 1), ("a", 3, 2), ("b", 1, 3)]
    assert outputs(balance(), *records, caching=True) == [("a", 3, 2), ("b", 1, 3)]


def test_it_works_in_all_windows() -> None:
    records = [("paid", "a", 5, 11), ("spent", "a", 2, 12), ("paid", "a", 1, 23)]
    assert outputs(balance(TimeWindows(milliseconds=10)), *records) == [
        ("[a@10/20]", 5, 11),
        ("[a@10/20]", 3, 12),
        ("[a@20/30]", 1, 23),
    ]
    sessions = balance(
        SessionWindows(milliseconds=5), merger=lambda _, one, other: one + other
    )
    assert outputs(sessions, *records, ranges=3) == [
        ("[a@11/11]", 5, 11),
        ("[a@11/11]", None, 11),
        ("[a@11/12]", 3, 12),
        ("[a@23/23]", 1, 23),
    ]
    assert outputs(balance(SlidingWindows(milliseconds=5)), *records[:2]) == [
        ("[a@6/11]", 5, 11),
        ("[a@12/17]", -2, 12),
        ("[a@7/12]", 3, 12),
    ]


def test_keys_must_be_written_alike() -> None:
    builder = StreamsBuilder("app")
    one = builder.stream("one", key=serdes.text, value=serdes.int64).group_by_key()
    other: Any = builder.stream(
        "other", key=serdes.json, value=serdes.int64
    ).group_by_key()
    with pytest.raises(TopologyError, match="equal keys have different bytes"):
        one.cogroup(add).cogroup(other, add).aggregate(int, value=serdes.int64)


def add(_: str, value: int, total: int) -> int:
    return total + value
