"""Records that are sent together, and by the short way, give what they give one by one
through the log.

The programs are those of the conformance suite: windows, joins, suppressed results,
repartition topics, processors with punctuations, handlers; with other inputs than
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import Record, StreamsBuilder, Topology, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.testing.direct_source import DirectSource
from coopstreams.testing.write_order import Forwarded
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError, TopologyError
from tests.conformance.run import CONFIG, Case, read_cases, translated
from tests.conformance.test_conformance_vectors import HERE
from tests.conformance.world import KEY, VALUE
from tests.durations import ms

CASES = [
    *read_cases(HERE / "vectors.jsonl"),
    *read_cases(HERE / "vectors_found.jsonl"),
]
ADVANCES = [ms(1), ms(100), ms(60_000)]


class LongWay(TopologyTestDriver):
    """A driver whose records all go through the log, the reader and the queues."""

    def _may_be_direct(self, source: TopicPartition) -> bool:
        return False


class EitherWay(TopologyTestDriver):
    """A driver of whose records some take the short way, and others the long one."""

    def _direct_of(self, record: Forwarded) -> DirectSource | None:
        if not hasattr(self, "random"):
            self.random = Random(0)
        return super()._direct_of(record) if self.random.random() < 0.5 else None


@st.composite
def steps(draw: st.DrawFn, case: Case) -> list[Any]:
    """Draw what happens to a driver: records for one topic, "commit", or an advance of
    the clock.
    """
    inputs = [each for each in case["inputs"] if "topic" in each]
    topics = sorted({each["topic"] for each in inputs})
    times = st.sampled_from([each["timestamp_ms"] for each in inputs])
    some: dict[str, st.SearchStrategy[Any]] = {}
    for topic in topics:
        of_topic = [each for each in inputs if each["topic"] == topic]
        keys = st.sampled_from([each["key"] for each in of_topic])
        values = st.sampled_from([each["value"] for each in of_topic])
        headers = st.sampled_from([None, [("name", b"1")]])
        some[topic] = st.lists(
            st.tuples(keys, values, times, headers), min_size=1, max_size=8
        )
    records = st.sampled_from(topics).flatmap(
        lambda topic: st.tuples(st.just(topic), some[topic])
    )
    other = st.sampled_from(["commit", *ADVANCES])
    return draw(st.lists(records | records | other, min_size=1, max_size=6))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, list[Any]]:
    """Draw a program and what happens to it."""
    case = draw(st.sampled_from(CASES))
    return case, draw(steps(case))


def seen(
    driver: TopologyTestDriver, happens: list[Any], *, together: bool
) -> list[Any]:
    """Return what can be seen of a driver after each step, errors included; what fails
    is left out, the rest goes on.
    """
    found: list[Any] = []
    for step in happens:
        left = list(step[1]) if isinstance(step, tuple) else [step]
        while left:
            try:
                if not isinstance(step, tuple):
                    left.clear()
                    driver.commit() if step == "commit" else driver.advance(step)
                elif together:
                    driver.input(step[0], KEY, VALUE).send_all(taken(left))
                else:
                    driver.input(step[0], KEY, VALUE).send(*left.pop(0))
            except CoopStreamsError as error:
                found.append((type(error), str(error)))
        found.append(state(driver))
    return found


def taken(left: list[Any]) -> Iterator[Any]:
    """Yield the records of a list, removing them."""
    while left:
        yield left.pop(0)


def state(driver: TopologyTestDriver) -> Any:
    """Return what can be seen of a driver."""
    rows = {
        (task.id, name): [
            (key, entry.value, entry.timestamp) for key, entry in table.scan(None, None)
        ]
        for task in driver._all_tasks()
        for name, table in task.state.stores.items()
    }
    return (
        list(driver._forwarded),
        driver.forwarded,
        driver.dropped,
        [(each.node, str(each.error), each.offset) for each in driver.failures],
        rows,
        [
            (task.id, source, task.processed, task.progress.position(source))
            for source, tasks in driver._tasks.items()
            for task in tasks
        ],
    )


@pytest.mark.ci
@settings(max_examples=100)
@given(
    cases(), st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.booleans(), st.data()
)
def test_records_sent_together_give_what_they_give_one_by_one_through_the_log(
    drawn: tuple[Case, list[Any]],
    ranges: int,
    partitions: int,
    caching: bool,
    data: st.DataObject,
) -> None:
    case, happens = drawn
    config = {CONFIG[name]: value for name, value in case.get("config", {}).items()}
    handler = st.sampled_from([None, "continue"])
    if (handled := data.draw(handler)) is not None:
        config["processing.exception.handler"] = handled
    if idle_ms := data.draw(st.sampled_from([0, 0, 50])):
        config["max.task.idle.ms"] = idle_ms
    results = []
    for kind, together in (
        (LongWay, False),
        (TopologyTestDriver, False),
        (TopologyTestDriver, True),
        (EitherWay, True),
    ):
        world, topology = translated(case)
        with kind(
            topology, ranges, config, caching=caching, partitions=partitions
        ) as driver:
            world.driver = driver
            results.append(
                (seen(driver, happens, together=together), world.side_effects)
            )
    through_the_log, one_by_one, sent_together, either_way = results
    assert one_by_one == through_the_log
    assert sent_together == through_the_log
    assert either_way == through_the_log


def test_records_in_two_partitions_of_a_topic_are_processed_as_they_were_written() -> (
    None
):
    """A row leaves one group for another; through the log, it was the reader's turn
    that decided which group changed first.
    """
    case = next(each for each in CASES if each["name"] == "table_group_aggregate-18")
    rows = [("a", value, 41, None) for value in ("r", "p,0", "q,0")]
    results = []
    for kind in (LongWay, TopologyTestDriver):
        world, topology = translated(case)
        with kind(topology, partitions=2) as driver:
            world.driver = driver
            results.append(seen(driver, [("in", rows)], together=False))
    through_the_log, directly = results
    assert directly == through_the_log


def doubled() -> Topology:
    builder = StreamsBuilder("doubled")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.map_values(lambda value: 12 // value, value=serdes.int64).to("out")
    return builder.build()


def test_a_record_may_be_a_tuple_of_two_to_four_or_a_record() -> None:
    with TopologyTestDriver(doubled()) as driver:
        driver.advance(ms(7))
        driver.input("in").send_all(
            [
                ("a", 1),
                ("b", 2, 20),
                ("c", 3, 30, [("h", b"1")]),
                Record("d", 4, 40),
            ]
        )
        rows = [
            (each.key, each.value, each.timestamp, each.headers)
            for each in driver.outputs()
        ]
    assert rows == [
        ("a", 12, 7, []),
        ("b", 6, 20, []),
        ("c", 4, 30, [("h", b"1")]),
        ("d", 3, 40, []),
    ]


@pytest.mark.parametrize("wrong", ["ab", ("a",), ["a", 1], ("a", 1, 2, None, 0)])
def test_what_is_no_record_is_an_error_that_says_which_one(wrong: Any) -> None:
    with (
        TopologyTestDriver(doubled()) as driver,
        pytest.raises(TopologyError, match=r"send_all: record 1 is .*give \(key, v"),
    ):
        driver.input("in").send_all([("a", 1), wrong])


def test_the_records_behind_one_that_fails_are_not_sent() -> None:
    records = iter([("a", 1), ("b", 0), ("c", 3)])
    with TopologyTestDriver(doubled()) as driver:
        with pytest.raises(CoopStreamsError, match="offset 1"):
            driver.input("in").send_all(records)
        assert list(records) == [("c", 3)]
        assert driver.output("out").latest() == {"a": 12}
