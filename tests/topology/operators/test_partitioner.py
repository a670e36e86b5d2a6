"""`partitioner=` of `to` and `repartition`: the partition of each record is the
program's choice.
"""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import Processor, Record
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.topology import Topology


def by_length(topic: str, key: str | None, value: str, partitions: int) -> int:
    return (len(topic) + len(key or "") + len(value)) % partitions


def topology_of(topic: Any, partitioner: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).to(
        topic, partitioner=partitioner, name="the-sink"
    )
    return builder.build()


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("topic", ["out", lambda _, value: f"to-{value}"])
def test_it_is_given_topic_key_value_and_how_many_partitions_there_are(
    topic: Any, ranges: int
) -> None:
    with TopologyTestDriver(
        topology_of(topic, by_length), ranges, partitions={"out": 3}
    ) as driver:
        for key, value in [("k", "a"), ("key", "a"), (None, "bc"), ("k", "a")]:
            driver.input("in", serdes.text, serdes.text).send(key, value)
        partitions = 3 if topic == "out" else 1
        seen = [(record.key, record.partition) for record in driver.outputs()]
        assert seen == [
            (key, by_length("out", key, value, partitions))
            for key, value in [("k", "a"), ("key", "a"), (None, "bc"), ("k", "a")]
        ]


def test_beside_it_another_sink_of_the_topic_leaves_the_choice_to_the_key() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.to("out")
    stream.to("out", partitioner=by_length)
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        for value in ("a", "bc"):
            driver.input("in", serdes.text, serdes.text).send("k", value)
        assert [record.partition for record in driver.outputs()] == [None, 1, None, 0]


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize(
    "topic", ["out", lambda _key, _value: "out"], ids=["static", "dynamic"]
)
def test_it_may_choose_several_partitions_or_none(topic: Any, ranges: int) -> None:
    wanted: dict[str, Any] = {
        "one": 2,
        "two": [2, 0],
        "again": (1, 1),
        "all": {0, 1, 2},
        "none": [],
    }
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.to(
        topic,
        partitioner=lambda _topic, _key, value, _partitions: wanted[value],
        name="the-sink",
    )
    stream.filter(lambda _key, _value: False).to("out")
    with TopologyTestDriver(builder.build(), ranges, partitions={"out": 3}) as driver:
        for time, value in enumerate(wanted):
            driver.input("in", serdes.text, serdes.text).send(
                "k", value, timestamp=time, headers=[("h", value.encode())]
            )
        seen = [
            (record.value, record.partition, record.timestamp)
            for record in driver.outputs()
        ]
        assert seen == [
            ("one", 2, 0),
            ("two", 2, 1),
            ("two", 0, 1),
            ("again", 1, 2),
            ("all", 0, 3),
            ("all", 1, 3),
            ("all", 2, 3),
        ]
        assert all(
            record.headers == [("h", record.value.encode())]
            for record in driver.outputs()
        )
        assert driver.dropped == {("the-sink", "no-partition"): 1}


def test_what_one_sink_drops_another_still_writes() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.to("dropped", partitioner=lambda _topic, _key, _value, _partitions: ())
    stream.to("kept")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.text, serdes.text).send("k", "v")
        assert [record.topic for record in driver.outputs()] == ["kept"]


@pytest.mark.parametrize(
    "partition",
    [3, -1, None, True, "0", "", b"\x00", [0, 3], [None], {0: "zero", "1": "one"}],
)
def test_a_partition_that_the_topic_does_not_have_fails_the_record(
    partition: Any,
) -> None:
    topology = topology_of("out", lambda _topic, _key, _value, _partitions: partition)
    with (
        TopologyTestDriver(topology, partitions={"out": 3}) as driver,
        pytest.raises(ProcessingError, match=r"the-sink.*partitions 0 to 2"),
    ):
        driver.input("in", serdes.text, serdes.text).send("k", "v")


def test_what_cannot_be_called_with_four_arguments_is_refused() -> None:
    with pytest.raises(TopologyError, match="partitioner="):
        topology_of("out", lambda key: 0)


def by_value(_topic: str, _key: str, value: str, partitions: int) -> int:
    return int(value) % partitions


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_repartition_topic_gets_the_records_where_the_program_says(
    ranges: int,
) -> None:
    seen: dict[str, set[int]] = {}

    class Where(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            assert self.context.metadata is not None
            assert self.context.metadata.topic == "app-spread-repartition"
            seen.setdefault(record.value, set()).add(self.context.metadata.partition)

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.repartition(name="spread", partitions=3, partitioner=by_value).process(
        Where, by_key=False
    )
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for value in ("0", "1", "2", "3", "4"):
            driver.input("in", serdes.text, serdes.text).send("one key", value)
    assert seen == {"0": {0}, "1": {1}, "2": {2}, "3": {0}, "4": {1}}


@pytest.mark.parametrize("ranges", [1, 4])
def test_what_needs_equal_keys_together_behind_it_repartitions_by_key(
    ranges: int,
) -> None:
    builder = StreamsBuilder("app")
    people = builder.table("people", key=serdes.text, value=serdes.text, store="people")
    spread = builder.stream("in", key=serdes.text, value=serdes.text).repartition(
        name="spread", partitions=3, partitioner=by_value
    )
    spread.group_by_key(name="by-key").count(store="counts")
    spread.join(people, lambda value, name: f"{name} {value}", value=serdes.text).to(
        "out"
    )
    topology = builder.build()
    by_key = {
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    } - {"app-spread-repartition"}
    assert by_key == {"app-by-key-repartition"}, "one for both"
    with TopologyTestDriver(topology, ranges, partitions=2) as driver:
        driver.input("people", serdes.text, serdes.text).send("ann", "Ann")
        for value in ("0", "1", "2"):
            driver.input("in", serdes.text, serdes.text).send("ann", value)
        assert driver.store("counts").get("ann") == 3
        assert sorted(record.value for record in driver.outputs()) == [
            "Ann 0",
            "Ann 1",
            "Ann 2",
        ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_through_a_repartition_topic_a_record_comes_as_often_as_it_was_sent_and_state_follows_its_key(
    ranges: int,
) -> None:
    seen: list[int] = []
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    spread = stream.repartition(
        name="spread",
        partitions=3,
        partitioner=lambda _topic, _key, value, partitions: range(partitions)[
            : int(value)
        ],
    )
    spread.process(lambda: Seen(seen), by_key=False)
    spread.group_by_key(name="by-key").count(store="counts")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for key, value in [("all", "3"), ("two", "2"), ("none", "0"), ("two", "1")]:
            driver.input("in", serdes.text, serdes.text).send(key, value)
        assert {
            key: driver.store("counts").get(key) for key in ("all", "two", "none")
        } == {
            "all": 3,
            "two": 3,
            "none": None,
        }
    assert sorted(seen) == [0, 0, 0, 1, 1, 2]


class Seen(Processor[str, str, str, str]):
    """Notes the partition of each record."""

    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def process(self, record: Record[str, str]) -> None:
        assert self.context.metadata is not None
        self._seen.append(self.context.metadata.partition)
