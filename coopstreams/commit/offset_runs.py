"""Done runs: sorted ranges of offsets above a position, and the arithmetic on them.

A task that finishes records out of order has done everything below its position, and
some runs above it. The position advances over a run as soon as it reaches it.

Invariant: runs are inclusive `(start, end)` pairs as the proposal prints them,
ascending, never overlapping and never adjacent. Turned down: a set of offsets (10 000
runs are 20 kB in a commit; the offsets in them may be millions).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from typing import TypeAlias

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Done offsets: inclusive (start, end), ascending, with at least one undone offset
between two of them.
"""


def normalise(runs: Iterable[tuple[int, int]]) -> Runs:
    """Return the same offsets as runs in order, with overlapping and neighbouring runs
    joined.

    Raises:
        ValueError: a run that ends before it starts.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if start > end:
            raise ValueError(f"offset range [{start}, {end}] ends before it starts")
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


def runs_of(offsets: Collection[int]) -> Runs:
    """Return the runs of these offsets, which are each given once, in any order."""
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and offset == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return tuple(runs)


def merge(left: Runs, right: Runs) -> Runs:
    """Return the offsets that are in at least one of the two."""
    return normalise((*left, *right)) if left and right else left or right


def common(left: Runs, right: Runs) -> Runs:
    """Return the offsets that are in both."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start <= end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def above(runs: Runs, position: int) -> Runs:
    """Return the part of the runs at or above a position; a run that contains it is cut
    there.
    """
    if not runs or runs[0][0] >= position:
        return runs
    kept = runs[bisect_left(runs, position, key=lambda run: run[1]) :]
    return (
        ((position, kept[0][1]), *kept[1:]) if kept and kept[0][0] < position else kept
    )


def advance(position: int, runs: Runs) -> tuple[int, Runs]:
    """Return the first offset at or above the position that is not done, and the runs
    above that offset.
    """
    kept = above(runs, position)
    if kept and kept[0][0] == position:
        return kept[0][1] + 1, kept[1:]
    return position, kept


def contains(runs: Runs, offset: int) -> bool:
    """Return whether the offset is in one of the runs."""
    at = bisect_right(runs, offset, key=lambda run: run[0]) - 1
    return at >= 0 and offset <= runs[at][1]
