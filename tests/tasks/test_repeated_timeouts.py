"""A call that is always too slow ends the thread with an error that names it; an
occasional one does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.log import Position
from coopstreams.tasks.queues import STEP_S
from coopstreams.tasks.repeated_timeouts import (
    FORGOTTEN_AFTER_S,
    MOST_TIMES,
    Outlasting,
)
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import DeliveryError, ProcessingError
from coopstreams.topology.keys import WHOLE
from tests.simulation.fibers import Machine, Scheduler
from tests.tasks.engine import EXACTLY, Engine

LIMITS = {"transaction.timeout.ms": 15.0, "max.poll.interval.ms": 300.0}
CALL = 'task 0_0[0..255]: the record at "in" partition 0 offset 7'


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0, 1000), st.floats(0, 2000)),
        max_size=40,
    )
)
def test_only_a_call_that_was_too_slow_so_often_is_hopeless(
    history: list[tuple[str, float, float]],
) -> None:
    slow, now = Outlasting(LIMITS), 0.0
    times: dict[str, int] = {"a": 0, "b": 0}
    for call, seconds, pause in history:
        now += pause  # never long enough for both to forget it
        said = slow.void(call, seconds, now)
        if seconds > slow.least_s:
            times[call] += 1
        assert said is None or times[call] >= MOST_TIMES
        assert said is None or f"{call} takes" in said


def test_it_says_which_call_and_how_long_and_what_to_raise() -> None:
    slow = Outlasting(LIMITS)
    assert slow.least_s == 15
    assert [slow.void(CALL, 20, now) for now in (0, 30)] == [None, None]
    assert slow.void(CALL, 14, 40) is None
    said = slow.void(CALL, 21, 60)
    assert said is not None
    assert said.startswith(
        f"{CALL} takes 21 s, longer than transaction.timeout.ms (15 s): its results were void 3 times"
    )
    assert "Raise transaction.timeout.ms above that" in said
    both = slow.void(CALL, 400, 500)
    assert both is not None
    assert "Raise transaction.timeout.ms and max.poll.interval.ms above that" in both


def test_what_was_long_ago_is_forgotten() -> None:
    slow = Outlasting(LIMITS)
    assert [slow.void(CALL, 20, at * (FORGOTTEN_AFTER_S + 1)) for at in range(10)] == [
        None
    ] * 10
    assert slow.void(CALL, 2 * FORGOTTEN_AFTER_S, 1e6) is None
    assert slow.void(CALL, 2 * FORGOTTEN_AFTER_S, 1e6 + 5 * FORGOTTEN_AFTER_S) is None
    assert (
        slow.void(CALL, 2 * FORGOTTEN_AFTER_S, 1e6 + 10 * FORGOTTEN_AFTER_S) is not None
    ), "it takes that long"


def test_a_flush_of_record_caches_that_outlasts_the_transaction_each_time_is_named() -> (
    None
):
    """Its functions run for what an interval has collected, not record by record."""
    scheduler = Scheduler(Random(1))
    machine = Machine(scheduler, "instance")
    builder = StreamsBuilder("app")
    counts = (
        builder.stream("in", key=serdes.raw, value=serdes.raw)
        .group_by_key()
        .count(store="counts")
    )
    counts.to_stream().foreach(lambda *_: machine.sleep(4))
    made = Engine(
        builder.build(),
        {"in": 1},
        host=machine,
        caching=True,
        processing_guarantee=EXACTLY,
    )
    made.write("in", [(b"%d" % number, b"", number) for number in range(5)])
    made.start()
    errors: list[str] = []
    for attempt in range(MOST_TIMES):
        made.generation = 1
        made.open(WHOLE)
        while not made.dispatcher.move(0.01):
            pass
        scheduler.run(100 * attempt + 1)
        made.generation = 2  # as if the broker had aborted the transaction
        scheduler.run(100 * attempt + 100)
        try:
            while not made.events.empty():
                made.take(made.events.get())
        except ProcessingError as error:
            errors.append(str(error))
    scheduler.close([machine])
    (said,) = errors
    assert (
        "the flush of record caches, which runs the functions below them (record by record with"
        in said
    )
    assert (
        "takes 20 s, longer than transaction.timeout.ms (15 s): its results were void 3 times"
        in said
    )


def test_a_task_that_is_opened_again_takes_slow_calls_one_by_one() -> None:
    """Sixty-four of them together might exceed the limit that one does not, and would
    be the same ones each time.
    """
    builder, source = StreamsBuilder("app"), TopicPartition("in", 0)
    builder.stream("in", key=serdes.raw, value=serdes.raw).foreach(
        lambda *_: time.sleep(1.5 * STEP_S)
    )
    made = Engine(builder.build(), {"in": 1})
    made.write("in", [(b"k", b"v", 1)] * 100)
    task, reader = made.task(WHOLE), made.log.reader()
    reader.assign({source: Position(0)})
    reader.route(source, [WHOLE])
    for run in reader.fetch(100, 0):
        task.add(run)
    for done in (1, 2, 3):
        assert task.step()
        assert task.processed == done
        assert task.last_step == f'the record at offset {done - 1} of "in" partition 0'


def test_commits_get_shorter_until_brokers_that_hold_a_client_back_take_them() -> None:
    """A quota: the results of a whole backlog never got there in time, and were made
    again, for ever.
    """
    scheduler, backlog, seconds_each = Scheduler(Random(1)), 1000, 0.1
    machine = Machine(scheduler, "instance")
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).to("out")
    made = Engine(
        builder.build(), {"in": 1, "out": 1}, host=machine, processing_guarantee=EXACTLY
    )
    made.write("in", [(b"k", b"v", number) for number in range(backlog)])
    writer, queued = made.committers[0]._writer, [0]
    append, flush = writer.append, writer.flush

    def slowly(timeout_s: float) -> None:
        (seconds,), queued[:] = [count * seconds_each for count in queued], [0]
        machine.sleep(min(seconds, timeout_s))
        if seconds > timeout_s:
            raise DeliveryError("the brokers hold this process back", retryable=True)
        flush(timeout_s)

    def counted(
        topic: str, keys: Sequence[bytes | None], *columns: Any, **more: Any
    ) -> None:
        queued[0] += len(keys)
        append(topic, keys, *columns, **more)

    writer.append, writer.flush = counted, slowly  # type: ignore[method-assign]
    made.start()
    attempts = 0
    while len(made.read("out")) < backlog and attempts < 5:
        attempts += 1
        made.open(WHOLE)
        while not made.dispatcher.move(0.01):
            pass
        scheduler.run(1000 * attempts)
        while not made.events.empty():
            made.take(made.events.get())
    scheduler.close([machine])
    assert len(made.read("out")) == backlog
    assert attempts == 3, "1000, 250, and then 62 at a time"
