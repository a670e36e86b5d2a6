"""The stream time of an operator when its task is opened again: where the task stopped, and not further."""

from __future__ import annotations

import pytest

from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.topology.keys import WHOLE
from tests.tasks.engine import Engine

HOUR_MS = 3_600_000


@pytest.mark.parametrize(("reaches", "counts"), [(True, [1, 1]), (False, [1, 2])])
def test_a_window_is_closed_by_a_record_before_the_restart_only_if_that_reached_it(
    reaches: bool, counts: list[int]
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    received = stream if reaches else stream.filter(lambda _, value: value != b"an hour later")
    windows = TimeWindows(milliseconds=10)
    received.group_by_key().windowed_by(windows).count(store="counts").to_stream().to("out")
    engine = Engine(builder.build(), {"in": 1, "out": 1})
    engine.start()
    engine.write("in", [(b"a", b"", 0), (b"a", b"an hour later", HOUR_MS)])
    task = engine.open(WHOLE)
    engine.settle()
    engine.close(task)
    engine.write("in", [(b"a", b"", 5)])
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    assert [serdes.int64.decode(value) for value in engine.read("out").values if value] == counts
