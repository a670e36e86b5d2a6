"""A group whose metadata exceed what the brokers store, on a real Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from coopstreams.dev.broker import KafkaBroker
from tests.broker.counting import Counting, await_running, await_table, instance_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]
OFFSETS, EXACTLY = "__consumer_offsets", "exactly_once_v2"


def test_a_group_that_is_too_large_says_so_and_goes_on_once_the_brokers_take_it(
    broker_of_own: Callable[[], KafkaBroker], tmp_path: Path
) -> None:
    """It joined again and again, with nothing but the error "UNKNOWN"."""
    broker = broker_of_own()
    kafka = Kafka(
        broker.bootstrap,
        AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}),
    )
    counting = Counting.make(kafka)
    with counting.app(tmp_path, processing_guarantee=EXACTLY) as first:
        await_running([first])
        kafka.configure(
            OFFSETS, max_message_bytes="1400"
        )  # enough for one process, as 1 MiB are for a hundred
        with counting.app(tmp_path, 1, processing_guarantee=EXACTLY) as second:

            def problem() -> str:
                return instance_of(second).member.problem

            eventually(
                lambda: f"max.message.bytes of the topic {OFFSETS}" in problem(),
                120,
                problem,
            )
            kafka.configure(OFFSETS, max_message_bytes="1048588")
            await_running([first, second])
            await_table(second, counting.write(["a", "b", "c"]))
