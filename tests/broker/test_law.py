"""The law of the project on a real Kafka: the same input gives the same tables for any
number of ranges, threads and instances.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import QueryError
from tests.broker import law
from tests.broker.law import Topics, law_topology
from tests.broker.reading import by_key, read_topic, updates_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

ORDERS = 3000


def topics_for(kafka: Kafka, partitions: int) -> Topics:
    names = ("orders", "customers", "running", "windows", "cities")
    return Topics(
        kafka.unique("law"), *(kafka.topic(name, partitions) for name in names)
    )


def instances(
    kafka: Kafka, topology: Topology, folder: Path, number: int, **settings: Any
) -> list[CoopStreams]:
    return [
        CoopStreams(topology, kafka.config(folder, instance=i, **settings))
        for i in range(number)
    ]


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize(
    ("ranges", "number", "guarantee", "partitions"),
    [
        (8, 3, "exactly_once_v2", 2),
        pytest.param(3, 2, "at_least_once", 1, marks=pytest.mark.slow),
    ],
)
def test_ranges_and_instances_do_not_change_the_result(
    kafka: Kafka,
    tmp_path: Path,
    ranges: int,
    number: int,
    guarantee: str,
    partitions: int,
) -> None:
    """Run the program over the input, and compare all outputs with those of a single
    thread.
    """
    topics = topics_for(kafka, partitions)
    topology = law_topology(topics)
    records = law.law_input(
        seed=ranges * 100 + number * 10 + partitions,
        orders=ORDERS,
        partitions=partitions,
    )
    law.write(kafka.bootstrap, topics, records)
    expected = law.fold(records, partitions)
    assert expected.late > 20, "no late records: the input proves less than it should"

    settings = {
        "ranges_per_partition": ranges,
        "ranges_before_windows": True,
        "processing_guarantee": guarantee,
        "statestore_cache_max_bytes": 0,
    }
    with ExitStack() as running:
        apps = [
            running.enter_context(app)
            for app in instances(kafka, topology, tmp_path, number, **settings)
        ]
        clients = [
            running.enter_context(QueryClient(str(app.url), deadline_s=60))
            for app in apps
        ]
        seen: dict[str, Any] = {}

        def complete() -> bool:
            try:
                if len(clients[0].metadata()["instances"]) < number:
                    return False
                seen.update(law.tables_by_query(clients[0]))
            except QueryError as error:
                seen["error"] = error
                return False
            return all(seen[name] == table for name, table in expected.tables.items())

        eventually(
            complete,
            120,
            lambda: difference(seen, expected.tables) + f"\n{clients[0].status()}",
        )
        for client in clients[1:]:
            assert law.tables_by_query(client) == expected.tables, (
                "instances answer differently"
            )
        metadata = clients[0].metadata()
        assert len(metadata["instances"]) == number

    def by_changelogs() -> dict[str, dict[Any, Any]]:
        return law.tables_by_changelog(
            {
                name: read_topic(kafka.bootstrap, law.changelog_of(topology, name).name)
                for name in law.TABLES
            }
        )

    eventually(
        lambda: by_changelogs() == expected.tables,
        60,
        lambda: difference(by_changelogs(), expected.tables),
    )
    check_outputs(kafka, topics, expected)


@pytest.mark.ci
@pytest.mark.broker
def test_a_backlog_loses_nothing_behind_a_repartition_topic(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Windows without grace count new keys of twenty hours in order, and four threads
    share the partition in front of the topic.
    """
    source, hour = kafka.topic("sales"), 3_600_000
    times = [law.BEGIN_MS + number * 20 * hour // ORDERS for number in range(ORDERS)]
    kafka.write(
        source,
        [
            (b"%d" % (number % 50), b"%d" % (number % 3), at)
            for number, at in enumerate(times)
        ],
    )
    builder = StreamsBuilder(kafka.unique("backlog"))
    sales = builder.stream(source, key=serdes.text, value=serdes.text).group_by(
        lambda _, kind: kind, key=serdes.text
    )
    sales.windowed_by(TimeWindows(hours=1, grace=timedelta(0))).count(
        store="hours", retention=timedelta(days=3650)
    )
    expected = Counter(
        (str(number % 3), at // hour * hour) for number, at in enumerate(times)
    )
    seen: dict[tuple[str, int], int] = {}

    settings = kafka.config(
        tmp_path, num_stream_threads=4, statestore_cache_max_bytes=0
    )
    with (
        CoopStreams(builder.build(), settings) as app,
        QueryClient(str(app.url), deadline_s=60) as client,
    ):

        def complete() -> bool:
            for found in client.range("hours", page=5000):
                assert found.window is not None
                seen[found.key, found.window[0]] = found.value
            return sum(seen.values()) == ORDERS

        eventually(
            complete, 60, lambda: f"{sum(seen.values())} of {ORDERS}\n{client.status()}"
        )
        assert seen == expected
        status = app.status()
        assert status is not None
        assert not status["reasons"]
        sharing = [task for task in status["tasks"] if task["id"].startswith("0_0[")]
        assert len(sharing) == 4


def check_outputs(kafka: Kafka, topics: Topics, expected: law.Tables) -> None:
    """Each key has all its updates in order: there is no record cache."""
    windowed = serdes.windowed(serdes.text, timedelta(milliseconds=law.WINDOW_MS))
    windows = {}
    for key, values in by_key(read_topic(kafka.bootstrap, topics.windows)).items():
        window = windowed.decode(key)
        windows[window.key, window.start_ms] = [
            serdes.int64.decode(v or b"") for v in values
        ]
    cities = {}
    for key, values in by_key(read_topic(kafka.bootstrap, topics.cities)).items():
        window = windowed.decode(key)
        cities[window.key, window.start_ms] = [
            serdes.json.decode(v or b"") for v in values
        ]
    assert {key: values[-1] for key, values in cities.items()} == expected.tables[
        "cities"
    ]
    assert updates_of(kafka.bootstrap, topics.running) == expected.running_updates
    assert windows == expected.windows_updates
    assert {key: [count for count, _ in values] for key, values in cities.items()} == {
        key: list(range(1, count + 1)) for key, count in expected.cities_updates.items()
    }


def difference(seen: dict[str, Any], expected: dict[str, dict[Any, Any]]) -> str:
    lines = [str(seen.get("error", ""))]
    for name, table in expected.items():
        got = seen.get(name, {})
        wrong = {
            key: (got.get(key), table.get(key))
            for key in table.keys() | got.keys()
            if got.get(key) != table.get(key)
        }
        lines.append(
            f"{name}: {len(wrong)} of {len(table)} rows differ (got, want): {dict(list(wrong.items())[:3])}"
        )
    return "\n".join(lines)
