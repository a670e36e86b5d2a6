"""Tasks that are closed while calls are under way."""

from __future__ import annotations

import pytest

from coopstreams.topology.calls import CallOrder
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from tests.tasks.called import SOURCE, TOPICS, Held, done, forwarding, until
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine


@pytest.mark.parametrize("order", ["key", "partition", "none"])
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("ends", [False, True], ids=["moves", "process-ends"])
def test_a_task_is_closed_when_the_calls_under_way_have_ended(order: CallOrder, guarantee: str, ends: bool) -> None:
    """They are in its last commit, so the next owner makes the others only."""
    held = Held()
    topology = forwarding(held, max_in_flight=3, order=order)
    made = Engine(topology, TOPICS | {"in": 2}, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    sibling = made.open(WHOLE, partition=1)
    made.write("in", [(b"k%d" % number, b"%d" % number, number) for number in range(10)], partition=0)
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
    """The task is discarded with all others of its thread; it is closed nevertheless, once."""
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
    until(done(made, 1), made)
    made.stop()
    assert held.called[1] == 2
