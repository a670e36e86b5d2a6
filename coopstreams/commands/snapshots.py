"""`coopstreams snapshots`: lists, verifies and publishes snapshots in a storage, and
deletes old files.

Relies on: `state.manifest` and `state.snapshot` (what may be deleted).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from coopstreams.commands.terminal.figures import new_table, plain_console
from coopstreams.state import snapshot
from coopstreams.state.manifest import File, Manifest
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import SnapshotError

app = typer.Typer(
    help="Snapshots of state: list, check, publish, clean up.",
    no_args_is_help=True,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The storage of snapshots: a folder or an fsspec URL.",
    ),
]
Application = Annotated[
    str, typer.Argument(metavar="APPLICATION", help="The application id.")
]


@app.command("ls")
def list_(url: Url) -> None:
    """Print the applications in a storage with their runs; the published one has a
    star, and a savepoint its name.
    """
    names = snapshot.applications(url)
    table = new_table()
    for column in ("application", "run", "kind", "made", "stores", "keys", "size"):
        # Users copy a run's name into other commands: never cut it short, however
        # narrow the terminal is.
        table.add_column(
            column,
            justify="right" if column in ("keys", "size") else "left",
            no_wrap=column in ("application", "run"),
        )
    for application in names:
        current = snapshot.current_run(url, application)
        names_of = {
            run: name for name, run in snapshot.savepoints(url, application).items()
        }
        for run in snapshot.runs(url, application):
            table.add_row(
                application,
                " ".join(
                    filter(
                        None, (run, "*" if run == current else "", names_of.get(run))
                    )
                ),
                *_described(url, application, run),
            )
    plain_console().print(table if names else f"nothing at {url}")


@app.command()
def verify(
    url: Url,
    application: Application,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Default: the one that is published."),
    ] = None,
) -> None:
    """Read every file of a snapshot and print the damaged ones. Exit status 1: there
    are some.
    """
    manifest = _loaded(url, application, run)
    files = 0
    problems = 0
    for file, problem in snapshot.verify(url, manifest):
        files += 1
        if problem:
            problems += 1
            typer.secho(f"{file.name}: {problem}", fg=typer.colors.RED)
    typer.echo(f"{manifest.run}: {files} files, {problems or 'none'} with a fault")
    if problems:
        raise typer.Exit(1)


@app.command()
def publish(
    url: Url,
    application: Application,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run to publish.")],
) -> None:
    """Publish another snapshot, such as an earlier one. Tasks that open from now on
    restore from it.
    """
    manifest = _loaded(url, application, run)
    snapshot.publish(url, manifest)
    typer.echo(f"{run} is published")


@app.command()
def forget(
    url: Url,
    application: Application,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the savepoint.")
    ],
) -> None:
    """Forget a savepoint: `gc`, or the next snapshot, deletes its files."""
    snapshot.forget_savepoint(url, application, name)
    typer.echo(f"savepoint {name} is forgotten")


@app.command()
def gc(
    url: Url,
    application: Application,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="How many of the newest runs are kept, besides the published one.",
        ),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print the files that would be deleted."),
    ] = False,
) -> None:
    """Delete the files that no kept run names. Kept are the published run, the newest N
    complete ones, savepoints, and runs that are being read or written. The files of an
    unfinished run stay if it is newer than the published one: it may be in progress.
    """
    gone = snapshot.sweep(url, application, keep=keep, doing=not dry_run)
    for name in gone:
        typer.echo(name)
    typer.echo(f"{len(gone)} files {'would be' if dry_run else 'are'} deleted")


def megabytes(files: Sequence[File]) -> str:
    """Return the total size of files, as text."""
    return f"{sum(file.bytes for file in files) / 1e6:,.1f} MB"


def _described(
    url: str,
    application: str,
    run: str,
) -> tuple[str, str, str, str, str]:
    """Return the cells of a run for the table. A run without a manifest is still being
    made, or was given up.
    """
    if Storage(url).read(f"{application}/{run}/{snapshot.MANIFEST}") is None:
        return "unfinished", "", "", "", ""
    try:
        manifest = _loaded(url, application, run)
    except SnapshotError:
        return "damaged", "", "", "", ""
    files = list(manifest.files())
    return (
        manifest.kind,
        manifest.created,
        " ".join(sorted(manifest.stores)),
        f"{sum(file.entries for file in files):,}",
        megabytes(files),
    )


def _loaded(
    url: str,
    application: str,
    run: str | None,
) -> Manifest:
    manifest = snapshot.load(url, application, run)
    if manifest is None:
        raise SnapshotError(f"nothing of {application} is published at {url}")
    return manifest
