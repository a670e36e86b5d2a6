"""`coopstreams top`: shows an application on the terminal as it changes: instances, key
ranges, lag, reasons for waiting.

The status comes over HTTP from one instance, which asks the others.

Invariant: while the instance does not answer, the last picture stays, with its age and
the reason.
Turned down: reading keys, and several views (the page of each instance has them).
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coopstreams.commands.http_access import AskingFile, asking
from coopstreams.commands.terminal.bars import Letters, range_bars
from coopstreams.commands.terminal.figures import (
    new_table,
    plain_console,
    reasons_of,
    snapshot_lines,
    standbys_line,
    standing_times,
)
from coopstreams.commands.terminal.processes import figures_of
from coopstreams.common.optional_packages import need_http
from coopstreams.topology.errors import QueryError

EVERY_S = 1.0
MOST_REASONS = 6
MOST_HOT = 4
_COLOURS = {"running": "green", "unreachable": "red"}


def top(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="http://HOST:PORT of any instance of the application.",
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and end.")
    ] = False,
    config: AskingFile = None,
) -> None:
    """Show an application as it changes: its instances, key ranges with their load,
    lag, and why something does not move.

    Ctrl-C ends it. Where there is no terminal, one picture is printed.
    """
    need_http("coopstreams top")
    console = plain_console()
    letters = Letters()
    with asking(url, config, "operate", 10) as client:
        report = client.status()
    if once or not console.is_terminal:
        console.print(picture(report, letters, ascii_only=console.options.ascii_only))
        return
    signal.signal(
        signal.SIGTERM,
        lambda number, _: sys.exit(128 + number),
    )  # else the terminal stays as it is now
    with (
        asking(url, config, "operate", 0) as client,
        Live(console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        heard = time.monotonic()
        silent = ""
        while True:
            shown = picture(report, letters, ascii_only=console.options.ascii_only)
            live.update(Group(shown, Text(silent, "red")), refresh=True)
            time.sleep(EVERY_S)
            try:
                report = client.status()
            except QueryError as error:
                silent = f"no answer for {time.monotonic() - heard:.0f} s: {error}"
            else:
                heard = time.monotonic()
                silent = ""


def picture(
    report: dict[str, Any],
    letters: Letters,
    *,
    ascii_only: bool = False,
) -> RenderableType:
    """Return an answer of `/v1/status` as text and bars for the terminal."""
    instances = report["instances"]
    letters.meet(instance["id"] for instance in instances)
    tasks = [task for instance in instances for task in instance["tasks"]]
    partitions = {(task["subtopology"], task["partition"]) for task in tasks}
    heading = Text.assemble(
        (report["application"], "bold"),
        f"  generation {report['generation']}, {len(tasks)} tasks on {len(partitions)} partitions",
    )
    bars = range_bars(
        [(letters.of(instance["id"]), instance["tasks"]) for instance in instances],
        ascii_only=ascii_only,
    )
    return Group(
        heading,
        "",
        _instances(instances, letters),
        "",
        bars,
        *_hot(tasks),
        *map(Text, standing_times(tasks)),
        *map(Text, snapshot_lines(instances)),
        *_standbys(instances, letters),
        *_reasons(instances, letters),
    )


def _instances(instances: list[dict[str, Any]], letters: Letters) -> Table:
    table = new_table("instance", padding=(0, 1, 0, 0))
    table.add_column("state", overflow="fold", min_width=len("running"))
    for name in ("tasks", "in/s", "out", "dropped", "lag", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    for instance in instances:
        address = (instance["url"] or instance["id"]).partition("://")[2] or instance[
            "id"
        ]
        label = letters.of(instance["id"]).append(f" {address}", "default")
        table.add_row(
            label,
            _state(instance),
            str(len(instance["tasks"])),
            *figures_of(instance["tasks"]),
        )
    return table


def _state(instance: dict[str, Any]) -> Text:
    state = instance["state"]
    codes = dict.fromkeys(reason["code"] for reason in instance["reasons"])
    others = [code for code in codes if code != state]
    colour = _COLOURS.get(state, "yellow") if instance["live"] else "red"
    return Text(
        ", ".join([state, *others]),
        "yellow" if others and instance["live"] else colour,
    )


def _hot(tasks: list[dict[str, Any]]) -> list[RenderableType]:
    """Return a line with the hot key groups, those with the most records first; empty:
    there are none.
    """
    groups = [
        (
            one["share"] * task.get("rate", 0.0),
            one["key_group"],
            one["share"],
            task["id"],
        )
        for task in tasks
        for one in task.get("hot", ())
    ]
    told = [
        f"{group} of {task}: {share:.0%}, {rate:,.0f}/s"
        for rate, group, share, task in sorted(groups)[::-1]
    ]
    return ["", Text("hot key groups: " + "; ".join(told[:MOST_HOT]))] if told else []


def _standbys(
    instances: list[dict[str, Any]],
    letters: Letters,
) -> list[RenderableType]:
    """Return a line for each instance with standbys."""
    said = [
        letters.of(instance["id"]).append(f" {line}", "default")
        for instance in instances
        if (line := standbys_line(instance))
    ]
    return ["", *said] if said else []


def _reasons(instances: list[dict[str, Any]], letters: Letters) -> list[RenderableType]:
    """Return a line for each reason why something does not move, with the letters of
    all instances that have it.
    """
    said = [
        Text.assemble(*map(letters.of, owners), " ", (code, "yellow"), f": {message}")
        for owners, code, message in reasons_of(instances)
    ]
    more = (
        [Text(f"and {len(said) - MOST_REASONS} more", "dim")]
        if len(said) > MOST_REASONS
        else []
    )
    return ["", *said[:MOST_REASONS], *more] if said else []
