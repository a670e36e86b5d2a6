"""The simulated cluster for fibers: requests take time, and a process that a fault ends has no further turn."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import TypeVar

from coopstreams.group import leadership
from coopstreams.group.leadership import View
from coopstreams.log.log import Run
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.simulation.fibers import Machine
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.log import SimulatedLog
from tests.simulation.kafka.plan import Crashed, Kind, Where
from tests.simulation.kafka.reader import SimulatedReader
from tests.simulation.kafka.writer import SimulatedWriter

T = TypeVar("T")

ANSWER_S = 5.0
"""How long a client waits for an answer before it asks again, or says that there is none."""
MIN_ISR = 2
"""`min.insync.replicas` of all topics; each broker has a replica of each."""
PATIENCE_S = 30.0
"""For how long `KafkaLog` asks again."""


class MachineClient(Client):
    """A machine's way to the brokers. Units: `latency_s`, of one way, on the average."""

    def __init__(self, cluster: Cluster, machine: Machine, random: Random, latency_s: float, killed: Callable[[Machine, str], None]) -> None:
        """`killed`: is told of the machine, and of the request at which its process has ended."""
        super().__init__(cluster, machine.name, machine)
        self.machine = machine
        self._random, self._latency_s, self._killed = random, latency_s, killed

    def ask(self, kind: Kind, where: Where, effect: Callable[[], T], seconds: float) -> T:
        self.travel()
        try:
            return super().ask(kind, where, effect, seconds)
        except Crashed:
            self._killed(self.machine, kind)
            self.machine.scheduler.wait(None)
            raise
        finally:
            if not self.machine.dead:
                self.travel()

    def travel(self) -> None:
        """A request, or an answer, is on its way."""
        self.machine.sleep(self._random.expovariate(1 / self._latency_s))


class MachineReader(SimulatedReader):
    """A fetch takes time."""

    def __init__(self, client: MachineClient, *, committed_only: bool) -> None:
        super().__init__(client, committed_only=committed_only)
        self._machine_client = client

    def fetch(self, max_records: int, timeout_s: float) -> list[Run]:
        self._machine_client.travel()
        return super().fetch(max_records, timeout_s)


class MachineLog(SimulatedLog):
    """The `Log` of a machine: patient, as `KafkaLog` is."""

    def __init__(self, client: MachineClient) -> None:
        super().__init__(client, timeout_s=ANSWER_S)
        self._machine_client = client

    def reader(self, *, committed_only: bool = True) -> MachineReader:
        return MachineReader(self._machine_client, committed_only=committed_only)

    def writer(self, transactional_id: str | None = None, written: Callable[[], Collection[str]] | None = None) -> SimulatedWriter:
        return patient(self._machine_client.machine, lambda: SimulatedLog.writer(self, transactional_id, written))

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true end: the brokers say who leads, as `Ends` asks them, and the leader is asked with its epoch."""
        return patient(self._machine_client.machine, lambda: self._true_end(partition))

    def reported_end(self, partition: TopicPartition) -> int:
        return super().end_offset(partition)

    def _true_end(self, partition: TopicPartition) -> int:
        client, cluster = self._machine_client, self._cluster

        def views() -> dict[int, View | None]:
            cluster.state.partition(partition)  # or nobody knows it
            return cluster.brokers.views(partition)

        choice = leadership.choose(client.ask("views", partition, views, ANSWER_S), MIN_ISR)
        if choice is None or choice.why_not:
            self._machine_client.machine.sleep(0.1)
            raise LogError(f"asking where {partition} ends: {choice.why_not if choice else 'nobody knows it'}", retryable=True)
        return client.ask("end offset", partition, lambda: cluster.end_told_by(choice.leader, choice.epoch, partition), ANSWER_S)

    def _ask(self, kind: Kind, where: TopicPartition | str, effect: Callable[[], T]) -> T:
        return patient(self._machine_client.machine, lambda: SimulatedLog._ask(self, kind, where, effect))


def patient(machine: Machine, question: Callable[[], T]) -> T:
    """Return the answer, asked for until time is over.

    Raises:
        LogError: it is.
    """
    give_up = machine.now() + PATIENCE_S
    while True:
        try:
            return question()
        except LogError as error:
            if not error.retryable or machine.now() > give_up:
                raise
