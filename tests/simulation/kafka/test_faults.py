"""The effect of each fault of a plan on a client. A docstring names the test on real
brokers that shows the same.
"""

from __future__ import annotations

import pytest

from coopstreams.commit.follower import Follower
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import (
    GroupFence,
    Position,
    Reader,
    RecordBatch,
    TopicSpec,
    Writer,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    DeliveryError,
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    RefusedError,
)
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.log.reading import fill, numbers, read_all, records, values, write
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.clock import VirtualClock
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.log import SimulatedGroup, SimulatedLog
from tests.simulation.kafka.plan import (
    Crash,
    Crashed,
    Early,
    Fault,
    Late,
    Lost,
    On,
    Script,
    Skipped,
    Slow,
    Stale,
    Torn,
)

A, B, SOURCE = (
    TopicPartition("a", 0),
    TopicPartition("b", 0),
    TopicPartition("source", 0),
)
ME = GroupFence("g", 1, "me")


class Setting:
    """A cluster with three topics, and one client of it."""

    def __init__(
        self, *rules: On, skips: bool = False, settles: bool = True, generation: int = 1
    ) -> None:
        self.clock = VirtualClock()
        self.generation = generation
        self.cluster = Cluster(
            Script(rules),
            self.clock,
            skips=skips,
            check_fence=lambda fence: (
                None if fence.generation == self.generation else "stale"
            ),
        )
        self.log = SimulatedLog(Client(self.cluster, "me"), settles=settles)
        self.group = SimulatedGroup(Client(self.cluster, "me"), "g")
        self.log.create_topics([TopicSpec(at.topic, 1) for at in (A, B, SOURCE)])

    def transact(self, writer: Writer, value: str, *, commit: bool = True) -> None:
        writer.begin()
        for partition in (A, B):
            write(writer, partition, [value])
        writer.flush(10)
        if commit:
            writer.send_offsets({SOURCE: (len(value), "")}, ME)
            writer.commit(1)
        else:
            writer.abort()

    def pass_time(self, seconds: float) -> None:
        VirtualClock.sleep(self.clock, seconds)
        self.cluster.step()

    def counts(self) -> tuple[list[str | None], list[str | None], int | None]:
        """Return the committed records and the group's offset."""
        fetched = self.group.fetch_offsets([SOURCE], stable=False).offsets[SOURCE]
        return (
            values(read_all(self.log, A)),
            values(read_all(self.log, B)),
            fetched and fetched[0],
        )

    def reader(self, *partitions: TopicPartition) -> Reader:
        reader = self.log.reader()
        reader.assign(dict.fromkeys(partitions, Position(0)))
        return reader


def offsets(batches: list[RecordBatch]) -> list[int]:
    return [record.offset for record in records(batches)]


@pytest.mark.parametrize(
    ("fault", "counted"), [(Lost(), False), (Lost(answer=True), True)]
)
def test_a_commit_without_an_answer_counted_or_did_not_and_the_next_transaction_is_another(
    fault: Fault, counted: bool
) -> None:
    """`test_a_commit_that_ran_out_of_time_is_left_to_a_new_producer`."""
    setting = Setting(On("commit", fault))
    writer = setting.log.writer("tx")
    with pytest.raises(LogError, match="no broker answered") as raised:
        setting.transact(writer, "doubt")
    assert raised.value.retryable
    writer.abort()
    assert setting.counts() == (
        (["doubt"], ["doubt"], 5) if counted else ([], [], None)
    )
    setting.transact(writer, "next")
    assert setting.counts()[0] == ["doubt", "next"][not counted :]


def test_a_commit_that_arrives_late_is_refused_once_the_id_was_taken_over_and_counts_if_nobody_did() -> (
    None
):
    for taken_over in (True, False):
        setting = Setting(On("commit", Late(5.0)))
        writer = setting.log.writer("tx")
        with pytest.raises(LogError):
            setting.transact(writer, "late")
        if taken_over:
            writer.abort()
        setting.pass_time(5.0)
        assert setting.counts()[0] == ([] if taken_over else ["late"])


