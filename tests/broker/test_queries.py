"""Every kind of store, queried over HTTP from two running instances: either answers for
both, within one hop.

They require a token and a certificate, even from each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from coopstreams import (
    CoopStreams,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    StreamsBuilder,
    Topology,
    UnlimitedWindows,
    VersionedStore,
    Windows,
    WindowStore,
    serdes,
    versioned_store,
    window_store,
)
from coopstreams.query.client import QueryClient
from coopstreams.query.client_requests import VersionFound
from coopstreams.topology.keys import KeyRange
from tests.broker.counting import await_running
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.durations import ms
from tests.query.office import Office

TOKEN = "of-all-instances-and-clients"
KEYS = [f"key-{number}" for number in range(24)]
STEP = 1000
HISTORY = 50 * STEP


@dataclass(frozen=True)
class Uneven(Windows):
    """Windows of one and of three steps in turn, without a common length."""

    size_ms: int = 3 * STEP
    grace_ms: int = 10 * HISTORY

    def starts(self, timestamp: int) -> Sequence[int]:
        start = timestamp - timestamp % (4 * STEP)
        return [start if timestamp < start + STEP else start + STEP]

    def end(self, start_ms: int) -> int:
        return start_ms + (STEP if start_ms % (4 * STEP) == 0 else 3 * STEP)


class Marking(Processor[str, str, str, str]):
    """Puts each record into a window of its own."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self._marks: WindowStore[str, str] = context.store("marks")

    def process(self, record: Record[str, str]) -> None:
        if record.timestamp is not None:
            self._marks.put(record.key, record.value, record.timestamp)


