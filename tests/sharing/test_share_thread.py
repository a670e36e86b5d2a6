"""Share threads: each record is acknowledged after its results are in the log, whatever
its function and its members do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import Retry, StreamsBuilder, serdes
from coopstreams.common.host import System
from coopstreams.log import time_marks
from coopstreams.status import reasons
from coopstreams.status.reasons import Health, Seen, health
from coopstreams.tasks import repeated_warnings
from coopstreams.tasks.queues import STEP_S
from coopstreams.topology.errors import ConfigError, DeliveryError, ProcessingError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.schemas import RegistryUnavailableError
from coopstreams.topology.serdes import Serde
from tests.sharing.dealing import (
    MOST_DELIVERIES,
    PATIENCE_S,
    Instance,
    Member,
    ShareGroup,
    running,
    until,
)


def mapping(function: Any, **how: Any) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.int64, order="none")
    if how:
        stream.map_values_async(function, value=serdes.int64, order="none", **how).to(
            "out"
        )
    else:
        stream.map_values(function, value=serdes.int64).to("out")
    return builder.build()


def encoded(*values: int) -> list[bytes]:
    return [serdes.int64.encode(value) for value in values]


def results(*instances: Instance) -> Counter[int]:
    return Counter(
        serdes.int64.decode(value)
        for each in instances
        for value, _ in each.read("out")
        if value
    )


def settled(group: ShareGroup) -> bool:
    return all(group.over)


@given(
    breaks=st.lists(st.integers(0, 5), max_size=4),
    waits=st.booleans(),
    threads=st.integers(1, 3),
)
@settings(max_examples=20)
def test_nothing_is_lost_whenever_members_break(
    breaks: list[int], waits: bool, threads: int
) -> None:
    """Instances lose their broker in turn, with all their records, as often as a record
    may be delivered.
    """
    group = ShareGroup(most=7)
    group.write("in", *encoded(*range(60)))

    async def later(value: int) -> int:
        await asyncio.sleep(0.001)
        return -value

    topology = (
        mapping(later, max_in_flight=50) if waits else mapping(lambda value: -value)
    )
    made = []
    for at in [
        *breaks[: (MOST_DELIVERIES - 1) // threads],
        None,
    ]:  # each thread of an instance loses its broker

        def connect(at: int | None = at) -> Member:
            member = group.member()
            member.breaks_at = at
            return member

        one = Instance(topology, group, threads=threads, connect=connect)
        made.append(one)
        with running(one):
            until(lambda one=one: settled(group) or not one.events.empty())  # type: ignore[misc]
    assert set(group.over) == {"done"}
    assert results(*made).keys() == {-value for value in range(60)}


@given(flushes=st.lists(st.booleans(), max_size=8), threads=st.integers(1, 2))
@settings(max_examples=20)
def test_nothing_is_lost_whenever_the_log_does_not_take_results(
    flushes: list[bool], threads: int
) -> None:
    group = ShareGroup(most=7)
    for partition in range(2):
        group.write("in", *encoded(*range(partition, 40, 2)), partition=partition)
    made = Instance(
        mapping(lambda value: -value), group, threads=threads, flushes=flushes
    )
    with running(made):
        until(lambda: settled(group))
    assert results(made).keys() == {-value for value in range(40)}


def test_nothing_is_acknowledged_whose_results_the_log_has_refused_for_good() -> None:
    group = ShareGroup()
    group.write("in", *encoded(*range(10)))
    gone = DeliveryError("a record was not delivered: unknown topic")
    first = Instance(mapping(lambda value: -value), group, flushes=[gone])
    with running(first):
        assert first.failure() is gone
    assert group.over == [""] * 10
    second = Instance(mapping(lambda value: -value), group)
    with running(second):
        until(lambda: settled(group))
    assert results(second) == Counter(-value for value in range(10))


def test_records_that_a_slow_one_leaves_to_the_next_step_are_processed() -> None:
    group = ShareGroup()
    for partition in range(2):
        group.write("in", *encoded(*range(partition, 8, 2)), partition=partition)

    def work(value: int) -> int:
        if value == 0:
            time.sleep(1.2 * STEP_S)
        return value

    made = Instance(mapping(work), group)
    with running(made):
        until(lambda: settled(group))
    assert results(made) == Counter(range(8))


def test_what_is_done_is_acknowledged_before_its_lock_ends_however_seldom_the_application_commits() -> (
    None
):
    group = ShareGroup(lock_s=1.0, locks_end=False)
    group.write("in", *encoded(0, 1))
    acknowledged = threading.Event()

    def work(value: int) -> int:
        if value == 0:
            assert acknowledged.wait(PATIENCE_S)
        return value

    made = Instance(
        mapping(work, max_in_flight=2), group, acknowledge_every_s=2 * PATIENCE_S
    )
    with running(made):
        until(lambda: group.over == ["", "done"])
        acknowledged.set()
        until(lambda: settled(group))
    assert results(made) == Counter([0, 1])


def test_it_joins_again_when_the_brokers_are_back() -> None:
    group = ShareGroup()
    group.write("in", *encoded(*range(3)))

    def connect() -> Member:
        member = group.member()
        member.breaks_at, member.heals = (0 if group.members == 1 else None), True
        return member

    made = Instance(mapping(lambda value: value), group, connect=connect)
    with running(made):
        until(lambda: settled(group))
    assert results(made).keys() == {0, 1, 2}
    assert group.members == 2
    assert made.members.status()[0].redelivered == 3


def test_it_joins_again_once_a_file_for_its_client_has_been_exchanged() -> None:
    """The settings of a client that was there before are good: the process ended, for
    good.
    """
    group = ShareGroup()
    group.write("in", *encoded(*range(3)))
    refused = [ConfigError("the TLS settings cannot be used")]

    def connect() -> Member:
        if group.members and refused:
            raise refused.pop()
        member = group.member()
        member.breaks_at, member.heals = (0 if group.members == 1 else None), True
        return member

    made = Instance(mapping(lambda value: value), group, connect=connect)
    with running(made):
        until(lambda: settled(group) or not made.events.empty())
    assert settled(group)


def test_what_fails_is_tried_again_dropped_or_sent_away_and_the_rest_passes_once() -> (
    None
):
    group = ShareGroup()
    group.write("in", *encoded(*range(20)))
    attempts: Counter[int] = Counter()
    told: dict[int, list[int]] = {3: [], 5: [], 7: []}

    def work(value: int) -> int:
        attempts[value] += 1
        if value in (5, 7) or (value == 3 and len(told[3]) < 3):
            raise ValueError(value)
        return value

    def handler(failure: Failure) -> Any:
        value = serdes.int64.decode(failure.value or b"")
        told[value].append(failure.attempt)
        return {
            3: Retry(times=5, backoff=timedelta(milliseconds=1)),
            5: "continue",
            7: "dead-letter",
        }[value]

    made = Instance(
        mapping(work),
        group,
        processing_exception_handler=handler,
        errors_dead_letter_queue_topic_name="letters",
    )
    with running(made):
        until(lambda: settled(group))
    assert results(made) == Counter(set(range(20)) - {5, 7})
    ((letter, headers),) = made.read("letters")
    assert letter == encoded(7)[0]
    assert headers["__coopstreams.errors.topic"] == b"in"
    assert headers["__coopstreams.errors.offset"] == b"7"
    assert headers["__coopstreams.errors.task"] == b"0_0[0..255]"
    assert max(told[3]) == 2
    (status,) = made.members.status()
    assert (status.acquired, status.redelivered, status.dead_letters, status.waits) == (
        0,
        0,
        1,
        "",
    )


def test_what_is_left_out_counts_once_although_its_batch_is_done_again() -> None:
    """Another record of the batch fails, so that all go through once more, one by one."""
    group = ShareGroup()
    group.write("in", *encoded(*range(40)))
    said: list[int] = []

    def work(value: int) -> int:
        if value in (20, 21) or (value == 24 and len(said) < 2):
            raise ValueError(value)
        return value

    def handler(failure: Failure) -> Any:
        value = serdes.int64.decode(failure.value or b"")
        if value == 24:
            said.append(value)
        return {
            20: "dead-letter",
            21: "continue",
            24: Retry(backoff=timedelta(milliseconds=1)),
        }[value]

    made = Instance(
        mapping(work),
        group,
        processing_exception_handler=handler,
        errors_dead_letter_queue_topic_name="letters",
    )
    with running(made):
        until(lambda: settled(group))
    assert len(said) == 2
    assert [letter for letter, _ in made.read("letters")] == encoded(20)
    (status,) = made.members.status()
    dropped = sum(drop.records for drop in status.dropped)
    assert (status.dead_letters, dropped) == (1, 2)


@pytest.mark.parametrize("how", [{}, {"max_in_flight": 2}])
def test_a_failure_that_ends_the_thread_lets_it_finish_what_else_it_has(
    how: dict[str, int],
) -> None:
    group = ShareGroup()
    group.write("in", *encoded(*range(10)))

    def work(value: int) -> int:
        if value in (0, 6) and not mended:
            raise ValueError(value)
        return value

    async def call(value: int) -> int:
        return work(value)

    mended: list[bool] = []
    topology = mapping(call if how else work, **how)
    first = Instance(topology, group)
    with running(first):
        error = first.failure()
    assert isinstance(error, ProcessingError)
    assert '"in" partition 0 offset 0' in str(error)
    assert results(first) == Counter({1, 2, 3, 4, 5, 7, 8, 9})
    assert group.over == ["", *["done"] * 5, "", *["done"] * 3]
    mended.append(True)
    second = Instance(topology, group)
    with running(second):
        until(lambda: settled(group))
    assert results(second) == Counter([0, 6])


def test_a_bad_record_uses_up_no_deliveries_but_its_own_however_often_the_process_is_started_again() -> (
    None
):
    """A broker deals a producer's whole batch, and divides it only when it was
    delivered in vain more than once.
    """
    group = ShareGroup(most=7)
    group.write("in", *encoded(*range(60)))

    def work(value: int) -> int:
        if value in (0, 30):
            raise ValueError(value)
        return value

    made: list[Instance] = []
    while not settled(group):
        made.append(Instance(mapping(work), group, threads=2))
        with running(made[-1]):
            until(lambda: settled(group) or not made[-1].events.empty())
    assert group.over == ["done" if value % 30 else "given up" for value in range(60)]
    assert results(*made).keys() == set(range(60)) - {0, 30}


def test_a_thread_that_ends_waits_for_its_other_records_no_longer_than_their_lock_lasts() -> (
    None
):
    group = ShareGroup(lock_s=0.5, locks_end=False)
    group.write("in", *encoded(0, 1, 2))
    never = asyncio.Event()

    async def call(value: int) -> int:
        if value == 1:
            await never.wait()
        assert value
        return value

    made = Instance(mapping(call, max_in_flight=3), group)
    with running(made):
        assert isinstance(made.failure(), ProcessingError)
    assert group.over == ["", "", "done"]


def test_a_record_that_the_brokers_give_up_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They say so to nobody, and no member sees the record again."""
    group = ShareGroup()
    group.write("in", *encoded(1, 2))

    def work(value: int) -> int:
        if value == 2:
            raise ValueError(value)
        return value

    for delivery in range(1, MOST_DELIVERIES + 1):
        caplog.clear()
        instance = Instance(mapping(work), group)
        with running(instance):
            instance.failure()
        said = [
            record.message for record in caplog.records if "in[0]@1" in record.message
        ]
        assert bool(said) == (delivery == MOST_DELIVERIES)
    last = Instance(mapping(work), group)
    with running(last):
        until(lambda: settled(group))
    assert group.over == ["done", "given up"]


