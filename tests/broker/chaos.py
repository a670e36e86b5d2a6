"""The input of the fault tests, the results of a single thread, and their comparison
with the workers' results.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Producer

from tests.broker.processes import Workers
from tests.broker.reading import by_key, read_topic, updates_of
from tests.conftest import Kafka

KEYS = 500
CITIES = 20


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one run, and its application."""

    application: str
    orders: str
    customers: str
    counts: str
    cities: str
    dead: str
    told: str = ""
    """The output topic of the calls, if there are calls."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with the application's name and topics."""
        names = {
            "APPLICATION": self.application,
            "ORDERS": self.orders,
            "CUSTOMERS": self.customers,
            "COUNTS": self.counts,
            "CITIES": self.cities,
            "TOLD": self.told,
        }
        return {f"TEST_{name}": value for name, value in names.items()}


@dataclass(slots=True)
class Feeder:
    """Writes customers at once, and orders on a thread over some time."""

    bootstrap: str
    topics: Topics
    seed: int
    orders: int
    a_second: int
    counts: Counter[str] = field(default_factory=Counter)
    """How often each key was written."""
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The orders of each key, in order."""
    unreadable: list[bytes] = field(default_factory=list)
    """Unreadable values, all different."""
    failure: Exception | None = None
    _thread: threading.Thread | None = None

    @property
    def cities(self) -> Counter[str]:
        """The number of orders of each city."""
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[city_of(key)] += count
        return found

    def start(self) -> None:
        """Write all customers, then begin to write orders."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"}
        )
        for number in range(KEYS):
            producer.produce(
                self.topics.customers,
                city_of(f"key-{number}"),
                f"key-{number}",
                timestamp=1,
            )
        assert producer.flush(60) == 0
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float = 200) -> None:
        """Return when everything is written."""
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            settings = {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 20,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
            }
            producer, generator, started = (
                Producer(settings),
                random.Random(self.seed),
                time.monotonic(),
            )
            for number in range(self.orders):
                key = f"key-{generator.randrange(KEYS)}"
                if number % 500 == 250:
                    self.unreadable.append(b"unreadable %d" % number)
                    producer.produce(self.topics.orders, self.unreadable[-1], key)
                self.counts[key] += 1
                self.numbers[key].append(number)
                producer.produce(self.topics.orders, number.to_bytes(8, "big"), key)
                if number % 100 == 0:
                    producer.poll(0)
                    time.sleep(
                        max(0.0, number / self.a_second - (time.monotonic() - started))
                    )
            assert producer.flush(90) == 0
        except Exception as error:  # noqa: BLE001 whoever joins hears of it
            self.failure = error


def seed_of_run() -> int:
    """Return TEST_SEED if it is set, else a new seed."""
    return int(os.environ.get("TEST_SEED", "0")) or random.SystemRandom().randrange(
        1, 1_000_000
    )


def topics_for(kafka: Kafka, partitions: int) -> Topics:
    """Make topics for a run."""
    return Topics(
        kafka.unique("chaos"),
        *(
            kafka.topic(name, partitions)
            for name in ("orders", "customers", "counts", "cities", "dead")
        ),
    )


class Chaos:
    """The faults of a run, drawn from a seed."""

    def __init__(self, group: Workers, seed: int, members: int) -> None:
        self.group = group
        self.seed = seed
        self.generator = random.Random(seed)
        self.done: list[str] = []
        self._next = members
        for number in range(members):
            group.start(number)

    def kill(self) -> None:
        """Kill a worker; start it again soon, with its state."""
        victim = self._victim()
        self.group.kill(victim)
        self._pause(0.1, 2.0)
        self.group.start(victim)
        self.note(f"kill {victim}")

    def stop(self, seconds: float) -> None:
        """Pause a worker for this time."""
        victim = self._victim()
        self.group.freeze(victim)
        time.sleep(seconds)
        self.group.thaw(victim)
        self.note(f"stop {victim} for {seconds:.1f} s")

    def add(self) -> None:
        """Add a worker; the key ranges are cut again."""
        self.group.start(self._next)
        self._next += 1
        self.note("+1")

    def remove(self) -> None:
        """Ask a worker to end in good order."""
        status = self.group.terminate(self._victim())
        assert status == 0, f"a worker ended with {status}\n{self.group.logs()}"
        self.note("-1")

    def __str__(self) -> str:
        return f"seed {self.seed}, {', '.join(self.done)}"

    def urls(self) -> list[str]:
        """Return the query addresses that workers have logged."""
        return [
            url
            for number in list(self.group.running)
            if (url := self.group.url(number)) is not None
        ]

    def _victim(self) -> int:
        return self.generator.choice(sorted(self.group.running))

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.generator.uniform(least_s, most_s))

    def note(self, what: str) -> None:
        """Log a fault, wait for a while, and check that no supervisor has ended because
        of it.
        """
        self.done.append(what)
        self._pause(0.5, 3.0)
        ended = self.group.ended()
        assert not ended, (
            f"workers ended by themselves: {ended}, after {self}\n{self.group.logs()}"
        )


