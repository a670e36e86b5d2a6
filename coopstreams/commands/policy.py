"""`coopstreams policy`: prints and sets the policy of the cluster and of topics.

Relies on: `commit.cluster_policy` (the topic, and who obeys).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table

from coopstreams.commands.command_settings import Brokers, ConfigFile, connection
from coopstreams.commands.terminal.figures import new_table, plain_console
from coopstreams.commit.cluster_policy import CLUSTER, TOPICS, Policy
from coopstreams.consumer.consumer_policy import read_policy, set_policy
from coopstreams.topology.errors import ConfigError

app = typer.Typer(
    help="The policy of the cluster and its topics: commits out of order, and partitions shared by key range.",
    no_args_is_help=True,
)

_Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Those of this topic only.")
]
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "default": None}


@app.command()
def get(
    topic: _Topic = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Print the settings of the cluster, and of the topics for which a setting was set."""
    plain_console().print(
        policy_table(read_policy(connection(bootstrap_servers, config)), topic)
    )


@app.command("set")
def set_(
    settings: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="true, false, or default."),
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="What this topic allows. Without one: the cluster.",
        ),
    ] = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Set what the cluster or a topic allows. Running consumers and applications obey
    within seconds.
    """
    wanted = dict(_pair(text) for text in settings)
    set_policy(connection(bootstrap_servers, config), wanted, topic)
    for name, value in wanted.items():
        typer.echo(
            f"{topic or 'cluster'}: {name} is {'the default' if value is None else str(value).lower()} now"
        )


def policy_table(policy: Policy, topic: str | None = None) -> Table:
    """Return the policy as a table; settings that are not set are marked as defaults."""
    table = new_table("where", "setting", "value", "meaning")
    for where, name, meaning in _rows(policy, topic):
        value = str(policy.get(name, where)).lower()
        told = value if (where or "", name) in policy.values else f"{value} (default)"
        table.add_row(where or "cluster", name, told, meaning)
    return table


def _rows(policy: Policy, topic: str | None) -> Iterator[tuple[str | None, str, str]]:
    if topic is None:
        for name, (_, meaning) in CLUSTER.items():
            yield None, name, meaning
    for where in (
        [topic]
        if topic is not None
        else sorted({where for where, _ in policy.values if where})
    ):
        for name, (_, meaning) in TOPICS.items():
            yield where, name, meaning


def _pair(text: str) -> tuple[str, bool | None]:
    name, equals, value = text.partition("=")
    if not equals or value.strip().lower() not in _WORDS:
        raise ConfigError(f"{text}: write NAME=true, NAME=false or NAME=default")
    return name.strip(), _WORDS[value.strip().lower()]
