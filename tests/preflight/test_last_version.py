"""The record of an application's last version: repartition topics that may have no
positions yet, partition counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import make_dataclass
from typing import Any

import pytest

from coopstreams import Materialized, StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.group.format_level import LEVEL
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import GroupFence, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    FencedError,
    TopologyChangedError,
)
from coopstreams.topology.graph.outline import outline

ORDER = make_dataclass("Order", [("id", int)])
WITH_NOTE = make_dataclass("Order", [("id", int), ("note", str, "")])


def version(class_: Any, repartition: str | None) -> Topology:
    """Keep the latest order of each key; with `repartition`, of orders that come
    through this topic.
    """
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json(class_))
    (orders if repartition is None else orders.repartition(name=repartition)).to_table(
        store="latest"
    )
    return builder.build()


def test_topics_that_a_version_begins_with_stay_new_when_the_next_one_changes_nothing_of_them() -> (
    None
):
    log = MemoryLog()

    def taken_over(topology: Topology) -> set[str]:
        deployed = LastVersion(log, Config.of({"bootstrap.servers": "none"}, "app"))
        deployed.take_over(topology, {"orders": 1})
        again = LastVersion(log, Config.of({"bootstrap.servers": "none"}, "app"))
        again.last()
        assert again.new_repartitions == deployed.new_repartitions
        return set(deployed.new_repartitions)

    assert taken_over(version(ORDER, None)) == set()
    assert taken_over(version(ORDER, "moved")) == {"app-moved-repartition"}
    assert taken_over(version(WITH_NOTE, "moved")) == {"app-moved-repartition"}


def test_state_without_a_changelog_is_of_one_life_of_the_topic_that_keeps_the_topology() -> (
    None
):
    def taken_over(log: MemoryLog, *, logged: bool) -> str:
        builder = StreamsBuilder("app")
        numbers = builder.stream("in", key=serdes.text, value=serdes.text)
        numbers.group_by_key().count(store=Materialized("kept", logged=logged))
        return LastVersion(
            log, Config.of({"bootstrap.servers": "none"}, "app")
        ).take_over(builder.build(), {"in": 1})

    log = MemoryLog()
    assert taken_over(log, logged=True) == "", "a changelog has a topic id of its own"
    first = taken_over(log, logged=False)
    assert first
    assert taken_over(log, logged=False) == first
    log.delete_topics(["app-topology"])
    after_a_reset = taken_over(log, logged=False)
    assert len({"", first, after_a_reset, taken_over(MemoryLog(), logged=False)}) == 4


@pytest.mark.parametrize("reused", [False, True])
def test_rows_that_no_changelog_fixes_to_partitions_are_not_mixed_when_their_topic_grows(
    reused: bool,
) -> None:
    builder = StreamsBuilder("app")
    if reused:
        builder.table("in", key=serdes.text, value=serdes.text, store="kept")
    else:
        numbers = builder.stream("in", key=serdes.text, value=serdes.text)
        numbers.group_by_key().count(store=Materialized("kept", logged=False))
    topology, log = builder.build().optimized("all"), MemoryLog()

    def start(partitions: int, accepted: str = "") -> None:
        settings = {"bootstrap.servers": "none"} | (
            {"topology.change.accepted": accepted} if accepted else {}
        )
        deployed = LastVersion(log, Config.of(settings, "app"))
        deployed.take_over(topology, {"in": partitions})

    start(1)
    start(1)
    with pytest.raises(
        TopologyChangedError,
        match="store kept is mixed: in has 2 partitions, and had 1",
    ) as refused:
        start(2)
    start(2, str(refused.value).rpartition("=")[2])
    start(2)


@pytest.mark.parametrize("stalls_at", [1, 2, 3, 4])
def test_a_process_that_was_stopped_while_it_recorded_its_version_does_not_replace_that_of_its_successor(
    stalls_at: int,
) -> None:
    """It is asked before the topic is made, before the record and behind it; at the
    fourth question nobody stalls.
    """
    log = MemoryLog()
    config = Config.of({"bootstrap.servers": "none"}, "app")
    older, newer, counts = version(ORDER, None), version(WITH_NOTE, None), {"orders": 1}
    asked = 0

    def is_member() -> bool:
        nonlocal asked
        asked += 1
        if asked == stalls_at:  # the group removes it, and its successor begins
            LastVersion(log, config).take_over(newer, counts)
        return asked < stalls_at

    woken = LastVersion(log, config)
    if stalls_at < 4:
        with pytest.raises(FencedError, match="other processes may run"):
            woken.take_over(older, counts, is_member)
    else:
        woken.take_over(older, counts, is_member)
        assert asked == 3
    last = LastVersion(log, config).last()
    assert last is not None
    assert last == outline(newer if stalls_at < 4 else older)


def test_a_process_that_was_stopped_while_it_recorded_the_first_version_leaves_none() -> (
    None
):
    log = MemoryLog()
    config = Config.of({"bootstrap.servers": "none"}, "app")
    answers = iter([True, True, False])
    with pytest.raises(FencedError):
        LastVersion(log, config).take_over(
            version(ORDER, None), {"orders": 1}, lambda: next(answers)
        )
    assert LastVersion(log, config).last() is None


def test_a_process_that_was_stopped_while_it_started_makes_no_topics_after_a_reset() -> (
    None
):
    log, config = MemoryLog(), Config.of({"bootstrap.servers": "none"}, "app")
    topology = version(ORDER, None)
    log.create_topics([TopicSpec("orders", 1)])
    starting = LastVersion(log, config)
    assert starting.last() is None
    resolve_topology(log, topology, config, starting)
    starting.take_over(topology, {"orders": 1})
    starting.changelogs = frozenset()  # the group is not asked whether it has state
    log.delete_topics(["app-latest-changelog", "app-topology"])  # a reset
    LastVersion(log, config).take_over(topology, {"orders": 1})
    with pytest.raises(FencedError, match="app-topology was deleted and made anew"):
        resolve_topology(log, topology, config, starting)
    assert "app-latest-changelog" not in log.partitions()


class Offsets:
    """The group's plain offsets: Kafka deletes those of a topic with it."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        assert partitions is not None
        assert not stable
        committed = self._log.committed("app")
        return FetchedOffset({at: committed.get(at) for at in partitions}, frozenset())

    def commit(self, *topics: str) -> None:
        self._log.commit_offsets(
            {TopicPartition(topic, 0): (5, "") for topic in topics},
            GroupFence("app", 1, "member"),
        )


