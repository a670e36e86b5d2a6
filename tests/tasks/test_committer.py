"""The order of a commit: records, fence, database; and the state after a refused
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from coopstreams.common.host import SYSTEM, Host, System
from coopstreams.dev.process import wait_until
from coopstreams.log.log import GroupFence, TopicSpec
from coopstreams.state import layout
from coopstreams.state.views import KeyRangeView
from coopstreams.tasks import committer
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import (
    DeliveryError,
    FencedError,
    LogError,
    MembershipLostError,
    UnknownTopicError,
)
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine, counting

BOTH = pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
LEFT, RIGHT = KeyRange.split(2)
SOURCE = TopicPartition("in", 0)
CHANGELOG = "app-counts-changelog"


def engine(guarantee: str, keys: list[str], host: Host = SYSTEM) -> Engine:
    made = Engine(
        counting(), {"in": 1, "out": 1}, host=host, processing_guarantee=guarantee
    )
    made.write("in", [(key.encode(), b"", at) for at, key in enumerate(keys)])
    return made


def in_database(made: Engine) -> dict[bytes, int]:
    [spec] = made.stores
    return {
        row.key: serdes.int64.decode(row.value)
        for row in KeyRangeView(made.databases[0], spec, [WHOLE]).range()
    }


@BOTH
def test_all_records_are_in_the_log_when_the_fence_is_asked(guarantee: str) -> None:
    made = engine(guarantee, list("abcdefgh"))
    task = made.task(LEFT)
    made.committers[0].claim(task, [])
    made.process(task)
    mine = len(made.read("out", committed_only=False))
    assert 0 < mine < 8
    before, made.at_fence = made.log.end_offset(made.follower.partition), []
    made.committers[0].commit([task])
    [fence] = made.at_fence
    assert (fence["out"], fence[CHANGELOG]) == (mine, len(made.read(CHANGELOG)))
    assert fence[COMMIT_TOPIC] == before + 1, (
        "one individual commit for one task and source"
    )


def test_at_least_once_results_are_in_the_log_before_the_state_that_has_told_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(AT_LEAST, ["a", "b", "a"])
    task = made.task(WHOLE)
    made.process(task)
    writer, rows = made.committers[0]._writer, []
    flush = writer.flush

    def flushing(timeout_s: float) -> None:
        rows.append(len(made.read(CHANGELOG)))
        flush(timeout_s)

    monkeypatch.setattr(writer, "flush", flushing)
    made.committers[0].commit([task])
    assert rows[:2] == [0, 2]


def test_at_least_once_versions_that_have_ended_are_in_the_log_before_the_rows_that_have_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that is repeated finds its own version in the row, and no longer the one
    that it has ended.
    """
    builder = StreamsBuilder("app")
    builder.table(
        "in", key=serdes.text, value=serdes.raw, store="rows", history=ms(3_600_000)
    )
    made = Engine(builder.build(), {"in": 1}, processing_guarantee=AT_LEAST)
    made.write("in", [(b"a", b"first", 0), (b"a", b"second", 1), (b"b", b"only", 2)])
    task = made.task(WHOLE)
    made.process(task)
    writer, lengths = made.committers[0]._writer, []
    flush = writer.flush

    def flushing(timeout_s: float) -> None:
        flush(timeout_s)
        lengths.append(
            tuple(
                len(made.read(f"app-{store}-changelog"))
                for store in ("rows-history", "rows")
            )
        )

    monkeypatch.setattr(writer, "flush", flushing)
    made.committers[0].commit([task])
    assert list(dict.fromkeys(lengths)) == [(0, 0), (1, 0), (1, 2)]


