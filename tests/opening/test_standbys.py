"""Standbys follow the changelogs of tasks that run elsewhere, and give way to a task that
opens here, which reads only what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.common.host import System
from coopstreams.common.metrics import Metrics
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.restores import Restores
from coopstreams.opening.standbys import (
    EVERY_S,
    PATIENCE,
    RENEWED_S,
    REST_S,
    Standbys,
)
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

LOW, HIGH = (TaskId(0, 0, part) for part in KeyRange.split(2))
TASK = TaskId(0, 0, WHOLE)
CHANGELOG = TopicPartition("counts-log", 0)
KEYS = [b"key-%d" % number for number in range(30)]
ACCEPTABLE = 20
"""The lag with which a warm-up is ready."""
SPEC = StoreSpec("counts", "key_value", text, int64)


class Sleeper(System):
    """A host whose time passes as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall_ms(self) -> int:
        return int(1_700_000_000_000 + self.at * 1000)


class Setting:
    """The standbys of a process, a changelog, and the process's databases."""

    def __init__(self, directory: StateDirectory) -> None:
        builder = StreamsBuilder("app")
        numbers = builder.stream("in", key=text, value=int64)
        numbers.group_by_key().count(store="counts")
        parts = {part.id: part for part in builder.build().subtopologies}
        self.databases = Databases(directory, parts, 1 << 30)
        self.log = MemoryLog()
        self.log.create_topics([TopicSpec(CHANGELOG.topic, 1)])
        self.host = Sleeper()
        self.metrics = Metrics("app", "p")
        self.standbys = Standbys(
            lambda: self.log,
            lambda _: self.restores(),
            self.databases,
            lambda spec: f"{spec.name}-log",
            self.metrics,
            self.host,
            ACCEPTABLE,
            lambda: self.caught_up.append(self.written),
        )
        self.caught_up: list[int] = []
        """How many rows were written whenever a warm-up had got ready."""
        self.written = 0

    def restores(self) -> Restores:
        return Restores(self.log, lambda spec: f"{spec.name}-log", host=self.host)

    def write(self, count: int) -> None:
        """Write rows to the changelog, each with its number as the value."""
        numbers = range(self.written, self.written + count)
        self.log.writer().append(
            CHANGELOG.topic,
            [KEYS[number % 30] for number in numbers],
            [b"%d" % number for number in numbers],
            [0] * count,
            partitions=0,
        )
        self.written += count

    def expected(self, key_range: KeyRange) -> dict[bytes, bytes]:
        return {
            KEYS[number % 30]: b"%d" % number
            for number in range(self.written)
            if key_hash(KEYS[number % 30]) in key_range
        }

    def follow(self, rounds: int = 1) -> None:
        """Let the standbys do what there is to do, in so many rounds."""
        for _ in range(rounds):
            self.host.at += EVERY_S
            while self.standbys.step() or self.standbys.busy:
                pass

    def open(self, task: TaskId) -> tuple[Database, int]:
        """Open a task as the opener does; return its database, and the changelog records
        that this read.
        """
        database = self.databases.enter(task)
        self.standbys.give_way(task)
        restores = self.restores()
        restores.add(task, [SPEC], database, {})
        passed = sum(each.remaining for each in restores.progress(task))
        while restores.step():
            pass
        restores.close()
        return database, passed


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    directory = StateDirectory(tmp_path, "app", 0)
    made = Setting(directory)
    yield made
    made.standbys.close()
    directory.close()


def rows(database: Database, key_range: KeyRange) -> dict[bytes, bytes]:
    first, last = layout.groups_of(key_range)
    return {
        key: layout.unpack(data)[0]
        for key, data in database.scan("counts", range(first, last + 1), None, None)
    }


def lags(setting: Setting) -> Sequence[int]:
    return [
        lag for each in setting.standbys.figures.values() for lag in each.lags.values()
    ]


def test_a_task_reads_only_what_its_standby_has_not(setting: Setting) -> None:
    setting.write(1000)
    setting.standbys.want([TASK])
    setting.follow()
    setting.write(7)
    database, read = setting.open(TASK)
    assert read == 7
    assert rows(database, WHOLE) == setting.expected(WHOLE)
    assert not setting.standbys.figures
    setting.databases.leave(TASK)


def test_a_standby_has_its_key_range_only(setting: Setting) -> None:
    setting.write(100)
    setting.standbys.want([LOW])
    setting.follow()
    database = setting.databases.enter(LOW)
    assert rows(database, WHOLE) == setting.expected(LOW.key_range)
    setting.databases.leave(LOW)


