"""The progress of a group, for tools that are not members of it: stable offsets, done
offsets above them, key ranges.

A group's progress is in two places: plain offsets in `__consumer_offsets`, and
individual commits of key ranges in `__individual_commit_offsets`. `commit/view.py`
decides which of them counts for which hash. This module reads both up to now and
combines them.

The key of an offset is unknown without reading the record. So an offset above the
stable one counts as done here if it is done in *every* key range: the proposal's
coordinator would hold it as an individual commit. The progress of each key range is
returned beside it.

Invariant: a result has committed progress only, and all commits that were finished
before the call (the barrier).
Turned down: asking a member over HTTP (there may be none).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from coopstreams.commit.follower import Follower
from coopstreams.commit.offset_runs import (
    Runs,
    advance,
    common,
    merge,
)
from coopstreams.commit.record import Committed, Segment
from coopstreams.commit.view import Hole, combine
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.references import resolved
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.group_requests import Offsets
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AccessDeniedError, LogError, UnknownTopicError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC

_TIMEOUT_S = 30.0
_LOOK_S = 1.0
"""How long the tail may be held back before the records above it are read."""


@dataclass(frozen=True, slots=True)
class OffsetAndRanges:
    """The progress that a group has committed in one partition. Source: the proposal's
    `OffsetAndMetadata` with `rangeOffsets`.

    Shape: everything below `offset` is done, and the offsets in `ranges` above it:
    inclusive, ascending. `key_ranges` tile the hash space.
    """

    offset: int
    metadata: str = ""
    ranges: Runs = ()
    key_ranges: tuple[Segment, ...] = ()


def list_consumer_group_offsets(
    settings: Mapping[str, Any],
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
) -> dict[TopicPartition, OffsetAndRanges | None]:
    """Return the committed offsets of a group in these partitions, or in all
    (`partitions` None).

    A partition gets None if some key range of it has never committed. The group may
    have members or none.

    Shape: `settings` in librdkafka's names: how to reach the brokers.

    Raises:
        LogError: the request was refused, or an open transaction keeps the answer back
            for too long; the message names it.
        GroupError: no broker was found.
    """
    settings = resolved(settings)
    with (
        closing(KafkaLog(settings)) as log,
        GroupAdmin(settings, group) as admin,
        individual_commits(log, group) as follower,
    ):
        return group_offsets(admin, follower, partitions)


@contextmanager
def individual_commits(log: Log, group: str) -> Iterator[Follower | None]:
    """Return a context with the individual commits of a group, read up to now; None if
    the cluster has no commit topic.

    Raises:
        LogError: retryable: an open transaction keeps commits back; the message names
            it.
    """
    if COMMIT_TOPIC not in log.partitions([COMMIT_TOPIC]):
        yield None
        return
    with closing(Follower(log, group)) as follower:
        catch_up(follower)
        yield follower


def catch_up(
    follower: Follower,
    timeout_s: float = _TIMEOUT_S,
    *,
    check: bool = True,
    host: Host = SYSTEM,
) -> None:
    """Read everything that was committed before now. `check` False: tolerate unreadable
    records.

    Raises:
        LogError: a record cannot be read; or, retryable, an open transaction keeps the
            rest back; the message names it.
    """
    barrier = follower.barrier()
    began = host.now()
    while not follower.knows(barrier):
        follower.poll(0.1)
        waited_s = host.now() - began
        if waited_s > _LOOK_S:
            follower.look_ahead(barrier)
        if waited_s > timeout_s and not follower.knows(barrier):
            raise LogError(
                f"the progress of group {follower.group!r} is not known in {timeout_s:.0f} s: "
                f"{follower.held_back(barrier)}",
                retryable=True,
            )
    follower.look_no_more()
    if check:
        follower.check_readable()


class PlainOffsets(Protocol):
    """A source of the group's plain offsets: `GroupAdmin`, or `GroupMember`."""

    def committed(self, partitions: Iterable[TopicPartition] | None) -> Offsets:
        """Return the plain offset and metadata of each partition; `partitions` None: of
        all partitions that have one.
        """
        ...


def group_offsets(
    coordinator: PlainOffsets,
    follower: Follower | None,
    partitions: Iterable[TopicPartition] | None = None,
    host: Host = SYSTEM,
) -> dict[TopicPartition, OffsetAndRanges | None]:
    """Return the group's committed offsets, including every commit that was finished
    before this call. A partition gets None if some key range of it has never committed.

    `partitions` None: all partitions in which the group has committed.

    Raises:
        LogError: the request was refused, a transaction stayed open, or no answer came
        in time.
    """
    if follower is not None:
        catch_up(follower, host=host)
    wanted = None if partitions is None else set(partitions)
    plain = coordinator.committed(wanted)
    if wanted is None:
        wanted = {at for at in plain if at.topic != COMMIT_TOPIC}.union(
            follower.sources() if follower else ()
        )
    if follower is not None:
        for topic in {at.topic for at in wanted}:
            with suppress(UnknownTopicError, AccessDeniedError):
                follower.look_up(topic)
    return {at: offset_and_ranges(follower, at, plain.get(at)) for at in sorted(wanted)}


def offset_and_ranges(
    follower: Follower | None,
    partition: TopicPartition,
    plain: tuple[int, str] | None,
) -> OffsetAndRanges | None:
    """Return the group's committed offset of a partition; None while some key range has
    never committed.

    Shape: `plain` is the plain offset with its metadata.
    """
    committed = None if plain is None else Committed.parse(*plain)
    if follower is not None:
        committed = follower.of_this_topic(partition, committed)
    resolved = [Hole(WHOLE)] if follower is None else follower.resolve(partition, WHOLE)
    if committed is None and any(isinstance(one, Hole) for one in resolved):
        return None
    segments = combine(resolved, committed, Position(0))
    live = [] if follower is None else follower.live(partition)
    metadata = (
        plain[1]
        if plain and committed and committed.term is None
        else live[-1].metadata
        if live
        else ""
    )
    offset, ranges = done_by_all(segments)
    return OffsetAndRanges(offset, metadata, ranges, tuple(segments))


def done_by_all(segments: Iterable[Segment]) -> tuple[int, Runs]:
    """Return the stable offset of these segments, and the offsets above it that are
    done in all of them.
    """
    stands = list(segments)
    lowest = min(segment.position for segment in stands)
    done = [
        merge(((lowest, segment.position - 1),), segment.runs)
        if segment.position > lowest
        else segment.runs
        for segment in stands
    ]
    return advance(lowest, reduce(common, done))
