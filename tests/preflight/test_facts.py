"""What a start asks of the cluster: as little as its checks need."""

from __future__ import annotations

from collections.abc import Sequence

from coopstreams.common.config import Config
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_at_start
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder


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
