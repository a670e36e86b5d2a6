"""The watcher: its measurements, and that it deletes only repartition records that
every owner has processed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coopstreams.common.host import SYSTEM
from coopstreams.dev.process import wait_until
from coopstreams.instance import dispatch, watcher
from coopstreams.instance.purge import Membership, Purge
from coopstreams.instance.task_registry import Standing, TaskRegistry
from coopstreams.instance.topic_changes import TopicChanges
from coopstreams.instance.watcher import Lags, Watcher
from coopstreams.instance.watcher import Watched as Observed
from coopstreams.log.log import TopicSpec
from coopstreams.status import stall_detector
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.events import Failed
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, OffsetOutOfRangeError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.task_id import TaskId
from tests.tasks.called import Gate, finish, forwarding, numbered, runs, until
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine, counting

LEFT, RIGHT = KeyRange.split(2)
SOURCE = TopicPartition("in", 0)
KEYS = [b"%d" % number for number in range(100)]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LOOK_EVERY_S", 0.005)


class Watched(Engine):
    """An engine with watched tasks; `in` is like a repartition topic."""

    def __init__(
        self, guarantee: str, partitions: int = 1, topology: Topology | None = None
    ) -> None:
        counts = {"in": partitions, "app-counts-changelog": partitions, "out": 1}
        super().__init__(
            topology or counting(),
            counts,
            processing_guarantee=guarantee,
            interval_s=0.005,
        )
        self.registry = TaskRegistry()
        self.open_tasks: dict[TaskId, Task] = {}
        self.silent = frozenset[int]()
        self.global_ids: dict[str, str] = {}

        def standing() -> Standing:
            return Standing(
                states=dict(self.registry.states), tasks=dict(self.open_tasks)
            )

        self.detector = StallDetector()
        self.lags = Lags(
            self.log,
            lambda partitions: dict.fromkeys(partitions, self.silent),
            self.metrics,
            self.tallies,
            Observed(
                standing,
                lambda: False,
                self.dispatcher.all_read,
                self.dispatcher.may_not_read,
            ),
            self.detector,
            SYSTEM,
        )
        membership = Membership(self.log, self.member.sure)
        self.purge = Purge(membership, frozenset({"in"}), standing)
        self.topics = TopicChanges(
            self.log,
            lambda spec: self.changelog(spec.name),
            self.global_ids,
            dict,
            standing,
            self.detector,
            self.events.put,
        )
        looks = ((0, self.lags.look), (0, self.purge.purge), (60, self.topics.compare))
        self.watcher = Watcher(looks, self.detector, self.events.put)

    def run(self, *ranges: KeyRange) -> None:
        """Open the tasks of these ranges."""
        for key_range in ranges:
            task = self.open(key_range)
            self.registry.assigned([task.id], [])
            self.registry.opened(task.id)
            self.open_tasks[task.id] = task

    def start_offset(self) -> int:
        return self.log.start_offset(SOURCE)

    def metric(self, name: str) -> float:
        samples = [
            s
            for family in text_string_to_metric_families(self.metrics.text().decode())
            for s in family.samples
        ]
        return sum(sample.value for sample in samples if sample.name == name)


@pytest.fixture(params=[EXACTLY, AT_LEAST])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(request.param)
    made.start()
    yield made
    made.watcher.stop()
    made.stop()


def follow(made: Watched) -> None:
    """Read the commits of others, as the opener does all the time."""
    made.follower.poll(0.01)


def stable(task: Task, source: TopicPartition) -> int | None:
    """Return the stable offset that a task has committed last."""
    committed = task.progress.stable(source)
    return None if committed is None else committed.offset


@pytest.mark.ci
def test_what_all_siblings_have_done_is_deleted(watched: Watched) -> None:
    watched.run(LEFT, RIGHT)
    watched.watcher.start()
    for _ in range(3):
        watched.write("in", [(key, b"", 5) for key in KEYS])
        watched.settle()

        def deleted() -> bool:
            follow(watched)
            watched.dispatcher.move(0)
            return watched.start_offset() == watched.log.end_offset(SOURCE)

        assert wait_until(deleted, 90), (
            watched.start_offset(),
            watched.log.end_offset(SOURCE),
        )


def test_a_partition_in_which_nothing_can_be_deleted_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader may be away for long, and each purge began with it: the others grew
    without bound.
    """
    made = Watched(EXACTLY, partitions=3)
    made.start()
    tasks = [made.open(WHOLE, partition) for partition in range(3)]
    for partition in range(3):
        made.write("in", [(b"k", b"", 5)], partition)
    made.settle()
    assert wait_until(
        lambda: all(stable(task, task.sources[0]) == 1 for task in tasks), 90
    )
    away, tried = {0, 1}, list[int]()

    def delete(source: TopicPartition, *_: object) -> None:
        tried.append(source.partition)
        if source.partition in away:
            raise LogError("its broker is down", retryable=True)

    monkeypatch.setattr(made.log, "delete_before", delete)
    made.open_tasks |= {task.id: task for task in tasks}
    for _ in range(4):
        with suppress(LogError):
            made.purge.purge()
    assert tried == [0, 1, 2, 0, 1]
    away.clear()
    made.purge.purge()
    assert tried[5:] == [0, 1]
    made.stop()


