"""The use of the extension, and its errors on wrong use: exceptions, never a crash."""

from __future__ import annotations

import gc
import json
import logging
import resource
import sys
import threading
import time
from collections import UserList
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, cimpl

from coopstreams.log.kafka import native
from coopstreams.log.kafka import reader as kafka_reader
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import (
    PLUGINS,
    SETTING,
    Appender,
    Fetcher,
    appender_of,
    data_plane,
    fetcher_of,
    with_plugin,
)
from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, DeliveryError
from tests.conftest import Kafka, needs_native
from tests.log.reading import (
    PATIENCE_S,
    fetch_until,
    fill,
    read_all,
    reader_at,
    records,
    values,
)

MODULE = "coopstreams_native.coopstreams_native"


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Look up the extension again, now and at the end."""
    monkeypatch.delenv(SETTING, raising=False)
    native._loaded.cache_clear()
    native._say.cache_clear()
    yield monkeypatch
    native._loaded.cache_clear()
    native._say.cache_clear()


def extension(**changes: Any) -> SimpleNamespace:
    """Return a stand-in for the extension with the attributes that `native` checks."""
    usable = {
        "INTERFACE": native.INTERFACE,
        "__file__": "/x/it.so",
        "load": lambda _: (0x021000FF, "ssl,plugins"),
    }
    return SimpleNamespace(**usable | changes)


def lacking(_: str) -> tuple[int, str]:
    raise RuntimeError("undefined symbol: rd_kafka_produceva")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "not installed"),
        (extension(INTERFACE=native.INTERFACE + 1), "another version"),
        (extension(__file__="/x;y/it.so"), "semicolon"),
        (extension(load=lacking), "rd_kafka_produceva"),
        (extension(load=lambda _: (0x021000FF, "ssl,zstd")), "without plugins"),
        (extension(load=lambda _: (0x030000FF, "plugins")), "librdkafka 2"),
    ],
)
def test_an_extension_that_cannot_be_used_is_named_with_the_reason(
    anew: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    found: object,
    reason: str,
) -> None:
    anew.setitem(sys.modules, MODULE, found)
    with caplog.at_level(logging.INFO):
        assert [with_plugin({"a": 1}), with_plugin({"a": 1})] == [{"a": 1}] * 2
    (line,) = caplog.messages
    assert line.startswith("data plane: pure Python")
    assert reason in line
    anew.setenv(SETTING, "1")
    with pytest.raises(ConfigError, match=f"{reason}.*make setup"):
        with_plugin({})


def test_a_user_decides(anew: pytest.MonkeyPatch) -> None:
    anew.setitem(sys.modules, MODULE, extension())
    assert data_plane() == "native"
    assert with_plugin({PLUGINS: "monitoring.so"})[PLUGINS] == "monitoring.so;/x/it.so"
    anew.setenv(SETTING, "0")
    assert (data_plane(), with_plugin({})) == ("pure Python: COOPSTREAMS_NATIVE=0", {})
    anew.setenv(SETTING, "yes")
    with pytest.raises(ConfigError, match=r"must be 0 .* or 1"):
        data_plane()


def appender(producer: Producer, settings: dict[str, Any]) -> Appender:
    found = appender_of(producer, settings)
    assert found is not None
    return found


def away() -> dict[str, Any]:
    """Settings of a producer without a broker."""
    return with_plugin(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "log_level": 0,
            "queue.buffering.max.messages": 100,
        }
    )


@needs_native
def test_a_producer_that_is_closed_takes_nothing() -> None:
    settings = away()
    producer = Producer(settings)
    native = appender(producer, settings)
    assert native.append("t", [b"k"], [b"v"], [1], 0, None, 0) == (1, 0)
    producer.purge()
    producer.close()
    for _ in range(2):
        assert native.append("t", [b"k"], [b"v"], [1], 0, None, 0) == (
            0,
            KafkaError._DESTROY,
        )
        native.close()


@needs_native
def test_a_producer_is_there_as_long_as_what_appends_by_it() -> None:
    settings = away()
    native = appender(Producer(settings), settings)
    gc.collect()
    assert native.append("t", [b"k"], [b"v"], [1], 0, None, 0) == (1, 0)


@needs_native
def test_only_the_producer_that_was_made_last_can_be_had_once() -> None:
    settings = away()
    producer = Producer(settings)
    assert appender_of(producer, settings) is not None
    assert appender_of(producer, settings) is None
    with pytest.raises(cimpl.KafkaException):
        Producer(settings | {"enable.idempotence": True, "acks": 1})
    assert appender_of(producer, settings) is None


@needs_native
def test_closing_waits_for_a_thread_that_appends() -> None:
    settings = away()
    native, told = appender(Producer(settings), settings), set[int]()

    def append() -> None:
        while KafkaError._DESTROY not in told:
            _, code = native.append(
                "t", [b"k"] * 500, [b"v"] * 500, range(500), 0, None, 0
            ) or (0, 0)
            told.add(code)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    while KafkaError._QUEUE_FULL not in told:
        time.sleep(0.001)
    native.close()  # this ends the producer, which has no other owner
    for thread in threads:
        thread.join()
    assert told == {KafkaError._QUEUE_FULL, KafkaError._DESTROY}


@needs_native
def test_what_is_neither_bytes_nor_null_is_left_to_python() -> None:
    settings = away()
    native = appender(Producer(settings), settings)
    refused: list[Any] = [
        (["k"], [b"v"], [1], 0, None),
        ([b"k"], [bytearray(b"v")], [1], 0, None),
        ([b"k"], [b"v"], [1.5], 0, None),
        ([b"k"], [b"v"], [2**63], 0, None),
        ([b"k"], [b"v"], [1], 0, [{"a": b"b"}]),
        ([b"k"], [b"v"], [1], 0, [[("a", "b")]]),
        ([b"k"], [b"v", b"w"], [1], 0, None),
        ([b"k"], [b"v"], [], 0, None),
        ([b"k"], [b"v"], [1], ["0"], None),
        ([b"k"], [b"v"], [1], [], None),
    ]
    for keys, values_, timestamps, partitions, headers in refused:
        assert (
            native.append("t", keys, values_, timestamps, partitions, headers, 0)
            is None
        )
    assert native.append(
        "t", (b"k",), UserList([b"v"]), range(1), [0], [[("ä", b""), ("ä", None)]], 0
    ) == (1, 0)


def lone() -> tuple[Consumer, Fetcher, list[KafkaError]]:
    """Return a consumer without a broker, its fetcher, and the errors that reach
    Python.
    """
    told: list[KafkaError] = []
    settings = with_plugin(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    )
    consumer = Consumer(
        settings | {"error_cb": told.append, "logger": logging.getLogger("quiet")}
    )
    found = fetcher_of(consumer, settings)
    assert found is not None
    return consumer, found, told


@needs_native
def test_a_consumer_that_is_closed_gives_nothing() -> None:
    consumer, native, _ = lone()
    id_ = native.start("t", 0, 5)
    native.expect([id_])
    assert native.fetch(10, 0) == ([], [])
    consumer.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            native.fetch(10, 0)
        with pytest.raises(RuntimeError, match="closed"):
            native.expect([id_])
        assert (native.fetched_to(id_), native.kept(id_)) == (5, (0, 0))
        native.disconnect()


@needs_native
def test_a_consumer_is_there_as_long_as_what_fetches_by_it_and_is_handed_over_once() -> (
    None
):
    consumer, native, _ = lone()
    assert not native.connect(consumer), "it was handed over already"
    consumer, native, _ = lone()
    native.expect([native.start("t", 0, 0)])
    del consumer
    gc.collect()
    assert native.fetch(10, 1) == ([], [])
    del native
    gc.collect()


@needs_native
def test_closing_a_consumer_waits_for_a_thread_that_fetches() -> None:
    consumer, native, _ = lone()
    native.expect([native.start("t", partition, 0) for partition in range(3)])
    told: list[str] = []

    def fetch() -> None:
        try:
            while True:
                native.fetch(10, 50)
        except RuntimeError as error:
            told.append(str(error))

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    consumer.close()
    for thread in threads:
        thread.join()
    assert told == ["the consumer is closed"] * 3


@needs_native
def test_only_a_client_that_is_there_is_woken() -> None:
    consumer, native, _ = lone()
    native.wake()
    native.expect([native.start("t", 0, 0)])
    assert native.fetch(10, 600_000) == ([], []), "it was woken before it waited"
    consumer.close()
    native.wake()
    native.disconnect()
    native.wake()


@needs_native
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts what a thread does"
)
def test_a_fetch_without_a_partition_waits() -> None:
    """It looked again and again: a consumer whose group has no range for it took a
    whole core.
    """
    _, native, _ = lone()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert native.fetch(10, 200) == ([], [])
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before, (
        "the thread has never given up its core"
    )


@needs_native
def test_nothing_but_wake_ends_the_wait_of_a_fetch(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "1")
    monkeypatch.setattr(kafka_reader, "LOOK_S", 600)
    log = KafkaLog(kafka.settings)
    reader = log.reader()
    reader.assign({TopicPartition(kafka.topic("wake"), 0): Position(0)})
    while not reader.fetch(10, 0.1):  # the end of the partition
        pass
    for pause_s in (0.0, 0.0, 0.001, 0.01, 0.1, 0.1):
        waiting = threading.Thread(target=reader.fetch, args=(10, 600))
        waiting.start()
        time.sleep(pause_s)
        reader.wake()
        waiting.join()
    reader.close()
    log.close()


@pytest.mark.ci
@needs_native
@pytest.mark.broker
def test_a_consumer_that_has_read_everything_asks_less_often(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times a second at most, and hundreds of times if ends are awaited; what is
    written comes in both cases.
    """
    monkeypatch.setenv(SETTING, "1")
    totals = [0]

    def count(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        totals.append(sum(broker["req"].get("Fetch", 0) for broker in brokers))

    often = {
        "consumer.statistics.interval.ms": 500,
        "consumer.stats_cb": count,
        "consumer.fetch.wait.max.ms": 1,
    }
    log = KafkaLog(kafka.settings | often)
    first, second = (
        TopicPartition(kafka.topic("idle", partitions=2), partition)
        for partition in (0, 1)
    )
    reader = reader_at(log, first)
    fetch_until(reader, lambda _: len(totals) > 3 and totals[-1] - totals[-2] < 10)
    fill(log, first, ["a"])
    fetch_until(reader, lambda batches: values(records(batches)) == ["a"])
    fetch_until(reader, lambda _: totals[-1] - totals[-2] < 10)

    def asks_often(_: list[RecordBatch]) -> bool:
        reader.assign({first: Position(1)})
        reader.assign({first: Position(1), second: Position(0)})
        return totals[-1] - totals[-2] > 20

    fetch_until(reader, asks_often)
    fill(log, second, ["b"])
    fetch_until(reader, lambda batches: values(records(batches)) == ["b"])
    reader.close()
    log.close()


@needs_native
def test_errors_of_a_consumer_are_noted_without_calling_python() -> None:
    consumer, native, told = lone()
    native.expect([native.start("t", 0, 0)])
    found: list[tuple[int, str, bool]] = []
    while not found:
        consumer.consume(100, 0.01)
        found = native.errors()
    assert {code for code, _, _ in found} <= {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
    assert not any(fatal for _, _, fatal in found)
    assert "127.0.0.1:1" in found[0][1] or "down" in found[0][1]
    assert told == []
    native.disconnect()
    consumer.close()


@needs_native
def test_a_partition_that_is_not_read_is_an_error() -> None:
    _, native, _ = lone()
    first, second = native.start("t", 0, 0), native.start("t", 1, 7)
    native.stop(first)
    native.stop(first)
    with pytest.raises(KeyError):
        native.seek(first, 1)
    native.seek(second, 8)
    assert native.fetched_to(second) == 8
    assert native.start("t", 2, 1) == first, "ids are used again"


@needs_native
@pytest.mark.broker
def test_records_by_python_and_by_the_extension_keep_their_order(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "1")
    log, partition = KafkaLog(kafka.settings), TopicPartition(kafka.topic(), 0)
    for writer in (log.writer(), log.writer(kafka.unique("tx"))):
        end = log.end_offset(partition)
        if end:
            writer.begin()
        for value in ("1", b"2", "3", b"4"):
            given: list[Any] = [value]
            writer.append(partition.topic, given, given, [1], partitions=0)
        writer.flush(PATIENCE_S)
        assert writer.delivered_to(partition) == log.end_offset(partition) == end + 4
        writer.close()
    assert values(read_all(log, partition)) == ["1", "2", "3", "4"]
    log.close()


@needs_native
@pytest.mark.broker
def test_the_first_record_that_was_refused_is_told_once(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "1")
    log = KafkaLog(kafka.settings)
    compacted, plain = kafka.topic("compacted", cleanup_policy="compact"), kafka.topic()
    writer = log.writer()
    writer.append(plain, [None] * 3, [b"v"] * 3, [1] * 3)
    writer.append(compacted, [b"k", None, None, b"k"], [b"v"] * 4, [1] * 4)
    with pytest.raises(DeliveryError, match=compacted):
        writer.flush(PATIENCE_S)
    writer.abort()
    writer.append(compacted, [b"k"], [b"v"], [1])
    writer.flush(PATIENCE_S)
    writer.close()
    log.close()
