"""`mean`: a table of floats, whose rows are totals and counts."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KGroupedStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.known_folds import totals
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms
from tests.topology.operators.conftest import run

WINDOWS: dict[str, Any] = {
    "tumbling": TimeWindows(milliseconds=10, grace=ms(10)),
    "sliding": SlidingWindows(milliseconds=10, grace=ms(10)),
    "sessions": SessionWindows(milliseconds=10, grace=ms(10)),
}


@cache
def means(windows: str | None = None) -> Topology:
    builder = StreamsBuilder("app")
    group: KGroupedStream[str, float] = builder.stream(
        "in", key=serdes.text, value=serdes.float64
    ).group_by_key()
    table: Any = (
        group if windows is None else group.windowed_by(WINDOWS[windows])
    ).mean(store="means")
    table.to_stream().to("out")
    return builder.build()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6)), max_size=12),
    st.sampled_from([1, 3]),
)
def test_a_row_is_the_mean_of_its_numbers(
    records: list[tuple[str, float]], ranges: int
) -> None:
    with TopologyTestDriver(means(), ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.float64)
        for key, number in records:
            topic.send(key, number)
        driver.commit()
        found = driver.output("out", serdes.text, serdes.float64).latest()
    numbers = {
        key: [number for of, number in records if of == key] for key, _ in records
    }
    assert found == {key: pytest.approx(fmean(of)) for key, of in numbers.items()}


def test_integers_have_a_mean_with_a_fraction_and_null_values_have_no_weight(
    flow: Any,
) -> None:
    records = (("a", 1, 0), ("a", None, 1), ("a", 2, 2), ("b", None, 3))
    assert flow(lambda stream: stream.group_by_key().mean(), *records) == [
        ("a", 1.0, 0),
        ("a", 1.5, 2),
    ]


@pytest.mark.parametrize(
    ("windows", "latest"),
    [
        ("tumbling", {"[a@20/30]": 3.0, "[a@30/40]": 9.0}),
        (
            "sliding",
            {
                "[a@12/22]": 1.0,
                "[a@14/24]": 3.0,
                "[a@22/32]": 5.0,
                "[a@23/33]": 7.0,
                "[a@25/35]": 9.0,
            },
        ),
        ("sessions", {"[a@22/32]": 5.0}),
    ],
)
def test_windows_have_means(windows: str, latest: dict[str, float]) -> None:
    with TopologyTestDriver(means(windows)) as driver:
        topic = driver.input("in", serdes.text, serdes.float64)
        for number, timestamp in (1.0, 22), (9.0, 32), (5.0, 24):
            topic.send("a", number, timestamp)
        assert {
            str(row.key): row.value[0] / row.value[1]
            for row in driver.store("means").all()
        } == latest


def test_what_is_no_number_fails_its_record() -> None:
    with pytest.raises(ProcessingError, match="float"):
        run(lambda stream: stream.group_by_key().mean(), ("a", "1.5", 0))


def test_a_row_has_total_and_count() -> None:
    with TopologyTestDriver(means()) as driver:
        topic = driver.input("in", serdes.text, serdes.float64)
        topic.send("a", 1.0)
        topic.send("a", 2.5)
        assert driver.store("means").get("a") == (3.5, 2)
    assert totals.deserialize(totals.serialize((3.5, 2))) == (3.5, 2)
    assert totals.serialize((3.5, 2)) == serdes.float64.serialize(
        3.5
    ) + serdes.int64.serialize(2)
