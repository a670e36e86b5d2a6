"""What becomes of a record that fails: it stops the instance, or it is counted, or it is in the dead-letter topic. Never silence."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, get_args

import pytest

from coopstreams.config import HANDLERS, Config
from coopstreams.tasks.failures import dead_letter_headers, describe_failure, handler
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.failures import Failure, Phase
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

TASK = TaskId(1, 3, KeyRange.of_groups(0, 127))
PHASES: tuple[Phase, ...] = get_args(Phase)


def raised(error: Exception) -> Exception:
    """Return an error that has a traceback."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 whatever it is
        return caught


FAILURE = Failure("processing", "KSTREAM-MAP-1", raised(ValueError("no such colour")), TopicPartition("orders", 3), 42, b"k", b"v", 7, [("a", b"b")])


def settings(**answers: str) -> Config:
    given = {f"{phase}.exception.handler": answer for phase, answer in answers.items()}
    return Config.of({"bootstrap.servers": "x:1", "errors.dead.letter.queue.topic.name": "dead"} | given, "app")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("answer", HANDLERS)
def test_each_phase_has_its_own_answer(phase: Phase, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    dead: list[tuple[Failure, Headers]] = []
    failure = replace(FAILURE, phase=phase)
    on_failure = handler(TASK, settings(**{phase: answer}), counted.append, lambda *letter: dead.append(letter))
    with caplog.at_level(logging.WARNING):
        if answer == "fail":
            with pytest.raises(ProcessingError, match=f"set {phase}.exception.handler to continue or dead-letter") as caught:
                on_failure(failure)
            assert caught.value.__cause__ is failure.error
        else:
            on_failure(failure)
    assert counted == ([] if answer == "fail" else [phase])
    assert [letter[0] for letter in dead] == ([failure] if answer == "dead-letter" else [])
    said = [record.getMessage() for record in caplog.records if record.name.startswith("coopstreams.tasks")]
    assert len(said) == (0 if answer == "fail" else 1)
    assert all("offset 42" in message for message in said)


def test_a_failure_names_task_topic_partition_offset_node_and_reason() -> None:
    said = describe_failure(TASK, FAILURE)
    for part in ("task 1_3[0..127]", '"orders" partition 3 offset 42', "KSTREAM-MAP-1", "ValueError: no such colour"):
        assert part in said
    assert "from the record cache" in describe_failure(TASK, replace(FAILURE, offset=None))


def test_a_dead_letter_keeps_its_headers_and_says_what_happened() -> None:
    own, *said = dead_letter_headers(TASK, FAILURE)
    found = {name.removeprefix("__coopstreams.errors."): (text or b"").decode() for name, text in said}
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
    headers: dict[str, Any] = dict(dead_letter_headers(TASK, replace(FAILURE, error=raised(ValueError("a" * 500_000 + "z" * 500_000)))))
    assert sum(map(len, headers.values())) < 20_000
    assert headers["__coopstreams.errors.message"].startswith(b"aaa")
    assert headers["__coopstreams.errors.stacktrace"].startswith(b"Traceback")
    assert headers["__coopstreams.errors.stacktrace"].rstrip().endswith(b"zzz")


@pytest.mark.parametrize("message", ["half a character: \ud83d", "grüße"])
def test_an_error_whose_text_is_no_unicode_still_becomes_a_header(message: str) -> None:
    headers: dict[str, Any] = dict(dead_letter_headers(TASK, replace(FAILURE, error=raised(ValueError(message)))))
    assert headers["__coopstreams.errors.message"].decode() == message.encode(errors="backslashreplace").decode()
