"""`coopstreams run`: runs a topology in one process, or in several under a supervisor.

Relies on: `instance.coop_streams` (one process), `processes.supervisor` (several),
`processes.restarts` (the exit codes).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coopstreams.commands.command_settings import (
    Brokers,
    Pairs,
    SettingsFile,
    Target,
    Verbose,
    configure_logging,
    flags,
    loaded,
)
from coopstreams.commands.processes.restarts import MOST_RESTARTS
from coopstreams.commands.processes.supervisor import Supervisor
from coopstreams.commands.processes.worker import end_with_supervisor, past, say_running
from coopstreams.commands.terminal.screen import REPORTS, Screen, report
from coopstreams.common.config import Config
from coopstreams.common.interrupts import drain_by, end
from coopstreams.common.process_limits import allow_open_files, tune_memory
from coopstreams.instance.coop_streams import CoopStreams
from coopstreams.topology.errors import ConfigError

log = logging.getLogger("coopstreams")

SPARE_S = 10.0
"""The time after its own limits for which the supervisor waits for a worker to end.
Units: seconds.
"""
_PORT = re.compile(r"(?<=:)\d+(?=/|$)")


def run(  # noqa: PLR0913
    target: Target,
    bootstrap_servers: Brokers = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes, each a member of the group: for functions that compute.",
        ),
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="M",
            help="Stream threads in each process: for functions that wait. Default: 1.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help='Where queries are answered; with several processes the ports count up. Port 0 takes a free one; "" '
            "is none. Default: 127.0.0.1:0.",
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where local state is kept. Default: coopstreams-state.",
        ),
    ] = None,
    instance: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of this process among those that share the state folder; --processes counts up from it. "
            "Default: 0.",
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Of several processes, how often in a row one that ended is started again before all end; ten minutes "
            "without an end begin a new row.",
        ),
    ] = MOST_RESTARTS,
    from_savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Begin with the state and positions of another application's savepoint at snapshots.dir, unless this one "
            "has run before. APPLICATION/NAME where several have one of this name.",
        ),
    ] = None,
    config: SettingsFile = None,
    set_: Pairs = None,
    verbose: Verbose = False,
) -> None:
    """Run a topology until Ctrl-C or SIGTERM, which drain and commit.

    A second signal ends the wait for calls of asynchronous operators.

    Settings are taken from --config, then from the environment
    (COOPSTREAMS_COMMIT_INTERVAL_MS=100), then from these options; the later wins.
    """
    watched = REPORTS in os.environ
    configure_logging(verbose, watched=watched)
    tune_memory()
    allow_open_files()
    named = {
        "bootstrap.servers": bootstrap_servers,
        "num.stream.threads": threads,
        "http.listen": http,
        "state.dir": state_dir,
        "instance": instance,
    }
    typed = flags(set_, named)
    topology, checked = loaded(target, config, (), typed)
    if processes > 1:
        command = partial(
            worker_command,
            target,
            config,
            typed,
            checked,
            verbose=verbose,
            from_savepoint=from_savepoint,
        )
        drain_s = checked.ends_s(calls=topology.makes_calls) + SPARE_S
        raise typer.Exit(
            _supervise(
                processes,
                max_restarts,
                checked,
                command,
                drain_s,
                verbose=verbose,
            )
        )
    app = CoopStreams(
        topology,
        checked,
        on_state=say_running(os.environ),
        from_savepoint=from_savepoint,
    )
    drain_by(app.stop, partial(app.stop, wait_for_calls=False))
    app.details.update(past(os.environ))
    if end_with_supervisor(
        os.environ, partial(end, "the supervisor is gone", asked=False)
    ):
        configure_logging(verbose, f"worker {checked['instance']}: ", watched=watched)
        report(app, os.environ)
    app.run()


def _supervise(
    processes: int,
    most: int,
    checked: Config,
    command: Callable[[int], Sequence[str]],
    drain_s: float,
    *,
    verbose: bool,
) -> int:
    """Run several processes, and return the exit status. On a terminal they are shown
    in a table, elsewhere by their log lines only.
    """
    numbers = range(checked["instance"], checked["instance"] + processes)
    console = Console(stderr=True)
    log.info(
        "%d processes of %s; Ctrl-C drains and stops them",
        processes,
        checked["application.id"],
    )
    if not console.is_terminal or not sys.stdout.isatty():
        supervisor = Supervisor(command, numbers, drain_s, most_restarts=most)
        drain_by(supervisor.stop, supervisor.hurry)
        return supervisor.run()
    screen = Screen(console, checked["application.id"])
    supervisor = Supervisor(
        command,
        numbers,
        drain_s,
        screen.spawn,
        most_restarts=most,
        rests=screen.rests,
    )

    def drain() -> bool:
        screen.drain()
        return supervisor.stop()

    drain_by(drain, supervisor.hurry)
    with screen:
        configure_logging(verbose, handler=screen.handler())
        return supervisor.run()


def worker_command(
    target: str,
    config: Path | None,
    typed: Mapping[str, Any],
    checked: Config,
    number: int,
    *,
    verbose: bool,
    from_savepoint: str | None = None,
) -> list[str]:
    """Return the command line of worker `number`: the user's own, with the worker's
    number and ports.

    The worker reads file and environment itself, because a password in them must not
    appear in a list of processes.

    Raises:
        ConfigError: an address has no port.
    """
    own = {**typed, "instance": number}
    for name in ("http.listen", "application.server"):
        if checked[name]:
            own[name] = _counted_up(name, checked[name], number - checked["instance"])
    set_ = [
        part for name, value in own.items() for part in ("--set", f"{name}={value}")
    ]
    where = [] if config is None else ["--config", str(config)]
    return [
        sys.executable,
        "-m",
        "coopstreams",
        "run",
        target,
        *where,
        *set_,
        *([] if from_savepoint is None else ["--from-savepoint", from_savepoint]),
        *(["--verbose"] if verbose else []),
    ]


def _counted_up(
    name: str,
    address: str,
    number: int,
) -> str:
    """Return an address for the process with this number: its port is the given one
    plus the number; port 0, a free port, stays.

    Raises:
        ConfigError: the address has no port. Queries for any process would reach the
            same one.
    """
    counted, found = _PORT.subn(
        lambda port: str(int(port[0]) and int(port[0]) + number),
        address,
        count=1,
    )
    if not found:
        raise ConfigError(
            f"{name} = {address} has no port that could count up: each process needs an address of its own"
        )
    return counted
