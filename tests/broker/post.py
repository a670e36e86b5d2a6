"""An application with schemas of three kinds. Importable: Spark's workers load its
classes by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coopstreams import StreamsBuilder, serdes
from coopstreams.log.kafka.schema_registry import RegistryClient
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.schemas import RegistryUnavailableError, SchemaSerde
from tests.broker.waiting import eventually
from tests.parcels import Depot, Parcel
from tests.registry import Registry

DEPOT = {
    "type": "record",
    "name": "post.DepotKey",
    "fields": [{"name": "number", "type": "int"}],
}


@dataclass
class Load:
    """The load of a depot; its schema is JSON Schema."""

    number: int
    grams: int
    parcels: int


def client(registry: Registry) -> RegistryClient:
    return RegistryClient(registry.url, (("url", registry.url),), registers=True)


def warm(registry: Registry) -> None:
    """Request each kind of schema once: the first requests of a new registry are slow."""

    def answers() -> bool:
        try:
            for name, serde in (
                ("a", serdes.avro(DEPOT)),
                ("p", serdes.protobuf(Depot)),
                ("j", serdes.json_schema(Load)),
            ):
                client(registry).register(f"warm-{name}", schema_of(serde))
                assert client(registry).latest(f"warm-{name}") is not None
        except RegistryUnavailableError:
            return False
        return True

    eventually(answers, 180, lambda: "the registry is slow")


def schema_of(serde: Any) -> Schema:
    assert isinstance(serde, SchemaSerde)
    return serde.codec.schema


def program(application: str, source: str, sink: str) -> Topology:
    """Parcels (Protobuf) by depot (a key of Avro); the load of each depot is JSON with
    a schema.
    """
    builder = StreamsBuilder(application)
    (
        builder.stream(source, key=serdes.avro(DEPOT), value=serdes.protobuf(Parcel))
        .group_by_key()
        .aggregate(
            lambda: Load(0, 0, 0),
            lambda key, parcel, load: Load(
                key["number"], load.grams + parcel.grams, load.parcels + 1
            ),
            value=serdes.json_schema(Load),
            store="loads",
        )
        .to_stream()
        .to(sink)
    )
    return builder.build()
