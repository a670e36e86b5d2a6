"""The progress of a group, read without being a member, on a real Kafka; and resets of
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.admin.group_reset import reset_key, reset_offsets
from coopstreams.commit.follower import Follower
from coopstreams.commit.group_progress import (
    OffsetAndRanges,
    catch_up,
    done_by_all,
    group_offsets,
    list_consumer_group_offsets,
)
from coopstreams.commit.offset_runs import contains
from coopstreams.commit.positions import check_named
from coopstreams.commit.record import (
    PARTITIONS,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    partition_of,
)
from coopstreams.commit.view import CommitView, PartitionStart
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.group_requests import Offsets
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Position
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, GroupError, LogError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.conftest import Kafka
from tests.group.instances import application

LEFT, RIGHT = KeyRange.split(2)
AT = TopicPartition("orders", 0)


@dataclass
class Group:
    """A group without members, whose commits are written by hand."""

    name: str
    log: KafkaLog
    admin: GroupAdmin
    settings: dict[str, str]
    partition: TopicPartition

    def individual(
        self,
        term: int,
        *segments: Segment,
        metadata: str = "",
        transactional_id: str | None = None,
    ) -> None:
        """Write an individual commit; with a transactional id: in a transaction that
        stays open until the log is closed.
        """
        follower = Follower(self.log, self.name)
        key = CommitKey(
            self.name,
            *self.partition,
            KeyRange(segments[0].key_range.start, segments[-1].key_range.end),
            term,
            1,
        )
        writer = self.log.writer(transactional_id)
        if transactional_id:
            writer.begin()
        value = encode_value(CommitValue(transactional_id or "", segments, metadata))
        writer.append(
            follower.partition.topic,
            [encode_key(key)],
            [value],
            [1],
            partitions=follower.partition.partition,
        )
        writer.flush(60)
        follower.close()
        self.open = writer

    def plain(self, offset: int, metadata: str) -> None:
        self.admin.commit({self.partition: (offset, metadata)})

    def listed(self) -> OffsetAndRanges | None:
        return list_consumer_group_offsets(self.settings, self.name)[self.partition]


@pytest.fixture
def group(kafka: Kafka) -> Iterator[Group]:
    settings, name = {"bootstrap.servers": kafka.bootstrap}, kafka.unique("group")
    log = KafkaLog(
        {**settings, "producer.transaction.timeout.ms": 600_000}
    )  # a transaction stays open as long as the test wants
    with GroupAdmin(settings, name) as admin:
        yield Group(
            name, log, admin, settings, TopicPartition(kafka.topic("orders", 2), 0)
        )
    log.close()


# --- reading --------------------------------------------------------------------


@pytest.mark.broker
def test_a_group_of_two_key_ranges_is_where_both_are_done(group: Group) -> None:
    left, right = (
        Segment(LEFT, 50, runs=((55, 59),)),
        Segment(RIGHT, 40, runs=((45, 59),)),
    )
    group.individual(1, left, metadata="half")
    group.individual(2, right, metadata="other half")
    group.plain(40, "ic -1 0")
    assert group.listed() == OffsetAndRanges(
        40, "other half", ((45, 49), (55, 59)), (left, right)
    )


class NothingPlain:
    """A coordinator that has no plain offsets of the group."""

    def committed(self, partitions: Iterable[TopicPartition] | None) -> Offsets:
        return dict.fromkeys(partitions or ())


def test_what_was_committed_since_the_last_look_counts() -> None:
    log = MemoryLog()
    follower, writer = Follower(log, "g"), log.writer()
    for position in (5, 7):
        key, value = (
            CommitKey("g", *AT, WHOLE, 1, 1),
            CommitValue("", (Segment(WHOLE, position),)),
        )
        where = follower.partition
        writer.append(
            where.topic,
            [encode_key(key)],
            [encode_value(value)],
            [1],
            partitions=where.partition,
        )
        assert group_offsets(NothingPlain(), follower, [AT]) == {
            AT: OffsetAndRanges(position, "", (), (Segment(WHOLE, position),))
        }


@pytest.mark.broker
def test_an_ordinary_group_has_an_offset_and_what_was_written_beside_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.plain(7, "file 3")
    monkeypatch.setenv("KAFKA_AT", group.settings["bootstrap.servers"])
    group.settings = {"bootstrap.servers": "${env:KAFKA_AT}"}
    assert group.listed() == OffsetAndRanges(7, "file 3", (), (Segment(WHOLE, 7),))


@pytest.mark.broker
def test_where_a_key_range_never_committed_nothing_is_said(group: Group) -> None:
    asked = [group.partition]
    assert list_consumer_group_offsets(group.settings, group.name) == {}
    assert list_consumer_group_offsets(group.settings, group.name, asked) == {
        group.partition: None
    }
    group.individual(1, Segment(LEFT, 50))
    assert list_consumer_group_offsets(group.settings, group.name, asked) == {
        group.partition: None
    }


@pytest.mark.ci
@pytest.mark.broker
def test_an_open_transaction_that_keeps_the_answer_back_is_named(group: Group) -> None:
    group.individual(1, Segment(WHOLE, 5))
    group.individual(2, Segment(WHOLE, 50), transactional_id=f"{group.name}-writer")
    follower = Follower(group.log, group.name)
    with pytest.raises(
        LogError,
        match=f'A transaction of "{group.name}-writer" of .* is open from there',
    ) as refused:
        catch_up(follower, 4.0)
    assert refused.value.retryable
    group.open.abort()
    catch_up(follower)
    follower.close()
    listed = group.listed()
    assert listed is not None
    assert listed.offset == 5


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_all_have_done_is_the_intersection(
    stands: Sequence[tuple[int, Sequence[tuple[int, int]]]],
) -> None:
    ranges = KeyRange.split(len(stands))
    segments, sets = [], []
    for key_range, (position, gaps) in zip(ranges, stands, strict=True):
        runs, at = [], position
        for gap, more in gaps:
            runs.append((at + gap + 1, at + gap + 1 + more))
            at = runs[-1][1] + 1
        segments.append(Segment(key_range, position, runs=tuple(runs)))
        sets.append(
            {
                offset
                for offset in range(200)
                if offset < position or contains(tuple(runs), offset)
            }
        )
    offset, done = done_by_all(segments)
    assert {
        o for o in range(200) if o < offset or contains(done, o)
    } == set.intersection(*sets)
    assert offset not in set.intersection(*sets)


# --- resetting ------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.parametrize("offset", [10, 90], ids=["backwards", "forwards"])
def test_after_a_reset_every_key_range_stands_there_and_has_done_nothing_above(
    group: Group, offset: int
) -> None:
    group.individual(1, Segment(LEFT, 50, runs=((55, 99),)))
    group.individual(2, Segment(RIGHT, 40))
    group.plain(40, "ic -1 0")
    reset_offsets(group.log, group.admin, {group.partition: offset})
    assert group.listed() == OffsetAndRanges(offset, "", (), (Segment(WHOLE, offset),))


@pytest.mark.broker
def test_a_reset_forwards_moves_only_the_key_ranges_that_stand_before_it_and_forgets_nothing_that_is_done(
    group: Group,
) -> None:
    """The records below were deleted before these key ranges had processed them; others
    had, and some above.
    """
    topic_id = group.log.topic_id(group.partition.topic)
    first, second, third, fourth = KeyRange.split(4)
    group.individual(
        1,
        Segment(first, 30, 5),
        Segment(second, 50, 7, runs=((55, 99), (102, 103))),
        metadata=topic_id,
    )
    group.individual(
        2,
        Segment(third, 80, 9, runs=((82, 82),)),
        Segment(fourth, 40, 6),
        metadata=topic_id,
    )
    group.plain(30, "ic 5 0 2")
    for _ in range(2):  # the second one finds nothing to do
        reset_offsets(group.log, group.admin, {group.partition: 60}, forwards=True)
        assert group.listed() == OffsetAndRanges(
            60,
            "",
            (),
            (
                Segment(first, 60, 6),  # of one position, one time
                Segment(second, 100, 7, runs=((102, 103),)),
                Segment(third, 80, 9, runs=((82, 82),)),
                Segment(fourth, 60, 6),
            ),
        )
    found = group.admin.committed([group.partition])[group.partition]
    assert found is not None
    follower = Follower(group.log, group.name)
    catch_up(follower)
    follower.close()
    plain = Committed.parse(*found)
    assert (plain.offset, plain.stream_time, plain.beside) == (
        60,
        6,
        follower.next_term(group.partition, None) - 1,
    )
    opening = follower.open(group.partition, WHOLE, plain, Position(0))
    assert [segment.position for segment in opening.segments] == [60, 100, 80, 60]
    check_named(
        group.name, {group.partition: opening}, {group.partition.topic: topic_id}
    )


@pytest.mark.broker
def test_a_reset_forwards_of_a_group_that_shares_nothing_is_one_to_the_larger_offset(
    group: Group,
) -> None:
    group.plain(40, "ic 3 0")
    reset_offsets(group.log, group.admin, {group.partition: 60}, forwards=True)
    reset_offsets(group.log, group.admin, {group.partition: 50}, forwards=True)
    assert group.listed() == OffsetAndRanges(60, "", (), (Segment(WHOLE, 60, 3),))


@pytest.mark.broker
def test_a_reset_forwards_is_refused_where_it_is_not_known_what_was_done(
    group: Group,
) -> None:
    group.plain(40, "ic 3 1 1")  # and the individual commit of that term is gone
    with pytest.raises(ConfigError, match=r"no longer in .* --to 40`"):
        reset_offsets(group.log, group.admin, {group.partition: 60}, forwards=True)
    group.individual(1, Segment(WHOLE, 50), metadata="another")
    with pytest.raises(ConfigError, match="was deleted and made anew"):
        reset_offsets(group.log, group.admin, {group.partition: 60}, forwards=True)


@pytest.mark.broker
def test_a_reset_names_the_topic_unless_that_is_about_to_be_made_anew(
    group: Group,
) -> None:
    """An application that starts in another topic of that name would take the offset
    for one of that topic.
    """
    ids = {group.partition.topic: group.log.topic_id(group.partition.topic)}
    made_anew = {group.partition.topic: "another"}

    def opening() -> dict[TopicPartition, PartitionStart]:
        found = group.admin.committed([group.partition])[group.partition]
        assert found is not None
        follower = Follower(group.log, group.name)
        catch_up(follower)
        follower.close()
        return {
            group.partition: follower.open(
                group.partition, WHOLE, Committed.parse(*found), Position(0)
            )
        }

    reset_offsets(group.log, group.admin, {group.partition: 10})
    named = opening()
    check_named(group.name, named, ids)
    for one in (
        named,
        {group.partition: replace(named[group.partition], committed=None)},
    ):  # Kafka may have deleted it
        with pytest.raises(ConfigError, match="was deleted and made anew"):
            check_named(group.name, one, made_anew)
    reset_offsets(
        group.log, group.admin, {group.partition: 10}, unnamed=[group.partition]
    )
    check_named(group.name, opening(), made_anew)


@pytest.mark.broker
def test_after_a_reset_the_group_may_begin_in_another_partition_of_the_commit_topic(
    group: Group,
) -> None:
    """The partition count was changed. Fences left an offset in the partition of
    before, and it stayed for ever.
    """
    follower = Follower(group.log, group.name)
    before = TopicPartition(
        COMMIT_TOPIC, (follower.partition.partition + 1) % follower.partitions
    )
    group.admin.commit({before: (7, "")})

    def rows() -> Offsets:
        return group.admin.fetch_offsets(follower.rows(), stable=False).offsets

    with pytest.raises(ConfigError, match="the partition count was changed"):
        follower.check(rows())
    reset_offsets(group.log, group.admin, {group.partition: 10})
    follower.check(rows())
    follower.close()


@pytest.mark.broker
def test_a_reset_backwards_counts_also_where_another_client_had_committed(
    group: Group,
) -> None:
    group.plain(70, "somebody else's")
    reset_offsets(group.log, group.admin, {group.partition: 10})
    assert group.listed() == OffsetAndRanges(10, "", (), (Segment(WHOLE, 10),))


@pytest.mark.broker
def test_a_reset_takes_damaged_records_away_and_outranks_them_and_leaves_those_of_a_newer_version(
    group: Group,
) -> None:
    elsewhere = TopicPartition(group.partition.topic, 1)
    mine, other = (
        encode_key(CommitKey(group.name, *at, WHOLE, 30, 1))
        for at in (group.partition, elsewhere)
    )
    group.individual(1, Segment(WHOLE, 50))
    at = partition_of(group.name, PARTITIONS)
    for key in (mine, other, mine[:-1]):
        group.open.append(COMMIT_TOPIC, [key], [b"\1damaged"], [1], partitions=at)
    group.open.flush(60)
    with pytest.raises(
        LogError, match=r"3 of the records .* cannot be read.*coopstreams group reset"
    ):
        group.listed()
    reset_offsets(group.log, group.admin, {group.partition: 10})
    with pytest.raises(LogError, match=r"1 of the records .* cannot be read"):
        group.listed()
    reset_offsets(group.log, group.admin, {elsewhere: 20})
    assert group.listed() == OffsetAndRanges(10, "", (), (Segment(WHOLE, 10),))
    found = group.admin.committed([group.partition])[group.partition]
    assert found is not None
    assert Committed.parse(*found).term == 32
    group.open.append(COMMIT_TOPIC, [b"\2" + mine[1:]], [b"\2"], [1], partitions=at)
    group.open.flush(60)
    with pytest.raises(LogError, match="upgrade this process"):
        reset_offsets(group.log, group.admin, {group.partition: 5})


@pytest.mark.broker
def test_a_group_with_members_is_not_reset_and_nothing_is_written(kafka: Kafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap}
    with (
        application(kafka.bootstrap, kafka.unique("busy"), 1) as app,
        GroupAdmin(settings, app.group) as admin,
    ):
        app.start("a")
        app.complete("a")
        log = KafkaLog(settings)
        with pytest.raises(GroupError, match="has members: stop them"):
            reset_offsets(log, admin, {TopicPartition(f"{app.group}-topic", 0): 5})
        follower = Follower(log, app.group)
        catch_up(follower)
        assert follower.sources() == []
        follower.close()
        log.close()


commits = st.lists(
    st.tuples(
        st.sampled_from([WHOLE, LEFT, RIGHT, *KeyRange.split(4)]), st.integers(0, 50)
    ),
    max_size=6,
)


@given(
    commits,
    st.none() | st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from([LEFT, RIGHT, WHOLE]),
    st.booleans(),
)
def test_no_commit_of_before_speaks_after_a_reset(
    before: Sequence[tuple[KeyRange, int]],
    mirrored: int | None,
    offset: int,
    stalled: KeyRange,
    expired: bool,
) -> None:
    """An opener that read them, stalled, and claims its range only now: its commit does
    not count either, even if the plain offset has expired.
    """
    view = CommitView("g")
    for term, (key_range, position) in enumerate(before, 1):
        view.apply(
            encode_key(CommitKey("g", *AT, key_range, term, 1)),
            encode_value(CommitValue("", (Segment(key_range, position),))),
        )
    plain = None if mirrored is None else Committed(mirrored, term=0)
    opening = view.open(AT, stalled, plain, Position(0))

    key = reset_key("g", AT, view.next_term(AT, plain))
    view.apply(
        encode_key(key), encode_value(CommitValue("", (Segment(WHOLE, offset),)))
    )
    after = None if expired else Committed(offset, term=key.term)
    view.apply(
        encode_key(CommitKey("g", *AT, stalled, opening.term, 9)),
        encode_value(CommitValue("", opening.segments)),
    )
    assert [
        (s.position, s.runs) for s in view.open(AT, WHOLE, after, Position(0)).segments
    ] == [(offset, ())]
