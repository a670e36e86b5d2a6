"""Values become bytes and come back; invalid ones are an error with the reason."""

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.errors import SerdeError, TopologyError
from coopstreams.topology.serdes import Serde, Windowed

INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.recursive(
    st.booleans()
    | INT64
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner | st.none()) | st.dictionaries(st.text(), inner | st.none())
    ),
    max_leaves=10,
)


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: float | None


NAMELESS = Flight(None, None)  # type: ignore[arg-type]


class Airline(msgspec.Struct, frozen=True):
    name: str


class Row(TypedDict):
    name: str


class Point(NamedTuple):
    x: int
    y: int


@given(st.binary())
def test_raw_bytes_come_back(value: bytes) -> None:
    assert serdes.raw.deserialize(serdes.raw.serialize(value)) == value


@given(st.text())
def test_text_comes_back(value: str) -> None:
    assert serdes.text.deserialize(serdes.text.serialize(value)) == value


def test_an_integer_of_more_than_64_bits_keeps_its_digits_with_a_type() -> None:
    large = 2**70 + 1
    data = b"%d" % large
    assert serdes.json.deserialize(data) == float(large) != large
    with pytest.raises(SerdeError, match="64-bit"):
        serdes.json.serialize(large)
    assert serdes.json(int).deserialize(data) == large
    assert serdes.json(int).serialize(large) == data
    assert serdes.json(dict[str, Any]).deserialize(b'{"n":%b}' % data) == {"n": large}


@given(INT64)
def test_integers_come_back_and_sort_as_java_writes_them(value: int) -> None:
    data = serdes.int64.serialize(value)
    assert data == value.to_bytes(8, "big", signed=True)
    assert serdes.int64.deserialize(data) == value


@given(st.floats(allow_nan=False))
def test_floats_come_back(value: float) -> None:
    assert serdes.float64.deserialize(serdes.float64.serialize(value)) == value


@given(PLAIN)
def test_plain_json_comes_back(value: Any) -> None:
    assert serdes.json.deserialize(serdes.json.serialize(value)) == value


@given(st.text(), st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_dataclass_comes_back(carrier: str, delay: float | None) -> None:
    serde = serdes.json(Flight)
    assert serde.deserialize(serde.serialize(Flight(carrier, delay))) == Flight(
        carrier, delay
    )


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Airline, Airline("Delta")),
        (Row, {"name": "Delta"}),
        (Point, Point(1, 2)),
        (list[Point], [Point(1, 2)]),
        (dict[str, Flight], {"a": Flight("DL", None)}),
        (Flight | None, Flight("DL", 1.5)),
        (int | str, "a"),
        (float, 1),
        (datetime, datetime(2013, 1, 1)),
        (Any, {"anything": [1, "a"]}),
        (Row, {"name": "null"}),
        (list[float | None], [None, 1.0]),
    ],
)
def test_typed_json_comes_back(type_: Any, value: Any) -> None:
    serde = serdes.json(type_)
    assert serde.deserialize(serde.serialize(value)) == value


@given(st.text(), st.integers(0, 2**53), st.integers(1, 10**9))
def test_a_window_key_is_the_key_and_the_start(
    key: str, start_ms: int, size_ms: int
) -> None:
    serde = serdes.windowed(serdes.text, timedelta(milliseconds=size_ms))
    window = Windowed(key, start_ms, start_ms + size_ms)
    assert serde.serialize(window) == key.encode() + start_ms.to_bytes(8, "big")
    assert serde.deserialize(serde.serialize(window)) == window


@pytest.mark.parametrize("size", [1000, 1.5, 0, timedelta(0), "1h", True])
def test_the_size_of_a_windowed_key_is_a_duration(size: Any) -> None:
    with pytest.raises(TopologyError, match=r"serdes\.windowed: the size"):
        serdes.windowed(serdes.text, size)


@pytest.mark.parametrize("inner", ["text", str, None])
def test_what_contains_a_serde_refuses_anything_else(inner: Any) -> None:
    for make in (
        lambda: serdes.windowed(inner, timedelta(hours=1)),
        lambda: serdes.session_windowed(inner),
        lambda: serdes.changed(inner),
    ):
        with pytest.raises(TopologyError, match=r"contains a serde such as .*, not"):
            make()


def test_a_windowed_key_prints_as_in_kafka_streams() -> None:
    assert str(Windowed("a", 0, 1000)) == "[a@0/1000]"


