"""The rule of restarts and of ending all workers, and that every history obeys it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commands.processes.restarts import (
    FAILED,
    FIRST_REST_S,
    FORGOTTEN_AFTER_S,
    MOST_REST_S,
    STOPPED,
    WRONG,
    Again,
    Over,
    Restarts,
    describe_end,
    exit_status,
)
from coopstreams.topology.errors import (
    ApplicationStoppedError,
    ConfigError,
    ProcessingError,
    TopologyError,
    UnknownTopicError,
)

RETRIED = st.sampled_from([0, FAILED, 137, -9, -15, -64])


@given(st.integers(0, 20), st.lists(st.tuples(RETRIED, st.floats(0, 2 * FORGOTTEN_AFTER_S)), max_size=60))
def test_a_worker_is_started_again_as_long_as_a_row_of_ends_is_not_too_long(
    most: int, ends: list[tuple[int, float]]
) -> None:
    machine, now, row, last, rest = Restarts(1, most), 0.0, 0, -1e9, 0.0
    for status, pause in ends:
        now += pause
        near = abs(now - last - FORGOTTEN_AFTER_S) < 1e-6
        row = 1 if now - last >= FORGOTTEN_AFTER_S else row + 1
        last = now
        verdict = machine.ended(status, "why", now)
        if near:
            return  # either is right
        if row > most:
            assert isinstance(verdict, Over)
            assert verdict.status == (128 - status if status < 0 else status or FAILED)
            return
        assert isinstance(verdict, Again)
        rest = 0.0 if row == 1 else min(MOST_REST_S, max(FIRST_REST_S, 2 * rest))
        assert verdict.rest_s == rest


@given(st.lists(RETRIED, max_size=5), st.sampled_from([WRONG, STOPPED]))
def test_what_would_end_every_worker_ends_all_whatever_was_before(before: list[int], status: int) -> None:
    machine = Restarts(3, 10)
    for at, end in enumerate(before):
        assert isinstance(machine.ended(end, "", float(at)), Again)
    assert machine.ended(status, "ConfigError: no such setting", 1000.0) == Over(
        status,
        f"worker 3 ended with status {status}: ConfigError: no such setting; the others would end in the same way, so "
        "all are stopped",
    )


def test_an_end_has_words() -> None:
    assert describe_end(0, "") == "ended normally after a signal from outside"
    assert describe_end(-9, "") == "was killed by SIGKILL"
    assert describe_end(-63, "") == "was killed by signal 63"
    assert describe_end(1, "LogError: gone") == "ended with status 1: LogError: gone"


def test_only_what_no_worker_can_heal_has_a_status_of_its_own() -> None:
    assert exit_status(ConfigError("")) == exit_status(TopologyError("")) == WRONG
    assert exit_status(ApplicationStoppedError("")) == STOPPED
    assert exit_status(ProcessingError("")) == exit_status(UnknownTopicError("")) == FAILED, (
        "somebody may mend the data, or make the topic"
    )