def merged(*topics: str) -> Topology:
    builder = StreamsBuilder("app")
    streams = [
        builder.stream(topic, key=serdes.text, value=serdes.text) for topic in topics
    ]
    for stream in streams[1:]:
        streams[0] = streams[0].merge(stream)
    streams[0].group_by_key().count(store="counts")
    return builder.build()


def test_a_source_that_was_made_anew_beside_another_is_told_from_one_that_was_added() -> (
    None
):
    log, config = MemoryLog(), Config.of({"bootstrap.servers": "none"}, "app")
    offsets = Offsets(log)
    changelog = "app-counts-changelog"
    log.create_topics(
        [TopicSpec(topic, 1) for topic in ("web", "shop", "phone", changelog)]
    )

    def start(*topics: str) -> None:
        LastVersion(log, config).take_over(
            merged(*topics), log.partitions(), positions=offsets
        )

    def make_anew(topic: str) -> None:
        log.delete_topics([topic])
        log.create_topics([TopicSpec(topic, 1)])

    start("web", "shop")
    make_anew("web")
    start("web", "shop")  # nothing was counted yet
    with closing(log.writer()) as writer:
        writer.append(changelog, [b"k"], [b"1"], [1], partitions=0)
        writer.flush(1)
    offsets.commit("web", "shop")
    start("web", "shop")
    start("web", "shop", "phone")  # added
    offsets.commit("phone")
    make_anew("web")
    for _ in range(2):
        with pytest.raises(
            ConfigError,
            match=r"web-0: the topic was deleted and made anew.*group reset",
        ):
            start("web", "shop", "phone")
    offsets.commit("web")  # as `coopstreams group reset` does
    start("web", "shop", "phone")
    make_anew("web")
    with pytest.raises(ConfigError, match="web-0: the topic was deleted and made anew"):
        start("web", "shop", "phone")


def test_the_record_has_the_level_of_formats_which_never_falls() -> None:
    log = MemoryLog()

    def taken_over(level: int | None) -> int:
        deployed = LastVersion(log, Config.of({"bootstrap.servers": "none"}, "app"))
        deployed.take_over(version(ORDER, None), {"orders": 1}, level=level)
        again = LastVersion(log, Config.of({"bootstrap.servers": "none"}, "app"))
        assert (again.level, again.first_level) == (0, LEVEL), "nothing was read yet"
        again.last()
        assert again.level == again.first_level == deployed.level
        return again.level

    assert taken_over(1) == 1, "a member of release 0.1 is in the group"
    assert taken_over(None) == 1, "a backfill leaves it as it is"
    assert taken_over(LEVEL) == LEVEL
    assert taken_over(1) == LEVEL, "what was written since cannot be read by 0.1"


def test_without_a_record_a_process_starts_with_the_formats_of_its_release() -> None:
    log = MemoryLog()
    deployed = LastVersion(log, Config.of({"bootstrap.servers": "none"}, "app"))
    deployed.take_over(version(ORDER, None), {"orders": 1})
    assert deployed.level == LEVEL
