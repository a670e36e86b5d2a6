"""An application whose state depends on time and on two topics, the results of one
thread, and a reset of its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from coopstreams import (
    CoopStreams,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.commit.group_progress import individual_commits
from coopstreams.commit.record import (
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
)
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark.source_plan import stands
from coopstreams.spark.source_rebuild import RebuiltFromSource, rebuild_from_source
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from tests.broker import law
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka
from tests.durations import ms

PARTITIONS = 2
WINDOW_MS, GRACE_MS = 1000, 500
STORES = ("running", "windows", "sold", "customers")

Done = Callable[[law.Input, int], bool]


@dataclass(frozen=True, slots=True)
class Shop:
    """Orders counted by customer, in windows with late ones, and by the customer's city
    at the time of the order.
    """

    kafka: Kafka
    topology: Topology
    orders: str
    customers: str
    final: str

    @staticmethod
    def make(kafka: Kafka) -> Shop:
        orders, customers, final = (
            kafka.topic(name, PARTITIONS, retention_ms="-1")
            for name in ("orders", "customers", "final")
        )
        builder = StreamsBuilder(kafka.unique("shop"))
        table = builder.table(
            customers, key=serdes.text, value=serdes.text, store="customers"
        )
        stream = builder.stream(orders, key=serdes.text, value=serdes.json)
        stream.group_by_key().count(store="running")
        windowed = stream.group_by_key().windowed_by(
            TimeWindows(milliseconds=WINDOW_MS, grace=ms(GRACE_MS))
        )
        counted = windowed.count(store="windows", retention=timedelta(days=3650))
        counted.suppress(until_window_closes(), name="last").to_stream().to(final)
        stream.join(
            table, lambda _, city: city, value=serdes.text
        ).group_by_key().aggregate(
            dict,
            lambda _, city, seen: {**seen, city: seen.get(city, 0) + 1},
            value=serdes.json,
            store="sold",
        )
        return Shop(kafka, builder.build(), orders, customers, final)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.kafka.bootstrap,
            "statestore.cache.max.bytes": 0,
        }

    def write(self, records: Sequence[law.Input]) -> None:
        law.write(
            self.kafka.bootstrap,
            law.Topics("", self.orders, self.customers, "", "", ""),
            records,
        )

    def run(self, folder: Path, records: Sequence[law.Input], ranges: int) -> None:
        """Run the application until it has committed all records, and stop it."""
        live = {
            **self.settings,
            "state.dir": str(folder),
            "commit.interval.ms": 100,
            "ranges.per.partition": ranges,
            **PATIENT,
        }
        ends = {place: len(mine) for place, mine in self.partitions(records).items()}
        with CoopStreams(self.topology, live):
            eventually(
                lambda: all(self.stand(place)[0] >= end for place, end in ends.items()),
                120,
                lambda: f"{self.stands()} is not {ends}",
            )

    def stands(self) -> dict[TopicPartition, tuple[Segment, ...]]:
        config = Config.of(self.settings, self.topology.application_id)
        with closing(KafkaLog(config.client)) as cluster:
            found = stands(
                config, cluster, {self.orders: PARTITIONS, self.customers: PARTITIONS}
            )
        return {
            TopicPartition(topic, number): segments
            for topic, each in found.items()
            for number, segments in each.items()
        }

    def stand(self, place: TopicPartition) -> tuple[int, int]:
        segments = self.stands()[place]
        return min(segment.position for segment in segments), max(
            segment.end for segment in segments
        )

    def partitions(
        self, records: Sequence[law.Input]
    ) -> dict[TopicPartition, list[law.Input]]:
        names = {"orders": self.orders, "customers": self.customers}
        return {
            TopicPartition(name, number): [
                record
                for record in records
                if (record.topic, record.partition) == (topic, number)
            ]
            for topic, name in names.items()
            for number in range(PARTITIONS)
        }

    def put_back(
        self,
        place: TopicPartition,
        key_range: KeyRange,
        position: int,
        stream_time: int,
    ) -> None:
        """Move the position of a key range back: write a commit in the name of its next
        owner.
        """
        application, settings = (
            self.topology.application_id,
            {"bootstrap.servers": self.kafka.bootstrap},
        )
        with (
            closing(KafkaLog(settings)) as cluster,
            GroupAdmin(settings, application) as admin,
        ):
            plain = admin.committed([place])[place]
            with individual_commits(cluster, application) as follower:
                assert follower is not None
                term = follower.next_term(
                    place, None if plain is None else Committed.parse(*plain)
                )
                key = CommitKey(
                    application,
                    place.topic,
                    place.partition,
                    key_range,
                    term,
                    1_000_000,
                )
                value = CommitValue(
                    "test", (Segment(key_range, position, stream_time),)
                )
                commits = follower.partition
        produce(self.kafka, commits, {encode_key(key): encode_value(value)})

    def changelog(self, store: str) -> str:
        return f"{self.topology.application_id}-{store}-changelog"

    def tables(self) -> dict[str, dict[Any, Any]]:
        changelogs = {
            name: read_topic(self.kafka.bootstrap, self.changelog(name))
            for name in STORES
        }
        return law.tables_by_changelog(changelogs)

    def rebuild(
        self, spark: SparkSession, tmp_path: Path, **given: Any
    ) -> RebuiltFromSource:
        return rebuild_from_source(
            self.topology,
            self.settings,
            spark=spark,
            ranges=1,
            work=str(tmp_path / "work"),
            **given,
        )


def produce(
    kafka: Kafka, place: TopicPartition, rows: Mapping[bytes, bytes | None]
) -> None:
    kafka.write(
        place.topic,
        ((key, value) for key, value in rows.items()),
        partition=place.partition,
    )


def fold(
    records: Sequence[law.Input], done: Done = lambda _record, _offset: True
) -> dict[str, dict[Any, Any]]:
    """Return the tables of the done records, by dictionaries and a merge by stream
    time, which all records advance.
    """
    tables: dict[str, dict[Any, Any]] = {name: {} for name in STORES}
    for partition in range(PARTITIONS):
        for offset, record, clock in law.by_stream_time(records, partition):
            if record.key is not None and done(record, offset):
                take(tables, record, record.key, clock)
    return tables


def take(
    tables: dict[str, dict[Any, Any]], record: law.Input, key: str, clock: int
) -> None:
    customers = tables["customers"]
    if record.topic == "customers":
        if record.value is None:
            customers.pop(key, None)
        else:
            customers[key] = record.value.decode()
        return
    start = record.timestamp - record.timestamp % WINDOW_MS
    if start + WINDOW_MS + GRACE_MS > clock:
        tables["windows"][key, start] = tables["windows"].get((key, start), 0) + 1
    if record.value is None:
        return
    tables["running"][key] = tables["running"].get(key, 0) + 1
    if key in customers:
        seen = tables["sold"].setdefault(key, {})
        seen[customers[key]] = seen.get(customers[key], 0) + 1
