"""What happens to a record that fails: the application's handlers say `fail`, `continue` or `dead-letter`.

Invariant: no failure is silent: it stops the instance, or it is counted and logged, or it is a record in the dead-letter topic,
written in the same transaction as the results around it.
Source: KIP-161, KIP-1033 (handlers), KIP-1034 (dead-letter topic and its headers).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from coopstreams.config import Config
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

MOST_SAID = 8000
"""Characters of an error's text in a header: one that quotes a large value would make a letter that no broker takes."""


def describe_failure(task: TaskId | None, failure: Failure) -> str:
    """Return the failure in a sentence that names task, node, topic, partition and offset. No task: a global table."""
    at = f"offset {failure.offset}" if failure.offset is not None else "from the record cache"
    did = {"deserialization": "cannot be read", "processing": "made a function raise", "production": "gave a result that cannot be written"}[
        failure.phase
    ]
    whose = "global tables" if task is None else f"task {task}"
    return (
        f'{whose}: the record at "{failure.source.topic}" partition {failure.source.partition} {at} '
        f"{did} at {failure.node}: {type(failure.error).__name__}: {failure.error}"
    )


def dead_letter_headers(task: TaskId | None, failure: Failure) -> Headers:
    """Return the record's headers with those that say what happened.

    Source: KIP-1034 `__streams.errors.*`.
    """
    said = {
        "exception": type(failure.error).__name__,
        "message": str(failure.error),
        "stacktrace": "".join(traceback.format_exception(failure.error)),
        "phase": failure.phase,
        "node": failure.node,
        "topic": failure.source.topic,
        "partition": str(failure.source.partition),
    }
    if task is not None:
        said["task"] = str(task)
    if failure.offset is not None:  # what the record cache held back belongs to no record
        said["offset"] = str(failure.offset)
    # An error may quote what is no Unicode: a letter that cannot be written would stop the instance.
    coded = ((f"__coopstreams.errors.{name}", _shortened(text).encode(errors="backslashreplace")) for name, text in said.items())
    return [*(failure.headers or ()), *coded]


def handler(task: TaskId | None, config: Config, count: Callable[[str], None], dead_letter: Callable[[Failure, Headers], None]) -> OnFailure:
    """Return what a task's program, or without a task a global table, calls when a record fails, as the configuration wants it.

    Raises (the returned function):
        ProcessingError: the handler of the phase says `fail`.
    """

    def on_failure(failure: Failure) -> None:
        answer = config[f"{failure.phase}.exception.handler"]
        message = describe_failure(task, failure)
        if answer == "fail":
            cure = f"Mend the data or the function, or set {failure.phase}.exception.handler to continue or dead-letter."
            raise ProcessingError(f"{message}. {cure}") from failure.error
        count(failure.phase)
        log.warning("%s; %s", message, "dropped" if answer == "continue" else "sent to the dead-letter topic")
        if answer == "dead-letter":
            dead_letter(failure, dead_letter_headers(task, failure))

    return on_failure


def _shortened(text: str) -> str:
    """The beginning and the end of a long text: of a stack trace, both matter."""
    half = MOST_SAID // 2
    return text if len(text) <= MOST_SAID else f"{text[:half]} ... {text[-half:]}"
