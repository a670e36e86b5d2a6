"""Release 0.1 and this tree in one group: each process is of the earlier release by
turns, while workers are killed; then the last one leaves.

    pytest tests/broker/test_mixed_releases.py -m "broker and slow" -s -n 0

A run draws its faults from a seed and prints it; TEST_SEED=<seed> repeats the faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import orjson
import pytest

from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import QueryError
from coopstreams.topology.naming import topology_topic
from tests.broker.chaos import (
    Feeder,
    Found,
    Topics,
    dead_letters,
    examine,
    seed_of_run,
    topics_for,
)
from tests.broker.earlier_release import is_in_history, release_0_1
from tests.broker.processes import Workers
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_in_history(), reason="a clone without release 0.1"),
]
EXACTLY_ONCE = "exactly_once_v2"
MEMBERS = 3


@dataclass
class Rollout:
    """A group of three workers, of which each runs one of two releases."""

    group: Workers
    bootstrap: str
    topics: Topics
    generator: random.Random
    kills: bool
    """Whether workers are killed; else they drain."""

    def start(self, number: int, *, early: bool) -> None:
        """Start a worker of release 0.1 (`early`), or of this tree."""
        self.group.releases.pop(number, None)
        if early:
            self.group.releases[number] = release_0_1()
        self.group.start(number)

    def end(self, number: int) -> None:
        """Have a worker drain and end."""
        assert self.group.terminate(number) == 0, self.group.logs()

    def break_off(self, number: int) -> None:
        """Kill a worker, or have it end if none is killed."""
        if self.kills:
            self.group.kill(number)
        else:
            self.end(number)

    def break_one_but(self, spared: int) -> None:
        """Break off another worker than this one, and start it again."""
        others = sorted(self.group.running.keys() - {spared})
        victim = self.generator.choice(others)
        self.break_off(victim)
        self.group.start(victim)
        self.await_group()

    def instances(self) -> dict[str, dict[str, object]]:
        """Return the status of each instance, by its address, as one of this tree tells
        it; none while it does not answer.
        """
        of_this_tree = self.group.running.keys() - self.group.releases.keys()
        url = next(iter(map(self.group.url, sorted(of_this_tree))), None)
        if url is None:
            return {}
        try:
            with closing(QueryClient(url)) as client:
                return {each["url"]: each for each in client.status()["instances"]}
        except QueryError:
            return {}

    def await_group(self) -> None:
        """Wait until all workers are members, have their tasks, and run them."""

        def runs() -> bool:
            urls = {self.group.url(number) for number in self.group.running}
            found = self.instances()
            return (
                found.keys() == urls
                and len(urls) == MEMBERS
                and all(each["state"] == "running" for each in found.values())
            )

        eventually(runs, 180, lambda: f"{self.instances()}\n{self.group.logs()}")

    def formats(self) -> set[str]:
        """Return which release's formats the workers of this tree write."""
        details = [each["details"] for each in self.instances().values()]
        return {
            str(each["formats"])
            for each in details
            if isinstance(each, dict) and "formats" in each
        }

    def recorded(self) -> int:
        """Return the format of the topology record; 0: there is none."""
        records = read_topic(self.bootstrap, topology_topic(self.topics.application))
        return int(orjson.loads(records[-1].value or b"{}")["format"]) if records else 0

    def found(self, feeder: Feeder, windows: str, *, exactly: bool) -> dict[str, Found]:
        """Compare the outputs with the input."""
        outputs = {
            self.topics.counts: feeder.counts,
            self.topics.cities: feeder.cities,
            windows: feeder.cities,
        }
        compared = {
            topic: examine(self.bootstrap, topic, expected, each=exactly)
            for topic, expected in outputs.items()
        }
        letters = dead_letters(self.bootstrap, self.topics, feeder)
        return compared | {self.topics.dead: letters}


@pytest.mark.parametrize(
    ("guarantee", "kills"),
    [(EXACTLY_ONCE, True), ("at_least_once", True), ("at_least_once", False)],
)
def test_a_release_is_rolled_out_process_by_process(
    kafka: Kafka, workers: Callable[..., Workers], guarantee: str, *, kills: bool
) -> None:
    topics, seed = topics_for(kafka, 2), seed_of_run()
    windows = kafka.topic("windows", 2)
    # At-least-once doubles what a killed process had not committed, and nothing else.
    exactly = guarantee == EXACTLY_ONCE or not kills
    feeder = Feeder(kafka.bootstrap, topics, seed, orders=24_000, a_second=200)
    feeder.start()
    group = workers(
        "mixed_app.py",
        kafka.bootstrap,
        topics.environment | {"TEST_WINDOWS": windows},
        processing_guarantee=guarantee,
        num_stream_threads=2,
        statestore_cache_max_bytes=0,
        session_timeout_ms=10_000,
        heartbeat_interval_ms=300,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=topics.dead,
    )
    rollout = Rollout(group, kafka.bootstrap, topics, random.Random(seed), kills)
    rollout.start(0, early=True)
    eventually(lambda: rollout.recorded() == 1, 120, group.logs)
    rollout.start(1, early=False)
    rollout.start(2, early=False)
    rollout.await_group()
    early = 0
    for turn in (1, 2):
        rollout.break_one_but(early)
        rollout.end(turn)
        rollout.start(turn, early=True)
        rollout.await_group()
        rollout.break_off(early)  # the other one of release 0.1 is a member
        rollout.start(early, early=False)
        early = turn
        rollout.await_group()
        (told,) = rollout.formats()
        assert told.startswith("0.1, until these members run a newer release: ")
        assert rollout.recorded() == 1
    rollout.break_one_but(early)
    rollout.end(early)
    rollout.start(early, early=False)
    rollout.await_group()
    eventually(lambda: rollout.formats() == {"0.2"}, 120, group.logs)
    assert rollout.recorded() == 2
    assert "from now on the group writes the formats of release 0.2" in group.log(0)
    rollout.break_one_but(early)
    rollout.end(0)
    rollout.start(0, early=True)
    eventually(lambda: 0 in group.ended(), 120, group.logs)
    assert group.running.pop(0).returncode == 2
    assert "use the newer coopstreams" in group.log(0)
    rollout.start(0, early=False)
    rollout.await_group()
    feeder.join()
    found: dict[str, Found] = {}

    def complete() -> bool:
        found.update(rollout.found(feeder, windows, exactly=exactly))
        return all(
            one.outputs >= one.expected and not one.lost for one in found.values()
        )

    eventually(complete, 150, lambda: f"{seed}: {found}\n{group.logs()}")
    statuses = group.stop()
    complete()
    print(f"{guarantee}, kills {kills} | seed {seed} | {found}")
    assert set(statuses.values()) == {0}, group.logs()
    assert all(one.exactly_once or not exactly for one in found.values()), (
        f"{seed}: {found}\n{group.logs()}"
    )
    for number in range(MEMBERS):
        assert "of the group format" not in group.log(number)
