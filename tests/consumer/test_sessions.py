"""A consumer whose user waits, refuses or fails, and a cluster that refuses."""

from __future__ import annotations

from contextlib import suppress

import pytest

from coopstreams.consumer import ConsumerRecord, OffsetAndRanges, RecordFilter
from coopstreams.consumer.consumer_session import Ranges
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AccessDeniedError, CommitConflictError, LogError
from coopstreams.topology.keys import KeyRange
from tests.consumer.members import Member, keys_of, members
from tests.simulation.kafka.writer import SimulatedWriter

KEYS = [key for half in KeyRange.split(2) for key in keys_of(half, 2)]


def test_a_consumer_that_waits_for_records_for_long_stays_in_the_group() -> None:
    told: list[str] = []

    def body(member: Member) -> None:
        member.consumer.subscribe(
            ["in"],
            on_assign=lambda _: told.append("opens"),
            on_lost=lambda _: told.append("loses"),
        )
        member.consumer.consume(1, 60.0)

    with members([], max_poll_interval_ms=2000) as group:
        group.start("a", body)
        group.run(30.0)
        assert told == ["opens"]


def test_a_key_range_whose_revocation_failed_is_given_up_in_the_next_poll() -> None:
    opened: list[str] = []

    def leader(member: Member) -> None:
        failures = [RuntimeError("of the user")]

        def give_up(_: Ranges) -> None:
            if failures:
                raise failures.pop()

        member.consumer.subscribe(["in"], on_revoke=give_up)
        while True:
            try:
                member.consumer.consume(10, 0.1)
            except RuntimeError:
                opened.append("failed")

    def other(member: Member) -> None:
        member.consumer.subscribe(["in"], on_assign=lambda _: opened.append("other"))
        while True:
            member.consumer.consume(10, 0.1)

    with members([]) as group:
        group.start("leader", leader)
        group.run(5.0)
        group.start("other", other)
        group.run(10.0)
        assert opened == ["failed", "other"]


def test_a_key_range_is_given_up_also_if_the_user_raises_because_another_is_lost() -> (
    None
):
    """Nobody else could have it: it was on no list any more, and still held."""
    opened: list[TopicPartition] = []

    def leader(member: Member) -> None:
        failures = [RuntimeError("of the user")]

        def lose(_: Ranges) -> None:
            if failures:
                raise failures.pop()

        consumer, machine = member.consumer, member.machine
        consumer.subscribe(["in", "more"], on_lost=lose)
        while len(consumer.to_be_revoked()) < 2:
            consumer.consume(10, 0.1)
        asked = machine.now()
        while machine.now() < asked + 1.5:
            assert consumer.delay_revoke(consumer.to_be_revoked())
            consumer.consume(10, 0.1)
        assert consumer.delay_revoke([("in", 0)])
        machine.sleep(1.0)
        while True:
            with suppress(RuntimeError):
                consumer.consume(10, 0.1)

    def other(member: Member) -> None:
        member.consumer.subscribe(["in", "more"], on_assign=opened.extend)
        while True:
            member.consumer.consume(10, 0.1)

    with members([], max_revoke_delay_ms=2000) as group:
        group.start("leader", leader)
        group.run(5.0)
        for name in ("b", "c", "d"):
            group.start(name, other)
        group.run(30.0)
        assert {at.topic for at in opened} == {"in", "more"}


def test_a_key_range_is_opened_once_its_first_commit_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    denied = [AccessDeniedError("WRITE on the commit topic is not allowed")] * 3
    begin = SimulatedWriter.begin

    def begins(self: SimulatedWriter) -> None:
        if denied:
            raise denied.pop()
        begin(self)

    monkeypatch.setattr(SimulatedWriter, "begin", begins)

    def body(member: Member) -> None:
        member.consumer.subscribe(["in"], on_assign=lambda _: told.append("opens"))
        while True:
            try:
                told.extend("record" for _ in member.consumer.consume(1, 0.1))
            except LogError:
                told.append("denied")

    with members(KEYS[:1]) as group:
        group.start("a", body)
        group.run(10.0)
        assert told == [*["denied"] * 3, "opens", "record"]


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [("true", [0, 0, 2, 2, 3]), ("false", [0, 0, 0, 0, 0])],
)
def test_what_is_done_is_committed_by_time_if_that_is_wanted(
    asked: str,
    offsets: list[int],
) -> None:
    """Also while `consume` waits. Of what is done, not of what was handed out."""
    found: list[OffsetAndRanges | None] = []

    def body(member: Member) -> None:
        consumer, machine = member.consumer, member.machine
        consumer.subscribe(["in"])
        began = machine.now()
        records: list[ConsumerRecord] = []
        while len(records) < len(KEYS):
            records += consumer.consume(10, 0.1)
        for until in (1.0, 4.0, 7.0, 9.0, 12.0):
            if until == 4.0:
                consumer.done(records[0])
                consumer.done(records[1])
            if until == 9.0:
                consumer.done(records[2])
            consumer.consume(10, began + until - machine.now())
            found.extend(consumer.committed([("in", 0)]).values())

    with members(KEYS, enable_auto_commit=asked) as group:
        group.start("a", body)
        group.run(30.0)
    assert [one and one.offset for one in found] == offsets


