"""Lost positions: existing state is never continued from the beginning.

Without Kafka: tests/opening/test_begun.py, tests/commit/test_unreadable_commits.py.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from kafka import TopicPartition as GroupPartition
from kafka.admin import KafkaAdminClient

from coopstreams.admin.group_reset import reset_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
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
        admin.delete_group_offsets(counting.application, [GroupPartition(counting.source, 0)])
        with GroupAdmin(counting.kafka.settings, counting.application) as group:
            return not group.committed([source])[source]

    eventually(gone, 60, lambda: "the offsets are still there")
    admin.close()


def await_end(counting: Counting) -> None:
    with GroupAdmin(counting.kafka.settings, counting.application) as admin:
        eventually(lambda: not admin.describe().members, 60, lambda: "the group has members")


@pytest.mark.ci
def test_an_ordinary_application_whose_offsets_are_gone_is_refused_and_goes_on_where_it_is_told(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    expected = counting.write(KEYS)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, expected)
    lose_offsets(counting)
    lost = (
        rf"has lost its positions: {counting.changelog}-0 has records.* `coopstreams reset`.* --topic {counting.source}"
    )
    with pytest.raises(ConfigError, match=lost):
        counting.app(tmp_path, processing_guarantee="exactly_once_v2").run()
    await_end(counting)
    with closing(KafkaLog(kafka.settings)) as log, GroupAdmin(kafka.settings, counting.application) as admin:
        reset_offsets(log, admin, {TopicPartition(counting.source, 0): len(KEYS)})
    expected += counting.write(KEYS[:1])
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, expected)
