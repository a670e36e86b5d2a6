"""The same records in the same order give the same results, in any batches, even if
windows expire meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.failures import Failure
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.suppression import until_time_limit, until_window_closes
from coopstreams.topology.windows import SessionWindows, SlidingWindows, TimeWindows
from tests.durations import ms

IN = TopicPartition("in", 0)
Build = Callable[[Any], Any]

FLOWS: dict[str, Build] = {
    "sessions": lambda stream: (
        stream.group_by_key().windowed_by(SessionWindows(milliseconds=20)).count()
    ),
    "sessions with grace": lambda stream: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=20, grace=ms(15)))
        .count()
    ),
    "sessions on close": lambda stream: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=20, grace=ms(5)))
        .emit_strategy("on_window_close")
        .count()
    ),
    "sessions suppressed": lambda stream: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=20, grace=ms(5)))
        .count()
        .suppress(until_window_closes())
    ),
    "sliding": lambda stream: (
        stream.group_by_key().windowed_by(SlidingWindows(milliseconds=20)).count()
    ),
    "sliding with grace": lambda stream: (
        stream.group_by_key()
        .windowed_by(SlidingWindows(milliseconds=20, grace=ms(15)))
        .count()
    ),
    "hopping": lambda stream: (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=30, advance=ms(10)))
        .count()
    ),
    "tumbling with grace": lambda stream: (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=30, grace=ms(15)))
        .count()
    ),
    "on close": lambda stream: (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=30, grace=ms(15)))
        .emit_strategy("on_window_close")
        .count()
    ),
    "time limit": lambda stream: (
        stream.group_by_key().count().suppress(until_time_limit(ms(25)))
    ),
    "self-join": lambda stream: stream.left_join(
        stream.map_values(str, value=serdes.text),
        lambda left, right: f"{left}{right}",
        windows=JoinWindows(milliseconds=15, grace=ms(10)),
        value=serdes.text,
    ),
}


def results(
    build: Build, records: list[tuple[bytes, bytes, int]], size: int
) -> list[tuple[Any, ...]]:
    """Return the output of a flow for batches of this size."""
    builder = StreamsBuilder("batches")
    flow = build(builder.stream("in", key=serdes.text, value=serdes.text))
    (flow.to_stream() if hasattr(flow, "to_stream") else flow).to("out")
    topology = builder.build()
    part = topology.subtopologies[0]
    state = TaskState(Database(Memory(), part.stores), part.stores, WHOLE, 1 << 30)

    def fail(failure: Failure) -> None:
        raise failure.error

    program = compile_subtopology(topology, part).bind(
        state.stores, fail, caching=False
    )
    times = [timestamp for _, _, timestamp in records]
    newest = list(accumulate(times, max))
    for start in range(0, len(records), size):
        batch = records[start : start + size]
        keys, values = [key for key, _, _ in batch], [value for _, value, _ in batch]
        end = start + len(batch)
        program.process(
            IN,
            Columns(
                keys,
                values,
                times[start:end],
                list(range(start, end)),
                newest[start:end],
            ),
        )
    out = program.outputs["out"]
    return list(zip(out.keys, out.values, out.timestamps, strict=True))


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_how_records_are_cut_into_batches(
    flow: str, seed: int
) -> None:
    chance = random.Random(seed)
    records = [
        (
            b"k%d" % chance.randrange(4),
            b"%d" % i,
            max(0, i + 100 - chance.randrange(chance.choice([1, 20, 90]))),
        )
        for i in range(600)
    ]
    one = results(FLOWS[flow], records, 1)
    assert one
    for size in (7, len(records)):
        assert results(FLOWS[flow], records, size) == one
