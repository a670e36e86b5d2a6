"""A version of the rows of each slice and family, which changes with every write to them.

So a writer of snapshots knows which files it has written already.

Invariant: two equal versions of a slice and family, in one process, mean equal rows.
Versions are numbers of the process, not of a database: a database that was closed and
opened again has others. Turned down: the offsets of checkpoints (each commit moves all of
a task's), and a comparison of files (the rows are read and hashed for it).
Relies on: `database` (tells it of each change before it is written),
`instance.snapshot_taker` (compares).
"""

from __future__ import annotations

from itertools import count
from operator import itemgetter

from coopstreams.state.engine import Change
from coopstreams.state.manifest import SLICE_GROUPS
from coopstreams.topology.keys import GROUPS

SLICES = GROUPS // SLICE_GROUPS

_next = count().__next__
_group = itemgetter(0)


class SliceVersions:
    """The versions of all families of one engine's stores. The owner has a lock."""

    def __init__(self) -> None:
        self._first = _next()
        self._of: dict[str, list[int]] = {}

    def of(self, family: str, group: int) -> int:
        """Return the version of a family's rows in the slice that has this key group."""
        known = self._of.get(family)
        return self._first if known is None else known[group // SLICE_GROUPS]

    def made(self, family: str) -> None:
        """Note that a family was made, which may have had other rows before."""
        self._of[family] = [_next()] * SLICES

    def dropped(self, family: str) -> None:
        """Forget a family that is gone: segments come and go for as long as a process
        runs.
        """
        self._of.pop(family, None)

    def note(self, change: Change) -> None:
        """Note a change of a family, before it is written."""
        slices = {group // SLICE_GROUPS for group in set(map(_group, change.keys))}
        for start, end in change.vanishing:
            first = start[0] if start else 0
            last = end[0] - (len(end) == 1) if end else GROUPS - 1
            slices |= {*range(first // SLICE_GROUPS, last // SLICE_GROUPS + 1)}
        if not slices:
            return
        known = self._of.setdefault(change.family, [self._first] * SLICES)
        version = _next()
        for number in slices:
            known[number] = version
