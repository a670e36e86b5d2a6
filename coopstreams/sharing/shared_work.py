"""Processes records that a share group has delivered, by the program of one
sub-topology on one share thread.

The program processes many records of a partition at once. If one of them fails for good
or is to be retried later, the outputs of the batch are dropped, and its records are
processed once more one by one. So only failed records are left out, and functions may
see a record twice.

Invariant: results and dead letters are written only for records that did not fail; the
writer's flush comes before their acknowledgement.
Relies on: `share_thread` (calls in order: process, flush, acknowledge), `delivery` (the
states of a record).
"""

from __future__ import annotations

from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import cached_property, partial

from coopstreams.calling.lanes import Lane, pauses_of
from coopstreams.common.config import Config
from coopstreams.common.host import Host
from coopstreams.common.metrics import Metrics
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import Writer
from coopstreams.sharing.delivery import Delivery, DeliveryCall, columns_of
from coopstreams.tasks.failure_handlers import Answer, FailureHandler
from coopstreams.tasks.record_retries import TriedLaterError
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.tally import Counts, Tallies, Tally
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.program import BoundProgram, Program, ProgramServices
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import DeliveryError, ProcessingError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import AsyncMap, Node, Sink
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.schemas import registry_is_away
from coopstreams.topology.stores import TableStore
from coopstreams.topology.task_id import TaskId


class Deliveries:
    """The number of attempts at each record, for records that come in any order; used
    in place of `tries.Tries`.
    """

    def __init__(self) -> None:
        self.at_hand: Mapping[tuple[TopicPartition, int], Delivery] = {}

    def attempt(self, task: TaskId, failure: Failure) -> int:  # noqa: ARG002 as of all `Attempts`
        """Return the number of attempts at the record of this failure, including this
        attempt.
        """
        delivery = self.at_hand.get(
            (failure.source, -1 if failure.offset is None else failure.offset)
        )
        return 1 if delivery is None else delivery.attempt

    def note(self, task: TaskId, failure: Failure) -> None:
        """Do nothing: the thread counts the failures of each delivery."""


@dataclass(frozen=True, slots=True)
class ShareServices:
    """The parts of an instance that its share threads use."""

    config: Config
    metrics: Metrics
    tallies: Tallies
    sayings: Sayings
    refusals: Refusals
    partitions: Callable[[str], int]
    """A function that returns the partition count of a topic."""
    global_tables: Mapping[str, TableStore]
    dead_letter_topics: Mapping[str, str]
    """The dead-letter topics of the nodes that have one of their own."""
    host: Host