@BOTH
def test_whatever_a_commit_waits_for_brokers_with_is_named(
    monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """While they are away a supervisor restarts no process whose thread says that it
    waits for them.
    """
    made = engine(guarantee, ["a", "b", "a"])
    task = made.task(WHOLE)
    writer, asking, seen = (
        made.committers[0]._writer,
        made.committers[0].asking,
        set[str](),
    )

    def looking(name: str) -> Callable[..., Any]:
        call = getattr(writer, name)

        def looked(*given: Any, **options: Any) -> Any:
            assert asking.asked_at is not None, name
            seen.add(name)
            return call(*given, **options)

        return looked

    for name in ("begin", "append", "flush", "delivered_to", "send_offsets", "commit"):
        monkeypatch.setattr(writer, name, looking(name))
    made.process(task)
    assert asking.waiting is None
    made.committers[0].commit([task])
    assert asking.waiting is None
    both = {"append", "flush", "delivered_to"}
    assert seen == (
        both | {"begin", "send_offsets", "commit"} if guarantee == EXACTLY else both
    )


@BOTH
def test_a_commit_makes_everything_visible_and_only_then_the_database_has_it(
    guarantee: str,
) -> None:
    made = engine(guarantee, ["a", "b", "a"])
    task = made.task(WHOLE)
    made.process(task)
    assert in_database(made) == {}
    assert len(made.read("out")) == (0 if guarantee == EXACTLY else 3)
    made.committers[0].commit([task])
    assert in_database(made) == {b"a": 2, b"b": 1}
    assert dict(
        zip(made.read(CHANGELOG).keys, made.read(CHANGELOG).values, strict=True)
    ) == {
        b"a": serdes.int64.encode(2),
        b"b": serdes.int64.encode(1),
    }
    assert made.log.committed("app")[SOURCE][0] == 3
    assert task.progress.durable(SOURCE) == 3


@BOTH
def test_what_a_sibling_wrote_since_need_not_be_read_by_a_task_that_had_nothing_to_do(
    guarantee: str,
) -> None:
    made = engine(guarantee, list("abcdefgh"))
    tasks = [made.task(LEFT), made.task(RIGHT)]
    for task in tasks:  # one by one
        made.committers[0].claim(task, [])
        made.process(task)
        made.committers[0].commit(tasks)
    left, right = (
        made.databases[0].checkpoints("counts").offset(layout.groups_of(half))
        for half in (LEFT, RIGHT)
    )
    assert left == right
    last = max(made.read(CHANGELOG).offsets)
    assert left is not None
    assert last < left <= made.log.end_offset(TopicPartition(CHANGELOG, 0))
    assert in_database(made) == {key.encode(): 1 for key in "abcdefgh"}


def test_what_a_task_of_another_partition_has_committed_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).to("out")
    made = Engine(builder.build(), {"in": 2, "out": 1}, processing_guarantee=AT_LEAST)
    tasks = [made.task(WHOLE, partition) for partition in range(2)]
    written: list[Mapping[TopicPartition, tuple[int, str]]] = []
    commit = made.member.commit

    def noted(
        offsets: Mapping[TopicPartition, tuple[int, str]], fence: GroupFence
    ) -> None:
        written.append(offsets)
        commit(offsets, fence)

    monkeypatch.setattr(made.member, "commit", noted)
    for number, task in enumerate(tasks):
        made.committers[0].claim(task, tasks[:number])
    for number, task in [*enumerate(tasks), (0, tasks[0])]:
        written.clear()
        made.write("in", [(b"a", b"", 1)], partition=number)
        made.process(task)
        made.committers[0].commit(tasks)
        assert [set(offsets) for offsets in written] == [{TopicPartition("in", number)}]
    assert [
        made.log.committed("app")[TopicPartition("in", number)][0]
        for number in range(2)
    ] == [2, 1]


@BOTH
def test_the_checkpoint_lies_behind_the_changelog_records_and_not_beyond_the_log(
    guarantee: str,
) -> None:
    made = engine(guarantee, ["a", "b", "c"])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].commit([task])
    checkpoint = made.databases[0].checkpoints("counts").offset(ALL_GROUPS)
    assert checkpoint is not None
    last = made.read(CHANGELOG).offsets[-1]
    assert last < checkpoint <= made.log.end_offset(TopicPartition(CHANGELOG, 0))


