"""Calls that stay under way in the test driver, and end in an order chosen by a seed."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    CallContext,
    Record,
    StreamsBuilder,
    TimeWindows,
    key_value_store,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology

Sent = Sequence[tuple[str, int, int]]
"""Key, value, timestamp."""
SENT = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 20)),
    max_size=12,
)
SEEDS = st.integers(0, 1 << 16)


async def doubled(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


@cache
def program(order: Any = "key") -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    asked = stream.map_values_async(doubled, value=serdes.int64, order=order)
    asked.to("out")
    windows = TimeWindows(milliseconds=5, grace=timedelta(milliseconds=5))
    asked.group_by_key().windowed_by(windows).reduce(
        lambda total, more: total + more
    ).to_stream().to("sums")
    return builder.build()


async def numbered(record: Record[str, int], context: CallContext[str, int]) -> None:
    row = context.store("seen")
    await asyncio.sleep(0)
    count = (row.get() or 0) + 1
    row.put(count)
    context.forward(record.with_value(10 * count + record.value))


@cache
def stateful() -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    seen = key_value_store("seen", key=serdes.text, value=serdes.int64)
    stream.process_async(
        numbered, stores=[seen], key=serdes.text, value=serdes.int64
    ).to("out")
    return builder.build()


def outcome(
    topology: Topology, sent: Sent, seed: int | None, *, ranges: int = 1, at: int = 0
) -> dict[str, Any]:
    """Return the results of each topic and key, in order; calls are settled once in
    between, and at the end.
    """
    with TopologyTestDriver(topology, ranges=ranges, calls_seed=seed) as driver:
        for number, (key, value, timestamp) in enumerate(sent):
            driver.input("in").send(key, value, timestamp=timestamp)
            if number == at:
                driver.settle()
        driver.settle()
        found: dict[str, Any] = defaultdict(list)
        for record in driver.outputs():
            found[f"{record.topic} {record.key}"].append(
                (record.value, record.timestamp)
            )
        return {**found, "dropped": driver.dropped}


@pytest.mark.ci
@given(
    sent=SENT,
    seed=SEEDS,
    ranges=st.sampled_from([1, 3]),
    at=st.integers(0, 12),
    of=st.sampled_from("ps"),
)
@settings(max_examples=40)
def test_the_results_of_each_key_are_the_same_for_any_seed(
    sent: Sent, seed: int, ranges: int, at: int, of: str
) -> None:
    """They equal those of synchronous calls, late records included."""
    topology = program() if of == "p" else stateful()
    assert outcome(topology, sent, seed, ranges=ranges, at=at) == outcome(
        topology, sent, None
    )


def order_of(seed: int, order: Any) -> list[int]:
    with TopologyTestDriver(program(order), calls_seed=seed) as driver:
        for value in range(6):
            driver.input("in").send("ab"[value % 2], value, timestamp=0)
        assert driver.outputs() == [], "its calls are under way"
        driver.settle()
        return [record.value // 2 for record in driver.output("out").records()]


def test_a_seed_chooses_the_order_between_keys_and_always_the_same() -> None:
    orders = [order_of(seed, "key") for seed in range(12)]
    assert orders == [order_of(seed, "key") for seed in range(12)]
    assert len(set(map(tuple, orders))) > 3
    for order in orders:
        assert [value for value in order if value % 2] == [1, 3, 5]
        assert [value for value in order if not value % 2] == [0, 2, 4]


def test_calls_under_way_end_when_another_topic_matches_and_no_result_comes_twice() -> (
    None
):
    builder = StreamsBuilder("app")
    stream = builder.stream(re.compile("in-.*"), key=serdes.text, value=serdes.int64)
    stream.map_values_async(doubled, value=serdes.int64).to("out")
    with TopologyTestDriver(builder.build(), calls_seed=1) as driver:
        driver.input("in-a").send("a", 1)
        driver.input("in-a").send("b", 2)
        driver.input("in-b").send("a", 3)
        driver.settle()
        assert sorted(record.value for record in driver.output("out").records()) == [
            2,
            4,
            6,
        ]
