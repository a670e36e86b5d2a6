"""What an instance runs, and its names: configuration, program, topics, ids.

Invariant: a plan never changes. If other topics match a pattern, a new plan replaces it
as a whole.
Relies on: `components` (replaces it), `tasks.resolved_topology`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coopstreams.common.config import Config
from coopstreams.tasks.failure_handlers import dead_letter_topics, may_drop
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.program import Program
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.graph.nodes import Sink, SubTopology
from coopstreams.topology.graph.partitions import ResolvedTopics
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import COMMIT_TOPIC, changelog_topic
from coopstreams.topology.stores import StoreSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """The configuration, the program and the names of one instance."""

    config: Config
    built: Topology
    """The topology as the user built it: patterns are not resolved."""
    resolved: ResolvedTopology
    """The topology that runs."""
    process_id: str
    """The id of the state folder. It stays the same after a restart."""
    process: str
    """The name of this run of the process."""
    instance_id: str | None = None
    """The id of this process as a static member of its group; None: it is not static."""

    @property
    def application(self) -> str:
        """The application id, which is also the name of the consumer group."""
        return str(self.config["application.id"])

    @property
    def topology(self) -> Topology:
        """The topology with its patterns resolved to the current topics."""
        return self.resolved.topology

    @property
    def topics(self) -> ResolvedTopics:
        """The partition counts of all topics."""
        return self.resolved.topics

    @property
    def programs(self) -> Mapping[int, Program]:
        """The program of each sub-topology."""
        return self.resolved.programs

    @property
    def ends_s(self) -> float:
        """The longest time from the request to end until all tasks are closed. Units:
        seconds.
        """
        return self.config.ends_s(calls=self.topology.makes_calls)

    def subtopology(self, number: int) -> SubTopology:
        """Return a sub-topology by its number."""
        return self.programs[number].subtopology

    def timestamp_of(self, topic: str) -> TimestampColumn | None:
        """Return the timestamp extractor of a source topic, for the reader; None: it
        has none.
        """
        for program in self.programs.values():
            if topic in program.timestamp_of:
                return program.timestamp_of[topic]
        return None

    def operator_times_of(self, topic: str) -> OperatorTimeColumns | None:
        """Return the function by which the reader computes operator times of a source
        topic, for tasks that share a partition; None: it needs none.
        """
        for program in self.programs.values():
            if topic in program.subtopology.topics:
                return program.operator_times_of(topic, may_drop=may_drop(self.config))
        return None

    def transactional_id(self, thread: int) -> str:
        """Return the transactional id of a stream thread. It stays the same after a
        restart on the same state folder.
        """
        return f"{self.application}-{self.process_id}-{thread}"

    def changelog(self, store: StoreSpec) -> str:
        """Return the changelog topic of a store."""
        return changelog_topic(self.application, store.name)

    @property
    def subscribed(self) -> list[str]:
        """All topics for which the group commits offsets.

        The commit topic is among them: brokers expire the offsets of topics to which no
        member subscribes.
        """
        read = {topic for topics in self.source_topics.values() for topic in topics}
        return sorted(
            {*self.topology.source_topics, *read, COMMIT_TOPIC}
            - {*self.topology.unordered_topics}
        )

    @property
    def source_topics(self) -> dict[int, tuple[str, ...]]:
        """The topics that each sub-topology reads in order."""
        return {
            part.id: part.topics
            for part in self.topology.subtopologies
            if not part.unordered
        }

    @property
    def written(self) -> frozenset[str]:
        """All topics that the application writes to."""
        marked = {
            topic for program in self.programs.values() for topic in program.idle_ms
        }
        return self.results | marked | {COMMIT_TOPIC}

    @property
    def results(self) -> frozenset[str]:
        """The topics to which the program's records are written, including internal
        topics and dead letters.
        """
        internal = {topic.name for topic in self.topics.internal}
        letters = dead_letter_topics(self.topology, self.config)
        return frozenset({*self.topology.sink_topics, *internal, *letters})

    @property
    def purged(self) -> frozenset[str]:
        """The repartition topics, whose records are deleted when they have been
        processed.
        """
        nodes = (node for part in self.topology.subtopologies for node in part.nodes)
        return frozenset(
            node.topic for node in nodes if isinstance(node, Sink) and node.internal
        )
