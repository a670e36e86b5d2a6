"""A plain offset that went back below records that the application has processed and
deleted: see `commit.view`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import pytest

from coopstreams.commit.barrier import Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import (
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
)
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    LogError,
    OffsetOutOfRangeError,
)
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId
from tests.commit.test_positions import Group

FORWARDED = TopicPartition("g-by-city-repartition", 0)
TASK = TaskId(0, 0, WHOLE)
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def purged_to(offset: int, config: Mapping[str, str] = KEPT) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec(FORWARDED.topic, 1, config)])
    log.writer().append(FORWARDED.topic, [None] * 12, [b""] * 12, [*range(12)])
    log.delete_before(FORWARDED, offset)
    return log


def opened(
    log: MemoryLog,
    follower: Follower | None = None,
    purged: frozenset[str] = frozenset(),
) -> Progress:
    group = Group(
        {FORWARDED: (9, Committed(9, 500, 1, operator_times=((7, 400),)).metadata)}
    )
    follower = follower or Follower(log, "g")
    positions = Positions(
        log,
        group,
        follower,
        lambda _: (FORWARDED,),
        lambda _: "earliest",
        "a",
        purged=purged,
    )
    return positions.resolve([Opening(TASK, epoch=0, barrier=0)], 1)[TASK]


PURGED = partial(opened, purged=frozenset({FORWARDED.topic}))


def test_a_task_goes_on_behind_records_that_were_deleted_because_they_had_been_processed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        progress = PURGED(purged_to(10))
    (segment,) = progress.segments(FORWARDED)
    assert segment == Segment(WHOLE, 10, 500, operator_times=((7, 400),)), (
        "the times are those of the commit"
    )
    assert progress.moved, "the next commit takes the group there"
    assert (
        "the group stands at offset 9, but the log begins at 10: the records between were processed"
        in caplog.text
    )


def test_a_position_at_the_log_start_or_behind_it_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for offset in (5, 9):
        assert PURGED(purged_to(offset)).position(FORWARDED) == Position(9, 500)
    assert not caplog.records


def test_key_ranges_that_are_further_keep_what_they_have_done() -> None:
    log = purged_to(10)
    follower = Follower(log, "g")
    left, right = KeyRange.split(2)
    for part, segment in (
        (left, Segment(left, 9, 500)),
        (right, Segment(right, 9, 500, ((10, 11),))),
    ):
        record = (
            encode_key(CommitKey("g", *FORWARDED, part, 2, 1)),
            encode_value(CommitValue("a", (segment,))),
        )
        at = follower.partition
        log.writer().append(
            at.topic, [record[0]], [record[1]], [1], partitions=at.partition
        )
    follower.poll(0.0)
    assert PURGED(log, follower).segments(FORWARDED) == (
        Segment(left, 10, 500),
        Segment(right, 12, 500),
    )


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup.policy": "delete", "retention.ms": "60000"},
        KEPT | {"retention.bytes": "100"},
    ],
)
def test_records_that_brokers_delete_by_themselves_may_not_have_been_processed(
    config: dict[str, str],
) -> None:
    with pytest.raises(
        OffsetOutOfRangeError,
        match="up to 1 records were deleted before they were processed",
    ):
        PURGED(purged_to(10, config))


def test_a_topic_whose_offsets_cannot_go_back_has_lost_records() -> None:
    """Source topics, and all topics under exactly-once."""
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"the group stands at offset 9, but the log begins at 10: up to 1",
    ):
        opened(purged_to(10))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (AccessDeniedError("DescribeConfigs"), OffsetOutOfRangeError),
        (LogError("no answer", retryable=True), LogError),
    ],
)
def test_a_topic_whose_settings_cannot_be_seen_counts_as_one_whose_records_brokers_delete(
    error: LogError, raised: type[LogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = purged_to(10)

    def refused(topic: str) -> dict[str, str]:
        raise error

    monkeypatch.setattr(log, "topic_config", refused)
    with pytest.raises(raised):
        PURGED(log)
