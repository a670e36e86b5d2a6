"""The hash space of each partition as a bar of key ranges, for terminals. Pure.

    0_0  A▆▆▆▆▆▆▆▆▆B▃▃▃▃▃▃▃▃▃C▁▁▁▁▁▁▁▁▁    1,204 /s   ≤12

A range has the letter and the colour of its owner. Its height is its records per second
relative to its width. `░` is a task that does not run yet, `·` a part of the hash space
that no process has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.table import Table
from rich.text import Text

from coopstreams.commands.terminal.figures import lag, number
from coopstreams.topology.keys import GROUPS, MAX_HASH

WIDTH = 40
MOST_PARTITIONS = 12
"""The most bars of a sub-topology. If it has more partitions, those with the largest
lag are shown.
"""
_HEIGHTS = "▁▂▃▄▅▆▇█"
COLOURS = (
    "blue",
    "yellow",
    "green",
    "magenta",
    "cyan",
    "red",
    "bright_blue",
    "bright_green",
)
"""The colours of owners, by number."""


Owned: TypeAlias = tuple[Text, Sequence[Mapping[str, Any]]]
"""The letter of an instance, and its tasks."""


class Letters:
    """The letters by which instances are shown. An instance keeps its letter as long as
    it exists.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def meet(self, instances: Iterable[str]) -> None:
        """Give letters to new instances. Letters of instances that are not in
        `instances` become free.
        """
        known = sorted(instances)
        self._numbers = {
            name: number for name, number in self._numbers.items() if name in known
        }
        for name in known:
            taken = set(self._numbers.values())
            self._numbers.setdefault(
                name,
                next(free for free in range(len(taken) + 1) if free not in taken),
            )

    def of(self, instance: str) -> Text:
        """Return the letter of an instance in its colour."""
        number = self._numbers[instance]
        letter = chr(ord("A") + number % 26) if number < 2 * 26 else "?"
        return Text(
            letter if number < 26 else letter.lower(),
            COLOURS[number % len(COLOURS)],
        )


@dataclass(frozen=True, slots=True)
class _Range:
    """A task's part of the bar of its partition. `start` and `end` are the ends of its
    key range as fractions of the hash space; `owner`: the label of its instance.
    """

    task: Mapping[str, Any]
    owner: Text
    start: float
    end: float

    @property
    def density(self) -> float:
        """Records per second, relative to the width of the range."""
        return (self.task.get("rate") or 0.0) / (self.end - self.start)


@dataclass(slots=True)
class _Partition:
    """A bar to draw: a partition of a sub-topology, with its tasks by key range."""

    subtopology: int
    number: int
    ranges: list[_Range] = field(default_factory=list)

    @property
    def tasks(self) -> list[Mapping[str, Any]]:
        return [one.task for one in self.ranges]

    @property
    def rate(self) -> float:
        """Records per second of all key ranges."""
        return sum(task.get("rate") or 0.0 for task in self.tasks)

    @property
    def most_lag(self) -> int:
        """The lag of the key range that is furthest behind."""
        return max((task.get("lag") or 0 for task in self.tasks), default=0)


def range_bars(
    instances: Iterable[tuple[Text, Sequence[Mapping[str, Any]]]],
    *,
    ascii_only: bool = False,
    gap: str = "red",
) -> Table:
    """Return a table with a bar for each partition, from the letters of instances and
    their tasks in `/v1/status`.

    `gap`: the style of ranges without an owner.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("partition", no_wrap=True)
    table.add_column("bar", no_wrap=True, width=WIDTH)
    table.add_column("records/s", justify="right", no_wrap=True)
    table.add_column("lag", justify="right", no_wrap=True)
    partitions = _partitions(instances)
    for subtopology in sorted({part.subtopology for part in partitions}):
        own = [part for part in partitions if part.subtopology == subtopology]
        most = max(one.density for part in own for one in part.ranges)
        if len(own) > MOST_PARTITIONS:
            own.sort(key=lambda part: (-part.most_lag, part.number))
        for part in own[:MOST_PARTITIONS]:
            bar = _bar(part.ranges, most, gap, ascii_only=ascii_only)
            table.add_row(
                f"{part.subtopology}_{part.number}",
                bar,
                f"{number_of(part.rate)}/s",
                _lag(part.tasks),
            )
        if len(own) > MOST_PARTITIONS:
            table.add_row(
                "",
                Text(f"and {len(own) - MOST_PARTITIONS} more partitions", "dim"),
            )
    return table


def number_of(rate: float) -> str:
    """Return a rate as text; below 10 with a decimal."""
    return f"{rate:.1f}" if 0 < rate < 10 else number(rate)


def _lag(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Return the lag of a partition as text: the largest of its tasks, because each
    includes records of the others.
    """
    return lag(sorted(tasks, key=lambda task: task.get("lag") or 0)[-1:])


def _partitions(instances: Iterable[Owned]) -> list[_Partition]:
    found: dict[tuple[int, int], _Partition] = {}
    for owner, tasks in instances:
        for task in tasks:
            place = task["subtopology"], task["partition"]
            found.setdefault(place, _Partition(*place)).ranges.append(
                _Range(task, owner, *_span(task["key_range"]))
            )
    for part in found.values():
        part.ranges.sort(key=lambda one: one.start)
    return [found[place] for place in sorted(found)]


def _span(key_range: str) -> tuple[float, float]:
    """Return a printed key range, of key groups or hashes, as a part of the hash space.
    Shape: half-open, within 0.0 and 1.0.
    """
    first, last = map(int, key_range.split(".."))
    whole = GROUPS if last < GROUPS else MAX_HASH + 1
    return first / whole, min(1.0, (last + 1) / whole)


def _bar(
    ranges: Sequence[_Range],
    most: float,
    gap: str,
    *,
    ascii_only: bool,
) -> Text:
    bar = Text()
    shown = None
    for place in range(WIDTH):
        middle = (place + 0.5) / WIDTH
        one = next((one for one in ranges if one.start <= middle < one.end), None)
        if one is None:
            bar.append("." if ascii_only else "·", gap)
        elif one is not shown or ascii_only:
            bar.append(one.owner.plain, f"bold {one.owner.style}")
        elif one.task["state"] != "running":
            bar.append("░", str(one.owner.style))
        else:
            height = round(one.density / most * (len(_HEIGHTS) - 1)) if most else 0
            bar.append(_HEIGHTS[height], str(one.owner.style))
        shown = one
    return bar
