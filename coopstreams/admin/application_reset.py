"""Begins an application anew: what it has made is deleted, and its group reads from where it is told. Only while it has
no members.

    state      of this host, if it is named: a cache, so the first to go
    offsets    of the topics that it reads, and of its repartition topics: at their beginning, because they are made
               anew
    topics     changelogs and repartition topics, deleted; the next start makes them. Marks of backfills that were not
               published, too, and which
               version of the topology ran last

Invariant: nothing but what the topology names is touched. What it writes for others stays: results are written again.
Invariant: torn off after any step, doing it again finishes it. In between the application must not be started.
Turned down: deleting what merely looks like an internal topic of ours (it may belong to an application whose id begins
with this one).
Source: Kafka Streams `StreamsResetter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coopstreams.admin.group_reset import never_committed, reset_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log
from coopstreams.state.directory import delete_folder
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError
from coopstreams.topology.graph.partitions import looks_internal
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import MARKS, backfill_runs, topology_topic


@dataclass(frozen=True, slots=True)
class Reset:
    """What is to be done.

    Shape: `sources` are the partitions whose offsets are to be chosen, `begun_anew` those of topics that are deleted.
    `left` look like internal topics of the application, but its topology does not have them.
    """

    topics: tuple[str, ...]
    sources: tuple[TopicPartition, ...]
    begun_anew: tuple[TopicPartition, ...]
    left: tuple[str, ...]


def plan_reset(topology: Topology, counts: Mapping[str, int]) -> Reset:
    """Return what has to go, given the partition counts of the topics that exist; what does not exist has no part in
    it.

    Shape: a topology whose patterns are filled in, as it runs. Topics of global tables have no offsets.
    """

    def partitions(topics: Sequence[str]) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0)))

    application = topology.application_id
    internal = {topic.name: topic.kind for topic in topology.internal_topics}
    tables = {table.topic for table in topology.global_tables}
    own = [*internal, topology_topic(application)]
    return Reset(
        (
            *(name for name in own if name in counts),
            *(f"{application}{MARKS}{run}" for run in backfill_runs(application, counts)),
        ),
        partitions([topic for topic in topology.source_topics if topic not in tables]),
        partitions([name for name, kind in internal.items() if kind == "repartition"]),
        tuple(name for name in sorted(counts) if looks_internal(topology, name) and name not in internal),
    )


def check_stopped(coordinator: GroupAdmin) -> None:
    """Do nothing if the application does not run.

    Raises:
        GroupError: it has members. Stop them; one that died is gone after `session.timeout.ms`.
    """
    members = coordinator.describe().members
    if members:
        raise GroupError(
            f"group {coordinator.group} has {len(members)} members: stop all instances, then try again. "
            "One that was killed is counted until session.timeout.ms is over"
        )


def carry_out(
    log: Log,
    coordinator: GroupAdmin,
    reset: Reset,
    offsets: Mapping[TopicPartition, int],
    folders: Iterable[Path],
    *,
    at_beginning: bool = False,
) -> None:
    """Have the application begin anew; `offsets` of all its sources, `folders` of local state that go as well.

    `at_beginning`: the offsets are where a group begins that has none. Then one that has never committed is left
    without, as if it had never been: after a backfill that came to nothing, say, which only a group without offsets can
    do again.

    Raises:
        GroupError: the group has members. Nothing is done, or, if they came in this moment, nothing but local state is
            gone.
        StateLockedError: a process uses the local state. Stop it.
        LogError: no answer in time, or refused: do it again before the application is started.
    """
    check_stopped(coordinator)
    for folder in folders:
        delete_folder(folder)
    targets = {**offsets, **dict.fromkeys(reset.begun_anew, 0)}
    if targets and not (at_beginning and never_committed(log, coordinator, targets)):
        reset_offsets(log, coordinator, targets)
    log.delete_topics(reset.topics)
