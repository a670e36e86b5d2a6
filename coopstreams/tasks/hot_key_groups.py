"""Finds the hot key groups of a task by sampling: one record of `EVERY` is counted,
with a weight that decays.

The weight of a sample halves every `HALF_LIFE_S`. Older samples are not made lighter;
younger ones are made heavier, so that nothing has to happen between two samples.

Invariant: at most one float for each of the 256 key groups; records that are not
sampled cost nothing. Turned down: counting each record (a hash for each, where the
reader does not hash because the partition is not shared).
"""

from __future__ import annotations

from collections.abc import Sequence

from coopstreams.topology.keys import key_group, key_hash

EVERY = 61
"""One record in this many is sampled. It is a prime, so that keys that come in a cycle
are all sampled in time.
"""
HALF_LIFE_S = 20.0
MOST = 4
"""The most groups that are reported."""
LEAST_SHARE = 0.1
TIMES_EVEN = 4
"""The multiple of an even share that a hot group has at least."""
LEAST_SAMPLES = 8.0
MOST_HALVINGS = 500.0
"""The number of half-lives after which the weights are scaled down. A float can hold
twice as many.
"""


class Heat:
    """The samples of one task's keys. Used by the task's thread."""

    def __init__(self, groups: int) -> None:
        """Begin without samples.

        `groups`: the number of the task's key groups.
        """
        self._groups = groups
        self._weights: dict[int, float] = {}
        self._next = 0
        self._began: float | None = None
        self._latest = 1.0

    def look(self, keys: Sequence[bytes | None], now: float) -> None:
        """Sample the keys of a batch of records. Units: `now` in seconds of a monotonic
        clock.
        """
        count = len(keys)
        if self._next >= count:
            self._next -= count
            return
        if self._began is None:
            self._began = now
        halvings = (now - self._began) / HALF_LIFE_S
        if halvings > MOST_HALVINGS:
            self._weights = {
                group: old * 2.0**-halvings for group, old in self._weights.items()
            }
            self._began = now
            halvings = 0.0
        weight = self._latest = 2.0**halvings
        for i in range(self._next, count, EVERY):
            key = keys[i]
            if key is not None:
                group = key_group(key_hash(key))
                self._weights[group] = self._weights.get(group, 0.0) + weight
        self._next = (self._next - count) % EVERY

    def hot(self) -> tuple[tuple[int, float], ...]:
        """Return the hot key groups and their shares of the records, the largest first."""
        weights = self._weights
        total = sum(weights.values())
        least = max(
            total * max(LEAST_SHARE, TIMES_EVEN / self._groups),
            LEAST_SAMPLES * self._latest,
        )
        found = sorted(
            (-weight, group) for group, weight in weights.items() if weight >= least
        )
        return tuple((group, -weight / total) for weight, group in found[:MOST])
