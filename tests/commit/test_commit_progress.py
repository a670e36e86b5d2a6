import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.offset_runs import above, normalise
from coopstreams.commit.progress import Author, Progress, plan
from coopstreams.commit.record import (
    Ahead,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from coopstreams.commit.view import CommitView, PartitionStart
from coopstreams.log.log import Position
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash, offset_hash
from coopstreams.topology.naming import COMMIT_TOPIC

AT = TopicPartition("orders", 0)
COMMITS = TopicPartition(COMMIT_TOPIC, 7)
LEFT, RIGHT = KeyRange.split(2)
AUTHOR = Author("g", 5, "app-0-1")


class Known(CommitView):
    """A view that was read up to offset 42."""

    partition = COMMITS
    tail = 42


def columns(start: int, stop: int, *, headers: bool = False) -> Columns:
    """Return records with keys, except every fifth."""
    offsets = range(start, stop)
    keys = [None if offset % 5 == 0 else b"k%d" % offset for offset in offsets]
    some: list[Headers | None] | None = (
        [[("n", b"%d" % offset)] for offset in offsets] if headers else None
    )
    return Columns(
        keys,
        [b"%d" % offset for offset in offsets],
        list(offsets),
        list(offsets),
        list(offsets),
        some,
    )


def hash_of(offset: int) -> int:
    return offset_hash(offset) if offset % 5 == 0 else key_hash(b"k%d" % offset)


def opened(
    *segments: Segment,
    term: int = 1,
    committed: Committed | None = None,
    claim: bool = False,
) -> Progress:
    key_range = KeyRange(segments[0].key_range.start, segments[-1].key_range.end)
    return Progress(
        key_range, {AT: PartitionStart(term, segments, committed, claim)}, AUTHOR
    )


def test_times_of_operators_are_those_behind_what_was_reached() -> None:
    """A part that is ahead keeps its own times until the task has reached it."""
    task = opened(Segment(LEFT, 10), Segment(RIGHT, 30, operator_times=((1, 7),)))
    task.advance(AT, 20, 19)
    task.tell(AT, ((1, 5),))
    assert [(at.position, at.operator_times) for at in task.segments(AT)] == [
        (20, ((1, 5),)),
        (30, ((1, 7),)),
    ]
    task.advance(AT, 40, 39)
    task.tell(AT, ((1, 9),))
    assert task.lowest(AT) == Segment(WHOLE, 40, 39, operator_times=((1, 9),))
    assert task.records(AT) == []
    assert task.plain(AT, Known("g")) == Committed(40, 39, 1, operator_times=((1, 9),))


def test_parts_that_are_read_alike_keep_their_births_until_the_task_has_reached_them() -> (
    None
):
    task = opened(Segment(LEFT, 30, 50), Segment(RIGHT, 30, 60))
    task.by_birth = frozenset({AT.topic})
    assert task.lowest(AT).stream_time == 50
    task.born_up_to(AT, 40, Ahead(40, 55, 40))
    assert [at.stream_time for at in task.segments(AT)] == [55, 60]
    task.born_up_to(AT, 40, Ahead(40, 70, 40))
    assert task.segments(AT) == (Segment(WHOLE, 40, 70),)


def test_in_the_usual_case_a_batch_comes_back_as_it_is() -> None:
    task = opened(Segment(WHOLE, 10))
    batch = columns(10, 30)
    assert task.unseen(AT, batch) is batch
    task.advance(AT, 30, 29)
    assert task.position(AT) == Position(30, 29)


def test_a_reader_that_goes_back_for_a_sibling_repeats_nothing() -> None:
    task = opened(Segment(WHOLE, 10))
    task.advance(AT, 30, 29)
    assert list(task.unseen(AT, columns(5, 25)).offsets) == []
    task.advance(AT, 25, 24)
    assert task.position(AT) == Position(30, 29)
    assert list(task.unseen(AT, columns(25, 40)).offsets) == list(range(30, 40))


def test_ranges_that_merge_while_each_has_many_records_waiting_commit_in_pieces() -> (
    None
):
    """One individual commit of all of them would be larger than Kafka takes."""
    runs = tuple((2 * at + 1, 2 * at + 1) for at in range(10_000))
    task = opened(
        *(
            Segment(part, number, runs=above(runs, number))
            for number, part in enumerate(KeyRange.split(8))
        ),
        term=7,
        claim=True,
    )
    claimed = dict(task.records(AT, claim=True))
    assert len(claimed) > 1
    assert all(len(value) < 200_000 for value in claimed.values())
    view = CommitView(AUTHOR.group)
    for key, value in claimed.items():
        view.apply(key, value)
    assert view.open(AT, WHOLE, None, Position(0)).segments == task.segments(AT)
    task.committed()
    task.advance(AT, 30_000, 5)
    later = dict(task.records(AT))
    assert later.keys() == claimed.keys(), "a key of the commit topic has one writer"
    for key, value in later.items():
        view.apply(key, value)
    assert view.open(AT, WHOLE, None, Position(0)).segments == (
        Segment(WHOLE, 30_000, 5),
    )


def test_the_lag_of_a_task_is_measured_from_the_part_of_its_range_that_is_furthest_behind() -> (
    None
):
    task = opened(Segment(LEFT, 10), Segment(RIGHT, 30))
    assert task.durable(AT) == 10
    task.advance(AT, 40, 39)
    assert task.durable(AT) == 10
    task.records(AT)
    task.committed()
    assert task.durable(AT) == 40


segments = st.tuples(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=3),
)
batches = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=8)


