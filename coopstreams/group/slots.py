"""The slots of a partition, and the key ranges of each slot. Pure arithmetic, without
members' holdings.

A group has one slot for each thread. If slots outnumber the partitions, a partition has
several and is cut by key range; otherwise a slot has several partitions. A *cell* is
the part of one partition that one slot takes: neighbouring key ranges.

Invariant: cells of a partition tile the hash space, and differ by at most one key
range.
Source: the proposal's abstract assignor (5 consumers, 3 partitions: two halves, two
halves, one whole).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from coopstreams.topology.keys import GROUPS, KeyRange


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot's part of a partition: one or more neighbouring key ranges, each a task."""

    partition: int
    ranges: tuple[KeyRange, ...]

    @property
    def key_range(self) -> KeyRange:
        """The key ranges of the cell as one."""
        return KeyRange(self.ranges[0].start, self.ranges[-1].end)


@dataclass(frozen=True)
class Layout:
    """The allowed cuts of one sub-topology for a group: slot counts and shares.

    Shape: `threads` by member. `ranges` is the least number of key ranges a partition
    is cut into; `share` False: one.
    """

    partitions: int
    threads: Mapping[str, int]
    ranges: int = 1
    share: bool = True

    @cached_property
    def slots(self) -> int:
        """Cells of the whole sub-topology: one per thread, but no less than partitions
        and no more than key groups.
        """
        wanted = sum(self.threads.values()) if self.share else 0
        return min(max(wanted, self.partitions), self.partitions * GROUPS)

    @property
    def fewest(self) -> int:
        """Slots that every partition has; `larger` of them have one more."""
        return self.slots // self.partitions

    @property
    def larger(self) -> int:
        """Partitions that have one slot more than `fewest`."""
        return self.slots % self.partitions

    @property
    def counts(self) -> tuple[int, ...]:
        """The slot counts that partitions may have."""
        return (self.fewest, self.fewest + 1) if self.larger else (self.fewest,)

    @cached_property
    def quotas(self) -> dict[str, tuple[int, int]]:
        """The least and the most cells of each member: its share of all cells, rounded
        down, and rounded up.
        """
        total = sum(self.threads.values())
        return {
            member: (self.slots * threads // total, -(-self.slots * threads // total))
            for member, threads in self.threads.items()
        }

    def ranges_of(self, slots: int) -> int:
        """Return into how many key ranges a partition with this number of slots is cut."""
        return max(self.ranges, slots) if self.share else 1

    def cells(self, partition: int, slots: int) -> list[Cell]:
        """Return the cell of each slot of a partition, in the order of the hash space."""
        ranges = KeyRange.split(self.ranges_of(slots))
        cuts = [i * len(ranges) // slots for i in range(slots + 1)]
        return [Cell(partition, tuple(ranges[a:b])) for a, b in pairwise(cuts)]

    @cached_property
    def sizes(self) -> tuple[Fraction, Fraction]:
        """The smallest and the largest size a cell can have, in partitions."""
        small = min(
            Fraction(self.ranges_of(k) // k, self.ranges_of(k)) for k in self.counts
        )
        large = max(
            Fraction(-(-self.ranges_of(k) // k), self.ranges_of(k)) for k in self.counts
        )
        return small, large
