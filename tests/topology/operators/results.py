"""The results of a program on some records, for tests that compare them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.serdes import Windowed

Outputs: TypeAlias = dict[tuple[str, str], list[tuple[Any, int]]]
"""Values and timestamps, by topic and key."""
Tables: TypeAlias = dict[str, list[Any]]
Event: TypeAlias = tuple[str, Any, Any, int]
"""A record: topic, key, value, timestamp."""


def outputs(
    topology: Topology,
    *events: Event,
    ranges: int = 1,
    caching: bool = False,
    commit_every: int = 1000,
) -> list[tuple[Any, Any, int]]:
    """Return the outputs of these records, in order, as (key, value, timestamp);
    windowed keys as text.
    """
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        _feed(driver, events, commit_every)
        found = [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ]
    return [
        (str(key) if isinstance(key, Windowed) else key, value, at)
        for key, value, at in found
    ]


def results(
    topology: Topology,
    inputs: Iterable[Event],
    stores: Iterable[str],
    ranges: int = 1,
    *,
    caching: bool = False,
    commit_every: int = 1000,
) -> tuple[Outputs, Tables]:
    """Return the outputs of these records, and the rows of the stores."""
    found: Outputs = defaultdict(list)
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        _feed(driver, inputs, commit_every)
        for record in driver.outputs():
            found[record.topic, str(record.key)].append(
                (record.value, record.timestamp)
            )
        return found, {store: driver.store(store).all() for store in stores}


def _feed(
    driver: TopologyTestDriver, inputs: Iterable[Event], commit_every: int
) -> None:
    for number, (topic, key, value, timestamp) in enumerate(inputs, 1):
        driver.input(topic).send(key, value, timestamp)
        if number % commit_every == 0:
            driver.commit()
    driver.commit()
