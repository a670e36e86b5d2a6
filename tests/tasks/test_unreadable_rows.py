"""A row that its serde could not read again is never committed: the program is mended, and goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.keys import WHOLE
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine

SOURCE = TopicPartition("in", 0)


@dataclass
class Ratio:
    won: int
    ratio: float


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_a_mended_program_goes_on_where_a_row_could_not_have_been_read_again(guarantee: str) -> None:
    unknown = math.nan

    def next_ratio(_: str, games: int, before: Ratio) -> Ratio:
        return Ratio(before.won + 1, (before.won + 1) / games if games else unknown)

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).group_by_key().aggregate(
        lambda: Ratio(0, 0.0), next_ratio, value=serdes.json(Ratio), store="ratios"
    )
    made = Engine(builder.build(), {"in": 1}, processing_guarantee=guarantee)
    made.write("in", [(b"ann", serdes.int64.encode(2), 0)])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    made.write("in", [(b"ann", serdes.int64.encode(0), 1)])
    made.process(task)
    with pytest.raises(
        SerdeError, match=r'store "ratios": the value of key b.ann. cannot be written .* \$.ratio is nan'
    ):
        made.committers[0].commit([task])
    made.committers[0].abort()
    task.discard()
    assert made.log.committed("app")[SOURCE][0] == 1
    unknown = -1.0
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    assert made.log.committed("app")[SOURCE][0] == 2
    rows = [serdes.json(Ratio).deserialize(row or b"") for row in made.read(made.changelog("ratios")).values]
    assert rows == [Ratio(1, 0.5), Ratio(2, -1.0)]
