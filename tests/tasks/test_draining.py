"""Tasks that are closed during calls."""

from __future__ import annotations

import pytest

from coopstreams.tasks.draining import PROMPT_S
from coopstreams.tasks.events import Closed, Drains, Event
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.calls import CallOrder
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.keys import WHOLE
from tests.tasks.called import (
    SOURCE,
    TOPICS,
    Gate,
    Held,
    done,
    finish,
    forwarding,
    numbered,
    runs,
    until,
)
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine


@pytest.mark.parametrize("order", ["key", "partition", "none"])
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("ends", [False, True], ids=["moves", "process-ends"])
def test_a_task_is_closed_when_the_calls_under_way_have_ended(
    order: CallOrder, guarantee: str, ends: bool
) -> None:
    """The calls are in its last commit, so the next owner makes only the others."""
    held = Held()
    topology = forwarding(held, max_in_flight=3, order=order)
    made = Engine(topology, TOPICS | {"in": 2}, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    sibling = made.open(WHOLE, partition=1)
    made.write("in", numbered(range(10), keys=10), partition=0)
    made.start()
    begun = 1 if order == "partition" else 3
    until(lambda: len(held.called) == begun, made)
    made.dispatcher.close(task)
    made.threads[0].close((task,), clean=True)
    made.write("in", [(b"k", b"77", 0)], partition=1)
    until(lambda: held.called[77] == 1, made)
    assert task.id in made.tasks, "a sibling goes on while it drains"
    held.let_go.set()
    if ends:
        made.threads[0].stop(PATIENCE_S)
    while task.id in made.tasks:
        made.take(made.events.get(timeout=PATIENCE_S))
    assert len(held.called) == begun + 1
    assert task.progress.durable(SOURCE) == begun
    if ends:
        return
    until(lambda: sibling.progress.durable(TopicPartition("in", 1)) == 1, made)
    made.open(WHOLE)
    until(done(made, 1), made)
    until(lambda: sum(held.called.values()) == 11, made)
    made.stop()
    assert set(held.called.values()) == {1}


def test_a_drain_ends_when_a_transaction_is_aborted_meanwhile() -> None:
    """The task is discarded with all others of its thread; it is closed nevertheless,
    once.
    """
    held = Held()
    made = Engine(forwarding(held), TOPICS | {"in": 2})
    task = made.open(WHOLE)
    made.write("in", [(b"k", b"1", 0)], partition=0)
    made.start()
    until(lambda: held.called[1] == 1, made)
    other = made.open(WHOLE, partition=1)
    made.dispatcher.close(task)
    made.threads[0].close((task,), clean=True)
    made.close(other, clean=False)
    while task.id in made.tasks:
        made.take(made.events.get(timeout=PATIENCE_S))
    held.let_go.set()
    made.open(WHOLE)
    finish(made, 1)
    assert held.called[1] == 2


def test_a_task_that_drains_waits_for_its_calls_and_for_no_other_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes no more records: a thread with waiting ones polled them without a pause
    for three seconds.
    """
    held = Held()
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).merge(
        builder.stream("other", key=serdes.text, value=serdes.json)
    ).map_values_async(held, value=serdes.json).to("out")
    # Long enough to be seen from this thread, however busy the machine is.
    made = Engine(builder.build(), TOPICS, max_task_idle_ms=1000)
    task = made.open(WHOLE)
    for topic, value in (("in", b"1"), ("other", b"2")):
        made.write(topic, [(b"k%b" % value, value, 0)])
    made.start()
    until(lambda: len(held.called) == 2, made)
    made.write("in", [(b"k3", b"3", 10)])
    until(lambda: task.queues.waits_until is not None, made)
    thread, turns = made.threads[0], 0
    waited = thread._wait_s

    def counted() -> float:
        nonlocal turns
        turns += 1
        return waited()

    monkeypatch.setattr(thread, "_wait_s", counted)
    made.dispatcher.close(task)
    thread.close((task,), clean=True)
    ends = task.queues.waits_until or 0.0
    until(lambda: made.host.now() > ends + 0.2, made)
    held.let_go.set()
    while task.id in made.tasks:
        made.take(made.events.get(timeout=PATIENCE_S))
    assert held.called[3] == 0
    assert turns < 200, "each takes some ten microseconds if it waits for nothing"


def given_up(made: Engine, task: Task) -> None:
    made.dispatcher.close(task)
    made.threads[0].close((task,), clean=True)


def closed(made: Engine, task: Task) -> list[Event]:
    """Wait until a task is closed; return the events up to then."""
    events = []
    while task.id in made.tasks:
        events.append(made.events.get(timeout=PATIENCE_S))
        made.take(events[-1])
    return events


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_calls_may_outlast_transactions_and_all_others_are_committed_meanwhile(
    guarantee: str,
) -> None:
    """Results of the task that waits, too, as they come. That it waits is reported
    once, so that the group does not wait for it.
    """
    gate = Gate(stuck=0)
    made = Engine(
        forwarding(gate, max_in_flight=4),
        TOPICS | {"in": 2},
        processing_guarantee=guarantee,
        transaction_timeout_ms=1000,
        max_revoke_delay_ms=60_000,
    )
    task = made.open(WHOLE)
    sibling = made.open(WHOLE, partition=1)
    made.write("in", numbered([0], keys=10), partition=0)
    made.start()
    until(lambda: gate.called[0] == 1, made)
    made.write("in", numbered(range(1, 4), keys=10), partition=0)
    until(lambda: runs(task) == (0, ((1, 3),)), made)
    given_up(made, task)
    made.write("in", numbered(range(10, 20), keys=10), partition=1)
    other = TopicPartition("in", 1)
    until(lambda: sibling.progress.durable(other) == 10, made)
    began = made.host.now()
    until(lambda: made.host.now() > began + 1.5 * PROMPT_S, made)
    assert task.id in made.tasks
    assert task.drains_until is not None
    gate.let_go.set()
    events = closed(made, task)
    assert [type(event) for event in events] == [Drains, Closed]
    assert task.progress.durable(SOURCE) == 4
    made.stop()
    assert set(gate.called.values()) == {1}
    assert len(made.read("out").keys) == 14


@pytest.mark.parametrize("ended_by", ["time", "hurry", "pause"])
def test_the_wait_ends_after_its_limit_at_a_second_signal_and_when_nothing_is_processed(
    ended_by: str,
) -> None:
    held = Held()
    limit_ms = 100 if ended_by == "time" else 600_000
    made = Engine(forwarding(held), TOPICS, max_revoke_delay_ms=limit_ms)
    task = made.open(WHOLE)
    made.write("in", numbered([1]))
    made.start()
    until(lambda: held.called[1] == 1, made)
    given_up(made, task)
    if ended_by == "hurry":
        made.threads[0].hurry()
    elif ended_by == "pause":
        made.threads[0].pause(True)
    closed(made, task)
    made.threads[0].pause(False)
    held.let_go.set()
    made.open(WHOLE)
    finish(made, 1)
    assert held.called[1] == 2
