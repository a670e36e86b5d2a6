"""Processes of one group of cooperative consumers, their input, and what their output
has to be.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.log.kafka.log import KafkaLog
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

PATIENCE_S = 120.0


def shareable(kafka: Kafka, name: str, partitions: int) -> str:
    """A topic that may be read by key range."""
    topic = kafka.topic(name, partitions)
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    PolicyTopic(log).set("accept.range.fetch", True, topic)
    log.close()
    return topic


class Processes:
    """Worker processes of one group, by name."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.broker.sharing_consumer",
            *self._arguments,
            name,
        ]
        with (self._folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=Path(__file__).parents[2], stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        worker = self.running.pop(name)
        worker.kill()
        worker.wait()

    def freeze(self, name: str) -> None:
        """Pause a worker for longer than its session, so that the group removes it;
        then resume it, as a zombie.
        """
        self.running[name].send_signal(signal.SIGSTOP)
        time.sleep(5)
        self.running[name].send_signal(signal.SIGCONT)

    def terminate(self, name: str) -> None:
        worker = self.running.pop(name)
        worker.terminate()
        assert worker.wait(60) == 0, self.logs()

    def await_shares(self, *names: str) -> None:
        """Return when these consumers have key ranges."""
        logs = [self._folder / f"{name}.log" for name in names]
        eventually(
            lambda: all(" has {" in log.read_text() for log in logs),
            PATIENCE_S,
            self.logs,
        )

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )


class Feeder:
    """Writes records on a thread, a part with each `go_on`, so that they flow during
    the whole test.
    """

    def __init__(self, bootstrap: str, topic: str, records: int, parts: int) -> None:
        self.sent: dict[tuple[int, int], bytes] = {}
        """Keys by (partition, offset)."""
        self._may = threading.Semaphore(0)
        self._thread = threading.Thread(
            target=self._run, args=[bootstrap, topic, records, parts], daemon=True
        )
        self._thread.start()

    def go_on(self) -> None:
        self._may.release()

    def join(self) -> None:
        self._thread.join(200)
        assert not self._thread.is_alive()

    def _run(self, bootstrap: str, topic: str, records: int, parts: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 20,
                "enable.idempotence": True,
            }
        )
        for i in range(records):
            if i % -(-records // parts) == 0:
                self._may.acquire()
            key, partition = b"key-%d" % (i * 7919 % 500), i % 3
            self.sent[partition, i // 3] = key
            producer.produce(topic, b"%d" % i, key, partition)
            if i % 500 == 0:
                producer.poll(0)
                time.sleep(0.1)
        assert producer.flush(60) == 0


def check_outputs(
    bootstrap: str, topic: str, sent: dict[tuple[int, int], bytes]
) -> set[bytes]:
    """Return the workers that wrote results; check that each record has one result, and
    each key its order.
    """
    done: Counter[tuple[int, int]] = Counter()
    last: dict[tuple[int, bytes], int] = {}
    workers: set[bytes] = set()
    for record in read_topic(bootstrap, topic):
        partition, offset, worker = (record.value or b"").split()
        place, key = (int(partition), int(offset)), record.key or b""
        assert sent[place] == key
        assert last.get((place[0], key), -1) < place[1], (
            f"{place} of {key!r} after {last[place[0], key]}"
        )
        last[place[0], key] = place[1]
        done[place] += 1
        workers.add(worker)
    assert done == Counter(sent.keys()), "a record is missing, or counted twice"
    return workers
