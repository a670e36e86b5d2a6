"""The table of the worker processes of a supervisor, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from coopstreams.commands.terminal.bars import COLOURS, range_bars
from coopstreams.commands.terminal.figures import (
    behind,
    dropped,
    lag,
    new_table,
    number,
    total,
    written,
)

MOST_TASKS = 6
"""The most tasks of a process that are shown one by one. The others are only counted.
"""

MOST_SAID = 160
"""The most characters shown of the reason why a process ended. The log line above the
table has the whole reason.
"""

_COLOURS = {"running": "green", "starting": "dim", "ended": "red", "draining": "yellow"}


@dataclass(slots=True)
class WorkerProcess:
    """A worker process, as its supervisor's table shows it.

    `word`: the state that the supervisor sets: `starting`, `draining`, `ended`; empty:
    the state is in the worker's report.
    """

    number: int
    pid: int
    word: str = "starting"
    report: Mapping[str, Any] | None = None
    """The worker's last report about itself: one instance of `/v1/status`."""
    restarts: int = 0
    """How often the worker was restarted."""
    last_end: str = ""
    """How the worker ended, while it waits for its restart; empty: it does not wait."""
    again_at: float = 0.0
    """The time of the worker's next restart (`time.monotonic`), while it waits for one.
    """


def processes_table(
    application: str,
    processes: Iterable[WorkerProcess],
    now: float,
) -> Table:
    """Return a table with a row for each process and one for the sums: state, tasks
    with key ranges, records/s, lag.

    `now`: on the clock of `again_at`.
    """
    table = new_table(
        title=application,
        title_justify="left",
        show_footer=True,
        padding=(0, 1, 0, 0),
    )
    known = list(processes)
    tasks = [tasks_of(process) for process in known]
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
    for name, footer in zip(
        ("records/s", "out", "dropped", "lag", "behind"),
        figures_of(together),
        strict=True,
    ):
        table.add_column(name, footer=footer, justify="right", no_wrap=True)
    for process, own in zip(known, tasks, strict=True):
        table.add_row(
            f"{process.number}  pid {process.pid}",
            _state(process, now),
            _ranges(own),
            *figures_of(own),
        )
    return table


def bars(processes: Iterable[WorkerProcess], *, ascii_only: bool = False) -> Table:
    """Return a table with a bar for each partition, which shows the key ranges of these
    processes by process number.
    """
    owned = [
        (
            Text(str(process.number % 10), COLOURS[process.number % len(COLOURS)]),
            tasks_of(process),
        )
        for process in processes
    ]
    return range_bars(owned, ascii_only=ascii_only, gap="dim")


def figures_of(tasks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the sums over tasks as text: records/s, written, dropped, lag, behind."""
    sums = [
        total(task.get("rate") for task in tasks),
        total(map(written, tasks)),
        total(map(dropped, tasks)),
    ]
    return *map(number, sums), lag(tasks), behind(tasks)


def tasks_of(process: WorkerProcess) -> Sequence[Mapping[str, Any]]:
    """Return the tasks of a process; empty: it has ended, or has not reported yet."""
    return (
        ()
        if process.report is None or process.word == "ended" or process.last_end
        else process.report["tasks"]
    )


def _state(process: WorkerProcess, now: float) -> Text:
    """Return the state of a process in words, with the reason if it is not healthy, and
    the number of restarts.
    """
    if process.last_end and process.word != "draining":
        return Text(
            f"again in {max(0.0, process.again_at - now):.0f} s: {process.last_end}"[
                :MOST_SAID
            ],
            "red",
        )
    state = _word(process)
    return (
        state.append(f", {process.restarts} restart{'s' * (process.restarts != 1)}")
        if process.restarts
        else state
    )


def _word(process: WorkerProcess) -> Text:
    word = process.word or (process.report or {}).get("state", "starting")
    reasons = list(
        dict.fromkeys(
            reason["code"] for reason in (process.report or {}).get("reasons", ())
        )
    )
    if process.word or not reasons or process.report is None:
        return Text(word, _COLOURS.get(word, "yellow"))
    return Text(
        f"{word}: {', '.join(reasons)}",
        "yellow" if process.report["live"] else "red",
    )


def _ranges(tasks: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        task["id"] if task["state"] == "running" else f"{task['id']} {task['state']}"
        for task in tasks[:MOST_TASKS]
    ]
    return ", ".join(
        [
            *shown,
            *(
                [f"and {len(tasks) - MOST_TASKS} more"]
                if len(tasks) > MOST_TASKS
                else []
            ),
        ]
    )
