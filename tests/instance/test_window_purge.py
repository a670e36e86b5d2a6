"""Expired windows are deleted from their changelogs by stream time; open ones never."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from coopstreams import SlidingWindows, StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.dev.process import wait_until
from coopstreams.instance.purge import Membership, WindowPurge, WindowStores
from coopstreams.instance.task_registry import Standing
from coopstreams.log.log import TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

LEFT, RIGHT = KeyRange.split(2)
CHANGELOG = TopicPartition("app-windows-changelog", 0)
KEYS = [b"%d" % number for number in range(20)]
SIZE_MS = 100
ADDITIONAL_MS = 50


def windowed() -> Topology:
    builder = StreamsBuilder("app")
    numbers = builder.stream("in", key=serdes.text, value=serdes.raw)
    windows = TimeWindows(milliseconds=SIZE_MS)
    numbers.group_by_key().windowed_by(windows).count(store="windows")
    return builder.build()


def sliding() -> Topology:
    builder = StreamsBuilder("app")
    numbers = builder.stream("in", key=serdes.text, value=serdes.raw)
    windows = SlidingWindows(
        difference=timedelta(milliseconds=SIZE_MS), grace=timedelta(0)
    )
    numbers.group_by_key().windowed_by(windows).count(store="windows")
    return builder.build()


class Purged(Engine):
    """An engine whose window changelogs are purged by the test."""

    def __init__(self, guarantee: str, topology: Topology) -> None:
        super().__init__(
            topology,
            {"in": 1},
            processing_guarantee=guarantee,
            interval_s=0.005,
        )
        membership = Membership(self.log, self.member.sure)
        stores = WindowStores(
            lambda _: topology.subtopologies[0],
            lambda spec: self.changelog(spec.name),
            ADDITIONAL_MS,
        )
        self.purge = WindowPurge(membership, stores, self.standing)

    def standing(self) -> Standing:
        tasks = {id_: task for id_, (task, _) in self.tasks.items()}
        return Standing(states={}, tasks=tasks)

    def count_at(self, time_ms: int) -> None:
        """Count a record of each key at this time; wait until that is committed."""
        self.write("in", [(key, b"", time_ms) for key in KEYS])
        self.settle()

    def kept(self) -> list[int]:
        """Return the times of the changelog's records."""
        return list(self.read(CHANGELOG.topic).timestamps)

    def purged_to(self, time_ms: int, patience_s: float = PATIENCE_S) -> bool:
        """Whether a purge leaves no record that is older. Waits for what the owner of
        hash 0 knows of its siblings, and commits.
        """

        def purged() -> bool:
            self.follower.poll(0.01)
            self.purge.purge()
            return min(self.kept(), default=time_ms) >= time_ms

        return wait_until(purged, patience_s)


@pytest.fixture(params=[EXACTLY, AT_LEAST])
def engine(request: pytest.FixtureRequest) -> Iterator[Purged]:
    made = Purged(request.param, windowed())
    made.start()
    yield made
    made.stop()


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [(WHOLE,), (LEFT, RIGHT)])
def test_windows_that_have_expired_for_all_siblings_are_deleted(
    engine: Purged, ranges: tuple[KeyRange, ...]
) -> None:
    for key_range in ranges:
        engine.open(key_range)
    for time_ms in (0, 100, 200, 300):
        engine.count_at(time_ms)
    # Stream time 300: windows from 201 on are open or kept, and 50 ms more.
    assert engine.purged_to(200)
    assert sorted({*engine.kept()}) == [200, 300], "no window that is kept is deleted"


def test_a_sibling_that_is_behind_keeps_what_is_open_for_it(engine: Purged) -> None:
    engine.open(LEFT)
    right = engine.open(RIGHT)
    engine.count_at(100)
    engine.close(right)
    engine.count_at(1000)
    engine.count_at(2000)
    assert not engine.purged_to(101, 0.3), "the range without an owner stands at 100"
    assert set(engine.kept()) == {100, 1000, 2000}
    engine.open(RIGHT)
    engine.count_at(3000)
    engine.count_at(4000)
    assert engine.purged_to(3900)


def test_a_range_that_does_not_own_hash_0_deletes_nothing(engine: Purged) -> None:
    engine.open(RIGHT)
    engine.count_at(100)
    engine.count_at(2000)
    assert not engine.purged_to(101, 0.3)


def test_the_windows_that_a_sliding_window_will_need_stay() -> None:
    """The newest of them begins a window's size before stream time."""
    made = Purged(EXACTLY, sliding())
    made.start()
    made.open(WHOLE)
    for time_ms in (1000, 1100, 1300, 1400):
        made.count_at(time_ms)
    assert made.purged_to(1100)
    assert min(made.kept()) == 1100
    made.stop()


@pytest.mark.parametrize("why", ["it is no member", "the topic is another one"])
def test_a_process_that_wakes_deletes_nothing_of_a_changelog_that_was_made_anew(
    engine: Purged, why: str
) -> None:
    task = engine.open(WHOLE)
    engine.count_at(100)
    engine.count_at(2000)
    if why == "it is no member":
        engine.member.answered = False
    else:
        task.state.topic_ids["windows"] = engine.log.topic_id(CHANGELOG.topic)
        engine.log.delete_topics([CHANGELOG.topic])
        engine.log.create_topics([TopicSpec(CHANGELOG.topic, 1)])
        engine.write(CHANGELOG.topic, [(b"k", b"v", 100)], partition=0)
    assert not engine.purged_to(101, 0.3)


def test_brokers_are_asked_again_only_when_a_tenth_of_what_is_kept_has_passed(
    engine: Purged, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    offset_at = engine.log.offset_at

    def counted(partition: TopicPartition, time_ms: int) -> int:
        asked.append(time_ms)
        return offset_at(partition, time_ms)

    monkeypatch.setattr(engine.log, "offset_at", counted)
    engine.open(WHOLE)
    engine.count_at(1000)
    assert engine.purged_to(0)
    for _ in range(3):
        engine.purge.purge()
    assert len(asked) == 1
    engine.count_at(1100)
    assert wait_until(lambda: engine.purged_to(0) and len(asked) == 2, PATIENCE_S)
