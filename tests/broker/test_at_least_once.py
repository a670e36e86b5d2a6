"""At least once under fire: nothing is lost, whoever is killed or stopped; state and outputs agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from tests.broker.chaos import Chaos, Feeder, Topics, dead_letters, examine, seed_of_run, table_of, topics_for
from tests.broker.processes import Workers
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

SESSION_MS = 3000
MakeWorkers = Callable[..., Workers]


def group_of(workers: MakeWorkers, bootstrap: str, topics: Topics, **settings: object) -> Workers:
    return workers(
        "chaos_app.py",
        bootstrap,
        topics.environment,
        processing_guarantee="at_least_once",
        statestore_cache_max_bytes=0,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=300,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=topics.dead,
        **settings,
    )


def check(bootstrap: str, topics: Topics, feeder: Feeder, chaos: Chaos) -> None:
    """Wait until everything was processed; every count of every key is there, and the changelogs end at the last one or
    above.
    """
    feeder.join()
    found = {}

    def behind(name: str, expected: Mapping[str, int]) -> dict[str, tuple[int | None, int]]:
        state = table_of(bootstrap, f"{topics.application}-{name}-changelog")
        return {key: (state.get(key), count) for key, count in expected.items() if state.get(key, 0) < count}

    def complete() -> bool:
        found["counts"] = examine(bootstrap, topics.counts, feeder.counts)
        found["cities"] = examine(bootstrap, topics.cities, feeder.cities)
        found["dead"] = dead_letters(bootstrap, topics, feeder)
        return not any(one.lost for one in found.values())

    def committed() -> bool:
        """All results are there at once, state when it is committed: a process that was killed before does it again."""
        return not behind("counts", feeder.counts) and not behind("cities", feeder.cities)

    eventually(
        lambda: complete() and committed(), 150, lambda: f"{chaos}: updates are missing: {found}\n{chaos.group.logs()}"
    )
    statuses = chaos.group.stop()
    complete()
    print(f"{chaos} | {feeder.orders} orders | {found}")
    assert set(statuses.values()) == {0}, f"{statuses}\n{chaos.group.logs()}"
    for name, expected, topic in (("counts", feeder.counts, topics.counts), ("cities", feeder.cities, topics.cities)):
        state, short = table_of(bootstrap, f"{topics.application}-{name}-changelog"), behind(name, expected)
        assert not short, f"{chaos}: {name}: state is behind its input (state, input): {short}"
        assert state == table_of(bootstrap, topic), f"{chaos}: {name}: state and outputs differ"


@pytest.mark.broker
@pytest.mark.slow
def test_a_stopped_process_that_wakes_up_covers_nothing_of_its_successor(kafka: Kafka, workers: MakeWorkers) -> None:
    """The zombie has dirty state when it wakes. After that, all state is restored from the changelogs, and every count
    is right or above.
    """
    topics, seed = topics_for(kafka, 1), seed_of_run()
    feeder = Feeder(kafka.bootstrap, topics, seed, orders=12_000, a_second=1000)
    feeder.start()
    chaos = Chaos(group_of(workers, kafka.bootstrap, topics, commit_interval_ms=2000), seed, members=2)
    eventually(lambda: len(read_topic(kafka.bootstrap, topics.cities)) > 3000, 150, chaos.group.logs)
    chaos.group.freeze(0)
    feeder.join()
    time.sleep(SESSION_MS / 1000)
    chaos.group.thaw(0)
    time.sleep(3)
    chaos.kill_all(with_state=True)
    check(kafka.bootstrap, topics, feeder, chaos)
