"""Chaos on three brokers: a group of cooperative consumers whose members are killed,
stopped, ended and added, while brokers are killed, stopped and paused.

pytest -m slow tests/broker/test_chaos_consumers.py; a seed fixes the kinds of fault,
not their order in time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from coopstreams.commit.record import PARTITIONS, partition_of
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.consumer_processes import (
    Feeder,
    Processes,
    check_outputs,
    shareable,
)
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually

RECORDS = 30_000
PARTS = 15
SETTLE_S = 240.0


class Faults:
    """Stops brokers on a thread, mostly those that the group needs."""

    def __init__(self, cluster: ThreeBrokers, group: str, seed: int) -> None:
        self.told: list[str] = []
        self._cluster = cluster
        self._group = group
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(300)
            self._cluster.mend()
        assert self._errors == []

    def _run(self) -> None:
        try:
            while not self._over.wait(self._random.uniform(2, 6)):
                how = self._random.choice(("kill", "stop", "pause"))
                seconds = self._random.choice((2.0, 8.0, 20.0))
                node = self._important() or self._random.choice(NODES)
                self.told.append(
                    f"{time.strftime('%X')} {how} {node} for {seconds:g} s"
                )
                getattr(self._cluster, how)(node)
                self._over.wait(seconds)
                self._cluster.mend()
        except BaseException as error:
            self._errors.append(error)
            raise

    def _important(self) -> int | None:
        """Return the group's coordinator, or the leader of its commits."""
        if self._random.random() < 0.5:
            return self._cluster.group_coordinator(self._group)
        return self._cluster.leader_of(
            COMMIT_TOPIC, partition_of(self._group, PARTITIONS)
        )


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_consumers_and_brokers_come_and_go_and_each_record_counts_once_in_the_order_of_its_key(
    three_brokers: ThreeBrokers, processes: Callable[..., Processes]
) -> None:
    """Exactly-once, as on one broker: outputs are in the transactions of commits."""
    seed = random.SystemRandom().randrange(1, 1_000_000)
    kafka, chance = three_brokers.kafka, random.Random(seed)
    source, target = shareable(kafka, "orders", 3), kafka.topic("done")
    name = kafka.unique("chaos")
    group = processes(three_brokers.bootstrap, name, source, target)
    for first in ("w0", "w1", "w2"):
        group.start(first)
    group.await_shares("w0", "w1", "w2")
    feeder = Feeder(three_brokers.bootstrap, source, RECORDS, PARTS)
    faults = Faults(three_brokers, name, seed)
    with faults.under_way():
        for part in range(PARTS):
            feeder.go_on()
            time.sleep(chance.uniform(2, 6))
            victim = chance.choice(sorted(group.running))
            act = chance.choice(("kill", "freeze", "none"))
            faults.told.append(f"{time.strftime('%X')} {act} {victim}")
            if act == "freeze":
                group.freeze(victim)
            elif act == "kill":
                group.kill(victim)
                group.start(f"w{part + 3}")
        feeder.join()

    def written() -> int:
        return len(read_topic(three_brokers.bootstrap, target))

    def seen() -> str:
        told = "\n".join(faults.told)
        return f"seed {seed}: {written()} of {RECORDS}\n{told}\n{group.logs()}"

    eventually(lambda: written() >= RECORDS, SETTLE_S, seen)
    try:
        check_outputs(three_brokers.bootstrap, target, feeder.sent)
    except AssertionError as error:
        raise AssertionError(seen()) from error
    ended = {
        worker: process.returncode
        for worker, process in group.running.items()
        if process.poll() is not None
    }
    assert ended == {}, seen()
