"""Topics by pattern on a real Kafka: all instances read a topic created while they run,
from its beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.topology.errors import TopologyError
from tests.broker.counting import await_running, await_table, failure_of, instance_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


class Shop:
    """Topics with a common prefix, and an application that reads them by a pattern."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.application, self.prefix, self.sink = (
            kafka.unique("shop"),
            kafka.unique("orders"),
            kafka.topic("out", 3),
        )
        self.written: Counter[str] = Counter()

    def topic(self, name: str, partitions: int = 1) -> str:
        self.kafka.create(f"{self.prefix}-{name}", partitions)
        return f"{self.prefix}-{name}"

    def write(self, topic: str, records: int) -> None:
        keys = [f"key-{number % 40}" for number in range(records)]
        self.kafka.write(topic, ((key, topic.encode()) for key in keys))
        self.written.update(keys)

    def app(self, number: int = 0, **settings: Any) -> CoopStreams:
        builder = StreamsBuilder(self.application)
        stream = builder.stream(
            re.compile(f"{self.prefix}-.*"), key=serdes.text, value=serdes.raw
        )
        stream.group_by_key().count(store="counts").to_stream().to(self.sink)
        given = {
            "metadata_max_age_ms": 500,
            "processing_guarantee": "exactly_once_v2",
            **settings,
        }
        return CoopStreams(
            builder.build(), self.kafka.config(self.folder, instance=number, **given)
        )


@pytest.fixture
def shop(kafka: Kafka, tmp_path: Path) -> Shop:
    return Shop(kafka, tmp_path)


def reads(app: CoopStreams) -> set[str]:
    """Return the topics that the tasks of an instance read."""
    return {
        source.topic
        for task in instance_of(app).standing.tasks.values()
        for source in task.sources
    }


@pytest.mark.ci
def test_a_topic_that_is_made_while_two_instances_share_a_partition_is_read_by_both_and_nothing_is_lost(
    shop: Shop,
) -> None:
    europe = shop.topic("europe")
    with (
        shop.app(0, processing_guarantee="exactly_once_v2") as first,
        shop.app(1, processing_guarantee="exactly_once_v2") as second,
    ):
        await_running([first, second])
        shop.write(europe, 500)
        america = shop.topic("america")
        shop.write(america, 500)
        shop.write(europe, 500)
        eventually(
            lambda: reads(first) == reads(second) == {europe, america},
            120,
            lambda: f"{reads(first)} and {reads(second)}",
        )
        shop.write(america, 500)
        await_running([first, second])
        await_table(first, shop.written)
    with shop.app(0) as again:
        await_running([again])
        await_table(again, shop.written)


@pytest.mark.ci
def test_an_application_waits_for_the_first_topic_that_matches(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    with shop.app(0) as first, shop.app(1) as second:
        eventually(
            lambda: all(
                instance_of(app).standing.assigned is not None
                for app in (first, second)
            ),
            120,
            lambda: "the group does not begin",
        )
        assert f'no topic matches "{shop.prefix}-.*" yet' in caplog.text
        assert f"{shop.application}-counts-changelog" not in shop.kafka.topics()
        europe = shop.topic("europe", 3)
        shop.write(europe, 400)
        await_running([first, second])
        await_table(second, shop.written)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_topic_that_is_deleted_is_no_longer_read_and_the_others_go_on(
    shop: Shop, guarantee: str
) -> None:
    europe, asia = shop.topic("europe"), shop.topic("asia")
    # The next check for topics is five minutes away; but a commit for the topic fails.
    with shop.app(
        0, metadata_max_age_ms=300_000, processing_guarantee=guarantee
    ) as app:
        await_running([app])
        shop.write(asia, 200)
        await_table(app, shop.written)
        shop.kafka.delete(asia)
        shop.write(europe, 300)
        eventually(lambda: reads(app) == {europe}, 120, lambda: str(reads(app)))
        await_running([app])
        await_table(app, shop.written)


@pytest.mark.slow
def test_a_topic_that_is_deleted_while_nothing_is_processed_is_no_longer_read_and_the_instance_goes_on(
    shop: Shop,
) -> None:
    europe, asia = shop.topic("europe"), shop.topic("asia")
    # The next check for topics is five minutes away, and nothing is committed: the
    # reader misses the topic first.
    with shop.app(0, metadata_max_age_ms=300_000) as app:
        await_running([app])
        shop.write(asia, 200)
        await_table(app, shop.written)
        shop.kafka.delete(asia)
        eventually(lambda: reads(app) == {europe}, 120, lambda: str(reads(app)))
        shop.write(europe, 300)
        await_table(app, shop.written)


def test_a_new_topic_that_does_not_fit_stops_the_application_and_says_why(
    shop: Shop,
) -> None:
    shop.topic("europe", 1)
    app = shop.app(0)
    with ThreadPoolExecutor(1) as pool:
        failure = pool.submit(failure_of, app)
        eventually(lambda: app._instance is not None, 120, lambda: "it does not begin")
        await_running([app])
        shop.topic("america", 2)
        error = failure.result(120)
    assert isinstance(error, TopologyError)
    assert "Add .repartition() before the table" in str(error)
    assert isinstance(failure_of(shop.app(0)), TopologyError), (
        "and does so at the start"
    )
