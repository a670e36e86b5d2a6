"""Resets the positions of a group without members to the beginning, the end, an offset
or a time.

A plain offset alone is not enough: individual commits of key ranges under a higher term
still count (`commit/view.py`). So a reset is a commit for the whole hash space under a
higher term, in three steps:

    check   a commit that changes nothing: the coordinator refuses it if there are members
    record  [whole]@term -> offset, without done runs; of a reset forwards, a record for each key range
    plain   the offset with the same term, for ordinary consumers and lag monitors. Fences of the group in other partitions
            of the commit topic, from before their count was changed, become void (`Follower.check`)

The record and the plain offset name the topic by its id, as every commit does. If the
topic is made anew before the next start, that start is refused.

Damaged records of these partitions keep tasks from opening, so the reset deletes them
by tombstones. Records of a newer version are not touched.

Invariant: the term is above that of every commit, and above the term that a process
stalled while opening may have chosen.
Invariant: after an interruption at any step, each position lies between the old and the
new one; repeating the reset completes it.
Turned down: deleting the individual commits (terms would begin at 1 again, and commits
of an earlier, stalled process would outrank new ones).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from coopstreams.commit.follower import VOID, Follower
from coopstreams.commit.group_progress import catch_up
from coopstreams.commit.positions import check_beside, check_named
from coopstreams.commit.record import (
    MADE_ANEW,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    consumer_metadata,
    decode_key,
    encode_key,
    encode_value,
    topic_number,
)
from coopstreams.commit.view import join, lowest
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.members import NO_GENERATION
from coopstreams.log.log import Log, Position, Writer
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE

_FLUSH_S = 30.0
_AUTHOR = "reset"
_FIRST_TERM = 1
"""The next term of a partition without commits."""


def reset_offsets(
    log: Log,
    coordinator: GroupAdmin,
    targets: Mapping[TopicPartition, int],
    *,
    unnamed: Collection[TopicPartition] = (),
    gone: Collection[str] = (),
    forwards: bool = False,
) -> None:
    """Set the group's positions to these offsets, in all key ranges. Records above them
    are processed again, even if they were done.

    `unnamed`: the partitions whose topics are about to be made anew. Their offsets are
    positions in the new topics.
    `gone`: topics that have no partitions now, and are made anew as well. Individual
    commits of them are reset. Kafka has deleted the plain offsets with the topics, and
    accepts none.
    `forwards`: only move key ranges whose position is before the offset, and process no
    done record again. The metadata of a consumer stays.

    Raises:
        ConfigError: `forwards` is set, and the group's progress is not known, or is of
            a topic that was made anew.
        GroupError: the group has members. Stop them first.
        LogError: refused, or no answer in time: try again. Or a newer version of
            coopstreams wrote a record: use that version.
    """
    with (
        closing(Follower(log, coordinator.group)) as follower,
        closing(log.writer()) as writer,
    ):
        coordinator.commit({follower.partition: (follower.tail, "")})
        catch_up(follower, check=False)
        left = {at for at in follower.sources() if at.topic in gone}
        targets = {**targets, **dict.fromkeys(left, 0)}
        unnamed = {*unnamed, *left}
        if forwards:
            follower.check_readable()
        damaged = _damaged(follower, targets)
        found = _committed(coordinator, targets)
        named = {at.topic for at in targets if at not in unnamed}
        ids = {topic: log.topic_id(topic) for topic in named}
        plain: dict[TopicPartition, tuple[int, str]] = {}
        for partition, offset in targets.items():
            topic_id = ids.get(partition.topic, "")
            key = reset_key(
                coordinator.group,
                partition,
                _next_term(follower, partition, found.get(partition), damaged),
                MADE_ANEW if partition in unnamed else NO_GENERATION,
            )
            if forwards:
                segments = _forwards(
                    follower,
                    partition,
                    found.get(partition),
                    offset,
                    topic_id,
                )
                text = _consumer_text(follower, partition, topic_id)
            else:
                segments = [Segment(WHOLE, offset)]
                text = ""
            _append_commits(writer, follower.partition, key, segments, topic_id, text)
            if partition not in left:
                beside = key.term if forwards else 0
                plain[partition] = _plain(segments, key.term, beside, topic_id)
        _append(writer, follower.partition, dict.fromkeys(damaged))
        writer.flush(_FLUSH_S)
        coordinator.commit(plain | _void(coordinator, follower))


def _committed(
    coordinator: GroupAdmin,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, Committed]:
    """Return the group's plain offsets. Partitions without one are left out."""
    found = coordinator.committed(partitions)
    return {
        at: Committed.parse(*given) for at, given in found.items() if given is not None
    }