@BOTH
def test_a_generation_that_is_over_commits_nothing_that_counts(guarantee: str) -> None:
    made = engine(guarantee, ["a", "b"])
    task = made.task(WHOLE)
    made.process(task)
    made.generation = 2
    with pytest.raises(FencedError, match="generation 1 is over"):
        made.committers[0].commit([task])
    task.discard()
    made.committers[0].abort()
    assert made.committers[0].asking.waiting is None, "nobody is waited for any more"
    assert in_database(made) == {}
    assert made.log.committed("app") == {}
    if guarantee == EXACTLY:
        assert [
            len(made.read(topic)) for topic in ("out", CHANGELOG, COMMIT_TOPIC)
        ] == [0, 0, 0]
    made.member.generation = 2
    again = made.task(WHOLE)
    made.process(again)
    made.committers[0].commit([again])
    assert in_database(made) == {b"a": 1, b"b": 1}
    assert made.log.committed("app")[SOURCE][0] == 2


@BOTH
def test_work_of_an_earlier_epoch_is_not_committed_under_a_new_identity(
    guarantee: str,
) -> None:
    made = engine(guarantee, ["a"])
    task = made.task(WHOLE)
    made.process(task)
    made.member.epoch = 2
    with pytest.raises(MembershipLostError):
        made.committers[0].commit([task])
    made.committers[0].abort()
    assert made.log.committed("app") == {}
    assert in_database(made) == {}


def test_tasks_of_two_epochs_are_not_mixed_in_one_commit() -> None:
    made = engine(EXACTLY, ["a"])
    old = made.task(LEFT)
    made.committers[0].begin(old)
    made.member.epoch = 2
    with pytest.raises(
        MembershipLostError,
        match="opened in epoch 2 of the membership, but the commit under way is of epoch 1",
    ):
        made.committers[0].begin(made.task(RIGHT))


def test_at_least_once_writes_no_changelog_while_the_group_does_not_answer() -> None:
    made = engine(AT_LEAST, ["a"])
    task = made.task(WHOLE)
    made.process(task)
    made.member.answered = False
    with pytest.raises(MembershipLostError, match="another member may have its tasks"):
        made.committers[0].commit([task])
    assert len(made.read(CHANGELOG)) == 0
    assert made.at_fence == []


def test_at_least_once_writes_no_result_while_the_group_does_not_answer() -> None:
    made = engine(AT_LEAST, ["a"])
    task = made.task(WHOLE)
    made.member.answered = False
    with pytest.raises(MembershipLostError, match="another member may have its tasks"):
        made.process(task)
    assert len(made.read("out")) == 0


def test_at_least_once_writes_no_time_mark_while_the_group_does_not_answer() -> None:
    """The records are in the log already, so no other check comes before the marks."""
    builder = StreamsBuilder("app")
    moved = builder.stream("in", key=serdes.raw, value=serdes.raw).group_by(
        lambda _, value: value, key=serdes.raw
    )
    moved.windowed_by(TimeWindows(milliseconds=10)).count(store="counts")
    topology = builder.build()
    (timed,) = topology.subtopologies[1].topics
    made = Engine(topology, {"in": 1, timed: 1}, processing_guarantee=AT_LEAST)
    made.write("in", [(b"a", b"x", 5)])
    task = made.task(WHOLE)
    made.process(task)
    made.committers[0].write_outputs(task)
    assert len(made.read(timed)) == 1
    made.member.answered = False
    with pytest.raises(MembershipLostError, match="another member may have its tasks"):
        made.committers[0].commit([task])
    assert len(made.read(timed)) == 1
    assert made.at_fence == []
    made.member.answered = True
    made.committers[0].commit([task])
    assert len(made.read(timed)) == 2, "the mark was due"


