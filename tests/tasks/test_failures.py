"""Failure handlers: a failed record stops the instance, is counted, or is written to
the dead-letter topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import pytest

from coopstreams.common.config import HANDLERS, Config
from coopstreams.tasks.failure_handlers import (
    Answer,
    FailureHandler,
    dead_letter_headers,
    describe_failure,
    place_of,
)
from coopstreams.tasks.repeated_warnings import FIRST, Sayings
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ConfigError, ProcessingError
from coopstreams.topology.failures import Failure, Phase
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

TASK = TaskId(1, 3, KeyRange.of_groups(0, 127))
PHASES: tuple[Phase, ...] = get_args(Phase)


def raised(error: Exception) -> Exception:
    """Return an error with a traceback."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 whatever it is
        return caught


FAILURE = Failure(
    "processing",
    "KSTREAM-MAP-1",
    raised(ValueError("no such colour")),
    TopicPartition("orders", 3),
    42,
    b"k",
    b"v",
    7,
    [("a", b"b")],
)


def settings(**answers: str) -> Config:
    given = {f"{phase}.exception.handler": answer for phase, answer in answers.items()}
    return Config.of(
        {"bootstrap.servers": "x:1", "errors.dead.letter.queue.topic.name": "dead"}
        | given,
        "app",
    )


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("answer", HANDLERS)
def test_each_phase_has_its_own_answer(
    phase: Phase, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[tuple[Failure, str]] = []
    dead: list[tuple[Failure, Headers, str]] = []
    failure = replace(FAILURE, phase=phase)
    on_failure = FailureHandler(
        TASK,
        settings(**{phase: answer}),
        lambda *one: counted.append(one),
        lambda *letter: dead.append(letter),
        Sayings(),
    )
    with caplog.at_level(logging.WARNING):
        if answer == "fail":
            with pytest.raises(
                ProcessingError,
                match=f"set {phase}.exception.handler to continue or dead-letter",
            ) as caught:
                on_failure(failure)
            assert caught.value.__cause__ is failure.error
        else:
            on_failure(failure)
    assert counted == ([] if answer == "fail" else [(failure, answer)])
    assert [letter[0] for letter in dead] == (
        [failure] if answer == "dead-letter" else []
    )
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("coopstreams.tasks")
    ]
    assert len(said) == (0 if answer == "fail" else 1)
    assert all("offset 42" in message for message in said)


def letters_of(answer: object, **more: object) -> tuple[list[str], list[Failure]]:
    """Return the counts and the dead letters of a handler function that gives this
    answer.
    """
    counted: list[str] = []
    dead: list[Failure] = []
    given = {"bootstrap.servers": "x:1", "processing.exception.handler": answer} | more
    on_failure = FailureHandler(
        TASK,
        Config.of(given, "app"),
        lambda _, said: counted.append(said),
        lambda failure, *_: dead.append(failure),
        Sayings(),
    )
    on_failure(FAILURE)
    return counted, dead


DEAD = {"errors.dead.letter.queue.topic.name": "dead"}


def answers(failure: Failure) -> str:
    return "continue" if failure.offset == 42 else "fail"


def test_a_function_says_what_becomes_of_each_failure() -> None:
    assert letters_of(answers) == (["continue"], [])
    assert letters_of("tests.tasks.test_failures:answers") == (["continue"], [])
    assert letters_of(lambda _: "dead-letter", **DEAD) == (["dead-letter"], [FAILURE])
    with pytest.raises(ProcessingError, match=r"offset 42.*no such colour") as caught:
        letters_of(lambda _: "fail")
    assert caught.value.__cause__ is FAILURE.error


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda _: "drop",
            "answered 'drop': it must be one of fail, continue, dead-letter",
        ),
        (lambda _: None, "answered None"),
        (lambda _: 1 // 0, "raised ZeroDivisionError.*test_failures.py, line"),
        (
            lambda _: "dead-letter",
            "errors.dead.letter.queue.topic.name is not set: name it",
        ),
    ],
)
def test_a_function_that_answers_anything_else_stops_the_process(
    answer: object, says: str
) -> None:
    with pytest.raises(
        ProcessingError, match=f"offset 42.*processing.exception.handler .*{says}"
    ):
        letters_of(answer)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "drop",
            "one of fail, continue, dead-letter, or a function, package.module:function",
        ),
        ("tests.tasks.test_failures:nobody", "has no attribute 'nobody'"),
        ("tests.nowhere:answers", "No module named"),
        ("tests.tasks.test_failures:PHASES", "a function; .* is a tuple"),
        (7, "one of fail"),
    ],
)
def test_a_handler_that_is_none_is_refused_at_the_start(
    value: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"processing.exception.handler = .*{says}"):
        letters_of(value)


