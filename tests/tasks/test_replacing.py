"""Replacing a dead stream thread: uncommitted work is repeated once, and repeated
deaths cause a back-off.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.common.backoff import FIRST_S, FORGOTTEN_AFTER_S, MOST_S, BackOff
from coopstreams.tasks.events import Closed, Failed
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

LEFT, RIGHT = KeyRange.split(2)
KEYS = [b"%d" % number for number in range(40)]
FOR_EVER_S = 1e6


def counting(refused: list[bytes]) -> Topology:
    """Count values; each of `refused` fails the first time."""

    def check(_: str, value: bytes) -> bool:
        if value in refused:
            refused.remove(value)
            raise ZeroDivisionError(value)
        return True

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.raw).filter(
        check
    ).group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def engine(guarantee: str, refused: list[bytes]) -> Engine:
    made = Engine(
        counting(refused), {"in": 1, "out": 1}, processing_guarantee=guarantee
    )
    made.write("in", [(key, b"%d" % at, at) for at, key in enumerate(KEYS * 3)])
    return made


def replace(made: Engine, deaths: int) -> None:
    """Move records until this many threads have died and were replaced."""
    while deaths:
        made.dispatcher.move(0.01)
        while not made.events.empty():
            event = made.events.get()
            assert isinstance(event, Failed)
            assert isinstance(event.error, ProcessingError)
            for key_range in made.replace(event):
                made.open(key_range)
            deaths -= 1


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("ranges", [[WHOLE], [LEFT, RIGHT]], ids=["whole", "halves"])
def test_the_successor_of_a_thread_does_again_what_was_not_committed_and_nothing_else(
    guarantee: str, ranges: list[KeyRange]
) -> None:
    refused = [b"50", b"70", b"119"]
    made = engine(guarantee, refused)
    for key_range in ranges:
        made.open(key_range)
    made.start()
    replace(made, 3)
    made.settle()
    made.stop()
    assert not refused
    if guarantee == EXACTLY:
        assert made.counted() == {key: [1, 2, 3] for key in KEYS}
    else:
        assert {
            key: (min(seen), max(seen)) for key, seen in made.counted().items()
        } == dict.fromkeys(KEYS, (1, 3))


def test_a_task_that_the_dead_thread_was_never_told_of_is_opened_again_too() -> None:
    made = engine(EXACTLY, [b"0"])
    made.open(WHOLE)
    made.start()
    while made.events.empty():
        made.dispatcher.move(0.01)
    made.write("in", [(KEYS[0], b"other", 0)], partition=0)
    [(task, _)] = made.tasks.values()
    late = made.task(WHOLE)
    made.dispatcher.close(task)
    made.tasks[task.id] = late, made.threads[0]
    made.threads[0].open(late)  # no thread reads its inbox
    failed = made.events.get(timeout=PATIENCE_S)
    assert isinstance(failed, Failed)
    assert made.replace(failed) == [WHOLE]
    assert late.closed
    made.open(WHOLE)
    made.settle()
    made.stop()
    assert made.counted() == {
        key: [1, 2, 3] if key != KEYS[0] else [1, 2, 3, 4] for key in KEYS
    }


def test_a_thread_that_rests_gives_up_tasks_and_ends_at_once() -> None:
    made = engine(EXACTLY, [b"0"])
    made.open(WHOLE)
    made.start()
    while made.events.empty():
        made.dispatcher.move(0.01)
    failed = made.events.get()
    assert isinstance(failed, Failed)
    made.replace(failed, FOR_EVER_S)
    task = made.open(WHOLE)
    assert made.dispatcher.move(PATIENCE_S) == len(KEYS * 3)
    made.threads[0].close((task,), clean=True)
    assert made.events.get(timeout=PATIENCE_S) == Closed(task)
    resting = made.threads[0].successor(FOR_EVER_S)
    assert made.threads[0].stop(PATIENCE_S)
    resting.start()
    assert resting.stop(PATIENCE_S)
    assert len(made.read("out", committed_only=False)) == 0, (
        "the records in front of it were left to the next owner"
    )


@given(st.lists(st.floats(0, 2 * FORGOTTEN_AFTER_S), min_size=1, max_size=30))
def test_who_dies_again_soon_rests_and_longer_each_time(pauses: list[float]) -> None:
    back_off, now, before = BackOff(), 0.0, 0.0
    for first, pause in zip([True] + [False] * len(pauses), pauses, strict=False):
        now += pause
        rest_s = back_off.died(now)
        if first or pause >= FORGOTTEN_AFTER_S + 1e-6:
            assert rest_s == 0
        elif pause < FORGOTTEN_AFTER_S - 1e-6:
            assert rest_s == min(MOST_S, max(FIRST_S, 2 * before))
        before = rest_s