def test_a_record_that_fails_for_long_is_released_once_and_then_kept() -> None:
    """If it were released each time, the broker would give it up after five deliveries."""
    group = ShareGroup(lock_s=0.05, locks_end=False)
    group.write("in", *encoded(1))
    (dealt,) = group.dealt.values()
    tried: list[int] = []

    def work(value: int) -> int:
        tried.append(dealt.deliveries)
        if tried.count(2) < 12:
            raise ValueError(value)
        return value

    pause = timedelta(milliseconds=10)  # far shorter than all of them together
    made = Instance(
        mapping(work),
        group,
        processing_exception_handler=lambda _: Retry(
            times=100, backoff=pause, longest=pause, jitter=0.0
        ),
    )
    with running(made):
        until(lambda: settled(group))
    assert results(made) == {1: 1}
    assert set(tried) == {1, 2}


def test_records_that_fail_together_are_released_and_logged_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request for each would take longer than the locks last."""
    group = ShareGroup(lock_s=0.05, locks_end=False)
    group.write("in", *encoded(*range(30)))
    failed, began = list[int](), time.monotonic()

    class Clock(System):
        """It stands still until all have failed: the first are not due before the last,
        however slow the machine is.
        """

        def now(self) -> float:
            return began if len(failed) < 30 else super().now()

    def work(value: int) -> int:
        if group.dealt["in", 0, value].deliveries == 1:
            failed.append(value)
            raise ConnectionError("no answer")
        return value

    hour = timedelta(hours=1)
    again = Retry(times=100, backoff=hour, longest=hour, jitter=0.0)
    made = Instance(
        mapping(work), group, host=Clock(), processing_exception_handler=lambda _: again
    )
    with running(made):
        until(lambda: settled(group))
    assert results(made) == Counter(range(30))
    assert group.releases == 1
    assert (
        sum("processed again" in record.message for record in caplog.records)
        == repeated_warnings.FIRST
    )


def test_calls_under_way_end_and_the_rest_is_released_when_it_stops() -> None:
    group = ShareGroup(most=10)
    group.write("in", *encoded(*range(10)))
    begun: list[int] = []

    async def later(value: int) -> int:
        begun.append(value)
        await asyncio.sleep(0.05)
        return value

    made = Instance(mapping(later, max_in_flight=4), group)
    with running(made):
        until(lambda: len(begun) == 4)
    done = [index for index, over in enumerate(group.over) if over]
    assert results(made) == Counter(done)
    assert len(done) >= 4
    assert all(each.holder is None for each in group.dealt.values() if not each.over)


def test_time_marks_of_others_are_no_records_even_if_the_log_does_not_take_the_results_beside_them() -> (
    None
):
    group = ShareGroup()
    group.write("in", *encoded(1))
    group.dealt["in", 0, 1] = type(group.dealt["in", 0, 0])(
        (None, None, 5, time_marks.headers_of(3))
    )
    made = Instance(mapping(lambda value: value + 1), group, flushes=[False])
    with running(made):
        until(lambda: settled(group) or not made.events.empty())
    assert made.events.empty()
    assert [value for value, _ in made.read("out")] == encoded(2)


def test_a_record_is_tried_again_if_the_registry_was_away_when_its_calls_were_looked_for() -> (
    None
):
    group = ShareGroup()
    group.write("in", *encoded(1, 2))
    away = [1]

    def decode(data: bytes) -> int:
        if away:
            away.pop()
            raise RegistryUnavailableError("no answer")
        return serdes.int64.decode(data)

    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder("app")
    value = Serde("registered", serdes.int64.encode, decode)
    stream = builder.stream("in", key=serdes.raw, value=value, order="none")
    stream.map_values_async(same, value=serdes.int64, order="none").to("out")
    made = Instance(builder.build(), group, processing_exception_handler="continue")
    with running(made):
        until(lambda: settled(group))
    assert results(made) == Counter([1, 2])
    assert made.members.status()[0].redelivered == 0


def test_a_thread_is_live_while_the_log_takes_its_results_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The brokers may be away, which a new process would not heal; a flush ends by
    itself.
    """
    monkeypatch.setattr(reasons, "SLOW_S", 0.0)
    monkeypatch.setattr(reasons, "STALLED_S", 0.0)
    group = ShareGroup()
    group.write("in", *encoded(1))
    taken = threading.Event()

    def flushes() -> Iterator[bool]:
        yield taken.wait(PATIENCE_S)

    made = Instance(mapping(lambda value: value), group, flushes=flushes())
    with running(made):
        until(lambda: "waits for the brokers to take" in str(told(made)))
        (reason,) = told(made).reasons
        taken.set()
        until(lambda: settled(group))
    assert reason.code == "slow"


def told(made: Instance) -> Health:
    return health(Seen(now=time.monotonic(), shares=made.members.figures()))


def test_it_takes_no_records_while_it_may_not_and_says_why() -> None:
    group = ShareGroup()
    group.write("in", *encoded(1))
    why = ["the cluster has accept.individual.commit=false"]
    made = Instance(mapping(lambda value: value), group, holds=lambda: "".join(why))
    with running(made):
        until(lambda: made.members.status()[0].waits == why[0])
        (reason,) = told(made).reasons
        assert reason.code == "share-group"
        assert reason.message == f"share thread 0 takes no records: {why[0]}"
        assert not told(made).ready
        why.clear()
        until(lambda: settled(group))
    assert group.members == 1
