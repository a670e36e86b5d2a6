"""Whether a silent task may promise: only if its sources end where it has read them."""

from __future__ import annotations

import pytest

from coopstreams.instance.source_times import Question
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

LEFT, RIGHT = TopicPartition("left", 0), TopicPartition("right", 0)
TASK = TaskId(0, 0, WHOLE)
TIMES = {"timed": 200}


@pytest.fixture
def question() -> Question:
    log = MemoryLog()
    log.create_topics([TopicSpec("left", 1), TopicSpec("right", 1)])
    writer = log.writer()
    writer.append("left", [b"a"], [b""], [1])
    question = Question({TASK: TIMES}, {TASK: (LEFT, RIGHT)})
    question.ask(log)
    return question


def test_it_promises_where_it_has_read_everything(question: Question) -> None:
    assert question.answered
    assert question.promised(TASK, {LEFT: 1, RIGHT: 0}) == TIMES


def test_it_promises_nothing_if_there_is_more_of_one_source(question: Question) -> None:
    """The reader was told that it is at the end, and has heard nothing since: it may be
    cut off.
    """
    assert question.promised(TASK, {LEFT: 0, RIGHT: 0}) == {}
    assert question.promised(TASK, {RIGHT: 0}) == {}


def test_what_an_open_transaction_holds_may_still_come() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("left", 1)])
    writer = log.writer("writer")
    writer.begin()
    writer.append("left", [b"a"], [b""], [1])
    question = Question({TASK: TIMES}, {TASK: (LEFT,)})
    question.ask(log)
    assert question.promised(TASK, {LEFT: 0}) == {}


def test_nobody_promises_if_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    question = Question({TASK: TIMES}, {TASK: (LEFT,)})
    with caplog.at_level("DEBUG", "coopstreams"):
        question.ask(MemoryLog())
    (record,) = caplog.records
    assert "cannot see where silent partitions end" in record.getMessage()
    assert question.answered
    assert question.promised(TASK, {LEFT: 0}) == {}
