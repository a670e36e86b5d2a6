"""The resolved topology: topics by pattern, as the cluster has them at the time."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from coopstreams.common.config import Config
from coopstreams.group.format_level import LEVEL
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.tasks.resolved_topology import ResolvedTopology, at_level
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile import compile as compile_module
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.timed_topics import timed_topics
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId
from coopstreams.topology.windows import TimeWindows

CONFIG = Config.of({"bootstrap.servers": "in-memory"}, "app")


def topology() -> Topology:
    """Return a topology: sub-topology 0 copies the matching topics, 1 counts another
    topic.
    """
    builder = StreamsBuilder("app")
    builder.stream(re.compile("orders-.*"), key=serdes.text, value=serdes.raw).to("out")
    builder.stream("people", key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    return builder.build()


def cluster(**partitions: int) -> MemoryLog:
    log = MemoryLog()
    log.create_topics(
        [
            TopicSpec(name.replace("_", "-"), count)
            for name, count in {"people": 1, "out": 1, **partitions}.items()
        ]
    )
    return log


def test_a_task_reads_the_topics_that_have_its_partition_and_one_that_nobody_has_is_not_known() -> (
    None
):
    resolved = resolve_topology(cluster(orders_eu=1, orders_us=2), topology(), CONFIG)
    assert resolved.topics.tasks == (2, 1)
    assert resolved.sources(TaskId(0, 0, WHOLE)) == (
        TopicPartition("orders-eu", 0),
        TopicPartition("orders-us", 0),
    )
    assert resolved.sources(TaskId(0, 1, WHOLE)) == (TopicPartition("orders-us", 1),)
    assert resolved.sources(TaskId(0, 2, WHOLE)) == ()


def test_only_sub_topologies_with_new_topics_have_changed() -> None:
    log = cluster()
    before = resolve_topology(log, topology(), CONFIG)
    log.create_topics([TopicSpec("orders-eu", 1), TopicSpec("other", 1)])
    after = resolve_topology(log, topology(), CONFIG)
    assert (before.topics.tasks, after.topics.tasks) == ((0, 1), (1, 1))
    assert after.changed(before) == {0}
    assert resolve_topology(log, topology(), CONFIG).changed(after) == frozenset()


def test_what_it_needs_is_there_before_anybody_has_it() -> None:
    log = cluster(orders_eu=1)
    resolved: ResolvedTopology = resolve_topology(log, topology(), CONFIG)
    assert "app-counts-changelog" in log.partitions()
    assert set(resolved.programs) == {0, 1}


def test_the_timed_topics_are_not_looked_for_in_each_sub_topology_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes as long as a sub-topology has others beside it."""
    builder = StreamsBuilder("app")
    people = builder.stream("people", key=serdes.text, value=serdes.text)
    moved = people.group_by(lambda _, value: value, key=serdes.text)
    moved.windowed_by(TimeWindows(hours=1)).count(store="counts")
    built = builder.build()
    alone = [compile_subtopology(built, part) for part in built.subtopologies]
    looked = list[int]()

    def looking(parts: Iterable[SubTopology]) -> frozenset[str]:
        looked.append(1)
        return timed_topics(parts)

    monkeypatch.setattr(compile_module, "timed_topics", looking)
    programs = resolve_topology(cluster(), built, CONFIG).programs
    assert looked == []
    assert [program.clocked for program in programs.values()] == [False, True]
    for program, other in zip(programs.values(), alone, strict=True):
        assert program.timed_sinks == other.timed_sinks
        assert program.compiled(False).text == other.compiled(False).text


def test_a_topic_that_was_known_and_is_gone_is_missed() -> None:
    with pytest.raises(UnknownTopicError, match='no topic "orders-us"'):
        resolve_topology(cluster(orders_eu=1), topology(), CONFIG, known=["orders-us"])


def test_beside_a_member_of_release_0_1_no_topic_is_timed_and_what_feeds_windows_is_whole() -> (
    None
):
    builder = StreamsBuilder("app")
    builder.stream("people", key=serdes.text, value=serdes.raw).group_by(
        lambda key, _: key[:1], key=serdes.text, name="letter"
    ).windowed_by(TimeWindows(hours=1)).count(store="hours")
    now = resolve_topology(cluster(), builder.build(), CONFIG)
    early = at_level(now, CONFIG, 1)
    assert list(now.writers) == ["app-letter-repartition"]
    assert now.programs[0].timed_sinks
    assert now.programs[1].clocked
    assert not now.before_windows
    assert not early.writers
    assert not early.programs[0].timed_sinks
    assert not early.programs[1].clocked
    assert early.before_windows == {0: {"hours"}}
    assert early.announced == now.announced, "it is the same version of the topology"
    assert at_level(early, CONFIG, LEVEL).programs[1].clocked
    assert at_level(now, CONFIG, LEVEL) is now
