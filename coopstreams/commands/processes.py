"""What several processes of one application are doing, as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from coopstreams.commands.figures import behind, dropped, lag, number, total, written

MOST_TASKS = 6
"""Tasks of a process that are shown one by one; of more, the first ones and how many there are."""

MOST_SAID = 160
"""Characters of how a process ended; the log line above the table has all of them."""

_COLOURS = {"running": "green", "starting": "dim", "ended": "red", "draining": "yellow"}


@dataclass(slots=True)
class WorkerProcess:
    """What is known of a worker. `word` is what its supervisor knows better than itself: `starting`, `draining`,
    `ended`; empty: nothing.
    """

    number: int
    pid: int
    word: str = "starting"
    report: Mapping[str, Any] | None = None
    """What it said of itself last: one instance of `/v1/status`."""
    restarts: int = 0
    """How often it was started again."""
    last_end: str = ""
    """How it has ended, if it has and is started again."""
    again_at: float = 0.0
    """When it is started again then."""


def processes_table(application: str, processes: Iterable[WorkerProcess], now: float) -> Table:
    """Return a row for each process and one for all together: state, tasks with key ranges, records/s, lag. `now` as
    `again_at`.
    """
    table = Table(
        title=application,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        show_footer=True,
        padding=(0, 1, 0, 0),
    )
    known = list(processes)
    tasks = [_tasks(process) for process in known]
    number = sum(map(len, tasks))
    table.add_column("process", footer="together", no_wrap=True)
    table.add_column("state")
    table.add_column(
        "tasks and key ranges",
        footer=f"{number} task{'s' * (number != 1)}",
        overflow="fold",
        ratio=1,
        min_width=len("0_0[128..255]"),
    )
    together = [task for own in tasks for task in own]
    for name, footer in zip(("records/s", "out", "dropped", "lag", "behind"), _figures(together), strict=True):
        table.add_column(name, footer=footer, justify="right", no_wrap=True)
    for process, own in zip(known, tasks, strict=True):
        table.add_row(f"{process.number}  pid {process.pid}", _state(process, now), _ranges(own), *_figures(own))
    return table


def _figures(tasks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    sums = [total(task.get("rate") for task in tasks), total(map(written, tasks)), total(map(dropped, tasks))]
    return *map(number, sums), lag(tasks), behind(tasks)


def _tasks(process: WorkerProcess) -> Sequence[Mapping[str, Any]]:
    """The tasks of a process; one that has ended has none any more."""
    return () if process.report is None or process.word == "ended" or process.last_end else process.report["tasks"]


def _state(process: WorkerProcess, now: float) -> Text:
    """A word for how it is, why if it is not well, and how often it was started again."""
    if process.last_end and process.word != "draining":
        return Text(f"again in {max(0.0, process.again_at - now):.0f} s: {process.last_end}"[:MOST_SAID], "red")
    state = _word(process)
    return state.append(f", {process.restarts} restart{'s' * (process.restarts != 1)}") if process.restarts else state


def _word(process: WorkerProcess) -> Text:
    word = process.word or (process.report or {}).get("state", "starting")
    reasons = list(dict.fromkeys(reason["code"] for reason in (process.report or {}).get("reasons", ())))
    if process.word or not reasons or process.report is None:
        return Text(word, _COLOURS.get(word, "yellow"))
    return Text(f"{word}: {', '.join(reasons)}", "yellow" if process.report["live"] else "red")


def _ranges(tasks: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        task["id"] if task["state"] == "running" else f"{task['id']} {task['state']}" for task in tasks[:MOST_TASKS]
    ]
    return ", ".join([*shown, *([f"and {len(tasks) - MOST_TASKS} more"] if len(tasks) > MOST_TASKS else [])])
