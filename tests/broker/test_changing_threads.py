"""Changes of a running instance: adding and removing stream threads, pause and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams
from coopstreams.query.client import QueryClient
from coopstreams.topology.keys import key_hash
from tests.broker.chaos import examine
from tests.broker.counting import Counting, await_running, await_table, instance_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def read(client: QueryClient) -> dict[str, int]:
    """Return the counts."""
    return {entry.key: entry.value for entry in client.range("counts")}


def app_range(app: CoopStreams, key: str) -> bool:
    """Whether an instance owns a key."""
    return any(
        key_hash(key.encode()) in task.key_range
        for task in instance_of(app).standing.tasks
    )


def health(client: QueryClient, app: CoopStreams) -> tuple[str, bool, bool, list[str]]:
    """Return the status that an instance reports: state, live, ready, reasons."""
    (said,) = (each for each in client.status()["instances"] if each["url"] == app.url)
    return (
        said["state"],
        said["live"],
        said["ready"],
        [reason["code"] for reason in said["reasons"]],
    )


KEYS = [f"key-{number}" for number in range(40)]


def homes(app: CoopStreams) -> dict[str, int]:
    """Return the number of the stream thread of each running task."""
    return {
        str(task): home.number for task, home in list(instance_of(app)._homes.items())
    }


def await_homes(app: CoopStreams, fits: Callable[[Counter[int]], bool]) -> None:
    """Return when the tasks of an instance run on its threads as requested."""
    await_running([app])
    eventually(lambda: fits(Counter(homes(app).values())), 120, lambda: str(homes(app)))


@pytest.mark.ci
def test_threads_come_and_go_while_records_come_and_nothing_is_lost(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    app = counting.app(
        tmp_path, processing_guarantee="exactly_once_v2", statestore_cache_max_bytes=0
    )
    assert app.add_stream_thread() is None, "it does not run yet"
    with app:
        written = counting.write(KEYS)
        await_homes(app, lambda found: found == {0: 1})
        assert app.remove_stream_thread() is None, "it is the last"
        assert [app.add_stream_thread(), app.add_stream_thread()] == [
            "stream-1",
            "stream-2",
        ]
        written += counting.write(KEYS * 3)
        await_homes(
            app, lambda found: found == {0: 1, 1: 1, 2: 1}
        )  # one partition in three key ranges
        written += counting.write(KEYS * 3)
        assert app.remove_stream_thread() == "stream-2"
        written += counting.write(KEYS * 3)
        assert app.remove_stream_thread() == "stream-1"
        await_homes(app, lambda found: found == {0: 1})
        written += counting.write(KEYS)
        await_table(app, written)
        assert app.add_stream_thread() is not None
        await_homes(app, lambda found: len(found) == 2)
    found = examine(kafka.bootstrap, counting.sink, written)
    assert found.lost == 0, found
    assert found.exactly_once, found


@pytest.mark.slow
def test_a_thread_that_is_added_gets_its_share_of_partitions_that_the_group_does_not_cut(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=4)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_homes(app, lambda found: found == {0: 4})
        app.add_stream_thread()
        await_homes(app, lambda found: found == {0: 2, 1: 2})
        await_table(app, counting.write(KEYS))


@pytest.mark.ci
def test_a_paused_instance_keeps_its_tasks_through_a_rebalance_and_goes_on(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting, token = Counting.make(kafka), "t" * 20
    settings: dict[str, Any] = {
        "http_token_read": token,
        "processing_guarantee": "exactly_once_v2",
    }
    with (
        counting.app(tmp_path, **settings) as app,
        QueryClient(str(app.url), token=token) as client,
    ):
        written = counting.write(KEYS)
        eventually(lambda: read(client) == written, 120, lambda: str(read(client)))
        client.pause()
        assert app.paused
        more = counting.write(KEYS)
        with counting.app(tmp_path, 1, **settings) as other:
            await_running([app, other])
            elsewhere = sum(app_range(other, key) for key in KEYS)
            half = 2 * elsewhere + (len(KEYS) - elsewhere)
            eventually(
                lambda: sum(read(client).values()) == half,
                120,
                lambda: str(read(client)),
            )
            wanted = "paused", True, True, ["paused"]
            eventually(
                lambda: health(client, app) == wanted,
                120,
                lambda: str(health(client, app)),
            )
        await_running([app])
        assert sum(read(client).values()) == half
        app.resume()
        eventually(
            lambda: read(client) == written + more, 120, lambda: str(read(client))
        )
