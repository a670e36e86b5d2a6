"""The level of formats that a group writes: one number, by which a release is rolled out
process by process.

    1   release 0.1
    2   release 0.2: births and marks in timed topics, windows that close by them, and commits of records that are done
        in the order of births

Each member announces the newest level that it can write. The group writes the least
level that a member announces; a member of release 0.1 announces none. Every member
finds it in its assignment, so all members of a generation agree. When the last member
of a lower level has left, the next generation has the higher level: each member opens
its tasks again, and they write the new formats from then on.

The way back is closed by the topology record, which has the level as its format
(`preflight.last_version`). It is written before the first task opens at the level, and
a release that does not know it refuses to start, and to open a task. So the level of a
group never falls below that of its record.

Invariant: a task has one level from its opening to its closing.
Invariant: a task reads what tasks of either level write. Members of one generation
change over one after the other.
Turned down: a level chosen by the leader (the leader may be of the earlier release); a
version for each format in the group metadata (nobody can combine them freely, and each
pair would have to be tested).
"""

from __future__ import annotations

from coopstreams.group.members import Cluster
from coopstreams.topology.graph.outline import NEWEST_FORMAT

CLOCKS = 2
"""The level from which on topics are timed."""
LEVEL = NEWEST_FORMAT
"""The level of this release."""
RELEASES = {1: "0.1", 2: "0.2"}
"""The release that first wrote the formats of a level."""
assert LEVEL in RELEASES


def level_of(cluster: Cluster, recorded: int) -> int:
    """Return the level that the members of a generation write.

    `recorded`: the level in the topology record; 0: there is no record.
    """
    announced = [member.info.level for member in cluster.members]
    return max(recorded, min([LEVEL, *announced]))


def held_back_by(cluster: Cluster) -> list[str]:
    """Return the members that cannot write the formats of this release, in words."""
    return [
        f"{member.info.process} on {member.info.host}"
        for member in cluster.members
        if member.info.level < LEVEL
    ]


def in_words(level: int, cluster: Cluster) -> str:
    """Return which release's formats a group writes, and what it waits for."""
    if level == LEVEL:
        return RELEASES[level]
    return (
        f"{RELEASES[level]}, until these members run a newer release: "
        f"{', '.join(held_back_by(cluster))}"
    )
