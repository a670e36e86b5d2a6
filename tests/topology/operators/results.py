"""The results of a program on some records, for tests that compare them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology

Outputs: TypeAlias = dict[tuple[str, str], list[tuple[Any, int]]]
"""Values and timestamps, by topic and key."""
Tables: TypeAlias = dict[str, list[Any]]


def results(
    topology: Topology,
    inputs: Iterable[tuple[str, Any, Any, int]],
    stores: Iterable[str],
    ranges: int = 1,
    *,
    caching: bool = False,
    commit_every: int = 1000,
) -> tuple[Outputs, Tables]:
    """Return the outputs of records (topic, key, value, timestamp), and the rows of the stores."""
    outputs: Outputs = defaultdict(list)
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        for number, (topic, key, value, timestamp) in enumerate(inputs, 1):
            driver.input(topic).send(key, value, timestamp)
            if number % commit_every == 0:
                driver.commit()
        driver.commit()
        for record in driver.outputs():
            outputs[record.topic, str(record.key)].append((record.value, record.timestamp))
        return outputs, {store: driver.store(store).all() for store in stores}
