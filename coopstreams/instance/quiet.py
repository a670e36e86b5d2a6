"""Finds the in-sync replica that blocks a busy source: its leader answers, but its end
offset does not advance.

A record can be read when all in-sync replicas have it. If the broker of one of them
dies, leader or not, nothing new can be read until the cluster goes on without it
(`broker.session.timeout.ms`, 9 s by default; 3 s more if it was the active controller).
Meanwhile the leader reports the old end, so no task has lag: 10 of the 13 s of such a
stall had no reason in the status (measured).

Invariant: sources that are busy and sources that are idle cost no request. Turned down:
asking all brokers all the time; what librdkafka logs of lost connections (a client has
none to a broker that only keeps replicas, and one that hangs breaks none).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coopstreams.topology.columns import TopicPartition

QUIET_S = 1.5
"""How long the end offset of a busy source may stay the same before its replicas are
asked.
"""
BUSY_S = 60.0
"""A source without new records for this long is idle."""


@dataclass(slots=True)
class QuietSources:
    """The last advance of each busy source, and its replicas that do not answer. Units:
    seconds.
    """

    silent: Mapping[TopicPartition, Collection[int]] = field(default_factory=dict)
    """By source: brokers of in-sync replicas that do not answer."""
    _ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    _moved_at: Mapping[TopicPartition, float] = field(default_factory=dict)

    def look(
        self, ends: Mapping[TopicPartition, int], now: float
    ) -> set[TopicPartition]:
        """Note the last reported ends of all sources; return the busy ones whose end
        has not advanced for `QUIET_S`.
        """
        moved = {
            source: now
            for source, end in ends.items()
            if self._ends.get(source, end) != end
        }
        busy = {
            source: at
            for source, at in self._moved_at.items()
            if source in ends and now - at <= BUSY_S
        }
        self._ends = dict(ends)
        self._moved_at = busy | moved
        return {source for source, at in self._moved_at.items() if now - at >= QUIET_S}

    def why(self, source: TopicPartition, now: float, slow_s: float) -> str:
        """Return which replica blocks a source whose end has not advanced for `slow_s`;
        empty: none is known.
        """
        brokers = self.silent.get(source, ())
        at = self._moved_at.get(source, now)
        if not brokers or now - at <= slow_s:
            return ""
        names = ", ".join(map(str, sorted(brokers)))
        return (
            f"nothing new can be read from {source} for {now - at:.0f} s: broker {names} has an in-sync replica of it "
            "and does not answer"
        )