def test_a_task_of_half_the_range_leaves_the_other_half_nothing_to_mix(
    setting: Setting,
) -> None:
    """Its standby has ended: it begins again when the group says so."""
    setting.write(100)
    setting.standbys.want([TASK])
    setting.follow()
    database, read = setting.open(LOW)
    assert read == 0
    setting.write(30)
    setting.follow()
    stale = rows(database, LOW.key_range)
    setting.standbys.want([HIGH])
    setting.follow()
    assert rows(database, LOW.key_range) == stale
    assert rows(database, HIGH.key_range) == setting.expected(HIGH.key_range)
    setting.databases.leave(LOW)


def test_uncommitted_rows_never_reach_a_standby(setting: Setting) -> None:
    setting.write(10)
    setting.standbys.want([TASK])
    setting.follow()
    writer = setting.log.writer("app-0")
    writer.begin()
    writer.append(CHANGELOG.topic, [KEYS[0]], [b"never"], [0], partitions=0)
    setting.host.at += EVERY_S
    for _ in range(20):
        setting.standbys.step()
    assert setting.standbys.busy, "it waits for the end of the transaction"
    database = setting.databases.enter(TASK)
    assert rows(database, WHOLE) == setting.expected(WHOLE)
    writer.abort()
    setting.follow()
    assert rows(database, WHOLE) == setting.expected(WHOLE)
    setting.follow(2)
    assert lags(setting) == [0]
    setting.databases.leave(TASK)


