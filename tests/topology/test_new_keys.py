"""Keys that a program makes: equal ones must not be written as different bytes, or they
are two keys.
"""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology

NUMBER = serdes.json(float)


def counting() -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.group_by(lambda _, value: value, key=NUMBER).count(store="counts")
    return builder.build()


def joining() -> Topology:
    builder = StreamsBuilder("app")
    table = builder.global_table("rows", key=NUMBER, value=serdes.text, store="rows")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.join(
        table, lambda _, row: row, on=lambda _, value: value, value=serdes.text
    ).to("out")
    return builder.build()


@pytest.mark.parametrize("build", [counting, joining])
def test_a_whole_number_is_no_key_of_floats(build: Any) -> None:
    with TopologyTestDriver(build()) as driver:
        driver.input("in").send("a", 1.0)
        with pytest.raises(ProcessingError, match="they would be two keys"):
            driver.input("in").send("a", 1)
