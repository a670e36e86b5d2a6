"""Records that a failure handler retries later."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from coopstreams.common.config import Config
from coopstreams.tasks.events import Aborted
from coopstreams.tasks.failure_handlers import FailureHandler
from coopstreams.tasks.record_retries import TriedLaterError, Tries
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.topology import serdes
from coopstreams.topology.calls import Retry
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId
from tests.durations import ms
from tests.tasks.called import TOPICS, finish, numbered, until
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

TASK = TaskId(0, 0, WHOLE)
FAILURE = Failure(
    "processing",
    "map",
    ValueError("no"),
    TopicPartition("in", 0),
    42,
    b"k",
    b"v",
    7,
    None,
)


def asked(answer: Any, tries: Tries | None, task: TaskId | None = TASK) -> OnFailure:
    """Return a task's failure handler with a function that gives this answer."""
    config = Config.of(
        {"bootstrap.servers": "x:1", "processing.exception.handler": lambda _: answer},
        "app",
    )
    return FailureHandler(
        task, config, lambda *_: None, lambda *_: None, Sayings(), tries=tries
    )


def test_a_record_is_processed_again_so_many_times_after_growing_pauses() -> None:
    on_failure = asked(Retry(times=3, backoff=ms(1000), jitter=0), Tries())
    pauses = []
    for _ in range(3):
        with pytest.raises(
            TriedLaterError, match=r"offset 42.*; it is processed again in"
        ) as caught:
            on_failure(FAILURE)
        pauses.append(caught.value.pause_s)
    assert pauses == [1.0, 2.0, 4.0]
    with pytest.raises(ProcessingError, match=r"offset 42.*made a function raise"):
        on_failure(FAILURE)


def test_each_record_is_counted_anew_and_errors_of_other_kinds_are_failures() -> None:
    on_failure = asked(Retry(times=1, on=(ValueError,)), Tries())
    for offset in (42, 43, 42):
        with pytest.raises(TriedLaterError):
            on_failure(replace(FAILURE, offset=offset))
    with pytest.raises(ProcessingError, match="made a function raise"):
        on_failure(replace(FAILURE, error=KeyError("k")))


@pytest.mark.parametrize(
    ("tries", "task"), [(None, TASK), (Tries(), None)], ids=["driver", "global-table"]
)
def test_where_nothing_is_processed_again_the_answer_is_an_error(
    tries: Tries | None, task: TaskId | None
) -> None:
    with pytest.raises(ProcessingError, match="only a task of a running application"):
        asked(Retry(), tries, task)(FAILURE)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_a_task_is_given_up_until_the_pause_is_over_and_no_result_is_doubled(
    guarantee: str,
) -> None:
    attempts: list[int] = []
    met: Counter[int] = Counter()

    def fails_twice(value: int) -> int:
        met[value] += 1
        if value == 5 and met[value] < 3:
            raise ConnectionError("refused")
        return value

    def answer(failure: Failure) -> Any:
        attempts.append(failure.attempt)
        return Retry(times=5, backoff=ms(60_000), jitter=0)

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values(
        fails_twice, value=serdes.json
    ).group_by_key(value=serdes.json).reduce(
        lambda total, value: total + value, store="sums"
    ).to_stream().to("out")
    made = Engine(
        builder.build(),
        TOPICS,
        processing_guarantee=guarantee,
        processing_exception_handler=answer,
    )
    made.start()
    made.write("in", numbered(range(10)))
    for pause in (60.0, 120.0):
        task = made.open(WHOLE)
        until(lambda: not made.events.empty(), made)
        event = made.events.get(timeout=PATIENCE_S)
        assert isinstance(event, Aborted)
        assert event.held is not None
        assert event.held.task == task.id
        assert made.host.now() < event.held.until <= made.host.now() + pause
        assert "offset 5" in event.held.why
        assert "ConnectionError: refused" in event.held.why
        made.take(event)
    made.open(WHOLE)
    finish(made, 10)
    assert attempts == [1, 2]
    sums = [int(value or b"") for value in made.read("out").values]
    if guarantee == EXACTLY:
        assert sums == [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert sums[-1] == 45
