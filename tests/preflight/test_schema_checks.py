"""Schemas of an application: subjects, the check at start, an unavailable registry; and
the driver without set-up.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from coopstreams import (
    Processor,
    Record,
    StreamsBuilder,
    TopologyBuilder,
    key_value_store,
    serdes,
    until_time_limit,
)
from coopstreams.commands.processes.restarts import FAILED, exit_status
from coopstreams.common.config import Config
from coopstreams.log.kafka import schema_registry
from coopstreams.log.kafka.schema_registry import RegistryClient, registry_of
from coopstreams.preflight import schema_checks
from coopstreams.preflight.schema_checks import (
    bind_in_memory,
    check_schemas,
    schema_uses,
    schemas_bound,
)
from coopstreams.query.formats import parse_key, show_value, to_json
from coopstreams.tasks.failure_handlers import FailureHandler
from coopstreams.tasks.record_retries import TriedLaterError, Tries
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.compile.timestamps import (
    extraction_error,
    failed,
    timestamp_column,
)
from coopstreams.topology.errors import ConfigError, LogError, QueryError, SerdeError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.schemas import (
    InMemoryRegistry,
    RegistryUnavailableError,
    SchemaSerde,
    registry_is_away,
)
from coopstreams.topology.task_id import TaskId
from tests.parcels import FILE, Depot


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t} for n, t in fields.items()],
    }


KEY = record("shop.Customer", id="long")
ORDER = record("shop.Order", cents="long", note="string")
TOTAL = record("shop.Total", cents="long")


def totals(key: Any = KEY, order: Any = ORDER) -> Topology:
    builder = StreamsBuilder("shop")
    (
        builder.stream("orders", key=serdes.avro(key), value=serdes.avro(order))
        .group_by_key()
        .aggregate(
            lambda: {"cents": 0},
            lambda _, order, total: {"cents": total["cents"] + order["cents"]},
            value=serdes.avro(TOTAL),
            store="totals",
        )
        .to_stream()
        .to("paid")
    )
    return builder.build()


def config(**settings: Any) -> Config:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Config.of(
        {
            "bootstrap.servers": "x",
            "schema.registry.url": "http://127.0.0.1:9",
            **given,
        },
        "shop",
    )


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> InMemoryRegistry:
    """Replace the registry of the settings by this one."""
    made = InMemoryRegistry()
    monkeypatch.setattr(schema_checks, "registry_of", lambda _: made)
    return made


def text_of(schema: Any) -> Schema:
    serde = serdes.avro(schema)
    assert isinstance(serde, SchemaSerde)
    return serde.codec.schema


@pytest.mark.parametrize("ranges", [1, 4])
def test_the_driver_needs_no_registry(ranges: int) -> None:
    with TopologyTestDriver(totals(), ranges=ranges) as driver:
        orders = driver.input("orders")
        for cents in (5, 7):
            orders.send({"id": 1}, {"cents": cents, "note": "x"})
        assert [(r.key, r.value) for r in driver.output("paid").records()][-1] == (
            {"id": 1},
            {"cents": 12},
        )
        assert driver.store("totals").get({"id": 1}) == {"cents": 12}


def test_a_key_with_another_schema_id_goes_to_the_handler_although_no_function_reads_keys() -> (
    None
):
    settings = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(totals(), config=settings) as driver:
        orders = driver.input("orders", serdes.raw, serdes.avro(ORDER))
        key = serdes.avro(KEY).serialize({"id": 1})
        orders.send(key, {"cents": 5, "note": ""})
        orders.send(b"\0\x12\x34\x56\x78" + key[5:], {"cents": 7, "note": ""})
        assert driver.store("totals").get({"id": 1}) == {"cents": 5}
        assert [
            "has schema id 305419896" in str(failure.error)
            for failure in driver.failures
        ] == [True]


def test_the_subjects_are_those_of_kafka_streams() -> None:
    uses = schema_uses(totals())
    assert [use.subject("TopicNameStrategy") for use in uses] == [
        "orders-key",
        "orders-value",
        "paid-key",
        "paid-value",
        "shop-totals-changelog-key",
        "shop-totals-changelog-value",
    ]
    assert {use.subject("RecordNameStrategy") for use in uses} == {
        "shop.Customer",
        "shop.Order",
        "shop.Total",
    }
    assert uses[1].subject("TopicRecordNameStrategy") == "orders-shop.Order"


class Keep(Processor[str, Any, Any, Any]):
    """The processor of a global store; this one writes no rows."""

    def process(self, record: Record[str, Any]) -> None: ...


def test_a_global_store_is_read_with_the_schemas_of_its_topic() -> None:
    """With a processor, the topic has serdes of its own."""
    topology = (
        TopologyBuilder("shop")
        .add_source("lines", "in", key=serdes.text, value=serdes.text)
        .add_global_store(
            key_value_store(
                "customers", key=serdes.avro(KEY), value=serdes.avro(TOTAL)
            ),
            "customers",
        )
        .add_global_store(
            key_value_store("notes", key=serdes.text, value=serdes.text),
            "orders",
            "keep",
            Keep,
            value=serdes.avro(ORDER),
        )
        .add_sink("out", "out", "lines", key=serdes.text, value=serdes.text)
        .build()
    )
    assert [
        (use.topic, use.part, use.codec.name, use.written)
        for use in schema_uses(topology)
    ] == [
        ("customers", "key", "shop.Customer", False),
        ("customers", "value", "shop.Total", False),
        ("orders", "value", "shop.Order", False),
    ]


def test_what_is_written_is_registered_at_start(registry: InMemoryRegistry) -> None:
    topology = totals()
    with schemas_bound(topology, config()):
        check_schemas(topology, config())
        assert (
            registry.latest("paid-value")
            == registry.latest("shop-totals-changelog-value")
            == text_of(TOTAL)
        )
        assert registry.latest("orders-value") is None
        number = registry.lookup("paid-value", text_of(TOTAL))
        assert (
            int.from_bytes(serdes.avro(TOTAL).serialize({"cents": 1})[1:5], "big")
            == number
        )


SENT, HELD, LEFT, RIGHT = (
    record(f"shop.{name}", cents="long") for name in ("Sent", "Held", "Left", "Right")
)


def within_others() -> Topology:
    """Schemas of records in topics that a function chooses, and of values that are
    written within others.
    """
    builder = StreamsBuilder("shop")
    builder.stream("sent", key=serdes.text, value=serdes.json).map_values(
        lambda cents: {"cents": cents}, value=serdes.avro(SENT)
    ).to(lambda key, _: key)
    tables = [
        builder.table(name, key=serdes.text, value=serdes.json).map_values(
            lambda cents: {"cents": cents}, value=serdes.avro(schema)
        )
        for name, schema in (("held", HELD), ("left", LEFT), ("right", RIGHT))
    ]
    tables[0].suppress(
        until_time_limit(timedelta(seconds=1)), name="wait"
    ).to_stream().map_values(lambda row: row["cents"], value=serdes.json).to("out")
    tables[1].join(
        tables[2],
        lambda *rows: [row["cents"] for row in rows],
        foreign_key=lambda _: "r",
        value=serdes.json,
        name="named",
    ).to_stream().to("out")
    return builder.build()


def test_what_is_written_to_topics_by_a_function_and_within_other_values_has_ids_of_the_registry(
    registry: InMemoryRegistry,
) -> None:
    """Of the registry in memory, they would be ids of other schemas to all who read
    them.
    """
    topology = within_others()
    for number in range(7):
        registry.register(f"other-{number}", text_of(record(f"Other{number}", n="int")))
    with schemas_bound(topology, config()):
        check_schemas(topology, config())
        for subject, schema in (
            ("shop.Sent", SENT),
            ("shop-wait-store-changelog-value", HELD),
            ("shop-named-subscription-registration-topic-value", LEFT),
            ("shop-named-subscription-response-topic-value", RIGHT),
        ):
            number = registry.lookup(subject, text_of(schema)) or 0
            assert number > 7
            assert (
                int.from_bytes(serdes.avro(schema).serialize({"cents": 1})[1:5], "big")
                == number
            ), subject


def test_a_version_that_cannot_be_read_is_refused_at_start(
    registry: InMemoryRegistry,
) -> None:
    registry.register(
        "orders-value", text_of(record("shop.Order", cents="string", note="string"))
    )
    topology = totals()
    with (
        schemas_bound(topology, config()),
        pytest.raises(
            ConfigError,
            match=r'subject "orders-value".*cents: string cannot be read as long.*fits',
        ),
    ):
        check_schemas(topology, config())


def test_keys_of_another_schema_are_refused_at_start(
    registry: InMemoryRegistry,
) -> None:
    registry.register("orders-key", text_of(record("shop.Customer", id="int")))
    topology = totals()
    with (
        schemas_bound(topology, config()),
        pytest.raises(ConfigError, match=r'"orders-key".*keys have another schema'),
    ):
        check_schemas(topology, config())


def test_a_refused_application_has_registered_nothing(
    registry: InMemoryRegistry,
) -> None:
    """It made its schema a version of the keys that were compared next, which then
    seemed to fit.
    """
    key = serdes.avro(KEY)
    builder = StreamsBuilder("shop")
    for topic in ("a", "b"):
        builder.stream(topic, key=key, value=serdes.raw).to("out")
    other = text_of(record("shop.Customer", id="int"))
    registry.register("b-key", other)
    topology = builder.build()
    with schemas_bound(topology, config()):
        with pytest.raises(ConfigError, match=r'subject "b-key"'):
            check_schemas(topology, config())
        assert (registry.latest("a-key"), registry.latest("b-key")) == (None, other)


AS_JAVA = """
syntax = "proto3"; // as its producer has registered it
package post;
option java_package = "com.post";
message Parcel { int64 grams = 1; string city = 2; map<string, int32> fees = 3; }
message Depot { message Key { int32 number = 1; } Key key = 1; int64 grams = 2 [deprecated = true]; }
"""


@pytest.mark.parametrize(
    "text",
    [
        AS_JAVA,
        base64.b64encode(FILE.SerializeToString()).decode(),
        AS_JAVA.replace("string city = 2;", ""),
    ],
    ids=["java", "python", "before a value changed"],
)
def test_keys_of_a_file_that_others_have_registered_have_its_id(
    registry: InMemoryRegistry, text: str
) -> None:
    """With comments and options, as a descriptor, or before other messages in it
    changed, it has the same keys.
    """
    key = serdes.protobuf(Depot.Key)
    assert isinstance(key, SchemaSerde)
    registry.register("other", key.codec.schema)
    number = registry.register("in-key", Schema(text, "PROTOBUF"))
    builder = StreamsBuilder("post")
    builder.stream("in", key=key, value=serdes.raw).group_by_key().count(
        store="counts"
    ).to_stream().to("out")
    topology = builder.build()
    with schemas_bound(topology, config()):
        check_schemas(topology, config())
        assert int.from_bytes(key.serialize(Depot.Key(number=1))[1:5], "big") == number
        assert registry.latest("post-counts-changelog-key") == Schema(text, "PROTOBUF")


@pytest.mark.parametrize(
    "change",
    [
        ("int32 number", "int64 number"),
        ("message Parcel", "message A {} message Parcel"),
    ],
)
def test_keys_of_another_message_or_place_are_refused_at_start(
    registry: InMemoryRegistry, change: tuple[str, str]
) -> None:
    registry.register("in-key", Schema(AS_JAVA.replace(*change), "PROTOBUF"))
    builder = StreamsBuilder("post")
    builder.stream("in", key=serdes.protobuf(Depot.Key), value=serdes.raw).to("out")
    topology = builder.build()
    with (
        schemas_bound(topology, config()),
        pytest.raises(ConfigError, match=r'"in-key".*keys have another schema'),
    ):
        check_schemas(topology, config())


def test_a_topology_with_schemas_needs_a_registry() -> None:
    plain = Config.of({"bootstrap.servers": "x"}, "shop")
    with (
        pytest.raises(ConfigError, match=r"set schema.registry.url"),
        schemas_bound(totals(), plain),
    ):
        pass


def test_a_registry_that_is_away_at_start_is_an_error_with_its_address() -> None:
    topology = totals()
    with (
        schemas_bound(topology, config()),
        pytest.raises(
            LogError,
            match=r'"orders-key": the schema registry http://127.0.0.1:9 cannot be reached',
        ) as away,
    ):
        check_schemas(topology, config())
    assert exit_status(away.value) == FAILED, (
        "a process that is started again may find it"
    )


def unread() -> Failure:
    """Return the failure of a record for which the registry does not answer."""
    error = SerdeError("serde avro cannot read")
    error.__cause__ = RegistryUnavailableError("the schema registry does not answer")
    return Failure(
        "deserialization",
        serdes.avro(ORDER).name,
        error,
        TopicPartition("orders", 0),
        4,
        b"",
        b"",
        0,
        None,
    )


@pytest.mark.parametrize("task", [TaskId(0, 0, WHOLE), None])
def test_a_registry_that_is_away_later_ends_a_backfill_and_a_global_table_whatever_the_handler_says(
    task: TaskId | None,
) -> None:
    count: list[Failure] = []
    settings = config(deserialization_exception_handler="continue")
    with pytest.raises(
        LogError, match=r'"orders" partition 0 offset 4 cannot be read'
    ) as away:
        FailureHandler(
            task, settings, lambda f, _: count.append(f), lambda *_: None, Sayings()
        )(unread())
    assert (count, exit_status(away.value)) == ([], FAILED)


def test_a_registry_that_is_away_later_pauses_the_task_whatever_the_handler_says() -> (
    None
):
    settings, failure = config(deserialization_exception_handler="continue"), unread()
    count: list[Failure] = []
    with pytest.raises(TriedLaterError, match=r"offset 4.*processed again in 1\.0 s"):
        FailureHandler(
            TaskId(0, 0, WHOLE),
            settings,
            lambda f, _: count.append(f),
            lambda *_: None,
            Sayings(),
            tries=Tries(),
        )(failure)
    assert count == []


def test_credentials_are_not_shown_and_not_taken_from_the_url() -> None:
    settings = config(**{"schema.registry.basic.auth.user.info": "me:hunter2"})
    assert "hunter2" not in repr(settings) + repr(registry_of(settings))
    for url in (
        "http://me:hunter2@host",
        "http://me:@hunter2/@host",
        "me:hunter2@host",
    ):
        with pytest.raises(ConfigError, match=r"basic.auth.user.info") as refused:
            config(**{"schema.registry.url": url})
        assert "hunter2" not in str(refused.value)
        assert "[hidden]@host" in str(refused.value)


def test_the_client_keeps_what_the_law_of_the_registry_says() -> None:
    """Uses confluent-kafka's registry in memory, through the client for real
    registries.
    """
    client = RegistryClient("mock://law", (("url", "mock://law"),), registers=True)
    text = text_of(TOTAL)
    assert client.latest("a-value") is None
    assert client.lookup("a-value", text) is None
    number = client.register("a-value", text)
    assert (
        client.lookup("a-value", text),
        client.latest("a-value"),
        client.schema(number),
    ) == (number, text, text)
    with pytest.raises(SerdeError, match=r"no schema with id 99"):
        client.schema(99)
    with pytest.raises(SerdeError, match=r"auto.register.schemas is false"):
        RegistryClient(
            "mock://law", (("url", "mock://law"),), registers=False
        ).register("b-value", text)


@contextmanager
def answering(
    status: int, body: bytes = b"", schemas: bytes = b""
) -> Iterator[tuple[RegistryClient, str, list[str]]]:
    """Yield a client of a registry that answers everything so, its URL, and the paths
    that it is asked for. `schemas`: the answer to what is asked by id, if it has one.
    """
    asked: list[str] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = schemas if self.path.startswith("/schemas/") else b""
            self.send_response(200 if found else status)
            self.end_headers()
            self.wfile.write(found or body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 as it is declared

    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield RegistryClient(url, (("url", url),), registers=True), url, asked
        server.shutdown()


def test_an_unknown_id_is_not_asked_for_at_every_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((100.0, 100.0, 101.0, 104.9, 106.0, 106.0))
    monkeypatch.setattr(schema_registry, "monotonic", lambda: next(times))
    with answering(404, b'{"error_code": 40403, "message": "Schema not found"}') as (
        client,
        _,
        asked,
    ):
        for _ in range(4):
            with pytest.raises(SerdeError, match=r"no schema with id 7"):
                client.schema(7)
    assert asked == ["/schemas/ids/7", "/schemas/ids/7"]


def test_a_registry_that_is_away_is_not_asked_at_every_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((100.0, 105.0, 105.1, 105.9, 106.1, 111.0))
    monkeypatch.setattr(schema_registry, "monotonic", lambda: next(times))
    with answering(503) as (client, url, asked):
        for number in (7, 7, 8, 7):
            with pytest.raises(RegistryUnavailableError, match=rf"{url} answers 503"):
                client.schema(number)
    assert asked == ["/schemas/ids/7", "/schemas/ids/7"]


def test_a_registry_that_is_away_when_asked_for_a_named_schema_is_not_asked_at_every_record() -> (
    None
):
    named = b'{"schema": "[]", "references": [{"name": "a.B", "subject": "a.B", "version": 1}]}'
    with answering(503, schemas=named) as (client, url, asked):
        for _ in range(3):
            with pytest.raises(RegistryUnavailableError, match=rf"{url} answers 503"):
                client.schema(7)
    assert len(asked) == 2, asked


@pytest.mark.parametrize(
    "body",
    [b"", b"default backend - 404", b"[]", b'{"code": 404}', b'{"error_code": 404}'],
)
def test_a_404_that_is_not_the_registrys_does_not_mean_that_a_schema_is_missing(
    body: bytes,
) -> None:
    with answering(404, body) as (client, url, _):
        with pytest.raises(RegistryUnavailableError, match=rf"{url} answers 404"):
            client.schema(7)
        with pytest.raises(RegistryUnavailableError, match=rf"{url} answers 404"):
            client.latest("orders-value")


def test_a_timestamp_for_which_the_registry_did_not_answer_is_to_be_taken_again() -> (
    None
):
    builder = StreamsBuilder("shop")
    orders = builder.stream(
        "orders",
        key=serdes.raw,
        value=serdes.avro(ORDER),
        timestamp=lambda read: read.value and read.value["cents"],
    )
    orders.to("out")
    topology, at = builder.build(), TopicPartition("orders", 0)
    source, _ = topology.subtopologies[0].nodes
    assert isinstance(source, Source)
    bind_in_memory(topology)
    columns = Columns(
        [b""], [source.value.serialize({"cents": 9, "note": ""})], [5], [4], (), None
    )
    assert timestamp_column(source)(at, columns, -1) == [9]
    with schemas_bound(topology, config()):
        columns.timestamps = timestamp_column(source)(at, columns, -1)
    assert columns.timestamps == [failed(5)]
    bind_in_memory(topology)
    columns.stream_times = [-1]
    assert registry_is_away(extraction_error(source, at, columns, 0))


def test_queries_take_and_show_json() -> None:
    bind_in_memory(totals())
    key, value = serdes.avro(KEY), serdes.avro(TOTAL)
    assert parse_key(key, '{"id": 1}') == key.serialize({"id": 1})
    assert (
        to_json(show_value(value, value.serialize({"cents": 3}), "it"), "it")
        == b'{"cents":3}'
    )
    with pytest.raises(QueryError, match=r"is no avro"):
        parse_key(key, "{")
