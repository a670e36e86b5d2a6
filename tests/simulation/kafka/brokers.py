"""Brokers of a simulated cluster: who leads what, who answers, and what one that stood still believes when it wakes.

Partitions, groups and transactional ids have a leader (coordinator) each, by a checksum of the name, so that it is the
same in each run. A broker that is away stays leader until `fail_over`: until then nobody answers for what it leads. One
that stood still goes on with what it knew then, until it learns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from zlib import crc32

from coopstreams.group.leadership import BrokerView
from coopstreams.topology.columns import TopicPartition
from tests.simulation.kafka.plan import Where


@dataclass(slots=True)
class Leadership:
    """Who leads, and how often that has changed."""

    broker: int
    epoch: int = 0


@dataclass(slots=True)
class Brokers:
    """The brokers of a cluster, by number."""

    count: int
    away: set[int] = field(default_factory=set)
    """Those that do not answer: stopped, or standing still."""
    _leaders: dict[Where, Leadership] = field(default_factory=dict)
    _past: dict[int, dict[Where, Leadership]] = field(default_factory=dict)
    """Who led when a broker was stopped short, as it believes until it learns."""

    def leader(self, where: Where) -> Leadership:
        """Return who leads a partition, or coordinates a group or a transactional id."""
        found = self._leaders.get(where)
        if found is None:
            name = where if isinstance(where, str) else f"{where.topic}-{where.partition}"
            up = [broker for broker in range(self.count) if broker not in self.away] or list(range(self.count))
            found = self._leaders[where] = Leadership(up[crc32(name.encode()) % len(up)])
        return found

    def answers(self, where: Where) -> bool:
        """Whether its leader answers."""
        return self.leader(where).broker not in self.away

    def move(self, where: Where, broker: int) -> None:
        """Have another broker lead."""
        leadership = self.leader(where)
        leadership.broker, leadership.epoch = broker, leadership.epoch + 1

    def stand_still(self, broker: int) -> None:
        """Have a broker answer nothing, and believe from now on what is true now."""
        self.away.add(broker)
        self._past[broker] = {where: replace(leadership) for where, leadership in self._leaders.items()}

    def learn(self, broker: int) -> None:
        """Have a broker know who leads."""
        self._past.pop(broker, None)

    def believed(self, broker: int, where: Where) -> Leadership | None:
        """Return who leads as a broker believes; None: it has never heard of it."""
        return self._past[broker].get(where) if broker in self._past else self.leader(where)

    def views(self, where: TopicPartition) -> dict[int, BrokerView | None]:
        """Return what each broker that answers says of a partition; every broker has a replica."""
        self.leader(where)
        everybody, told = frozenset(range(self.count)), dict[int, BrokerView | None]()
        for broker in sorted(everybody - self.away):
            known = self.believed(broker, where)
            told[broker] = None if known is None else BrokerView(known.broker, known.epoch, everybody)
        return told

    def led_by(self, broker: int) -> list[Where]:
        """Return what a broker leads, as far as anybody has asked."""
        return [where for where, leadership in self._leaders.items() if leadership.broker == broker]

    def fail_over(self, broker: int) -> None:
        """Have others lead what this one does, in turn, who know what is true; nobody, if there are none."""
        others = [
            other
            for other in range(self.count)
            if other not in self.away and other not in self._past and other != broker
        ]
        for i, where in enumerate(self.led_by(broker) if others else []):
            self.move(where, others[i % len(others)])
