"""Failure handlers: they decide what happens to a record that fails.

The configuration says `fail`, `continue` or `dead-letter`, or names a function that
returns one of these for each failure, or a `Retry`: the record is processed again
later.

Invariant: no failure is silent. It stops the instance; or it is counted and logged; or
it becomes a record in the dead-letter topic, written in the same transaction as the
results around it; or its task is given up until the record is processed again
(`record_retries`). Of similar failures the first are logged one by one, the rest as a
count (`repeated_warnings`).
Source: KIP-161, KIP-1033 (handlers), KIP-1034 (dead-letter topic and its headers).
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias
from zlib import crc32

from coopstreams.common.config import HANDLERS, Config
from coopstreams.tasks.record_retries import Attempts, TriedLaterError
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.topology.calls import Retry
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import (
    InvalidTimestampError,
    LogError,
    ProcessingError,
    SerdeError,
)
from coopstreams.topology.failures import Failure, Phase
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.schemas import registry_is_away
from coopstreams.topology.task_id import TaskId

Answer: TypeAlias = Literal["continue", "dead-letter"]
"""The answers of a handler other than `fail`."""
Count: TypeAlias = Callable[[Failure, Answer], None]

FATES: Mapping[Answer, str] = {
    "continue": "dropped",
    "dead-letter": "sent to the dead-letter topic",
}
"""What happens to a failed record, in words, by answer."""
_OURS = Path(__file__).parents[1]
_ROOMS = {
    folder
    for room in ("", "topology", "state")
    for folder in (_OURS / room, (_OURS / room).resolve())
}
_OUR_FOLDERS = tuple(f"{folder}{os.sep}" for folder in map(str, _ROOMS))
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {
        *map(str, _ROOMS),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    }
)
"""The folders of code that is not the user's: coopstreams (its rooms may be links),
Python, installed packages.
"""
UNAVAILABLE_PAUSE_S = 1.0
"""How long a task pauses while the schema registry does not answer."""
MOST_SAID = 8000
"""The most characters of an error's text in a header. An error that quotes a large
value would make the record too large.
"""


def dead_letter_topics(topology: Structure, config: Config) -> tuple[str, ...]:
    """Return all topics to which dead letters may be written."""
    of_all = config["errors.dead.letter.queue.topic.name"]
    return tuple(
        dict.fromkeys(
            [*([of_all] if of_all else []), *topology.dead_letter_topics.values()]
        )
    )


@contextmanager
def paused_without_registry(task: TaskId) -> Iterator[None]:
    """Raise `TriedLaterError` in place of an error that says that the schema registry
    does not answer.

    For owners that can open the task again later. For a backfill and a test driver it
    stays an error.

    Raises:
        TriedLaterError: the schema registry does not answer.
    """
    try:
        yield
    except SerdeError as error:
        if registry_is_away(error):
            raise TriedLaterError(
                f"task {task}: {error}",
                task,
                UNAVAILABLE_PAUSE_S,
            ) from error
        raise


def may_drop(
    config: Config,
    phases: Iterable[Phase] = ("deserialization", "processing"),
) -> bool:
    """Return whether a handler of these phases may drop a failed record."""
    return any(config[f"{phase}.exception.handler"] != "fail" for phase in phases)


def describe_failure(task: TaskId | None, failure: Failure) -> str:
    """Return a sentence that names task, node, topic, partition and offset of a
    failure.

    `task` None: a global table failed. A held-back result has no offset; its own key is
    named.
    """
    where = f'"{failure.source.topic}" partition {failure.source.partition}'
    what = f"what was held back with key {failure.key!r}, behind {where},"
    if failure.offset is not None:
        what = f"the record at {where} offset {failure.offset}"
    elif failure.key is None:
        what = "what belongs to no record, a punctuation perhaps,"
    did = {
        "deserialization": "cannot be read",
        "processing": "made a function raise",
        "production": "gave a result that cannot be written",
    }[failure.phase]
    if isinstance(failure.error, InvalidTimestampError):
        did = "has no valid timestamp"
    whose = "global tables" if task is None else f"task {task}"
    error = f"{type(failure.error).__name__}: {failure.error}{place_of(failure.error)}"
    return f"{whose}: {what} {did} at {failure.node}: {error}"


def place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in an error's traceback, to end a
    message; empty if there is none.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost(frames)


def place_in(thread: int) -> str:
    """Return the innermost line of the user's code that the thread with this id runs
    now, to end a message; empty if there is none.
    """
    frame = sys._current_frames().get(thread)
    return _innermost(traceback.extract_stack(frame))


def is_ours(file: str) -> bool:
    """Return whether a source file belongs to coopstreams."""
    return file.startswith(_OUR_FOLDERS)


def is_users(file: str) -> bool:
    """Return whether a source file is the user's: not of coopstreams, of Python or of
    an installed package.
    """
    return not file.startswith(("<", *_LIBRARIES))


def _innermost(frames: traceback.StackSummary) -> str:
    """Return the last of these frames that is in the user's code, as `place_of` does."""
    own = [frame for frame in frames if is_users(frame.filename)]
    return (
        f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})"
        if own
        else ""
    )


