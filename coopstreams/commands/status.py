"""`coopstreams status`: prints the owners of tasks, their progress, and why a task
makes none.

Relies on: `status.model` (the answer, also of an earlier release), `http_access`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from coopstreams.commands.http_access import AskingFile, asking
from coopstreams.commands.terminal.control_characters import visible_lines
from coopstreams.commands.terminal.figures import (
    behind,
    dropped,
    lag,
    new_table,
    number,
    plain_console,
    reasons_of,
    snapshot_lines,
    standbys_line,
    standing_times,
    written,
)
from coopstreams.common.optional_packages import need_http


def status(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="http://HOST:PORT of any instance of the application.",
        ),
    ],
    config: AskingFile = None,
) -> None:
    """Print the instances of an application with their tasks, key ranges, rates and
    lags, and why something does not move.

    Exit status 1: an instance is not well or does not answer.
    """
    need_http("coopstreams status")
    with asking(url, config, "operate", 10) as client:
        report = client.status()
    console = plain_console()
    console.print(status_table(report))
    for line in done_lines(report):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(planes_line(report["instances"]), highlight=False, soft_wrap=True)
    for who, said in trouble(report["instances"]):
        console.print(
            Text(who, "yellow").append(f": {said}", "default"),
            soft_wrap=True,
        )
    if not all(instance["live"] for instance in report["instances"]):
        raise typer.Exit(1)


def trouble(instances: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield which instances were restarted, which write the formats of an earlier
    release, and why instances or tasks make no progress: (instance ids, sentence).
    """
    for instance in instances:
        details = instance.get("details", {})
        if "restarts" in details:
            yield (
                instance["id"],
                f"started again {details['restarts']} times; last it {visible_lines(details['last_end'])}",
            )
        if "until" in details.get("formats", ""):
            yield instance["id"], f"writes formats of release {details['formats']}"
    for owners, code, message in reasons_of(instances):
        everybody = len(owners) == len(instances) > 1
        yield "all instances" if everybody else ", ".join(owners), f"{code}: {message}"


def planes_line(instances: Iterable[Mapping[str, Any]]) -> str:
    """Return which data plane the instances run; if not all run the same, how many run
    each.
    """
    planes = Counter(instance.get("data_plane") or "unknown" for instance in instances)
    if len(planes) == 1:
        return f"data plane: {visible_lines(*planes)}"
    counted = ", ".join(
        f"{visible_lines(plane)} ({count})" for plane, count in planes.most_common()
    )
    return f"data planes: {counted}"


def status_table(report: dict[str, Any]) -> Table:
    """Return the instances and their tasks as a table: the id of each instance with its
    address below, and its tasks beside them.
    """
    table = new_table(
        "instance",
        title=f"{report['application']}, generation {report['generation']}",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("task", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=len("running"))
    for name in ("in", "in/s", "out", "dropped", "lag", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    for instance in report["instances"]:
        labels = [instance["id"], instance["url"] or "serves no queries"]
        rows = [_task(task) for task in instance["tasks"]] + [
            _share(share) for share in instance.get("shares", ())
        ]
        for label, row in zip_longest(
            labels,
            rows or [_task({"state": instance["state"]})],
        ):
            table.add_row(label or "", *(row or ()))
    return table


def _task(task: dict[str, Any]) -> tuple[str, ...]:
    waits = [
        f"{store['store']} {store['remaining']:,} to go"
        for store in task.get("restore", ())
    ]
    waits += [
        f"{store['store']} {_megabytes(store['fetched_bytes'])} of {_megabytes(store['total_bytes'])} MB"
        for store in task.get("download", ())
    ]
    state = task["state"] or "unknown"
    told = f"{state} ({', '.join(waits)})" if waits else state
    figures = (
        number(task.get("processed")),
        number(task.get("rate")),
        number(written(task)),
        number(dropped(task)),
        lag([task]),
        behind([task]),
    )
    return task.get("id", "-"), told, *figures


def _share(share: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a sub-topology whose records a share group delivers. It has no
    rate, lag or stream time.
    """
    state = "waiting" if share["waits"] else f"shared ({share['acquired']:,} acquired)"
    figures = (
        number(share["processed"]),
        "",
        number(written(share)),
        number(dropped(share)),
        "",
        "",
    )
    return f"{share['subtopology']}_*", state, *figures


def done_lines(report: dict[str, Any]) -> list[str]:
    """Return the sums over all tasks since they were opened: written records by topic,
    dropped records by node and reason.

    A sub-topology whose records a share group delivers counts since its instance
    started, and has a line of its own.
    """
    instances = report["instances"]
    shares = [share for each in instances for share in each.get("shares", ())]
    tasks = [task for each in instances for task in each["tasks"]] + shares
    lines = [f"out: {_counted(_written(tasks)) or 'nothing yet'}"]
    if left_out := _counted(_left_out(tasks)):
        lines.append(f"dropped: {left_out}{_letters(tasks)}")
    lines += _calls_lines(tasks)
    lines += standing_times(tasks)
    lines += snapshot_lines(instances)
    lines += [
        f"{each['id']}: {line}" for each in instances if (line := standbys_line(each))
    ]
    if any(task.get("shared") and task.get("lag") for task in tasks):
        lines.append(
            "lag ≤: of a shared partition; what waits may be of other key ranges"
        )
    return lines + _share_lines(shares)


def _written(tasks: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the numbers of written records by topic."""
    found = Counter[str]()
    for task in tasks:
        found.update(task.get("written", {}))
    return found


def _left_out(tasks: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the numbers of dropped records by reason and node."""
    found = Counter[str]()
    for task in tasks:
        for each in task.get("dropped", ()):
            found[f"{each['reason']} at {each['node']}"] += each["records"]
    return found


def _letters(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return the end of the line on dropped records: the number of dead letters; empty:
    there are none.
    """
    letters = sum(task.get("dead_letters", 0) for task in tasks)
    return f"; dead letters {number(letters)}" if letters else ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{what} {number(count)}" for what, count in sorted(counts.items())
    )


def _calls_lines(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line with the sums over the calls of asynchronous operators; empty:
    there are none.
    """
    calls = [task["calls"] for task in tasks if task.get("calls")]
    if not calls:
        return []

    def total(name: str) -> str:
        # An instance of an earlier release has no `waiting`.
        return number(sum(each.get(name, 0) for each in calls))

    oldest = max(each["oldest_s"] for each in calls)
    return [
        f"calls: {total('in_flight')} under way, {total('waiting')} wait, the oldest {oldest:.1f} s; "
        f"{total('blocked_keys')} keys wait; {total('retries')} made again"
    ]


def _share_lines(shares: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each share group, and a line with the number of records
    delivered again.
    """
    lines = sorted(
        {
            f"{share['subtopology']}_*: share group {share['group']} deals {', '.join(share['topics'])}; "
            f"kafka-share-groups --describe --group {share['group']} shows its lag"
            for share in shares
        }
    )
    if again := sum(share["redelivered"] for share in shares):
        lines.append(f"delivered again: {number(again)}")
    return lines


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}"
