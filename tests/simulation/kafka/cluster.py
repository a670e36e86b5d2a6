"""A Kafka cluster with faults, over the state of a `MemoryLog`: brokers, lost requests,
late markers, virtual time.

The state machine is `MemoryState`, that of the in-memory log; this adds the network,
brokers and time between it and its clients. A *request* goes to the leader of its
partition, group or id. The *plan* decides on its fault; the driver of the run causes
faults of brokers and topics by name (`at`, `do`). Nothing here waits, draws a random
number or reads the machine's clock; `Client` waits.

A transaction ends in two steps. The coordinator decides, and each participant gets its
marker: at once, later, or never (`Skipped`). Until then committed reads of that
partition stop below the transaction, and a group's offsets are unstable. The producer's
next transaction waits for the markers, as in Kafka.

Invariant: every fault of a plan is possible in Kafka. A fault loses requests, answers,
time and processes, never acknowledged records. Turned down: replicas, ISR and
truncation (with acks=all and an ISR of two they show as lost answers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias, TypeVar, cast

from coopstreams.log.memory.state import CheckFence, MemoryState
from coopstreams.log.memory.transactions import Participant, Producer, ProducerSession
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.simulation.kafka.brokers import Brokers, Leadership
from tests.simulation.kafka.clock import Clock, VirtualClock
from tests.simulation.kafka.plan import (
    Call,
    Crash,
    Crashed,
    Fault,
    Kind,
    Late,
    NoFaults,
    Plan,
    Skipped,
    Where,
)

T = TypeVar("T")
Wake: TypeAlias = Callable[[], None]
ANYBODY: frozenset[Kind] = frozenset(
    {
        "topics",
        "views",
        "create topics",
        "delete topics",
        "describe topic",
        "list transactions",
    }
)
"""Requests that any broker answers."""


class Event(NamedTuple):
    """A request, or a fault of the cluster, and the fault that the request met."""

    at: float
    what: Call | tuple[object, ...]
    fault: Fault | None = None


class _Marker(NamedTuple):
    """A marker that the coordinator still has to write."""

    due: float
    participant: Participant
    producer: Producer
    commit: bool


class Changed(threading.Condition):
    """Notifies all waiting clients, on any machine."""

    def __init__(self, waiting: dict[int, Wake]) -> None:
        super().__init__()
        self._waiting = waiting

    def notify_all(self) -> None:
        for wake in list(self._waiting.values()):
            wake()


class Cluster:
    """A cluster; its clients are `SimulatedLog` and `SimulatedGroup`.

    `clock`: the time of the brokers. `check_fence`: the coordinator of groups. `skips`:
    brokers with KAFKA-20734, which may complete a transaction without a marker in a
    partition; a writer then waits for all its markers, as `KafkaWriter` does. `note`:
    called with each event.
    """

    changed = Changed
    """The condition to hold for any access to the state."""

    def __init__(
        self,
        plan: Plan | None = None,
        clock: Clock | None = None,
        *,
        brokers: int = 3,
        check_fence: CheckFence = lambda _: None,
        skips: bool = False,
        transaction_timeout_s: float = 60.0,
        note: Callable[[Event], None] | None = None,
    ) -> None:
        self.plan: Plan = plan or NoFaults()
        self.clock: Clock = clock or VirtualClock()
        self.brokers = Brokers(brokers)
        self.skips = skips
        self._waiting: dict[int, Wake] = {}
        self.before_deletion: Callable[[TopicPartition, int], None] = lambda *_: None
        """Called with the first offset that is kept."""
        self.state = _State(self, check_fence, self._waiting)
        self._transaction_timeout_s = transaction_timeout_s
        self._note = note
        self._markers: list[_Marker] = []
        self._deadlines: dict[Producer, float] = {}
        """The time-outs of transactions."""
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = count()
        self._past: dict[int, dict[Where, object]] = {}
        """The views of brokers when they were paused."""

    def heed(self, call: Call) -> Fault | None:
        """Return the fault of a request; it may end the process.

        Raises:
            Crashed: before it has its effect.
        """
        fault = self.plan.fault(call)
        if self._note is not None:
            self._note(Event(self.clock.now(), call, fault))
        if fault is not None and fault == Crash():
            raise Crashed(call)
        return fault

    def take(self, effect: Callable[[], T]) -> T:
        """Return the result of a request that has arrived."""
        with self.state.changed:
            return effect()

    def arrive_later(
        self, seconds: float, call: Call, effect: Callable[[], object]
    ) -> None:
        """Let a request take effect when its client does not wait any more, if its
        broker then answers.
        """

        def arrive() -> None:
            if self.answers(call):
                with suppress(LogError):
                    effect()

        self._do_later(self.clock.now() + seconds, arrive)

    def answers(self, call: Call) -> bool:
        """Whether the broker of a request answers."""
        return (
            len(self.brokers.away) < self.brokers.count
            if call.kind in ANYBODY
            else self.brokers.answers(call.where)
        )

    def told_before(self, where: Where) -> object:
        """Return the old answer of a broker that was paused and does not know its
        successor; None: there is none.
        """
        for broker, past in self._past.items():
            if (
                where in past
                and broker not in self.brokers.away
                and self.brokers.leader(where).broker != broker
            ):
                return past[where]
        return None

    def end_told_by(self, broker: int, epoch: int, partition: TopicPartition) -> int:
        """Return the end of a partition as one broker reports it, requested with a
        leader epoch.

        Raises:
            LogError: retryable: it does not answer, or knows another epoch.
        """
        known = self.brokers.believed(broker, partition)
        if broker in self.brokers.away or known != Leadership(broker, epoch):
            raise LogError(
                f"broker {broker} does not lead {partition} in epoch {epoch}",
                retryable=True,
            )
        if self.brokers.leader(partition) != known:
            return cast(int, self._past[broker][partition])
        return self.state.partition(partition).end

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """Call this function after every change."""
        number = next(self._serial)
        self._waiting[number] = wake
        try:
            yield
        finally:
            del self._waiting[number]

    def step(self) -> None:
        """Do the work that is due now."""
        now = self.clock.now()
        with self.state.changed:
            while self._later and self._later[0][0] <= now:
                heappop(self._later)[2]()
                self.state.changed.notify_all()
            for producer in [
                producer
                for producer, deadline in self._deadlines.items()
                if deadline <= now and self.brokers.answers(producer.id)
            ]:
                self.state.fence(producer)
            if self._markers:
                self._write_markers()

    def expect(self, when: float) -> None:
        """Note the time of future work. Waiting clients query it (`due_in`) and call
        `step`.
        """

    def due_in(self) -> float | None:
        """Return in how many seconds work is due, except work that waits for an
        unavailable broker.
        """
        due = [at for at, _, _ in self._later[:1]]
        due += [
            marker.due
            for marker in self._markers
            if self.brokers.answers(marker.participant.where)
        ]
        due += [
            deadline
            for producer, deadline in self._deadlines.items()
            if self.brokers.answers(producer.id)
        ]
        return max(min(due) - self.clock.now(), 0.0) if due else None

    def at(self, when: float, what: str, *details: object) -> None:
        """Cause a fault of the cluster at a time: see `do`."""
        self._do_later(when, lambda: self.do(what, *details))

    def do(self, what: str, *details: object) -> None:
        """Cause a fault of the cluster: the name of a method below, and its arguments."""
        if self._note is not None:
            self._note(Event(self.clock.now(), (what, *details)))
        with self.state.changed:
            getattr(self, what)(*details)
            self.state.changed.notify_all()

    def pause(self, broker: int) -> None:
        """Pause a broker: its partitions have no leader that answers until `fail_over`;
        when it resumes, it has its old view.
        """
        past: dict[Where, object] = {
            group.where: (group.committed, group.unstable)
            for group in self.state.groups.values()
        }
        for topic in self.state.topics.values():
            past |= {partition.where: partition.end for partition in topic.partitions}
        self._past[broker] = {
            where: told
            for where, told in past.items()
            if self.brokers.leader(where).broker == broker
        }
        self.brokers.stand_still(broker)

    def stop(self, broker: int) -> None:
        """Stop a broker; it stays leader until `fail_over`."""
        self.brokers.away.add(broker)

    def start(self, broker: int) -> None:
        """Have a stopped or paused broker answer again."""
        self.brokers.away.discard(broker)

    def learn(self, broker: int) -> None:
        """Have a resumed broker learn of its successors."""
        self._past.pop(broker, None)
        self.brokers.learn(broker)

    def fail_over(self, broker: int) -> None:
        """Move a broker's leaderships to others."""
        self.brokers.fail_over(broker)

    def move(self, where: Where, broker: int) -> None:
        """Make another broker the leader."""
        self.brokers.move(where, broker)

    def remake(self, topic: str) -> None:
        """Delete a topic and create it again: empty, with another id; groups lose their
        offsets in it.
        """
        spec = self.state.topic(topic).spec
        self.state.delete_topic(topic)
        self.state.create_topic(spec)

    def compact(
        self, topic: str, before: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Compact a topic; with `before`, of each partition only what is below an
        offset.
        """
        for partition in self.state.topic(topic).partitions:
            partition.compact(
                None if before is None else before.get(partition.where, 0)
            )

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete the records below an offset because a client asks for it."""
        self.before_deletion(partition, offset)
        self.state.delete_before(partition, offset)

    def retain(self, partition: TopicPartition, offset: int) -> None:
        """Have retention delete the records below an offset."""
        self.state.delete_before(partition, offset)

    def expire(self, group: str, *partitions: TopicPartition) -> None:
        """Expire a group's offsets: of these partitions, or all."""
        offsets = self.state.group(group)
        offsets.forget(partitions or offsets.committed)

    def owes(self, producer: Producer) -> bool:
        """Whether a marker of a producer is still to be written."""
        return any(marker.producer is producer for marker in self._markers)

    def settle(self, producer: Producer, topics: Collection[str]) -> None:
        """End the last transaction of a producer, as it was decided, where these topics
        and groups' offsets still have it open.
        """
        with self.state.changed:
            on_their_way = {
                id(marker.participant)
                for marker in self._markers
                if marker.producer is producer
            }
            participants: list[Participant] = [
                participant
                for name, topic in self.state.topics.items()
                if name in topics
                for participant in topic.partitions
            ]
            for participant in [*participants, *self.state.groups.values()]:
                if (
                    participant.is_open(producer)
                    and participant not in producer.participants
                    and id(participant) not in on_their_way
                ):
                    participant.mark(producer, commit=producer.committed)

    def tell(
        self, participant: Participant, producer: Producer, *, commit: bool
    ) -> None:
        """Write a marker as the plan has it."""
        call, now = Call("marker", participant.where, producer.id), self.clock.now()
        fault = self.plan.fault(call)
        if self._note is not None:
            self._note(Event(now, call, fault))
        if fault == Skipped() and self.skips:
            return
        late_s = fault.seconds if isinstance(fault, Late) else 0.0
        self._markers.append(_Marker(now + late_s, participant, producer, commit))
        if late_s:
            self.expect(now + late_s)
        self._write_markers()

    def begun(self, producer: Producer) -> None:
        """Note that a transaction is open."""
        self._deadlines[producer] = deadline = (
            self.clock.now() + self._transaction_timeout_s
        )
        self.expect(deadline)

    def ended(self, producer: Producer) -> None:
        """Note that a transaction has ended."""
        self._deadlines.pop(producer, None)

    def _do_later(self, when: float, what: Callable[[], object]) -> None:
        heappush(self._later, (when, next(self._serial), what))
        self.expect(when)

    def _write_markers(self) -> None:
        """Write the due markers to leaders that answer."""
        left, now = [], self.clock.now()
        for marker in self._markers:
            if marker.due <= now and self.brokers.answers(marker.participant.where):
                marker.participant.mark(marker.producer, commit=marker.commit)
            else:
                left.append(marker)
        if len(left) < len(self._markers):
            self._markers = left
            self.state.changed.notify_all()


class _State(MemoryState):
    """The state machine; the cluster delays the markers of a transaction's end."""

    def __init__(
        self, cluster: Cluster, check_fence: CheckFence, waiting: dict[int, Wake]
    ) -> None:
        ids = count(1)
        super().__init__(
            check_fence,
            new_id=lambda: f"topic-{next(ids)}",
            changed=cluster.changed(waiting),
        )
        self._cluster = cluster

    def begin(self, session: ProducerSession) -> None:
        super().begin(session)
        self._cluster.begun(session.producer)

    def tell(
        self, participant: Participant, producer: Producer, *, commit: bool
    ) -> None:
        self._cluster.tell(participant, producer, commit=commit)

    def _end(self, producer: Producer, *, commit: bool) -> None:
        self._cluster.ended(producer)
        super()._end(producer, commit=commit)
