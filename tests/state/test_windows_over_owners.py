"""A law of window stores whose key ranges change owners: no open window is lost.

Law: whatever ranges were cut, restored together, committed and given up on two disks, a
task finds each window of its keys that has not closed at the operator time to which it
has advanced the store, or at which an earlier owner of the key has stopped, if that is
later. The operator times of other tasks, too, let segments be dropped and rows be left
out of restores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import Restore
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.bounds import bounds, now_ms
from tests.state.rows import put

SIZE = 60_000
SPEC = StoreSpec(
    "windows", "window", text, int64, window_ms=SIZE, retention_ms=SIZE, step_ms=SIZE
)
QUARTERS = KeyRange.split(4)
KEYS = [
    next(key for key in (b"%d" % n for n in range(99)) if key_hash(key) in quarter)
    for quarter in QUARTERS
]
CUTS = [KeyRange.split(1), KeyRange.split(2), QUARTERS]


@dataclass(slots=True)
class Owner:
    """A task. `quarters`: its quarters of the key space; `time`: its operator time;
    `advanced`: that of its store.
    """

    state: TaskState
    quarters: list[int]
    time: int
    advanced: int
    put: dict[tuple[int, int], int] = field(default_factory=dict)


class Group:
    """A changelog, two disks, and the tasks that share the keys."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, bytes, int]] = []
        self.rows: dict[tuple[int, int], int] = {}
        """The values in the changelog, by quarter and window."""
        self.times = [-1] * len(QUARTERS)
        """The operator time of each quarter's last commit."""
        self.disks = [Database(Memory(), [SPEC]) for _ in range(2)]
        self.owners: list[Owner] = []

    def assign(self, cut: int, where: int) -> None:
        """Close all tasks, and open those of another cut; bit n of `where` is the disk
        of range n.
        """
        for owner in self.owners:
            owner.state.discard()
        ranges = CUTS[cut % len(CUTS)]
        quarters = {
            one: [n for n, quarter in enumerate(QUARTERS) if one.overlaps(quarter)]
            for one in ranges
        }
        begins = {one: min(self.times[n] for n in quarters[one]) for one in ranges}
        self.owners = []
        for number, disk in enumerate(self.disks):
            mine = [one for n, one in enumerate(ranges) if where >> n & 1 == number]
            if not mine:
                continue
            times = {one: begins[one] for one in mine}
            restore = Restore(disk, SPEC, mine, bounds(len(self.log)), times=times)
            while restore.position < len(self.log):
                first = restore.position
                keys, values, stamps = zip(*self.log[first:], strict=True)
                offsets = list(range(first, len(self.log)))
                restore.feed(
                    Columns(
                        list(keys), list(values), list(stamps), offsets, list(stamps)
                    ),
                    len(self.log),
                )
            for one in mine:
                state = TaskState(disk, [SPEC], one, 1 << 30)
                state.begin({SPEC.name: begins[one]})
                self.owners.append(
                    Owner(state, quarters[one], begins[one], begins[one])
                )
        for owner in self.owners:
            self.look(owner)

    def move(self, owner: Owner, ms: int) -> None:
        """Advance the store to the operator time, and then the operator time by `ms`,
        as the next record does.
        """
        self.advance(owner)
        owner.time = max(owner.time, 0) + ms

    def put(self, owner: Owner, quarter: int) -> None:
        """Count a record in the current window of a key, unless an earlier owner has
        processed it.
        """
        quarter = owner.quarters[quarter % len(owner.quarters)]
        if owner.time < max(self.times[quarter], 0):
            return
        table, at = owner.state.stores[SPEC.name], (quarter, owner.time // SIZE)
        key = window_key(KEYS[quarter], at[1] * SIZE)
        owner.put[at] = (table.load(key).value or 0) + 1
        put(table, key, owner.put[at], owner.time)

    def advance(self, owner: Owner) -> None:
        """Advance the store to the operator time, as at the end of a batch."""
        if owner.time >= 0:
            owner.state.stores[SPEC.name].advance(owner.time)
            owner.advanced = owner.time

    def commit(self, owner: Owner) -> None:
        """Write the changes to the changelog, commit the operator time, and checkpoint
        both on the disk.
        """
        self.advance(owner)
        for batch in owner.state.changes():
            self.log += [
                (key, value, stamp)
                for key, value, stamp in zip(
                    batch.keys, batch.values, batch.timestamps, strict=True
                )
                if value is not None
            ]
        owner.state.commit({SPEC.name: len(self.log)}, true_ms=now_ms())
        self.rows |= owner.put
        owner.put.clear()
        for quarter in owner.quarters:
            self.times[quarter] = max(self.times[quarter], owner.time)

    def look(self, owner: Owner) -> None:
        """Check that a task finds its open windows."""
        table = owner.state.stores[SPEC.name]
        rows = self.rows | owner.put
        expected = {
            window_key(KEYS[quarter], window * SIZE): value
            for (quarter, window), value in rows.items()
            if quarter in owner.quarters
            and (window + 1) * SIZE > max(owner.advanced, self.times[quarter])
        }
        found = {key: entry.value for key, entry in table.scan(None, None)}
        assert expected.items() <= found.items()


APART = (0, 5, 20, 61, 130, 200)
"""Seconds between two records: within a window, in the next, beyond the retention, a
segment later.
"""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("assign", "work", "work", "commit")), st.integers(0, 63)
    ),
    max_size=25,
)


@pytest.mark.ci
@settings(deadline=None, max_examples=400)
@given(st.integers(0, 63), STEPS)
@example(
    37, [("commit", 17), ("assign", 14), ("commit", 0), ("assign", 1), ("assign", 1)]
)  # mended in `Restore`
def test_an_open_window_is_there_whoever_owned_its_key(
    first: int, steps: list[tuple[str, int]]
) -> None:
    group = Group()
    group.assign(first, first // 4)
    for step, number in steps:
        if step == "assign":
            group.assign(number, number // 4)
            continue
        owner = group.owners[number % len(group.owners)]
        group.move(owner, 1000 * APART[number // 4 % len(APART)])
        group.put(owner, number // 7)
        if step == "commit":
            group.commit(owner)
        group.look(owner)