@BOTH
def test_at_least_once_no_record_is_waited_for_longer_than_the_tasks_are_certain(
    guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be sent when the brokers can be reached again, and would cover what a
    successor has written meanwhile.
    """
    made = engine(guarantee, ["a", "b"])
    task, waits = made.task(WHOLE), []
    made.process(task)
    writer = made.committers[0]._writer
    flush = writer.flush

    def flushing(timeout_s: float) -> None:
        waits.append(timeout_s)
        flush(timeout_s)

    monkeypatch.setattr(writer, "flush", flushing)
    made.member.certain_s = 3.0
    made.committers[0].commit([task])
    assert waits == ([15.0] if guarantee == EXACTLY else [3.0] * 3)


def test_at_least_once_positions_are_not_written_when_what_they_stand_for_is_not() -> (
    None
):
    made = engine(AT_LEAST, ["a"])
    tasks = made.task(LEFT), made.task(RIGHT)
    for task in tasks:
        made.committers[0].claim(task, [])
        made.process(task)
    before = made.log.end_offset(made.follower.partition)
    made.log.delete_topics([CHANGELOG])
    with pytest.raises(DeliveryError, match=CHANGELOG):
        made.committers[0].commit(tasks)
    assert made.log.end_offset(made.follower.partition) == before
    assert in_database(made) == {}


def test_a_task_of_a_part_claims_its_positions_before_it_processes_under_at_least_once_only() -> (
    None
):
    for guarantee, asked in ((AT_LEAST, 2), (EXACTLY, 0)):
        made = engine(guarantee, ["a"])
        made.log.commit_offsets(
            {SOURCE: (0, "ic -1 0")}, GroupFence("app", 1, "member")
        )
        made.at_fence.clear()
        task = made.task(LEFT)
        made.committers[0].claim(task, [])
        assert len(made.at_fence) == asked, (
            "once before the claim is written, and once after"
        )
        assert len(made.read(COMMIT_TOPIC)) == (1 if asked else 0)
        assert [fence[COMMIT_TOPIC] for fence in made.at_fence] == [0, 1][:asked]


def test_first_positions_whose_answer_was_late_do_not_come_after_what_was_committed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, under_way = engine(EXACTLY, ["a"]), []

    def unanswered(
        offsets: Mapping[TopicPartition, tuple[int, str]], fence: GroupFence
    ) -> None:
        under_way.append(partial(made.log.commit_offsets, offsets, fence))
        raise LogError("no answer in time", retryable=True)

    task = made.task(WHOLE)
    with monkeypatch.context() as patched:
        patched.setattr(made.member, "commit", unanswered)
        with suppress(LogError):
            made.committers[0].claim(task, [])
    made.committers[0].claim(task, [])  # as the reopened task does
    made.process(task)
    made.committers[0].commit([task])
    for arrive in under_way:
        arrive()
    assert made.log.committed("app")[SOURCE][0] == 1


def test_what_is_open_is_committed_before_the_first_positions_of_another_task() -> None:
    made = engine(EXACTLY, ["a"])
    left, right = made.task(LEFT), made.task(RIGHT)
    made.committers[0].claim(right, [])
    made.process(right)
    assert len(made.read("out")) == 0
    made.committers[0].claim(left, [right])
    assert len(made.read("out")) == 1


@BOTH
@pytest.mark.parametrize("key_range", [WHOLE, LEFT, RIGHT], ids=str)
def test_a_task_of_which_nothing_was_ever_committed_has_a_position_before_it_processes(
    guarantee: str, key_range: KeyRange
) -> None:
    made = engine(guarantee, ["a"])
    task = made.task(key_range)
    made.committers[0].claim(task, [])
    assert made.log.committed("app")[SOURCE][0] == 0
    fences = len(made.at_fence)
    made.committers[0].claim(made.task(key_range), [])
    assert made.log.committed("app")[SOURCE][0] == 0
    assert guarantee == AT_LEAST or len(made.at_fence) == fences, "once"


@BOTH
def test_without_anything_to_say_nothing_is_written_and_nobody_is_asked(
    guarantee: str,
) -> None:
    made = engine(guarantee, [])
    task = made.task(WHOLE)
    made.committers[0].commit([task])
    assert made.at_fence == []
    assert made.log.end_offset(made.follower.partition) == 0


def test_a_dead_letter_counts_with_the_results_around_it() -> None:
    made = Engine(
        counting(),
        {"in": 1, "out": 1, "dead": 1},
        processing_guarantee=EXACTLY,
        processing_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name="dead",
    )
    failure = Failure(
        "processing", "node", ValueError("no"), SOURCE, 0, b"k", b"v", 5, None
    )
    for commit in (False, True):
        made.write("in", [(b"a", b"", 0)])
        task = made.task(WHOLE)
        made.process(task)
        made.committers[0].dead_letter(failure, [("why", b"no")], "dead")
        if commit:
            made.committers[0].commit([task])
        else:
            task.discard()
            made.committers[0].abort()
        dead = made.read("dead")
        assert list(dead.keys) == ([b"k"] if commit else [])
    assert (list(dead.values), list(dead.timestamps), list(dead.headers or [])) == (
        [b"v"],
        [5],
        [[("why", b"no")]],
    )


@pytest.mark.ci
def test_a_topic_that_is_gone_is_named() -> None:
    made = engine(EXACTLY, [])
    made.committers[0].check_topics()
    made.log.delete_topics(["out"])
    with pytest.raises(
        UnknownTopicError, match="writes to out, which Kafka has no longer"
    ):
        made.committers[0].check_topics()
    made.log.create_topics([TopicSpec("out", 1)])
    made.committers[0].check_topics()


class Wall(System):
    """A machine with a wall clock that the test sets, or that advances by a step at
    each look.
    """

    def __init__(self, step: int = 0) -> None:
        self.ms, self.step = 1000, step

    def wall_ms(self) -> int:
        self.ms += self.step
        return self.ms


def true_ms(made: Engine) -> set[int]:
    return {run.true_ms for run in made.databases[0].checkpoints("counts")}


@BOTH
def test_state_is_true_as_of_the_time_before_the_fence_because_a_process_may_be_stopped_behind_it(
    guarantee: str,
) -> None:
    """The process resumes three days later: other members have written tombstones, and
    compaction has removed them.
    """
    wall = Wall()
    made = engine(guarantee, ["a"], host=wall)

    @contextmanager
    def stopped_behind(epoch: int) -> Iterator[GroupFence]:
        with fence(epoch) as inside:
            yield inside
            wall.ms = 3 * 86_400_000

    task = made.task(WHOLE)
    made.committers[0].claim(task, [])
    made.process(task)
    fence, made.member.fence = made.member.fence, stopped_behind  # type: ignore[method-assign]
    made.committers[0].commit([task])
    assert true_ms(made) == {1000}


def test_state_of_a_task_that_rests_is_true_as_long_as_the_group_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = Wall()
    monkeypatch.setattr(committer, "CONFIRM_S", 0.0)
    made = engine(EXACTLY, ["a"], host=wall)
    task, [at_work] = made.task(WHOLE), made.committers
    made.process(task)
    wall.ms = 2000
    at_work.confirm([task])
    assert true_ms(made) == set(), (
        "an interval is open: what it has written may count or not"
    )
    at_work.commit([task])
    wall.ms = 3000
    at_work.confirm([task])
    assert true_ms(made) == {3000}
    made.member.answered, wall.ms = False, 4000
    at_work.confirm([task])
    assert true_ms(made) == {3000}, "somebody else may have the task"


def test_a_thread_without_work_says_again_and_again_that_its_state_is_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "CONFIRM_S", 0.0)
    made = engine(EXACTLY, ["a"], host=Wall(step=1))
    made.start()
    made.open(WHOLE)
    made.settle()
    assert wait_until(lambda: bool(true_ms(made)), 90)
    [committed] = true_ms(made)
    assert wait_until(lambda: min(true_ms(made)) > committed + 3, 90)
    made.stop()
