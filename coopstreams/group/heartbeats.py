"""The moments at which a member sends its heartbeats: the same for all members of a group.

A member hears of a rebalance by the answer to a heartbeat, and joins. From then on it
does not commit, until all members have joined; so the first to hear waits for the last.
With heartbeats at any time that is up to an interval for every rebalance, and a task
that moves by a warm-up has four. Hence the members of a group send theirs at the same
moments of the wall clock: all hear of it at once, and wait for each other's requests.

Invariant: heartbeats are hardly more than an interval apart. What the wall clock says
decides when in an interval they are sent, nothing else: clocks that differ, or that are
set, cost the wait that there was without it.
Turned down: more heartbeats (each costs the broker and the process, in all the time
without rebalances); commits while a member joins (a generation that begins meanwhile
refuses them, and their work is void).
"""

from __future__ import annotations

import math
import time
from typing import Any
from zlib import crc32

from kafka.coordinator.heartbeat import Heartbeat

from coopstreams.common.host import Host

_EARLY = 0.05
"""The part of an interval by which a heartbeat may be early and still counts as that
of the moment it was meant for.
"""


class Heartbeats(Heartbeat):  # type: ignore[misc]  # kafka-python has no types
    """The heartbeats of a member, at whole numbers of intervals of the wall clock and a
    part of one that is the group's: groups do not ask all at once.
    """

    def __init__(self, group: str, host: Host, **settings: Any) -> None:
        """Make those of a member that has sent none. `settings`: see kafka-python."""
        super().__init__(**settings)
        self._host = host
        self._interval_s = self.config["heartbeat_interval_ms"] / 1000
        self._phase_s = crc32(group.encode()) / 2**32 * self._interval_s

    def time_to_next_heartbeat(self) -> float:
        """Return the seconds until the next heartbeat."""
        ago_s = time.monotonic() - max(self.last_send, self.last_reset)
        if self.heartbeat_failed or ago_s == math.inf:
            return float(super().time_to_next_heartbeat())
        at_s = self._host.wall_ms() / 1000 - self._phase_s
        return until_heartbeat(at_s, ago_s, self._interval_s)


def until_heartbeat(at_s: float, ago_s: float, interval_s: float) -> float:
    """Return the seconds until the next whole number of intervals after the last
    heartbeat; 0: that has passed. `at_s`: the time now; `ago_s`: since that heartbeat.
    """
    last = math.floor((at_s - ago_s) / interval_s + _EARLY)
    return max(0.0, (last + 1) * interval_s - at_s)
