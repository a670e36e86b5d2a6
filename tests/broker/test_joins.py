"""Joins on a real Kafka: what a join keeps survives the process that kept it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, JoinWindows, StreamsBuilder, Topology, serdes
from coopstreams.topology.keys import KeyRange, key_hash
from tests.broker.counting import PATIENT, await_running, metric
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually

# Without Kafka: tests/tasks/test_joins_over_restarts.py, and the joins of tests/simulation.
pytestmark = [pytest.mark.broker, pytest.mark.slow]


def topology_of(application: str, topics: dict[str, str]) -> Topology:
    """Orders meet their payments within a second (left), then everybody's country (global), and their customer by
    foreign key.
    """
    builder = StreamsBuilder(application)
    orders = builder.stream(topics["orders"], key=serdes.text, value=serdes.json)
    payments = builder.stream(topics["payments"], key=serdes.text, value=serdes.json)
    countries = builder.global_table(topics["countries"], key=serdes.text, value=serdes.json)
    accounts = builder.table(topics["accounts"], key=serdes.text, value=serdes.json)
    people = builder.table(topics["people"], key=serdes.text, value=serdes.json)
    paid = orders.left_join(
        payments,
        lambda order, payment: [order, payment],
        windows=JoinWindows(milliseconds=1000),
        value=serdes.json,
        name="paid",
    )
    paid.join(countries, lambda both, country: [*both, country], on=lambda _, both: both[0], value=serdes.json).to(
        topics["out"]
    )
    owned = accounts.join(
        people,
        lambda account, person: [account, person],
        foreign_key=lambda account: account,
        value=serdes.json,
        name="owned",
    )
    owned.to_stream().to(topics["owned"])
    return builder.build()


def send(producer: Producer, topic: str, key: str, value: Any, timestamp: int) -> None:
    producer.produce(topic, orjson.dumps(value), key, timestamp=timestamp)
    assert producer.flush(60) == 0


def test_what_joins_keep_survives_a_restart(kafka: Any, tmp_path: Path) -> None:
    topics = {
        name: kafka.topic(name) for name in ("orders", "payments", "countries", "accounts", "people", "out", "owned")
    }
    topology = topology_of(kafka.unique("joins"), topics)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "commit.interval.ms": 100,
        "ranges.per.partition": 2,
        "processing.guarantee": "exactly_once_v2",
        **PATIENT,
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def wait_for(topic: str, count: int) -> dict[str, Any]:
        """Return the latest of each key. A row may come twice: a look-up sees what the record cache of the other table
        tells later.
        """
        rows: dict[str, Any] = {}
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            rows = {
                (key or b"").decode(): orjson.loads(value or b"null")
                for key, value, *_ in read_topic(kafka.bootstrap, topics[topic])
            }
            if len(rows) >= count:
                return rows
            time.sleep(0.2)
        raise AssertionError(f"{topic} has {rows}")

    send(producer, topics["countries"], "fr", "France", 1)
    send(producer, topics["accounts"], "a1", "ann", 1)
    send(producer, topics["orders"], "o1", "fr", 1000)
    send(producer, topics["orders"], "o2", "fr", 1500)
    send(producer, topics["people"], "bob", "Bob", 1)
    send(producer, topics["accounts"], "b1", "bob", 2)
    with CoopStreams(topology, {**settings, "state.dir": str(tmp_path / "first")}):
        assert wait_for("owned", 1) == {"b1": ["bob", "Bob"]}
        send(producer, topics["payments"], "o3", 9, 1500)
        send(producer, topics["orders"], "o3", "fr", 1500)
        assert wait_for("out", 1) == {"o3": ["fr", 9, "France"]}
    # nothing local: all from changelogs
    with CoopStreams(topology, {**settings, "state.dir": str(tmp_path / "second")}):
        send(producer, topics["payments"], "o1", 5, 1200)
        send(producer, topics["people"], "ann", "Ann", 3)
        # Of two topics that are written while it runs, one may be fetched first (max.task.idle.ms is 0): time moves on
        # when the pair is there.
        assert wait_for("out", 2) == {"o1": ["fr", 5, "France"], "o3": ["fr", 9, "France"]}
        send(producer, topics["orders"], "o9", "fr", 9000)
        assert wait_for("owned", 2) == {"a1": ["ann", "Ann"], "b1": ["bob", "Bob"]}
        assert wait_for("out", 3) == {
            "o1": ["fr", 5, "France"],
            "o2": ["fr", None, "France"],
            "o3": ["fr", 9, "France"],
        }


def test_what_has_no_match_goes_by_records_that_another_process_takes(kafka: Any, tmp_path: Path) -> None:
    """One partition, two processes: the keys of one of them come no more, and time moves on by those of the other."""
    orders, payments, out = (kafka.topic(name) for name in ("orders", "payments", "out"))
    builder = StreamsBuilder(kafka.unique("unmatched"))
    left, right = (builder.stream(topic, key=serdes.text, value=serdes.json) for topic in (orders, payments))
    left.outer_join(
        right, lambda order, payment: [order, payment], windows=JoinWindows(milliseconds=1000), value=serdes.json
    ).to(out)
    topology = builder.build()
    keys = [f"key-{number}" for number in range(40)]
    ours = [key for key in keys if key_hash(key.encode()) in KeyRange.split(2)[0]]
    theirs = [key for key in keys if key not in ours]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    settings = {"bootstrap.servers": kafka.bootstrap, "commit.interval.ms": 100, **PATIENT}
    with (
        CoopStreams(topology, {**settings, "state.dir": str(tmp_path), "instance": 0}) as one,
        CoopStreams(topology, {**settings, "state.dir": str(tmp_path), "instance": 1}) as other,
    ):
        await_running([one, other])
        for key in ours:
            send(producer, orders if key < "key-3" else payments, key, 1, 1000)
        for key in theirs:
            send(producer, orders, key, 2, 20_000_000)
            send(producer, payments, key, 3, 20_000_000)

        def found() -> dict[str, Any]:
            return {
                (key or b"").decode(): orjson.loads(value or b"null")
                for key, value, *_ in read_topic(kafka.bootstrap, out)
            }

        eventually(
            lambda: len(found()) == len(keys),
            60,
            lambda: f"of {sorted(ours)} there are {sorted(set(ours) & set(found()))}",
        )
    assert found() == {key: [1, None] if key < "key-3" else [None, 1] for key in ours} | {key: [2, 3] for key in theirs}


def test_a_record_waits_for_a_row_of_its_table_that_is_written_later(kafka: Any, tmp_path: Path) -> None:
    orders, names, out = (kafka.topic(name) for name in ("orders", "names", "out"))
    builder = StreamsBuilder(kafka.unique("waiting"))
    table = builder.table(names, key=serdes.text, value=serdes.json, store="names")
    builder.stream(orders, key=serdes.text, value=serdes.json).left_join(
        table, lambda order, name: [order, name], value=serdes.json
    ).to(out)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "commit.interval.ms": 100,
        "state.dir": str(tmp_path),
        "max.task.idle.ms": 3_600_000,
        **PATIENT,
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    now = int(time.time() * 1000)
    with CoopStreams(builder.build(), settings) as app:
        send(producer, orders, "ann", 1, now)
        eventually(
            lambda: metric(app, "coopstreams_consumed_records_total") == 1, 120, lambda: "the order was not read"
        )
        send(producer, names, "ann", "Ann", now - 1)
        send(producer, names, "bob", "Bob", now + 1)
        eventually(lambda: len(read_topic(kafka.bootstrap, out)) == 1, 120, lambda: "the order waits")
    assert [orjson.loads(value or b"") for _, value, *_ in read_topic(kafka.bootstrap, out)] == [[1, "Ann"]]
