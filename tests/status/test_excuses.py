"""A task that stands still makes its instance not live, unless there is evidence that a
restart would not move it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coopstreams.commit.broker_waits import Asking, Wait
from coopstreams.common.host import SYSTEM
from coopstreams.status.stall_detector import StallDetector, _failed_commit, excuse
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task_figures import CallFigures
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, LogError, SinkUnavailableError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId
from tests.tasks.called import TOPICS, Gate, finish, forwarding, numbered, until
from tests.tasks.engine import Engine, counting

LEFT, RIGHT = (TaskId(0, 0, key_range) for key_range in KeyRange.split(2))
AT, OTHER = TopicPartition("in", 0), TopicPartition("in", 1)


class Stalled:
    """A task at offset 5 of 8 since time 0, and its sibling, both looked at once a
    second until `now`.
    """

    def __init__(self) -> None:
        self.engine = Engine(counting(), {"in": 1, "out": 1}, threads=2)
        self.thread: StreamThread = self.engine.threads[0]
        self.homes = dict.fromkeys((LEFT, RIGHT), self.thread)
        self.asking: Asking = self.thread.committer.asking
        self.detector = StallDetector(30.0, 3.0)
        self.group_answers = True
        self.now = 0.0
        self.thread.moved_at = 0.0

    def until(
        self,
        now: int,
        sibling: int = 0,
        backlog: int = 0,
        *,
        moves: bool = True,
        all_read: bool = False,
    ) -> None:
        """`sibling`: records it does in a second; `backlog`: those that stay waiting
        for it.

        `all_read`: what was written from offset 5 on is not committed.
        """
        for second in range(int(self.now), now + 1):
            self.detector.look(
                LEFT, second, {AT: 5}, {AT: 8}, 5, all_read={AT} if all_read else ()
            )
            done = sibling * second
            at = done if moves else 0
            self.detector.look(RIGHT, second, {OTHER: at}, {OTHER: at + backlog}, done)
        self.now = float(now)

    def why(self) -> str:
        assert LEFT in self.detector.stalled(self.now)
        return excuse(
            LEFT, None, self.homes, self.group_answers, self.detector, self.now
        )


@pytest.fixture
def stalled() -> Stalled:
    return Stalled()


def test_without_evidence_there_is_no_excuse(stalled: Stalled) -> None:
    stalled.until(100)
    assert stalled.why() == "", "its thread is stuck"
    stalled.thread.moved_at = 100.0
    assert stalled.why() == "", "its thread is idle, and all brokers answer"
    stalled.group_answers = False
    assert stalled.why() == "", "it does not wait for the group"


def test_a_task_that_is_opened_again_is_not_stuck_although_the_watcher_has_not_seen_that_yet(
    stalled: Stalled,
) -> None:
    stalled.until(100)
    del stalled.homes[LEFT]
    assert stalled.why() == "it is opened again"


def test_a_leader_that_does_not_answer_excuses_its_task_unless_the_thread_is_stuck(
    stalled: Stalled,
) -> None:
    stalled.until(1000)
    stalled.detector.unanswered[AT] = 60.0
    assert stalled.why() == "", "a function has run for 1000 s"
    stalled.thread.moved_at = 999.0
    assert stalled.why() == "the leader of in-0 has not answered for 940 s"
    stalled.detector.unanswered = {OTHER: 60.0}
    assert stalled.why() == "", "its own leader answers, and it waits for no other"


def test_a_transaction_that_keeps_back_what_follows_excuses_the_task_that_waits_for_it(
    stalled: Stalled,
) -> None:
    stalled.until(100, all_read=True)
    assert stalled.why() == "", "its thread is stuck"
    stalled.thread.moved_at = 100.0
    assert (
        stalled.why()
        == "an open transaction keeps back what was written to in-0 from offset 5 on"
    )
    stalled.until(200)
    stalled.thread.moved_at = 200.0
    assert stalled.why() == "", "there is more that it can read"


def test_a_request_is_waited_for_as_long_as_the_client_may_wait_and_longer_only_while_brokers_are_away(
    stalled: Stalled,
) -> None:
    stalled.until(1000)
    stalled.asking.answer_s = 60.0
    stalled.asking.waiting = Wait(
        "the transaction coordinator to commit", 950.0, of_brokers=True
    )
    assert stalled.why() == "the brokers have not answered yet"
    stalled.asking.waiting = Wait(
        "the transaction coordinator to commit", 930.0, of_brokers=True
    )
    assert stalled.why() == "", "the client hangs"
    stalled.detector.unanswered[OTHER], stalled.detector.away_at = 900.0, 999.0
    assert stalled.why() == "the leader of in-1 has not answered for 100 s"
    stalled.detector.unanswered.clear()
    assert stalled.why() == "brokers did not answer until 1 s ago", (
        "the client asks them again"
    )
    stalled.detector.away_at = 939.0
    assert stalled.why() == "", "it had time to"
    stalled.group_answers = False
    assert stalled.why() == "the group does not answer"


def test_a_commit_that_the_brokers_failed_is_an_excuse_for_a_while(
    stalled: Stalled,
) -> None:
    stalled.until(100)
    stalled.thread.moved_at = 99.0
    stalled.asking.trouble = "NOT_ENOUGH_REPLICAS", 80.0
    assert (
        stalled.why() == "the brokers failed its commit 20 s ago: NOT_ENOUGH_REPLICAS"
    )
    stalled.thread.moved_at = 60.0
    assert stalled.why() == "", "the thread is stuck since"
    stalled.thread.moved_at, stalled.asking.answer_s = 99.0, 15.0
    assert stalled.why() == ""


def test_a_thread_that_works_on_the_backlog_of_a_sibling_is_an_excuse(
    stalled: Stalled,
) -> None:
    stalled.until(100, sibling=10, backlog=500)
    stalled.thread.moved_at = 99.0
    assert stalled.why() == f"its thread is busy with task {RIGHT}"
    stalled.homes[RIGHT] = stalled.engine.threads[1]
    assert stalled.why() == "", "that is another thread"
    stalled.homes[RIGHT] = stalled.thread
    stalled.thread.moved_at = 60.0
    assert stalled.why() == "", "the thread is stuck in the sibling's function"


def test_a_sibling_without_a_backlog_or_without_progress_is_no_excuse(
    stalled: Stalled,
) -> None:
    stalled.thread.moved_at = 100.0
    stalled.until(40, sibling=10)
    stalled.thread.moved_at = 40.0
    assert stalled.why() == "", "the thread has time for both"
    stalled.until(80, sibling=10, backlog=500, moves=False)
    stalled.thread.moved_at = 80.0
    assert set(stalled.detector.stalled(80.0)) == {LEFT, RIGHT}, (
        "it does the same records again and again"
    )
    assert stalled.why() == ""


@pytest.mark.parametrize(
    ("timeout", "waited_s", "said"),
    [
        (
            timedelta(hours=1),
            31,
            "the time-out of a call is not over, and a new process would begin it anew",
        ),
        (timedelta(hours=1), 29, ""),
        (None, 31, ""),
    ],
)
def test_a_call_is_an_excuse_until_its_time_out_if_the_first_record_waits_for_it_since(
    stalled: Stalled, timeout: timedelta | None, waited_s: float, said: str
) -> None:
    gate = Gate(0)
    made = Engine(forwarding(gate, timeout=timeout), TOPICS)
    task = made.open(WHOLE)
    made.write("in", numbered([0]))
    made.start()
    until(lambda: gate.called[0] == 1, made)
    assert task.calls is not None
    assert task.calls.oldest is not None
    now = stalled.thread.moved_at = task.calls.oldest + waited_s
    calls = CallFigures.of(task.calls)
    assert excuse(LEFT, calls, stalled.homes, True, stalled.detector, now) == said
    gate.let_go.set()
    finish(made, 1)


def test_what_brokers_answer_to_a_commit_is_noted_and_what_others_answer_is_not(
    stalled: Stalled,
) -> None:
    asking = stalled.asking
    away = LogError("away", retryable=True)
    for error, noted in (
        (LogError("refused"), None),
        (FencedError("fenced", retryable=True), None),
        (away, "away"),
    ):
        asking.begin("its results to be in the log")
        with pytest.raises(LogError), asking.during():
            raise error
        assert (
            asking.trouble and asking.trouble[0],
            asking.asked_at,
            asking.waiting,
        ) == (noted, None, None)
    asking.trouble = None
    asking.begin("its results to be in the log")
    with (
        pytest.raises(SinkUnavailableError),
        asking.during(),
        asking.awaiting("the rows", of_brokers=False),
    ):
        raise SinkUnavailableError("the database is away")
    assert asking.trouble is None
    with asking.during():
        asking.begin("its results to be in the log")
        with asking.awaiting("the rows", of_brokers=False):
            assert asking.asked_at is None
            assert asking.waiting is not None
        assert asking.asked_at is not None


def test_a_failed_commit_that_succeeds_while_it_is_read_is_no_error() -> None:
    class Torn(Asking):
        """Its trouble is over when it has been read once."""

        def __getattribute__(self, name: str) -> Any:
            told = super().__getattribute__(name)
            if name == "trouble":
                self.trouble = None
            return told

    asking = Torn(10.0, SYSTEM)
    asking.trouble = "no leader", 1.0
    assert _failed_commit(asking, 3.0).endswith("2 s ago: no leader")
    assert _failed_commit(asking, 3.0) == ""