def dead_letter_headers(task: TaskId | None, failure: Failure) -> Headers:
    """Return the headers of the failed record plus those that describe the failure.

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
    if failure.offset is not None:  # what was held back belongs to no single record
        said["offset"] = str(failure.offset)
    # An error may quote invalid Unicode: a dead letter that cannot be encoded would
    # stop the instance.
    coded = (
        (
            f"__coopstreams.errors.{name}",
            _shortened(text).encode(errors="backslashreplace"),
        )
        for name, text in said.items()
    )
    return [*(failure.headers or ()), *coded]


@dataclass(frozen=True, slots=True)
class FailureHandler:
    """The configured failure handler of a task's program, or of a global table if
    `task` is None.

    Raises (a call):
        ProcessingError: the handler of the phase says `fail`.
        TriedLaterError: the handler says `Retry`, or the schema registry does not
        answer.
        LogError: retryable: the schema registry does not answer, and the owner cannot
        process the record again later.
    """

    task: TaskId | None
    config: Config
    count: Count
    dead_letter: Callable[[Failure, Headers, str], None]
    """Writes the failed record with these headers to a topic."""
    sayings: Sayings
    fates: Mapping[Answer, str] = field(default_factory=lambda: FATES)
    """What becomes of the record, in words, by answer."""
    tries: Attempts | None = None
    """The attempts at records in this instance; None: the owner cannot process a record
    again later.
    """
    topics: Mapping[str, str] = field(default_factory=dict)
    """The dead-letter topic of each node that has its own."""

    def __call__(self, failure: Failure) -> None:
        """Count, log and leave out the failed record, or raise."""
        message = describe_failure(self.task, failure)
        if self.task is not None and self.tries is not None:
            attempt = self.tries.attempt(self.task, failure)
            failure = replace(failure, attempt=attempt)
        # before any handler is asked: the record may be good
        if registry_is_away(failure.error):
            self._wait_for_registry(failure, message)
        own = self.topics.get(failure.node) if failure.phase == "processing" else None
        answer = self._answer(failure, message) if own is None else "dead-letter"
        if isinstance(answer, Retry):
            self._try_later(answer, failure, message)
            answer = "fail"  # it was tried often enough
        if answer == "fail":
            cure = f"Mend the data or the function, or set {failure.phase}.exception.handler to continue or dead-letter."
            raise ProcessingError(
                f"{message}. {cure} The traceback is logged with -v."
            ) from failure.error
        self.count(failure, answer)
        self.sayings.warn(
            (failure.phase, failure.node, failure.source.topic),
            f"{message}; {self.fates[answer]}",
        )
        if answer == "dead-letter":
            topic = own or self.config["errors.dead.letter.queue.topic.name"]
            headers = dead_letter_headers(self.task, failure)
            self.dead_letter(failure, headers, topic)

    def _wait_for_registry(self, failure: Failure, message: str) -> NoReturn:
        """Raise the error that pauses the task."""
        if self.task is None or self.tries is None:
            raise LogError(message, retryable=True) from failure.error
        raise TriedLaterError(message, self.task, UNAVAILABLE_PAUSE_S)

    def _try_later(
        self,
        retry: Retry,
        failure: Failure,
        message: str,
    ) -> None:
        """Raise the error that pauses the task; return if the record has failed too
        often for `retry`.
        """
        if self.task is None or self.tries is None:
            raise ProcessingError(
                f"{message}. The handler answered {retry}, but only a task of a running application processes a "
                "record again later, not a global table, a backfill or a test driver"
            ) from failure.error
        if retry.again(failure.attempt, failure.error):
            self.tries.note(self.task, failure)
            # Tasks that fail together come back one by one.
            chance = crc32(str(self.task).encode()) / (1 << 32)
            pause_s = retry.pause_s(failure.attempt, chance)
            raise TriedLaterError(message, self.task, pause_s)

    def _answer(
        self,
        failure: Failure,
        message: str,
    ) -> Literal["fail"] | Answer | Retry:
        """Return the answer of the phase's handler.

        Raises:
            ProcessingError: the handler is a function that raises, or that returns
            anything else.
        """
        handler = self.config[f"{failure.phase}.exception.handler"]
        if not callable(handler):
            return handler  # type: ignore[no-any-return]
        function = getattr(handler, "__qualname__", handler)
        name = f"{failure.phase}.exception.handler ({function})"
        try:
            answer = handler(failure)
        except Exception as error:
            raise ProcessingError(
                f"{message}. {name} raised {type(error).__name__}: {error}{place_of(error)}"
            ) from error
        if isinstance(answer, Retry):
            return answer
        if answer not in HANDLERS:
            raise ProcessingError(
                f"{message}. {name} answered {answer!r}: it must be one of {', '.join(HANDLERS)}, or a Retry"
            )
        topic = self.config["errors.dead.letter.queue.topic.name"]
        if answer == "dead-letter" and topic is None:
            raise ProcessingError(
                f"{message}. {name} answered dead-letter, but errors.dead.letter.queue.topic.name is not set: name it"
            )
        return answer  # type: ignore[no-any-return]


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text. Of a stack trace, both matter."""
    half = MOST_SAID // 2
    return text if len(text) <= MOST_SAID else f"{text[:half]} ... {text[-half:]}"
