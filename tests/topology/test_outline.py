"""The outline of a topology is read from its description; what is none is an error."""

from __future__ import annotations

import orjson
import pytest

from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.outline import read_outline
from tests.topology.test_changes import counts


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b'{"format": 1}',
        b"Topologies:",
        b'{"format": 1, "subtopologies": 7}',
    ],
)
def test_what_is_no_description_is_an_error(said: bytes) -> None:
    with pytest.raises(TopologyError, match="describe --format json"):
        read_outline(said)


@pytest.mark.parametrize(("written_in", "cure"), [(0, "older"), (3, "newer")])
def test_a_description_of_another_format_is_an_error(
    written_in: int, cure: str
) -> None:
    builder = StreamsBuilder("app")
    counts()(builder)
    drawn = orjson.loads(builder.build().describe("json")) | {"format": written_in}
    with pytest.raises(
        TopologyError, match=f"has format {written_in}.*use the {cure} coopstreams"
    ):
        read_outline(orjson.dumps(drawn))
