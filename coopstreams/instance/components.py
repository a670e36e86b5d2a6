"""The components of an instance: cluster, topics, programs, state folder, metrics;
built and connected once.

Invariant: everything opened here is closed here, in the opposite order.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.common.config import SETTINGS, Config
from coopstreams.common.extra import need_otel
from coopstreams.common.host import Host
from coopstreams.common.metrics import Metrics
from coopstreams.group.active_version import assign_active
from coopstreams.group.coordinator_interface import Timings
from coopstreams.group.members import Cluster, MemberInfo
from coopstreams.group.membership import GroupMember
from coopstreams.instance.restrictions import Restrictions
from coopstreams.instance.source_times import SourceTimes
from coopstreams.instance.subscription import PatternSubscription
from coopstreams.instance.task_registry import Standing
from coopstreams.instance.twins import twins
from coopstreams.instance.watcher import Watcher
from coopstreams.log.kafka.native import native_tables
from coopstreams.log.kafka.wiring import KAFKA, Wiring
from coopstreams.log.log import Log
from coopstreams.opening.globals import Globals
from coopstreams.opening.opener import Opener, Stages
from coopstreams.opening.position_check import PositionCheck
from coopstreams.opening.restores import Restores
from coopstreams.opening.sink_openings import SinkOpenings
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_at_start
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.state.engines import check_store_types
from coopstreams.state.snapshot_restore import Snapshots
from coopstreams.tasks.committer import Committer, Places
from coopstreams.tasks.events import Event
from coopstreams.tasks.failure_handlers import (
    FailureHandler,
    dead_letter_topics,
    may_drop,
)
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.tasks.misplaced_topics import Misplaced, Placing
from coopstreams.tasks.outlasting import Outlasting
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeats import Sayings
from coopstreams.tasks.resolved_topology import ResolvedTopology, reset_of_topic
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.tally import Tallies, Tally
from coopstreams.tasks.task import Incarnation, Task, TaskServices, TaskSettings
from coopstreams.tasks.tries import Tries
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.program import Program
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.graph.join_nodes import stores_of
from coopstreams.topology.graph.nodes import Sink, SubTopology
from coopstreams.topology.graph.partitions import ResolvedTopics, grown
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

if TYPE_CHECKING:
    from coopstreams.tasks.spans import RecordSpans

log = logging.getLogger(__name__)

WATCHING_S = 1.0
"""How long the watcher waits for one answer."""


@dataclass(slots=True)
class Components:
    """The components of one instance, from which it builds its threads."""

    wiring: Wiring
    config: Config
    built: Topology
    """The topology as the user built it: patterns are not resolved."""
    log: Log
    watching: Log
    """A second client of the same cluster, for the watcher: short time-outs; its
    requests delay no other thread.
    """
    resolved: ResolvedTopology
    directory: StateDirectory
    databases: Databases
    metrics: Metrics
    follower: Follower
    globals: Globals
    process: str
    """The name of this run of the process."""
    refusals: Refusals
    tallies: Tallies
    sayings: Sayings
    outlasting: Outlasting
    tries: Tries = field(default_factory=Tries, init=False)
    misplaced: Misplaced = field(default_factory=Misplaced, init=False)
    deployed: LastVersion
    restrictions: Restrictions = field(init=False)
    source_times: SourceTimes = field(init=False)
    tracing: Callable[[TaskId], RecordSpans] | None = field(init=False)
    """Makes the spans of a task; None: nothing is traced."""
    _closing: ExitStack

    @staticmethod
    def build(topology: Topology, config: Config, wiring: Wiring = KAFKA) -> Components:
        """Build the components: brokers reached, topics checked and created, state
        folder locked.

        Raises:
            ConfigError: a store's engine is not available, a schema does not fit, a
                changelog was deleted, or is another framework's, or a backfill waits to
                be published.
            LogError: the brokers cannot be reached within `connect.timeout.ms`.
            TopologyError, UnknownTopicError: the topics do not fit the topology, or the
            state of its last version does
                not.
            StateLockedError: another process uses the state folder.
        """
        application = config["application.id"]
        host = wiring.host
        if config["tracing.ratio"] is not None:
            need_otel("tracing.ratio")
        with ExitStack() as closing:
            check_store_types(
                (spec for s in topology.subtopologies for spec in s.stores),
                config["default.dsl.store"],
            )
            closing.enter_context(schemas_bound(topology, config))
            directory = StateDirectory(
                config["state.dir"],
                application,
                config["instance"],
                store_type=config["default.dsl.store"],
            )
            closing.callback(directory.close)
            cluster = wiring.cluster(
                client_settings(config), config["connect.timeout.ms"] / 1000
            )
            closing.callback(cluster.close)
            watching = wiring.cluster(client_settings(config), WATCHING_S)
            closing.callback(watching.close)
            deployed = LastVersion(cluster, config, host)
            resolved = resolve_at_start(cluster, topology, config, deployed)
            subtopologies = {
                subtopology.id: subtopology
                for subtopology in resolved.topology.subtopologies
            }
            process = f"{directory.process_id[:8]}-{host.unique()[:8]}"
            databases = Databases(
                directory,
                subtopologies,
                task_buffer_bytes(config, resolved.topics.tasks),
                lambda part: native_tables(
                    part, config, caching=config["statestore.cache.max.bytes"] > 0
                ),
            )
            follower = Follower(
                cluster, application, replication=config["replication.factor"]
            )
            follower.check_policy()
            metrics = Metrics(application, process)
            sayings = Sayings(host)
            tallies = Tallies(metrics, host, _store_names(topology))
            closing.callback(sayings.close)
            tables = Globals(
                cluster,
                topology.global_tables,
                resolved.topics.partitions,
                config,
                tallies.failure,
                sayings,
                partial(metrics.dropped, None),
                host,
            )
            closing.callback(tables.stop)
            shared = (
                Refusals(cluster, config, host),
                tallies,
                sayings,
                Outlasting.of(config),
                deployed,
            )
            made = resolved, directory, databases, metrics, follower, tables, process
            components = Components(
                wiring,
                config,
                topology,
                cluster,
                watching,
                *made,
                *shared,
                closing.pop_all(),
            )
            components.restrictions.look()
            # the watcher continues to read, on its own thread
            components.restrictions.close()
            return components

    def __post_init__(self) -> None:
        self.tracing = _tracing(self.config)
        self.restrictions = Restrictions(
            self.watching, lambda: self.resolved, self.host
        )
        self._closing.callback(self.restrictions.close)
        self.source_times = SourceTimes(
            self.follower,
            lambda: self.resolved,
            self.config["repartition.idle.ms"],
            self.host,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def host(self) -> Host:
        """The machine that the instance runs on."""
        return self.wiring.host

    @property
    def application(self) -> str:
        """The application id, which is also the group."""
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

    def timestamp_of(self, topic: str) -> TimestampColumn | None:
        """Return the timestamp extractor of a source topic, for the reader."""
        return next(
            (
                program.timestamp_of[topic]
                for program in self.programs.values()
                if topic in program.timestamp_of
            ),
            None,
        )

    def operator_times_of(self, topic: str) -> OperatorTimeColumns | None:
        """Return the operator times of a source topic, which the reader hands to tasks
        that share a partition.
        """
        return next(
            (
                program.operator_times_of(topic, may_drop=may_drop(self.config))
                for program in self.programs.values()
                if topic in program.subtopology.topics
            ),
            None,
        )

    def writers_of(self, topic: str) -> int | None:
        """Return the number of source partitions of the writers of a timed topic; None:
        it is none.
        """
        return self.resolved.writers.get(topic)

    def transactional_id(self, thread: int) -> str:
        """Return the transactional id of a stream thread: the same after a restart on
        the same state folder.
        """
        return f"{self.application}-{self.directory.process_id}-{thread}"

    def twins(self, cluster: Cluster) -> list[str]:
        """Return a sentence for each other member of the group that has the process id
        of this one.
        """
        return twins(cluster, self.process, self.directory.folder)

    def changelog(self, store: StoreSpec) -> str:
        """Return the changelog topic of a store."""
        return changelog_topic(self.application, store.name)

    def subtopology(self, number: int) -> SubTopology:
        """Return a sub-topology by its number."""
        return self.programs[number].subtopology

    def member(
        self,
        emit: Callable[[Event], None],
        alive: Callable[[], bool],
        endpoint: Callable[[], str | None],
        ending: Callable[[], str],
        capacity: Callable[[], tuple[int, Sequence[int]]],
    ) -> GroupMember:
        """Return this process as a member of the group, not yet joined.

        `capacity`: how many stream threads take tasks, and the numbers of all.
        """

        def info() -> MemberInfo:
            threads, numbers = capacity()
            ids = (
                tuple(self.transactional_id(number) for number in numbers)
                if self.config.exactly_once
                else ()
            )
            return MemberInfo(
                self.process,
                self.host.called(),
                endpoint(),
                threads,
                ids,
                ending=ending(),
                topology=self.restrictions.announced(),
            )

        assign = partial(assign_active, ranges=self.config["ranges.per.partition"])
        timings = Timings(
            session=self.config["session.timeout.ms"],
            heartbeat=self.config["heartbeat.interval.ms"],
            connect=self.config["connect.timeout.ms"],
        )
        # The previous process of the state folder is dead, since this process has its
        # lock. Under exactly-once, brokers fence the transactions it left. Otherwise
        # only the session time-out keeps its records from the changelogs.
        predecessor = self.directory.last_member if self.config.exactly_once else ""
        return GroupMember(
            self.wiring.coordinator(self.config.client),
            self.application,
            self.subscribed,
            info,
            assign,
            emit,
            alive,
            predecessor=predecessor,
            sources=self.source_topics,
            timings=timings,
            host=self.host,
        )

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the source partitions of a task; none if this process has not seen its
        topics yet.
        """
        return self.resolved.sources(task)

    @property
    def subscribed(self) -> list[str]:
        """All topics that the group commits offsets for.

        The commit topic is among them: brokers expire the offsets of topics to which no
        member subscribes.
        """
        read = {topic for topics in self.source_topics.values() for topic in topics}
        return sorted(
            {*self.topology.source_topics, *read, self.follower.partition.topic}
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

    def subscription(self, emit: Callable[[Event], None]) -> PatternSubscription:
        """Return the thread that watches for new topics, not yet started."""
        return PatternSubscription(
            self.log,
            self.built,
            self.config,
            self.resolved,
            emit,
            self.host,
            self.deployed,
        )

    def thread(
        self, number: int, member: GroupMember, emit: Callable[[Event], None]
    ) -> StreamThread:
        """Return a stream thread, not yet started."""
        committer = Committer(
            self.log,
            member,
            self.follower,
            self.config,
            Places(number, self.transactional_id(number), self.changelog, self.written),
            self.metrics,
            self.refusals,
            self.host,
        )
        return StreamThread(
            number,
            committer,
            emit,
            self.config.commit_interval_s,
            self.outlasting,
            host=self.host,
        )

    def written(self) -> frozenset[str]:
        """Return all topics that the application writes to."""
        marked = {
            topic for program in self.programs.values() for topic in program.idle_ms
        }
        return self.results() | marked | {self.follower.partition.topic}

    def results(self) -> frozenset[str]:
        """Return those of them that have records of its program, internal ones and dead
        letters included.
        """
        internal = {plan.name for plan in self.topics.internal}
        return frozenset(
            {
                *self.topology.sink_topics,
                *internal,
                *dead_letter_topics(self.topology, self.config),
            }
        )

    def purged(self) -> frozenset[str]:
        """Return the repartition topics: their records are deleted when they have been
        processed.
        """
        nodes = (node for part in self.topology.subtopologies for node in part.nodes)
        return frozenset(
            node.topic for node in nodes if isinstance(node, Sink) and node.internal
        )

    def opener(
        self,
        member: GroupMember,
        emit: Callable[[Event], None],
        moved: Callable[[], None],
        listener: RestoreListener,
    ) -> Opener:
        """Return the thread that opens tasks, not yet started."""
        position_check = PositionCheck(
            self.application,
            self.log,
            member,
            lambda: self.resolved,
            self.changelog,
            lambda: self.deployed.new_repartitions,
        )
        positions = Positions(
            self.log,
            member,
            self.follower,
            self.sources,
            lambda topic: reset_of_topic(self.topology, self.config, topic),
            self.transactional_id(0),
            begun=position_check.check,
            purged=frozenset() if self.config.exactly_once else self.purged(),
            host=self.host,
        )
        place = self.config["snapshots.dir"]
        snapshots = (
            Snapshots(place, self.application, self.directory.folder / "snapshots")
            if place
            else None
        )
        restores = Restores(
            self.log, self.changelog, snapshots, self.metrics, listener, self.host
        )
        # Match the whole id: the id of another application may have the same beginning.
        form = re.compile(
            re.escape(self.application)
            + r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+"
        )
        barrier = Barrier(
            member,
            self.follower,
            lambda name: form.fullmatch(name) is not None,
            lambda dead: self.log.settle(dead, self.written()),
            self.host,
        )
        sinks = SinkOpenings(self.application, self.log, self.follower.wake, self.host)
        return Opener(
            member,
            self.follower,
            Stages(barrier, positions, restores, sinks),
            self.databases,
            lambda epoch: self.directory.begin(
                self.deployed.take_over(
                    self.topology,
                    self.topics.partitions,
                    lambda: member.sure(epoch),
                    member,
                )
            ),
            emit,
            moved,
            self.host,
        )

    def watcher(
        self,
        standing: Callable[[], Standing],
        emit: Callable[[Event], None],
        paused: Callable[[], bool],
        all_read: Callable[[TopicPartition, int], bool],
        sure: Callable[[int], bool],
    ) -> Watcher:
        """Return the thread that measures lags and purges repartition topics, not yet
        started.

        `all_read`: `Dispatcher.all_read`. `sure`: `GroupMember.sure`.
        """
        purge_every_s = self.config["repartition.purge.interval.ms"] / 1000
        rests_s = (
            self.config.commit_interval_s
            + max(0, self.config["max.task.idle.ms"]) / 1000
        )
        return Watcher(
            self.watching,
            # The replicas are asked over the connections that the opener has already:
            # so they are known in an outage, too.
            self.log.silent_replicas,
            self.metrics,
            self.tallies,
            self.sayings,
            standing,
            self.purged(),
            purge_every_s,
            rests_s,
            emit,
            self.changelog,
            self.globals.topic_ids,
            self.restrictions.look,
            lambda: grown(
                self.topology, self.topics.partitions, self.watching.partitions()
            ),
            paused,
            all_read,
            sure,
            self.host,
        )

    def task(self, opened: Incarnation, dead_letter: Committer) -> Task:
        """Return a task, ready to run on the thread of this committer."""
        tally = Tally()
        on_failure = FailureHandler(
            opened.id,
            self.config,
            partial(self.tallies.failed, opened.id, tally),
            dead_letter.dead_letter,
            self.sayings,
            tries=self.tries,
            topics=self.topology.dead_letter_topics,
        )
        return Task(
            opened,
            self.programs[opened.id.subtopology],
            on_failure,
            tally,
            TaskSettings(
                caching=self.config["statestore.cache.max.bytes"] > 0,
                by_key=self.restrictions.policy.accepts_individual_commit,
                max_idle_ms=self.config["max.task.idle.ms"],
                exactly_once=self.config.exactly_once,
            ),
            TaskServices(
                partitions=cache(self.partitions),
                global_tables=self.globals.rows,
                host=self.host,
                latency=partial(self.metrics.latency, opened.id.subtopology),
                spans=None if self.tracing is None else self.tracing(opened.id),
                placing=Placing(
                    self.subtopology(opened.id.subtopology),
                    self.topics.partitions,
                    self.misplaced,
                ),
            ),
        )

    def partitions(self, topic: str) -> int:
        """Return the partition count of a topic that the application writes to.

        Raises:
            UnknownTopicError: it does not exist.
        """
        count = self.log.partitions([topic]).get(topic)
        if count is None:
            raise UnknownTopicError(
                f'the application writes to "{topic}", which does not exist. Create it, and start anew.'
            )
        return count

    def closed(self, task: Task) -> None:
        """Release the database of a task that has ended here, and remove its metrics."""
        self.databases.leave(task.id)
        self.tallies.closed(task)
        self.metrics.task_closed(task.id)


def _tracing(config: Config) -> Callable[[TaskId], RecordSpans] | None:
    ratio = config["tracing.ratio"]
    if ratio is None:
        return None
    from opentelemetry.trace import get_tracer

    from coopstreams.tasks.spans import RecordSpans

    return partial(
        RecordSpans, get_tracer("coopstreams"), ratio, config["application.id"]
    )


def task_buffer_bytes(config: Config, partitions: Sequence[int]) -> int:
    """Return the bound on the buffers of one task, given the partition count of each
    sub-topology.

    The buffers of a process keep to the setting, also if it has all tasks: a partition
    is cut into as many key ranges as there are threads for it.
    """
    # Without a record cache updates are forwarded one by one; the write buffer still
    # keeps recent rows.
    of_process: int = (
        config["statestore.cache.max.bytes"]
        or SETTINGS["statestore.cache.max.bytes"][1]
    )
    threads = config["num.stream.threads"]
    ranges = config["ranges.per.partition"]
    tasks: int = sum(max(count * ranges, threads) for count in partitions if count)
    return max(1 << 20, of_process // max(1, tasks))


def client_settings(config: Config) -> dict[str, Any]:
    """Return the settings of the Kafka clients, with time-outs that match those of the
    group.
    """
    own = {
        "producer.transaction.timeout.ms": config["transaction.timeout.ms"],
        # Below the flush time-out: otherwise a deleted topic looks like an unreachable
        # Kafka, for ever.
        "producer.topic.metadata.propagation.max.ms": min(
            10_000, config["transaction.timeout.ms"] // 3
        ),
    }
    given = {name.removeprefix("producer.") for name in config.client}
    if not config.exactly_once and not given & {
        "message.timeout.ms",
        "delivery.timeout.ms",
    }:
        # A process that was suspended for longer has a successor: its unsent records
        # would overwrite the successor's in the changelog.
        own["producer.message.timeout.ms"] = config["session.timeout.ms"]
    return {**own, **config.client}


def _store_names(topology: Topology) -> dict[str, str]:
    """Return the name of the first store of each node that has one."""
    return {
        node.name: stores[0].name
        for node in topology.nodes
        if (stores := stores_of(node))
    }
