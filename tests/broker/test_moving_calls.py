"""Planned moves on a real Kafka: no call is made twice, and nothing is lost or doubled
of what makes no calls.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from coopstreams import serdes
from tests.broker.processes import Workers
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

APP = Path(__file__).parent / "calls_app.py"
KEYS = 61
AT_ONCE = 10


class Writing:
    """Writes numbers to both sources, some each quarter of a second, until `stop`."""

    def __init__(self, kafka: Kafka, topics: list[str]) -> None:
        self._kafka = kafka
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        for first in itertools.count(step=AT_ONCE):
            rows = [
                (b"k%d" % (number % KEYS), serdes.int64.encode(number))
                for number in range(first, first + AT_ONCE)
            ]
            for topic in self._topics:
                self._kafka.write(topic, rows)
            self.written = first + AT_ONCE
            if self._stop.wait(0.25):
                return


class Moves:
    """Three processes of the application, with records that come all the time."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        call_s: float,
        settings: dict[str, str],
        every: int = 50,
    ) -> None:
        self.kafka = kafka
        self.sources = [kafka.topic(name, 2) for name in ("asked", "counted")]
        self.answered, self.counts = kafka.topic("answered"), kafka.topic("counts")
        self.called = folder / "called"
        self.called.touch()
        names = ("APP_ASKED", "APP_COUNTED", "APP_ANSWERED", "APP_COUNTS")
        topics = [*self.sources, self.answered, self.counts]
        environment = dict(zip(names, topics, strict=True)) | {
            "APP_NAME": kafka.unique("calls"),
            "APP_CALLED": str(self.called),
            "APP_CALL_S": str(call_s),
            "APP_EVERY": str(every),
        }
        chosen = {
            "processing.guarantee": "exactly_once_v2",
            "ranges.per.partition": "3",
            "transaction.timeout.ms": "4000",
        } | {name.replace("_", "."): value for name, value in settings.items()}
        self.workers = Workers(APP, kafka.bootstrap, folder, environment, chosen)

    def settled(self) -> None:
        """Wait until each process has tasks."""
        for number in self.workers.running:
            eventually(partial(self._has_tasks, number), 120, self.workers.logs)

    def _has_tasks(self, number: int) -> bool:
        """Whether a process answers queries, and runs a task."""
        workers = self.workers
        now = workers.log(number)[workers._began[number] :]
        runs = re.search(r"task \S+ runs on thread", now)
        return workers.url(number) is not None and runs is not None

    def answers(self) -> Counter[int]:
        """Return how often each number was answered."""
        columns = read_topic(self.kafka.bootstrap, self.answered)
        return Counter(serdes.int64.decode(record.value or b"") for record in columns)

    def counted(self) -> Counter[bytes]:
        """Return the last count of each key."""
        counts: Counter[bytes] = Counter()
        for record in read_topic(self.kafka.bootstrap, self.counts):
            counts[record.key or b""] = serdes.int64.decode(record.value or b"")
        return counts

    def calls(self) -> Counter[int]:
        """Return how often each number was asked about."""
        return Counter(map(int, self.called.read_text().split()))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("static", "call_s", "every"),
    [(False, 8.0, 50), (True, 8.0, 50), (False, 60.0, 500), (True, 60.0, 500)],
    ids=["dynamic", "static", "dynamic, a minute", "static, a minute"],
)
def test_a_rolling_restart_makes_no_call_twice(
    kafka: Kafka, tmp_path: Path, static: bool, call_s: float, every: int
) -> None:
    settings = {"session_timeout_ms": "30000", "max_revoke_delay_ms": "120000"}
    if static:
        settings["group_instance_id"] = "p{instance}"
    moves = Moves(kafka, tmp_path, call_s, settings, every)
    workers = moves.workers
    try:
        for number in range(3):
            workers.start(number)
        moves.settled()
        writing = Writing(kafka, moves.sources)
        eventually(lambda: writing.written > 60, 60, workers.logs)
        for number in range(3):
            assert workers.terminate(number, 180) == 0
            assert "calls have not ended in time" not in workers.log(number)
            workers.start(number)
            moves.settled()
        writing.stop()
        numbers = Counter(range(writing.written))
        eventually(lambda: len(moves.answers()) == len(numbers), 240, workers.logs)
        assert moves.calls() == numbers
        assert moves.answers() == numbers
        keys = Counter(b"k%d" % (number % KEYS) for number in numbers)
        eventually(lambda: moves.counted() == keys, 60, workers.logs)
    finally:
        workers.clean_up()
