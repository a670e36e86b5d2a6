"""Provokes KAFKA-20734 on a real broker: `python -m tests.broker.hanging_transactions --stops 30 --version 4.3.0`.

An exactly-once count behind a repartition in two processes that commit every 20 ms, on one broker with some hundred
partitions more: they lengthen the moment in which a broker that stops is still there and its partitions have no leader.
The broker is stopped by SIGTERM and started again, under load. Where it logs `SKIPPED`, it has called a transaction
complete that partitions never heard of. In the end each key must have been counted as often as it was written, or a
process must have refused to go on and said why.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.jars import KAFKA
from coopstreams.topology import serdes
from tests.broker.processes import Workers
from tests.broker.reading import latest, read_topic

SKIPPED = "likely deleted already"
TOLD = "told it now"
REFUSED = "were never told and keep it open"
A_SECOND = 400
KEYS = 200
PROGRESS_TIMEOUT_S = 180.0
SILENT_S = 20.0


@dataclass(slots=True)
class Feeder:
    """Writes records at a steady rate until it is told to end; waits for a broker that is away.

    What counts is what is in the topic in the end: the client may write a record twice when the broker stops. A client
    that delivers nothing is replaced, as our own are: a broker that has just started may say that there are no brokers,
    and the client believes it for good (librdkafka issue 5301; seen after one stop of twenty).
    """

    bootstrap: str
    topic: str
    end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Write."""
        settings = {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "log_level": 0}
        # A client that asked while a partition had no leader asks again only after minutes, by default.
        settings |= {
            "message.timeout.ms": 300_000,
            "topic.metadata.refresh.interval.ms": 1000,
            "reconnect.backoff.max.ms": 1000,
        }
        settings |= {"metadata.recovery.strategy": "none", "queue.buffering.max.messages": 1_000_000}
        producer, heard = Producer(settings), time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            nonlocal heard
            heard = heard if error else time.monotonic()

        while not self.end.wait(0.05):
            for _ in range(A_SECOND // 20):
                producer.produce(self.topic, b"x", f"key-{random.randrange(KEYS)}", on_delivery=delivered)
            producer.poll(0)
            if time.monotonic() > heard + SILENT_S:
                producer.purge()
                producer, heard = Producer(settings), time.monotonic()
        assert producer.flush(300) == 0

    def written(self) -> Counter[str]:
        """Return how often each key is in the topic."""
        return Counter(
            record.key.decode() for record in read_topic(self.bootstrap, self.topic) if record.key is not None
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of a run."""

    version: str
    stops: int
    skipped: int
    """Lines of the broker's log: each is a transaction that some partitions never heard of."""
    told: int
    """Partitions that the application told itself."""
    refused: int
    restarts: int
    """Of processes that ended."""
    written: int
    lost: int
    doubled: int
    slowest_s: float
    """From the broker's start to the next result."""

    def __str__(self) -> str:
        return (
            f"Kafka {self.version}: {self.stops} stops, {self.skipped} transactions skipped by the broker, "
            f"{self.told} partitions told by the application, {self.refused} refusals, {self.restarts} processes "
            f"started again; {self.written} records: {self.lost} lost, {self.doubled} doubled; at most "
            f"{self.slowest_s:.1f} s from the broker's start to the next result"
        )


def provoke(folder: Path, *, version: str, stops: int, skipped: int, partitions: int, run_s: float) -> Figures:
    """Return what came of so many stops, and of more until the broker has skipped so many transactions, but of no more
    than four times as many.
    """
    with KafkaBroker(folder / "broker", version=version, console=Console(quiet=True)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for answer in admin.create_topics(
            [NewTopic("in", 2, 1), NewTopic("out", 2, 1), NewTopic("further", partitions, 1)]
        ).values():
            answer.result(60)
        feeder = Feeder(broker.bootstrap, "in")
        thread = threading.Thread(target=feeder.run, daemon=True)
        environment = {"TEST_APPLICATION": "hanging", "TEST_INPUT": "in", "TEST_OUTPUT": "out"}
        settings = {
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "20",
            "session.timeout.ms": "6000",
            "connect.timeout.ms": "120000",
        }
        workers = Workers(
            Path(__file__).with_name("repartition_app.py"), broker.bootstrap, folder, environment, settings
        )
        for number in (0, 1):
            workers.start(number)
        thread.start()
        try:
            return _run(broker, workers, feeder, thread, version, stops, skipped, run_s)
        finally:
            feeder.end.set()
            workers.clean_up()


def _run(
    broker: KafkaBroker,
    workers: Workers,
    feeder: Feeder,
    thread: threading.Thread,
    version: str,
    stops: int,
    skipped: int,
    run_s: float,
) -> Figures:
    restarts, slowest_s = 0, 0.0
    _await_progress(broker.bootstrap, workers, 0)
    number = 0
    while number < stops or (number < 4 * stops and _count(broker.log_file, SKIPPED) < skipped):
        number += 1
        time.sleep(run_s * (0.5 + random.random()))
        broker.stop()
        broker.start()
        began, before = time.monotonic(), _end(broker.bootstrap)
        for worker, status in workers.ended().items():
            print(f"worker {worker} ended with {status}", flush=True)
            workers.start(worker)
            restarts += 1
        _await_progress(broker.bootstrap, workers, before)
        slowest_s = max(slowest_s, time.monotonic() - began)
        print(
            f"stop {number}: {_count(broker.log_file, SKIPPED)} skipped, {time.monotonic() - began:.1f} s", flush=True
        )
    feeder.end.set()
    thread.join(400)
    written = feeder.written()
    counted = _final(broker.bootstrap, written)
    lost, doubled = (written - counted).total(), (counted - written).total()
    told, refused = (
        sum(_count(path, text) for path in workers.folder.glob("worker-*.log")) for text in (TOLD, REFUSED)
    )
    return Figures(
        version,
        number,
        _count(broker.log_file, SKIPPED),
        told,
        refused,
        restarts,
        written.total(),
        lost,
        doubled,
        slowest_s,
    )


def _await_progress(bootstrap: str, workers: Workers, before: int) -> None:
    """Wait for another result. A run that has none for long goes on all the same: its figures say why."""
    give_up = time.monotonic() + PROGRESS_TIMEOUT_S
    while _end(bootstrap) <= before and time.monotonic() < give_up:
        time.sleep(0.2)
    if time.monotonic() >= give_up:
        print(f"no result in {PROGRESS_TIMEOUT_S:g} s:\n{workers.logs()[-3000:]}", flush=True)


def _end(bootstrap: str) -> int:
    """Return how many results are committed."""
    return len(read_topic(bootstrap, "out"))


def _final(bootstrap: str, expected: Counter[str]) -> Counter[str]:
    """Return the counts when they are as expected, or when they have stood still for long."""
    counted: Counter[str] = Counter()
    since = time.monotonic()
    while time.monotonic() < since + PROGRESS_TIMEOUT_S:
        found = Counter(
            {
                key.decode(): serdes.int64.deserialize(value)
                for key, value in latest(read_topic(bootstrap, "out")).items()
            }
        )
        if found == expected:
            return found
        if found != counted:
            counted, since = found, time.monotonic()
        time.sleep(0.5)
    return counted


def _count(path: Path, text: str) -> int:
    return len(re.findall(re.escape(text), path.read_text(errors="replace")))


def main() -> int:
    """Print the figures; fail when a record was lost or doubled and nothing was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=30)
    parser.add_argument(
        "--skipped", type=int, default=0, help="go on until the broker has skipped so many transactions"
    )
    parser.add_argument("--version", default="4.3.0", help=f"of Kafka; the one for development is {KAFKA}")
    parser.add_argument("--partitions", type=int, default=300, help="further ones")
    parser.add_argument("--run", type=float, default=3.0, help="seconds between stops, on average")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hanging-"))
    print(f"in {folder}", flush=True)
    figures = provoke(
        folder,
        version=given.version,
        stops=given.stops,
        skipped=given.skipped,
        partitions=given.partitions,
        run_s=given.run,
    )
    print(figures)
    return int((figures.lost or figures.doubled) and not figures.refused)


if __name__ == "__main__":
    sys.exit(main())
