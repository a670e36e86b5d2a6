"""`coopstreams acls`: prints the ACLs that an application needs, as kafka-acls commands
or as JSON.

Relies on: `admin.needed_acls` (the rules).
"""

from __future__ import annotations

import os
from itertools import groupby
from typing import Annotated, Literal

import orjson
import typer

from coopstreams.admin.needed_acls import needed, unknown
from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    Pairs,
    Target,
    flags,
)
from coopstreams.commands.topology_target import load_topology
from coopstreams.common.acl_errors import Acl, adding
from coopstreams.common.config import Config
from coopstreams.common.security import Security
from coopstreams.common.setting_sources import settings_of
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.errors import ConfigError


def acls(
    target: Target,
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="User:NAME",
            help="Who is to have them. Default: the user that the settings log in as.",
        ),
    ] = None,
    format_: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="As commands of kafka-acls, or as JSON."),
    ] = "text",
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
    set_: Pairs = None,
) -> None:
    """Print the ACLs that an application needs, and no others: for its topics, group
    and transactions. Contacts nothing.
    """
    topology = load_topology(target)
    servers = {"bootstrap.servers": bootstrap_servers}
    settings = settings_of(config, os.environ, flags(set_, servers))
    settings.setdefault("bootstrap.servers", "HOST:9092")
    checked = Config.of(settings, topology.application_id)
    who = principal or Security.of(checked.client).login.principal
    if who in ("", "User:ANONYMOUS"):
        raise ConfigError(
            "the settings do not say who logs in: give --principal User:NAME"
        )
    ran = as_it_runs(topology, {}, checked)
    found = needed(ran, checked)
    left_out = unknown(ran)
    typer.echo(
        _json(who, found, left_out)
        if format_ == "json"
        else _text(who, found, left_out, checked)
    )


def _text(
    principal: str,
    acls: list[Acl],
    left_out: list[str],
    config: Config,
) -> str:
    """Return a command for each resource, and a comment for each unknown topic."""
    commands = [
        adding(principal, same, config["bootstrap.servers"])
        for same in _by_resource(acls)
    ]
    return "\n".join([*commands, *(f"# {each}" for each in left_out)])


def _json(
    principal: str,
    acls: list[Acl],
    left_out: list[str],
) -> str:
    rows = [
        {
            "principal": principal,
            "host": "*",
            "resource": acl.kind,
            "name": acl.name,
            "pattern": "prefixed" if acl.prefixed else "literal",
            "operation": acl.operation,
        }
        for acl in acls
    ]
    return orjson.dumps(
        {"acls": rows, "unknown": left_out},
        option=orjson.OPT_INDENT_2,
    ).decode()


def _by_resource(acls: list[Acl]) -> list[list[Acl]]:
    def resource(acl: Acl) -> tuple[str, str, bool]:
        return acl.kind, acl.name, acl.prefixed

    return [list(same) for _, same in groupby(sorted(acls, key=resource), resource)]
