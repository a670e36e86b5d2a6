"""The results of `make bench`: a table, and with `--write` the same in
docs/performance.md with a plot of each case.

Invariant: every figure is the median of its turns, and every ratio is one of figures of
the same run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.peers import JVM
from benchmarks.running import Measured
from coopstreams.log.kafka.native import data_plane

PLANES = {"pure Python": "0", "native": "1"}
"""The data planes, and the values that choose them."""
Results = dict[str, dict[str, list[Measured]]]
"""The measurements, by case and by the framework that ran it."""

BEGIN, END = "<!-- make bench --write -->", "<!-- end -->"
_COLUMNS = (
    "case",
    "by",
    "records/s",
    "of Kafka Streams",
    "CPU s per million",
    "of Kafka Streams",
)
_WIDTH, _BAR, _NAME, _FIGURES = 640, 20, 130, 110


def planes() -> list[str]:
    """Return the available data planes."""
    return [*PLANES] if data_plane() == "native" else ["pure Python"]


def print_table(results: Results, title: str, console: Console) -> None:
    """Print the medians."""
    table = Table(title=title)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for row in _rows(results):
        table.add_row(*row)
    console.print(table)


def write_report(results: Results, records: int, rounds: int, document: Path) -> None:
    """Put the table into a document, between its two marks, and a plot of each case
    into `images` beside it.
    """
    plots = []
    for case, by in results.items():
        if len(by) > 1:
            path = document.parent / "images" / f"bench-{case.replace(' ', '-')}.svg"
            path.write_text(
                plot(
                    case,
                    {
                        who: median(one.rate for one in found)
                        for who, found in by.items()
                    },
                )
            )
            plots.append(f"![{case}: records per second](images/{path.name})")
    lines = [*table_of(results, records, rounds), "", *plots]
    replace_between(document, BEGIN, lines)


def table_of(results: Results, records: int, rounds: int) -> list[str]:
    """Return the table as lines of Markdown, with what it was measured with."""
    told = (
        f"{records:,} records, the median of {rounds} {'turn' if rounds == 1 else 'turns'}, "
        f"{datetime.now(UTC):%d %B %Y}, Python {platform.python_version()}, load {os.getloadavg()[2]:.0f}."
    )
    return [
        told,
        "",
        " | ".join(["", *_COLUMNS, ""]).strip(),
        "|" + "---|" * len(_COLUMNS),
        *(f"| {' | '.join(row)} |" for row in _rows(results)),
    ]


def replace_between(document: Path, begin: str, lines: Sequence[str]) -> None:
    """Put lines into a document, between a mark and the next end."""
    before, rest = document.read_text().split(begin)
    after = rest.split(END, 1)[1]
    document.write_text("\n".join([f"{before}{begin}", *lines, f"{END}{after}"]))


def plot(case: str, rates: Mapping[str, float]) -> str:
    """Return a bar chart as SVG: records per second by who ran the case. It is readable
    on light and on dark pages.
    """
    scale = (_WIDTH - _NAME - _FIGURES) / max(rates.values())
    height = _BAR * len(rates) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img"'
        f' aria-label="{escape(case)}: records per second" font-family="sans-serif" font-size="12" fill="#808080">',
        f'<text x="0" y="14" font-weight="bold">{escape(case)}: records/s</text>',
    ]
    for number, (who, rate) in enumerate(rates.items()):
        y, width = 24 + number * _BAR, rate * scale
        colour = "#2f7ed8" if who in PLANES else "#a0a0a0"
        parts.append(f'<text x="0" y="{y + 13}">{escape(who)}</text>')
        parts.append(
            f'<rect x="{_NAME}" y="{y + 2}" width="{width:.1f}" height="{_BAR - 6}" fill="{colour}"/>'
        )
        parts.append(
            f'<text x="{_NAME + width + 6:.1f}" y="{y + 13}">{rate:,.0f}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _rows(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for case, by in results.items():
        rates = {who: median(one.rate for one in found) for who, found in by.items()}
        costs = {who: median(one.cpu for one in found) for who, found in by.items()}
        for number, who in enumerate(by):
            rate, cost = (
                (f"{mine[who] / mine[JVM.name]:.2f}" if JVM.name in mine else "")
                for mine in (rates, costs)
            )
            rows.append(
                (
                    case if number == 0 else "",
                    who,
                    f"{rates[who]:,.0f}",
                    rate,
                    f"{costs[who]:.2f}",
                    cost,
                )
            )
    return rows
