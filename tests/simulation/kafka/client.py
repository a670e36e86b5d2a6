"""One process's client of the brokers: its requests, and its waits on its machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from coopstreams.log.memory.transactions import Producer, ProducerSession
from coopstreams.topology.errors import LogError
from tests.simulation.kafka.clock import Clock
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.plan import (
    Call,
    Crash,
    Crashed,
    Fault,
    Kind,
    Late,
    Lost,
    Slow,
    Stale,
    Where,
)

T = TypeVar("T")


class Client:
    """A client of the cluster. `by`: its name, in each `Call`. `machine`: its clock; by
    default the cluster's.
    """

    def __init__(self, cluster: Cluster, by: str, machine: Clock | None = None) -> None:
        self.cluster = cluster
        self.by = by
        self._machine = machine or cluster.clock

    def now(self) -> float:
        """Return the time of the machine."""
        return self._machine.now()

    def ask(
        self, kind: Kind, where: Where, effect: Callable[[], T], seconds: float
    ) -> T:
        """Return the answer to a request.

        Raises:
            LogError: retryable: no answer in time; it may have had its effect, or may
                have it later. Or the error of `effect`. Crashed: the process ends here.
        """
        call = Call(kind, where, self.by)
        return self.met(call, self.cluster.heed(call), effect, seconds)

    def met(
        self, call: Call, fault: Fault | None, effect: Callable[[], T], seconds: float
    ) -> T:
        """Return the answer to a request that has met this fault: see `ask`."""
        cluster = self.cluster
        if isinstance(fault, Late):
            cluster.arrive_later(seconds + fault.seconds, call, effect)
        if isinstance(fault, Late) or fault == Lost():
            self._machine.sleep(seconds)
            raise unanswered(call)
        if isinstance(fault, Slow):
            self._machine.sleep(fault.request)
        if not self.wait(lambda: cluster.answers(call), seconds):
            raise unanswered(call)
        if fault in (Lost(answer=True), Crash(after=True)):
            with suppress(LogError):
                cluster.take(effect)
            if isinstance(fault, Crash):
                raise Crashed(call)
            self._machine.sleep(seconds)
            raise unanswered(call)
        if fault == Stale() and (told := cluster.told_before(call.where)) is not None:
            return told  # type: ignore[return-value]
        answer = cluster.take(effect)
        if isinstance(fault, Slow):
            self._machine.sleep(fault.answer)
        return answer

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Return whether the condition holds within this many seconds. Due work of the
        cluster is done meanwhile.
        """
        cluster, give_up = self.cluster, self._machine.now() + seconds
        signal = self._machine.signal()
        with cluster.woken(signal.set):
            while True:
                signal.clear()
                cluster.step()
                if ready():
                    return True
                left = give_up - self._machine.now()
                if left <= 0:
                    return False
                due = cluster.due_in()
                signal.wait(left if due is None else min(left, due))

    def take_over(
        self, transactional_id: str, seconds: float, kind: Kind = "take over"
    ) -> ProducerSession:
        """Take over an id: return when its open transaction has ended everywhere.

        Raises:
            LogError: retryable: no answer in time, or a participant does not answer.
        """
        if (known := self.cluster.state.producers.get(transactional_id)) is not None:
            self.finish(known, seconds)
        session = self.ask(
            kind,
            transactional_id,
            lambda: self.cluster.state.take_over(transactional_id),
            seconds,
        )
        self.finish(session.producer, seconds)
        return session

    def finish(self, producer: Producer, seconds: float) -> None:
        """Return when the last transaction of a producer has ended in each participant
        that gets a marker.

        Raises:
            LogError: retryable: the markers are not written in time.
        """
        if not self.wait(lambda: not self.cluster.owes(producer), seconds):
            raise unanswered(Call("marker", producer.id, self.by))


def unanswered(call: Call) -> LogError:
    """Return the error of a client without an answer in time."""
    return LogError(
        f"{call.kind} ({call.where}): no broker answered in time", retryable=True
    )
