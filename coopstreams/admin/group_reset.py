"""Puts a group somewhere else: back to the beginning, to the end, to an offset or a time. Only while it has no members.

A plain committed offset alone would not do: where key ranges have committed more under a higher term, they go on
speaking (`commit/view.py`). So a reset is a commit for the whole hash space under a term of its own:

    ask     a commit that changes nothing: the coordinator refuses it if there are members
    record  [whole]@term -> offset, without anything done above it
    plain   the offset at the same term: what ordinary consumers and lag monitors see

Damaged records of these partitions, which keep tasks from opening, are tombstoned beside it; those of a newer version
are not touched.

Invariant: the term is above that of every commit, and above that which anybody who stalled while opening a range may
have chosen.
Invariant: torn off after any step, nothing stands beyond both where it stood and where it was to be put; trying again
finishes it.
Turned down: deleting the individual commits (terms would begin at 1 again, and a process of old would win).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from coopstreams.commit.follower import Follower
from coopstreams.commit.offsets import catch_up
from coopstreams.commit.record import CommitKey, Committed, CommitValue, Segment, decode_key, encode_key, encode_value
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.members import NO_GENERATION
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE

_FLUSH_S = 30.0
_AUTHOR = "reset"
_FIRST_TERM = 1
"""The next term of a partition of which nobody has committed anything."""


def reset_offsets(log: Log, coordinator: GroupAdmin, targets: Mapping[TopicPartition, int]) -> None:
    """Have the group go on from these offsets, in all key ranges; what it had done above them it does again.

    Raises:
        GroupError: the group has members. Stop them first.
        LogError: refused, or no answer in time: try again. Or a newer version wrote what cannot be read here: use that
            one.
    """
    follower = Follower(log, coordinator.group)
    writer = log.writer()
    try:
        coordinator.commit({follower.partition: (follower.tail, "")})
        catch_up(follower, check=False)
        damaged = _damaged(follower, targets)
        found = coordinator.committed(targets)
        plain: dict[TopicPartition, tuple[int, str]] = {}
        for partition, offset in targets.items():
            committed = found.get(partition)
            next_term = follower.next_term(partition, None if committed is None else Committed.parse(*committed))
            next_term = max(
                [next_term, *(1 + of.term for of in damaged.values() if of and (of.topic, of.partition) == partition)]
            )
            key = reset_key(coordinator.group, partition, next_term)
            value = encode_value(CommitValue(_AUTHOR, (Segment(WHOLE, offset),)))
            writer.append(
                follower.partition.topic,
                [encode_key(key)],
                [value],
                [time.time_ns() // 1_000_000],
                partitions=follower.partition.partition,
            )
            plain[partition] = offset, Committed(offset, term=key.term).metadata
        for bad in damaged:
            writer.append(
                follower.partition.topic,
                [bad],
                [None],
                [time.time_ns() // 1_000_000],
                partitions=follower.partition.partition,
            )
        writer.flush(_FLUSH_S)
        coordinator.commit(plain)
    finally:
        writer.close()
        follower.close()


def _damaged(follower: Follower, targets: Collection[TopicPartition]) -> dict[bytes, CommitKey | None]:
    """Return the damaged records to delete: those of these partitions, and those that do not say of which (None).

    Raises:
        LogError: a newer version wrote one of them.
    """
    found: dict[bytes, CommitKey | None] = {}
    for record in follower.unreadable:
        if record.newer:
            follower.check_readable()
        try:
            key = decode_key(record.key)
        except LogError:
            found[record.key] = None
            continue
        if TopicPartition(key.topic, key.partition) in targets:
            found[record.key] = key
    return found


def reset_key(group: str, partition: TopicPartition, next_term: int) -> CommitKey:
    """Return as whom a reset speaks: for all hashes, one term above the next, which somebody who stalled before its
    claim may have chosen.
    """
    return CommitKey(group, *partition, WHOLE, next_term + 1, NO_GENERATION)


def never_committed(log: Log, coordinator: GroupAdmin, partitions: Collection[TopicPartition]) -> bool:
    """Return whether the group has never committed anything of these partitions, neither plainly nor for a key
    range.
    """
    if any(coordinator.committed(partitions).values()):
        return False
    follower = Follower(log, coordinator.group)
    try:
        catch_up(follower)
        return all(follower.next_term(partition, None) == _FIRST_TERM for partition in partitions)
    finally:
        follower.close()
