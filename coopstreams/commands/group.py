"""`coopstreams group`: describes a group, removes its static members, and resets its
positions.

Relies on: `admin.group_description`, `admin.group_reset` (do the work).
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from coopstreams.admin.group_description import (
    GroupReport,
    MemberReport,
    describe_group,
)
from coopstreams.admin.group_reset import reset_offsets
from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    cluster,
    connection,
)
from coopstreams.commands.terminal.figures import new_table, plain_console
from coopstreams.commit.offset_runs import Runs
from coopstreams.consumer.group_assignment import topic_number
from coopstreams.group.active_version import short, version_of
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, UnknownTopicError

app = typer.Typer(
    help="Show the progress and the members of a group; remove members; reset offsets.",
    no_args_is_help=True,
)

_Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="A group.id, or an application.id.")
]
_SHOWN = 3
"""The most offset ranges that are printed for a key range."""


@app.command()
def describe(
    group: _Group,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Print stable offsets, lags, key ranges, the offsets done above the stable offset,
    and what each member has.
    """
    settings = connection(bootstrap_servers, config)
    with cluster(settings) as log, GroupAdmin(settings, group) as admin:
        report = describe_group(log, admin)
        topics = {topic_number(topic): topic for topic in log.partitions()}
    console = plain_console()
    heading = Text.assemble(
        "group ",
        (group, "bold"),
        f": {report.state}, {report.members_text or '0 members'}",
    )
    console.print(heading)
    if report.partitions:
        console.print(partitions_table(report))
    if report.members:
        console.print(members_table(report, topics))


@app.command()
def reset(
    group: _Group,
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="The topic in which the group's positions are reset.",
        ),
    ],
    to: Annotated[
        str, typer.Option(metavar="earliest|latest|OFFSET", help="The new position.")
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Only this partition; may be repeated."),
    ] = None,
    forwards: Annotated[
        bool,
        typer.Option(
            "--forwards",
            help="Key ranges that stand further on stay there, with all that they have done.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Set the positions of a group without members, in all key ranges. State of an
    application stays as it is.
    """
    settings = connection(bootstrap_servers, config)
    with cluster(settings) as log, GroupAdmin(settings, group) as admin:
        targets = reset_targets(log, topic, partition, to)
        for at, offset in targets.items():
            typer.echo(f"{at} -> {offset}{', or further on' if forwards else ''}")
        if not any(admin.committed(targets).values()):
            said = "of these has an offset in Kafka: it never committed one, it has expired, or the name is another"
            typer.echo(f"group {group}: no partition {said}", err=True)
        if not yes:
            typer.confirm(f"Put group {group} there?", abort=True)
        reset_offsets(log, admin, targets, forwards=forwards)
    typer.echo("done")


@app.command()
def remove(
    group: _Group,
    instances: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="The group.instance.id of each process, which was stopped before.",
        ),
    ],
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Remove static members that were stopped for good, so that others get their tasks
    now and not after session.timeout.ms.
    """
    settings = connection(bootstrap_servers, config)
    with GroupAdmin(settings, group) as admin:
        unknown = admin.remove(instances)
        for instance in instances:
            if instance not in unknown:
                typer.echo(f"{instance} is removed")
        if not unknown:
            return
        known = sorted(
            member.instance for member in admin.describe().members if member.instance
        )
    listed = ", ".join(known) or "none"
    raise ConfigError(
        f"group {group} has no static member {', '.join(unknown)}; it has {listed}"
    )


def reset_targets(
    log: Log,
    topic: str,
    partitions: list[int] | None,
    to: str,
) -> dict[TopicPartition, int]:
    """Return the offset that `--to` means in each partition.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        ConfigError: `to` is not a valid position, or the log does not have it.
    """
    count = log.partitions([topic]).get(topic, 0)
    wanted = list(range(count)) if partitions is None else partitions
    if not wanted or not all(0 <= number < count for number in wanted):
        raise UnknownTopicError(
            f"{topic} has {count} partitions; correct --topic or --partition"
        )
    targets = {}
    for at in (TopicPartition(topic, number) for number in wanted):
        start = log.start_offset(at)
        end = log.end_offset(at)
        named = {"earliest": start, "latest": end}
        if to not in named and not to.isdecimal():
            raise ConfigError(f"--to {to}: write earliest, latest or an offset")
        offset = named[to] if to in named else int(to)
        if not start <= offset <= end:
            raise ConfigError(f"{at} has the offsets {start} to {end}, not {offset}")
        targets[at] = offset
    return targets


def partitions_table(report: GroupReport) -> Table:
    """Return a table of the partitions with a line for each key range. Its owner is
    shown only for groups of consumers, because tasks of applications name no topics.
    """
    consumers = not any(
        member.state is not None and version_of(member.state.info)
        for member in report.members
    )
    table = new_table("partition")
    for name in ("stable", "end", "lag"):
        table.add_column(name, justify="right")
    table.add_column("key range")
    table.add_column("offset", justify="right")
    table.add_column("done above", overflow="fold")
    if consumers:
        table.add_column("member", overflow="fold")
    for one in report.partitions:
        heading = [
            str(one.partition),
            _number(one.committed.offset if one.committed else None),
            str(one.end),
            _number(one.lag),
        ]
        for owned in one.key_ranges:
            owner = [owned.member or "-"] if consumers else []
            table.add_row(
                *heading,
                str(owned.key_range),
                _number(owned.offset),
                _runs(owned.ranges),
                *owner,
            )
            heading = [""] * len(heading)
    return table


def members_table(report: GroupReport, topics: dict[int, str]) -> Table:
    """Return a table of the members with their tasks. `topics`: the topic names, by the
    numbers in the task ids of consumers.
    """
    table = new_table("member", "host", "shares", "version", "has")
    for member in report.members:
        table.add_row(
            member.id,
            member.state.info.host
            if member.state and member.state.info.host
            else member.host,
            *_told(member, topics),
        )
    return table


def _told(member: MemberReport, topics: dict[int, str]) -> tuple[str, str, str]:
    if member.state is None:
        return "-", "-", "(no member of ours)"
    version = version_of(member.state.info)
    tasks = [
        f"{topics[t.subtopology]}-{t.partition}[{t.key_range}]"
        if t.subtopology in topics
        else str(t)
        for t in member.tasks
    ]
    shares = "yes" if member.state.info.allow_key_share else "no"
    return (
        shares,
        short(version) if version else "-",
        " ".join(tasks) or (f"waits: {member.waits}" if member.waits else "-"),
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _runs(runs: Runs) -> str:
    shown = " ".join(
        f"{start}" if start == end else f"{start}-{end}" for start, end in runs[:_SHOWN]
    )
    return f"{shown} and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else shown
