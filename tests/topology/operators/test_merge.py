"""`merge`: the records of several streams in one."""

from typing import Any

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.windows import TimeWindows
from tests.topology.operators.results import outputs


def test_records_come_in_the_order_of_the_branches(flow: Any) -> None:
    def write(stream: Any) -> Any:
        return stream.map_values(lambda value: -value, value=serdes.json).merge(stream)

    assert flow(write, ("a", 1, 0), ("b", 2, 1)) == [
        ("a", -1, 0),
        ("a", 1, 0),
        ("b", -2, 1),
        ("b", 2, 1),
    ]


def test_streams_of_two_topics_become_one() -> None:
    builder = StreamsBuilder("app")
    left = builder.stream("left", key=serdes.text, value=serdes.text)
    left.merge(builder.stream("right", key=serdes.text, value=serdes.text)).to("out")
    assert outputs(builder.build(), ("right", "a", "r", 3), ("left", "a", "l", 1)) == [
        ("a", "r", 3),
        ("a", "l", 1),
    ]


def test_diamonds_do_not_double_the_code_below_them(flow: Any) -> None:
    def write(stream: Any) -> Any:
        for _ in range(12):
            stream = stream.filter(lambda _, value: value > 0).merge(
                stream.filter(lambda _, value: value < 0)
            )
        return stream

    assert flow(write, ("a", 1, 0), ("b", -1, 1)) == [("a", 1, 0), ("b", -1, 1)]


def windows_of_two_topics(ranges: int) -> tuple[list[tuple[str, int]], int]:
    builder = StreamsBuilder("app")
    left = builder.stream("left", key=serdes.text, value=serdes.text)
    both = left.merge(builder.stream("right", key=serdes.text, value=serdes.text))
    both.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(store="counts")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        left_topic, right_topic = (
            driver.input(topic, serdes.text, serdes.text) for topic in ("left", "right")
        )
        left_topic.send("a", "x", 5)
        right_topic.send("b", "x", 100)  # closes the window of all keys of both topics
        for key in "acdefgh":
            left_topic.send(key, "x", 6)
        return [(row.key.key, row.value) for row in driver.store("counts").all()], sum(
            driver.dropped.values()
        )


def test_windows_behind_a_merge_follow_the_stream_time_of_all_its_topics() -> None:
    expected = windows_of_two_topics(ranges=1)
    assert expected[1] == 7
    assert [windows_of_two_topics(ranges) for ranges in (2, 3, 8)] == [expected] * 3