class SharedWork:
    """The work on one sub-topology by one share thread. It is used by that thread only.

    Shape: `id` names the sub-topology in counts; its partition is the number of the
    thread.
    """

    def __init__(
        self,
        number: int,
        program: Program,
        writer: Writer,
        services: ShareServices,
    ) -> None:
        config = services.config
        self.id = TaskId(program.subtopology.id, number, WHOLE)
        self.processed = 0
        self.redelivered = 0
        self.tally = Tally()
        self.calls: DeliveryCalls | None = None
        """The calls under way. None: no node is asynchronous, or the thread is not a
        member of the group now.
        """
        self._retried = 0
        self._program = program
        self._services = services
        self._metrics = services.metrics
        timeout_s = config["transaction.timeout.ms"] / 1000
        self._append = partial(services.refusals.append, writer, timeout_s)
        self._attempts = Deliveries()
        self._letters: list[tuple[Failure, Headers, str]] = []
        self._left_out: list[tuple[TaskId, Failure, Answer]] = []
        """The failed records that the handler has left out of the current batch. They
        are counted when the batch succeeds.
        """
        self._sinks = {
            node.topic: node.name
            for node in program.subtopology.nodes
            if isinstance(node, Sink)
        }
        self._handler = partial(
            FailureHandler,
            config=config,
            dead_letter=lambda *letter: self._letters.append(letter),
            sayings=services.sayings,
            tries=self._attempts,
            topics=services.dead_letter_topics,
        )
        self.program: BoundProgram = program.bind(
            services.global_tables,
            self._on_failure,
            ProgramServices(
                clock=services.host.wall_ms,
                partitions=services.partitions,
            ),
            caching=False,
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the sub-topology."""
        return self._program.subtopology.nodes

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The source topics of the sub-topology."""
        return self._program.subtopology.topics

    @property
    def retries(self) -> int:
        """The number of calls of asynchronous operators that were retries."""
        calls = self.calls
        return self._retried + (0 if calls is None else calls.retries)

    def open(self, tell: Callable[[], None]) -> None:
        """Prepare the work when the thread joins the group. `tell`: see
        `DeliveryCalls`.
        """
        if self._program.ahead is not None:
            self.calls = DeliveryCalls(
                self._program,
                self._program.ahead,
                tell,
                self._services.host,
            )

    def close(self) -> None:
        """Cancel and drop the calls under way."""
        if self.calls is not None:
            self.calls.cancel()
            self._retried += self.calls.retries
            self.calls = None

    def took(self, deliveries: Sequence[Delivery]) -> None:
        """Count the records of a poll in the metrics."""
        for topic in {delivery.record.topic for delivery in deliveries}:
            of_it = [
                delivery for delivery in deliveries if delivery.record.topic == topic
            ]
            again = sum(delivery.record.deliveries > 1 for delivery in of_it)
            self.redelivered += again
            self._metrics.consumed(self.id, topic, len(of_it))
            self._metrics.redelivered(self.id, topic, again)

    def begin(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        """Begin the calls that records of one partition need. Records whose `waits_for`
        is then 0 can be processed at once.
        """
        if self.calls is not None:
            self.calls.begin(
                source,
                columns_of(source, deliveries, self._extract(source)),
                deliveries,
            )

    def process(
        self,
        source: TopicPartition,
        deliveries: Sequence[Delivery],
    ) -> tuple[
        list[Delivery], list[tuple[Delivery, TriedLaterError]], ProcessingError | None
    ]:
        """Run records of one partition through the program, and pass their results to
        the writer.

        Return the records that succeeded, the records to retry later (each with its
        error), and the first error that ends the thread, None if there is none. Records
        that failed with an error that ends the thread are in neither list.

        Raises:
            LogError: the writer does not take a result, or the schema registry cannot
                be reached.
        """
        if not self._services.refusals.expected or len(deliveries) == 1:
            try:
                self._run(source, deliveries)
                return list(deliveries), [], None
            except TriedLaterError as later:
                if len(deliveries) == 1:
                    self._services.sayings.warn(
                        ("again", source.topic),
                        f"share thread {self.id.partition}: {later}",
                    )
                    return [], [(deliveries[0], later)], None
            except ProcessingError as error:
                if len(deliveries) == 1:
                    return [], [], error
        passed: list[Delivery] = []
        again: list[tuple[Delivery, TriedLaterError]] = []
        ends: ProcessingError | None = None
        for delivery in deliveries:
            one, later_one, failed = self.process(source, [delivery])
            passed += one
            again += later_one
            ends = ends or failed
        return passed, again, ends

    def count(self) -> None:
        """Add the work since the last call to the metrics."""
        self._services.tallies.look(self, Counts.of(self))

    def _run(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        """Run records of one partition through the program. Only if none fails, their
        results and dead letters go to the writer.
        """
        self._attempts.at_hand = {
            (source, delivery.record.offset): delivery for delivery in deliveries
        }
        self.program.results.clear()
        for delivery in deliveries:
            for call in delivery.calls:
                self.program.results.give(call.node, delivery.record.offset, call)
        try:
            self.program.process(
                source,
                columns_of(source, deliveries, self._extract(source)),
            )
            if len(deliveries) == 1 and self._services.refusals.expected:
                self._leave_out_refused(deliveries[0].record)
            self._write()
            for task, failure, answer in self._left_out:
                self._services.tallies.failed(task, self.tally, failure, answer)
        finally:
            self._letters.clear()
            self._left_out.clear()
            for output in self.program.outputs.values():
                output.clear()
        self.processed += len(deliveries)
        first_ms = min(delivery.record.timestamp for delivery in deliveries)
        self._metrics.latency(
            self.id.subtopology,
            max(0, self._services.host.wall_ms() - first_ms) / 1000,
        )

    def _extract(self, source: TopicPartition) -> TimestampColumn | None:
        return self._program.timestamp_of.get(source.topic)

    def _leave_out_refused(self, record: AcquiredRecord) -> None:
        """Remove the results of a record that their topics would refuse, and pass each
        to the failure handler.
        """
        for output in self.program.outputs.values():
            self._services.refusals.leave_out(
                output,
                partial(self._refused, record, output.topic),
            )

    def _refused(
        self,
        record: AcquiredRecord,
        topic: str,
        _key: bytes | None,
        _timestamp: int,
        error: DeliveryError,
    ) -> None:
        """Pass a result of a record, which `topic` would refuse, to the failure
        handler.
        """
        source = TopicPartition(record.topic, record.partition)
        body = record.offset, record.key, record.value, record.timestamp, record.headers
        self._on_failure(
            Failure("production", self._sinks.get(topic, topic), error, source, *body)
        )

    def _write(self) -> None:
        """Append the results and the dead letters of the current records."""
        for output in self.program.outputs.values():
            if len(output):
                output.append_to(self._append)
                self._metrics.produced(self.id, output.topic, len(output))
                self.tally.written[output.topic] += len(output)
        for failure, headers, topic in self._letters:
            timestamp = min(failure.timestamp, self._services.host.wall_ms())
            self._append(
                topic,
                [failure.key],
                [failure.value],
                [timestamp],
                headers=[headers],
            )

    def _on_failure(self, failure: Failure) -> None:
        task = TaskId(self.id.subtopology, failure.source.partition, WHOLE)
        self._handler(
            task,
            count=lambda *counted: self._left_out.append((task, *counted)),
        )(failure)


class DeliveryCalls:
    """The calls of one sub-topology on one share thread, until `cancel`.

    Records have no order: each is ready when its own calls have ended. Use it on one
    thread; only `_ended` is called on others.
    """

    def __init__(
        self,
        program: Program,
        ahead: Program,
        tell: Callable[[], None],
        host: Host,
    ) -> None:
        """Begin without calls.

        `ahead`: the part of the program that finds the calls. `tell`: called on another
        thread when calls have ended.
        """
        self._nodes = {
            node.name: node
            for node in program.subtopology.nodes
            if isinstance(node, AsyncMap)
        }
        self._lanes = {
            name: Lane(node.calling, self._ended, host)
            for name, node in self._nodes.items()
        }
        self._ahead = ahead.bind({}, self._leave_to_the_program, caching=False)
        self._unread: dict[int | None, Exception] = {}
        """The errors of records that could not be read ahead because the schema
        registry did not answer, by offset.
        """
        self._topics = frozenset(ahead.subtopology.topics)
        self._tell = tell
        self._done: deque[DeliveryCall] = deque()
        """The calls that have ended since the last `ready`. Other threads add them."""

    @property
    def retries(self) -> int:
        """The number of calls that were retries."""
        return sum(lane.retried for lane in self._lanes.values())

    @property
    def pauses(self) -> str:
        """The reason why no calls are begun, in words; empty if calls are begun."""
        return pauses_of(self._lanes)

    def begin(
        self,
        source: TopicPartition,
        columns: Columns,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Begin the calls of records of one partition, and set the number of its calls
        in each record's `waits_for`.
        """
        for delivery in deliveries:
            delivery.calls = []
        of_nodes: dict[str, list[DeliveryCall]] = {}
        if source.topic in self._topics:
            self._read_ahead(source, columns, deliveries)
            for row, name, key, value in self._ahead.wanted:
                node = self._nodes[name]
                delivery = deliveries[row]
                arguments = (key, value) if node.with_key else (value,)
                call = DeliveryCall(
                    node.function,
                    arguments,
                    delivery.record.key,
                    name,
                    delivery,
                )
                delivery.calls.append(call)
                of_nodes.setdefault(name, []).append(call)
        for delivery in deliveries:
            delivery.waits_for = sum(call.error is None for call in delivery.calls)
        for name, calls in of_nodes.items():
            self._lanes[name].begin(calls)

    def _read_ahead(
        self,
        source: TopicPartition,
        columns: Columns,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Find the calls that records need. Records that cannot be read now get calls
        that have already failed.
        """
        self._ahead.wanted.clear()
        self._unread.clear()
        self._ahead.process(source, columns)
        if not self._unread:
            return
        for delivery in deliveries:
            error = self._unread.get(delivery.record.offset)
            if error is not None:
                nodes = self._nodes.values()
                delivery.calls = [_failed(node, error) for node in nodes]

    def ready(self) -> list[Delivery]:
        """Return the records whose last call has ended since the previous `ready`."""
        found = []
        while self._done:
            call = self._done.popleft()
            # drop the reference cycle
            delivery = call.delivery
            call.delivery = None
            assert delivery is not None
            delivery.waits_for -= 1
            if not delivery.waits_for:
                found.append(delivery)
        return found

    def drain(self) -> None:
        """Let the calls under way end, and begin no others."""
        for lane in self._lanes.values():
            lane.drain()

    @property
    def drained(self) -> bool:
        """Whether all calls have ended since `drain`."""
        return all(lane.drained for lane in self._lanes.values())

    def cancel(self) -> None:
        """Cancel all calls, and drop their results."""
        for lane in self._lanes.values():
            lane.cancel()
        self._done.clear()

    def _leave_to_the_program(self, failure: Failure) -> None:
        """Ignore the failure of a record above the call, because the program fails the
        record once more and reports it. An error of the registry is kept in `_unread`.
        """
        if registry_is_away(failure.error):
            self._unread[failure.offset] = failure.error

    def _ended(self, calls: Collection[DeliveryCall]) -> None:
        self._done.extend(calls)
        self._tell()


def _failed(node: AsyncMap, error: Exception) -> DeliveryCall:
    """Return a call that was not made and has already failed, for a record that could
    not be read. If the program reaches the call, it fails with the same error.
    """
    call = DeliveryCall(node.function, (), None, node.name, None)
    call.error = error
    return call
