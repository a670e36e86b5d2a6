"""The ACLs that an application needs: the general rules, and the list for one topology
and its settings.

`coopstreams acls` prints the list, docs/operating/secure.md has the rules as a table,
and the tests with the secured broker run with exactly these ACLs.

Invariant: no request of an application with these ACLs is refused, and each ACL is
needed.
Turned down: ACLs on each internal topic by its name (a new version of the topology
would need others before it starts).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coopstreams.commit import cluster_policy
from coopstreams.common.acl_errors import Acl
from coopstreams.common.config import Config
from coopstreams.sharing.share_group import share_group
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.topology.graph.nodes import DynamicSink, Source, Structure
from coopstreams.topology.naming import COMMIT_TOPIC


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of needed ACLs: operations on one kind of resource. `name`
    is a name, or a placeholder that stands for names of the application; with
    `prefixed`, it is the beginning of the names.

    `transactions`: needed under exactly-once only. `shared`: needed only if a share
    group reads a source.
    """

    kind: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    transactions: bool = False
    shared: bool = False


RULES = (
    Rule("topic", "<source>", ("Read", "DescribeConfigs")),
    Rule("topic", "<sink>", ("Write",)),
    Rule("topic", "<sink>", ("DescribeConfigs",)),
    Rule("topic", "<application>-", ("Create", "Read", "Write"), prefixed=True),
    Rule("topic", "<application>-", ("Delete",), prefixed=True),
    Rule("topic", "<application>-", ("DescribeConfigs",), prefixed=True),
    Rule("topic", COMMIT_TOPIC, ("Create", "Read", "Write")),
    Rule("topic", cluster_policy.TOPIC, ("Read",)),
    Rule("topic", COMMIT_TOPIC, ("DescribeConfigs",)),
    Rule("group", "<application>", ("Read",)),
    Rule("group", "<application>-share", ("Read", "AlterConfigs"), shared=True),
    Rule(
        "transactional id",
        "<application>-",
        ("Write",),
        prefixed=True,
        transactions=True,
    ),
)


def needed(topology: Structure, config: Config) -> list[Acl]:
    """Return the ACLs that the application needs, each once."""
    names = {
        "<source>": topology.source_topics,
        "<sink>": _written(topology, config),
        "<application>": (config["application.id"],),
        "<application>-": (f"{config['application.id']}-",),
        "<application>-share": (share_group(config["application.id"]),),
    }
    dealt = bool(topology.unordered_topics)
    acls = (
        Acl(rule.kind, name, operation, rule.prefixed)
        for rule in RULES
        if (config.exactly_once or not rule.transactions) and (dealt or not rule.shared)
        for name in names.get(rule.name, (rule.name,))
        for operation in rule.operations
    )
    return list(dict.fromkeys(acls))


def unknown(topology: Structure) -> list[str]:
    """Return which topics have no listed ACL, because the topology does not name them:
    a sentence for each node.
    """
    nodes = [node for part in topology.subtopologies for node in part.nodes]
    told = [
        f'"{node.name}" reads the topics that match {node.pattern.pattern}: allow Read and DescribeConfigs on each'
        + ("" if node.idle_ms is None else ", and Write for its time marks")
        for node in nodes
        if isinstance(node, Source) and node.pattern is not None
    ]
    return told + [
        f'"{node.name}" writes to the topics that its function names: allow Write and DescribeConfigs on each'
        for node in nodes
        if isinstance(node, DynamicSink)
    ]


def _written(topology: Structure, config: Config) -> tuple[str, ...]:
    """Return the external topics that the application writes to, including those of
    time marks and dead letters.
    """
    return tuple(
        dict.fromkeys(
            [
                *topology.sink_topics,
                *dead_letter_topics(topology, config),
                *_timed(topology),
            ]
        )
    )


def _timed(topology: Structure) -> Iterator[str]:
    for part in topology.subtopologies:
        for node in part.nodes:
            if (
                isinstance(node, Source)
                and node.idle_ms is not None
                and not node.internal
            ):
                yield from node.topics