class Remembering(Processor[str, str, str, str]):
    """Keeps the events of a key as versions."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self._past: VersionedStore[str, str] = context.store("past")

    def process(self, record: Record[str, str]) -> None:
        self._past.put(record.key, record.value, record.timestamp)


def topology_of(application: str, topics: dict[str, str]) -> Topology:
    builder = StreamsBuilder(application)
    events = builder.stream(topics["events"], key=serdes.text, value=serdes.text)
    prices = builder.table(
        topics["prices"],
        key=serdes.text,
        value=serdes.text,
        store="prices",
        history=ms(HISTORY),
    )
    names = builder.global_table(
        topics["names"], key=serdes.text, value=serdes.text, store="names"
    )
    events.join(prices, lambda event, price: event + price, value=serdes.text).join(
        names,
        lambda event, name: event + name,
        on=lambda key, _: key,
        value=serdes.text,
    ).to(topics["joined"])
    group = events.group_by_key()
    group.windowed_by(
        SessionWindows(gap=timedelta(seconds=5), grace=timedelta(hours=1))
    ).count(store="sessions")
    group.windowed_by(Uneven()).count(store="uneven")
    group.windowed_by(UnlimitedWindows()).count(store="ever")
    events.process(
        Marking,
        stores=[
            window_store(
                "marks",
                key=serdes.text,
                value=serdes.text,
                size=ms(7 * STEP),
                retention=ms(HISTORY),
            )
        ],
        by_key=True,
    )
    events.process(
        Remembering,
        stores=[
            versioned_store(
                "past", key=serdes.text, value=serdes.text, history=ms(10 * HISTORY)
            )
        ],
        by_key=True,
    )
    return builder.build()


@dataclass
class Running:
    """Two instances, their input, and a client of each."""

    begin: int
    topics: dict[str, str]
    apps: list[CoopStreams]
    clients: list[QueryClient]
    plain: httpx.Client

    def at(self, step: int) -> int:
        return self.begin + step * STEP


@pytest.fixture(scope="module")
def running(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Each key has events at 0, 1, 20 and 22 steps, and prices at 0, 10 and 60 steps,
    of which one deletes.
    """
    topics = {name: kafka.topic(name, 2) for name in ("events", "prices", "joined")} | {
        "names": kafka.topic("names", 3)
    }
    topology = topology_of(kafka.unique("queries"), topics)
    now = int(time.time() * 1000)
    begin = now - now % (4 * STEP)  # recent enough for the retention of topics
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"}
    )
    for at, price in ((0, b"low"), (10, None), (60, b"high")):
        for key in KEYS:
            producer.produce(topics["prices"], price, key, timestamp=begin + at * STEP)
    for at in (0, 1, 20, 22):
        for key in KEYS:
            producer.produce(
                topics["events"], b"%d" % at, key, timestamp=begin + at * STEP
            )
    for key in KEYS:
        producer.produce(topics["names"], f"name of {key}", key)
    assert producer.flush(30) == 0
    folder: Path = tmp_path_factory.mktemp("queries")
    own = Office(folder).files()
    settings = kafka.config(
        folder,
        ranges_per_partition=4,
        http_token_read=TOKEN,
        http_ssl_certificate_location=own.certificate,
        http_ssl_key_location=own.key,
        http_ssl_ca_location=own.authorities,
        http_ssl_client_auth="required",
    )
    with ExitStack() as open_:
        apps = [
            open_.enter_context(CoopStreams(topology, settings | {"instance": number}))
            for number in range(2)
        ]
        await_running(apps)
        tls = own.client()
        clients = [
            open_.enter_context(
                QueryClient(str(app.url), deadline_s=60, token=TOKEN, tls=tls)
            )
            for app in apps
        ]

        def complete() -> bool:
            ever = {entry.key: entry.value for entry in clients[0].range("ever")}
            prices = {entry.key: entry.value for entry in clients[0].range("prices")}
            windows = [
                len(list(clients[0].range(store)))
                for store in ("sessions", "uneven", "marks")
            ]
            return (
                ever == dict.fromkeys(KEYS, 4)
                and prices == dict.fromkeys(KEYS, "high")
                and windows == [len(KEYS) * each for each in (2, 4, 4)]
            )

        eventually(complete, 120, lambda: str(clients[0].status()))
        with httpx.Client(
            verify=tls,
            headers={"authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            timeout=60,
        ) as plain:
            yield Running(begin, topics, apps, clients, plain)


@pytest.fixture(params=[0, 1])
def queries(running: Running, request: pytest.FixtureRequest) -> QueryClient:
    client: QueryClient = running.clients[request.param]
    return client


pytestmark = pytest.mark.broker


def test_both_instances_own_keys_of_every_store(
    running: Running, queries: QueryClient
) -> None:
    kinds = {store["name"]: store["kind"] for store in queries.stores()}
    windows = dict.fromkeys(("uneven", "ever", "marks"), "window")
    wanted = {
        "prices": "versioned",
        "past": "versioned",
        "sessions": "session",
        "names": "global",
    } | windows
    assert kinds == wanted
    for store in wanted.keys() - {"names"}:
        owners = [queries.owner(store, key)["owner"] for key in KEYS]
        assert {owner["url"] for owner in owners} == {app.url for app in running.apps}
        assert (
            len(
                {
                    (
                        queries.owner(store, key)["partition"],
                        queries.owner(store, key)["owner"]["key_range"],
                    )
                    for key in KEYS
                }
            )
            == 8
        )


def test_the_metadata_has_each_hash_of_each_source_partition_once(
    running: Running, queries: QueryClient
) -> None:
    """As the proposal's `topicPartitionsWithKeyRange`."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for instance in queries.metadata()["instances"]:
        for task in instance["tasks"]:
            bounds = int(task["first_hash"]), int(task["last_hash"])
            for topic in task["topics"]:
                found.setdefault((topic, task["partition"]), []).append(bounds)
    assert found.keys() == {
        (running.topics[name], number)
        for name in ("events", "prices")
        for number in (0, 1)
    }
    for ranges in found.values():
        ranges.sort()
        assert len(ranges) == 4
        assert (ranges[0][0], ranges[-1][1]) == (0, KeyRange.MAX)
        assert all(end + 1 == start for (_, end), (start, _) in pairwise(ranges))


def test_windows_have_the_ends_that_their_operator_gave_them(
    running: Running, queries: QueryClient
) -> None:
    def windows(store: str, key: str) -> list[tuple[int, int | None, Any]]:
        return [(one.start, one.end, one.value) for one in queries.windows(store, key)]

    uneven = [
        (running.at(first), running.at(end))
        for first, end in ((0, 1), (1, 4), (20, 21), (21, 24))
    ]
    for key in KEYS:
        assert windows("uneven", key) == [(*window, 1) for window in uneven]
        assert windows("marks", key) == [
            (running.at(step), running.at(step + 7), str(step))
            for step in (0, 1, 20, 22)
        ]
        assert windows("ever", key) == [(0, None, 4)]
    assert {entry.window for entry in queries.range("uneven")} == set(uneven)


def test_a_processor_keeps_versions_that_are_asked_as_those_of_a_table(
    running: Running, queries: QueryClient
) -> None:
    steps: tuple[int | None, ...] = (0, 1, 20, 22, None)
    for key in KEYS:
        versions = [
            VersionFound(
                running.at(since),
                None if until is None else running.at(until),
                str(since),
            )
            for since, until in pairwise(steps)
            if since is not None
        ]
        assert queries.versions("past", key) == versions
        assert queries.as_of("past", key, running.at(10)) == versions[1]
        assert queries.as_of("past", key, running.at(-1)) is None


@pytest.mark.ci
def test_what_another_instance_owns_is_one_hop_away_and_local_says_whose_it_is(
    running: Running,
) -> None:
    paths = {"sessions": "sessions", "ever": "windows", "prices": "versions"}
    for store, form in paths.items():
        for key in KEYS[:8]:
            owner = running.clients[0].owner(store, key)["owner"]
            for app in running.apps:
                url = f"{app.url}/v1/stores/{store}/{form}/{key}"
                assert running.plain.get(url).json()["owner"] == owner["id"]
                local = running.plain.get(url, params={"local": "true"})
                assert local.status_code == (200 if app.url == owner["url"] else 421)
                assert app.url == owner["url"] or local.json()["url"] == owner["url"]
