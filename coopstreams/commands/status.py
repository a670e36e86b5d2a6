"""`coopstreams status`: who owns what, how far each task is, and why something does not move."""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def status(url: Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of any instance of the application.")]) -> None:
    """Print the instances of an application with their tasks, key ranges, rates and lags, and why something does not move.

    Exit status 1: an instance is not well or does not answer.
    """
    from coopstreams.query.client import QueryClient  # needs the `http` extra, which other commands do not

    with QueryClient(url, deadline_s=10) as client:
        report = client.status()
    console = Console()
    console.print(status_table(report))
    for instance in report["instances"]:
        for reason in instance["reasons"]:
            console.print(f"[yellow]{instance['id']}[/]: {reason['code']}: {reason['message']}")
    if not all(instance["live"] for instance in report["instances"]):
        raise typer.Exit(1)


def status_table(report: dict[str, Any]) -> Table:
    """Return the instances and their tasks as a table: each instance's id, its address below, beside them its tasks."""
    table = Table(
        title=f"{report['application']}, generation {report['generation']}", title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for name in ("instance", "task", "state"):
        table.add_column(name, overflow="fold")
    for name in ("processed", "records/s", "lag"):
        table.add_column(name, justify="right")
    for instance in report["instances"]:
        labels = [instance["id"], instance["url"] or "serves no queries"]
        for label, task in zip_longest(labels, instance["tasks"] or [{"state": instance["state"]}]):
            table.add_row(label or "", *(_task(task) if task else ()))
    return table


def _task(task: dict[str, Any]) -> tuple[str, ...]:
    waits = [f"{store['store']} {store['remaining']:,} to go" for store in task.get("restore", ())]
    waits += [f"{store['store']} {_megabytes(store['fetched_bytes'])} of {_megabytes(store['total_bytes'])} MB" for store in task.get("pick_up", ())]
    state = task["state"] or "unknown"
    told = f"{state} ({', '.join(waits)})" if waits else state
    return task.get("id", "-"), told, _number(task.get("processed")), _number(task.get("rate")), _number(task.get("lag"))


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
