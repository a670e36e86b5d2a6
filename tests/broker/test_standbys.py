"""Standbys on a real Kafka: an owner dies under load, and another process continues from
the rows that it has already.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tests.broker.processes import Workers
from tests.broker.reading import counts_of, read_topic, updates_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

APP = Path(__file__).parent / "counting_app.py"
KEYS = [f"key-{number}" for number in range(4000)]
SMALL = 500
"""The most records that an opening with a standby reads: those of the last commits. The
changelogs have ten times as many.
"""


class Group:
    """Processes of one application that counts keys, with standbys."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        partitions: int,
        **settings: str,
    ) -> None:
        self._kafka = kafka
        self.application = kafka.unique("standing")
        self._source = kafka.topic("in", partitions)
        self.sink = kafka.topic("out", 1)
        self.written: Counter[str] = Counter()
        self.workers = Workers(
            APP,
            kafka.bootstrap,
            folder,
            {
                "TEST_APPLICATION": self.application,
                "TEST_INPUT": self._source,
                "TEST_OUTPUT": self.sink,
            },
            {
                "processing.guarantee": "exactly_once_v2",
                "num.standby.replicas": "1",
                "client.rack": "here",
                "session.timeout.ms": "6000",
                # The whole changelog stays readable record by record.
                "statestore.cache.max.bytes": "0",
                **settings,
            },
        )
        self._producer = Producer({**kafka.settings, "partitioner": "murmur2_random"})
        self._over = Event()
        self._load = Thread(target=self._write_on)

    def write(self, times: int) -> None:
        """Write each key so often."""
        for _ in range(times):
            for key in KEYS:
                self._producer.produce(self._source, (1).to_bytes(8, "big"), key)
                self.written[key] += 1
            assert self._producer.flush(60) == 0

    def trickle(self) -> None:
        """Write a few records in several commits: then all key ranges have committed
        near the end of the changelog.
        """
        for at in range(10):
            for key in KEYS[at * 20 : at * 20 + 20]:
                self._producer.produce(self._source, (1).to_bytes(8, "big"), key)
                self.written[key] += 1
            self._producer.flush(60)
            time.sleep(0.3)

    def begin_load(self) -> None:
        """Write on, in the background, until `end_load`."""
        self._load.start()

    def end_load(self) -> None:
        self._over.set()
        if self._load.is_alive():
            self._load.join()

    def _write_on(self) -> None:
        at = 0
        while not self._over.wait(0.05):
            for key in KEYS[at : at + 50]:
                self._producer.produce(self._source, (1).to_bytes(8, "big"), key)
                self.written[key] += 1
            self._producer.flush(60)
            at = (at + 50) % len(KEYS)

    def changelog_records(self) -> int:
        changelog = f"{self.application}-counts-changelog"
        return len(read_topic(self._kafka.bootstrap, changelog))

    def await_counts(self) -> None:
        """Wait until all that was written is counted."""
        changelog = f"{self.application}-counts-changelog"
        eventually(
            lambda: counts_of(self._kafka.bootstrap, changelog) == self.written,
            120,
            self.workers.logs,
        )

    def status(self, number: int) -> dict[str, Any]:
        """Return what a process tells of itself; nothing while it does not answer."""
        url = self.workers.url(number)
        try:
            told = httpx.get(f"{url}/v1/status?local=true", timeout=5).json()
            return next(
                each for each in told["instances"] if each["id"] == told["here"]
            )
        except (httpx.HTTPError, KeyError, StopIteration, ValueError):
            return {}

    def restored(self, number: int) -> int:
        """Return how many records a process has read to open tasks."""
        text = httpx.get(f"{self.workers.url(number)}/metrics", timeout=5).text
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in text.splitlines()
            if line.startswith("coopstreams_restored_records_total{")
        )

    def answer_of_a_standby(self, key: str) -> int | None:
        """Return the count that a process with a standby of a key's range answers; None:
        it has none yet.
        """
        url = self.workers.url(next(iter(self.workers.running)))
        told = httpx.get(f"{url}/v1/metadata/counts/{key}", timeout=5).json()
        (standby,) = told["standbys"]
        assert standby["id"] != told["owner"]["id"]
        asked = {"local": "true", "max_staleness": "60000"}
        path = f"{standby['url']}/v1/stores/counts/keys/{key}"
        answer: dict[str, Any] = httpx.get(path, params=asked, timeout=5).json()
        assert answer.get("owner") == standby["id"], answer
        assert set(answer["standby"]) == {"position", "lag", "staleness_ms"}
        count: int | None = answer.get("value")
        return count

    def standing_by(self, count: int, lag: int = 0) -> bool:
        """Return whether all tasks run, and so many standbys are near the end."""
        told = [self.status(number) for number in self.workers.running]
        standbys = [each for one in told for each in one.get("standbys", ())]
        for one in told:
            own = {task["id"] for task in one.get("tasks", ())}
            assert not own & {each["id"] for each in one.get("standbys", ())}
        return (
            all(one.get("ready") for one in told)
            and len(standbys) == count
            and all(each["lag"] is not None and each["lag"] <= lag for each in standbys)
        )


