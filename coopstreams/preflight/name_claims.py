"""Finds internal topics that two applications share because their names collide. The
rows of both would be in one topic.

    application "q",   store "b-c"    q-b-c-changelog
    application "q-b", store "c"      q-b-c-changelog

The record of an application's version (`last_version`) names its internal topics, and
so claims them. It exists since the first task opened, others can read it, and a topic
that somebody has made beforehand has none. A topic's name may begin with several
application ids. For each of these ids, the check looks for a version record among the
topics of the cluster, and reads it.

An application that begins is refused while another one claims one of its topics. So are
both, if they ran with a shared topic before this check existed. A reset does not delete
a shared topic.

Invariant: of two applications that begin at the same time, at least one is refused:
each checks before it creates a topic, and again when its own record is written. Turned
down: a mark in the topic itself (Kafka has no place for it but the records, which every
reader would have to leave out); a name that cannot collide (topics keep their names,
which are those of Kafka Streams).
Relies on: `last_version` (writes the record, and checks again behind it).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import orjson

from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import Log
from coopstreams.log.read_to_end import remainder
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AccessDeniedError, ConfigError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.json_text import read_long
from coopstreams.topology.naming import topology_topic

log = logging.getLogger(__name__)

KEY = b"topology"
"""The key of a version's record."""
_LAST = 100
"""How many offsets are read from the end of a version topic. A topic of another program
may be large; one of coopstreams has one key.
"""


def check_unclaimed(
    cluster: Log,
    topology: Topology,
    names: Collection[str],
    host: Host = SYSTEM,
) -> None:
    """Check that no other application claims internal topics of this one. `names`: the
    topics of the cluster.

    Raises:
        ConfigError: another application claims one; the message has the cure.
    """
    if claimed := claims_on(cluster, topology, names, host):
        raise ConfigError(why_claimed(topology, claimed))


def claims_on(
    cluster: Log,
    topology: Topology,
    names: Collection[str],
    host: Host = SYSTEM,
) -> dict[str, str]:
    """Return the internal topics of a topology that another application claims, with
    its id.
    """
    mine = [topic.name for topic in topology.internal_topics]
    return claims(cluster, topology.application_id, mine, names, host)


def why_claimed(topology: Topology, claimed: Mapping[str, str]) -> str:
    """Return why an application is refused if another one claims its internal topics."""
    application = topology.application_id
    topic, other = min(claimed.items())
    kinds = {internal.name: internal.kind for internal in topology.internal_topics}
    store = topic.removeprefix(f"{application}-").removesuffix(f"-{kinds[topic]}")
    return (
        f'{topic} is an internal topic of application "{other}", too: {topology_topic(other)} names it. Here it is the '
        f'{kinds[topic]} topic of "{store}". Rows of both would be in it, and the results of both would be wrong. Give '
        f'"{store}" another name in this program, or run it under another application.id. What both have written there '
        f'already belongs to neither: `coopstreams reset` both, under the new names. Or, if "{other}" is gone for good, '
        f"delete {topology_topic(other)} and the internal topics that it has"
    )


def claims(
    cluster: Log,
    application: str,
    topics: Collection[str],
    names: Collection[str],
    host: Host = SYSTEM,
    *,
    strict: bool = False,
) -> dict[str, str]:
    """Return the topics among `topics` that another application claims, with its id.
    `names`: the topics of the cluster.

    `strict`: raise if this user may not read a record, instead of logging a warning.

    Raises:
        LogError: a record cannot be read.
    """
    found: dict[str, str] = {}
    for other in _others(application, topics, names):
        try:
            theirs = _internal_topics(_record(cluster, topology_topic(other), host))
        except AccessDeniedError as error:
            if strict:
                raise
            log.warning(
                'cannot see whether application "%s" has internal topics of the same names: %s',
                other,
                error,
            )
            continue
        found |= {topic: other for topic in topics if topic in theirs}
    return found


def _others(
    application: str,
    topics: Collection[str],
    names: Collection[str],
) -> list[str]:
    """Return the ids of other applications that the names of these topics begin with,
    and that have a version record.
    """
    suffix = topology_topic("")
    ids = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
    return sorted(
        id_
        for id_ in ids - {application, ""}
        if any(topic.startswith(f"{id_}-") for topic in topics)
    )


def _record(
    cluster: Log,
    topic: str,
    host: Host,
) -> bytes | None:
    """Return the value of the last version record in a topic; None: the topic has none."""
    at = TopicPartition(topic, 0)
    start = max(cluster.start_offset(at), cluster.end_offset(at) - _LAST)
    told = None
    for batch in remainder(cluster, {at: start}, host):
        columns = batch.columns
        for key, value in zip(columns.keys, columns.values, strict=True):
            told = value if key == KEY else told
    return told


def _internal_topics(told: bytes | None) -> Mapping[str, object]:
    """Return the internal topics that a version record names; none if another program
    wrote the record.
    """
    try:
        drawn = read_long(orjson.loads, told or b"{}")
        return {topic["name"]: topic["kind"] for topic in drawn["internal_topics"]}
    except (ValueError, KeyError, TypeError):
        return {}
