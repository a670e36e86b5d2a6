"""`flow`: records in, one operator, records out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable
from tests.topology.operators.results import outputs

Record: TypeAlias = tuple[Any, Any, int]


def run(
    write: Callable[[KStream[str, Any]], KStream[Any, Any] | KTable[Any, Any]],
    *records: Record,
    ranges: int = 1,
    caching: bool = False,
) -> list[Record]:
    """Return the results of `write` for these records, as (key, value, timestamp): keys
    are text, values JSON.
    """
    builder = StreamsBuilder("app")
    made = write(builder.stream("in", key=serdes.text, value=serdes.json))
    (made.to_stream() if isinstance(made, KTable) else made).to("out")
    return outputs(
        builder.build(),
        *(("in", *record) for record in records),
        ranges=ranges,
        caching=caching,
    )


@pytest.fixture
def flow() -> Callable[..., list[Record]]:
    return run
