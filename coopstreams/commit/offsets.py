"""How far a group is, for people and programs that are not in it: stable offsets, what is done above them, key ranges.

A group's progress is two things: plain committed offsets in `__consumer_offsets`, and individual commits of key ranges
in `__individual_commit_offsets`. `commit/view.py` says which of them speaks for which hash; here both are read, up to
now, and put together.

Nobody can tell the key of an offset without reading it. So an offset above the stable one counts as done here if it is
done in *every* key range: what the proposal's coordinator would hold as individual commits. What each key range has
done for itself stands beside it.

Invariant: what is returned was committed before, and contains every commit that was finished before the question (the
barrier).
Turned down: asking a member over HTTP (there may be none).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from coopstreams.commit.follower import Follower
from coopstreams.commit.ranges import Runs, advance, common, merge
from coopstreams.commit.record import Committed, Segment
from coopstreams.commit.view import Hole, combine
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class OffsetAndRanges:
    """What a group has committed of one partition. Source: the proposal's `OffsetAndMetadata` with `rangeOffsets`.

    Shape: everything below `offset` is done; `ranges` above it, too: inclusive, ascending. `key_ranges` tile the hash
    space.
    """

    offset: int
    metadata: str = ""
    ranges: Runs = ()
    key_ranges: tuple[Segment, ...] = ()


def list_consumer_group_offsets(
    settings: Mapping[str, Any], group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndRanges | None]:
    """Return what a group has committed of these partitions (of all: None); None for one of which some key range has
    committed nothing.

    Shape: `settings` in librdkafka's names: how to reach the brokers. The group may have members or none.

    Raises:
        LogError: refused, or an open transaction keeps the answer back for too long; says which.
        GroupError: no brokers.
    """
    log = KafkaLog(settings)
    try:
        with GroupAdmin(settings, group) as admin, individual_commits(log, group) as follower:
            return group_offsets(admin, follower, partitions)
    finally:
        log.close()


@contextmanager
def individual_commits(log: Log, group: str, timeout_s: float = _TIMEOUT_S) -> Iterator[Follower | None]:
    """Have the individual commits of a group, up to now; None where the cluster has none of any group.

    Raises:
        LogError: retryable: an open transaction keeps them back; says which.
    """
    if COMMIT_TOPIC not in log.partitions([COMMIT_TOPIC]):
        yield None
        return
    follower = Follower(log, group)
    try:
        catch_up(follower, timeout_s)
        yield follower
    finally:
        follower.close()


def catch_up(follower: Follower, timeout_s: float = _TIMEOUT_S, *, check: bool = True) -> None:
    """Read everything that was committed before now. Without `check`, also if some of it cannot be read.

    Raises:
        LogError: a record cannot be read; or, retryable, an open transaction keeps the rest back: says which.
    """
    barrier, give_up = follower.barrier(), time.monotonic() + timeout_s
    while follower.tail < barrier:
        follower.poll(0.1)
        if follower.tail < barrier and time.monotonic() > give_up:
            names = ", ".join(sorted(follower.blockers(barrier))) or "of another group in the same partition"
            raise LogError(
                f"{follower.partition} ends at {barrier}; read up to {follower.tail} in {timeout_s:.0f} s. An open "
                f"transaction keeps the rest back: {names}",
                retryable=True,
            )
    if check:
        follower.check_readable()


def group_offsets(
    coordinator: GroupAdmin, follower: Follower | None, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndRanges | None]:
    """Return what a group has committed, from individual commits up to some barrier and the plain offsets of now.

    Raises:
        LogError: refused, or a transaction stayed open, or no answer in time.
    """
    wanted = None if partitions is None else set(partitions)
    plain = coordinator.committed(wanted)
    if wanted is None:
        wanted = {at for at in plain if at.topic != COMMIT_TOPIC}.union(follower.sources() if follower else ())
    return {at: offset_and_ranges(follower, at, plain.get(at)) for at in sorted(wanted)}


def offset_and_ranges(
    follower: Follower | None, partition: TopicPartition, plain: tuple[int, str] | None
) -> OffsetAndRanges | None:
    """Return what was committed of a partition; None while some key range has committed nothing.

    Shape: `plain` is the plain committed offset with its metadata.
    """
    committed = None if plain is None else Committed.parse(*plain)
    pieces = [Hole(WHOLE)] if follower is None else follower.resolve(partition, WHOLE)
    if committed is None and any(isinstance(piece, Hole) for piece in pieces):
        return None
    segments = combine(pieces, committed, Position(0))
    live = [] if follower is None else follower.live(partition)
    metadata = plain[1] if plain and committed and committed.term is None else live[-1].metadata if live else ""
    offset, ranges = done_by_all(segments)
    return OffsetAndRanges(offset, metadata, ranges, tuple(segments))


def done_by_all(segments: Iterable[Segment]) -> tuple[int, Runs]:
    """Return the stable offset of key ranges that stand like this, and the offsets above it that all of them have
    done.
    """
    stands = list(segments)
    lowest = min(segment.position for segment in stands)
    done = [
        merge(((lowest, segment.position - 1),), segment.runs) if segment.position > lowest else segment.runs
        for segment in stands
    ]
    return advance(lowest, reduce(common, done))