@pytest.mark.parametrize("why", ["it is no member", "the topic is another one"])
def test_a_process_that_wakes_deletes_nothing_of_a_topic_that_a_reset_made_anew(
    why: str,
) -> None:
    made = Watched(EXACTLY)
    made.start()
    task = made.open(WHOLE)
    made.write("in", [(key, b"", 5) for key in KEYS])
    made.settle()
    assert wait_until(lambda: stable(task, SOURCE) == len(KEYS), 90)
    made.open_tasks[task.id] = task
    if why == "it is no member":
        made.member.answered = False
    else:
        task.progress.topic_ids = {"in": made.log.topic_id("in")}
        made.log.delete_topics(["in"])
        made.log.create_topics([TopicSpec("in", 1)])
        with closing(made.log.writer()) as writer:
            writer.append("in", KEYS * 2, [b""] * 200, [5] * 200, partitions=0)
            writer.flush(1)
    made.purge.purge()
    assert made.start_offset() == 0
    if why == "it is no member":
        made.member.answered = True
        made.purge.purge()
        assert made.start_offset() == len(KEYS)
    made.stop()


def test_what_one_sibling_has_not_done_stays(watched: Watched) -> None:
    """No task here has the right half: another instance may own it, or it is moving."""
    watched.run(LEFT)
    watched.watcher.start()
    watched.write("in", [(key, b"", 5) for key in KEYS])
    watched.settle()
    mine = sum(key_hash(key) in LEFT for key in KEYS)
    assert wait_until(
        lambda: watched.metric("coopstreams_processed_records_total") == mine, 90
    )
    follow(watched)
    assert not wait_until(lambda: watched.start_offset() > 0, 0.3)
    watched.run(RIGHT)
    watched.settle()

    def deleted() -> bool:
        follow(watched)
        return watched.start_offset() == len(KEYS)

    assert wait_until(deleted, 90)
    watched.stop()
    assert sum(
        serdes.int64.decode(value or b"") for value in watched.read("out").values
    ) == len(KEYS), "nothing was deleted before it was counted"


