"""Lost positions: existing state is never continued from the beginning. Positions that
went back below purged records.

Without Kafka: tests/opening/test_position_check.py, tests/commit/test_unreadable_commits.py and
test_purged_positions.py.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition as GroupPartition
from kafka.admin import KafkaAdminClient

from coopstreams import StreamsBuilder, serdes
from coopstreams.admin.group_reset import reset_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, OffsetOutOfRangeError
from tests.broker.counting import Counting, await_table
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(200)]


def lose_offsets(counting: Counting) -> None:
    """Delete the offsets of the group, as an operator or their expiry does."""
    admin = KafkaAdminClient(bootstrap_servers=counting.kafka.bootstrap)
    source = TopicPartition(counting.source, 0)
    await_end(counting)

    def gone() -> bool:
        admin.delete_group_offsets(
            counting.application, [GroupPartition(counting.source, 0)]
        )
        with GroupAdmin(counting.kafka.settings, counting.application) as group:
            return not group.committed([source])[source]

    eventually(gone, 60, lambda: "the offsets are still there")
    admin.close()


def await_end(counting: Counting) -> None:
    with GroupAdmin(counting.kafka.settings, counting.application) as admin:
        eventually(
            lambda: not admin.describe().members, 60, lambda: "the group has members"
        )


@pytest.mark.ci
def test_an_ordinary_application_whose_offsets_are_gone_is_refused_and_goes_on_where_it_is_told(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    expected = counting.write(KEYS)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, expected)
    lose_offsets(counting)
    lost = rf"has lost its positions: {counting.changelog}-0 has records.* `coopstreams reset`.* --topic {counting.source}"
    with pytest.raises(ConfigError, match=lost):
        counting.app(tmp_path, processing_guarantee="exactly_once_v2").run()
    await_end(counting)
    with (
        closing(KafkaLog(kafka.settings)) as log,
        GroupAdmin(kafka.settings, counting.application) as admin,
    ):
        reset_offsets(log, admin, {TopicPartition(counting.source, 0): len(KEYS)})
    expected += counting.write(KEYS[:1])
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, expected)


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_an_offset_of_a_repartition_topic_that_went_back_below_what_was_purged(
    guarantee: str, kafka: Kafka, tmp_path: Path
) -> None:
    """Under at-least-once an offset commit that is delayed takes it back: here an
    administrator does.
    """
    counting = Counting.make(kafka)
    builder = StreamsBuilder(counting.application)
    records = builder.stream(counting.source, key=serdes.text, value=serdes.raw)
    records.group_by(lambda key, _: key[::-1], key=serdes.text, name="by-end").count(
        store="counts"
    ).to_stream().to(counting.sink)
    counting = replace(counting, topology=builder.build())
    forwarded = TopicPartition(f"{counting.application}-by-end-repartition", 0)
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "repartition_purge_interval_ms": 1000,
        "commit_interval_ms": 50,
    }

    def reversed_(counts: Counter[str]) -> dict[str, int]:
        return {key[::-1]: count for key, count in counts.items()}

    expected = counting.write(KEYS)
    with (
        counting.app(tmp_path, **settings) as app,
        closing(KafkaLog(kafka.settings)) as log,
    ):
        await_table(app, reversed_(expected))
        eventually(
            lambda: log.start_offset(forwarded) >= len(KEYS),
            60,
            lambda: "nothing was purged",
        )
    await_end(counting)
    with GroupAdmin(kafka.settings, counting.application) as admin:
        at = admin.committed([forwarded])[forwarded]
        assert at is not None
        admin.commit({forwarded: (len(KEYS) - 5, at[1])})
    expected += counting.write(KEYS[:7])
    if guarantee == "exactly_once_v2":
        with pytest.raises(
            OffsetOutOfRangeError, match=r"up to \d+ records were deleted before"
        ):
            counting.app(tmp_path, **settings).run()
    else:
        with counting.app(tmp_path, **settings) as app:
            await_table(app, reversed_(expected))
