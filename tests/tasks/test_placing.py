"""Topics whose producers choose other partitions than murmur2 are found, and reported
once.
"""

from __future__ import annotations

import logging

import pytest

from coopstreams.tasks.misplaced_topics import FIRST, Misplaced, Placing
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.keys import partition_of

PARTITIONS = {"orders": 3, "alone": 1}
KEYS = [b"key-%d" % number for number in range(1000)]
RIGHT = {at: [key for key in KEYS if partition_of(key, 3) == at] for at in range(3)}


def counted(topic: str = "orders", *, store: bool = True) -> SubTopology:
    builder = StreamsBuilder("counted")
    orders = builder.stream(topic, key=serdes.text, value=serdes.int64)
    if store:
        orders.group_by_key().count(store="counts")
    else:
        orders.group_by(lambda _, value: str(value), key=serdes.text).count(
            store="counts"
        )
    return builder.build().subtopologies[0]


def looked_at(
    part: SubTopology, *batches: tuple[TopicPartition, list[bytes | None]]
) -> Misplaced:
    misplaced = Misplaced()
    placing = Placing(part, PARTITIONS, misplaced)
    for source, keys in batches:
        placing.look(source, keys)
    return misplaced


def test_a_topic_with_a_key_of_another_partition_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    misplaced, source = Misplaced(), TopicPartition("orders", 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # two tasks
            placing = Placing(counted(), PARTITIONS, misplaced)
            placing.look(source, [None, *RIGHT[1][:9], RIGHT[0][0]])
            placing.look(source, [RIGHT[2][0]])
    [line] = caplog.messages
    assert "orders-1 has a key that murmur2 puts in partition 0 of 3" in line
    assert "partitioner=murmur2_random" in line
    assert misplaced.topics == {"orders": line}


def test_keys_in_their_partitions_are_no_reason() -> None:
    batches = [(TopicPartition("orders", at), [None, *RIGHT[at]]) for at in RIGHT]
    assert looked_at(counted(), *batches).topics == {}


def test_behind_the_first_records_the_first_of_each_batch_is_looked_at() -> None:
    source, wrong = TopicPartition("orders", 1), RIGHT[0][0]
    right: list[bytes | None] = [*RIGHT[1][:FIRST]]
    assert len(right) == FIRST
    assert (
        looked_at(counted(), (source, right), (source, [*right[:5], wrong])).topics
        == {}
    )
    assert (
        "orders"
        in looked_at(
            counted(), (source, right), (source, right), (source, [wrong, *right])
        ).topics
    )


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (counted("alone"), TopicPartition("alone", 0)),  # one partition
        (
            counted(store=False),
            TopicPartition("orders", 1),
        ),  # nothing to query: the counts are behind a repartition
    ],
)
def test_where_no_query_can_go_wrong_nothing_is_looked_at(
    part: SubTopology, source: TopicPartition
) -> None:
    assert looked_at(part, (source, [RIGHT[0][0]])).topics == {}
