"""A stream join whose tasks are reopened, with late records: no pair is missed, none is
emitted twice.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from coopstreams import JoinWindows, StreamsBuilder, serdes
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.tasks.task import Task
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from tests.durations import ms
from tests.tasks.engine import EXACTLY, PATIENCE_S, Engine

KEYS = [b"key-%d" % number for number in range(12)]
HALVES = KeyRange.split(2)
TOPICS = {"left": 1, "right": 1, "out": 1}
REACH_MS, GRACE_MS = 4_000, 1_000
Rows = list[tuple[bytes | None, bytes | None, int]]
Results = Counter[tuple[bytes | None, bytes | None]]


def joined() -> Topology:
    builder = StreamsBuilder("joined")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    windows = JoinWindows(milliseconds=REACH_MS, grace=ms(GRACE_MS))
    left.outer_join(
        right,
        lambda one, other: b"%r, %r" % (one, other),
        windows=windows,
        value=serdes.raw,
    ).to("out")
    return builder.build()


def two_ranges() -> tuple[Engine, bytes, bytes]:
    """Return an engine that runs, and a key of each half of the keys."""
    mine, other = (
        next(key for key in KEYS if key_hash(key) in half) for half in HALVES
    )
    engine = Engine(joined(), TOPICS, processing_guarantee=EXACTLY, buffer=1)
    engine.start()
    return engine, mine, other


def parts_of(seed: int) -> list[dict[str, Rows]]:
    """Return the records between two restarts: one in five is up to half a minute late.
    The last part releases all waiting records.
    """
    chance = random.Random(seed)
    parts = [{"left": Rows(), "right": Rows()} for _ in range(4)]
    number = 0
    for at, part in enumerate(parts):
        for topic, rows in part.items():
            for _ in range(chance.randint(1, 60)):
                now = at * 60_000 + len(rows) * 1_000
                late = (
                    chance.randint(0, 30_000)
                    if chance.random() < 0.2
                    else chance.randint(0, 800)
                )
                number += 1
                rows.append(
                    (
                        chance.choice(KEYS),
                        b"%s %d" % (topic.encode(), number),
                        max(0, now - late),
                    )
                )
    end: dict[str, Rows] = {
        topic: [(key, b"end", 600_000 + 60_000 * turn) for turn, key in enumerate(KEYS)]
        for topic in ("left", "right")
    }
    return [*parts, end]


def pairs(found: Results) -> Results:
    return Counter(
        {
            (key, value): count
            for (key, value), count in found.items()
            if value is not None and b"None" not in value and b"end" not in value
        }
    )


def expected(topology: Topology, parts: list[dict[str, Rows]]) -> Results:
    """The results of the records, part by part, in the order of time."""
    with TopologyTestDriver(topology) as driver:
        for part in parts:
            order = []
            for number, (topic, rows) in enumerate(sorted(part.items())):
                now = -1
                for offset, (key, value, timestamp) in enumerate(rows):
                    now = max(now, timestamp)
                    order.append((now, number, offset, topic, key, value, timestamp))
            for _, _, _, topic, key, value, timestamp in sorted(
                order, key=lambda row: row[:3]
            ):
                driver.input(topic, serdes.raw, serdes.raw).send(key, value, timestamp)
        return Counter(
            (record.key, record.value)
            for record in driver.output("out", serdes.raw, serdes.raw).records()
        )


@pytest.mark.parametrize("ranges", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_no_pair_is_missed_and_none_is_told_twice(seed: int, ranges: int) -> None:
    """With several ranges a task may not know the time of others' keys, and join
    records later than the grace.
    """
    topology, parts = joined(), parts_of(seed)
    engine = Engine(topology, TOPICS, processing_guarantee=EXACTLY, buffer=1)
    engine.start()
    kept = Memory()
    for part in parts:
        # As in a new process: shared state of siblings is gone, written state is there.
        engine.databases[0] = Database(kept, engine.stores)
        for topic, rows in part.items():
            engine.write(topic, rows)
        tasks = [engine.open(piece) for piece in KeyRange.split(ranges)]
        engine.settle()
        for task in tasks:
            engine.close(task)
    engine.stop()
    out = engine.read("out")
    found = Counter(zip(out.keys, out.values, strict=True))
    right = expected(topology, parts)
    assert max(found.values()) == 1
    assert not pairs(right) - pairs(found)
    assert ranges > 1 or pairs(found) == pairs(right)


def test_who_takes_over_from_one_that_was_ahead_misses_no_pair_of_what_is_left_to_do() -> (
    None
):
    """The rows of the task that was ahead are newer than any row that the remaining
    records can match.
    """
    engine, mine, other = two_ranges()
    for topic in ("left", "right"):
        engine.write(topic, [(mine, b"behind", 0), (other, b"ahead", 100_000)])
    engine.close(_settled(engine, HALVES[1]))
    _settled(engine, WHOLE)
    engine.stop()
    assert sorted(filter(None, engine.read("out").values)) == [
        b"b'ahead', b'ahead'",
        b"b'behind', b'behind'",
    ]


def test_a_record_without_a_match_goes_when_a_sibling_has_come_further_before_it() -> (
    None
):
    """The sibling opens the gate up to a time that the record's own task reaches later."""
    engine, mine, other = two_ranges()
    engine.write(
        "left",
        [
            (mine, b"alone", 0),
            (other, b"alone", 50_000),
            (mine, b"last", 50_000),
            (other, b"end", 100_000),
        ],
    )
    for half in reversed(HALVES):
        _settled(engine, half)
    engine.stop()
    assert sorted(filter(None, engine.read("out").values)) == [
        b"b'alone', None",
        b"b'alone', None",
        b"b'last', None",
    ]


