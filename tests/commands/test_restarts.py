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
    LogError,
    ProcessingError,
    TopologyError,
    UnknownTopicError,
)

RETRIED = st.sampled_from([0, FAILED, 137, -9, -15, -64])
ENDS = st.one_of(
    st.tuples(RETRIED, st.booleans(), st.booleans()),
    st.sampled_from([(WRONG, True, False), (WRONG, True, True), (WRONG, False, False)]),
)
"""Status, whether it ran, whether others go on; without a refusal while others do."""


@given(
    st.integers(0, 20),
    st.lists(st.tuples(ENDS, st.floats(0, 2 * FORGOTTEN_AFTER_S)), max_size=60),
)
def test_a_worker_is_started_again_as_long_as_a_row_of_ends_is_not_too_long(
    most: int, ends: list[tuple[tuple[int, bool, bool], float]]
) -> None:
    machine, now, row, last, rest = Restarts(1, most), 0.0, 0, -1e9, 0.0
    has_run = False
    for (status, ran, others), pause in ends:
        has_run = has_run or ran
        now += pause
        near = abs(now - last - FORGOTTEN_AFTER_S) < 1e-6
        row = 1 if now - last >= FORGOTTEN_AFTER_S else row + 1
        last = now
        verdict = machine.ended(status, "why", now, ran=ran, others=others)
        assert machine.refused is (status == WRONG)
        if near:
            return  # either is right
        if status == WRONG and not has_run:
            assert isinstance(verdict, Over)
            return
        if row > most:
            assert isinstance(verdict, Over)
            assert verdict.status == (128 - status if status < 0 else status or FAILED)
            return
        assert isinstance(verdict, Again)
        rest = 0.0 if row == 1 else min(MOST_REST_S, max(FIRST_REST_S, 2 * rest))
        assert verdict.rest_s == rest


@given(st.lists(RETRIED, max_size=5), st.booleans())
def test_a_refusal_of_a_worker_that_never_ran_ends_all(
    before: list[int], others: bool
) -> None:
    machine = Restarts(3, 10)
    for at, end in enumerate(before):
        assert isinstance(
            machine.ended(end, "", float(at), ran=False, others=True), Again
        )
    assert machine.ended(
        WRONG, "ConfigError: no such setting", 1000.0, ran=False, others=others
    ) == Over(
        WRONG,
        "worker 3 ended with status 2: ConfigError: no such setting; it has not run yet, and cannot before this is "
        "mended, so all are stopped",
    )


@given(st.booleans(), st.booleans())
def test_an_instance_that_stopped_the_application_ends_all_whatever_was_before(
    ran: bool, others: bool
) -> None:
    assert Restarts(3, 10).ended(STOPPED, "", 0.0, ran=ran, others=others) == Over(
        STOPPED,
        "worker 3 ended with status 3; the others end in the same way, so all are stopped",
    )


@given(st.integers(1, 5), st.integers(0, 40))
def test_a_worker_that_ran_is_refused_any_number_of_times_while_others_go_on_and_is_counted_when_none_does(
    most: int, times: int
) -> None:
    machine, now = Restarts(1, most), 0.0
    verdict = machine.ended(-9, "", now, ran=True, others=True)
    for refused in range(times):
        assert isinstance(verdict, Again)
        now += verdict.rest_s + 1
        verdict = machine.ended(
            WRONG, "ConfigError: the port is taken", now, ran=False, others=True
        )
        assert verdict == Again(
            min(MOST_REST_S, FIRST_REST_S * 2**refused),
            "worker 1 ended with status 2: ConfigError: the port is taken; starting it again in "
            f"{min(MOST_REST_S, FIRST_REST_S * 2**refused):g} s ({refused + 2} ends in a row; the others go on)",
        )
    last = machine.ended(WRONG, "", now, ran=False, others=False)
    assert isinstance(last, Over if times + 2 > most else Again)


def test_no_worker_is_started_again_if_nobody_wants_it() -> None:
    assert isinstance(Restarts(1, 0).ended(WRONG, "", 0.0, ran=True, others=True), Over)


def test_an_end_has_words() -> None:
    assert describe_end(0, "") == "ended normally after a signal from outside"
    assert describe_end(-9, "") == "was killed by SIGKILL"
    assert describe_end(-63, "") == "was killed by signal 63"
    assert describe_end(1, "LogError: gone") == "ended with status 1: LogError: gone"


def test_only_what_no_worker_can_heal_has_a_status_of_its_own() -> None:
    assert exit_status(ConfigError("")) == exit_status(TopologyError("")) == WRONG
    assert exit_status(UnknownTopicError("")) == WRONG, (
        "no start makes the topics of users"
    )
    assert exit_status(ApplicationStoppedError("")) == STOPPED
    assert exit_status(ProcessingError("")) == exit_status(LogError("")) == FAILED, (
        "the next try may go well"
    )
