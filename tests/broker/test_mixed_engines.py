"""Stores of one task in several engines, on real Kafka: restarts and moves leave each of them as its changelog says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coopstreams import Materialized, Processor, Record, RestoreListener, StreamsBuilder, key_value_store, serdes
from coopstreams.topology.columns import TopicPartition
from tests.broker.counting import Counting, await_running, await_table, table
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.state.sqlite_engine import NAME

pytestmark = pytest.mark.broker

STORES = ("disk", "heap", "own")
KEYS = [f"key-{number}" for number in range(2000)]
OWN_FOLDER = "0_0.tests.state.sqlite_engine-Sqlite"


class CountsTwice(Processor[str, bytes, str, int]):
    """Counts each key in a store in memory and in one of the user's engine."""

    def process(self, record: Record[str, bytes]) -> None:
        for name in ("heap", "own"):
            store = self.context.store(name)
            store.put(record.key, (store.get(record.key) or 0) + 1)


def counting(kafka: Kafka) -> Counting:
    """Return an application that counts keys three times, each in another engine."""
    made = Counting.make(kafka)
    builder = StreamsBuilder(made.application)
    stream = builder.stream(made.source, key=serdes.text, value=serdes.raw)
    stream.group_by_key().count(store=Materialized("disk", store_type="rocksDB")).to_stream().to(made.sink)
    stores = [
        key_value_store(name, key=serdes.text, value=serdes.int64, store_type=at)
        for name, at in (("heap", "in_memory"), ("own", NAME))
    ]
    stream.process(CountsTwice, stores=stores, by_key=True)
    return Counting(made.kafka, made.application, made.source, made.sink, builder.build())


def await_tables(app: Any, expected: Counter[str]) -> None:
    found: dict[str, dict[str, int]] = {}

    def same() -> bool:
        found.update({store: table(app, store) for store in STORES})
        return all(found[store] == expected for store in STORES)

    eventually(same, 60, lambda: str({store: sum(rows.values()) for store, rows in found.items()}))


class Starts(RestoreListener):
    """Notes from which offsets each store is restored."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {store: [] for store in STORES}

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.of[store].append(start)


@pytest.mark.slow
def test_each_store_is_restored_as_its_engine_needs_and_all_count_each_record_once(
    kafka: Kafka, tmp_path: Path
) -> None:
    app = counting(kafka)
    settings: dict[str, Any] = {"processing_guarantee": "exactly_once_v2", "ranges_per_partition": 4}
    written = app.write(KEYS)
    with app.app(tmp_path, 0, **settings) as first:
        await_tables(first, written)
    written += app.write(KEYS[:500])
    starts, elsewhere = Starts(), Starts()
    again = app.app(tmp_path, 0, {"restore_listener": starts}, **settings)
    comes = app.app(tmp_path, 1, {"restore_listener": elsewhere}, **settings)
    with again:
        await_tables(again, written)
        assert min(starts.of["heap"]) == 0, "memory begins at the beginning"
        assert 0 not in starts.of["disk"] + starts.of["own"], "what is on disk goes on"
        with comes:
            await_running([again, comes])
            written += app.write(KEYS[::3])
            await_tables(comes, written)
            assert [min(elsewhere.of[store]) for store in STORES] == [0, 0, 0], "where nothing is, all begin"
            assert (tmp_path / app.application / "instance-1" / OWN_FOLDER).is_dir()
        await_running([again])
        await_tables(again, written)


def test_all_stores_in_an_engine_of_the_users_by_a_setting(kafka: Kafka, tmp_path: Path) -> None:
    app = Counting.make(kafka)
    written = app.write(KEYS[:200])
    settings: dict[str, Any] = {"default_dsl_store": NAME}
    for _ in range(2):
        with app.app(tmp_path, **settings) as running:
            await_table(running, written)
        written += app.write(KEYS[:100])
    assert not list(tmp_path.rglob("CURRENT")), "nothing of it is in RocksDB"
