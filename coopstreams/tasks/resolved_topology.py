"""What an application reads: its topology with the topics that its patterns mean now, their partitions, and its
programs.

Invariant: a `ResolvedTopology` is complete before anybody has it: topics are checked, internal ones made, programs
ready to be bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coopstreams.common.config import Config
from coopstreams.group.members import Runs
from coopstreams.log.log import Log
from coopstreams.tasks.topics import prepare_topics
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import Program
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.partitions import ResolvedTopics
from coopstreams.topology.graph.patterns import matched
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class ResolvedTopology:
    """What is read at a time. `programs` by sub-topology."""

    topology: Topology
    topics: ResolvedTopics
    programs: Mapping[int, Program]
    announced: tuple[Runs, ...]
    """The sub-topologies as the group is told of them."""

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the partitions a task reads: each source topic of its sub-topology that has so many. None: the task is
        not known here yet.
        """
        topics, counts = self.programs[task.subtopology].subtopology.topics, self.topics.partitions
        return tuple(TopicPartition(topic, task.partition) for topic in topics if task.partition < counts[topic])

    def changed(self, before: ResolvedTopology) -> frozenset[int]:
        """Return the sub-topologies that read other topics than before."""
        return frozenset(
            n
            for n, program in self.programs.items()
            if program.subtopology.topics != before.programs[n].subtopology.topics
        )


def as_it_runs(built: Topology, names: Iterable[str], config: Config) -> Topology:
    """Return the topology that runs, given the topics that exist: its patterns filled in, optimised as the settings
    say.

    Raises:
        TopologyError: see `matched`.
    """
    return matched(built, names).optimized(config["topology.optimization"])


def resolve_topology(cluster: Log, built: Topology, config: Config, known: Collection[str] = ()) -> ResolvedTopology:
    """Return what an application reads now. `known`: topics that it reads already, whatever the cluster says.

    Raises:
        UnknownTopicError, TopologyError: see `prepare_topics` and `as_it_runs`.
    """
    topology = as_it_runs(built, {*cluster.partitions(), *known}, config)
    topics = prepare_topics(cluster, topology, config)
    parts = topology.subtopologies
    prints = fingerprints(topology, topics.tasks)
    announced = tuple(Runs(prints[part.id], topics.tasks[part.id], part.divisible) for part in parts)
    return ResolvedTopology(
        topology, topics, {part.id: compile_subtopology(topology, part) for part in parts}, announced
    )
