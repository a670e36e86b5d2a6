"""Positions that went away, and progress that cannot be read: never an old individual commit, never the beginning, over
state that is there.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from kafka import TopicPartition as GroupPartition
from kafka.admin import KafkaAdminClient

from coopstreams import CoopStreams
from coopstreams.admin.group_reset import reset_offsets
from coopstreams.commit.record import (
    PARTITIONS,
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    partition_of,
)
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.counting import Counting, await_running, await_table, instance_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(200)]


def exactly(counting: Counting, folder: Path, threads: int = 1) -> CoopStreams:
    """Return an application of so many key ranges, not yet running."""
    return counting.app(folder, num_stream_threads=threads, processing_guarantee="exactly_once_v2")


def run(counting: Counting, folder: Path, threads: int, expected: Counter[str]) -> None:
    """Have an application of so many key ranges run until it has counted this, and stop it."""
    with exactly(counting, folder, threads) as app:
        await_table(app, expected)


def lose_offsets(counting: Counting) -> None:
    """Delete the offsets of the group, as an operator or time does."""
    admin = KafkaAdminClient(bootstrap_servers=counting.kafka.bootstrap)

    eventually(lambda: not members(counting), 60, lambda: "the group has members")

    def gone() -> bool:
        admin.delete_group_offsets(counting.application, [GroupPartition(counting.source, 0)])
        with GroupAdmin({"bootstrap.servers": counting.kafka.bootstrap}, counting.application) as group:
            return not group.committed([TopicPartition(counting.source, 0)])[TopicPartition(counting.source, 0)]

    eventually(gone, 60, lambda: "the offsets are still there")
    admin.close()


def test_a_group_that_was_ever_shared_needs_no_plain_offset_to_go_on(kafka: Kafka, tmp_path: Path) -> None:
    """Three key ranges, then one: its individual commits are as new as its plain offset, which is deleted."""
    counting = Counting.make(kafka)
    expected = counting.write(KEYS)
    run(counting, tmp_path, 3, expected)
    expected += counting.write(KEYS)
    run(counting, tmp_path, 1, expected)
    lose_offsets(counting)
    expected += counting.write(KEYS[:1])
    run(counting, tmp_path, 1, expected)


def test_an_ordinary_application_whose_offsets_are_gone_is_refused_and_goes_on_where_it_is_told(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    expected = counting.write(KEYS)
    run(counting, tmp_path, 1, expected)
    lose_offsets(counting)
    app = exactly(counting, tmp_path)
    with pytest.raises(
        ConfigError,
        match=rf"has lost its positions: {counting.changelog}-0 has records.* `coopstreams reset`.* --topic "
        rf"{counting.source}",
    ):
        app.run()
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    eventually(lambda: not members(counting), 60, lambda: "the group has members")
    with GroupAdmin({"bootstrap.servers": kafka.bootstrap}, counting.application) as admin:
        reset_offsets(log, admin, {TopicPartition(counting.source, 0): len(KEYS)})
    log.close()
    expected += counting.write(KEYS[:1])
    run(counting, tmp_path, 1, expected)


def members(counting: Counting) -> int:
    with GroupAdmin({"bootstrap.servers": counting.kafka.bootstrap}, counting.application) as admin:
        return len(admin.describe().members)


def test_progress_of_a_newer_version_is_waited_out_and_never_skipped(kafka: Kafka, tmp_path: Path) -> None:
    """Two key ranges stand at 200; a newer version says that one of them is further. Records of another group come
    behind it.
    """
    counting = Counting.make(kafka)
    expected = counting.write(KEYS)
    run(counting, tmp_path, 2, expected)
    at = partition_of(counting.application, PARTITIONS)
    other = next(name for number in range(10_000) if partition_of(name := f"other-{number}", PARTITIONS) == at)
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    writer = log.writer()

    def write(group: str, key: bytes, value: bytes | None) -> None:
        assert partition_of(group, PARTITIONS) == at
        writer.append(COMMIT_TOPIC, [key], [value], [time.time_ns() // 1_000_000], partitions=at)
        writer.flush(60)

    key = encode_key(CommitKey(counting.application, counting.source, 0, WHOLE, 99, 99))
    value = encode_value(CommitValue("newer", (Segment(WHOLE, len(KEYS)),)))
    bad = b"\2" + key[1:]
    write(counting.application, bad, value)
    with exactly(counting, tmp_path, 2) as app:
        eventually(lambda: "unreadable-commit" in reasons(app), 90, lambda: str(reasons(app)))
        write(other, encode_key(CommitKey(other, counting.source, 0, WHOLE, 1, 1)), value)
        eventually(
            lambda: instance_of(app).components.follower.tail == log.end_offset(TopicPartition(COMMIT_TOPIC, at)),
            60,
            lambda: "it does not read on",
        )
        assert {state.value for state in instance_of(app).registry.states.values()} == {"restoring"}
        assert "upgrade this process" in reasons(app)["unreadable-commit"]
        assert "upgrade this process" in reasons(app)["restoring"]
        write(counting.application, bad, None)
        await_running([app])
        assert "unreadable-commit" not in reasons(app)
        expected += counting.write(KEYS[:1])
        await_table(app, expected)
    writer.close()
    log.close()


def reasons(app: CoopStreams) -> dict[str, str]:
    """Return why an instance is not ready: the codes and what they say."""
    found = httpx.get(f"{app.url}/health/ready").json() if app.url else {"reasons": []}
    return {reason["code"]: reason["message"] for reason in found["reasons"]}
