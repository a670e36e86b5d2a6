"""What goes wrong between a machine and its brokers: how long requests take, and which are lost on which way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tests.simulation.fibers import Machine

T = TypeVar("T")


@dataclass(slots=True)
class Network:
    """The way to the brokers. Units: seconds."""

    random: Random
    latency_s: float = 0.002
    lost: float = 0.0
    """The chance that a request does not reach the broker."""
    unanswered: float = 0.0
    """The chance that it does, and its answer is lost."""
    timeout_s: float = 1.0
    """After which whoever asked gives a lost one up."""
    calm: bool = False
    """Nothing is lost any more."""

    def ask(self, machine: Machine, what: str, do: Callable[[], T], lost: Callable[[str], BaseException]) -> T:
        """Return what the broker answers.

        Raises:
            Whatever `lost` makes of a request without an answer.
        """
        machine.sleep(self.random.expovariate(1 / self.latency_s))
        if not self.calm and self.random.random() < self.lost:
            machine.sleep(self.timeout_s)
            raise lost(f"{what}: no answer; the request was lost")
        answer = do()
        if not self.calm and self.random.random() < self.unanswered:
            machine.sleep(self.timeout_s)
            raise lost(f"{what}: no answer; the answer was lost")
        machine.sleep(self.random.expovariate(1 / self.latency_s))
        return answer
