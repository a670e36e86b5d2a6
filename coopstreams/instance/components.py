"""The components of an instance: cluster, topics, programs, state folder, metrics. They
are built and connected once.

Most methods make one thread or part of `Instance`, and start nothing.

Invariant: everything opened here is closed here, in the opposite order.
Invariant: the control thread replaces `plan`. So what may change with it is passed on as
a function that reads it, and never as a value.
Relies on: `instance` (in which order the parts start and stop), `preflight.resolution`
(checks before anything is created).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.common.config import SETTINGS, Config
from coopstreams.common.metrics import Metrics
from coopstreams.common.optional_packages import need_otel
from coopstreams.group.active_version import assign_active
from coopstreams.group.coordinator_interface import Identity, Timings
from coopstreams.group.members import Cluster
from coopstreams.group.membership import GroupMember, Participant
from coopstreams.instance.copied_state_folders import twins
from coopstreams.instance.plan import Plan
from coopstreams.instance.presence import Presence
from coopstreams.instance.purge import (
    Membership,
    Purge,
    WindowPurge,
    WindowStores,
)
from coopstreams.instance.restrictions import Restrictions
from coopstreams.instance.row_warmth import RowWarmth
from coopstreams.instance.snapshot_taker import SnapshotTaker, StoreTopics
from coopstreams.instance.source_times import SourceTimes
from coopstreams.instance.subscription import PatternSubscription
from coopstreams.instance.task_registry import Standing
from coopstreams.instance.topic_changes import TopicChanges
from coopstreams.instance.watcher import (
    Lags,
    Watched,
    Watcher,
)
from coopstreams.log.kafka.native import native_tables
from coopstreams.log.kafka.wiring import KAFKA, Wiring
from coopstreams.log.log import Log
from coopstreams.opening.globals import Globals
from coopstreams.opening.opener import Opener, Stages
from coopstreams.opening.position_check import PositionCheck
from coopstreams.opening.restores import Restores
from coopstreams.opening.seeding import Seeding
from coopstreams.opening.sink_openings import SinkOpenings
from coopstreams.opening.standbys import StandbyFigures, Standbys, can_stand_by
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.resolution import resolve_at_start
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.state.engines import check_store_types
from coopstreams.state.published_snapshot import Changelog, Snapshots
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.committer import Committer, Places
from coopstreams.tasks.events import CaughtUp, Event
from coopstreams.tasks.failure_handlers import (
    FailureHandler,
)
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.tasks.misplaced_topics import Misplaced, Placing
from coopstreams.tasks.record_retries import Tries
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeated_timeouts import Outlasting
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.resolved_topology import reset_of_topic
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.tally import Tallies, Tally
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.graph.join_nodes import stores_of
from coopstreams.topology.graph.partitions import grown
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.task_id import TaskId

if TYPE_CHECKING:
    from coopstreams.tasks.spans import RecordSpans

log = logging.getLogger(__name__)

WATCHING_S = 1.0
"""How long the watcher, and standbys, wait for one answer."""
COMPARE_EVERY_S = 60.0
"""The time between two comparisons of topic ids and partition counts."""


class Components:
    """The components from which one instance builds its threads. A context manager,
    which closes them.
    """

    @staticmethod
    def build(
        topology: Topology,
        config: Config,
        wiring: Wiring = KAFKA,
    ) -> Components:
        """Return the components: the brokers are reached, topics checked and created,
        the state folder is locked.

        Raises:
            ConfigError: a store's engine is not available, a schema does not fit, a
            changelog was deleted, or is another framework's, or a backfill waits to be
            published.
            LogError: the brokers cannot be reached within `connect.timeout.ms`.
            TopologyError, UnknownTopicError: the topics, or the state of the last
            version, do not fit the topology.
            StateLockedError: another process uses the state folder.
        """
        application = config["application.id"]
        host = wiring.host
        # First: a wrong id is an error before anything is opened.
        instance_id = config.static_member(host.called())
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
                client_settings(config),
                config["connect.timeout.ms"] / 1000,
            )
            closing.callback(cluster.close)
            watching = wiring.cluster(client_settings(config), WATCHING_S)
            closing.callback(watching.close)
            deployed = LastVersion(cluster, config, host)
            resolved = resolve_at_start(cluster, topology, config, deployed)
            plan = Plan(
                config,
                topology,
                resolved,
                directory.process_id,
                f"{directory.process_id[:8]}-{host.unique()[:8]}",
                instance_id,
            )
            components = Components(
                plan,
                wiring,
                cluster,
                watching,
                directory,
                deployed,
                closing,
            )
            components.restrictions.look()
            # the watcher continues to read, on its own thread
            components.restrictions.close()
            components._closing = closing.pop_all()
            return components

    def __init__(
        self,
        plan: Plan,
        wiring: Wiring,
        cluster: Log,
        watching: Log,
        directory: StateDirectory,
        deployed: LastVersion,
        closing: ExitStack,
    ) -> None:
        """Open the parts that need a checked program.

        `watching`: a second client of the same cluster, for the watcher: it has short
        time-outs, and its requests delay no other thread. `closing`: closes the parts
        opened here.
        """
        config = plan.config
        self.plan = plan
        """The present plan. The control thread replaces it as a whole."""
        self.wiring = wiring
        self.host = wiring.host
        self.log = cluster
        self.watching = watching
        self.directory = directory
        self.deployed = deployed
        self._closing = closing
        self.databases = Databases(
            directory,
            {part.id: part for part in plan.topology.subtopologies},
            task_buffer_bytes(config, plan.topics.tasks),
            lambda part: native_tables(
                part,
                config,
                caching=config["statestore.cache.max.bytes"] > 0,
            ),
        )
        self.follower = Follower(
            cluster,
            plan.application,
            replication=config["replication.factor"],
        )
        self.follower.check_policy()
        self.metrics = Metrics(plan.application, plan.process)
        self.sayings = Sayings(self.host)
        closing.callback(self.sayings.close)
        self.tallies = Tallies(self.metrics, self.host, _store_names(plan.built))
        self.globals = Globals(
            cluster,
            plan.built.global_tables,
            plan.topics.partitions,
            config,
            self.tallies.failure,
            self.sayings,
            partial(self.metrics.dropped, None),
            self.host,
        )
        closing.callback(self.globals.stop)
        self.restrictions = Restrictions(
            watching,
            lambda: self.plan.resolved,
            self.host,
            allowed=config["allow.individual.commit"],
        )
        closing.callback(self.restrictions.close)
        self.source_times = SourceTimes(
            cluster,
            self.follower,
            lambda: self.plan.resolved,
            config["repartition.idle.ms"],
            config["max.time.skew.ms"],
            self.host,
        )
        self.refusals = Refusals(cluster, config, self.host)
        self.outlasting = Outlasting.of(config)
        self.tries = Tries()
        self.misplaced = Misplaced()
        self.tracing = _tracing(config)
        """Makes the spans of a task; None: nothing is traced."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def timestamp_of(self, topic: str) -> TimestampColumn | None:
        """Return the timestamp extractor of a source topic in the present plan; None:
        it has none.
        """
        return self.plan.timestamp_of(topic)

    def operator_times_of(self, topic: str) -> OperatorTimeColumns | None:
        """Return the function that computes operator times of a source topic, in the
        present plan; None: the topic needs none.
        """
        return self.plan.operator_times_of(topic)

    def writers_of(self, topic: str) -> int | None:
        """Return the number of the source partitions whose tasks write to a timed
        topic, in the present plan; None: the topic is not timed.
        """
        return self.plan.resolved.writers.get(topic)

    def twins(self, cluster: Cluster) -> list[str]:
        """Return a sentence for each other member of the group that has the process id
        of this one.
        """
        return twins(cluster, self.plan.process, self.directory.folder)

    def member(
        self,
        presence: Presence,
        rows: RowWarmth,
        emit: Callable[[Event], None],
    ) -> GroupMember:
        """Return this process as a member of the group, not yet joined."""
        config = self.plan.config
        # The previous process of the state folder is dead, since this process has its
        # lock. Under exactly-once, brokers fence the transactions it left. Otherwise
        # only the session time-out keeps its records from the changelogs, unless it
        # ended cleanly.
        identity = Identity(
            self.plan.instance_id,
            self.directory.last_member if config.exactly_once else "",
            waits=not (config.exactly_once or self.directory.ended),
        )
        participant = Participant(
            self.plan.application,
            self.plan.subscribed,
            presence.info,
            partial(
                assign_active,
                ranges=config["ranges.per.partition"],
                replicas=config["num.standby.replicas"],
                warmups=config["max.warmup.replicas"],
            ),
            emit,
            presence.alive,
            warmth=rows.warmth,
            sources=self.plan.source_topics,
            host=self.host,
        )
        return GroupMember(
            self.wiring.coordinator(config.client),
            participant,
            identity=identity,
            timings=Timings(
                session=config["session.timeout.ms"],
                heartbeat=config["heartbeat.interval.ms"],
                connect=config["connect.timeout.ms"],
            ),
            host=self.host,
        )

    def row_warmth(
        self,
        standing: Callable[[], Standing],
        standbys: Callable[[], Mapping[TaskId, StandbyFigures]],
    ) -> RowWarmth:
        """Return what this process tells the group of the rows that it has."""
        return RowWarmth(
            self.databases,
            self.directory.partitions(),
            can_stand_by(self.plan.topology.subtopologies),
            self.plan.config["acceptable.recovery.lag"],
            standing,
            standbys,
        )

    def subscription(self, emit: Callable[[Event], None]) -> PatternSubscription:
        """Return the thread that looks for new topics, not yet started."""
        return PatternSubscription(
            self.log,
            self.plan.built,
            self.plan.config,
            self.plan.resolved,
            emit,
            self.host,
            self.deployed,
        )

    def thread(
        self,
        member: GroupMember,
        emit: Callable[[Event], None],
        number: int,
    ) -> StreamThread:
        """Return a stream thread, not yet started."""
        plan = self.plan
        changelog = cache(partial(changelog_topic, plan.application))
        places = Places(number, plan.transactional_id(number), changelog, self.written)
        committer = Committer(
            self.log,
            member,
            self.follower,
            plan.config,
            places,
            self.metrics,
            self.refusals,
            self.host,
        )
        interval_s = plan.config.commit_interval_s
        return StreamThread(
            number,
            committer,
            emit,
            interval_s,
            self.outlasting,
            drain_s=plan.config["max.revoke.delay.ms"] / 1000,
            host=self.host,
        )

    def written(self) -> frozenset[str]:
        """Return all topics to which the application writes, in the present plan."""
        return self.plan.written

    def opener(
        self,
        member: GroupMember,
        emit: Callable[[Event], None],
        moved: Callable[[], None],
        listener: RestoreListener,
    ) -> Opener:
        """Return the thread that opens tasks, not yet started."""
        plan = self.plan
        config = plan.config
        position_check = PositionCheck(
            plan.application,
            self.log,
            member,
            lambda: self.plan.resolved,
            plan.changelog,
            lambda: self.deployed.new_repartitions,
        )
        positions = Positions(
            self.log,
            member,
            self.follower,
            self.sources,
            lambda topic: reset_of_topic(self.plan.topology, config, topic),
            plan.transactional_id(0),
            begun=position_check.check,
            purged=frozenset() if config.exactly_once else plan.purged,
            by_birth=self._by_birth,
            host=self.host,
        )
        snapshots = None
        if place := config["snapshots.dir"]:
            folder = self.directory.folder / "snapshots"
            snapshots = Snapshots(
                place,
                plan.application,
                folder,
                self.host.wall_ms,
            )
        restores = Restores(
            self.log,
            plan.changelog,
            snapshots,
            self.metrics,
            listener,
            self.host,
        )
        standbys = Standbys(
            lambda: self.wiring.cluster(client_settings(config), WATCHING_S),
            lambda log: Restores(log, plan.changelog, snapshots, host=self.host),
            self.databases,
            plan.changelog,
            self.metrics,
            self.host,
            config["acceptable.recovery.lag"],
            lambda: emit(CaughtUp()),
        )
        # Match the whole id: the id of another application may have the same beginning.
        form = re.compile(
            re.escape(plan.application)
            + r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+"
        )
        barrier = Barrier(
            member,
            self.follower,
            lambda name: form.fullmatch(name) is not None,
            lambda dead: self.log.settle(dead, self.written()),
            self.host,
        )
        sinks = SinkOpenings(plan.application, self.log, self.follower.wake, self.host)
        return Opener(
            member,
            self.follower,
            Stages(barrier, positions, restores, sinks),
            standbys,
            self.databases,
            lambda epoch: self.directory.begin(
                self.deployed.take_over(
                    self.plan.topology,
                    self.plan.topics.partitions,
                    lambda: member.sure(epoch),
                    member,
                    self.plan.resolved.level,
                )
            ),
            emit,
            moved,
            self.host,
        )

    def _by_birth(self, task: TaskId) -> frozenset[str]:
        return self.plan.resolved.programs[task.subtopology].by_birth

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Return the source partitions of a task; none if this process has not seen its
        topics yet.
        """
        return self.plan.resolved.sources(task)

    def topic_changes(
        self,
        standing: Callable[[], Standing],
        stall_detector: StallDetector,
        emit: Callable[[Event], None],
    ) -> TopicChanges:
        """Return the object that compares topics with those of the running tasks."""
        return TopicChanges(
            self.watching,
            self.plan.changelog,
            self.globals.topic_ids,
            self.grown,
            standing,
            stall_detector,
            emit,
        )

    def watcher(
        self,
        watched: Watched,
        stall_detector: StallDetector,
        topics: TopicChanges,
        member: GroupMember,
        rows: RowWarmth,
        emit: Callable[[Event], None],
    ) -> Watcher:
        """Return the thread that measures lags and purges repartition topics, not yet
        started.
        """
        lags = Lags(
            self.watching,
            # The replicas are asked over the connections that the opener has already:
            # so they are known in an outage, too.
            self.log.silent_replicas,
            self.metrics,
            self.tallies,
            watched,
            stall_detector,
            self.host,
        )
        config = self.plan.config
        membership = Membership(self.watching, member.sure)
        purge = Purge(membership, self.plan.purged, watched.standing)
        purge_s = config["repartition.purge.interval.ms"] / 1000
        window_stores = WindowStores(
            self.plan.subtopology,
            self.plan.changelog,
            config["windowstore.changelog.additional.retention.ms"],
        )
        windows = WindowPurge(membership, window_stores, watched.standing)
        looks = (
            (0, self.sayings.tick),
            (0, rows.look),
            (0, partial(self._look_at_policy, emit)),
            (0, lags.look),
            (purge_s, purge.purge),
            (purge_s, windows.purge),
            (COMPARE_EVERY_S, topics.compare),
        )
        return Watcher(looks, stall_detector, emit, self.host)

    def snapshot_taker(
        self,
        standing: Callable[[], Standing],
    ) -> SnapshotTaker | None:
        """Return the thread that writes snapshots, not yet started; None: there is
        nothing for it to do.
        """
        config = self.plan.config
        if config["snapshots.dir"] is None:
            return None
        interval_ms = config["snapshots.interval.ms"]
        stores = {
            part.id: logged
            for part in self.plan.topology.subtopologies
            if (logged := [spec for spec in part.stores if spec.logged])
        }
        return SnapshotTaker(
            config["snapshots.dir"],
            self.plan.application,
            None if interval_ms is None else interval_ms / 1000,
            stores,
            self._store_topics,
            standing,
            self.databases,
            self.metrics,
            self.host,
        )

    def seed(self, savepoint: str) -> None:
        """Have the application begin with the state and positions of another one's
        savepoint, unless it has positions already.

        Raises:
            ConfigError, SnapshotError: it cannot begin with that savepoint.
        """
        topics = self._store_topics()
        Seeding(
            self.log,
            self.plan.config,
            topics.specs,
            topics.changelogs,
            [
                topic
                for program in self.plan.resolved.programs.values()
                if not program.subtopology.unordered
                for topic in program.subtopology.topics
            ],
            self.host,
        ).seed(savepoint)

    def _store_topics(self) -> StoreTopics:
        """Ask the brokers for the changelogs of all stores that have one."""
        specs = {
            spec.name: spec
            for part in self.plan.topology.subtopologies
            for spec in part.stores
            if spec.logged
        }
        topics = {name: self.plan.changelog(spec) for name, spec in specs.items()}
        counts = self.log.partitions(list(topics.values()))
        return StoreTopics(
            specs,
            {
                name: Changelog(topic, self.log.topic_id(topic), counts[topic])
                for name, topic in topics.items()
                if topic in counts
            },
        )

    def _look_at_policy(self, emit: Callable[[Event], None]) -> None:
        if (changed := self.restrictions.look()) is not None:
            emit(changed)

    def grown(self) -> Mapping[str, str]:
        """Return a sentence for each source topic that has got partitions, which no
        task reads.
        """
        return grown(
            self.plan.topology,
            self.plan.topics.partitions,
            self.watching.partitions(),
        )

    def task(self, opened: Incarnation, dead_letter: Committer) -> Task:
        """Return a task, ready to run on the thread of the committer `dead_letter`,
        which writes its dead letters.
        """
        plan = self.plan
        config = plan.config
        tally = Tally()
        on_failure = FailureHandler(
            opened.id,
            config,
            partial(self.tallies.failed, opened.id, tally),
            dead_letter.dead_letter,
            self.sayings,
            tries=self.tries,
            topics=plan.topology.dead_letter_topics,
        )
        settings = TaskSettings(
            caching=config["statestore.cache.max.bytes"] > 0,
            by_key=self.restrictions.policy.accepts_individual_commit,
            max_idle_ms=config["max.task.idle.ms"],
            exactly_once=config.exactly_once,
        )
        number = opened.id.subtopology
        services = TaskServices(
            partitions=cache(self.partitions),
            global_tables=self.globals.rows,
            host=self.host,
            latency=partial(self.metrics.latency, number),
            spans=None if self.tracing is None else self.tracing(opened.id),
            folder=self.directory.folder,
            placing=Placing(
                plan.subtopology(number),
                plan.topics.partitions,
                self.misplaced,
            ),
        )
        program = plan.programs[number]
        return Task(opened, program, on_failure, tally, settings, services)

    def partitions(self, topic: str) -> int:
        """Return the partition count of a topic to which the application writes.

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
        """Remove the metrics of a closed task."""
        self.tallies.closed(task)
        self.metrics.task_closed(task.id)


def _tracing(config: Config) -> Callable[[TaskId], RecordSpans] | None:
    ratio = config["tracing.ratio"]
    if ratio is None:
        return None
    from opentelemetry.trace import get_tracer

    from coopstreams.tasks.spans import RecordSpans

    return partial(
        RecordSpans,
        get_tracer("coopstreams"),
        ratio,
        config["application.id"],
    )


def task_buffer_bytes(config: Config, partitions: Sequence[int]) -> int:
    """Return the memory limit of one task's buffers. `partitions`: the partition count
    of each sub-topology.

    The buffers of a process keep to the setting even if it has all tasks: a partition
    is divided into as many key ranges as there are threads for it.
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
            10_000,
            config["transaction.timeout.ms"] // 3,
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
