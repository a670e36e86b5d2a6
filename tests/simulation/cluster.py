"""The simulated cluster for fibers: requests take time, and a process that a fault
kills gets no further turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from math import log
from random import Random
from typing import Any, Generic, TypeVar, cast

from coopstreams.group import partition_leader
from coopstreams.group.partition_leader import BrokerView
from coopstreams.log.kafka.reader import WAKE_S
from coopstreams.log.log import Check, RecordBatch
from coopstreams.log.memory.state import CheckFence
from coopstreams.log.memory.transactions import ProducerSession
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.simulation.fibers import LEAST_S, Fiber, Machine, Scheduler
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.cluster import Changed, Cluster
from tests.simulation.kafka.log import SimulatedLog
from tests.simulation.kafka.plan import Call, Crashed, Fault, Kind, Plan, Where
from tests.simulation.kafka.reader import SimulatedReader
from tests.simulation.kafka.writer import SimulatedWriter

T = TypeVar("T")

ANSWER_S = 5.0
"""How long a client waits for an answer before it retries or reports a time-out."""
KEPT_S = 10.0
"""`message.timeout.ms`: under at-least-once the session time-out, so that a paused
process does not overwrite its successor's records with old ones.
"""
MIN_ISR = 2
"""`min.insync.replicas` of all topics; each broker has a replica of each."""
PATIENCE_S = 30.0
"""How long `KafkaLog` retries."""


class _Unlocked(Changed):
    """A lock without effect: no other fiber runs inside of it."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


class MachineCluster(Cluster):
    """A cluster in the time of a scheduler: due work is done at its time, whichever
    client waits.
    """

    changed = _Unlocked

    def __init__(
        self,
        scheduler: Scheduler,
        plan: Plan,
        check_fence: CheckFence,
        *,
        transaction_timeout_s: float,
    ) -> None:
        super().__init__(
            plan,
            Machine(scheduler, "cluster"),
            check_fence=check_fence,
            transaction_timeout_s=transaction_timeout_s,
        )
        self._scheduler = scheduler
        self.owners: dict[str, Machine] = {}
        """The machine that last took over each transactional id."""

    def do(self, what: str, *details: object) -> None:
        super().do(what, *details)
        self.step()

    def expect(self, when: float) -> None:
        self._scheduler.at(when, self.step)


@dataclass(eq=False, slots=True)
class _Request(Generic[T]):
    """A request under way, and its answer."""

    call: Call
    effect: Callable[[], T]
    waiting: set[Fiber] = field(default_factory=set)
    """The fibers that wait for the answer."""
    fault: Fault | None = None
    answer: T | None = None
    error: Exception | None = None
    answered: bool = False


class MachineClient(Client):
    """A machine's connection to the brokers. Units: `latency_s`, the mean of one way.

    A request without a fault, and its answer, arrive even while the requesting machine
    is paused.
    """

    cluster: MachineCluster

    def __init__(
        self,
        cluster: MachineCluster,
        machine: Machine,
        random: Random,
        latency_s: float,
        killed: Callable[[Machine, str], None],
    ) -> None:
        """`killed`: called with the machine and the request at which its process has
        ended.
        """
        super().__init__(cluster, machine.name, machine)
        self.machine = machine
        self.random, self._mean_s = random, latency_s
        self._killed = killed

    def ask(
        self, kind: Kind, where: Where, effect: Callable[[], T], seconds: float
    ) -> T:
        scheduler, request = (
            self.machine.scheduler,
            _Request(Call(kind, where, self.by), effect),
        )
        scheduler.at(scheduler.now + self.latency_s(), partial(self._arrive, request))
        scheduler.wait(None, request.waiting)
        if request.error is not None:
            raise request.error
        if request.answered:
            return cast(T, request.answer)
        try:
            return self.met(request.call, request.fault, effect, seconds)
        except Crashed:
            self._killed(self.machine, kind)
            scheduler.wait(None)
            raise
        finally:
            if not self.machine.dead:
                self.machine.sleep(self.latency_s())

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        if ready():
            return True
        give_up, signal = self.machine.now() + seconds, self.machine.signal()
        with self.cluster.woken(signal.set):
            while (left := give_up - self.machine.now()) > 0:
                signal.clear()
                signal.wait(left)
                if (
                    ready() and self.machine.now() < give_up
                ):  # it may have been paused in between
                    return True
        return False

    def take_over(
        self, transactional_id: str, seconds: float, kind: Kind = "take over"
    ) -> ProducerSession:
        if kind == "take over":
            self.cluster.owners[transactional_id] = self.machine
        return super().take_over(transactional_id, seconds, kind)

    def latency_s(self) -> float:
        """Return how long a request, or an answer, is under way."""
        return -log(1.0 - self.random.random()) * self._mean_s

    def _arrive(self, request: _Request[Any]) -> None:
        scheduler = self.machine.scheduler
        try:
            request.fault = self.cluster.heed(request.call)
        except Crashed:
            if not self.machine.dead:
                self._killed(self.machine, request.call.kind)
            return
        if request.fault is not None or not self.cluster.answers(request.call):
            scheduler.wake(request.waiting)
            return
        try:
            request.answer, request.answered = self.cluster.take(request.effect), True
        except Exception as error:  # noqa: BLE001 it is raised where it was asked
            request.error = error
        scheduler.at(
            scheduler.now + self.latency_s(), partial(scheduler.wake, request.waiting)
        )


