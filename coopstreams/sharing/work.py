"""The work of one sub-topology on one share thread: its program over records that a
share group has delivered.

Many records of a partition go through the program at once. If one of them fails for
good or is to be processed again later, the outputs of the batch are dropped, and its
records are processed again one by one. So only those that fail are left out, and
functions may see a record twice.

Invariant: results and dead letters reach the writer only for records that passed; the
writer's flush comes before their acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from coopstreams.common.config import Config
from coopstreams.common.host import Host
from coopstreams.common.metrics import Metrics
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import Writer
from coopstreams.sharing.delivery import Delivery, columns_of
from coopstreams.sharing.share_calls import DeliveryCalls
from coopstreams.tasks.failure_handlers import Answer, FailureHandler
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeats import Sayings
from coopstreams.tasks.tally import Counts, Tallies, Tally
from coopstreams.tasks.tries import TriedLaterError
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.compile.program import BoundProgram, Program, ProgramServices
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import DeliveryError, ProcessingError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import Node, Sink
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.stores import TableStore
from coopstreams.topology.task_id import TaskId


class Deliveries:
    """Counts the attempts at records that come in any order; otherwise as
    `tries.Tries`.
    """

    def __init__(self) -> None:
        self.at_hand: Mapping[tuple[TopicPartition, int], Delivery] = {}

    def attempt(self, task: TaskId, failure: Failure) -> int:  # noqa: ARG002 as of all `Attempts`
        """Return the number of attempts at the record of this failure."""
        delivery = self.at_hand.get(
            (failure.source, -1 if failure.offset is None else failure.offset)
        )
        return 1 if delivery is None else delivery.attempt

    def note(self, task: TaskId, failure: Failure) -> None:
        """Do nothing: the thread counts the failures of each delivery."""


class SharedWork:
    """One sub-topology on one share thread; used by that thread only.

    Shape: `id` names the sub-topology in counts; its partition is the number of the
    thread.
    """

    def __init__(  # noqa: PLR0913
        self,
        number: int,
        program: Program,
        writer: Writer,
        config: Config,
        metrics: Metrics,
        tallies: Tallies,
        sayings: Sayings,
        refusals: Refusals,
        partitions: Callable[[str], int],
        global_tables: Mapping[str, TableStore],
        dead_letter_topics: Mapping[str, str],
        host: Host,
    ) -> None:
        self.id = TaskId(program.subtopology.id, number, WHOLE)
        self.processed = 0
        self.redelivered = 0
        self.tally = Tally()
        self.calls: DeliveryCalls | None = None
        """The calls under way; None: no node is asynchronous, or the thread is not a
        member now.
        """
        self._retried = 0
        self._program = program
        self._sayings = sayings
        self._metrics = metrics
        self._tallies = tallies
        self._refusals = refusals
        self._host = host
        self._append = partial(
            refusals.append, writer, config["transaction.timeout.ms"] / 1000
        )
        self._attempts = Deliveries()
        self._letters: list[tuple[Failure, Headers, str]] = []
        self._left_out: list[tuple[TaskId, Failure, Answer]] = []
        """What the failure handler has left out of the batch, which counts when the
        batch passes.
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
            sayings=sayings,
            tries=self._attempts,
            topics=dead_letter_topics,
        )
        self.program: BoundProgram = program.bind(
            global_tables,
            self._on_failure,
            ProgramServices(clock=host.wall_ms, partitions=partitions),
            caching=False,
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the sub-topology."""
        return self._program.subtopology.nodes

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The topics of the sub-topology."""
        return self._program.subtopology.topics

    @property
    def retries(self) -> int:
        """How many calls of asynchronous operators were made again."""
        calls = self.calls
        return self._retried + (0 if calls is None else calls.retries)

    def open(self, tell: Callable[[], None]) -> None:
        """Begin to take records. `tell`: see `DeliveryCalls`."""
        if self._program.ahead is not None:
            self.calls = DeliveryCalls(
                self._program, self._program.ahead, tell, self._host
            )

    def close(self) -> None:
        """Cancel the calls under way; forget them."""
        if self.calls is not None:
            self.calls.cancel()
            self._retried += self.calls.retries
            self.calls = None

    def took(self, deliveries: Sequence[Delivery]) -> None:
        """Count records that were delivered."""
        for topic in {delivery.record.topic for delivery in deliveries}:
            of_it = [
                delivery for delivery in deliveries if delivery.record.topic == topic
            ]
            again = sum(delivery.record.deliveries > 1 for delivery in of_it)
            self.redelivered += again
            self._metrics.consumed(self.id, topic, len(of_it))
            self._metrics.redelivered(self.id, topic, again)

    def begin(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        """Begin the calls that records of one partition need; those with `waits_for` 0
        can be processed at once.
        """
        if self.calls is not None:
            self.calls.begin(
                source,
                columns_of(source, deliveries, self._extract(source)),
                deliveries,
            )

    def process(
        self, source: TopicPartition, deliveries: Sequence[Delivery]
    ) -> tuple[
        list[Delivery], list[tuple[Delivery, TriedLaterError]], ProcessingError | None
    ]:
        """Run records of one partition through the program, and hand their results to
        the writer.

        Return those that passed, those that are to be processed again later, and the
        first error that ends the thread: then the records that failed so are in neither
        list.

        Raises:
            LogError: the writer does not take a result, or the schema registry cannot
            be reached.
        """
        if not self._refusals.expected or len(deliveries) == 1:
            try:
                self._run(source, deliveries)
                return list(deliveries), [], None
            except TriedLaterError as later:
                if len(deliveries) == 1:
                    self._sayings.warn(
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
        self._tallies.look(self, Counts.of(self))

    def _run(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        self._attempts.at_hand = {
            (source, delivery.record.offset): delivery for delivery in deliveries
        }
        self.program.results.clear()
        for delivery in deliveries:
            for call in delivery.calls:
                self.program.results.give(call.node, delivery.record.offset, call)
        try:
            self.program.process(
                source, columns_of(source, deliveries, self._extract(source))
            )
            if len(deliveries) == 1 and self._refusals.expected:
                self._leave_out_refused(deliveries[0].record)
            self._write()
            for task, failure, answer in self._left_out:
                self._tallies.failed(task, self.tally, failure, answer)
        finally:
            self._letters.clear()
            self._left_out.clear()
            for output in self.program.outputs.values():
                output.clear()
        self.processed += len(deliveries)
        first_ms = min(delivery.record.timestamp for delivery in deliveries)
        self._metrics.latency(
            self.id.subtopology, max(0, self._host.wall_ms() - first_ms) / 1000
        )

    def _extract(self, source: TopicPartition) -> TimestampColumn | None:
        return self._program.timestamp_of.get(source.topic)

    def _leave_out_refused(self, record: AcquiredRecord) -> None:
        """Hand those results of a record that their topics would refuse to the failure
        handler, and keep the others.
        """
        for output in self.program.outputs.values():
            self._refusals.leave_out(
                output, partial(self._refused, record, output.topic)
            )

    def _refused(
        self,
        record: AcquiredRecord,
        topic: str,
        _key: bytes | None,
        _timestamp: int,
        error: DeliveryError,
    ) -> None:
        source = TopicPartition(record.topic, record.partition)
        body = record.offset, record.key, record.value, record.timestamp, record.headers
        self._on_failure(
            Failure("production", self._sinks.get(topic, topic), error, source, *body)
        )

    def _write(self) -> None:
        for output in self.program.outputs.values():
            if len(output):
                output.append_to(self._append)
                self._metrics.produced(self.id, output.topic, len(output))
                self.tally.written[output.topic] += len(output)
        for failure, headers, topic in self._letters:
            timestamp = min(failure.timestamp, self._host.wall_ms())
            self._append(
                topic, [failure.key], [failure.value], [timestamp], headers=[headers]
            )

    def _on_failure(self, failure: Failure) -> None:
        task = TaskId(self.id.subtopology, failure.source.partition, WHOLE)
        self._handler(
            task, count=lambda *counted: self._left_out.append((task, *counted))
        )(failure)
