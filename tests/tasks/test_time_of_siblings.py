"""Time by siblings' records, in a task of several sources: it applies as far as the
task has read, and no further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from coopstreams import JoinWindows, StreamsBuilder, TimeWindows, serdes
from coopstreams.state import layout
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_hash
from tests.durations import ms
from tests.tasks.engine import EXACTLY, Engine

FIRST = KeyRange.split(4)[0]
_KEYS = [b"key-%d" % number for number in range(20)]
RARE = next(key for key in _KEYS if key_hash(key) in FIRST)
"""The left source has one early record with it: after that its task gets only siblings'
times from there.
"""
KEYS = [RARE, *(key for key in _KEYS if key_hash(key) not in FIRST)]
WINDOW = bytes(8)
"""The window start in a window key."""
SECONDS = 600
BEHIND_MS = SECONDS * 1000
"""After the last relevant record."""

Rows = list[tuple[bytes | None, bytes | None, int]]


def rows_of(topic: str) -> Rows:
    """Return one record a second, in order, and a last one that releases all waiting;
    on the left, the rare key is only first.
    """
    keys = [key for key in KEYS if topic == "right" or key != RARE]
    rows: Rows = [(RARE, b"%s at 0" % topic.encode(), 0)]
    rows += [
        (
            keys[second % len(keys)],
            b"%s at %d" % (topic.encode(), second),
            second * 1000 + (topic == "right"),
        )
        for second in range(1, SECONDS)
    ]
    return [
        *rows,
        *(
            (key, b"the end", BEHIND_MS + 60_000 * (number + 1))
            for number, key in enumerate(keys)
        ),
    ]


def counted() -> Topology:
    builder = StreamsBuilder("counted")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    windows = (
        left.merge(right)
        .group_by_key()
        .windowed_by(TimeWindows(seconds=5, grace=0))
        .count(store="counts")
    )
    windows.to_stream().map_values(lambda count: b"%d" % count, value=serdes.raw).to(
        "out"
    )
    return builder.build()


def joined() -> Topology:
    builder = StreamsBuilder("joined")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    both = left.outer_join(
        right,
        lambda one, other: b"%r, %r" % (one, other),
        windows=JoinWindows(milliseconds=4000, grace=ms(1000)),
        value=serdes.raw,
    )
    both.to("out")
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("made", [counted, joined])
def test_siblings_that_are_far_ahead_in_one_source_close_nothing_for_what_waits_in_another(
    made: Callable[[], Topology], ranges: int
) -> None:
    """All records are there when a task opens: one fetch returns ten minutes of each
    topic.
    """
    topology = made()
    engine = Engine(
        topology, {"left": 1, "right": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    for topic in ("left", "right"):
        engine.write(topic, rows_of(topic))
    engine.start()
    for piece in reversed(KeyRange.split(ranges)):
        engine.open(piece)
        # the rare key's range opens last: its siblings' shared time is far ahead
        engine.settle()
    engine.stop()
    out = engine.read("out")
    found = Counter(
        (key, value)
        for key, value, time in zip(out.keys, out.values, out.timestamps, strict=True)
        if time < BEHIND_MS
    )
    assert found == expected(topology)


def test_who_takes_over_counts_the_time_of_records_that_others_have_done() -> None:
    """The owner of the whole partition skips these records, but the windows that they
    have closed stay closed.
    """
    first, second = KeyRange.split(2)
    done = next(key for key in KEYS if key_hash(key) in first)
    late = next(key for key in KEYS if key_hash(key) in second)
    engine = Engine(
        counted(), {"left": 1, "right": 1, "out": 1}, processing_guarantee=EXACTLY
    )
    engine.write(
        "left",
        [
            (late, b"in time", 0),
            (done, b"an hour later", 3_600_000),
            (late, b"late", 1000),
        ],
    )
    engine.start()
    engine.open(first)
    engine.settle()
    engine.close(next(iter(engine.tasks.values()))[0])
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    out = engine.read("out")
    assert [
        (key[: -len(WINDOW)], value)
        for key, value in zip(out.keys, out.values, strict=True)
        if key
    ] == [
        (done, b"1"),
        (late, b"1"),
    ]


@pytest.mark.parametrize("begun", [False, True])
def test_who_takes_over_from_one_that_was_ahead_emits_each_window_of_both_once(
    *, begun: bool
) -> None:
    """`begun`: the task that is behind has processed a record."""
    first, second = KeyRange.split(2)
    behind = next(key for key in KEYS if key_hash(key) in first)
    ahead = next(key for key in KEYS if key_hash(key) in second)
    builder = StreamsBuilder("emitted")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    windows = (
        stream.group_by_key()
        .windowed_by(TimeWindows(seconds=5, grace=0))
        .emit_strategy("on_window_close")
    )
    windows.count().to_stream().map_values(
        lambda count: b"%d" % count, value=serdes.raw
    ).to("out")
    engine = Engine(builder.build(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    engine.start()
    engine.write("in", [(behind, b"", 0), (ahead, b"", 0)])
    tasks = [engine.open(half) for half in ((first, second) if begun else (second,))]
    engine.settle()
    for task in tasks[:-1]:
        engine.close(task)
    engine.write("in", [(ahead, b"", 60_000)])
    engine.settle()
    engine.close(tasks[-1])
    engine.write("in", [(ahead, b"", 100_000)])
    engine.open(WHOLE)
    engine.settle()
    engine.stop()
    out = engine.read("out")
    rows = zip(out.keys, out.values, out.timestamps, strict=True)
    assert sorted(
        (key[: -len(WINDOW)], value, time) for key, value, time in rows if key
    ) == sorted([(behind, b"1", 0), (ahead, b"1", 0), (ahead, b"1", 60_000)])


def test_windows_that_have_expired_are_dropped_though_a_sibling_on_another_thread_has_no_records() -> (
    None
):
    builder = StreamsBuilder("app")
    grouped = builder.stream("in", key=serdes.raw, value=serdes.raw).group_by_key()
    grouped.windowed_by(TimeWindows(seconds=60, grace=0)).count(
        store="counts"
    ).to_stream().to("out")
    engine = Engine(
        builder.build(), {"in": 1, "out": 1}, threads=2, processing_guarantee=EXACTLY
    )
    engine.start()
    tasks = [
        engine.open(half, thread=number)
        for number, half in enumerate(KeyRange.split(2))
    ]
    (rare,) = (task for task in tasks if key_hash(RARE) in task.id.key_range)
    engine.write("in", [(key, b"", 0) for key in KEYS])  # both halves
    for minute in range(1, 100):
        engine.write("in", [(RARE, b"", minute * 60_000)])
        engine.settle()
        while (
            minute == 98 and rare.uncommitted
        ):  # without a commit before the next one its window is never written
            engine.dispatcher.move(0.01)
    engine.stop()
    found = engine.databases[0].as_of_now("counts", ALL_GROUPS)
    families = sorted({each.family for _, families in found for each in families})
    assert families == [layout.segment_family("counts", minute) for minute in (98, 99)]


def expected(topology: Topology) -> Counter[tuple[bytes | None, bytes | None]]:
    """The results of the records one by one, in the order of time."""
    rows = sorted(
        ((topic, *row) for topic in ("left", "right") for row in rows_of(topic)),
        key=lambda row: row[3],
    )
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, timestamp in rows:
            driver.input(topic, serdes.raw, serdes.raw).send(key, value, timestamp)
        records = driver.output("out", serdes.raw, serdes.raw).records()
    return Counter(
        (record.key, record.value) for record in records if record.timestamp < BEHIND_MS
    )
