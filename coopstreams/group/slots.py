"""The slots of a partition, and the key ranges of each slot. Pure arithmetic, without
the tasks that members hold.

A group has one slot for each thread. If there are more slots than partitions, a
partition has several and is cut by key range; otherwise a slot has several partitions.
A *cell* is the part of one partition that one slot takes: neighbouring key ranges.

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
    """The part of a partition that one slot takes: one or more neighbouring key ranges,
    each a task.
    """

    partition: int
    ranges: tuple[KeyRange, ...]

    @property
    def key_range(self) -> KeyRange:
        """The one key range that all key ranges of the cell make up."""
        return KeyRange(self.ranges[0].start, self.ranges[-1].end)


@dataclass(frozen=True)
class Layout:
    """The allowed cuts of one sub-topology for a group: slot counts, key ranges and
    each member's share.

    Shape: `threads` by member. `ranges` is the least number of key ranges a partition
    is cut into; `share` False: partitions are not cut.
    """

    partitions: int
    threads: Mapping[str, int]
    ranges: int = 1
    share: bool = True

    @cached_property
    def slots(self) -> int:
        """The number of slots, and so of cells, of the sub-topology: one per thread, at
        least one per partition, at most one per key group.
        """
        wanted = sum(self.threads.values()) if self.share else 0
        return min(max(wanted, self.partitions), self.partitions * GROUPS)

    @property
    def fewest(self) -> int:
        """The number of slots that every partition has; `larger` partitions have one
        more.
        """
        return self.slots // self.partitions

    @property
    def larger(self) -> int:
        """The number of partitions that have one slot more than `fewest`."""
        return self.slots % self.partitions

    @property
    def counts(self) -> tuple[int, ...]:
        """The slot counts that partitions may have."""
        return (self.fewest, self.fewest + 1) if self.larger else (self.fewest,)

    @cached_property
    def quotas(self) -> dict[str, tuple[int, int]]:
        """The least and the most cells of each member: its share of all cells, rounded
        down and up.
        """
        total = sum(self.threads.values())
        return {
            member: (self.slots * threads // total, -(-self.slots * threads // total))
            for member, threads in self.threads.items()
        }

    def ranges_of(self, slots: int) -> int:
        """Return the number of key ranges of a partition with this number of slots."""
        return max(self.ranges, slots) if self.share else 1

    def cells(self, partition: int, slots: int) -> list[Cell]:
        """Return the cell of each slot of a partition, in the order of the hash space."""
        ranges = KeyRange.split(self.ranges_of(slots))
        cuts = [i * len(ranges) // slots for i in range(slots + 1)]
        return [Cell(partition, tuple(ranges[a:b])) for a, b in pairwise(cuts)]

    @cached_property
    def sizes(self) -> tuple[Fraction, Fraction]:
        """The size of the smallest and of the largest possible cell, in partitions."""
        small = min(
            Fraction(self.ranges_of(k) // k, self.ranges_of(k)) for k in self.counts
        )
        large = max(
            Fraction(-(-self.ranges_of(k) // k), self.ranges_of(k)) for k in self.counts
        )
        return small, large
