"""Brokers of a simulated cluster: leaders, availability, and the outdated views of
brokers that were paused.

Partitions, groups and transactional ids have a leader (coordinator) each, by a checksum
of the name, so that it is the same in each run. A broker that does not answer stays
leader until `fail_over`; until then its partitions are unavailable. One that was paused
keeps its old view, until it learns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from zlib import crc32

from coopstreams.group.partition_leader import BrokerView
from coopstreams.topology.columns import TopicPartition
from tests.simulation.kafka.plan import Where


@dataclass(slots=True)
class Leadership:
    """A leader and its epoch."""

    broker: int
    epoch: int = 0


@dataclass(slots=True)
class Brokers:
    """The brokers of a cluster, by number."""

    count: int
    away: set[int] = field(default_factory=set)
    """Brokers that do not answer: stopped or paused."""
    _leaders: dict[Where, Leadership] = field(default_factory=dict)
    _past: dict[int, dict[Where, Leadership]] = field(default_factory=dict)
    """The leaders when a broker was paused, which it assumes until it learns."""

    def leader(self, where: Where) -> Leadership:
        """Return the leader of a partition, or the coordinator of a group or a
        transactional id.
        """
        found = self._leaders.get(where)
        if found is None:
            name = (
                where if isinstance(where, str) else f"{where.topic}-{where.partition}"
            )
            up = [
                broker for broker in range(self.count) if broker not in self.away
            ] or list(range(self.count))
            found = self._leaders[where] = Leadership(
                up[crc32(name.encode()) % len(up)]
            )
        return found

    def answers(self, where: Where) -> bool:
        """Whether its leader answers."""
        return self.leader(where).broker not in self.away

    def move(self, where: Where, broker: int) -> None:
        """Make another broker the leader."""
        leadership = self.leader(where)
        leadership.broker, leadership.epoch = broker, leadership.epoch + 1

    def stand_still(self, broker: int) -> None:
        """Pause a broker; it keeps its present view."""
        self.away.add(broker)
        self._past[broker] = {
            where: replace(leadership) for where, leadership in self._leaders.items()
        }

    def learn(self, broker: int) -> None:
        """Update a broker's view of the leaders."""
        self._past.pop(broker, None)

    def believed(self, broker: int, where: Where) -> Leadership | None:
        """Return the leader in a broker's view; None: it has none."""
        return (
            self._past[broker].get(where)
            if broker in self._past
            else self.leader(where)
        )

    def views(self, where: TopicPartition) -> dict[int, BrokerView | None]:
        """Return the view of a partition by each broker that answers; every broker has
        a replica.
        """
        self.leader(where)
        everybody, told = frozenset(range(self.count)), dict[int, BrokerView | None]()
        for broker in sorted(everybody - self.away):
            known = self.believed(broker, where)
            told[broker] = (
                None
                if known is None
                else BrokerView(known.broker, known.epoch, everybody)
            )
        return told

    def led_by(self, broker: int) -> list[Where]:
        """Return the partitions, groups and ids that a broker leads, of those requested
        before.
        """
        return [
            where
            for where, leadership in self._leaders.items()
            if leadership.broker == broker
        ]

    def fail_over(self, broker: int) -> None:
        """Move this broker's leaderships to up-to-date brokers, in turn; if there are
        none, do nothing.
        """
        others = [
            other
            for other in range(self.count)
            if other not in self.away and other not in self._past and other != broker
        ]
        for i, where in enumerate(self.led_by(broker) if others else []):
            self.move(where, others[i % len(others)])