def test_lag_and_processed_records_are_measured_and_an_unknown_topic_does_not_end_it(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.run(LEFT, RIGHT)
    watched.watcher.start()
    watched.write("in", [(key, b"", 5) for key in KEYS])
    assert wait_until(
        lambda: watched.metric("coopstreams_lag_records") == 2 * len(KEYS), 90
    ), "each task is behind by all: none has done any"
    watched.settle()
    assert wait_until(lambda: watched.metric("coopstreams_lag_records") == 0, 90)
    assert wait_until(
        lambda: watched.metric("coopstreams_processed_records_total") == len(KEYS), 90
    )
    watched.log.delete_topics(["in"])
    assert wait_until(lambda: "cannot measure lags" in caplog.text, 90)
    assert watched.watcher._thread.is_alive()


def test_a_task_that_is_closed_while_it_is_looked_at_leaves_no_series_behind(
    watched: Watched,
) -> None:
    watched.run(LEFT, RIGHT)
    seen = dict(watched.open_tasks)
    gone = next(id_ for id_ in seen if id_.key_range == LEFT)
    del watched.open_tasks[gone]
    watched.metrics.task_closed(gone)
    watched.lags._watch_tasks(
        seen, {id_: task.figures for id_, task in seen.items()}, {SOURCE: 10}, 0.0
    )
    assert watched.metric("coopstreams_lag_records") == 10, "of the one that stayed"
    assert str(gone) not in watched.metrics.text().decode()


def test_a_task_stands_still_from_before_the_brokers_were_asked(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take seconds to answer when one is lost: for that long the stall had no
    reported reason.
    """
    end_offset, asked, here = (
        watched.log.end_offset,
        list[float](),
        threading.get_ident(),
    )

    def ask(partition: TopicPartition) -> int:
        if threading.get_ident() == here:  # the engine's threads ask, too
            asked.append(time.monotonic())
        return end_offset(partition)

    watched.run(LEFT)
    monkeypatch.setattr(watched.log, "end_offset", ask)
    watched.watcher.look()
    [sample] = watched.detector.samples.values()
    assert sample.moved_at <= asked[0]


def test_a_commit_behind_a_record_that_waits_for_a_call_is_progress() -> None:
    gate = Gate(0)  # the first of its key
    made = Watched(EXACTLY, topology=forwarding(gate))
    made.start()
    made.run(WHOLE)
    [task] = made.open_tasks.values()
    for done in (((1, 7),), ((1, 7), (9, 15))):
        made.write("in", numbered(range(8), keys=8))
        until(partial(lambda done: runs(task) == (0, done), done), made)
        committed = task.progress.committed_segments(SOURCE)
        until(partial(lambda at: task.figures.segments == (at,), committed), made)
        made.watcher.look()
        [sample] = made.detector.samples.values()
    assert sample.committed_at > sample.moved_at
    gate.let_go.set()
    finish(made, 16)


def test_each_leader_that_did_not_answer_has_its_turn(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unavailable leader kept the others from being asked: they were reported as
    not answering for ever.
    """
    away = [TopicPartition("in", number) for number in range(3)]
    monkeypatch.setattr(watcher, "MOST_S", 0.0)  # a look has time for one of them
    reported_end = watched.log.reported_end

    def ask(partition: TopicPartition) -> int:
        if partition in away:
            raise LogError("its broker is down", retryable=True)
        return reported_end(SOURCE)

    monkeypatch.setattr(watched.log, "reported_end", ask)
    unanswered, sources = watched.detector.unanswered, set(away)
    for _ in range(3):
        watched.lags._measure(sources)
    assert unanswered.keys() == sources
    del away[1:]
    for _ in range(6):
        watched.lags._measure(sources)
    assert unanswered.keys() == set(away)


def test_an_open_transaction_that_keeps_records_back_is_named_until_it_ends(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process could not read them either, and the transaction may last for as
    long as its producer wants.
    """
    watched.run(WHOLE)
    [task] = watched.open_tasks
    watched.write("in", [(b"k", b"", 5)])
    other = watched.log.writer("of-another-program")
    other.begin()
    other.append("in", [b"k"] * 3, [b""] * 3, [5] * 3, partitions=0)
    other.flush(1.0)

    def kept_back() -> str:
        watched.dispatcher.move(0)
        watched.watcher.look()
        return watched.detector.kept_back(task)

    watched.settle()
    expected = (
        "an open transaction keeps back what was written to in-0 from offset 1 on"
    )
    assert wait_until(lambda: kept_back() == expected, 90)
    with monkeypatch.context() as later:
        later.setattr(dispatch, "FRESH_S", -1.0)
        assert kept_back() == "", (
            "a control thread that is stuck must not hide behind the reader's last answer"
        )
    other.commit(1.0)
    watched.settle()
    assert wait_until(
        lambda: not kept_back() and watched.metric("coopstreams_lag_records") == 0, 90
    )


def test_a_busy_source_that_stands_still_beside_a_silent_replica_has_a_reason(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.run(LEFT, RIGHT)
    watched.silent, looks = frozenset({2}), watched.detector
    monkeypatch.setattr(stall_detector, "QUIET_S", 0.0)
    watched.watcher.look()
    watched.write("in", [(key, b"", 5) for key in KEYS])
    watched.watcher.look()
    [moved_at] = looks.quiet._moved_at.values()
    watched.watcher.look()
    said = looks.slow(moved_at + 5)
    assert len(said) == 2
    assert all(
        "broker 2 has an in-sync replica of it and does not answer" in why
        for why in said.values()
    )
    watched.silent = frozenset()
    watched.watcher.look()
    assert not any("replica" in why for why in looks.slow(moved_at + 5).values())


def test_a_changelog_that_is_deleted_or_made_anew_while_its_task_runs_has_a_name(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    changelog, look = watched.changelog("counts"), watched.topics.compare
    watched.run(LEFT, RIGHT)
    [left, right] = sorted(watched.open_tasks)
    watched.open_tasks[left].state.topic_ids = {
        "counts": watched.log.topic_id(changelog)
    }  # as after a restore
    watched.open_tasks[right].state.topic_ids = {"counts": ""}  # brokers without ids
    look()
    assert (watched.detector.made_anew, caplog.text) == ({}, "")
    watched.log.delete_topics([changelog])
    look()
    assert watched.detector.made_anew == {
        left: f'{changelog} was deleted: what store "counts" had before is only on this host'
    }
    watched.log.create_topics([TopicSpec(changelog, 1)])
    for _ in range(3):
        look()
    assert "was deleted and made anew" in watched.detector.made_anew[left]
    assert caplog.text.count("Stop all instances and rebuild it from the source") == 1
    watched.open_tasks[left].state.topic_ids = {
        "counts": watched.log.topic_id(changelog)
    }  # it was reopened
    look()
    assert watched.detector.made_anew == {}


def test_a_source_that_is_made_anew_while_its_tasks_run_ends_the_instance_with_the_cure(
    watched: Watched,
) -> None:
    watched.run(LEFT, RIGHT)
    for task in watched.open_tasks.values():
        task.progress.topic_ids = {
            "in": watched.log.topic_id("in")
        }  # as the opener found it
    watched.topics.compare()
    watched.log.delete_topics(["in"])
    watched.topics.compare()  # the reader will report that it is gone
    watched.log.create_topics([TopicSpec("in", 1)])
    with pytest.raises(
        ConfigError,
        match=r"in-0: the topic was deleted and made anew .* `coopstreams group reset app --topic in --to earliest`",
    ):
        watched.topics.compare()


def test_the_topic_of_a_global_table_that_is_made_anew_while_it_is_followed_ends_the_instance(
    watched: Watched,
) -> None:
    watched.log.create_topics([TopicSpec("names", 1), TopicSpec("unread", 1)])
    watched.global_ids |= {
        "names": watched.log.topic_id("names"),
        "unread": "",
    }  # the latter: brokers without ids
    watched.topics.compare()
    watched.log.delete_topics(["names", "unread"])
    watched.topics.compare()
    assert watched.events.empty()
    watched.log.create_topics([TopicSpec("names", 1), TopicSpec("unread", 1)])
    watched.topics.compare()
    told = watched.events.get_nowait()
    assert isinstance(told, Failed)
    assert told.where == "global tables"
    assert isinstance(told.error, OffsetOutOfRangeError)
    assert "deleted and made anew" in str(told.error)
    assert str(told.error).endswith(
        "The next start reads it from its beginning (names)"
    )


def test_an_offset_that_is_gone_is_explained_by_a_source_that_was_made_anew_and_by_nothing_else(
    watched: Watched,
) -> None:
    watched.run(LEFT)
    watched.open_tasks[next(iter(watched.open_tasks))].progress.topic_ids = {
        "in": watched.log.topic_id("in")
    }
    gone, other = (
        Failed(OffsetOutOfRangeError("from offset 21"), "reader"),
        Failed(LogError("another"), "reader"),
    )
    assert watched.topics.explained(gone) is gone
    watched.log.delete_topics(["in"])
    assert watched.topics.explained(gone) is gone
    watched.log.create_topics([TopicSpec("in", 1)])
    assert watched.topics.explained(other) is other
    explained = watched.topics.explained(gone)
    assert explained.where == "reader"
    assert isinstance(explained.error, ConfigError)
    assert "in-0: the topic was deleted and made anew" in str(explained.error)


def test_whatever_ends_the_watcher_is_told(watched: Watched) -> None:
    watched.run(LEFT)
    watched.registry.states = None  # type: ignore[assignment]
    watched.watcher.start()
    told = watched.events.get(timeout=90)
    assert isinstance(told, Failed)
    assert (type(told.error), told.where) == (TypeError, "watcher")
