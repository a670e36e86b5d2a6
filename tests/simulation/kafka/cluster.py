"""A Kafka cluster with faults, over the state of a `MemoryLog`: brokers, requests that get lost, markers that come
late, time that somebody moves.

The state machine is `MemoryState`, as the in-memory log has it; this puts between it and its clients what a network,
brokers and time do. A *request* goes to the broker that leads what it is about. The *plan* says what happens to it;
what befalls brokers and topics is done by name (`at`, `do`), by whoever drives the run. Nothing here waits, draws a
number or asks the machine for the time; `Client` waits.

A transaction ends in two steps. The coordinator decides, and each place gets its marker: at once, later, or never
(`Skipped`). Until then committed reads of that place stop below it, and a group's offsets are unstable. The producer's
own next transaction waits for its markers, as Kafka's does.

Invariant: what a plan may do, Kafka may do. A fault loses requests, answers, time and processes; never what the cluster
has acknowledged.
Turned down: replicas, ISR and truncation (with acks=all and an ISR of two they show as lost answers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
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
from tests.simulation.kafka.plan import Call, Crash, Crashed, Fault, Kind, Late, NoFaults, Plan, Skipped, Where

T = TypeVar("T")
Wake: TypeAlias = Callable[[], None]
ANYBODY: frozenset[Kind] = frozenset(
    {"topics", "views", "create topics", "delete topics", "describe topic", "list transactions"}
)
"""What each broker answers."""


class Event(NamedTuple):
    """What was asked, or done to the cluster, and the fault that it met."""

    at: float
    what: Call | tuple[object, ...]
    fault: Fault | None = None


class _Marker(NamedTuple):
    """A marker that the coordinator has still to write."""

    due: float
    participant: Participant
    producer: Producer
    commit: bool


class Changed(threading.Condition):
    """Tells whoever waits, on whatever machine."""

    def __init__(self, waiting: dict[int, Wake]) -> None:
        super().__init__()
        self._waiting = waiting

    def notify_all(self) -> None:
        for wake in list(self._waiting.values()):
            wake()


class Cluster:
    """A cluster; its clients are `SimulatedLog` and `SimulatedGroup`.

    `clock`: the time of the brokers. `check_fence`: the coordinator of groups. `skips`: brokers with KAFKA-20734, which
    may call a transaction complete that a place never heard of; a writer then waits for all its markers, as
    `KafkaWriter` does. `note`: told of each event.
    """

    changed = Changed
    """What is held for any access to the state."""

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
        self.state = _State(self, check_fence, self._waiting)
        self._transaction_timeout_s = transaction_timeout_s
        self._note = note
        self._markers: list[_Marker] = []
        self._deadlines: dict[Producer, float] = {}
        """When transactions time out."""
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = count()
        self._past: dict[int, dict[Where, object]] = {}
        """What brokers believed when they were stopped short."""

    def heed(self, call: Call) -> Fault | None:
        """Return what happens to a request; a process may end of it.

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
        """Return what comes of a request that has arrived."""
        with self.state.changed:
            return effect()

    def arrive_later(self, seconds: float, call: Call, effect: Callable[[], object]) -> None:
        """Have a request its effect when nobody waits for its answer any more, if its broker is there then."""

        def arrive() -> None:
            if self.answers(call):
                with suppress(LogError):
                    effect()

        self._do_later(self.clock.now() + seconds, arrive)

    def answers(self, call: Call) -> bool:
        """Whether the broker is there that this is asked of."""
        return len(self.brokers.away) < self.brokers.count if call.kind in ANYBODY else self.brokers.answers(call.where)

    def told_before(self, where: Where) -> object:
        """Return what a broker tells of the past that woke and does not know its successor; None: there is none."""
        for broker, past in self._past.items():
            if where in past and broker not in self.brokers.away and self.brokers.leader(where).broker != broker:
                return past[where]
        return None

    def end_told_by(self, broker: int, epoch: int, partition: TopicPartition) -> int:
        """Return where a partition ends as one broker says, asked as the leader of an epoch.

        Raises:
            LogError: retryable: it is away, or knows of another epoch.
        """
        known = self.brokers.believed(broker, partition)
        if broker in self.brokers.away or known != Leadership(broker, epoch):
            raise LogError(f"broker {broker} does not lead {partition} in epoch {epoch}", retryable=True)
        if self.brokers.leader(partition) != known:
            return cast(int, self._past[broker][partition])
        return self.state.partition(partition).end

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """Have this called whenever something has changed."""
        number = next(self._serial)
        self._waiting[number] = wake
        try:
            yield
        finally:
            del self._waiting[number]

    def step(self) -> None:
        """Do what is due now."""
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
        """Note that something is due then: nothing by itself, since whoever waits asks (`due_in`) and takes the
        `step`.
        """

    def due_in(self) -> float | None:
        """Return in how many seconds something is due, as far as it is known: what waits for a broker that is away is
        not.
        """
        due = [at for at, _, _ in self._later[:1]]
        due += [marker.due for marker in self._markers if self.brokers.answers(marker.participant.where)]
        due += [deadline for producer, deadline in self._deadlines.items() if self.brokers.answers(producer.id)]
        return max(min(due) - self.clock.now(), 0.0) if due else None

    def at(self, when: float, what: str, *details: object) -> None:
        """Have something befall the cluster at a time: see `do`."""
        self._do_later(when, lambda: self.do(what, *details))

    def do(self, what: str, *details: object) -> None:
        """Have something befall the cluster: the name of a method below, and what it takes."""
        if self._note is not None:
            self._note(Event(self.clock.now(), (what, *details)))
        with self.state.changed:
            getattr(self, what)(*details)
            self.state.changed.notify_all()

    def pause(self, broker: int) -> None:
        """Have a broker stand still: it leads on, and nobody answers, until `fail_over`; when it wakes, it believes
        what was true now.
        """
        past: dict[Where, object] = {
            group.where: (group.committed, group.unstable) for group in self.state.groups.values()
        }
        for topic in self.state.topics.values():
            past |= {partition.where: partition.end for partition in topic.partitions}
        self._past[broker] = {
            where: told for where, told in past.items() if self.brokers.leader(where).broker == broker
        }
        self.brokers.stand_still(broker)

    def stop(self, broker: int) -> None:
        """Have a broker end; it leads on until `fail_over`."""
        self.brokers.away.add(broker)

    def start(self, broker: int) -> None:
        """Have a broker answer again, which was stopped or stood still."""
        self.brokers.away.discard(broker)

    def learn(self, broker: int) -> None:
        """Have a broker that woke hear of its successors."""
        self._past.pop(broker, None)
        self.brokers.learn(broker)

    def fail_over(self, broker: int) -> None:
        """Have others lead what a broker leads."""
        self.brokers.fail_over(broker)

    def move(self, where: Where, broker: int) -> None:
        """Have another broker lead."""
        self.brokers.move(where, broker)

    def remake(self, topic: str) -> None:
        """Delete a topic and create it again: empty, with another id; groups lose their offsets in it."""
        spec = self.state.topic(topic).spec
        self.state.delete_topic(topic)
        self.state.create_topic(spec)

    def compact(self, topic: str) -> None:
        """Have the cleaner run over a topic."""
        for partition in self.state.topic(topic).partitions:
            partition.compact()

    def retain(self, partition: TopicPartition, offset: int) -> None:
        """Have retention delete what lies below an offset."""
        self.state.delete_before(partition, offset)

    def expire(self, group: str, *partitions: TopicPartition) -> None:
        """Have the offsets of a group expire: of these partitions, or all."""
        offsets = self.state.group(group)
        offsets.forget(partitions or offsets.committed)

    def owes(self, producer: Producer) -> bool:
        """Whether a marker of a producer is still to be written."""
        return any(marker.producer is producer for marker in self._markers)

    def settle(self, producer: Producer, topics: Collection[str]) -> None:
        """Finish what the last transaction of a producer left open in these topics and in groups' offsets, as it was
        decided.
        """
        with self.state.changed:
            on_their_way = {id(marker.participant) for marker in self._markers if marker.producer is producer}
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

    def tell(self, participant: Participant, producer: Producer, *, commit: bool) -> None:
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
        """A transaction is open."""
        self._deadlines[producer] = deadline = self.clock.now() + self._transaction_timeout_s
        self.expect(deadline)

    def ended(self, producer: Producer) -> None:
        """It is not open any more."""
        self._deadlines.pop(producer, None)

    def _do_later(self, when: float, what: Callable[[], object]) -> None:
        heappush(self._later, (when, next(self._serial), what))
        self.expect(when)

    def _write_markers(self) -> None:
        """Write the markers that are due, where somebody answers."""
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
    """The state machine, with the cluster between a decision and its markers."""

    def __init__(self, cluster: Cluster, check_fence: CheckFence, waiting: dict[int, Wake]) -> None:
        ids = count(1)
        super().__init__(check_fence, new_id=lambda: f"topic-{next(ids)}", changed=cluster.changed(waiting))
        self._cluster = cluster

    def begin(self, session: ProducerSession) -> None:
        super().begin(session)
        self._cluster.begun(session.producer)

    def tell(self, participant: Participant, producer: Producer, *, commit: bool) -> None:
        self._cluster.tell(participant, producer, commit=commit)

    def _end(self, producer: Producer, *, commit: bool) -> None:
        self._cluster.ended(producer)
        super()._end(producer, commit=commit)
