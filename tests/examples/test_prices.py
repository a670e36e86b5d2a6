"""The example of a network service: a slow one that often fails gives the results of a
fast and faultless one.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.testing import TopologyTestDriver
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.examples.loading import loaded

PRICES = {"tea": 3.0, "coffee": 5.0, "cocoa": 4.0}


class Service(BaseHTTPRequestHandler):
    """Takes up to 20 ms, and answers every tenth request with an error: a retry is
    probably another one.

    Unless it may continue, it does not answer after 100 requests.
    """

    protocol_version = "HTTP/1.1"
    asked: ClassVar[Counter[int]] = Counter()
    chance = random.Random(1)
    go_on = threading.Event()
    numbers = count()

    def do_GET(self) -> None:
        time.sleep(self.chance.uniform(0, 0.02))
        if self.asked[200] >= 100:
            self.go_on.wait()
        status = 503 if next(self.numbers) % 10 == 9 else 200
        self.asked[status] += 1
        body = json.dumps({"price": PRICES[self.path.rpartition("/")[2]]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        with suppress(ConnectionError):  # the client may be gone
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name is http.server's
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Lets a hundred clients connect at once."""

    request_queue_size = 256


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the example, loaded with the address of a service that runs."""
    Service.asked.clear()
    Service.go_on.clear()
    with Server(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PRICES_URL", f"http://127.0.0.1:{server.server_port}")
        with loaded("prices") as module:
            yield module
        Service.go_on.set()
        server.shutdown()


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [1, 4])
def test_the_sums_are_those_of_the_prices(example: Any, ranges: int) -> None:
    expected: Counter[str] = Counter()
    with TopologyTestDriver(example.topology, ranges) as driver:
        for number in range(40):
            customer, article, pieces = (
                f"c{number % 5}",
                list(PRICES)[number % 3],
                number % 4,
            )
            driver.input("orders").send(
                customer, {"article": article, "pieces": pieces}
            )
            expected[customer] += int(PRICES[article] * pieces)
        assert driver.output("spent").latest() == expected
    assert Service.asked[200] == 40
    assert Service.asked[503] > 0


@pytest.mark.slow
@pytest.mark.broker
def test_on_kafka_a_restart_asks_again_and_counts_nothing_twice(
    example: Any, kafka: Any, tmp_path: Path
) -> None:
    """Two key ranges of one partition under exactly-once, stopped in the middle and
    restarted.
    """
    orders, spent = kafka.topic("orders"), kafka.topic("spent")
    topology = topology_between(example, kafka.unique("prices"), orders, spent)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    expected: Counter[str] = Counter()
    for number in range(300):
        customer, article, pieces = (
            f"c{number % 50}",
            list(PRICES)[number % 3],
            1 + number % 4,
        )
        producer.produce(
            orders, json.dumps({"article": article, "pieces": pieces}), customer
        )
        expected[customer] += int(PRICES[article] * pieces)
    assert producer.flush(60) == 0
    settings = kafka.config(
        tmp_path, processing_guarantee="exactly_once_v2", ranges_per_partition=2
    )
    with CoopStreams(topology, settings):
        eventually(lambda: Service.asked[200] >= 100, 90, lambda: str(Service.asked))
    assert Service.asked[200] < 200, "it was stopped in the middle"
    Service.go_on.set()

    def found() -> dict[str, int]:
        return {
            (key or b"").decode(): int(float(value or b"0"))
            for key, value, *_ in read_topic(kafka.bootstrap, spent)
        }

    with CoopStreams(topology, settings):
        eventually(
            lambda: found() == expected,
            90,
            lambda: f"{found()} is not {dict(expected)}",
        )


def topology_between(
    example: Any, application: str, orders: str, spent: str
) -> Topology:
    """Return the example's program for other topics."""
    builder = StreamsBuilder(application)
    builder.stream(
        orders, key=serdes.text, value=serdes.json(example.Order)
    ).map_values_async(
        example.cost_of,
        value=serdes.json(float),
        max_in_flight=50,
        retry=example.Retry(
            times=5,
            backoff=example.timedelta(milliseconds=20),
            on=(example.httpx.HTTPError,),
        ),
    ).group_by_key().aggregate(
        lambda: 0.0,
        lambda _, cost, total: total + cost,
        value=serdes.json(float),
        store="spent",
    ).to_stream().to(spent)
    return builder.build()
