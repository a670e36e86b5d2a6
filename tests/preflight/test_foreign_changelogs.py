"""Changelogs of Faust or Kafka Streams: a topic is missing that coopstreams makes
before its first row.
"""

from __future__ import annotations

import pytest

from coopstreams.common.config import Config
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.checks import CHECKS
from coopstreams.preflight.facts import gather_at_start
from coopstreams.preflight.findings import judge
from coopstreams.preflight.last_version import LastVersion, topic_spec
from coopstreams.preflight.resolution import create_missing
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

CONFIG = Config.of({"bootstrap.servers": "nowhere:1"}, "shop")
CHANGELOG = "shop-counts-changelog"


class Asked(MemoryLog):
    """Counts how often it is asked for the end of the changelog."""

    asked = 0

    def end_offsets(self, partitions):  # type: ignore[no-untyped-def]
        self.asked += any(at.topic == CHANGELOG for at in partitions)
        return super().end_offsets(partitions)


def counted() -> Topology:
    """Count the orders of each account, behind a repartition topic."""
    builder = StreamsBuilder("shop")
    orders = builder.stream("orders", key=serdes.text, value=serdes.text)
    orders.group_by(lambda _, account: account, key=serdes.text).count(store="counts")
    return builder.build()


def cluster(*written: str) -> Asked:
    """Return a cluster on which these topics have a record each, in their last
    partition.
    """
    log = Asked()
    log.create_topics(
        [TopicSpec("orders", 2), *(TopicSpec(topic, 2) for topic in written)]
    )
    writer = log.writer()
    for topic in written:
        writer.append(topic, [b'"ann"'], [b"143"], [1], partitions=1)
    return log


def start(log: MemoryLog, topics: set[str] | None = None) -> None:
    """Check as a process does that starts. `topics`: those that it has seen, if others
    have come since.
    """
    counts = log.partitions()
    seen = {topic: counts[topic] for topic in topics or counts}
    version = LastVersion(log, CONFIG)
    facts = gather_at_start(log, counted(), CONFIG, seen, version)
    judge(CHECKS, facts)
    create_missing(log, facts)


def test_rows_that_were_written_before_the_topology_was_are_of_another_framework() -> (
    None
):
    """Faust's counts were restored as ours: other keys, bytes without a serde, and each
    sum began from nothing.
    """
    log = cluster(CHANGELOG)
    for _ in range(2):  # a refused start has made nothing that lets the next one go on
        with pytest.raises(
            ConfigError,
            match=rf"{CHANGELOG}-1 has records, .* Faust .*another application.id.*`coopstreams reset`.*"
            r"`coopstreams topics create shop-topology --partitions 1 --set cleanup.policy=compact ",
        ):
            start(log)
    log.create_topics([topic_spec("shop")])
    start(log)


def test_our_rows_are_behind_the_topology() -> None:
    log = cluster()
    start(log)
    seen = set(log.partitions())
    LastVersion(log, CONFIG).take_over(counted(), log.partitions())
    log.writer().append(CHANGELOG, [b"ann"], [bytes(8)], [1], partitions=0)
    start(log)
    start(
        log, seen
    )  # another process was first, and wrote between two looks of this one


def test_brokers_are_asked_only_at_a_first_start_whose_changelogs_are_there() -> None:
    log = cluster()
    start(log)
    assert log.asked == 0, "it has made all topics itself"
    start(log)
    assert log.asked == 1, "another process may have made them"
    LastVersion(log, CONFIG).take_over(counted(), log.partitions())
    start(log)
    assert log.asked == 1


def test_other_topics_of_that_name_are_no_state() -> None:
    start(cluster("shop-KSTREAM-AGGREGATE-STATE-STORE-0000000001-repartition"))
    start(
        cluster("shop-sums-changelog")
    )  # of a store that this program has not: it is told as an orphan
