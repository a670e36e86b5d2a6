"""`flow`: records in, one operator, records out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable

Record: TypeAlias = tuple[Any, Any, int]


def run(
    write: Callable[[KStream[str, Any]], KStream[Any, Any] | KTable[Any, Any]],
    *records: Record,
    ranges: int = 1,
    caching: bool = False,
) -> list[Record]:
    """Return the results of `write` for these records, as (key, value, timestamp): keys are text, values JSON."""
    builder = StreamsBuilder("app")
    made = write(builder.stream("in", key=serdes.text, value=serdes.json))
    (made.to_stream() if isinstance(made, KTable) else made).to("out")
    with TopologyTestDriver(builder.build(), ranges, caching=caching) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        for key, value, timestamp in records:
            topic.send(key, value, timestamp)
        driver.commit()
        return [(record.key, record.value, record.timestamp) for record in driver.outputs()]


@pytest.fixture
def flow() -> Callable[..., list[Record]]:
    return run