@pytest.mark.parametrize(
    ("serde", "value", "message"),
    [
        (
            serdes.raw,
            "text",
            "serde raw cannot write the str 'text': expected bytes, got str",
        ),
        (serdes.text, 3, "serde text cannot write the int 3"),
        (serdes.text, "\ud800", "surrogates not allowed"),
        (serdes.int64, "3", "serde int64 cannot write the str '3'"),
        (serdes.int64, 2**63, "serde int64 cannot write the int 9223372036854775808"),
        (serdes.float64, "3", "serde float64 cannot write the str '3'"),
        (
            serdes.json,
            Flight("DL", None),
            r"Flight is not a plain JSON value. Name its type: serdes.json\(Flight\)",
        ),
        (serdes.json, {1: 2}, "Dict key must be str"),
        (serdes.json, datetime(2013, 1, 1), "datetime is not a plain JSON value"),
        (
            serdes.json(Flight),
            {"carrier": "DL", "delay": None},
            r"serde json\(Flight\) cannot write the dict .* expected Flight, got dict",
        ),
        (serdes.json(Flight), Airline("Delta"), "expected Flight, got Airline"),
        (serdes.json(Row), [("name", "a")], "expected Row, got list"),
        (serdes.json(list[int]), {1, 2}, "got set"),
        (serdes.json(int | str), 1.5, "got float"),
        (
            serdes.windowed(serdes.text, timedelta(milliseconds=1000)),
            Windowed("a", 0, 5000),
            "is not 1000 ms long",
        ),
        (serdes.json, math.nan, r"\$ is nan, which JSON cannot write"),
        (
            serdes.json,
            {"a": [None, (-math.inf,)]},
            r"\$\.a\[1\]\[0\] is -inf, which JSON cannot write",
        ),
        (
            serdes.json(Flight),
            Flight("DL", math.nan),
            r"\$\.delay is nan, which .* the type `float \| None`",
        ),
        (
            serdes.json(tuple[str, float]),
            ("a", math.inf),
            r"\$\[1\] is inf, which JSON cannot write",
        ),
        (serdes.json(Any), {"a": math.nan}, r"\$\.a is nan, which JSON cannot write"),
        (
            serdes.json(Flight),
            NAMELESS,
            r"at `\$\.carrier`: if it may be null, its type is `str \| None`",
        ),
        (
            serdes.json(list[Airline]),
            [Airline("DL"), None],
            r"at `\$\[1\]`: .* its type is `object \| None`",
        ),
        (serdes.json_schema(Flight), NAMELESS, r"its type is `str \| None`"),
        (
            serdes.json_schema(Flight),
            Flight("DL", math.inf),
            r"\$\.delay is inf, which JSON cannot write",
        ),
        (
            serdes.json_schema({"title": "any"}),
            {"a": math.nan},
            r"\$\.a is nan, which JSON cannot write",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(
    serde: Serde[Any], value: Any, message: str
) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data", "message"),
    [
        (
            serdes.text,
            b"\xff",
            r"serde text cannot read b'\\xff': .*invalid start byte",
        ),
        (serdes.int64, b"123", "serde int64 cannot read b'123'"),
        (serdes.float64, b"123456789", "serde float64 cannot read"),
        (serdes.json, b"{", "serde json cannot read b'{'"),
        (
            serdes.json(Flight),
            b'{"carrier": 1, "delay": null}',
            r"Expected `str`, got `int` - at `\$.carrier`",
        ),
        (
            serdes.json(Flight),
            b'{"carrier": "DL"}',
            "required field `delay`: if the type got .* give it a default",
        ),
        (
            serdes.json(Flight),
            b'{"carrier": null, "delay": 1}',
            r"if it may be null, its type is `str \| None`",
        ),
        (
            serdes.windowed(serdes.text, timedelta(milliseconds=1000)),
            b"short",
            "cannot read b'short'",
        ),
    ],
)
def test_bytes_of_another_kind_are_an_error(
    serde: Serde[Any], data: bytes, message: str
) -> None:
    with pytest.raises(SerdeError, match=message) as caught:
        serde.deserialize(data)
    assert caught.value.__cause__ is not None


def test_an_error_shows_the_first_sixty_bytes() -> None:
    with pytest.raises(SerdeError) as caught:
        serdes.json.deserialize(b"x" * 61)
    assert f"{b'x' * 60!r}... (61 bytes)" in str(caught.value)


def test_a_serde_of_your_own_that_writes_no_bytes_is_found_out() -> None:
    wrong: Any = str
    letters = Serde("letters", wrong, bytes.decode)
    with pytest.raises(SerdeError, match="serde letters wrote str instead of bytes"):
        letters.serialize("a")


@dataclass(frozen=True)
class Wrapper:
    inside: Serde[Any]


@pytest.mark.parametrize(
    "type_", [Callable[[], int], complex, Wrapper, list[complex], {"no": "type"}]
)
def test_a_type_that_json_does_not_know_is_an_error_at_once(type_: Any) -> None:
    with pytest.raises(
        SerdeError, match=r"serdes\.json cannot read .* is not one that msgspec knows"
    ):
        serdes.json(type_)


@pytest.mark.parametrize("make", [serdes.json, serdes.json_schema])
def test_a_name_in_an_annotation_that_is_not_defined_is_an_error_at_once(
    make: Any,
) -> None:
    """As a class has that is imported for type checkers only: Python does not look it
    up.
    """
    ghost = make_dataclass("Ghost", [("of", "Castle | None")])
    with pytest.raises(
        SerdeError,
        match=r"cannot read .*Ghost.*: an annotation .* name 'Castle' is not defined\. Imp",
    ):
        make(ghost)


def test_the_same_type_gives_the_same_serde() -> None:
    assert serdes.json(Flight) == serdes.json(Flight)
    assert serdes.windowed(
        serdes.json(Flight), timedelta(milliseconds=5)
    ) == serdes.windowed(serdes.json(Flight), timedelta(milliseconds=5))
    assert len({serdes.json(Flight), serdes.json(Flight)}) == 1


def test_serdes_of_one_name_and_two_types_differ() -> None:
    other = serdes.json(msgspec.defstruct("Flight", [("number", int)]))
    assert other.name == serdes.json(Flight).name
    assert len({other, serdes.json(Flight)}) == 2
    assert serdes.windowed(serdes.text, timedelta(milliseconds=5)) != serdes.windowed(
        serdes.text, timedelta(milliseconds=6)
    )
    assert serdes.json != serdes.json(Flight)


def test_null_in_json_is_none_and_no_tombstone() -> None:
    assert serdes.json.deserialize(b"null") is None


@pytest.mark.parametrize("name", ["window", "start", "end"])
def test_a_windowed_key_names_what_is_there_instead_of_kafka_streams_window(
    name: str,
) -> None:
    with pytest.raises(
        AttributeError,
        match=f"'Windowed' object has no attribute '{name}': a window is key, start_ms and end_ms",
    ):
        getattr(Windowed("a", 0, 10), name)
    assert (
        copy.deepcopy(Windowed("a", 0, 10))
        == pickle.loads(pickle.dumps(Windowed("a", 0, 10)))
        == Windowed("a", 0, 10)
    )
    assert not hasattr(Windowed("a", 0, 10), "other")


class Length(NamedTuple):
    x: float


@pytest.mark.parametrize(
    ("type_", "whole", "same"),
    [
        (float, 1, 1.0),
        (Flight, Flight("a", 1), Flight("a", 1.0)),
        (tuple[str, float], ("a", 1), ("a", 1.0)),
        (Length, Length(1), Length(1.0)),
    ],
)
def test_a_key_that_would_be_another_one_than_its_equal_is_refused(
    type_: Any, whole: Any, same: Any
) -> None:
    serde = serdes.json(type_)
    assert whole == same
    assert serde.serialize(whole) != serde.serialize(same), (
        "values are written as before"
    )
    for keys in (
        serde.for_keys(),
        serdes.windowed(serde, timedelta(milliseconds=10)).for_keys(),
        serdes.session_windowed(serde).for_keys(),
    ):
        windowed = keys.name != serde.name
        key: Any = Windowed(same, 0, 10) if windowed else same
        assert keys.deserialize(keys.serialize(key)) == key
        with pytest.raises(
            SerdeError,
            match=r"they would be two keys\. Convert its numbers by float\(\), or write int",
        ):
            keys.serialize(Windowed(whole, 0, 10) if windowed else whole)


@pytest.mark.parametrize("type_", [int, str, datetime, dict[str, Any], list[int]])
def test_a_type_without_floats_makes_keys_as_values(type_: Any) -> None:
    assert serdes.json(type_).for_keys() is serdes.json(type_)


def test_a_type_of_both_numbers_keeps_each_key_as_it_is() -> None:
    keys = serdes.json(int | float).for_keys()
    assert [keys.serialize(key) for key in (1, 1.0)] == [b"1", b"1.0"]
