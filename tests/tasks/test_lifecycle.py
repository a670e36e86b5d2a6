"""The state of an instance: the calls of its listener, and the answers of an error
handler.
"""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import StreamsState, StreamThreadExceptionResponse
from coopstreams.tasks.events import Failed
from coopstreams.tasks.lifecycle import Lifecycle
from coopstreams.topology.errors import ApplicationStoppedError, ConfigError

REPLACE, CLIENT, ALL = StreamThreadExceptionResponse
ERROR = ValueError("a record")


def test_the_listener_is_called_with_each_change_and_with_no_other_state() -> None:
    heard: list[tuple[StreamsState, StreamsState]] = []
    lifecycle = Lifecycle(on_state=lambda new, old: heard.append((new, old)))
    for state in (
        StreamsState.REBALANCING,
        StreamsState.REBALANCING,
        StreamsState.RUNNING,
    ):
        lifecycle.to(state)
    assert heard == [
        (StreamsState.REBALANCING, StreamsState.CREATED),
        (StreamsState.RUNNING, StreamsState.REBALANCING),
    ]
    assert lifecycle.state is StreamsState.RUNNING


@pytest.mark.parametrize(
    ("answer", "failure", "response"),
    [
        (None, Failed(ERROR, "thread 1", thread=1), CLIENT),
        (REPLACE, Failed(ERROR, "thread 1", thread=1), REPLACE),
        (REPLACE, Failed(ERROR, "control thread"), CLIENT),
        (ALL, Failed(ERROR, "control thread"), ALL),
        (
            ALL,
            Failed(ApplicationStoppedError("another instance"), "control thread"),
            CLIENT,
        ),
    ],
)
def test_the_handler_answers_for_errors_of_this_instance_and_only_stream_threads_are_replaced(
    answer: StreamThreadExceptionResponse | None,
    failure: Failed,
    response: StreamThreadExceptionResponse,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_error = None if answer is None else lambda _: answer
    assert Lifecycle(on_error=on_error).response(failure) is response
    assert ("it was the control thread that failed" in caplog.text) == (
        answer is REPLACE and response is CLIENT
    )


def test_the_error_of_which_a_handler_was_told_is_logged_if_the_handler_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Any = {}
    with pytest.raises(KeyError):
        Lifecycle(on_error=answers.__getitem__).response(
            Failed(ERROR, "thread 1", thread=1)
        )
    assert (
        f"thread 1: {type(ERROR).__name__}: {ERROR}; the instance ends because on_error raised"
        in caplog.text
    )


def test_an_answer_that_is_none_of_the_responses_is_an_error_that_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Any = {ERROR: "replace-thread"}.get
    with pytest.raises(
        ConfigError,
        match=r"returned 'replace-thread': it must be one of .*REPLACE_THREAD",
    ) as raised:
        Lifecycle(on_error=answers).response(Failed(ERROR, "thread 1", thread=1))
    assert raised.value.__cause__ is ERROR
    assert (
        f"thread 1: {type(ERROR).__name__}: {ERROR}; the instance ends" in caplog.text
    )
