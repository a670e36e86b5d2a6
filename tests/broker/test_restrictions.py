"""The cluster's policy on a real Kafka: running applications switch from shared to
whole partitions and back, and each record counts once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from coopstreams import CoopStreams
from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.broker.counting import Counting, await_table, instance_of, reasons
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(50)]


def ranges(*apps: CoopStreams) -> list[KeyRange]:
    return sorted(
        task.key_range for app in apps for task in instance_of(app).standing.tasks
    )


@pytest.mark.ci
def test_a_shared_partition_becomes_whole_while_it_is_forbidden_and_each_record_counts_once(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    log = KafkaLog(kafka.settings)
    policy, written = PolicyTopic(log), Counter[str]()
    first, second = (
        counting.app(
            tmp_path / str(number), number, processing_guarantee="exactly_once_v2"
        )
        for number in range(2)
    )
    with first, second:
        told = f"{ranges(first, second)}; {first.status()}; {second.status()}"
        eventually(
            lambda: ranges(first, second) == KeyRange.split(2), 120, lambda: told
        )
        written += counting.write(KEYS * 20)

        policy.set("accept.range.fetch", False, counting.source)
        eventually(lambda: ranges(first, second) == [WHOLE], 120, lambda: told)
        written += counting.write(KEYS * 20)
        await_table(first, written)
        both = (first, second)
        eventually(
            lambda: [reasons(app) for app in both] == [["not-shared"]] * 2,
            60,
            lambda: f"{first.status()}",
        )
        for app in both:
            status = app.status()
            assert status is not None
            assert (
                f"{counting.source}: accept.range.fetch=false"
                in status["reasons"][0]["message"]
            )
            assert (status["live"], status["ready"]) == (True, True), (
                "an idle process is well: it was told to be idle"
            )

        policy.set("accept.range.fetch", None, counting.source)
        eventually(
            lambda: ranges(first, second) == KeyRange.split(2), 120, lambda: told
        )
        written += counting.write(KEYS * 20)
        await_table(first, written)
        assert not reasons(first)
    policy.close()
    log.close()
