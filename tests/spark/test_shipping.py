"""A topology that was sent to a worker is the one that was written: for every case of conformance, which are all operators there are."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.spark.shipping import ship, unship
from coopstreams.topology.compile import compile_subtopology
from coopstreams.topology.errors import TopologyError
from tests.conformance.run import Case, read_cases, translated

CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance"
DONE = (CONFORMANCE / "done.txt").read_text(encoding="utf-8").split()
CASES = read_cases(CONFORMANCE / "vectors.jsonl")


def texts(topology: Topology) -> list[str]:
    """Return the code that is generated for each sub-topology: it says which serdes were found to be the same."""
    return [compile_subtopology(topology, part).compiled(True, True).text for part in topology.subtopologies]


@pytest.mark.parametrize("family", DONE)
def test_a_shipped_topology_generates_the_same_code(family: str) -> None:
    cases: list[Case] = [case for case in CASES if case["family"] == family]
    assert cases
    for case in cases:
        _, topology = translated(case)
        shipped = unship(ship(topology))
        assert shipped.describe() == topology.describe()
        assert texts(shipped) == texts(topology), case["name"]


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    builder = StreamsBuilder("locked")
    builder.stream("in", key=serdes.text, value=serdes.text).filter(lambda _, __: lock.locked()).to("out")
    with pytest.raises(TopologyError, match=r"lock.*make that object inside the function"):
        ship(builder.build())
