"""The status of an opening task names the step that it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, cast
from unittest.mock import patch

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.record import CommitKey, encode_key
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.opener import Opener, Stages
from coopstreams.opening.restores import Restores
from coopstreams.opening.sink_openings import SinkOpenings
from coopstreams.opening.standbys import Standbys
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC
from coopstreams.topology.task_id import TaskId
from tests.commit.test_positions import Busy

TASK = TaskId(0, 0, WHOLE)
ORDERS = TopicPartition("orders", 0)


class Away(Busy):
    """A coordinator that is unreachable at first; then an open transaction keeps all
    offsets unstable.
    """

    away = True

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        if self.away:
            raise LogError("no coordinator found", retryable=True)
        return super().fetch_offsets(partitions, stable=stable)


def test_a_barrier_that_was_passed_is_named_no_more() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    follower, coordinator = Follower(log, "g"), Away(Random(1), {}, certain=0.0)
    positions = Positions(
        log, coordinator, follower, lambda _: (ORDERS,), lambda _: "earliest", "a"
    )
    anything = cast(
        Any, None
    )  # neither the group nor the stores are used before the positions are known
    opener = Opener(
        anything,
        follower,
        Stages(
            Barrier(None, follower, lambda _: False, lambda _: None),
            positions,
            Restores(log, str),
            SinkOpenings("g", log, lambda: None),
        ),
        Standbys(lambda: log, lambda _: Restores(log, str), anything, str),
        anything,
        lambda _: None,
        lambda _: None,
        lambda: None,
    )

    def say() -> str:
        return opener.waits_for(TASK).why

    opener.open(TASK, 1)
    assert say() == "its turn with the opener"
    writer = log.writer("g-0")
    writer.begin()
    writer.append(
        COMMIT_TOPIC,
        [encode_key(CommitKey("g", *ORDERS, WHOLE, 1, 1))],
        [None],
        [1],
        partitions=follower.partition.partition,
    )
    opener._take_requests()
    opener._try_turn()
    assert say() == f"the barrier: offset 1 of {follower.partition}, known up to 0"
    passed = follower.passed

    def doubted(barrier: int) -> bool:
        """As if the opener took the barrier again at this very moment."""
        opener._openings[TASK].barrier = None
        return passed(barrier)

    with patch.object(follower, "passed", doubted):
        assert say() == f"the barrier: offset 1 of {follower.partition}, known up to 0"
    opener._openings[TASK].barrier = 1
    writer.commit(60)
    while not follower.passed(1):
        follower.poll(0.1)
    opener._try_turn()
    assert (
        say()
        == "the group's plain offsets, which failed and is done again: no coordinator found"
    )
    coordinator.away = False
    opener._try_turn()
    assert say().startswith(
        "the group's plain offsets: an open transaction keeps back that of orders-0 for "
    )
    assert set(positions.unstable) == {ORDERS}