@pytest.mark.parametrize("answer", [False, True])
def test_an_abort_without_an_answer_is_done_by_taking_the_id_over(answer: bool) -> None:
    setting = Setting(On("abort", Lost(answer=answer)), On("take over", Lost(), nth=2))
    writer = setting.log.writer("tx")
    with pytest.raises(LogError, match="take over"):
        setting.transact(writer, "void", commit=False)
    writer.abort()
    setting.transact(writer, "next")
    assert setting.counts() == (["next"], ["next"], 4)


def test_an_open_transaction_makes_the_offsets_unstable_and_its_markers_make_them_certain() -> (
    None
):
    """`test_committed_offsets_wait_for_a_transaction_that_is_open`."""
    setting = Setting(On("marker", Late(3.0), where="g"))
    setting.group.commit({SOURCE: (1, "plain"), A: (7, "")}, ME)
    writer = setting.log.writer("tx")
    setting.transact(writer, "counts")
    fetched = setting.group.fetch_offsets([SOURCE, A, B])
    assert fetched == FetchedOffset({A: (7, ""), B: None}, frozenset({SOURCE}))
    assert setting.counts() == (["counts"], ["counts"], 1)
    setting.pass_time(3.0)
    assert setting.group.fetch_offsets(None).offsets == {SOURCE: (6, ""), A: (7, "")}


def test_offsets_that_become_stable_while_the_answer_is_on_its_way_are_unstable_in_it() -> (
    None
):
    setting = Setting(
        On("marker", Late(3.0), where="g"), On("fetch offsets", Slow(0.0, answer=5.0))
    )
    setting.group.commit({SOURCE: (1, "plain")}, ME)
    setting.transact(setting.log.writer("tx"), "counts")
    setting.clock.sleep = setting.pass_time  # type: ignore[method-assign]  # others act while the answer comes
    assert setting.group.fetch_offsets([SOURCE]) == FetchedOffset(
        {}, frozenset({SOURCE})
    )
    assert setting.group.fetch_offsets([SOURCE]).offsets == {SOURCE: (6, "")}


def test_an_offset_that_was_committed_after_that_of_a_transaction_stays() -> None:
    setting = Setting()
    writer = setting.log.writer("tx")
    writer.begin()
    writer.send_offsets({SOURCE: (5, "")}, ME)
    setting.group.commit({SOURCE: (9, "")}, ME)
    writer.commit(1)
    assert setting.group.fetch_offsets([SOURCE]).offsets == {SOURCE: (9, "")}


def test_markers_reach_one_partition_before_the_other_and_the_next_transaction_waits_for_both() -> (
    None
):
    setting = Setting(On("marker", Late(3.0), where=B))
    writer = setting.log.writer("tx")
    setting.transact(writer, "first")
    fill(setting.log, B, ["plain"])
    assert setting.counts() == (["first"], [], 5)
    assert setting.cluster.due_in() == 3.0
    setting.transact(writer, "second")
    assert setting.counts() == (["first", "second"], ["first", "plain", "second"], 6)


@pytest.mark.parametrize("settles", [True, False])
def test_a_marker_that_is_never_written_lets_the_next_transaction_decide_unless_the_writer_looks(
    settles: bool,
) -> None:
    """KAFKA-20734: `tests/log/test_hanging_transactions.py`,
    `tests/broker/test_hanging_transactions.py`.
    """
    setting = Setting(On("marker", Skipped(), where=B), skips=True, settles=settles)
    writer = setting.log.writer("tx")
    setting.transact(writer, "first")
    assert setting.counts()[1] == (["first"] if settles else [])
    setting.transact(writer, "second", commit=False)
    assert setting.counts() == (["first"], ["first"] if settles else [], 5), (
        "acknowledged, and taken back in one partition"
    )


def test_what_hangs_of_a_dead_id_is_ended_by_others_as_it_was_decided() -> None:
    """`test_what_hangs_of_an_id_that_nobody_uses_any_more_is_ended_by_others`."""
    setting = Setting(On("marker", Skipped(), where=B), skips=True, settles=False)
    setting.transact(setting.log.writer("tx"), "first")
    setting.log.settle(lambda name: name != "tx", ["a", "b"])
    assert setting.counts()[1] == [], "of a member that lives"
    setting.log.settle(lambda name: name == "tx", ["a", "b"])
    assert setting.counts() == (["first"], ["first"], 5)


