"""Foreign-key joins, whose questions and answers travel through topics of a real
broker.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

GAPS_S = (0.005, 0.02, 0.05, 0.1, 0.16)
"""Times between two changes of a row: the answer to the first one comes about then."""
ORDERS = [f"o{number}" for number in range(12)]
"""Orders for each gap."""


def topology_of(application: str, orders: str, people: str, out: str) -> Topology:
    builder = StreamsBuilder(application)
    builder.table(orders, key=serdes.text, value=serdes.text).join(
        builder.table(people, key=serdes.text, value=serdes.text),
        lambda order, person: f"{order} {person}",
        foreign_key=lambda order: order.partition(",")[0],
        value=serdes.text,
    ).to_stream().to(out)
    return builder.build()


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_orders_that_leave_their_customer_and_change_again_at_once_have_no_result(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    orders, people, out = (kafka.topic(name) for name in ("orders", "people", "out"))
    topology = topology_of(kafka.unique("foreign"), orders, people, out)

    def latest() -> dict[bytes | None, bytes | None]:
        return {row.key: row.value for row in read_topic(kafka.bootstrap, out)}

    def await_all(value: bytes | None) -> None:
        keys = [f"{order}/{gap}".encode() for order in ORDERS for gap in GAPS_S]
        right = dict.fromkeys(keys, value)
        eventually(lambda: latest() == right, 60, lambda: str(latest()))

    config = kafka.config(tmp_path, processing_guarantee=guarantee)
    with CoopStreams(topology, config):
        kafka.write(people, [("ann", "Ann")])
        for gap in GAPS_S:
            kafka.write(orders, [(f"{order}/{gap}", "ann,0") for order in ORDERS])
        await_all(b"ann,0 Ann")
        for gap in GAPS_S:
            kafka.write(orders, [(f"{order}/{gap}", "bob,1") for order in ORDERS])
            time.sleep(gap)
            kafka.write(orders, [(f"{order}/{gap}", "bob,2") for order in ORDERS])
        await_all(None)