def test_a_failure_names_task_topic_partition_offset_node_and_reason() -> None:
    said = describe_failure(TASK, FAILURE)
    for part in (
        "task 1_3[0..127]",
        '"orders" partition 3 offset 42',
        "KSTREAM-MAP-1",
        "ValueError: no such colour",
    ):
        assert part in said
    held = replace(FAILURE, offset=None)
    assert (
        """what was held back with key b'k', behind "orders" partition 3, made"""
        in describe_failure(TASK, held)
    )
    assert "what belongs to no record, a punctuation perhaps, made" in describe_failure(
        TASK, replace(held, key=None)
    )


def test_a_dead_letter_keeps_its_headers_and_says_what_happened() -> None:
    own, *said = dead_letter_headers(TASK, FAILURE)
    found = {
        name.removeprefix("__coopstreams.errors."): (text or b"").decode()
        for name, text in said
    }
    assert own == ("a", b"b")
    assert "test_failures.py" in found.pop("stacktrace")
    assert found == {
        "exception": "ValueError",
        "message": "no such colour",
        "phase": "processing",
        "node": "KSTREAM-MAP-1",
        "task": "1_3[0..127]",
        "topic": "orders",
        "partition": "3",
        "offset": "42",
    }


def test_a_failure_that_belongs_to_no_record_has_no_offset() -> None:
    headers = dead_letter_headers(TASK, replace(FAILURE, offset=None, headers=None))
    assert "__coopstreams.errors.offset" not in [name for name, _ in headers]


def test_an_error_that_quotes_a_large_value_makes_no_large_letter() -> None:
    headers: dict[str, Any] = dict(
        dead_letter_headers(
            TASK,
            replace(FAILURE, error=raised(ValueError("a" * 500_000 + "z" * 500_000))),
        )
    )
    assert sum(map(len, headers.values())) < 20_000
    assert headers["__coopstreams.errors.message"].startswith(b"aaa")
    assert headers["__coopstreams.errors.stacktrace"].startswith(b"Traceback")
    assert headers["__coopstreams.errors.stacktrace"].rstrip().endswith(b"zzz")


@pytest.mark.parametrize("message", ["half a character: \ud83d", "grüße"])
def test_an_error_whose_text_is_no_unicode_still_becomes_a_header(message: str) -> None:
    headers: dict[str, Any] = dict(
        dead_letter_headers(TASK, replace(FAILURE, error=raised(ValueError(message))))
    )
    assert (
        headers["__coopstreams.errors.message"].decode()
        == message.encode(errors="backslashreplace").decode()
    )


def test_where_no_letters_are_written_none_is_said_to_be_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fates: dict[Answer, str] = {
        "continue": "dropped",
        "dead-letter": "left out, no letter is written",
    }
    FailureHandler(
        TASK,
        settings(processing="dead-letter"),
        lambda *_: None,
        lambda *_: None,
        Sayings(),
        fates,
    )(FAILURE)
    assert caplog.records[0].getMessage().endswith("; left out, no letter is written")


def test_of_many_alike_the_first_are_logged_one_by_one_and_the_rest_counted_and_the_last_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sayings = Sayings()
    on_failure = FailureHandler(
        TASK, settings(processing="continue"), lambda *_: None, lambda *_: None, sayings
    )
    for offset in range(3535):
        on_failure(replace(FAILURE, offset=offset))
    on_failure(replace(FAILURE, node="KSTREAM-FILTER-2", offset=7))
    sayings.tick()
    assert len(caplog.records) == FIRST + 1
    assert [
        f"offset {offset} " in caplog.records[offset].getMessage()
        for offset in range(FIRST)
    ] == [True] * FIRST
    assert "KSTREAM-FILTER-2" in caplog.records[-1].getMessage(), (
        "another node is another kind"
    )
    sayings.close()
    [*_, last] = caplog.records
    for part in (
        f"{3535 - FIRST:,} more like this, 3,535 so far",
        "offset 3534 ",
        "KSTREAM-MAP-1",
        "dropped",
    ):
        assert part in last.getMessage()
    sayings.close()
    assert caplog.records[-1] is last


def mine(value: str) -> int:
    return int(value)


def of_a_library(value: str) -> object:
    return Fraction(value)


@pytest.mark.parametrize("function", [mine, of_a_library])
def test_an_error_of_a_function_says_its_file_and_line_and_where_the_traceback_is(
    function: Callable[[str], object],
) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).map_values(
        function, value=serdes.json
    ).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError) as caught,
    ):
        driver.input("in", serdes.text, serdes.text).send("k", "no number")
    line = function.__code__.co_firstlineno + 1
    assert f"({__file__}, line {line}, in {function.__name__})" in str(caught.value)
    assert "traceback is logged with -v" in str(caught.value)


def test_an_error_in_which_no_code_of_the_user_ran_has_no_line() -> None:
    assert place_of(ValueError("never raised")) == ""
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).filter(
        lambda _, value: value > 1
    ).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError) as caught,
    ):
        driver.input("in", serdes.text, serdes.raw).send("k", b"short")
    assert ", line " not in str(caught.value)
