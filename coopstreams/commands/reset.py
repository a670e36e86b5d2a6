"""`coopstreams reset`: resets an application that does not run, and deletes its state
and internal topics.

Relies on: `admin.application_reset` (what is deleted, and in which order).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coopstreams.admin.application_reset import (
    Reset,
    carry_out,
    check_stopped,
    plan_reset,
)
from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    Pairs,
    Target,
    cluster,
    configure_logging,
    loaded,
)
from coopstreams.common.config import Config
from coopstreams.common.time_parsing import moment_ms
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.share_consumer import delete_share_group
from coopstreams.log.log import Log
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.name_claims import claims
from coopstreams.state.directory import instance_folders
from coopstreams.tasks.resolved_topology import as_it_runs, reset_of_topic
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, GroupError, TopologyError
from coopstreams.topology.graph.offset_resets import EARLIEST, LATEST
from coopstreams.topology.graph.outline import Outline
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import topology_topic


def reset(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME",
            help="The new position: TIME as 2026-01-31T08:00Z, or in ms since 1970.",
        ),
    ] = "earliest",
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Delete its local state in this folder, too."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
    set_: Pairs = None,
) -> None:
    """Reset a stopped application: offsets set back, changelogs and repartition topics
    deleted. Results stay.

    Topics and stores that the version that ran last has, and APP has not, are reset as
    well.
    """
    configure_logging(verbose=False)
    topology, settings = loaded(
        target,
        config,
        set_,
        {"bootstrap.servers": bootstrap_servers},
    )
    application = settings["application.id"]
    _time_ms(to)  # fails before the cluster is asked
    with (
        cluster(settings.client) as log,
        GroupAdmin(settings.client, application) as coordinator,
    ):
        counts = log.partitions()
        running = as_it_runs(topology, counts, settings)
        last = _last(log, settings)
        plan = plan_reset(
            running,
            counts,
            last,
            lambda topics: claims(log, application, topics, counts, strict=True),
        )
        offsets = _offsets(log, plan.sources, to)
        if plan.share_group is not None:
            check_begins_at(to, plan.share_group, settings["auto.offset.reset"])
        try:
            check_stopped(coordinator)
        except GroupError as error:
            if not dry_run:
                raise
            typer.echo(f"refused as it is now: {error}", err=True)
        folders = instance_folders(state_dir, application) if state_dir else []
        _print(application, plan, offsets, folders)
        _print_missing(running, counts)
        where = "on every other host" if state_dir else "on every host"
        folder = (state_dir or Path(settings["state.dir"])) / application
        typer.echo(
            f"stays: {folder}, {where}; it needs no care: the next start does not go on from state before a reset"
        )
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Reset {application}? Its state is lost", abort=True)
        resets = {reset_of_topic(running, settings, at.topic) for at in plan.sources}
        at_beginning = to == EARLIEST and resets <= {EARLIEST}
        delete = partial(delete_share_group, settings.client)
        carry_out(
            log,
            coordinator,
            plan,
            offsets,
            folders,
            delete,
            at_beginning=at_beginning,
        )
    typer.echo("done")


def _last(log: Log, settings: Config) -> Outline | None:
    """Return the version that ran last; None: the cluster has no readable record of it."""
    try:
        return LastVersion(log, settings).last()
    except TopologyError as error:
        typer.echo(
            f"what the version that ran last has, and this one has not, stays: {error}"
        )
        return None


def _offsets(
    log: Log,
    partitions: Iterable[TopicPartition],
    to: str,
) -> dict[TopicPartition, int]:
    """Return the offset that `--to` means in each partition."""
    time_ms = _time_ms(to)
    if time_ms is not None:
        return {at: log.offset_at(at, time_ms) for at in partitions}
    offset = log.start_offset if to == EARLIEST else log.end_offset
    return {at: offset(at) for at in partitions}


def _print_missing(topology: Topology, counts: Mapping[str, int]) -> None:
    """Print the source topics that do not exist."""
    known = {*counts, *(table.topic for table in topology.global_tables)}
    for topic in topology.source_topics:
        if topic not in known:
            typer.echo(
                f"there is no topic {topic}: what the group has committed of it stays. Once it is made, reset again",
                err=True,
            )


def check_begins_at(
    to: str,
    share_group: str,
    setting: str,
) -> None:
    """Check that a share group, which a reset deletes, begins anew at the position of
    the other sources.

    Raises:
        ConfigError: `auto.offset.reset` names another position.
    """
    if to == setting:
        return
    ends = (EARLIEST, LATEST)
    same = (
        f"Say --to {setting}, or"
        if setting in ends
        else f"Say --to {' or '.join(ends)}, and the same by"
    )
    raise ConfigError(
        f"--to {to}: share group {share_group} is deleted, and begins anew at auto.offset.reset={setting}. {same} "
        "--set auto.offset.reset=…, here and at the next start"
    )


def _time_ms(to: str) -> int | None:
    """Return the time that `--to` gives, in ms; None: it is `earliest` or `latest`.

    Raises:
        ConfigError: it is not a time, or has no time zone.
    """
    if to in ("earliest", "latest"):
        return None
    try:
        return moment_ms(to)
    except ValueError as error:
        raise ConfigError(f"--to {error}; or earliest, or latest") from None


def _print(
    application: str,
    plan: Reset,
    offsets: dict[TopicPartition, int],
    folders: Sequence[Path],
) -> None:
    for at, offset in offsets.items():
        typer.echo(f"group {application}: {at} -> {offset}")
    if plan.share_group is not None:
        typer.echo(f"delete share group {plan.share_group}")
    for topic in (*plan.changelogs, *plan.topics):
        typer.echo(f"delete topic {topic}")
    for folder in folders:
        typer.echo(f"delete folder {folder}")
    for topic, other in plan.shared.items():
        typer.echo(
            f"stays: topic {topic}, which application {other} has, too: {topology_topic(other)} names it. Give the "
            f"store another name, or {application} another id, before the next start"
        )
    for topic in plan.left:
        typer.echo(
            f"stays: topic {topic}, which is not in this topology. It is of an application whose id begins with "
            f"{application}-, or an older version of {application} left it behind: only then, delete it yourself"
        )