def city_of(key: str) -> str:
    return f"city-{int(key.removeprefix('key-')) % CITIES}"


@dataclass(frozen=True, slots=True)
class Found:
    """The records of an output topic beside the expected ones."""

    expected: int
    outputs: int
    lost: int
    """The number of missing updates."""
    doubled: int
    """The number of repeated updates."""
    disordered: int
    """Keys whose updates are not 1, 2, 3, ... in this order, after doubles are taken
    out.
    """

    @property
    def exactly_once(self) -> bool:
        """Whether every update is there once, in order."""
        return (self.lost, self.doubled, self.disordered) == (0, 0, 0)


def examine(
    bootstrap: str, topic: str, expected: Counter[str], *, each: bool = True
) -> Found:
    """Compare the committed records of a topic of running counts.

    `each`: every update must be there; else only the last one. At-least-once on several
    brokers promises no more: a process that dies while the leader of the results is
    unavailable may have written its changelog, and the repeated record continues from
    there.
    """
    seen = updates_of(bootstrap, topic)
    assert seen.keys() <= expected.keys()
    lost = doubled = disordered = 0
    for key, count in expected.items():
        counts = seen.get(key, [])
        once = list(dict.fromkeys(counts))
        lost += (
            len(set(range(1, count + 1)) - set(once))
            if each
            else max(0, count - max(once, default=0))
        )
        doubled += len(counts) - len(once) + len(set(once) - set(range(1, count + 1)))
        disordered += once != sorted(once)
    return Found(
        sum(expected.values()), sum(map(len, seen.values())), lost, doubled, disordered
    )


def followed(
    bootstrap: str, topic: str, numbers: Mapping[str, Sequence[int]], *, exactly: bool
) -> Found:
    """Compare the committed records of the topic of `chaos_app.followed`.

    `exactly`: each order names the one before it; else only the orders are compared,
    because a store may be ahead of repeated records.
    """
    seen = {
        key.decode(): [tuple((value or b"").decode().split()) for value in values]
        for key, values in by_key(read_topic(bootstrap, topic)).items()
    }
    assert seen.keys() <= numbers.keys()
    lost = doubled = disordered = 0
    for key, orders in numbers.items():
        told = seen.get(key, [])
        once = list(
            dict.fromkeys(told if exactly else [(number,) for _, number in told])
        )
        due = [
            (before, number) if exactly else (number,)
            for before, number in pairwise(["-", *map(str, orders)])
        ]
        lost += len(set(due) - set(once))
        doubled += len(told) - len(once)
        disordered += [each for each in once if each in due] != [
            each for each in due if each in once
        ]
        disordered += len(set(once) - set(due))
    return Found(
        sum(map(len, numbers.values())),
        sum(map(len, seen.values())),
        lost,
        doubled,
        disordered,
    )


def dead_letters(bootstrap: str, topics: Topics, feeder: Feeder) -> Found:
    """Return the dead letters of unreadable orders."""
    letters = Counter(record.value for record in read_topic(bootstrap, topics.dead))
    wanted = set(feeder.unreadable)
    return Found(
        len(wanted),
        letters.total(),
        len(wanted - letters.keys()),
        letters.total() - len(letters.keys() & wanted),
        0,
    )


def written(bootstrap: str, topics: Sequence[str]) -> int:
    """Return the number of committed records in some topics."""
    return sum(len(read_topic(bootstrap, topic)) for topic in topics)
