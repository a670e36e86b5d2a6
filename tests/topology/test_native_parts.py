"""Natively read parts of JSON values equal orjson's, and programs have the same results
as with dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from coopstreams import KStream, StreamsBuilder, concat, field, key, row, serdes, when
from coopstreams.log.kafka.native import native_parts
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import Program
from coopstreams.topology.failures import Failure
from coopstreams.topology.fields import Expression
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.operators.json_parts import unread
from tests.conftest import needs_native

pytestmark = [needs_native, pytest.mark.usefixtures("native_plane")]


def columns(
    names: list[str], values: Sequence[bytes | None]
) -> list[tuple[list[Any], type | None]]:
    make = native_parts()
    assert make is not None
    read = make([("value", ("field", name)) for name in names])
    found, all_read = read.columns(values, unread)
    assert all_read == all(item is not unread for column, _ in found for item in column)
    return found


PLAIN = (
    *(
        b"0",
        b"7",
        b"-7",
        b"2.5",
        b"-0.5",
        b"1e5",
        b"1E-3",
        b"12345678901234567890",
        b"9223372036854775807",
        b"true",
    ),
    *(
        b"false",
        b"null",
        b'""',
        b'"x"',
        b'"\xc3\xbc"',
        b'"\xf0\x9f\x98\x80"',
        b'"a b/c"',
        b"0.1",
        b"5e-324",
        b"1e308",
    ),
    *(
        b"-9223372036854775808",
        b"18446744073709551615",
        b"123456.789012345678901234567890",
        b"0.30000000000000004",
    ),
)
ODD = (
    *(
        b"-0",
        b"-0.0",
        b"-1e-400",
        b"18446744073709551616",
        b"-9223372036854775809",
        b"1e309",
        b"-1e999",
        b"1" * 400,
    ),
    *(
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"--1",
        b"0x1",
        b"NaN",
        b"-Infinity",
        b"nul",
        b"True",
        b"",
        b"'x'",
        b"undefined",
    ),
    *(
        rb'"\u0061"',
        rb'"\n\"\\\/\b"',
        rb'"\ud83d\ude00"',
        rb'"\ud800"',
        rb'"\udc00\ud800"',
        rb'"\ud800\u0041"',
        rb'"\x"',
    ),
    *(
        rb'"\u00"',
        rb'"\u0000"',
        b'"\x00"',
        b'"\x1f"',
        b'"\x7f"',
        b'"\n"',
        b'"\xff"',
        b'"\xc3"',
        b'"\xed\xa0\x80"',
    ),
    *(
        b'"\xf4\x90\x80\x80"',
        b'"\xc0\x80"',
        b'"open',
        b"[]",
        b"{}",
        b"[1,[2]]",
        b'{"a":1}',
        b"[1,]",
        b"[,1]",
        b"[1 2]",
    ),
    *(
        b'{"a":1,}',
        b'{"a"}',
        b"{1:2}",
        b"[1e400]",
        rb'["\ud800"]',
        b'{"a":"\xff"}',
        b"[" * 126 + b"]" * 126,
        b"/**/1",
    ),
    *(
        b"[" * 127 + b"]" * 127,
        b"[" * 1023 + b"]" * 1023,
        b"[" * 1024 + b"]" * 1024,
        b"[" * 2000 + b"]" * 2000,
    ),
)
NAMES = (b'"a"', b'"b"', b'"c"')
ODD_NAMES = (
    rb'"\u0061"',
    b'"\xc3\xa4"',
    b'"\xff"',
    rb'"\ud800"',
    b'"\x01"',
    b'""',
    b'"aa"',
    b"a",
    b"'a'",
    b"1",
    b"null",
)
SPACES = (
    b" ",
    b"\n",
    b"\t\r",
    b"\x0b",
    b"\x0c",
    b"\xa0",
    b"\x00",
    b"\xef\xbb\xbf",
    b"//\n",
    b"x",
    b",",
    b"}",
    b"{",
)


def text_of(dice: Random, *, oddness: float) -> bytes:
    """Return an object of JSON, or, with this probability at each place, something
    else.
    """

    def one_of(usual: tuple[bytes, ...], odd: tuple[bytes, ...]) -> bytes:
        return dice.choice(odd if dice.random() < oddness else usual)

    def gap() -> bytes:
        return one_of((b"", b"", b"", b" "), SPACES)

    names = [
        *dice.sample(NAMES, 3),
        *([one_of(NAMES, ODD_NAMES)] if dice.random() < 0.3 else []),
    ]
    if dice.random() < oddness:
        names.pop(0)
    dice.shuffle(names)
    parts = [
        gap() + one_of((name,), ODD_NAMES) + gap() + b":" + gap() + one_of(PLAIN, ODD)
        for name in names
    ]
    text = (
        gap()
        + one_of((b"{",), (b"[", b"", b"{{"))
        + b",".join(parts)
        + gap()
        + one_of((b"}",), (b"", b"]", b"}}"))
        + gap()
    )
    if dice.random() < oddness:
        at = dice.randrange(len(text) + 1)
        text = (
            text[:at]
            + bytes([dice.randrange(256)] * dice.randrange(2))
            + text[at + dice.randrange(2) :]
        )
    return text


def read_by_orjson(text: bytes | None) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), oddness=st.sampled_from([0.02, 0.1, 0.3]))
def test_a_part_is_what_orjson_reads(seed: int, oddness: float) -> None:
    dice = Random(seed)
    texts = [
        None if dice.random() < 0.05 else text_of(dice, oddness=oddness)
        for _ in range(100)
    ]
    (a, _), (b, _) = columns(["a", "b"], texts)
    for text, one, other in zip(texts, a, b, strict=True):
        assert (one is unread) == (other is unread)
        if one is not unread:
            value = read_by_orjson(text)
            assert (type(one), repr(one)) == (type(value["a"]), repr(value["a"])), text
            assert (type(other), repr(other)) == (type(value["b"]), repr(value["b"])), (
                text
            )


@pytest.mark.parametrize("part", PLAIN)
def test_plain_parts_are_read(part: bytes) -> None:
    ((column, _),) = columns(
        ["a"], [b'{"c":%s, "b":[{"a":"x"}], "a":%s}' % (part, part)]
    )
    assert repr(column) == repr([orjson.loads(part)])


@pytest.mark.parametrize("part", ODD)
def test_odd_parts_are_read_by_orjson_or_as_orjson_does(part: bytes) -> None:
    for text in (
        b'{"a":%s}' % part,
        b'{"a":1,"c":%s}' % part,
        b'{"a":1}%s' % part,
        part,
    ):
        ((column, _),) = columns(["a"], [text])
        if column != [unread]:
            assert repr(column[0]) == repr(read_by_orjson(text)["a"]), text


def test_the_later_of_two_parts_of_one_name_counts() -> None:
    texts = [
        b'{"a":1,"a":"x"}',
        b'{"a":[],"a":2}',
        b'{"a":2,"a":[]}',
        rb'{"a":1,"\u0061":3}',
    ]
    assert columns(["a"], texts) == [(["x", 2, unread, 3], None)]


def test_a_column_of_one_class_says_so() -> None:
    names = ["a", "b", "c"]
    texts = [b'{"a":1,"b":1.5,"c":true}', b'{"a":12345678901234567890,"b":2e3,"c":2}']
    assert [class_ for _, class_ in columns(names, texts)] == [int, float, None]
    assert [class_ for _, class_ in columns(names, [*texts, None])] == [
        None,
        None,
        None,
    ]
    assert columns(["a"], ["text", bytearray(b"{}")]) == [([unread, unread], None)]  # type: ignore[list-item]


Flow = Callable[[KStream[Any, Any]], Any]


def carried(stream: KStream[Any, Any]) -> None:
    stream.select_key(field("b"), key=serdes.json).filter_not(field("c") == 7).to("out")


def deep(stream: KStream[Any, Any]) -> None:
    condition: Expression = field("a")
    for number in range(30):
        condition = (condition | (field("b") == number)) & field("c")
    stream.filter(condition).map_values(field("a"), value=serdes.json).to("out")


def same_function(stream: KStream[Any, Any]) -> None:
    part = field("a")
    stream.map_values(part).select_key(part, key=serdes.text).to(
        "out", value=serdes.text
    )


def twice(stream: KStream[Any, Any]) -> None:
    condition = field("a") > 1
    stream.filter_not(condition).filter(condition).to("out")


FLOWS: dict[str, Flow] = {
    "a part": lambda stream: stream.map_values(field("a"), value=serdes.json).to("out"),
    "a condition as a value": lambda stream: stream.map_values(
        field("a") > 1, value=serdes.json
    ).to("out"),
    "filters": lambda stream: (
        stream.filter((field("a") > 1) & ~(field("b") == "x") | field("c"))
        .map_values(field("c"), value=serdes.json)
        .to("out")
    ),
    "a filter and the same bytes": lambda stream: stream.filter(field("a") != 0).to(
        "out"
    ),
    "a new key": carried,
    "a key, and a part": lambda stream: (
        stream.select_key(field("b"), key=serdes.json)
        .map_values(field("a"), value=serdes.json)
        .to("out")
    ),
    "a count of some": lambda stream: (
        stream.filter(field("a")).group_by_key().count(store="s").to_stream().to("out")
    ),
    "a function of the part": lambda stream: (
        stream.map_values(field("a"))
        .filter(lambda _, part: part > 1)
        .map_values(str, value=serdes.text)
        .to("out")
    ),
    "a deep condition": deep,
    "a row": lambda stream: (
        stream.filter(~(field("a") + field("b") > 1))
        .map_values(
            row(sum=field("a") * 2, text=field("b").lower(), c=field("c")),
            value=serdes.json,
        )
        .to("out")
    ),
    "a row of many": lambda stream: stream.map_values(
        row(
            a=field("a"),
            deep=row(b=field("b") == field("a"), c=field("a") / 3),
            text=field("c").cast("text"),
        ),
        value=serdes.json,
    ).to("out"),
    "several filters": lambda stream: (
        stream.filter_not(field("a") == 7)
        .filter(field("b").is_null() | (field("b") != "x"))
        .filter_not(field("c"))
        .map_values(row(a=field("a") + 1, b=field("b")), value=serdes.json)
        .to("out")
    ),
    "one condition twice": twice,
    "a text as the key": lambda stream: (
        stream.filter(field("a") != 0).select_key(field("b"), key=serdes.text).to("out")
    ),
    "a text as the key, and a float": lambda stream: (
        stream.filter_not(field("a") == 0)
        .select_key(field("b").lower(), key=serdes.text)
        .map_values(field("c") / 2, value=serdes.float64)
        .to("out")
    ),
    "a text as the key, and a text": lambda stream: (
        stream.select_key(concat(field("b"), "!"), key=serdes.text)
        .map_values(field("b"), value=serdes.text)
        .to("out")
    ),
    "a row with the key": lambda stream: stream.map_values_with_key(
        row(key=key().is_null(), b=when(field("b") == 7, field("a"))),
        value=serdes.json,
    ).to("out"),
}
"""Programs that read only parts."""


@cache
def compiled(
    flow: Flow, *, native: bool, value: serdes.Serde[Any] = serdes.json
) -> Program:
    builder = StreamsBuilder("app")
    flow(builder.stream("in", key=serdes.raw, value=value))
    topology = builder.build()
    return compile_subtopology(
        topology, topology.subtopologies[0], parts=native_parts() if native else None
    )


def outcome(
    program: Program, texts: Sequence[bytes | None], headed: int | None = None
) -> list[Any]:
    """Return the outputs, failures and counters of a program. `headed`: the record that
    has headers, if one has.
    """
    failures = list[Any]()

    def fail(failure: Failure) -> None:
        failures.append(
            (
                failure.phase,
                failure.node,
                repr(failure.error),
                failure.offset,
                failure.value,
            )
        )

    stores = program.subtopology.stores
    state = TaskState(Database(Memory(), stores), stores, WHOLE, 1 << 20)
    bound = program.bind(state.stores, fail, caching=False)
    offsets = list(range(len(texts)))
    keys = [b"%d" % (offset % 3) if offset % 7 else None for offset in offsets]
    given: Headers = [("name", b"a")]
    headers = [given if offset == headed else None for offset in offsets]
    bound.process(
        TopicPartition("in", 0),
        Columns(
            keys,
            texts,
            offsets,
            offsets,
            list(accumulate(offsets, max)),
            None if headed is None else headers,
        ),
    )
    out = bound.outputs["out"]
    return [failures, out.keys, out.values, out.timestamps, out.headers, bound.dropped]


@pytest.mark.parametrize("flow", FLOWS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    oddness=st.sampled_from([0.0, 0.02, 0.2]),
    headed=st.sampled_from([None, None, 0, 7]),
)
def test_a_program_does_with_parts_what_it_does_with_dicts(
    flow: str, seed: int, oddness: float, headed: int | None
) -> None:
    dice = Random(seed)
    texts = [
        None if dice.random() < oddness else text_of(dice, oddness=oddness)
        for _ in range(30)
    ]
    note(f"{texts}")
    natively = outcome(compiled(FLOWS[flow], native=True), texts, headed)
    assert natively == outcome(compiled(FLOWS[flow], native=False), texts, headed)


def source(flow: Flow, value: serdes.Serde[Any] = serdes.json) -> str:
    return compiled(flow, native=True, value=value).compiled(False).text


@pytest.mark.parametrize("flow", FLOWS)
def test_values_of_these_programs_do_not_become_dicts(flow: str) -> None:
    assert " is unread:" in source(FLOWS[flow])


@pytest.mark.parametrize("flow", [flow for flow in FLOWS if "a text as" in flow])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"a": st.integers(0, 2), "b": st.text(max_size=3), "c": st.integers(0, 9)}
        ),
        min_size=1,
        max_size=9,
    ),
    odd=st.sampled_from([{}, {}, {"b": None}, {"c": None}, {"c": "x", "a": 0}]),
)
def test_new_keys_are_the_same(flow: str, rows: list[Any], odd: dict[str, Any]) -> None:
    rows[-1] |= odd
    texts = [orjson.dumps(row) for row in rows]
    natively = outcome(compiled(FLOWS[flow], native=True), texts)
    assert natively == outcome(compiled(FLOWS[flow], native=False), texts)


@pytest.mark.parametrize(
    "flow",
    [
        "a row",
        "several filters",
        "a part",
        *(each for each in FLOWS if "a text" in each),
    ],
)
def test_a_batch_goes_to_its_sink_at_once(flow: str) -> None:
    assert "if all_read and not headed" in source(FLOWS[flow])


@pytest.mark.parametrize(
    "flow", ["one condition twice", "a new key", "a count of some"]
)
def test_other_batches_go_record_by_record(flow: str) -> None:
    assert "if all_read" not in source(FLOWS[flow])


class Name(StrEnum):
    B = "b"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("\ud800", b'"x"'),
        ("\n", rb'"\n"'),
        (Name.B, b'"b"'),
        ("b'\"\\", rb'''"b'\"\\"'''),
        ("ü", rb'"\u00fc"'),
        ("", b'""'),
    ],
)
def test_a_field_may_have_any_name(name: str, text: bytes) -> None:
    def flow(stream: KStream[Any, Any]) -> None:
        stream.filter(field(name) == 1).map_values(field("a"), value=serdes.json).to(
            "out"
        )

    texts = [b'{"a":1,%s:%d}' % (text, number) for number in (0, 1)]
    assert outcome(compiled(flow, native=True), texts) == outcome(
        compiled(flow, native=False), texts
    )


def several(stream: KStream[Any, Any]) -> None:
    stream.filter(field("a")).to("out")
    stream.filter(field("b")).to("more")


WHOLE_VALUES: dict[str, Flow] = {
    "by a function": lambda stream: (
        stream.filter(field("a"))
        .map_values(lambda value: value["a"], value=serdes.json)
        .to("out")
    ),
    "by a function before": lambda stream: (
        stream.peek(lambda _, value: print(value))
        .map_values(field("a"), value=serdes.json)
        .to("out")
    ),
    "by two streams": several,
    "by an aggregation": lambda stream: (
        stream.filter(field("a")).group_by_key().reduce(lambda one, _: one).to_stream()
    ),
    "by another serde": lambda stream: stream.filter(field("a")).to(
        "out", value=serdes.json(dict[str, int])
    ),
    "by a partitioner": lambda stream: stream.filter(field("a")).to(
        "out", partitioner=lambda *_: 0
    ),
}


@pytest.mark.parametrize("reader", WHOLE_VALUES)
def test_where_the_whole_value_is_read_it_is_a_dict(reader: str) -> None:
    assert "unread" not in source(WHOLE_VALUES[reader]).replace("unreadable", "")


def test_values_of_other_serdes_have_no_parts_to_read() -> None:
    assert "part_a" not in source(FLOWS["a part"], serdes.json(dict[str, int]))
