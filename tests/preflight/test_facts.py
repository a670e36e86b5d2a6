"""What a start asks of the cluster: as little as its checks need."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from coopstreams.common.config import Config
from coopstreams.common.topic_settings import IN_SYNC
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_at_start
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.naming import COMMIT_TOPIC, OFFSETS_TOPIC


class Counted(MemoryLog):
    """Counts listings of all topics, and requests for settings."""

    listings = 0
    described = 0

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        self.listings += topics is None
        return super().partitions(topics)

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        self.described += 1
        return super().topic_configs(topics)


@pytest.mark.parametrize(
    ("replicas", "in_sync", "said"),
    [
        (1, "2", "has 1 replica, and __consumer_offsets has 3: .*kafka-reassign-parti"),
        (3, "1", "has min.insync.replicas=1, and .* has 2: .*min.insync.replicas=2`"),
        (3, "2", ""),
        (4, "3", ""),
    ],
)
def test_a_commit_topic_that_survives_less_than_the_offsets_is_worth_a_warning(
    replicas: int,
    in_sync: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog()
    log.create_topics(
        [
            TopicSpec("in", 2),
            TopicSpec("out", 2),
            TopicSpec(COMMIT_TOPIC, 50, {IN_SYNC: in_sync}, replicas),
            TopicSpec(OFFSETS_TOPIC, 50, {IN_SYNC: "2"}, 3),
        ]
    )
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).to("out")
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    resolve_at_start(log, builder.build(), config, LastVersion(log, config))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == bool(said)
    assert not said or re.match(f"{COMMIT_TOPIC} {said}", told[0])


def test_a_start_lists_the_topics_once_and_asks_once_for_their_settings() -> None:
    log = Counted()
    log.create_topics([TopicSpec("in", 2), TopicSpec("out", 2)])
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by(lambda _, v: v, key=serdes.text, name="by").count(store="counts")
    stream.to("out")
    topology = builder.build()
    config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    for starts in (1, 2, 3):
        version = LastVersion(log, config)
        resolve_at_start(log, topology, config, version)
        assert (log.listings, log.described) == (starts, starts)