def _next_term(
    follower: Follower,
    partition: TopicPartition,
    committed: Committed | None,
    damaged: Mapping[bytes, CommitKey | None],
) -> int:
    """Return the term above that of every commit of a partition, damaged commits
    included.
    """
    terms = [
        1 + key.term
        for key in damaged.values()
        if key and (key.topic, key.partition) == partition
    ]
    return max([follower.next_term(partition, committed), *terms])


def _consumer_text(
    follower: Follower,
    partition: TopicPartition,
    topic_id: str,
) -> str:
    """Return the metadata that a consumer gave to its last commit; empty: it gave none.
    An application's commit has only the topic's id there.
    """
    live = follower.live(partition)
    return live[-1].metadata if live and live[-1].metadata != topic_id else ""


def _append_commits(
    writer: Writer,
    to: TopicPartition,
    key: CommitKey,
    segments: Sequence[Segment],
    topic_id: str,
    text: str,
) -> None:
    """Append an individual commit for each segment: `key` with the segment's range.
    `text`: the user's metadata.
    """
    # The form of a consumer's commit: an application takes the id from either form, a
    # consumer from its own.
    metadata = consumer_metadata(topic_id, text) if topic_id else text
    commits: dict[bytes, bytes | None] = {
        encode_key(replace(key, key_range=segment.key_range)): encode_value(
            CommitValue(_AUTHOR, (segment,), metadata)
        )
        for segment in segments
    }
    _append(writer, to, commits)


def _append(
    writer: Writer,
    to: TopicPartition,
    records: Mapping[bytes, bytes | None],
) -> None:
    for key, value in records.items():
        now_ms = time.time_ns() // 1_000_000
        writer.append(to.topic, [key], [value], [now_ms], partitions=to.partition)


def _plain(
    segments: Sequence[Segment],
    term: int,
    beside: int,
    topic_id: str,
) -> tuple[int, str]:
    """Return the plain offset, with its metadata, that corresponds to these segments.

    `beside`: the highest term of the individual commits; 0: the plain offset alone has
    the whole progress.
    """
    low = lowest(segments)
    mirrored = Committed(
        low.position,
        low.stream_time,
        term,
        beside,
        low.operator_times,
        topic_number(topic_id),
    )
    return low.position, mirrored.metadata


def _void(
    coordinator: GroupAdmin,
    follower: Follower,
) -> dict[TopicPartition, tuple[int, str]]:
    """Return the plain offsets that fences of the group have left in other partitions
    of the commit topic, each with metadata that make it void.
    """
    rows = coordinator.fetch_offsets(follower.rows(), stable=False).offsets
    return {
        at: (row[0], VOID)
        for at, row in rows.items()
        if row is not None and at != follower.partition
    }


def _forwards(
    follower: Follower,
    partition: TopicPartition,
    committed: Committed | None,
    offset: int,
    topic_id: str,
) -> list[Segment]:
    """Return the group's progress in a partition, with positions below `offset` moved
    to `offset`.
    """
    check_beside(follower, {partition: committed})
    start = follower.open(partition, WHOLE, committed, Position(offset))
    check_named(follower.group, {partition: start}, {partition.topic: topic_id})
    return join([segment.moved_to(offset) for segment in start.segments])


def _damaged(
    follower: Follower,
    targets: Collection[TopicPartition],
) -> dict[bytes, CommitKey | None]:
    """Return the damaged records to delete, with their decoded keys. They are those of
    these partitions, and those whose key cannot be read (None).

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


def reset_key(
    group: str,
    partition: TopicPartition,
    next_term: int,
    generation: int = NO_GENERATION,
) -> CommitKey:
    """Return the commit key of a reset, for the whole hash space. `generation`:
    `MADE_ANEW` for a topic that is about to be made anew.

    The term is one above `next_term`, because a stalled opener may have chosen
    `next_term`.
    """
    return CommitKey(group, *partition, WHOLE, next_term + 1, generation)


def never_committed(
    log: Log,
    coordinator: GroupAdmin,
    partitions: Collection[TopicPartition],
) -> bool:
    """Return whether the group has committed neither plain offsets nor individual
    commits in these partitions.
    """
    if any(coordinator.committed(partitions).values()):
        return False
    with closing(Follower(log, coordinator.group)) as follower:
        catch_up(follower)
        return all(
            follower.next_term(partition, None) == _FIRST_TERM
            for partition in partitions
        )
