"""`coopstreams topics`: creates topics, lists them, and writes lines to them, for hosts
without Kafka's own tools.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Annotated

import typer

from coopstreams.commands.command_settings import (
    Brokers,
    ConfigFile,
    Pairs,
    cluster,
    connection,
    flags,
    loaded,
)
from coopstreams.commands.terminal.control_characters import visible
from coopstreams.commands.terminal.figures import new_table, plain_console
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM
from coopstreams.log.log import Log, TopicSpec
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import marks_topics, topology_topic

FLUSH_S = 60.0
_LONGEST_MS = timedelta.max // timedelta(milliseconds=1)

app = typer.Typer(
    help="Make topics, list those of an application, and write lines to them.",
    no_args_is_help=True,
)


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The topics.")],
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Partitions of each.")
    ] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of each, as cleanup.policy=compact; may be repeated.",
        ),
    ] = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Create topics; those that exist stay as they are."""
    settings = flags(set_, {})
    with cluster(connection(bootstrap_servers, config)) as log:
        there = log.partitions(names)
        log.create_topics(
            [
                TopicSpec(name, partitions, settings)
                for name in names
                if name not in there
            ]
        )
    for name in names:
        typer.echo(
            f"{name}: {f'is there, {there[name]}' if name in there else f'created, {partitions}'} partitions"
        )


@app.command("list")
def list_topics(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="The topology, app.py, app.py:NAME or package.module:NAME: only its topics, with their kinds. Without "
            "one: all topics.",
            show_default=False,
        ),
    ] = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
    set_: Pairs = None,
) -> None:
    """Print topics: those that an application reads and writes, and the internal ones
    that it keeps.

    The records of a topic are counted as the offsets between its beginning and its end,
    so deleted and compacted records may count.
    """
    if target is None:
        with cluster(connection(bootstrap_servers, config)) as log:
            counts = log.partitions()
            kinds = dict.fromkeys(sorted(counts), "")
            _print(log, kinds, counts)
        return
    topology, settings = loaded(
        target,
        config,
        set_,
        {"bootstrap.servers": bootstrap_servers},
    )
    with cluster(settings.client) as log:
        counts = log.partitions()
        _print(
            log,
            kinds_of(as_it_runs(topology, counts, settings), counts, settings),
            counts,
        )


def kinds_of(
    topology: Topology,
    counts: Collection[str],
    settings: Config,
) -> dict[str, str]:
    """Return the kind of each topic of an application: first the topics that it reads,
    then those that it writes, then internal ones.

    `counts`: the topics that exist.
    """
    internal = {topic.name: topic.kind for topic in topology.internal_topics}
    kinds = dict.fromkeys(topology.source_topics, "source")
    kinds |= {table.topic: "global table" for table in topology.global_tables}
    for topic in topology.sink_topics:
        kinds[topic] = "source and sink" if kinds.get(topic) == "source" else "sink"
    kinds |= dict.fromkeys(dead_letter_topics(topology, settings), "dead letters")
    kinds |= internal
    kinds[topology_topic(topology.application_id)] = "topology"
    kinds |= dict.fromkeys(marks_topics(topology.application_id, counts), "backfill")
    return kinds


def _print(
    log: Log,
    kinds: Mapping[str, str],
    counts: Mapping[str, int],
) -> None:
    """Print a table with a line for each topic."""
    there = [name for name in kinds if name in counts]
    configs = log.topic_configs(there)
    table = new_table("topic", "kind", "partitions", "records", "cleanup", "retention")
    for name, kind in kinds.items():
        if name not in counts:
            table.add_row(visible(name), kind, "does not exist", "", "", "")
            continue
        partitions = [TopicPartition(name, each) for each in range(counts[name])]
        records = sum(log.end_offset(at) - log.start_offset(at) for at in partitions)
        table.add_row(
            visible(name),
            kind,
            str(counts[name]),
            f"{records:,}",
            configs[name].get("cleanup.policy", ""),
            _retention(configs[name]),
        )
    plain_console().print(table)


def _retention(config: Mapping[str, str]) -> str:
    """Return how long a topic keeps records, in words; empty: until they are compacted."""
    if "delete" not in config.get("cleanup.policy", "delete"):
        return ""
    milliseconds = int(config.get("retention.ms", -1))
    # Kafka's largest is 300 million years, which is no timedelta.
    if milliseconds < 0 or milliseconds > _LONGEST_MS:
        return "without end"
    return str(timedelta(milliseconds=milliseconds))


@app.command()
def write(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Write each line of the standard input as the value of a record without a key."""
    with cluster(connection(bootstrap_servers, config)) as log:
        if name not in log.partitions([name]):
            raise UnknownTopicError(
                f'there is no topic "{name}"; make it: coopstreams topics create {name}'
            )
        written = 0
        with closing(log.writer()) as writer:
            # each as it comes: there may be a person, or `tail -f`, at the other end
            for line in sys.stdin.buffer:
                writer.append(name, [None], [line.rstrip(b"\r\n")], [SYSTEM.wall_ms()])
                written += 1
            writer.flush(FLUSH_S)
    typer.echo(f"{written} records written to {name}")
