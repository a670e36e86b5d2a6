"""Keys in URLs and values in JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams import count, mean
from coopstreams.query.backend import StoreInfo
from coopstreams.query.formats import (
    parse_key,
    parse_prefix,
    show_bytes,
    show_key,
    show_value,
    shown,
    to_json,
)
from coopstreams.state.views import StoredRow
from coopstreams.topology import serdes
from coopstreams.topology.aggregate_rows import rows_of
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import QueryError
from coopstreams.topology.schemas import RegistryUnavailableError
from coopstreams.topology.serdes import Serde


@dataclass(frozen=True)
class Seat:
    row: int
    letter: str


SEATS = serdes.json(Seat)
CSV: Serde[tuple[str, ...]] = Serde(
    "csv",
    lambda row: ",".join(row).encode(),
    lambda data: tuple(data.decode().split(",")),
)

json_values = st.recursive(
    st.text()
    | st.integers(-(2**53), 2**53)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def as_text(shown: Any) -> str:
    return shown if isinstance(shown, str) else orjson.dumps(shown).decode()


@given(st.text())
def test_a_text_key_is_found_again_by_what_is_shown(key: str) -> None:
    data = serdes.text.serialize(key)
    assert parse_key(serdes.text, show_key(serdes.text, data)) == data


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.binary().map(lambda data: b"base64:" + data)
)
def test_a_raw_key_is_found_again_by_what_is_shown(key: bytes) -> None:
    assert parse_key(serdes.raw, show_key(serdes.raw, key)) == key


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_int64_key_is_found_again_by_what_is_shown(key: int) -> None:
    data = serdes.int64.serialize(key)
    assert parse_key(serdes.int64, as_text(show_key(serdes.int64, data))) == data


@example(math.nan)
@given(st.floats(allow_nan=False))
def test_a_float64_key_is_found_again_by_what_is_shown(key: float) -> None:
    data = serdes.float64.serialize(key)
    assert (
        parse_key(
            serdes.float64,
            as_text(orjson.loads(to_json(show_key(serdes.float64, data), "the key"))),
        )
        == data
    )


@given(json_values)
def test_a_json_key_is_found_again_by_its_json_text(key: Any) -> None:
    data = serdes.json.serialize(key)
    assert (
        parse_key(serdes.json, orjson.dumps(show_key(serdes.json, data)).decode())
        == data
    )


def test_a_json_key_may_be_written_with_spaces() -> None:
    assert parse_key(serdes.json, '{ "a" : [1, 2] }') == b'{"a":[1,2]}'
    assert parse_key(SEATS, '{"row": 1, "letter": "B"}') == SEATS.serialize(
        Seat(1, "B")
    )


def test_keys_of_a_serde_of_ones_own_are_given_as_serialised_text_or_base64() -> None:
    assert parse_key(CSV, "a,b") == b"a,b"
    assert parse_key(CSV, "base64:YSxi") == b"a,b"


@pytest.mark.parametrize(
    ("serde", "text"),
    [
        (serdes.int64, "twelve"),
        (serdes.int64, "1.5"),
        (serdes.int64, ""),
        (serdes.int64, "1_000"),
        (serdes.int64, str(2**63)),
        (serdes.int64, "9" * 5000),
        (serdes.int64, "0" * 40 + "7"),
        (serdes.int64, "base64:AAAAAAAAAAE="),
        (serdes.float64, "a"),
        (serdes.json, "{"),
        (serdes.json, "base64:e3s="),
        (SEATS, '{"row": "one"}'),
        (serdes.raw, "base64:***"),
        (serdes.raw, "base64:A"),
    ],
)
def test_a_text_that_is_no_key_is_refused_with_its_reason(
    serde: Serde[Any], text: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse_key(serde, text)
    assert (caught.value.code, caught.value.status, caught.value.retryable) == (
        "BAD_KEY",
        400,
        False,
    )


def test_prefixes_are_for_texts_and_bytes() -> None:
    assert parse_prefix(serdes.text, "grü") == "grü".encode()
    assert parse_prefix(serdes.raw, "base64:/w==") == b"\xff"
    with pytest.raises(QueryError, match="this store has int64 keys"):
        parse_prefix(serdes.int64, "1")


def test_values_become_what_json_has_for_them() -> None:
    assert (
        to_json(show_value(SEATS, SEATS.serialize(Seat(1, "B")), "v"), "v")
        == b'{"row":1,"letter":"B"}'
    )
    assert to_json(show_value(serdes.raw, b"\xff", "v"), "v") == b'"base64:/w=="'
    assert (
        to_json({"exact": Decimal("1.10"), "some": {3}, "none": math.nan}, "v")
        == b'{"exact":"1.10","some":[3],"none":null}'
    )


def test_several_aggregates_are_shown_as_their_table_has_them() -> None:
    several = rows_of({"n": count(), "average": mean("ms")})
    row = several.serde.serialize((2, 7.0, 2))
    shown_row = show_value(several.serde, row, "v")
    assert to_json(shown_row, "v") == b'{"n":2,"average":3.5}'


def test_what_cannot_be_shown_says_which_value_it_is() -> None:
    with pytest.raises(
        QueryError, match='the value of key "a" cannot be read'
    ) as caught:
        show_value(serdes.int64, b"abc", 'the value of key "a"')
    assert (caught.value.code, caught.value.status) == ("UNREADABLE", 500)
    with pytest.raises(QueryError, match="has no form in JSON"):
        to_json(object(), "it")


class Away:
    """A schema registry that does not answer."""

    def latest(self, subject: str) -> Schema | None:
        raise RegistryUnavailableError("the registry cannot be reached")

    def lookup(self, subject: str, schema: Schema) -> int | None:
        raise RegistryUnavailableError("the registry cannot be reached")

    def register(self, subject: str, schema: Schema) -> int:
        raise RegistryUnavailableError("the registry cannot be reached")

    def schema(self, number: int) -> Schema:
        raise RegistryUnavailableError("the registry cannot be reached")


def test_while_the_schema_registry_does_not_answer_one_may_ask_again() -> None:
    serde: Any = serdes.avro(
        {"type": "record", "name": "Away", "fields": [{"name": "n", "type": "long"}]}
    )
    written = b"\0\0\0\0\x09\x02"
    store = StoreInfo("parcels", "key_value", 0, 1, serde, serdes.raw)
    reads: list[Callable[[], object]] = [
        lambda: parse_key(serde, '{"n": 1}'),
        lambda: parse_key(serde, show_bytes(written)),
        lambda: show_value(serde, written, "a value"),
        lambda: shown(store, StoredRow(written, b"x", 1), 0),
    ]
    with serde.codec.bound(Away(), ()):
        for read in reads:
            with pytest.raises(
                QueryError, match="the registry cannot be reached"
            ) as caught:
                read()
            assert (caught.value.code, caught.value.status, caught.value.retryable) == (
                "UNREADABLE",
                503,
                True,
            )


def of(kind: str, logical: str = "", **more: Any) -> dict[str, Any]:
    """Return an Avro schema, perhaps with a logical type."""
    return {"type": kind, **({"logicalType": logical} if logical else {}), **more}


NOON = datetime(2026, 11, 27, 12, 0, 0, 5000, UTC)
CENTS = of("bytes", "decimal", precision=9, scale=2)
INNER = of(
    "record",
    name="Inner",
    fields=[{"name": "at", "type": of("long", "timestamp-micros")}],
)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of("bytes"), b"\xff\0a"),
        (of("fixed", name="two", size=2), b"\xff\1"),
        (CENTS, Decimal("1.50")),
        (
            of("fixed", "decimal", name="exact", size=8, precision=9, scale=2),
            Decimal("-1.50"),
        ),
        (of("long", "timestamp-millis"), NOON),
        (of("long", "local-timestamp-millis"), NOON.replace(tzinfo=None)),
        (of("int", "date"), NOON.date()),
        (of("int", "time-millis"), NOON.time()),
        (of("string", "uuid"), UUID(int=5)),
        (of("array", items="bytes"), [b"\xff", b""]),
        (of("map", values=CENTS), {"a": Decimal("0.01")}),
        (["null", INNER, "long"], {"at": NOON}),
        (["null", INNER, "long"], None),
        (["null", INNER, "long"], 7),
        (
            of(
                "record",
                name="Two",
                fields=[{"name": "a", "type": INNER}, {"name": "b", "type": "Inner"}],
            ),
        )
        * 2,
    ],
    ids=str,
)
def test_a_key_of_avro_is_found_again_by_what_is_shown(schema: Any, value: Any) -> None:
    value = {"a": {"at": NOON}, "b": {"at": NOON}} if value is schema else value
    for whole, key in (
        (schema, value),
        (
            of("record", name="Key", fields=[{"name": "f", "type": schema}]),
            {"f": value},
        ),
    ):
        serde = serdes.avro(whole)
        data = serde.serialize(key)
        assert parse_key(serde, to_json(show_key(serde, data), "it").decode()) == data


def test_a_key_of_avro_that_cannot_be_is_refused_with_the_reason() -> None:
    serde = serdes.avro(
        of(
            "record",
            name="At",
            fields=[{"name": "at", "type": of("long", "timestamp-millis")}],
        )
    )
    for text in ('{"at": "noon"}', '{"at": null}', "[]", "{}"):
        with pytest.raises(QueryError, match=r"is no avro\(At\) key"):
            parse_key(serde, text)
