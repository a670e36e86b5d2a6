"""The simulated cluster for fibers: requests take time, whoever asks waits, and a process that a fault ends has no further turn."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from types import TracebackType
from typing import TypeVar

from greenlet import getcurrent

from coopstreams.log.log import Run
from coopstreams.log.memory_state import CheckFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, LogError
from tests.simulation.fibers import Fiber, Scheduler
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.log import SimulatedLog
from tests.simulation.kafka.plan import Call, Crashed, Fault, Kind, Plan
from tests.simulation.kafka.reader import SimulatedReader
from tests.simulation.kafka.writer import SimulatedWriter

T = TypeVar("T")

GIVEN_UP_S = 2.0
"""How long a client waits for an answer that does not come, before it asks again or says so."""
PATIENCE_S = 30.0
"""For how long `KafkaLog` asks again."""


class Changed:
    """The lock of the cluster's state: nobody else has a turn inside of it; and those who wait for it to change."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.waiting: set[Fiber] = set()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        pass

    def notify_all(self) -> None:
        """Let all look again."""
        self._scheduler.wake(self.waiting)


class FiberClock:
    """Virtual time, in which a fiber waits."""

    def __init__(self, scheduler: Scheduler, changed: Changed) -> None:
        self._scheduler, self._changed = scheduler, changed
        self.next_at: Callable[[], float | None] = lambda: None

    def now(self) -> float:
        return self._scheduler.now

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is ready; the world itself never waits."""
        give_up = self._scheduler.now + seconds
        while not ready():
            left = give_up - self._scheduler.now
            if left <= 0 or not isinstance(getcurrent(), Fiber):
                return False
            due = self.next_at()
            self._scheduler.wait(left if due is None else min(left, max(0.001, due - self._scheduler.now)), self._changed.waiting)
        return True


class FiberCluster(Cluster):
    """A cluster whose clients are fibers. Units: `latency_s`, of one way."""

    def __init__(self, scheduler: Scheduler, plan: Plan, random: Random, latency_s: float, check_fence: CheckFence) -> None:
        changed = Changed(scheduler)
        clock = FiberClock(scheduler, changed)
        super().__init__(plan, clock, check_fence=check_fence, transaction_timeout_s=15.0)
        self.state.changed = changed  # type: ignore[assignment]  # where nobody has a turn there is nothing to lock
        clock.next_at = self.next_at
        self._random, self._latency_s = random, latency_s
        self.killed: Callable[[Fiber], None] = lambda _: None
        """Is told of the fiber at whose request its process has ended."""

    def decided(self, partition: TopicPartition) -> bool:
        """Whether readers see all that counts of a partition: no transaction in it is open, or lacks its marker."""
        stored = self.state.partition(partition)
        return stored.stable_end == stored.end

    def heed(self, call: Call) -> Fault | None:
        try:
            return super().heed(call)
        except Crashed:
            self._end()
            raise

    def ask(self, call: Call, effect: Callable[[], T], seconds: float) -> T:
        self.travel()
        try:
            answer = super().ask(call, effect, seconds)
        except Crashed:
            self._end()
            raise
        except FencedError:
            self.travel()
            raise
        except LogError as error:
            if error.retryable and isinstance(fiber := getcurrent(), Fiber):
                fiber.machine.sleep(GIVEN_UP_S)
            raise
        self.travel()
        return answer

    def travel(self) -> None:
        """A request or an answer is on its way."""
        if isinstance(fiber := getcurrent(), Fiber):
            fiber.machine.sleep(self._random.expovariate(1 / self._latency_s))

    def _end(self) -> None:
        """The process of the calling fiber ends here."""
        fiber = getcurrent()
        assert isinstance(fiber, Fiber)
        self.killed(fiber)
        fiber.scheduler.wait(None)


class FiberReader(SimulatedReader):
    """A fetch takes time."""

    def fetch(self, max_records: int, timeout_s: float) -> list[Run]:
        assert isinstance(self._cluster, FiberCluster)
        self._cluster.travel()
        return super().fetch(max_records, timeout_s)


class FiberLog(SimulatedLog):
    """The `Log` of a machine: patient, as `KafkaLog` is."""

    def __init__(self, cluster: FiberCluster, by: str) -> None:
        super().__init__(cluster, by, timeout_s=5.0)
        self._clock = cluster.clock

    def reader(self, *, committed_only: bool = True) -> FiberReader:
        return FiberReader(self._cluster, self._by, committed_only=committed_only)

    def writer(self, transactional_id: str | None = None, written: Callable[[], Collection[str]] | None = None) -> SimulatedWriter:
        return patient(self._clock.now, lambda: super(FiberLog, self).writer(transactional_id, written))

    def _ask(self, kind: Kind, where: TopicPartition | str, effect: Callable[[], T]) -> T:
        return patient(self._clock.now, lambda: super(FiberLog, self)._ask(kind, where, effect))


def patient(now: Callable[[], float], question: Callable[[], T]) -> T:
    """Return the answer, asked for until time is over.

    Raises:
        LogError: it is.
    """
    give_up = now() + PATIENCE_S
    while True:
        try:
            return question()
        except LogError as error:
            if not error.retryable or now() > give_up:
                raise
