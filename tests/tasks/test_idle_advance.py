"""A source with silent partitions: windows close alike for any key ranges, restarts and
replays.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopstreams import (
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.log.time_marks import headers_of, marks_in
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from tests.tasks.called import until
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

Step = tuple[Literal["record", "mark", "cut"], int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "mark", "cut"]),
        st.integers(0, 40),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=25,
)
"""A record or a mark at this time, the record with this key; or the tasks are closed
and the partition cut again.
"""


def topology(seconds: float = 3600) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.raw, idle_advance=timedelta(seconds=seconds)
    )
    windows = TimeWindows(milliseconds=10, grace=timedelta(milliseconds=3))
    counted = stream.group_by_key().windowed_by(windows).count(store="counts")
    counted.suppress(until_window_closes()).to_stream().to("out")
    return builder.build()


def play(history: list[Step], *, cut: bool) -> dict[bytes, list[bytes | None]]:
    """Return the output of each key."""
    engine = Engine(topology(), {"in": 1, "out": 1}, interval_s=0.001)
    engine.start()
    tasks = [engine.open(key_range) for key_range in KeyRange.split(3 if cut else 1)]
    cuts = sum(what == "cut" for what, *_ in history)
    for what, time, key in history:
        if what == "record":
            engine.write("in", [(b"k%d" % key, b"", time)])
        elif what == "mark":
            engine.log.writer().append(
                "in", [None], [None], [time], headers=[headers_of(time)]
            )
        elif cut:
            engine.settle()
            for task in tasks:
                engine.close(task)
            tasks = [
                engine.open(key_range) for key_range in KeyRange.split(1 + key % 4)
            ]
    source = TopicPartition("in", 0)
    until(
        lambda: all(
            task.progress.position(source).offset == len(history) - cuts
            for task in tasks
        ),
        engine,
    )
    for task in tasks:
        engine.close(task)
    engine.stop()
    found: dict[bytes, list[bytes | None]] = defaultdict(list)
    columns = engine.read("out")
    for name, value in zip(columns.keys, columns.values, strict=True):
        found[name or b""].append(value)
    return dict(found)


@pytest.mark.ci
@settings(max_examples=30, deadline=None)
@given(steps)
@example([("record", 0, 0), ("cut", 0, 0), ("mark", 13, 0)])
def test_the_results_of_a_log_with_time_marks_do_not_depend_on_ranges_and_restarts(
    history: list[Step],
) -> None:
    assert play(history, cut=True) == play(history, cut=False)


def test_one_of_the_tasks_marks_the_silence_and_windows_of_all_close() -> None:
    for guarantee in (EXACTLY, AT_LEAST):
        engine = Engine(
            topology(1), {"in": 1, "out": 1}, threads=2, processing_guarantee=guarantee
        )
        engine.start()
        for thread, key_range in enumerate(KeyRange.split(2)):
            engine.open(key_range, thread=thread)
        keys = [b"k%d" % number for number in range(8)]
        engine.write("in", [(key, b"", 5) for key in keys])
        deadline = engine.host.now() + PATIENCE_S
        while len(engine.read("out")) < len(keys):
            engine.dispatcher.move(0.05)
            assert engine.host.now() < deadline
        engine.stop()
        source = TopicPartition("in", 0)
        assert engine.log.end_offset(source) > len(keys)
        assert sorted(engine.read("out").keys, key=str) == sorted(
            set(engine.read("out").keys), key=str
        ), "each once"
        assert marks_in(engine.read("in")) == [], "a reader hands out no marks"
