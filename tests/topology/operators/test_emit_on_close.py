"""Emit on close: a window is forwarded once, when it is closed, by the aggregation
itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
)
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms
from tests.topology.operators.results import outputs

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 80)), max_size=20)


@cache
def finals(windows: Any, *, suppressed: bool = False) -> Topology:
    builder = StreamsBuilder("app")
    group = (
        builder.stream("in", key=serdes.text, value=serdes.text)
        .group_by_key()
        .windowed_by(windows)
    )
    table = (
        group.count().suppress(until_window_closes())
        if suppressed
        else group.emit_strategy("on_window_close").count()
    )
    table.to_stream().to("out")
    return builder.build()


def run(
    topology: Topology, records: list[tuple[str, int]], **options: Any
) -> list[tuple[str, Any, int]]:
    return outputs(
        topology, *(("in", key, "", timestamp) for key, timestamp in records), **options
    )


def test_a_window_is_forwarded_when_it_is_closed_also_with_the_shortest_retention() -> (
    None
):
    records = [("b", 1), ("a", 2), ("b", 3), ("a", 12), ("a", 25)]
    assert run(finals(TimeWindows(milliseconds=10)), records) == [
        ("[a@0/10]", 1, 2),
        ("[b@0/10]", 2, 3),
        ("[a@10/20]", 1, 12),
    ]


def test_a_session_is_forwarded_when_no_record_can_extend_it() -> None:
    assert run(
        finals(SessionWindows(milliseconds=5)),
        [("a", 1), ("a", 4), ("b", 9), ("b", 10)],
    ) == [("[a@1/4]", 2, 4)]


def test_a_sliding_window_is_closed_after_its_end() -> None:
    assert run(
        finals(SlidingWindows(milliseconds=5)), [("a", 10), ("b", 15), ("b", 16)]
    ) == [
        ("[a@5/10]", 1, 10),
        ("[b@10/15]", 1, 15),
    ]


def test_there_are_two_strategies() -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.text)
    with pytest.raises(TopologyError, match="on_window_close"):
        stream.group_by_key().windowed_by(TimeWindows(milliseconds=1)).emit_strategy(
            "sometimes"  # type: ignore[arg-type]
        )


@pytest.mark.ci
@given(
    RECORDS,
    st.integers(1, 10),
    st.integers(0, 10),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_it_forwards_what_suppress_would(
    records: list[tuple[str, int]], advance: int, grace: int, ranges: int, caching: bool
) -> None:
    windows = TimeWindows(milliseconds=10, advance=ms(advance), grace=ms(grace))
    assert run(finals(windows), records) == run(
        finals(windows, suppressed=True), records
    )
    assert sorted(run(finals(windows), records)) == sorted(
        run(finals(windows), records, ranges=ranges, caching=caching)
    )
