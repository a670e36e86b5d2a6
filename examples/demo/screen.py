"""The demo's output: progress bars, the key ranges of each process, and the answers
side by side, within 80 columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Self, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from coopstreams.topology.keys import GROUPS
from examples.demo.answers import Answers, Delay, DepartureTally, differences
from examples.demo.progress import RunningRange
from examples.demo.run import fetch
from examples.demo.workers import Worker

STRIP = 16
"""The number of characters that represent the hash space."""
SAMPLES = 5
MOST_DIFFERENCES = 20

K = TypeVar("K")


class DemoScreen:
    """Prints a demo's messages, the times of its parts, and its final answers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._took: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Print a line, which may contain markup."""
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a part takes."""
        started = time.monotonic()
        yield
        self._took[what] = time.monotonic() - started

    def say_times(self) -> None:
        """Print how long each part took."""
        self.say(
            "\nTime: "
            + ", ".join(
                f"{what} {seconds:.1f} s" for what, seconds in self._took.items()
            )
        )

    def compare(self, url: str, tally: DepartureTally) -> bool:
        """Print all answers of the application beside the expected ones; return whether
        they are equal.
        """
        with (
            self.timed("answers"),
            self._console.status(f"asking {url} for every answer"),
        ):
            found = fetch(url, sorted(tally.carriers))
        self._console.print("", answers(found, tally.answers), "")
        return verdict(self._console, found, tally.answers)


def bars(console: Console) -> Progress:
    """Return progress bars of records, for loading and processing."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.completed:>7,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        console=console,
    )


class LiveScreen:
    """Bars and the table of the processes, redrawn in place on a terminal; the bars
    stay at the end.

    Anywhere else only the bars are printed.
    """

    def __init__(self, console: Console, stages: Mapping[int, tuple[str, int]]) -> None:
        self._console = console
        self._ascii = console.options.ascii_only
        self._names = {number: label for number, (label, _) in stages.items()}
        self._bars = bars(console)
        self._tasks = {
            number: self._bars.add_task(label, total=total)
            for number, (label, total) in stages.items()
        }
        self._live = Live(self._bars, console=console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(self._bars)
        self._live.stop()
        if not self._console.is_terminal:
            self._console.line()

    def show(
        self,
        done: Mapping[int, float],
        workers: Iterable[Worker],
        parts: Mapping[str, Sequence[RunningRange]],
    ) -> None:
        """Show the done records of each stage, and the ranges of each process."""
        for number, records in done.items():
            self._bars.update(self._tasks[number], completed=records)
        self._live.update(
            Group(
                self._bars,
                "",
                owners(workers, parts, self._names, ascii_only=self._ascii),
                "",
            )
        )


def owners(
    workers: Iterable[Worker],
    parts: Mapping[str, Sequence[RunningRange]],
    stages: Mapping[int, str],
    *,
    ascii_only: bool = False,
) -> Table:
    """Return a table of the key groups of each process and stage, as a picture and in
    numbers.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("pid", justify="right")
    for label in stages.values():
        table.add_column(label, min_width=STRIP + 12)
    for worker in workers:
        cells = [
            _cell(
                [
                    part
                    for part in parts.get(worker.url, ())
                    if part.subtopology == number
                ],
                ascii_only,
            )
            for number in stages
        ]
        if worker.killed:
            cells = ["[red]killed[/]"] + [""] * (len(stages) - 1)
        table.add_row(worker.name, str(worker.process.pid), *cells)
    return table


def _cell(parts: Sequence[RunningRange], ascii_only: bool) -> str:
    full, empty = ("#", ".") if ascii_only else ("█", "·")
    strip = ""
    for place in range(STRIP):
        middle = (2 * place + 1) * GROUPS // (2 * STRIP)
        part = next((part for part in parts if part.first <= middle <= part.last), None)
        colour = (
            "dim" if part is None else "green" if part.state == "running" else "yellow"
        )
        strip += f"[{colour}]{empty if part is None else full}[/]"
    words = ", ".join(str(part) for part in parts) or "nothing yet"
    waiting = sorted({part.state for part in parts if part.state != "running"})
    return f"{strip} {', '.join(waiting) or words}"


def answers(found: Answers, expected: Answers) -> Table:
    """Return a table of both sides' answers: all carriers, the hours and the aircraft
    with the most departures.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(
        "delays in minutes", no_wrap=True, overflow="ellipsis", max_width=27
    )
    for side, style in (("HTTP", "cyan"), ("CSV", "magenta")):
        for name in (f"{side}\nflights", "\nmean", "\nmax"):
            table.add_column(name, justify="right", style=style, header_style=style)
    table.add_column("\nequal")
    carriers, right = found.by_carrier(), expected.by_carrier()
    _section(table, "Carriers, all their hours")
    for carrier in sorted(right, key=lambda code: -right[code].count):
        _row(
            table,
            f"{carrier} {right[carrier].name}",
            carriers.get(carrier),
            right[carrier],
        )
    _section(table, "Hours with the most flights")
    for where in _largest(expected.by_hour):
        hour = datetime.fromtimestamp(where[1] / 1000, UTC)
        _row(
            table,
            f"{where[0]} {hour:%Y-%m-%d %H:00} UTC",
            found.by_hour.get(where),
            expected.by_hour[where],
        )
    _section(table, "Aircraft with the most")
    for tail in _largest(expected.by_aircraft):
        _row(
            table,
            f"{tail} {expected.by_aircraft[tail].name}",
            found.by_aircraft.get(tail),
            expected.by_aircraft[tail],
        )
    return table


def verdict(console: Console, found: Answers, expected: Answers) -> bool:
    """Return whether all answers are equal, and print it, with the unequal ones."""
    aircraft = _told(console, "aircraft", found.by_aircraft, expected.by_aircraft)
    hours = _told(console, "hours of a carrier", found.by_hour, expected.by_hour)
    return aircraft and hours


def _told(
    console: Console, label: str, found: Mapping[K, Delay], expected: Mapping[K, Delay]
) -> bool:
    wrong = differences(expected, found)
    if not wrong:
        console.print(
            f"[green]equal[/]: {len(expected):,} {label}: each name, count, mean and maximum",
            highlight=False,
        )
        return True
    console.print(
        f"[red]NOT EQUAL[/]: {len(wrong):,} of {len(expected):,} {label}",
        highlight=False,
    )
    for key, should, is_ in wrong[:MOST_DIFFERENCES]:
        console.print(
            f"  {key}: HTTP {is_ or 'has nothing'}; CSV {should or 'has nothing'}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if len(wrong) > MOST_DIFFERENCES:
        console.print(f"  and {len(wrong) - MOST_DIFFERENCES:,} more", highlight=False)
    return False


def _largest(delays: Mapping[K, Delay]) -> list[K]:
    return sorted(delays, key=lambda key: -delays[key].count)[:SAMPLES]


def _section(table: Table, title: str) -> None:
    if table.row_count:
        table.add_row()
    table.add_row(f"[bold]{title}[/]")


def _row(table: Table, label: str, found: Delay | None, expected: Delay | None) -> None:
    table.add_row(
        label,
        *_figures(found),
        *_figures(expected),
        "[green]yes[/]" if found == expected else "[red]NO[/]",
    )


def _figures(delay: Delay | None) -> tuple[str, str, str]:
    return (
        ("-", "-", "-")
        if delay is None
        else (f"{delay.count:,}", f"{delay.mean:.2f}", f"{delay.longest:,.0f}")
    )
