"""The progress of a backfill's tasks: bars on a terminal, elsewhere a line for each
finished task.

    sub-topology 0      ━━━━━━━━╸━━━━━━━━  3 of 8 tasks
    reading orders-1    ━━━━━━━━━━━━━━━━━  1,200 records
    task 0_1[85..170]   ━━━━━╸━━━━━━━━━━━    310 records

Invariant: a finished task is counted and its bar removed, so there are as many bars as
tasks that Spark runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from coopstreams.spark.plan import Stage
    from coopstreams.spark.workers.stage_progress import TaskProgress


class TaskBars:
    """The bars of a backfill's stages and tasks, as a context manager. `show` is for
    `on_progress` of a backfill.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
        )
        self._stages: dict[str, TaskID] = {}
        self._running: dict[str, TaskID] = {}
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._running.values():
            self._bars.remove_task(bar)
        if (
            self._console.is_terminal
        ):  # elsewhere rich before 14.3 ends a line that was not begun
            self._bars.stop()

    def show(self, stage: Stage, progress: Sequence[TaskProgress]) -> None:
        """Show the progress of a stage. Any thread may call it, but only one at a time."""
        done = sum(each.done for each in progress if each.kind == "task")
        if not self._console.is_terminal:
            for each in progress:
                if each.done and (stage.name, each.name) not in self._said:
                    self._said.add((stage.name, each.name))
                    self._console.print(
                        f"{label(each)}: {each.records:,} records",
                        highlight=False,
                        markup=False,
                        soft_wrap=True,
                    )
            return
        if stage.name not in self._stages:
            self._stages[stage.name] = self._bars.add_task(
                stage.name,
                total=len(stage.running),
                amount="",
            )
        self._bars.update(
            self._stages[stage.name],
            completed=done,
            amount=f"{done} of {len(stage.running)} tasks",
        )
        for each in progress:
            self._one(each)

    def _one(self, each: TaskProgress) -> None:
        if each.done:
            bar = self._running.pop(each.name, None)
            if bar is not None:
                self._bars.remove_task(bar)
            return
        if each.name not in self._running:
            self._running[each.name] = self._bars.add_task(
                label(each).replace("[", "\\["),
                total=each.target,
                amount="",
            )
        self._bars.update(
            self._running[each.name],
            completed=each.position,
            amount=f"{each.records:,} records",
        )


def label(each: TaskProgress) -> str:
    """Return the label of a task's bar."""
    return f"task {each.name}" if each.kind == "task" else f"reading {each.name}"


def say_stage(stage: Stage) -> None:
    """Print the stage that begins. It is for `on_stage` of a backfill."""
    typer.echo(f"{stage.name}: {len(stage.running)} tasks")