def test_a_transaction_that_takes_too_long_is_aborted_and_its_writer_fenced() -> None:
    setting = Setting()
    writer = setting.log.writer("tx")
    writer.begin()
    write(writer, A, ["slow"])
    writer.flush(1)
    setting.pass_time(59.0)
    assert setting.group.open_transactions() == {"tx"}
    setting.pass_time(1.0)
    assert setting.group.open_transactions() == frozenset()
    with pytest.raises(FencedError):
        writer.commit(1)
    writer.abort()
    setting.transact(writer, "next")
    assert setting.counts()[0] == ["next"]


def test_a_transaction_is_ended_from_outside_and_its_producer_fenced() -> None:
    """`test_a_transaction_that_nobody_ends_is_ended_at_once_and_its_producer_fenced`."""
    setting = Setting()
    writer = setting.log.writer("tx")
    writer.begin()
    write(writer, A, ["dead"])
    writer.flush(1)
    setting.group.end_transaction("tx")
    with pytest.raises(FencedError):
        writer.commit(1)
    assert setting.counts()[0] == []


def test_a_stale_generation_commits_nothing_when_its_request_arrives() -> None:
    """`test_a_transaction_of_an_earlier_generation_is_refused_and_the_next_one_goes_through`."""
    setting = Setting(On("commit offsets", Late(2.0)))
    with pytest.raises(LogError, match="no broker answered"):
        setting.group.commit({SOURCE: (5, "")}, ME)
    setting.generation = 2
    setting.pass_time(2.0)
    with pytest.raises(FencedError):
        setting.group.commit({SOURCE: (5, "")}, ME)
    assert setting.group.fetch_offsets(None).offsets == {}


@pytest.mark.parametrize(("arrives", "left"), [(0.5, None), (2.0, (5, ""))])
def test_what_befalls_the_cluster_while_a_request_is_on_its_way_comes_before_it(
    arrives: float, left: tuple[int, str] | None
) -> None:
    setting = Setting(On("commit offsets", Slow(arrives, answer=1.0)))
    setting.cluster.at(1.0, "expire", "g")
    setting.group.commit({SOURCE: (5, "")}, ME)
    assert setting.clock.now() == arrives + 1.0
    assert setting.group.fetch_offsets([SOURCE]).offsets == {SOURCE: left}


def test_offsets_expire_and_go_with_their_topic() -> None:
    """`tests/broker/test_lost_positions.py`."""
    setting = Setting()
    setting.group.commit({SOURCE: (5, ""), A: (6, ""), B: (7, "")}, ME)
    setting.cluster.do("expire", "g", A)
    setting.cluster.do("remake", "b")
    assert setting.group.fetch_offsets([SOURCE, A, B]).offsets == {
        SOURCE: (5, ""),
        A: None,
        B: None,
    }
    setting.cluster.do("expire", "g")
    assert setting.group.fetch_offsets(None).offsets == {}


def test_a_topic_made_anew_has_another_id_and_no_old_offsets() -> None:
    """`tests/broker/test_topics_made_anew.py`."""
    setting = Setting()
    fill(setting.log, A, numbers(5))
    reader, id_ = setting.reader(A), setting.log.topic_id("a")
    assert len(offsets(reader.fetch(3, 0))) == 3
    setting.cluster.do("remake", "a")
    assert setting.log.topic_id("a") != id_
    with pytest.raises(OffsetOutOfRangeError):
        reader.fetch(3, 0)
    fill(setting.log, A, numbers(9))
    assert offsets(reader.fetch(100, 0)) == [3, 4, 5, 6, 7, 8], (
        "grown past the position: it looks right"
    )


def test_retention_and_compaction_happen_under_a_reader() -> None:
    setting = Setting()
    fill(setting.log, A, ["x", "y", "x", "z"])
    fill(setting.log, B, numbers(5))
    reader = setting.reader(A)
    setting.cluster.at(1.0, "compact", "a")
    setting.cluster.at(2.0, "retain", A, 3)
    setting.pass_time(1.0)
    assert offsets(reader.fetch(1, 0)) == [1]
    setting.pass_time(1.0)
    with pytest.raises(OffsetOutOfRangeError):
        reader.fetch(9, 0)


