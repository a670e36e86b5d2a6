"""An instance in memory: the real dispatcher, stream threads, committers, tasks and
stores, on a `MemoryLog` that is also the group coordinator.

The test takes the place of the group and the opener: it opens and closes tasks. Nothing
is restored: the databases stay in memory.

It models no group: a test sets the answers of fences, and the generation. Unlike the
simulated group (tests/simulation), whose seed chooses the schedule of whole instances,
a test here controls each step of a task, and checks its outputs.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from coopstreams import Processor, ProcessorContext, Record
from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Committed
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.dispatch import Dispatcher
from coopstreams.log.log import GroupFence, Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.committer import Committer, Places
from coopstreams.tasks.events import Aborted, Closed, Drains, Event, Failed, ThreadEnded
from coopstreams.tasks.failure_handlers import FailureHandler
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.record_retries import Tries
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeated_timeouts import Outlasting
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.tally import Tallies, Tally
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import MembershipLostError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId
from tests.durations import ms

EXACTLY, AT_LEAST = "exactly_once_v2", "at_least_once"
PATIENCE_S = 90.0
DRAIN_MS = 3000
"""`max.revoke.delay.ms` of an engine, if a test says nothing."""


def counting() -> Topology:
    """Count the records of each key, and write each count."""
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    ).to_stream().to("out")
    return builder.build()


def ticking(tick: Callable[[int], None], *every_ms: int) -> Topology:
    """Call `tick` by the wall clock, with one of these intervals for each task, in the
    order of the tasks.
    """
    intervals = iter(every_ms)

    class Ticking(Processor[bytes, bytes, bytes, bytes]):
        def init(self, context: ProcessorContext[bytes, bytes]) -> None:
            context.schedule(ms(next(intervals)), "wall_clock", tick)

        def process(self, record: Record[bytes, bytes]) -> None:
            pass

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).process(
        Ticking, by_key=False
    )
    return builder.build()


class Membership:
    """One member of the group. `generation` is the one it knows; the log's is
    `Engine.generation`.
    """

    def __init__(self, log: MemoryLog, group: str) -> None:
        self.epoch = 1
        self.generation = 1
        self.answered = True
        self.certain_s = 10.0
        self._log, self._group = log, group

    @contextmanager
    def fence(self, epoch: int) -> Iterator[GroupFence]:
        if epoch != self.epoch:
            raise MembershipLostError(f"epoch {epoch} is over, it is {self.epoch} now")
        yield GroupFence(self._group, self.generation, "member")

    def commit(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], fence: GroupFence
    ) -> None:
        self._log.commit_offsets(offsets, fence)

    def sure(self, epoch: int) -> bool:
        return self.sure_s(epoch) > 0

    def sure_s(self, epoch: int) -> float:
        return self.certain_s if self.answered and epoch == self.epoch else 0.0


class Engine:
    """The tasks of one sub-topology, opened and closed by hand."""

    def __init__(
        self,
        topology: Topology,
        topics: Mapping[str, int],
        *,
        threads: int = 1,
        interval_s: float = 0.02,
        buffer: int = 1 << 20,
        caching: bool = False,
        host: Host = SYSTEM,
        **settings: Any,
    ) -> None:
        self.application = topology.application_id
        self.generation = 1
        self.host = host
        self.buffer = buffer
        """The most bytes of rows that a task keeps in memory."""
        self.caching = caching
        self.at_fence: list[dict[str, int]] = []
        """The ends of partition 0 of all topics at each check of a fence."""
        self.log = MemoryLog(self._check_fence)
        self.log.create_topics(
            [TopicSpec(name, count) for name, count in topics.items()]
        )
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = Config.of(
            {
                "bootstrap.servers": "nowhere:1",
                "connect.timeout.ms": 1000,
                "max.revoke.delay.ms": DRAIN_MS,
            }
            | given,
            self.application,
        )
        self.follower = Follower(self.log, self.application, partitions=1)
        self.member = Membership(self.log, self.application)
        self.metrics = Metrics(self.application, "test")
        self.tallies = Tallies(self.metrics)
        self.tries = Tries()
        self.letters = topology.dead_letter_topics
        self.program = compile_subtopology(topology, topology.subtopologies[0])
        self.sources = topology.subtopologies[0].topics
        self.stores = topology.subtopologies[0].stores
        self.log.create_topics(
            [TopicSpec(self.changelog(store.name), 1) for store in self.stores]
        )
        self.databases: dict[int, Database] = {}
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        written = frozenset(self.log.partitions())
        self.committers = [
            self._committer(number, written) for number in range(threads)
        ]
        slow = Outlasting.of(self.config)
        self.threads = [
            StreamThread(
                number,
                committer,
                self.events.put,
                interval_s,
                slow,
                drain_s=self.config["max.revoke.delay.ms"] / 1000,
                host=host,
            )
            for number, committer in enumerate(self.committers)
        ]
        most = self.config["max.bytes.key.range.cache"]
        self.dispatcher = Dispatcher(
            self.log.reader(),
            lambda _: None,
            self.program.operator_times_of,
            lambda _: None,
            None,
            most,
            self.metrics,
        )
        self.tasks: dict[TaskId, tuple[Task, StreamThread]] = {}
        self.by_key = True
        """Whether records of tasks that are opened may pass others that wait for calls.
        """

    def start(self) -> None:
        """Start the stream threads."""
        for thread in self.threads:
            thread.start()

    def task(
        self,
        key_range: KeyRange,
        partition: int = 0,
        thread: int = 0,
        *,
        begun: bool = True,
    ) -> Task:
        """Return a task, opened at the group's commits; neither routed nor on a thread.

        `begun`: its processors have begun, on this thread.
        """
        while not self.follower.passed(self.follower.barrier()):
            self.follower.poll(0.1)
        id_ = TaskId(0, partition, key_range)
        sources = tuple(TopicPartition(topic, partition) for topic in self.sources)
        plain = self.log.committed(self.application)
        openings = {
            source: self.follower.open(
                source,
                key_range,
                Committed.parse(*plain[source]) if source in plain else None,
                Position(0),
            )
            for source in sources
        }
        database = self.databases.setdefault(partition, Database(Memory(), self.stores))
        state = TaskState(database, self.stores, key_range, self.buffer)
        progress = Progress(
            key_range,
            openings,
            Author(self.application, self.member.generation, f"app-{thread}"),
        )
        tally = Tally()
        dead_letter = self.committers[thread].dead_letter
        on_failure = FailureHandler(
            id_,
            self.config,
            tally.failure,
            dead_letter,
            Sayings(),
            tries=self.tries,
            topics=self.letters,
        )
        opened = Incarnation(id_, sources, state, progress, self.member.epoch)
        task = Task(
            opened,
            self.program,
            on_failure,
            tally,
            TaskSettings(
                caching=self.caching,
                by_key=self.by_key,
                max_idle_ms=self.config["max.task.idle.ms"],
                exactly_once=self.config.exactly_once,
            ),
            TaskServices(
                partitions=lambda _: 1,
                host=self.host,
                latency=partial(self.metrics.latency, id_.subtopology),
            ),
        )
        if begun:
            task.begin()
        return task

    def open(self, key_range: KeyRange, partition: int = 0, thread: int = 0) -> Task:
        """Open a task and route its records to it."""
        task = self.task(key_range, partition, thread, begun=False)
        self.tasks[task.id] = task, self.threads[thread]
        self.threads[thread].open(task)
        self.dispatcher.open(task, self.threads[thread])
        return task

    def close(self, task: Task, *, clean: bool = True) -> None:
        """Close a task, and wait until it is closed; tasks of the same thread that had
        to be closed with it, too.
        """
        _, thread = self.tasks[task.id]
        self.dispatcher.close(task)
        thread.close((task,), clean=clean)
        while task.id in self.tasks:
            self.take(self.events.get(timeout=PATIENCE_S))

    def take(self, event: Event) -> None:
        """Handle an event as the control thread does."""
        match event:
            case Closed(task):
                self._forget([task])
            case Aborted(tasks):
                self._forget(tasks)
            case Failed(error):
                raise error
            case ThreadEnded() | Drains():
                pass
            case _:
                raise AssertionError(event)

    def replace(self, failed: Failed, rests_s: float = 0.0) -> list[KeyRange]:
        """Replace a dead stream thread, as the control thread does; return the ranges
        to open again.
        """
        assert failed.thread is not None
        dead = self.threads[failed.thread]
        successor = self.threads[failed.thread] = dead.successor(rests_s)
        successor.start()
        tasks = [task for task, home in self.tasks.values() if home is dead]
        for task in tasks:
            task.discard()
        self._forget(tasks)
        return [task.id.key_range for task in tasks]

    def process(self, task: Task) -> None:
        """Let a task without a thread process all records on this one; its outputs wait
        for a commit.
        """
        reader, at = (
            self.log.reader(),
            {source: task.progress.position(source) for source in task.sources},
        )
        reader.assign(at)
        for source in at:
            reader.route(source, [task.id.key_range])
        for run in reader.fetch(1 << 20, 0):
            task.add(run)
        committer = self.committers[0]
        committer.begin(task)
        while task.step() or task.wait_for_calls():
            pass
        committer.write_outputs(task)

    def settle(self) -> None:
        """Move records until all are processed."""
        deadline = time.monotonic() + PATIENCE_S
        done = False
        while not done:
            idle = not any(
                thread.backlog for thread in self.threads
            )  # before the move: then no held partition has more
            done = not self.dispatcher.move(0.01) and idle
            assert time.monotonic() < deadline, "records wait and nobody takes them"

    def stop(self) -> None:
        """Commit and end the threads."""
        for thread in self.threads:
            assert thread.stop(PATIENCE_S)
        while not self.events.empty():
            self.take(self.events.get())

    def changelog(self, store: str) -> str:
        """Return the changelog topic of a store."""
        return f"{self.application}-{store}-changelog"

    def write(
        self,
        topic: str,
        rows: Sequence[tuple[bytes | None, bytes | None, int]],
        partition: int | None = None,
    ) -> None:
        """Write records: key, value, timestamp."""
        self.log.writer().append(
            topic,
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            partitions=partition,
        )

    def read(
        self, topic: str, partition: int = 0, *, committed_only: bool = True
    ) -> Columns:
        """Return everything in a partition."""
        reader = self.log.reader(committed_only=committed_only)
        reader.assign(
            {
                TopicPartition(topic, partition): Position(
                    self.log.start_offset(TopicPartition(topic, partition))
                )
            }
        )
        runs = reader.fetch(1 << 30, 0)
        return runs[0].columns if runs else Columns((), (), (), (), ())

    def counted(self) -> dict[bytes, list[int]]:
        """Return the counts in `out` of each key, in order."""
        found: dict[bytes, list[int]] = {}
        columns = self.read("out")
        for key, value in zip(columns.keys, columns.values, strict=True):
            assert key is not None
            assert value is not None
            found.setdefault(key, []).append(serdes.int64.decode(value))
        return found

    def _forget(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if self.tasks.get(task.id, (None,))[0] is task:
                self.dispatcher.close(task)
                del self.tasks[task.id]

    def _committer(self, number: int, written: frozenset[str]) -> Committer:
        return Committer(
            self.log,
            self.member,
            self.follower,
            self.config,
            Places(
                number,
                f"app-{number}",
                self.changelog,
                lambda: written,
            ),
            self.metrics,
            Refusals(self.log, self.config, self.host),
            self.host,
        )

    def _check_fence(self, fence: GroupFence) -> str | None:
        self.at_fence.append(
            {
                topic: self.log.end_offset(TopicPartition(topic, 0))
                for topic in self.log.partitions()
            }
        )
        return (
            None
            if fence.generation == self.generation
            else f"generation {fence.generation} is over"
        )
