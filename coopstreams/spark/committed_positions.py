"""The committed positions of a stopped application, read from Kafka.

Invariant: these positions cannot change without a member in the group, and
`check_stopped` detects members.
Relies on: `commit.view` (which commit counts), `group.admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing

from coopstreams.commit.group_progress import individual_commits
from coopstreams.commit.positions import check_beside, check_named
from coopstreams.commit.record import Committed, Segment
from coopstreams.commit.view import Hole, combine
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.clocks import clock_marks_in
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, LogError
from coopstreams.topology.keys import WHOLE, key_hashes

_BATCH = 10_000
_FETCHES = 300
"""Fetches without records, a tenth of a second each, until an open transaction is
reported as an error.
"""


def check_stopped(config: Config) -> None:
    """Check that no instance of the application runs.

    Raises:
        GroupError: instances run; the message has their number.
    """
    application = config["application.id"]
    with GroupAdmin(config.client, application) as admin:
        members_text = admin.describe().members_text
    if members_text:
        raise GroupError(
            f'"{application}" has {members_text}: state is rebuilt from the source for an application that '
            "stands still. Stop all its "
            "instances, then try again."
        )


def committed(
    config: Config,
    cluster: KafkaLog,
    places: Iterable[TopicPartition],
) -> dict[TopicPartition, tuple[Segment, ...]]:
    """Return the committed segments of these partitions. They cover all hashes; hashes
    without a commit are at the start of the partition.

    Raises:
        ConfigError: commits are gone, or they are for deleted topics whose names other
        topics have now.
    """
    application = config["application.id"]
    wanted = sorted(places)
    with GroupAdmin(config.client, application) as admin, ExitStack() as reading:
        # Plain offsets first: the commits that they name are then in the commit topic,
        # whatever is committed meanwhile.
        plain = {
            at: None if found is None else Committed.parse(*found)
            for at, found in admin.committed(wanted).items()
        }
        follower = reading.enter_context(individual_commits(cluster, application))
        if follower is not None:
            follower.check(admin.committed(follower.rows()))
            check_beside(follower, plain)
            ids = {
                topic: cluster.topic_id(topic) for topic in {at.topic for at in wanted}
            }
            opened = {
                at: follower.open(at, WHOLE, plain.get(at), Position(0))
                for at in wanted
            }
            check_named(application, opened, ids)
        resolved = {
            at: [Hole(WHOLE)] if follower is None else follower.resolve(at, WHOLE)
            for at in wanted
        }
        return {
            at: tuple(
                combine(ranges, plain.get(at), Position(cluster.start_offset(at)))
            )
            for at, ranges in resolved.items()
        }


def unread(
    cluster: KafkaLog,
    place: TopicPartition,
    segments: Sequence[Segment],
    end: int,
) -> int:
    """Return the number of uncommitted records below an end, without time marks.

    Raises:
        LogError: a transaction is open below the end.
    """
    at = max(cluster.start_offset(place), min(segment.position for segment in segments))
    count = 0
    empty = 0
    with closing(cluster.reader()) as reader:
        reader.assign({place: Position(at)})
        while at < end:
            batches = reader.fetch(_BATCH, 0.1)
            empty = 0 if batches else empty + 1
            if empty > _FETCHES:
                raise LogError(
                    f"{place}: nothing comes behind offset {at}, below the end {end}: a transaction is open there. End "
                    "it, then try again."
                )
            for batch in batches:
                at = batch.next_offset
                columns = batch.columns
                marks = {index for index, _ in clock_marks_in(columns)}
                hashes = key_hashes(columns.keys, columns.offsets)
                for i, (offset, hash_) in enumerate(
                    zip(columns.offsets, hashes, strict=True)
                ):
                    count += (
                        offset < end
                        and i not in marks
                        and not any(
                            hash_ in segment.key_range and segment.has_done(offset)
                            for segment in segments
                        )
                    )
    return count