def test_what_a_consumer_commits_by_itself_leaves_the_metadata_of_the_last_commit() -> (
    None
):
    found: list[OffsetAndRanges | None] = []

    def body(member: Member) -> None:
        consumer = member.consumer
        consumer.subscribe(["in"])
        while not (records := consumer.consume(1, 0.1)):
            pass
        consumer.done(records[0])
        consumer.commit(metadata="mine")
        group.write("in", *[KEYS[1]] * 3)  # no member gets them
        for _ in range(10):
            consumer.consume(1, 0.1)
        found.extend(consumer.committed([("in", 0)]).values())

    with members(KEYS[:1], commit_order="offset") as group:
        group.start("a", body, RecordFilter(deny_keys=frozenset({KEYS[1]})))
        group.run(30.0)
        (committed,) = found
        assert committed is not None
        assert (committed.offset, committed.metadata) == (4, "mine")


def test_whom_the_policy_restricts_is_told_and_again_when_it_does_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was obeyed within seconds without a word: with a member less, or a commit that
    lacks what was done.
    """
    told: dict[str, list[tuple[int, ...]]] = {"leader": [], "other": []}

    def body(member: Member) -> None:
        mine = told[member.machine.name]
        member.consumer.subscribe(
            ["in", "more"],
            on_restrict=lambda what: mine.append(tuple(error.code for error in what)),
        )
        while True:
            member.consumer.consume(10, 0.1)

    with members(KEYS) as group:
        for name in told:
            group.start(name, body)
            group.run(5.0)
        assert told == {"leader": [], "other": []}
        for setting, value, topic in (
            ("accept.range.fetch", False, "in"),
            ("accept.individual.commit", False, ""),
            ("accept.individual.commit", True, ""),
            ("accept.range.fetch", True, "in"),
        ):
            group.allow(setting, value, topic)
            group.run(10.0)
    assert [*told.values()] == [[(89,), (88,), (89,), ()]] * 2
    said = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert sum(line.startswith("in may not be read by key range") for line in said) == 4
    assert sum("accept.individual.commit=false" in line for line in said) == 2


def test_who_does_not_share_is_not_restricted_by_a_topic_that_is_not_shared() -> None:
    told: list[object] = []

    def body(member: Member) -> None:
        member.consumer.subscribe(
            ["in"], allow_key_share=False, on_restrict=told.append
        )
        while True:
            member.consumer.consume(10, 0.1)

    with members(KEYS) as group:
        group.allow("accept.range.fetch", False, "in")
        group.start("a", body)
        group.run(10.0)
        assert told == []
        group.allow("accept.individual.commit", False)
        group.run(10.0)
    assert len(told) == 1


def test_metadata_may_be_longer_than_kafka_allows_beside_an_offset() -> None:
    """Brokers take 4096 characters (offset.metadata.max.bytes)."""
    text = "file " * 20_000
    found: list[OffsetAndRanges | None] = []

    def body(member: Member) -> None:
        consumer = member.consumer
        consumer.subscribe(["in"])
        while not (records := consumer.consume(1, 0.1)):
            pass
        consumer.done(records[0])
        consumer.commit(metadata=text)
        found.extend(consumer.committed([("in", 0)]).values())

    with members(KEYS[:1]) as group:
        group.start("a", body)
        group.run(10.0)
    assert [one and one.metadata for one in found] == [text]


def test_what_a_refused_commit_has_named_is_in_no_later_one() -> None:
    """It was noted as done first: the next commit skipped records that nobody was
    given.
    """
    at = ("in", 0)
    found: list[OffsetAndRanges | None] = []

    def body(member: Member) -> None:
        consumer = member.consumer
        consumer.subscribe(["in"])
        while not (records := consumer.consume(1, 0.1)):
            pass
        with pytest.raises(CommitConflictError):
            consumer.commit({at: 3}, expected={at: 2})
        with pytest.raises(CommitConflictError):
            consumer.commit_ranges({at: [(2, 3)]}, expected={at: 2})
        consumer.done(records[0])
        consumer.commit()
        found.extend(consumer.committed([at]).values())

    with members(KEYS) as group:
        group.start("a", body)
        group.run(30.0)
        (committed,) = found
        assert committed is not None
        assert (committed.offset, committed.ranges) == (1, ())


def test_a_seek_below_zero_is_refused() -> None:
    """The client took -1 for the end, and the records up to there counted as done."""
    handed: list[int] = []

    def body(member: Member) -> None:
        consumer = member.consumer
        consumer.subscribe(["in"])
        while not handed:
            handed.extend(record.offset for record in consumer.consume(1, 0.1))
        with pytest.raises(ValueError, match="in-0: offset -1 is below 0"):
            consumer.seek(("in", 0), -1)
        while True:
            handed.extend(record.offset for record in consumer.consume(10, 0.1))

    with members(KEYS) as group:
        group.start("a", body)
        group.run(10.0)
    assert sorted(handed) == list(range(len(KEYS)))
