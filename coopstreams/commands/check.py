"""`coopstreams check`: prints which stores and topics a new version of a topology
keeps, before it is deployed.

Relies on: `preflight.last_version` and `graph.changes` (judge), `processes.restarts`
(what the exit codes mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer

from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    Pairs,
    cluster,
    configure_logging,
    loaded,
)
from coopstreams.commands.processes.restarts import WRONG, exit_status
from coopstreams.commands.topology_target import load_topology, modules_of_its_own
from coopstreams.common.config import Config
from coopstreams.preflight.last_version import ACCEPT, LastVersion
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.errors import ConfigError, CoopStreamsError
from coopstreams.topology.graph.changes import (
    TopologyChange,
    changes,
    severity,
    word_of,
)
from coopstreams.topology.graph.outline import Outline, outline, read_outline
from coopstreams.topology.graph.topology import Topology


def check(
    versions: Annotated[
        list[str],
        typer.Argument(
            metavar="[OLD] NEW",
            help="Each app.py, app.py:NAME, package.module:NAME, or a .json that `describe --format json` wrote.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    optimization: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="Compare both versions with this topology.optimization applied.",
        ),
    ] = "none",
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
    set_: Pairs = None,
) -> None:
    """Print which stores, topics and positions survive a change of the topology. NEW
    alone is compared with the version that ran last on the cluster.

    Exit status 0: all of them do. 1: something starts empty or is orphaned. 2:
    something would be lost, mixed or misread in silence, and `run` refuses it; or
    nothing could be compared.
    """
    configure_logging(verbose=False)
    if len(versions) > 2:
        raise typer.BadParameter(
            "there are two versions to compare, an old one and a new one"
        )
    try:
        if len(versions) == 1:
            named = {"bootstrap.servers": bootstrap_servers}
            found, word = _on_cluster(*loaded(versions[0], config, set_, named))
        else:
            old, new = (_outline(version, optimization) for version in versions)
            found = changes(old, new)
            word = word_of(found)
    except CoopStreamsError as error:
        if exit_status(error) == WRONG:
            raise
        raise ConfigError(
            f"nothing could be compared: {error}"
        ) from error  # no answer is no consent
    _print(found, word, json=json)
    raise typer.Exit(severity(found))


def _on_cluster(
    topology: Topology,
    checked: Config,
) -> tuple[Sequence[TopologyChange], str]:
    """Return the changes since the version that ran last, judged by the content of the
    topics, and their `word_of`.

    Raises:
        ConfigError: the cluster has no record of that version.
    """
    with cluster(checked.client) as log:
        counts = log.partitions()
        version = LastVersion(log, checked)
        found = version.changes_to(as_it_runs(topology, counts, checked), counts)
        if found is None:
            raise ConfigError(
                f'the cluster has no topic {version.topic}: "{checked["application.id"]}" has not run there, or keeps '
                "no state, or ran with an older "
                "coopstreams. Say what the old version is: coopstreams check OLD NEW"
            )
        return found.all, found.word


def _outline(target: str, optimization: str) -> Outline:
    if target.endswith(".json"):
        try:
            return read_outline(Path(target).read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read {target}: {error.strerror}") from error
    try:
        with modules_of_its_own(target):
            return outline(load_topology(target).optimized(optimization))
    except ValueError as error:
        raise ConfigError(f"--optimization {optimization}: must be {error}") from None


def _print(
    found: Sequence[TopologyChange],
    word: str,
    *,
    json: bool,
) -> None:
    worst = severity(found)
    if json:
        rows = [
            {
                "what": c.what,
                "name": c.name,
                "verdict": c.verdict,
                "why": c.why,
                "cure": c.cure,
            }
            for c in found
        ]
        typer.echo(
            orjson.dumps(
                {
                    "severity": worst,
                    "accept": word if worst == 2 else None,
                    "changes": rows,
                },
                option=orjson.OPT_INDENT_2,
            ).decode()
        )
        return
    for change in found:
        typer.secho(
            f"{change.what} {change.name}: {change.verdict}",
            fg=(None, typer.colors.YELLOW, typer.colors.RED)[change.verdict.severity],
        )
        for told in (change.why, change.cure and f"cure: {change.cure}"):
            if told:
                typer.echo(f"  {told}")
    if worst == 2:
        typer.echo(
            "`coopstreams run` refuses what would be lost, mixed or misread, unless the change is accepted: --set "
            f"{ACCEPT}={word}"
        )