def test_a_changelog_that_is_made_anew_is_followed_from_its_beginning(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.write(50)
    setting.standbys.want([TASK])
    setting.follow()
    setting.log.delete_topics([CHANGELOG.topic])
    with caplog.at_level(logging.WARNING):
        setting.follow()
        setting.host.at += REST_S
        setting.standbys.step()
    assert len([said for said in caplog.messages if said.startswith("standbys:")]) == 1
    setting.log.create_topics([TopicSpec(CHANGELOG.topic, 1)])
    setting.written = 0
    setting.write(3)
    setting.host.at += REST_S
    setting.follow(2)
    database, read = setting.open(TASK)
    assert read == 0
    assert rows(database, WHOLE) == setting.expected(WHOLE)
    setting.databases.leave(TASK)


@pytest.mark.parametrize(("again", "lag"), [(0, 1), (ACCEPTABLE + 1, ACCEPTABLE + 1)])
def test_a_standby_of_a_changelog_that_was_made_anew_is_behind_by_all_of_it(
    setting: Setting, again: int, lag: int
) -> None:
    """Its checkpoint is above the end: it is not ahead."""
    setting.write(2 * ACCEPTABLE)
    setting.standbys.want([TASK])
    setting.follow(2)
    assert lags(setting) == [0]
    setting.log.delete_topics([CHANGELOG.topic])
    setting.log.create_topics([TopicSpec(CHANGELOG.topic, 1)])
    setting.written = 0
    setting.write(again)
    look(setting)
    assert lags(setting) == [lag]
    assert setting.standbys.figures[TASK].ready is (lag <= ACCEPTABLE)


def test_a_quiet_standby_stays_young(setting: Setting) -> None:
    """Nothing is written, so its checkpoint stays true; and says so."""
    setting.write(5)
    setting.standbys.want([TASK])
    setting.follow()
    database = setting.databases.enter(TASK)
    (before,) = database.checkpoints("counts")
    setting.host.at += RENEWED_S
    setting.follow()
    (after,) = database.checkpoints("counts")
    assert after.offset == before.offset
    assert after.true_ms >= before.true_ms + RENEWED_S * 1000
    setting.databases.leave(TASK)


def test_the_lag_is_shown_and_goes_with_the_standby(setting: Setting) -> None:
    setting.write(40)
    setting.standbys.want([TASK])
    setting.host.at += EVERY_S
    setting.standbys.step()
    assert lags(setting) == [40]
    assert (
        b'coopstreams_standby_lag_records{store="counts",task="0_0[0..255]"} 40.0'
        in (setting.metrics.text())
    )
    setting.follow(2)
    assert lags(setting) == [0]
    setting.standbys.want([])
    assert b"standby_lag_records{" not in setting.metrics.text()


def look(setting: Setting) -> None:
    """Let the standbys measure, and do nothing else."""
    setting.host.at += EVERY_S
    setting.standbys._look()
    setting.standbys._publish()


def test_a_warm_up_is_ready_once_it_has_caught_up_and_says_so_once(
    setting: Setting,
) -> None:
    setting.write(1000)
    setting.standbys.want([TASK], [TASK])
    setting.host.at += EVERY_S
    setting.standbys.step()
    figures = setting.standbys.figures[TASK]
    assert (figures.lag, figures.warming, figures.ready) == (1000, True, False)
    assert not setting.caught_up
    setting.follow(2)
    assert setting.standbys.figures[TASK].ready
    assert setting.standbys.figures[TASK].eta_s == 0
    assert setting.caught_up == [1000]
    setting.write(1000)
    look(setting)
    assert setting.standbys.figures[TASK].ready, "it moves: its owner gives it up"
    assert setting.caught_up == [1000]


def test_a_standby_is_ready_while_it_is_near_the_end(setting: Setting) -> None:
    """If it becomes a warm-up then, that is said."""
    setting.write(ACCEPTABLE)
    setting.standbys.want([TASK])
    setting.follow()
    assert setting.standbys.figures[TASK].ready
    setting.write(ACCEPTABLE + 1)
    look(setting)
    assert not setting.standbys.figures[TASK].ready
    assert not setting.caught_up
    setting.standbys.want([TASK], [TASK])
    assert not setting.caught_up
    setting.follow(2)
    assert setting.caught_up == [2 * ACCEPTABLE + 1]


def test_a_part_of_a_warm_up_that_is_ready_is_ready(setting: Setting) -> None:
    """The rest of it has moved here."""
    setting.write(100)
    setting.standbys.want([TASK], [TASK])
    setting.follow(2)
    setting.write(100)
    setting.standbys.want([HIGH], [HIGH])
    look(setting)
    setting.standbys.step()
    assert setting.standbys.figures[HIGH].ready


def test_the_rounds_of_a_warm_up_follow_each_other_until_it_is_ready(
    setting: Setting,
) -> None:
    """Its owner writes more in a second than is acceptable."""
    setting.write(1000)
    setting.standbys.want([TASK], [TASK])
    setting.host.at += EVERY_S
    setting.standbys.step()
    setting.write(500)  # the first round ends without them
    while not setting.caught_up and (setting.standbys.step() or setting.standbys.busy):
        pass
    assert setting.caught_up == [1500], "in the same second"


def test_a_warm_up_that_comes_no_nearer_is_ready_in_the_end(setting: Setting) -> None:
    """Its owner writes as fast as this process reads."""
    setting.write(100)
    setting.standbys.want([TASK], [TASK])
    setting.standbys._begin()
    for _ in range(PATIENCE):
        look(setting)
        setting.write(1)
    assert not setting.standbys.figures[TASK].ready
    look(setting)
    assert setting.standbys.figures[TASK].ready
    assert setting.caught_up == [100 + PATIENCE]


@pytest.mark.parametrize("retryable", [True, False])
def test_a_warm_up_that_fails_is_ready_in_the_end_unless_the_brokers_are_away(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, retryable: bool
) -> None:
    """An error that lasts is shown when the task opens; else all moves would wait."""

    def fail(_: object) -> object:
        raise LogError("no", retryable=retryable)

    monkeypatch.setattr(setting.log, "end_offsets", fail)
    setting.standbys.want([TASK], [TASK])
    for _ in range(int(PATIENCE * EVERY_S / REST_S)):
        assert not setting.caught_up
        setting.host.at += REST_S
        setting.standbys.step()
    assert bool(setting.caught_up) is not retryable


def test_while_a_warm_up_comes_nearer_it_is_waited_for(setting: Setting) -> None:
    setting.standbys.want([TASK], [TASK])
    setting.standbys._begin()
    (standby,) = setting.standbys._standbys.values()
    for lag in range(3 * PATIENCE + ACCEPTABLE, ACCEPTABLE, -1):
        standby.lags = {"counts": lag}
        standby.measured(ACCEPTABLE, warming=True, downloading=False)
        assert not standby.ready
    for _ in range(2 * PATIENCE):
        standby.measured(ACCEPTABLE, warming=True, downloading=True)
    assert not standby.ready, "a snapshot is on its way"


_Step = tuple[str, Any]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 50)),
            st.tuples(st.just("want"), st.sets(st.integers(0, 3))),
            st.tuples(st.just("step"), st.integers(1, 5)),
            st.tuples(st.just("wait"), st.just(0)),
        ),
        max_size=20,
    ),
    st.integers(0, 3),
)
def test_whatever_standbys_come_and_go_a_task_opens_with_all_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[_Step], number: int
) -> None:
    directory = StateDirectory(tmp_path_factory.mktemp("state"), "app", 0)
    setting = Setting(directory)
    tasks = [TaskId(0, 0, part) for part in KeyRange.split(4)]
    for what, how in steps:
        match what:
            case "write":
                setting.write(how)
            case "want":
                setting.standbys.want([tasks[each] for each in sorted(how)])
            case "step":
                for _ in range(how):
                    setting.standbys.step()
            case "wait":
                setting.host.at += EVERY_S
    task = tasks[number]
    database, _ = setting.open(task)
    assert rows(database, task.key_range) == setting.expected(task.key_range)
    setting.standbys.close()
    directory.close()
