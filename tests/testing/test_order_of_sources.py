"""The test driver and an instance take records of two topics in the same order, in any
order of arrival.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams import (
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    Topology,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.keys import KeyRange
from tests.durations import ms
from tests.simulation.fibers import Machine, Scheduler
from tests.tasks.engine import EXACTLY, Engine

IDLE_MS = 5_000
"""Longer than all records take to arrive."""
KEYS = [b"a", b"b", b"c", b"d"]
TOPICS = ["left", "right"]

Written = tuple[str, bytes, bytes, int]
"""Topic, key, value and timestamp of a record; values are unique."""
Order = dict[bytes | None, list[bytes | None]]
"""The values of each key in the order in which they were taken."""


def merged() -> Topology:
    builder = StreamsBuilder("merged")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw) for topic in TOPICS
    )
    left.merge(right).to("out")
    return builder.build()


def driven(arriving: list[Written], ranges: int) -> list[tuple[bytes, bytes]]:
    with TopologyTestDriver(merged(), ranges, {"max.task.idle.ms": IDLE_MS}) as driver:
        for topic, key, value, timestamp in arriving:
            driver.input(topic, serdes.raw, serdes.raw).send(key, value, timestamp)
        driver.advance(ms(IDLE_MS))
        return [
            (record.key, record.value)
            for record in driver.output("out", serdes.raw, serdes.raw).records()
        ]


def live(
    arriving: list[Written], ranges: int, random: Random
) -> list[tuple[bytes | None, bytes | None]]:
    """Return the order on the threads of an instance, in fetches of several records."""
    scheduler = Scheduler(random)
    machine = Machine(scheduler, "instance")
    topics = {"left": 1, "right": 1, "out": 1}
    engine = Engine(
        merged(),
        topics,
        host=machine,
        interval_s=1.0,
        processing_guarantee=EXACTLY,
        max_task_idle_ms=IDLE_MS,
    )
    engine.start()
    for piece in KeyRange.split(ranges):
        engine.open(piece)
    for topic, *row in arriving:
        engine.write(topic, [(row[0], row[1], row[2])])  # type: ignore[list-item]
        if random.random() < 0.5:
            engine.dispatcher.move(0.0)
            scheduler.run(scheduler.now + random.random() / 10)
    while engine.dispatcher.move(0.0):
        pass
    scheduler.run(scheduler.now + 2 * IDLE_MS / 1000)
    out = engine.read("out")
    scheduler.close([machine])
    return list(zip(out.keys, out.values, strict=True))


def by_key(
    rows: list[tuple[bytes, bytes]] | list[tuple[bytes | None, bytes | None]],
) -> Order:
    order: Order = defaultdict(list)
    for key, value in rows:
        order[key].append(value)
    return order


records = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 30)), max_size=12)


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [1, 4])
@given(records, records, st.integers(0, 1 << 32))
def test_driver_and_instance_take_records_of_two_sources_in_the_same_order(
    ranges: int,
    left: list[tuple[bytes, int]],
    right: list[tuple[bytes, int]],
    seed: int,
) -> None:
    """The order is that of stream time; with equal times, the first source is first."""
    random = Random(seed)
    logs = {
        topic: [
            (topic, key, b"%s %d" % (topic.encode(), number), timestamp)
            for number, (key, timestamp) in enumerate(rows)
        ]
        for topic, rows in (("left", left), ("right", right))
    }
    waiting = [topic for topic, rows in logs.items() for _ in rows]
    random.shuffle(waiting)
    following = {topic: iter(rows) for topic, rows in logs.items()}
    arriving = [next(following[topic]) for topic in waiting]
    placed = [
        (reached, TOPICS.index(topic), number, row)
        for topic, rows in logs.items()
        for number, (row, reached) in enumerate(
            zip(rows, accumulate((row[3] for row in rows), max), strict=True)
        )
    ]
    expected = [(key, value) for *_, (_, key, value, _) in sorted(placed)]
    taken = driven(arriving, ranges)
    if ranges == 1:
        assert taken == expected
    assert by_key(taken) == by_key(expected)
    assert by_key(live(arriving, ranges, random)) == by_key(expected)


class Scattering(Processor[bytes, bytes, bytes, bytes]):
    """Forwards a record for each word of the value: topic/key@timestamp; without a key
    it has that of the record.
    """

    def init(self, context: ProcessorContext[bytes, bytes]) -> None:
        self.context = context

    def process(self, record: Record[bytes, bytes]) -> None:
        for word in record.value.split():
            place, _, time = word.partition(b"@")
            self.context.forward(
                Record(place.partition(b"/")[2] or record.key, word, int(time))
            )


def scattered() -> Topology:
    builder = StreamsBuilder("scattered")
    words = builder.stream("in", key=serdes.raw, value=serdes.raw).process(
        Scattering, key=serdes.raw, value=serdes.raw, by_key=False
    )
    left = words.filter(lambda _, word: word.startswith(b"left")).repartition(
        name="left"
    )
    right = words.filter(lambda _, word: word.startswith(b"right")).repartition(
        name="right"
    )
    left.merge(right).to("out")
    return builder.build()


def test_records_of_two_repartition_topics_are_taken_by_their_timestamps() -> None:
    """A late record comes right after the one before it, with which it waits; or by its
    own timestamp, if that is done already.
    """
    with TopologyTestDriver(scattered()) as driver:
        driver.input("in", serdes.raw, serdes.raw).send(
            b"k", b"left@7 left@3 right@5 right@6", 0
        )
        assert [record.value for record in driver.outputs()] == [
            b"right@5",
            b"right@6",
            b"left@7",
            b"left@3",
        ]
        driver.input("in", serdes.raw, serdes.raw).send(b"k", b"left@4 right@6", 0)
        assert [record.value for record in driver.outputs()][4:] == [
            b"left@4",
            b"right@6",
        ]


word = st.builds(
    b"%s/%s@%d".__mod__,
    st.tuples(
        st.sampled_from([b"left", b"right"]), st.sampled_from(KEYS), st.integers(0, 12)
    ),
)


@pytest.mark.ci
@given(
    st.lists(
        st.lists(word, min_size=1, max_size=8).map(b" ".join), min_size=1, max_size=3
    )
)
@example([b"right/a@1", b"left/a@0 left/c@1 right/a@1 right/c@0"])
@example(
    [
        b"left/a@5",
        b"right/c@9 left/a@9 left/d@10",
        b"right/d@8 right/a@0 right/d@5 left/b@3 left/a@2 right/b@2",
    ]
)
def test_late_records_of_two_repartition_topics_are_all_taken_and_for_each_key_in_the_same_order(
    sent: list[bytes],
) -> None:
    """Each task may have a record of one topic, and wait for the other, which is held
    because of another task.
    """
    found = []
    for ranges in (1, 4):
        with TopologyTestDriver(scattered(), ranges) as driver:
            for words in sent:
                driver.input("in", serdes.raw, serdes.raw).send(b"k", words, 0)
            found.append(
                by_key([(record.key, record.value) for record in driver.outputs()])
            )
    assert found[0] == found[1]