@given(st.lists(segments, min_size=1, max_size=4), batches, st.booleans())
def test_every_record_is_handed_out_once_and_none_that_was_done(
    parts: list[tuple[int, list[tuple[int, int]]]],
    batches: list[tuple[int, int]],
    headers: bool,
) -> None:
    ranges = KeyRange.split(len(parts))
    done, inherited = set(), []
    for key_range, (position, runs) in zip(ranges, parts, strict=True):
        above = normalise((position + a, position + a + b) for a, b in runs)
        inherited.append(Segment(key_range, position, position - 1, above))
        finished = set(range(position)) | {
            offset for a, b in above for offset in range(a, b + 1)
        }
        done |= {offset for offset in finished if hash_of(offset) in key_range}
    task = opened(*inherited)
    assert task.position(AT).offset == min(position for position, _ in parts)
    for back, length in batches:
        reached = task.position(AT).offset
        start = max(0, reached - back)
        todo = task.unseen(AT, columns(start, start + length, headers=headers))
        assert list(todo.offsets) == [
            offset for offset in range(start, start + length) if offset not in done
        ]
        assert list(todo.values) == [b"%d" % offset for offset in todo.offsets]
        assert todo.headers is None or [
            value for ((_, value),) in (h for h in todo.headers if h)
        ] == list(todo.values)
        done |= set(todo.offsets)
        task.advance(AT, start + length, start + length - 1)
        assert task.position(AT) == Position(
            max(reached, start + length), max(reached, start + length) - 1
        )


def decoded(key: bytes, value: bytes | None) -> tuple[CommitKey, CommitValue | None]:
    parsed = decode_key(key)
    return parsed, None if value is None else decode_value(value, parsed.key_range)


def test_a_part_writes_a_record_when_it_moved_and_only_then() -> None:
    task, view = opened(Segment(RIGHT, 10), term=3), Known("g")
    assert not task.moved
    assert plan([task], view).records == []
    task.advance(AT, 20, 99)
    assert task.moved
    commit = plan([task], view)
    assert [decoded(*record) for record in commit.records] == [
        (
            CommitKey("g", *AT, RIGHT, 3, 5),
            CommitValue("app-0-1", (Segment(RIGHT, 20, 99),)),
        ),
    ]
    assert commit.offsets == {COMMITS: (42, "")}
    task.committed()
    assert not task.moved
    assert plan([task], view).records == []


def test_a_commit_that_was_not_confirmed_is_planned_again() -> None:
    task, view = opened(Segment(RIGHT, 10)), Known("g")
    task.advance(AT, 20, 99)
    first = plan([task], view)
    assert task.moved
    assert plan([task], view) == first


def test_the_stream_time_of_what_is_on_its_way_is_told_before_it_counted() -> None:
    task, view = opened(Segment(LEFT, 50, 49), Segment(RIGHT, 30, 29)), Known("g")
    assert task.stream_time(AT) == 49
    task.advance(AT, 60, 77)
    assert task.stream_time(AT) == 49
    plan([task], view)
    assert task.stream_time(AT) == 77
    task.committed()
    assert task.stream_time(AT) == 77


def test_a_whole_range_task_writes_the_plain_offset_and_no_record() -> None:
    task = opened(Segment(WHOLE, 10), term=4)
    task.advance(AT, 20, 99)
    commit = plan([task], Known("g"))
    assert (commit.records, commit.offsets) == ([], {AT: (20, "ic 99 4")})


def test_a_whole_range_task_writes_a_record_beside_the_plain_offset_while_its_parts_differ() -> (
    None
):
    view = Known("g")
    task = opened(Segment(LEFT, 50, 49), Segment(RIGHT, 30, 29), term=4)
    commit = plan([task], view)
    assert [
        value and value.segments
        for _, value in (decoded(*record) for record in commit.records)
    ] == [(Segment(LEFT, 50, 49), Segment(RIGHT, 30, 29))]
    assert commit.offsets == {AT: (30, "ic 29 4 4")}
    task.advance(AT, 60, 59)
    commit = plan([task], view)
    assert (commit.records, commit.offsets) == ([], {AT: (60, "ic 59 4")})


