"""`coopstreams dlq`: shows the records of a dead-letter topic, and replays them.

Relies on: `admin.dead_letters` (reads and replays).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich.table import Table

from coopstreams.admin.dead_letters import (
    DeadLetter,
    Replayed,
    ahead,
    letters,
    replay,
    replay_group,
)
from coopstreams.admin.replay_metadata import Wanted
from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    cluster,
    connection,
)
from coopstreams.commands.terminal.control_characters import visible
from coopstreams.commands.terminal.figures import new_table, plain_console
from coopstreams.topology.errors import ConfigError

app = typer.Typer(
    help="Dead letters: records that failed, with the reasons. Send them back.",
    no_args_is_help=True,
)

_Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="errors.dead.letter.queue.topic.name of an application.",
    ),
]
_Node = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only what failed at this node.")
]
_Phase = Annotated[
    Literal["deserialization", "processing", "production"] | None,
    typer.Option(help="Only what failed in this phase."),
]
SHOWN_BYTES = 60


@app.command()
def show(
    topic: _Topic,
    last: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="How many of the newest ones to print."),
    ] = 10,
    format_: Annotated[
        Literal["table", "json"],
        typer.Option(
            "--format",
            help="json: a line for each letter, with the stack trace.",
        ),
    ] = "table",
    node: _Node = None,
    phase: _Phase = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Print how many records failed where and why, and the newest of them."""
    wanted = Wanted(node, phase)
    reasons = Counter[tuple[str, str, str]]()
    newest: deque[DeadLetter] = deque(maxlen=last)
    others = 0
    with cluster(connection(bootstrap_servers, config)) as log:
        for letter in letters(log, topic):
            if not letter.why:
                others += 1
            elif wanted.fits(letter.why):
                newest.append(letter)
                reasons[
                    letter.why.get("node", ""),
                    letter.why.get("phase", ""),
                    letter.why.get("exception", ""),
                ] += 1
    if format_ == "json":
        for letter in newest:
            typer.echo(json.dumps(_as_json(letter)))
        return
    console = plain_console()
    console.print(
        f"{topic}: {reasons.total()} dead letters"
        + (f", {others} other records" if others else "")
    )
    if reasons:
        console.print(
            _table(
                ("times", "node", "phase", "exception"),
                ((n, *why) for why, n in reasons.most_common()),
            )
        )
        console.print(letters_table(newest))


@app.command(name="replay")
def replay_(
    topic: _Topic,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Where they go; default: each where it came from.",
        ),
    ] = None,
    node: _Node = None,
    phase: _Phase = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Write the letters that no replay has passed yet back to the topics that they came
    from, each once.

    A replay passes every record that the topic has when it begins, including those that
    --node and --phase leave out. No later replay reads them, unless `coopstreams group
    reset TOPIC-replay` sets another position.
    """
    settings = connection(bootstrap_servers, config)
    with cluster(settings) as log:
        wanted = Wanted(node, phase)
        # Otherwise nobody would see what a look ahead finds.
        if node or phase or not yes:
            found = ahead(log, settings, topic)
            question = _question(topic, found, wanted, to or "where they came from")
            if not yes:
                typer.confirm(question, abort=True)
        done = replay(log, settings, topic, wanted, to, _say)
    typer.echo(f"{done.written} written, {done.passed} passed")
    if done.passed or not done.written:
        typer.echo(
            "No replay reads again what one has passed or written. To let the next one begin anew, or at an offset:\n"
            f"coopstreams group reset {replay_group(topic)} --topic {topic} --to earliest",
            err=True,
        )


def _say(done: Replayed) -> None:
    typer.echo(f"{done.written} written, {done.passed} passed …", err=True)


def _question(
    topic: str,
    ahead: Iterable[DeadLetter],
    wanted: Wanted,
    where: str,
) -> str:
    """Return the question whether to write these letters back.

    Raises:
        ConfigError: none of the letters is wanted.
    """
    reasons = Counter[tuple[str, str]]()
    chosen = 0
    passed = 0
    for letter in ahead:
        if letter.record:
            reasons[letter.why.get("node", ""), letter.why.get("phase", "")] += 1
        if letter.record and wanted.fits(letter.why):
            chosen += 1
        else:
            passed += 1
    if passed and not chosen and (wanted.node or wanted.phase):
        raise ConfigError(_nothing_chosen(reasons))
    others = f", and pass {passed} other records" if passed else ""
    return f"Send {chosen} letters of {topic} back to {where}{others}?"


def _nothing_chosen(others: Mapping[tuple[str, str], int]) -> str:
    there = "; ".join(
        f"{n} at {node} ({phase})" for (node, phase), n in sorted(others.items())
    )
    return (
        "no letter that a replay would read failed at this node and in this phase, so nothing was written or passed. "
        f"There are: {there or 'none, only records that cannot go back'}"
    )


def letters_table(newest: Iterable[DeadLetter]) -> Table:
    """Return a table with a row for each letter."""
    return _table(
        ("letter", "time", "from", "exception", "key", "value"),
        map(_row, newest),
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    table = new_table(*columns)
    for row in rows:
        table.add_row(*(visible(str(cell)) for cell in row))
    return table


def _row(letter: DeadLetter) -> tuple[str, ...]:
    source = f"{letter.source}@{letter.why.get('offset', '?')}"
    error = f"{letter.why.get('exception', '')}: {letter.why.get('message', '')}"
    time = _time(letter.timestamp)
    return (
        f"{letter.at}@{letter.offset}",
        time,
        source,
        error,
        _shown(letter.key),
        _shown(letter.value),
    )


def _time(ms: int) -> str:
    if ms < 0:
        return "unknown"
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # no date of a calendar: a producer's microseconds, perhaps
        return f"{ms} ms"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data[:SHOWN_BYTES].decode(errors="backslashreplace")
    return f"{text}…" if len(data) > SHOWN_BYTES else text


def _as_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "topic": letter.at.topic,
        "partition": letter.at.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "key": None
        if letter.key is None
        else letter.key.decode(errors="backslashreplace"),
        "value": None
        if letter.value is None
        else letter.value.decode(errors="backslashreplace"),
        "why": dict(letter.why),
    }