class MachineReader(SimulatedReader):
    """Fetched records arrive after a delay; no fiber runs while there are none."""

    def __init__(self, client: MachineClient, *, committed_only: bool) -> None:
        super().__init__(client, committed_only=committed_only)
        self._way, self._scheduler = client, client.machine.scheduler
        self._waiting: set[Fiber] = set()
        self._coming = self._come = False
        """Whether records are under way, and whether they have arrived."""

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        self._check_open()
        give_up = self._scheduler.now + (
            max(timeout_s, LEAST_S) if timeout_s > 0 else 0.0
        )
        with self._cluster.woken(self._send):
            while True:
                self._send()
                left = give_up - self._scheduler.now
                if not self._coming and (self._awake or left <= 0):
                    self._awake = False
                    return []
                self._scheduler.wait(None if self._coming else left, self._waiting)
                if self._come:
                    self._coming = self._come = False
                    if self._look(max_records):
                        return self._batches

    def wake(self) -> None:
        self._awake = True
        if self._waiting:  # a Kafka reader polls as often
            self._scheduler.at(
                self._scheduler.now + WAKE_S * self._way.random.random(),
                partial(self._scheduler.wake, self._waiting),
            )

    def _send(self) -> None:
        """Fetch new records."""
        if not self._coming and not self._way.machine.dead and self._has_news():
            self._coming = True
            self._scheduler.at(
                self._scheduler.now + self._way.latency_s(), self._arrive
            )

    def _arrive(self) -> None:
        self._come = True
        self._scheduler.wake(self._waiting)

    def _has_news(self) -> bool:
        brokers = self._cluster.brokers
        try:
            for partition, reading in self._readings.items():
                leader = brokers.leader(partition)
                if not reading.held and (
                    self._leaders.get(partition, leader.epoch) != leader.epoch
                    or (
                        leader.broker not in brokers.away
                        and self._is_news(partition, reading)
                    )
                ):
                    return True
        except LogError:
            return True
        return False


class MachineLog(SimulatedLog):
    """The `Log` of a machine: it retries, as `KafkaLog` does."""

    def __init__(self, client: MachineClient, timeout_s: float = PATIENCE_S) -> None:
        super().__init__(client, timeout_s=timeout_s, answer_s=ANSWER_S, kept_s=KEPT_S)
        self._machine_client = client

    def reader(self, *, committed_only: bool = True) -> MachineReader:
        return MachineReader(self._machine_client, committed_only=committed_only)

    def writer(
        self,
        transactional_id: str | None = None,
        written: Callable[[], Collection[str]] | None = None,
    ) -> SimulatedWriter:
        return self._patient(
            lambda: SimulatedLog.writer(self, transactional_id, written)
        )

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true end: the brokers' views give the leader, as in `Ends`, and it
        is asked with its epoch.
        """
        return self._patient(lambda: self._true_end(partition))

    def reported_end(self, partition: TopicPartition) -> int:
        return super().end_offset(partition)

    def _true_end(self, partition: TopicPartition) -> int:
        client, cluster = self._machine_client, self._cluster

        def views() -> dict[int, BrokerView | None]:
            cluster.state.partition(partition)  # raises if there is no such partition
            return cluster.brokers.views(partition)

        choice = partition_leader.choose(
            client.ask("views", partition, views, ANSWER_S), MIN_ISR
        )
        if choice is None or choice.why_not:
            self._machine_client.machine.sleep(0.1)
            raise LogError(
                f"asking where {partition} ends: {choice.why_not if choice else 'nobody knows it'}",
                retryable=True,
            )
        return client.ask(
            "end offset",
            partition,
            lambda: cluster.end_told_by(choice.leader, choice.epoch, partition),
            ANSWER_S,
        )

    def _ask(
        self,
        kind: Kind,
        where: TopicPartition | str,
        effect: Callable[[], T],
        check: Check | None = None,
    ) -> T:
        return self._patient(
            lambda: SimulatedLog._ask(self, kind, where, effect, check)
        )

    def _patient(self, question: Callable[[], T]) -> T:
        return patient(self._machine_client.machine, question, self.timeout_s)


def patient(
    machine: Machine, question: Callable[[], T], timeout_s: float = PATIENCE_S
) -> T:
    """Return the answer; retry until the time limit.

    Raises:
        LogError: the time is over.
    """
    give_up = machine.now() + timeout_s
    while True:
        try:
            return question()
        except LogError as error:
            if not error.retryable or machine.now() > give_up:
                raise