def test_a_fetch_gives_a_part_of_one_partition_and_nothing_of_the_other_and_the_rest_later() -> (
    None
):
    setting = Setting(
        On("fetch", Torn(2), where=A, times=2), On("fetch", Lost(), where=B)
    )
    fill(setting.log, A, numbers(4))
    fill(setting.log, B, numbers(1))
    reader = setting.reader(A, B)
    reader.route(A, KeyRange.split(2))
    told = [
        {
            batch.partition: (batch.next_offset, batch.at_end)
            for batch in reader.fetch(100, 0)
        }
        for _ in range(4)
    ]
    assert told == [{A: (2, False)}, {B: (1, True), A: (4, False)}, {A: (4, True)}, {}]


def test_a_leader_that_stood_still_tells_an_old_end_until_it_hears_of_its_successor() -> (
    None
):
    setting = Setting(On("end offset", Stale(), times=10))
    fill(setting.log, A, numbers(3))
    old = setting.cluster.brokers.leader(A).broker
    setting.cluster.do("pause", old)
    with pytest.raises(LogError, match="no broker answered"):
        setting.log.end_offset(A)
    setting.cluster.do("fail_over", old)
    fill(setting.log, A, numbers(2))
    assert setting.log.end_offset(A) == 5
    setting.cluster.do("start", old)
    assert setting.log.end_offset(A) == 3
    setting.cluster.do("learn", old)
    assert setting.log.end_offset(A) == 5


def test_a_barrier_that_believes_the_leader_of_before_passes_below_an_open_transaction() -> (
    None
):
    """An opener that gets a stale end opens too early: the reason why `end_offset` must
    be the true one.
    """
    setting = Setting(On("end offset", Stale()))
    follower = Follower(setting.log, "g")
    old = setting.cluster.brokers.leader(follower.partition).broker
    setting.cluster.do("pause", old)
    setting.cluster.do("fail_over", old)
    writer = setting.log.writer("earlier owner")
    writer.begin()
    writer.append(
        COMMIT_TOPIC, [b"k"], [b"v"], [1], partitions=follower.partition.partition
    )
    writer.flush(1)
    setting.cluster.do("start", old)
    assert follower.passed(follower.barrier()), "told by the leader of before"
    assert not follower.passed(follower.barrier())


def test_a_coordinator_that_stood_still_tells_old_offsets() -> None:
    setting = Setting(On("fetch offsets", Stale(), nth=2))
    setting.group.commit({SOURCE: (1, "")}, ME)
    old = setting.cluster.brokers.leader("g").broker
    setting.cluster.do("pause", old)
    setting.cluster.do("fail_over", old)
    setting.group.commit({SOURCE: (2, "")}, ME)
    setting.cluster.do("start", old)
    assert [
        setting.group.fetch_offsets([SOURCE]).offsets[SOURCE] for _ in range(3)
    ] == [(2, ""), (1, ""), (2, "")]


def test_clients_go_on_with_another_leader() -> None:
    """`test_reading_and_writing_go_on_over_restarts_of_the_broker`,
    `tests/broker/chaos_cluster.py`.
    """
    setting = Setting()
    fill(setting.log, A, numbers(2))
    reader, writer = setting.reader(A), setting.log.writer()
    assert offsets(reader.fetch(1, 0)) == [0]
    old = setting.cluster.brokers.leader(A).broker
    setting.cluster.do("stop", old)
    write(writer, A, ["lost"])
    with pytest.raises(DeliveryError, match="not acknowledged") as raised:
        writer.flush(1)
    assert raised.value.retryable
    assert reader.fetch(9, 0) == []
    setting.cluster.do("fail_over", old)
    writer.abort()
    write(writer, A, ["again"])
    writer.flush(1)
    assert reader.fetch(9, 0) == [], "it learns who leads"
    assert values(records(reader.fetch(9, 0))) == ["v00001", "again"]


