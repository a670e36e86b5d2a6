"""What several processes of one application are doing, as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

MOST_TASKS = 6
"""Tasks of a process that are shown one by one; of more, the first ones and how many there are."""

_COLOURS = {"running": "green", "starting": "dim", "ended": "red", "draining": "yellow"}


@dataclass(slots=True)
class Process:
    """What is known of a worker. `word` is what its supervisor knows better than itself: `starting`, `draining`, `ended`; empty: nothing."""

    number: int
    pid: int
    word: str = "starting"
    report: Mapping[str, Any] | None = None
    """What it said of itself last: one instance of `/v1/status`."""


def processes_table(application: str, processes: Iterable[Process]) -> Table:
    """Return a row for each process and one for all together: state, tasks with key ranges, records/s, lag."""
    table = Table(title=application, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_footer=True)
    known = list(processes)
    tasks = [_tasks(process) for process in known]
    number = sum(map(len, tasks))
    table.add_column("process", footer="together", no_wrap=True)
    table.add_column("state")
    table.add_column("tasks and key ranges", footer=f"{number} task{'s' * (number != 1)}", overflow="fold", ratio=1)
    table.add_column("records/s", footer=_number(_sum(task.get("rate") for own in tasks for task in own)), justify="right", no_wrap=True)
    table.add_column("lag", footer=_number(_sum(task.get("lag") for own in tasks for task in own)), justify="right", no_wrap=True)
    for process, own in zip(known, tasks, strict=True):
        rate, lag = _sum(task.get("rate") for task in own), _sum(task.get("lag") for task in own)
        table.add_row(f"{process.number}  pid {process.pid}", _state(process), _ranges(own), _number(rate), _number(lag))
    return table


def _tasks(process: Process) -> Sequence[Mapping[str, Any]]:
    """The tasks of a process; one that has ended has none any more."""
    return () if process.report is None or process.word == "ended" else process.report["tasks"]


def _state(process: Process) -> Text:
    """A word for how it is, and why if it is not well."""
    word = process.word or (process.report or {}).get("state", "starting")
    reasons = list(dict.fromkeys(reason["code"] for reason in (process.report or {}).get("reasons", ())))
    if process.word or not reasons or process.report is None:
        return Text(word, _COLOURS.get(word, "yellow"))
    return Text(f"{word}: {', '.join(reasons)}", "yellow" if process.report["live"] else "red")


def _ranges(tasks: Sequence[Mapping[str, Any]]) -> str:
    shown = [task["id"] if task["state"] == "running" else f"{task['id']} {task['state']}" for task in tasks[:MOST_TASKS]]
    return ", ".join([*shown, *([f"and {len(tasks) - MOST_TASKS} more"] if len(tasks) > MOST_TASKS else [])])


def _sum(figures: Iterable[float | None]) -> float | None:
    """The sum, unknown if one of them is or if there are none."""
    known = list(figures)
    return None if not known or None in known else sum(figure for figure in known if figure is not None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