def test_a_record_without_a_match_is_not_held_back_because_a_slower_sibling_has_seen_a_later_one() -> (
    None
):
    """The sibling's search ends at a record that is ahead of it: in Kafka Streams, no
    earlier record would be due.
    """
    behind, ahead = ([key for key in KEYS if key_hash(key) in half] for half in HALVES)
    engine = Engine(joined(), TOPICS, processing_guarantee=EXACTLY)
    engine.start()
    engine.write(
        "left",
        [(behind[1], b"2", 6_000), (behind[0], b"3", 17_000), (ahead[1], b"5", 27_000)],
    )
    engine.write("right", [(behind[0], b"1", 5_000), (ahead[0], b"4", 23_000)])
    for half in reversed(HALVES):
        _settled(engine, half)
    engine.write("right", [(ahead[1], b"6", 28_500)])
    engine.settle()
    engine.stop()
    alone = [value for value in engine.read("out").values if value and b"None" in value]
    assert sorted(alone) == [b"None, b'1'", b"None, b'4'", b"b'2', None", b"b'3', None"]


def _settled(engine: Engine, key_range: KeyRange) -> Task:
    task = engine.open(key_range)
    engine.settle()
    return task


def test_what_a_store_has_forgotten_stays_forgotten() -> None:
    """A restored task has rows of its own keys only, but records of other keys had
    advanced its store's time.
    """
    engine, mine, other = two_ranges()
    kept = Memory()
    engine.databases[0] = Database(kept, engine.stores)
    for topic in ("left", "right"):
        engine.write(topic, [(other, b"ahead", 100_000), (mine, b"behind", 0)])
    for half in reversed(HALVES):
        engine.close(_settled(engine, half))
    engine.databases[0] = Database(kept, engine.stores)  # as in a new process
    engine.open(HALVES[0])
    engine.write("left", [(mine, b"late", 50_000)])
    engine.settle()
    deadline = time.monotonic() + PATIENCE_S
    while (
        b"b'late', None" not in engine.read("out").values
    ):  # once it is committed, it is not in memory any more
        assert time.monotonic() < deadline
        time.sleep(0.005)
    engine.write("right", [(mine, b"late, too", 51_000)])
    engine.settle()
    engine.stop()
    assert sorted(filter(None, engine.read("out").values)) == [
        b"None, b'behind'",
        b"None, b'late, too'",
        b"b'ahead', b'ahead'",
        b"b'behind', None",
        b"b'late', None",
    ]
