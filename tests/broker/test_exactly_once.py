"""Exactly-once under faults: processes are killed, stopped, added and removed while
records flow; every record counts once, in order. Brokers too come and go in
`test_chaos_cluster.py`, under both guarantees.

A run draws its faults from a seed and prints it; TEST_SEED=<seed> repeats the faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.broker.chaos import (
    KEYS,
    Chaos,
    Feeder,
    Found,
    Topics,
    dead_letters,
    examine,
    seed_of_run,
    topics_for,
)
from tests.broker.hammer import Hammer
from tests.broker.processes import Workers
from tests.broker.reading import counts_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

SESSION_MS = 4000
LONG_S = SESSION_MS / 1000 + 2
"""A pause after which the group has removed the process."""
MakeWorkers = Callable[..., Workers]


def settle(bootstrap: str, topics: Topics, feeder: Feeder, chaos: Chaos) -> None:
    """Wait until all records are processed; then check that each update is there once
    and in order, and equals the state.
    """
    feeder.join()
    found: dict[str, Found] = {}

    def complete() -> bool:
        found["counts"] = examine(bootstrap, topics.counts, feeder.counts)
        found["cities"] = examine(bootstrap, topics.cities, feeder.cities)
        found["dead"] = dead_letters(bootstrap, topics, feeder)
        return all(one.outputs >= one.expected for one in found.values())

    eventually(
        complete, 150, lambda: f"{chaos}: not complete: {found}\n{chaos.group.logs()}"
    )
    statuses = chaos.group.stop()
    complete()
    print(f"{chaos} | {feeder.orders} orders | {found}")
    assert all(one.exactly_once for one in found.values()), (
        f"{chaos}: {found}\n{chaos.group.logs()}"
    )
    assert (
        counts_of(bootstrap, f"{topics.application}-counts-changelog") == feeder.counts
    )
    assert (
        counts_of(bootstrap, f"{topics.application}-cities-changelog") == feeder.cities
    )
    assert set(statuses.values()) == {0}, f"{statuses}\n{chaos.group.logs()}"


def group_of(
    workers: MakeWorkers,
    bootstrap: str,
    topics: Topics,
    *,
    threads: int,
    **settings: object,
) -> Workers:
    return workers(
        "chaos_app.py",
        bootstrap,
        topics.environment,
        processing_guarantee="exactly_once_v2",
        num_stream_threads=threads,
        statestore_cache_max_bytes=0,
        heartbeat_interval_ms=300,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=topics.dead,
        **{"session_timeout_ms": SESSION_MS, **settings},
    )


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_kills_and_stops_neither_lose_nor_double_a_record(
    kafka: Kafka, workers: MakeWorkers
) -> None:
    """One partition in six to eight ranges over three to four processes, cut anew at
    each fault; three kills, one long stop; queries all along.
    """
    topics, seed = topics_for(kafka, 1), seed_of_run()
    feeder = Feeder(kafka.bootstrap, topics, seed, orders=30_000, a_second=1700)
    feeder.start()
    chaos = Chaos(
        group_of(workers, kafka.bootstrap, topics, threads=2), seed, members=3
    )
    time.sleep(4)
    with Hammer(
        "counts", [f"key-{number}" for number in range(KEYS)], chaos.urls
    ) as hammer:
        for fault in (
            chaos.kill,
            chaos.add,
            chaos.kill,
            lambda: chaos.stop(LONG_S),
            chaos.remove,
            chaos.kill,
        ):
            fault()
        hammer.await_answers()
    settle(kafka.bootstrap, topics, feeder, chaos)
    print(hammer.answers)
    hammer.check()


@pytest.mark.broker
@pytest.mark.slow
def test_a_process_that_was_killed_and_is_started_again_waits_for_no_session_time_out(
    kafka: Kafka, workers: MakeWorkers
) -> None:
    """The group would keep the killed member, with its key ranges, for the session
    time-out: here twenty minutes.
    """
    topics, seed = topics_for(kafka, 2), seed_of_run()
    feeder = Feeder(kafka.bootstrap, topics, seed, orders=3000, a_second=1000)
    chaos = Chaos(
        group_of(
            workers, kafka.bootstrap, topics, threads=1, session_timeout_ms=20 * 60_000
        ),
        seed,
        members=2,
    )
    eventually(
        lambda: len(list(chaos.group.folder.glob("state/*/*/member-id"))) == 2,
        90,
        chaos.group.logs,
    )
    chaos.kill()
    feeder.start()
    settle(kafka.bootstrap, topics, feeder, chaos)
