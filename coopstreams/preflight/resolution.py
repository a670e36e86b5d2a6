"""Turns a topology as a user built it into one that can run: its topics are found and
checked, missing internal topics created, its programs compiled.

Relies on: `facts` and `checks` (what ends a start), `tasks.resolved_topology`
(compiles). Checks come first: a start that is refused creates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from coopstreams.common.config import Config
from coopstreams.log.log import Check, Log
from coopstreams.preflight.checks import CHECKS
from coopstreams.preflight.facts import Facts, gather, gather_at_start
from coopstreams.preflight.findings import judge
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.schema_checks import check_schemas
from coopstreams.tasks.resolved_topology import (
    ResolvedTopology,
    as_it_runs,
    compiled,
)
from coopstreams.topology.graph.topology import Topology

log = logging.getLogger(__name__)


def resolve_at_start(
    cluster: Log,
    built: Topology,
    config: Config,
    version: LastVersion,
) -> ResolvedTopology:
    """Return the topology of an application that begins to run. `version`: the record
    of the version that had tasks last.

    Raises:
        CoopStreamsError: a check ends the start (`checks`), or a schema does not fit.
        LogError: the brokers do not answer.
    """
    counts = cluster.partitions()
    topology = as_it_runs(built, counts, config)
    facts = gather_at_start(cluster, topology, config, counts, version)
    judge(CHECKS, facts)
    create_missing(cluster, facts, version.not_reset)
    return compiled(topology, facts.topics, config, version.first_level)


def resolve_topology(
    cluster: Log,
    built: Topology,
    config: Config,
    version: LastVersion | None = None,
    known: Collection[str] = (),
) -> ResolvedTopology:
    """Return the topology with the topics that match its patterns now.

    `version`: the record of the version that had tasks last, read earlier. Its
    changelogs are not created anew, and after a reset nothing is created. `known`:
    topics that the application reads already; they count as existing in any case.

    Raises:
        CoopStreamsError: as for `resolve_at_start`.
    """
    counts = cluster.partitions()
    topology = as_it_runs(built, {*counts, *known}, config)
    had = frozenset[str]() if version is None else version.changelogs
    facts = check_topics(cluster, topology, config, counts, had)
    create_missing(cluster, facts, None if version is None else version.not_reset)
    return compiled(topology, facts.topics, config)


def check_topics(
    cluster: Log,
    topology: Topology,
    config: Config,
    counts: Mapping[str, int],
    had: Collection[str] = (),
) -> Facts:
    """Return the facts about the topics of a topology, if the topics fit it.

    `counts`: a listing of all topics, made just now. `had`: the changelogs of the
    version that ran last.

    Raises:
        CoopStreamsError: as for `resolve_at_start`.
    """
    facts = gather(cluster, topology, config, counts, had)
    judge(CHECKS, facts)
    return facts


def create_missing(
    cluster: Log,
    facts: Facts,
    check: Check | None = None,
) -> None:
    """Create the internal topics that do not exist yet, and register the schemas that
    the application writes. `check`: called before each topic is created.

    Raises:
        ConfigError: a schema does not fit.
        LogError: the brokers do not create a topic, or the registry does not answer.
    """
    check_schemas(facts.topology, facts.config)
    if specs := facts.missing:
        log.info(
            "creating internal topics: %s",
            ", ".join(f"{spec.name} ({spec.partitions})" for spec in specs),
        )
        cluster.create_topics(specs, check)