def owner_of_most(group: Group) -> int:
    return max(
        group.workers.running,
        key=lambda number: len(group.status(number).get("tasks", ())),
    )


@pytest.mark.ci
@pytest.mark.broker
def test_an_owner_dies_under_load_and_its_standbys_go_on_with_what_they_have(
    kafka: Kafka, tmp_path: Path
) -> None:
    group = Group(kafka, tmp_path, partitions=3)
    workers = group.workers
    try:
        for number in range(3):
            workers.start(number)
        eventually(lambda: group.standing_by(3), 90, workers.logs)
        group.write(10)
        group.await_counts()
        eventually(lambda: group.standing_by(3), 60, workers.logs)
        for key in KEYS[:20]:
            eventually(
                lambda key=key: (  # type: ignore[misc]
                    group.answer_of_a_standby(key) == group.written[key]
                ),
                60,
                workers.logs,
            )
        group.begin_load()
        eventually(
            lambda: sum(group.written.values()) > 10.2 * len(KEYS), 60, workers.logs
        )
        before = {number: group.restored(number) for number in workers.running}
        dead = owner_of_most(group)
        workers.kill(dead)
        eventually(lambda: group.standing_by(3, lag=10_000), 90, workers.logs)
        group.end_load()
        group.await_counts()
        read = sum(
            group.restored(number) - before[number] for number in workers.running
        )
        assert read < SMALL, workers.logs()
        assert group.changelog_records() > 10 * SMALL
        updates = updates_of(kafka.bootstrap, group.sink)
        assert updates == {
            key: list(range(1, count + 1)) for key, count in group.written.items()
        }
        assert set(workers.stop().values()) == {0}, workers.logs()
    finally:
        group.end_load()
        workers.clean_up()


@pytest.mark.ci
@pytest.mark.broker
def test_of_ranges_that_are_cut_anew_a_standby_keeps_what_it_has(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Two processes share a partition, and each stands by for the other's half. One
    dies, the other has it whole; a third comes, and has a half as its standby had.
    """
    group = Group(kafka, tmp_path, partitions=1)
    workers = group.workers
    try:
        for number in range(2):
            workers.start(number)
        eventually(lambda: group.standing_by(2), 90, workers.logs)
        group.write(10)
        group.trickle()
        group.await_counts()
        eventually(lambda: group.standing_by(2), 60, workers.logs)
        before = group.restored(1)
        workers.kill(0)
        eventually(
            lambda: (
                (
                    [task["key_range"] for task in group.status(1).get("tasks", ())]
                    == ["0..255"]
                )
                and group.standing_by(0)
            ),
            60,
            workers.logs,
        )
        assert group.restored(1) - before < SMALL
        assert group.changelog_records() > 10 * SMALL
        workers.start(2)
        eventually(lambda: group.standing_by(2), 90, workers.logs)
        group.write(1)
        group.trickle()
        group.await_counts()
        eventually(lambda: group.standing_by(2), 60, workers.logs)
        workers.kill(2)
        eventually(
            lambda: group.standing_by(0) and len(group.status(1)["tasks"]) == 1,
            60,
            workers.logs,
        )
        assert group.restored(1) - before < SMALL
        group.write(1)
        group.await_counts()
        updates = updates_of(kafka.bootstrap, group.sink)
        assert {key: max(counts) for key, counts in updates.items()} == group.written
        assert all(
            counts == list(range(1, len(counts) + 1)) for counts in updates.values()
        )
    finally:
        workers.clean_up()


@pytest.mark.ci
@pytest.mark.broker
def test_a_task_moves_to_a_process_that_has_come_when_that_has_its_rows(
    kafka: Kafka, tmp_path: Path
) -> None:
    group = Group(
        kafka,
        tmp_path,
        partitions=2,
        **{"num.standby.replicas": "0", "acceptable.recovery.lag": "200"},
    )
    workers = group.workers
    try:
        workers.start(0)
        eventually(lambda: group.standing_by(0), 90, workers.logs)
        group.write(10)
        group.await_counts()
        group.begin_load()
        workers.start(1)
        eventually(
            lambda: (
                group.standing_by(0)
                and all(len(group.status(number)["tasks"]) == 1 for number in (0, 1))
            ),
            90,
            workers.logs,
        )
        read = group.restored(1)
        group.end_load()
        group.await_counts()
        assert group.changelog_records() > 2 * len(KEYS)
        assert read < len(KEYS) / 2, workers.logs()  # of half of the changelog
        updates = updates_of(kafka.bootstrap, group.sink)
        assert updates == {
            key: list(range(1, count + 1)) for key, count in group.written.items()
        }
        assert set(workers.stop().values()) == {0}, workers.logs()
    finally:
        group.end_load()
        workers.clean_up()