def test_a_whole_range_task_that_has_written_a_record_writes_one_with_each_commit() -> (
    None
):
    """If the group's offsets expire, an earlier record with runs would count, below the
    state.
    """
    view = Known("g")
    task = opened(Segment(WHOLE, 10), term=4)
    task.stand(AT, [Segment(WHOLE, 16, 99, ((17, 17),))])
    assert len(plan([task], view).records) == 1
    task.committed()
    task.stand(AT, [Segment(WHOLE, 18, 99)])
    commit = plan([task], view)
    assert [
        value and value.segments
        for _, value in (decoded(*record) for record in commit.records)
    ] == [(Segment(WHOLE, 18, 99),)]
    assert commit.offsets == {AT: (18, "ic 99 4")}


@pytest.mark.parametrize("key_range", [WHOLE, LEFT])
def test_whoever_writes_the_first_record_of_a_source_writes_one_of_each(
    key_range: KeyRange,
) -> None:
    """If the group's offsets expire, a source without an individual commit would
    restart, below the state of the others.
    """
    view, other = Known("g"), TopicPartition("other", 0)
    starts = {
        at: PartitionStart(
            4, (Segment(key_range, 10),), Committed(10, -1, 3), claim=False
        )
        for at in (AT, other)
    }
    task = Progress(key_range, starts, Author("g", 5, "app-0-1"))
    assert plan([task], view).records == []
    task.committed()
    task.stand(AT, [Segment(key_range, 16, 99, ((17, 17),))])
    commits = [decoded(*record) for record in plan([task], view).records]
    assert [(key.topic, value and value.segments) for key, value in commits] == [
        ("orders", (Segment(key_range, 16, 99, ((17, 17),)),)),
        ("other", (Segment(key_range, 10),)),
    ]
    task.committed()
    task.stand(AT, [Segment(key_range, 18, 99)])
    assert [decoded(*record)[0].topic for record in plan([task], view).records] == [
        "orders"
    ]


def test_the_owner_of_hash_0_mirrors_the_stable_offset_also_when_only_siblings_moved() -> (
    None
):
    view = Known("g")
    left = CommitKey("g", *AT, LEFT, 2, 5)
    right = CommitKey("g", *AT, RIGHT, 2, 5)
    view.apply(
        encode_key(left), encode_value(CommitValue("a", (Segment(LEFT, 50, 49),)))
    )
    view.apply(
        encode_key(right), encode_value(CommitValue("b", (Segment(RIGHT, 30, 29),)))
    )
    task = opened(Segment(LEFT, 50, 49), term=2, committed=Committed(20, 19, 1))
    sibling = opened(Segment(RIGHT, 30, 29), term=2)
    assert task.mirror_due(view)
    assert not sibling.mirror_due(view)
    assert plan([sibling, task], view).offsets == {AT: (30, "ic 29 1 2")}
    task.committed()
    assert not task.mirror_due(view)
    view.apply(
        encode_key(right), encode_value(CommitValue("b", (Segment(RIGHT, 40, 39),)))
    )
    assert task.mirror_due(view)
    assert not task.moved


def test_tombstones_go_out_beside_a_record_and_by_the_owner_of_the_first_hash() -> None:
    view = Known("g")
    old = encode_key(CommitKey("g", *AT, WHOLE, 1, 1))
    for key_range, term in ((WHOLE, 1), (LEFT, 2), (RIGHT, 2)):
        view.apply(
            encode_key(CommitKey("g", *AT, key_range, term, 1)),
            encode_value(CommitValue("a", (Segment(key_range, 10),))),
        )
    left, right = opened(Segment(LEFT, 10), term=2), opened(Segment(RIGHT, 10), term=2)
    assert plan([left], view).records == []
    for task in (left, right):
        task.advance(AT, 20, 9)
    assert plan([left], view).records[1:] == [(old, None)]
    assert plan([right], view).records[1:] == []


def test_a_claim_repeats_what_was_inherited_where_one_is_needed() -> None:
    view = Known("g")
    contested, alone = (
        opened(Segment(LEFT, 10, 5), term=2, claim=True),
        opened(Segment(WHOLE, 10, 5), term=2),
    )
    commit = plan([contested], view, claim=True)
    assert [decoded(*record)[1] for record in commit.records] == [
        CommitValue("app-0-1", (Segment(LEFT, 10, 5),))
    ]
    assert commit.offsets == {COMMITS: (42, "")}
    commit = plan([alone], view, claim=True)
    assert (commit.records, commit.offsets) == ([], {AT: (10, "ic 5 2")})


def test_a_thread_without_tasks_still_has_something_to_fence_with() -> None:
    assert plan([], Known("g")).offsets == {COMMITS: (42, "")}


def test_a_whole_range_task_beside_individual_commits_writes_its_own_with_each_that_says_something_new() -> (
    None
):
    task, view = opened(Segment(WHOLE, 10), term=4, claim=True), Known("g")
    said: list[int] = []
    for reached in (10, 20, 20, 30):
        task.advance(AT, reached, 99)
        commit = plan([task], view)
        assert commit.offsets == {AT: (reached, f"ic {99 if reached > 10 else -1} 4")}
        said += [
            decode_value(value, WHOLE).segments[0].position
            for _, value in commit.records
            if value
        ]
        task.committed()
    assert said == [10, 20, 30]