def test_a_transaction_whose_place_has_no_leader_keeps_the_next_one_waiting() -> None:
    setting = Setting()
    writer = setting.log.writer("tx")
    writer.begin()
    write(writer, A, ["first"])
    writer.flush(1)
    setting.cluster.do("move", A, (setting.cluster.brokers.leader("tx").broker + 1) % 3)
    setting.cluster.do("stop", setting.cluster.brokers.leader(A).broker)
    writer.commit(1)
    writer.begin()
    write(writer, B, ["second"])
    with pytest.raises(DeliveryError):
        writer.flush(1)
    with pytest.raises(LogError, match="marker"):
        writer.abort()
    setting.cluster.do("fail_over", setting.cluster.brokers.leader(A).broker)
    writer.abort()
    assert setting.counts()[:2] == (["first"], [])


def test_a_refused_record_surfaces_when_it_is_sent_and_the_next_transaction_goes_on() -> (
    None
):
    """`test_a_record_that_is_too_large_surfaces_and_the_writer_recovers`,
    `tests/broker/test_refused_records.py`.
    """
    setting = Setting()
    setting.log.create_topics([TopicSpec("small", 1, {"max.message.bytes": "3"})])
    writer = setting.log.writer("tx")
    writer.begin()
    writer.append("small", [b"k"], [b"large"], [1], partitions=0)
    with pytest.raises(RefusedError, match="too large"):
        writer.flush(1)
    with pytest.raises(LogError, match="abort first"):
        writer.commit(1)
    writer.abort()
    setting.transact(writer, "fits")
    assert setting.counts() == (["fits"], ["fits"], 4)


@pytest.mark.parametrize(
    ("fault", "now", "later"),
    [(Lost(), 0, 0), (Lost(answer=True), 1, 1), (Late(5.0), 0, 1)],
)
def test_records_that_are_not_acknowledged_are_there_or_not_or_come_when_others_have_taken_over(
    fault: Fault, now: int, later: int
) -> None:
    setting = Setting(On("produce", fault, by="zombie"))
    zombie = SimulatedLog(Client(setting.cluster, "zombie")).writer()
    write(zombie, A, ["old"])
    with pytest.raises(DeliveryError):
        zombie.flush(1)
    assert len(read_all(setting.log, A)) == now
    fill(setting.log, A, ["new"])
    setting.pass_time(5.0)
    assert values(read_all(setting.log, A)) == ["old"] * now + ["new"] + ["old"] * (
        later - now
    )


def test_records_that_waited_with_a_client_that_stood_still_are_given_up() -> None:
    setting = Setting()
    zombie = SimulatedLog(Client(setting.cluster, "zombie"), kept_s=10.0).writer()
    write(zombie, A, ["old"])
    setting.pass_time(11.0)
    with pytest.raises(DeliveryError, match="waited for too long"):
        zombie.flush(1)
    write(zombie, A, ["new"])
    zombie.flush(1)
    assert values(read_all(setting.log, A)) == ["new"]


@pytest.mark.parametrize(
    ("rules", "there"),
    [
        ((), []),
        ((On("append", Early(), where=B),), ["b"]),
        ((On("append", Early(), where=A),), ["a"]),
    ],
)
def test_a_process_that_ends_before_its_flush_has_written_any_part(
    rules: tuple[On, ...], there: list[str]
) -> None:
    setting = Setting(*rules, On("produce", Crash(), nth=1 + len(rules)))
    writer = setting.log.writer()
    write(writer, A, ["a"])
    write(writer, B, ["b"])
    with pytest.raises(Crashed):
        writer.flush(1)
    assert [
        *values(read_all(setting.log, A)),
        *values(read_all(setting.log, B)),
    ] == there


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_ends_at_its_commit_leaves_it_to_whoever_takes_over(
    after: bool,
) -> None:
    setting = Setting(On("commit", Crash(after=after)))
    with pytest.raises(Crashed):
        setting.transact(setting.log.writer("tx"), "first")
    assert setting.group.open_transactions() == (frozenset() if after else {"tx"})
    setting.transact(setting.log.writer("tx"), "second")
    assert setting.counts()[0] == ["first", "second"][not after :]


def test_a_topic_that_was_created_without_an_answer_is_there() -> None:
    setting = Setting(On("create topics", Lost(answer=True), where="c"))
    with pytest.raises(LogError, match="no broker answered"):
        setting.log.create_topics([TopicSpec("c", 2)])
    setting.log.create_topics([TopicSpec("c", 2)])
    assert setting.log.partitions(["c"]) == {"c": 2}
