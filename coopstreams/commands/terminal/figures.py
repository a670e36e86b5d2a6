"""Figures of tasks as text for people, and the console that shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coopstreams.commands.terminal.control_characters import visible_lines

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


TIME_STANDS_S = 5.0
"""How long a clock stays the same before this is shown. Commits, which advance it, are
far more frequent.
"""
PIPE_WIDTH = 200
"""The width of tables in a pipe or a file, in characters. By itself, rich would fold
them at 80.
"""


def plain_console() -> Console:
    """Return a console of standard output that prints texts of users unchanged.

    Keys, values and errors may have what rich takes for its markup, `[b]`, or for the
    name of a picture, `:key:`. Without a terminal the console is wide, unless `COLUMNS`
    sets its width.
    """
    console = Console(markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def new_table(*columns: str, **options: Any) -> Table:
    """Return an empty table with one line, below its head. `columns`: columns of text
    that may be folded.

    `options`: those of `rich.table.Table`.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, **options)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def number(value: float | None) -> str:
    """Return a number with separators as text; `-` for None."""
    return "-" if value is None else f"{value:,.0f}"


def total(figures: Iterable[float | None]) -> float | None:
    """Return the sum; None: a figure is unknown, or there are none."""
    known = list(figures)
    return (
        None
        if not known or None in known
        else sum(figure for figure in known if figure is not None)
    )


def written(task: Mapping[str, Any]) -> int | None:
    """Return the number of records that a task has written, without changelogs; None:
    it does not run yet.
    """
    return sum(task["written"].values()) if "written" in task else None


def dropped(task: Mapping[str, Any]) -> int | None:
    """Return the number of records that a task has dropped; None: it does not run yet."""
    return (
        sum(each["records"] for each in task["dropped"]) if "dropped" in task else None
    )


def lag(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return the total lag of tasks as text. `≤` marks tasks that share partitions,
    because their lag includes records of other key ranges.
    """
    known = list(tasks)
    value = total(task.get("lag") for task in known)
    return (
        f"≤{number(value)}"
        if value and any(task.get("shared") for task in known)
        else number(value)
    )


def reasons_of(
    instances: Iterable[Mapping[str, Any]],
) -> list[tuple[list[str], str, str]]:
    """Return each reason of these instances once: the ids of the instances that have
    it, its code, and its message, which may quote a record.

    `not-shared` comes last, because it holds for all instances, and nothing is stuck.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for instance in instances:
        for reason in instance["reasons"]:
            owners = found.setdefault(
                (reason["code"], visible_lines(reason["message"])),
                [],
            )
            if instance["id"] not in owners:
                owners.append(instance["id"])
    ordered = sorted(found.items(), key=lambda one: one[0][0] == "not-shared")
    return [(owners, *reason) for reason, owners in ordered]


def standing_times(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each partition that the time of a sub-topology waits for, the
    longest wait first.

    Short waits are left out, because a clock advances with each commit of the writers.
    """
    longest: dict[tuple[int, str], dict[str, Any]] = {}
    for task in tasks:
        # an instance of an earlier release has no `time`
        waits = (task.get("time") or {}).get("waits_for")
        if waits is None or waits["since_s"] < TIME_STANDS_S:
            continue
        at = task["subtopology"], _awaited(waits)
        if at not in longest or longest[at]["since_s"] < waits["since_s"]:
            longest[at] = waits
    ordered = sorted(longest.items(), key=lambda one: -one[1]["since_s"])
    return [
        f"time of {reader}_* stands for {waits['since_s']:.0f} s: {_told_none(waits)}"
        for (reader, _), waits in ordered
    ]


def _awaited(waits: Mapping[str, Any]) -> str:
    """Return the partition that time waits for: of a topic of the user, or the task."""
    topic = waits.get("topic")  # an earlier release has none
    partition = waits["partition"]
    return (
        f"{waits['subtopology']}_{partition}"
        if topic is None
        else (f"{topic}-{partition}")
    )


def _told_none(waits: Mapping[str, Any]) -> str:
    if waits.get("topic") is not None:
        return f"{_awaited(waits)} has no later record, and is not read to its end"
    owner = waits["owner"] or "no instance"
    return (
        f"{_awaited(waits)}, key groups {waits['key_groups']}, of {owner} has told none"
    )


def snapshot_lines(instances: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line about the newest snapshot that an instance has seen; none if there
    is none.
    """
    # an instance of an earlier release has no `snapshot`
    seen = [found for each in instances if (found := each.get("snapshot"))]
    if not seen:
        return []
    newest = max(seen, key=lambda each: each["created"])
    return [
        f"snapshot {newest['run']}: {duration(int(newest['age_s'] * 1000))} old, {newest['bytes'] / 1e6:,.1f} MB"
    ]


def standbys_line(instance: Mapping[str, Any]) -> str:
    """Return the standbys of an instance in words, and what is to move there; empty: it
    has none.
    """
    # An instance of an earlier release has no `standbys`, or no `warming` of one.
    standbys = instance.get("standbys", ())
    moving = [one for one in standbys if one.get("warming")]
    quiet = [one for one in standbys if not one.get("warming")]
    said = []
    if quiet:
        lags = [one["lag"] for one in quiet if one["lag"] is not None]
        most = f", the furthest {max(lags):,} records behind" if lags else ""
        said.append(f"{len(quiet)} standby{'s' * (len(quiet) != 1)}{most}")
    for one in moving:
        lag = "" if one["lag"] is None else f", {one['lag']:,} records behind"
        eta_s = one["eta_s"]
        to_go = "" if eta_s is None else f", {eta_s:.0f} s to go"
        said.append(f"{one['id']} is warmed up to move here{lag}{to_go}")
    return "; ".join(said)


def behind(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return the longest time by which tasks' stream times are behind the wall clock,
    as text; negative: all are ahead.
    """
    spans = [span for task in tasks if (span := task.get("behind_ms")) is not None]
    return duration(max(spans)) if spans else "-"


def duration(ms: int) -> str:
    """Return a time span as text, in the largest unit of which it has at least two."""
    sign = "-" if ms < 0 else ""
    size = abs(ms)
    for unit, name in _UNITS:
        if size >= 2 * unit:
            return f"{sign}{size // unit:,} {name}"
    return f"{sign}{size / 1000:.1f} s"
