"""The examples of consumers, each on a real Kafka."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from coopstreams.consumer import ConsumerRecord, KeyRange, list_consumer_group_offsets
from coopstreams.topology.keys import key_hash
from tests.broker.consuming import Orders
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

FOLDER = Path(__file__).resolve().parents[2] / "examples"
COUNT = 300


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def orders(kafka: Kafka) -> Iterator[Orders]:
    made = Orders(kafka)
    made.write(COUNT)
    yield made
    made.close()


class Seen:
    """The records that were processed; the run ends after `COUNT` of them."""

    def __init__(self) -> None:
        self.records: list[ConsumerRecord] = []
        self.until = time.monotonic() + 200

    def work(self, record: ConsumerRecord) -> None:
        self.records.append(record)

    def running(self) -> bool:
        assert time.monotonic() < self.until, f"{len(self.offsets)} of {COUNT}"
        return len(self.offsets) < COUNT

    @property
    def offsets(self) -> set[int]:
        return {record.offset for record in list(self.records)}


def committed(orders: Orders, group: str) -> int:
    found = list_consumer_group_offsets(
        {"bootstrap.servers": orders.kafka.bootstrap}, group, [orders.at]
    )[orders.at]
    assert found is not None
    return found.offset


def test_processes_that_are_told_their_key_ranges(orders: Orders) -> None:
    example, seen = load("consumer_key_ranges"), [Seen(), Seen(), Seen()]

    def one(number: int) -> None:
        mine = len(orders.offsets_of(KeyRange.split(3)[number]))
        example.run(
            orders.kafka.bootstrap,
            orders.topic,
            number,
            3,
            seen[number].work,
            lambda: len(seen[number].records) < mine,
        )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    for key_range, who in zip(KeyRange.split(3), seen, strict=True):
        assert [record.offset for record in who.records] == orders.offsets_of(key_range)


def test_a_group_that_shares_a_partition(orders: Orders) -> None:
    example, seen = load("consumer_group"), Seen()
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda _: example.run(
                    orders.kafka.bootstrap, orders.topic, seen.work, seen.running
                ),
                range(2),
            )
        )
    assert seen.offsets == set(range(COUNT))
    assert all(
        key_hash(record.key or b"") in record.key_range for record in seen.records
    )


@pytest.mark.ci
def test_slow_work_is_committed_in_the_order_in_which_it_is_finished(
    orders: Orders,
) -> None:
    example, seen = load("consumer_asyncio"), Seen()
    order: list[int] = []

    async def work(record: ConsumerRecord) -> None:
        if record.offset % 50 == 0:
            await asyncio.sleep(0.3)
        order.append(record.offset)
        seen.work(record)

    asyncio.run(example.run(orders.kafka.bootstrap, orders.topic, work, seen.running))
    assert order != sorted(order)
    assert Counter(order) == Counter(range(COUNT))
    assert committed(orders, f"{orders.topic}-asyncio") == COUNT


@pytest.mark.ci
def test_what_is_to_be_revoked_is_finished_by_the_pool_first(orders: Orders) -> None:
    example, seen = load("consumer_delayed_revoke"), Seen()
    blocked = threading.Event()

    def slow(record: ConsumerRecord) -> None:
        if record.offset == 7:
            blocked.wait(120)
        seen.work(record)

    def running(me: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: me() and seen.running()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(
            example.run,
            orders.kafka.bootstrap,
            orders.topic,
            slow,
            running(lambda: True),
        )
        while len(seen.offsets) < COUNT - 1:
            time.sleep(0.05)
        second = pool.submit(
            example.run,
            orders.kafka.bootstrap,
            orders.topic,
            slow,
            running(lambda: True),
        )
        time.sleep(
            2
            # the second one has joined, and waits for its half, because the first keeps
            # the partition for the slow record
        )
        blocked.set()
        first.result(200)
        second.result(200)
    assert Counter(record.offset for record in seen.records) == Counter(range(COUNT)), (
        "nothing was done twice"
    )
