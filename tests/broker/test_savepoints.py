"""A second application begins with the savepoint of a running one, on a real Kafka: both
give the same results for the same records, and the first is not disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.admin.savepoint import Savepoints
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.state import snapshot
from coopstreams.state.manifest import Manifest
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import ConfigError, SnapshotError
from tests.broker.counting import (
    Counting,
    await_running,
    await_table,
    instance_of,
    metric,
    table,
)
from tests.broker.reading import updates_of
from tests.broker.test_snapshot_restore import FROM_SNAPSHOT, KEYS, REPLAYED
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[KafkaLog]:
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as log:
        yield log


def staging(counting: Counting) -> Counting:
    """Return the same program under another application id, with results of its own."""
    kafka = counting.kafka
    application = kafka.unique("staging")
    sink = kafka.topic("out", 2)
    builder = StreamsBuilder(application)
    builder.stream(
        counting.source, key=serdes.text, value=serdes.raw
    ).group_by_key().count(store="counts").to_stream().to(sink)
    return Counting(kafka, application, counting.source, sink, builder.build())


def taken(
    cluster: KafkaLog, counting: Counting, url: str, name: str, wait_s: float = 90
) -> Manifest:
    """Take a savepoint of an application."""
    config = Config.of(counting.kafka.config(Path("unused")), counting.application)
    return Savepoints(cluster, counting.topology, config, url).take(name, wait_s)


@pytest.mark.ci
def test_a_second_application_goes_on_from_a_savepoint_with_the_same_results(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    blue, url = Counting.make(kafka, 2), str(tmp_path / "snapshots")
    green = staging(blue)
    settings: dict[str, Any] = {
        "processing_guarantee": "exactly_once_v2",
        "commit_interval_ms": 100,
        "ranges_per_partition": 2,
        "statestore_cache_max_bytes": 0,  # every update is a result
        "snapshots_dir": url,
    }

    def begin(folder: str) -> CoopStreams:
        return CoopStreams(
            green.topology,
            kafka.config(tmp_path / folder, **settings),
            from_savepoint="before",
        )

    written = blue.write(KEYS)
    with (
        blue.app(tmp_path / "blue", **settings) as first,
        blue.app(tmp_path / "blue", 1, **settings) as second,
    ):
        await_running([first, second])
        await_table(first, written)
        written += blue.write(KEYS[:2000])  # the tasks are at work on these
        made = taken(cluster, blue, url, "before")
        assert made.kind == "savepoint"
        assert sum(file.entries for file in made.files()) == len(KEYS)
        with pytest.raises(SnapshotError, match='a savepoint "before" of'):
            taken(cluster, blue, url, "before")
        written += blue.write(KEYS[1000:3000])
        with begin("green") as fork:
            await_table(fork, written)
            assert metric(fork, FROM_SNAPSHOT) == len(KEYS)
            assert metric(fork, REPLAYED) < len(KEYS)
            await_table(first, written)
    assert snapshot.savepoints(url, blue.application) == {"before": made.run}
    snapshot.forget_savepoint(url, blue.application, "before")
    with begin("elsewhere") as again:  # nothing is seeded twice: it is not needed
        written += blue.write(KEYS[:10])
        await_table(again, written)
    results = updates_of(kafka.bootstrap, blue.sink)
    forked = updates_of(kafka.bootstrap, green.sink)
    assert len(forked) <= 3000
    for updates in results.values():
        assert updates == [*range(1, len(updates) + 1)], "blue was disturbed"
    for key, updates in forked.items():
        assert updates == [*range(updates[0], written[key] + 1)], (
            "green has lost or doubled records"
        )
        assert updates[0] > 1, "green has begun at the beginning"


def by_letter(application: str, source: str, sink: str) -> Topology:
    """Count records by the last letter of their key, behind a repartition topic."""
    builder = StreamsBuilder(application)
    builder.stream(source, key=serdes.text, value=serdes.raw).group_by(
        lambda key, _: key[-1], key=serdes.text
    ).count(store="counts").to_stream().to(sink)
    return builder.build()


@pytest.mark.ci
def test_records_between_two_tasks_are_in_the_savepoint_of_a_paused_application(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    source, url = kafka.topic("in", 2), str(tmp_path / "snapshots")
    blue, green = (
        Counting(kafka, name, source, sink, by_letter(name, source, sink))
        for name, sink in (
            (kafka.unique("blue"), kafka.topic("out", 2)),
            (kafka.unique("green"), kafka.topic("out", 2)),
        )
    )
    settings: dict[str, Any] = {
        "processing_guarantee": "exactly_once_v2",
        "commit_interval_ms": 100,
        "ranges_per_partition": 2,
        "statestore_cache_max_bytes": 0,
        "snapshots_dir": url,
    }
    letters = Counter[str]()

    def write(keys: list[str]) -> None:
        for key, count in blue.write(keys).items():
            letters[key[-1]] += count

    with blue.app(tmp_path / "blue", **settings) as app:
        await_running([app])
        write(KEYS)
        eventually(lambda: len(table(app)) == 10, 90, lambda: "no results")
        instance_of(app).pause(True)  # somewhere between the records
        made = paused_savepoint(cluster, blue, url)
        assert {each.topic for each in made.in_flight} == {"counts-repartition"}
        instance_of(app).pause(False)
        write(KEYS[:500])
        fork = CoopStreams(
            green.topology,
            kafka.config(tmp_path / "green", **settings),
            from_savepoint=f"{blue.application}/between",
        )
        with fork:
            await_table(fork, letters)
            await_table(app, letters)
    forked = updates_of(kafka.bootstrap, green.sink)
    for letter, updates in updates_of(kafka.bootstrap, blue.sink).items():
        assert updates == [*range(1, letters[letter] + 1)], "blue was disturbed"
        assert forked[letter] == updates[-len(forked[letter]) :], "green differs"


def paused_savepoint(cluster: KafkaLog, counting: Counting, url: str) -> Manifest:
    """Take a savepoint, again while the last commits of a paused application come."""
    found: list[Manifest] = []

    def still() -> bool:
        try:
            found.append(taken(cluster, counting, url, "between"))
        except SnapshotError as error:
            assert "were processed while" in str(error)  # noqa: PT017
        return bool(found)

    eventually(still, 90, lambda: "it never stands still")
    return found[-1]


def test_a_savepoint_that_cannot_be_or_does_not_fit_is_refused_in_words(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting, url = Counting.make(kafka, 2), str(tmp_path / "snapshots")
    with counting.app(tmp_path / "state", snapshots_dir=url) as app:
        await_table(app, counting.write(KEYS[:50]))
        made = taken(cluster, counting, url, "full")
        request = Storage(url).read(f"{counting.application}/SAVEPOINT")
        assert request is None
    with pytest.raises(SnapshotError, match=r"not all tasks .* 0_0, 0_1 of 2"):
        taken(cluster, counting, url, "nobody-runs", wait_s=0.1)

    def refused(of: Counting, name: str) -> str:
        app = CoopStreams(
            of.topology,
            kafka.config(tmp_path / "other", snapshots_dir=url),
            from_savepoint=name,
        )
        with pytest.raises((ConfigError, SnapshotError)) as error:
            app.run()
        return str(error.value)

    other = Counting.make(kafka, 2)
    assert "has other source topics" in refused(other, "full")
    assert 'there is no savepoint "fool"' in refused(other, "fool")
    assert made.application in refused(other, "fool")
    green = staging(counting)
    with green.app(tmp_path / "green") as app:
        await_running([app])
    assert snapshot.current_run(url, green.application) is None
