"""A topology with the topics that its patterns match now, their partition counts, and
the compiled programs.

Invariant: a `ResolvedTopology` is ready for use: its topics are checked, its internal
topics exist (`preflight.resolution`), and its programs are compiled.
Relies on: `group.format_level` (what a level of formats decides), `graph.fingerprint`
(what is announced).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coopstreams.common.config import Config
from coopstreams.group.format_level import CLOCKS, LEVEL
from coopstreams.group.members import Runs
from coopstreams.log.kafka.native import native_parts
from coopstreams.tasks.failure_handlers import may_drop
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import Program
from coopstreams.topology.compile.timestamps import extracting
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.offset_resets import EARLIEST
from coopstreams.topology.graph.partitions import ResolvedTopics
from coopstreams.topology.graph.subtopologies import before_windows
from coopstreams.topology.graph.timed_topics import timed_topics, writers_of
from coopstreams.topology.graph.topic_patterns import matched
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class ResolvedTopology:
    """A topology, its topics and its compiled programs, by sub-topology."""

    topology: Topology
    topics: ResolvedTopics
    programs: Mapping[int, Program]
    announced: tuple[Runs, ...]
    """The sub-topologies as this member announces them to the group, unless a
    restriction applies.
    """
    writers: Mapping[str, int] = field(default_factory=dict)
    """The number of source partitions of each timed topic's writers."""
    before_windows: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """The sub-topologies that the setting `ranges.before.windows` forbids to divide by
    key range, with the stores that they feed.
    """
    level: int = LEVEL
    """The level of formats that its programs write: see `format_level`."""

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the source partitions of a task: one of each source topic that has a
        partition of the task's number.

        Empty: this process does not know the task yet.
        """
        topics = self.programs[task.subtopology].subtopology.topics
        counts = self.topics.partitions
        return tuple(
            TopicPartition(topic, task.partition)
            for topic in topics
            if task.partition < counts[topic]
        )

    def writer_of(self, topic: str) -> int | None:
        """Return the sub-topology that writes to a timed topic; None: `topic` is not a
        timed topic.
        """
        return next(
            (n for n, program in self.programs.items() if topic in program.timed_sinks),
            None,
        )

    def changed(self, before: ResolvedTopology) -> frozenset[int]:
        """Return the sub-topologies whose source topics differ from those in `before`."""
        return frozenset(
            n
            for n, program in self.programs.items()
            if program.subtopology.topics != before.programs[n].subtopology.topics
        )


def as_it_runs(
    built: Topology,
    names: Iterable[str],
    config: Config,
) -> Topology:
    """Return the topology with its patterns resolved to the topics that exist, and with
    the timestamps and the optimisation that the settings ask for.

    Raises:
        TopologyError: see `matched`.
    """
    timed = extracting(matched(built, names), config.extractor)
    return timed.optimized(config["topology.optimization"])


def compiled(
    topology: Topology,
    topics: ResolvedTopics,
    config: Config,
    level: int = LEVEL,
) -> ResolvedTopology:
    """Return the topology with its topics and compiled programs, which write the
    formats of a level.
    """
    parts = topology.subtopologies
    prints = fingerprints(topology, topics.tasks)
    announced = tuple(
        Runs(
            prints[part.id],
            0 if part.unordered else topics.tasks[part.id],
            part.divisible,
        )
        for part in parts
    )
    wrapper = config["processor.wrapper"]
    reader = native_parts()
    drops = may_drop(config, ["processing"])
    timed = timed_topics(parts) if level >= CLOCKS else frozenset()
    programs = {
        part.id: compile_subtopology(
            topology,
            part,
            wrapper,
            reader,
            may_drop=drops,
            timed=timed,
        )
        for part in parts
    }
    writers = writers_of(timed, parts, topics.tasks)
    feeding = {} if config["ranges.before.windows"] else before_windows(parts, timed)
    return ResolvedTopology(
        topology,
        topics,
        programs,
        announced,
        writers,
        feeding,
        level,
    )


def at_level(
    resolved: ResolvedTopology,
    config: Config,
    level: int,
) -> ResolvedTopology:
    """Return the topology with programs that write the formats of a level."""
    if resolved.level == level:
        return resolved
    return compiled(resolved.topology, resolved.topics, config, level)


def reset_of(source: Source, config: Config) -> str:
    """Return the offset reset of a source: where its topics are read from if the group
    has no position.

    A repartition topic is read from its first record, because the application has
    written all of them.
    """
    return (
        EARLIEST
        if source.internal
        else source.reset or str(config["auto.offset.reset"])
    )


def reset_of_topic(
    topology: Topology,
    config: Config,
    topic: str,
) -> str:
    """Return the offset reset of a source topic, as `reset_of`."""
    for node in topology.nodes:
        if isinstance(node, Source) and topic in node.topics:
            return reset_of(node, config)
    return str(config["auto.offset.reset"])
