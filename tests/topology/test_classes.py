"""A class that got a required field, or another type for one, cannot read what was
written before.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import StreamsBuilder, serdes
from coopstreams.topology.compatibility.json_schema_changes import (
    why_other_bytes,
    why_unreadable,
)
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.graph.changes import Verdict, changes, weighed
from coopstreams.topology.graph.outline import outline, read_outline
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.serdes import changed, schemas_of
from coopstreams.topology.windows import TimeWindows


def a_class(name: str = "Order", /, **fields: Any) -> Any:
    """Return a dataclass; a field is a type, or a type and a default."""
    written = [
        (field, *(said if isinstance(said, tuple) else (said,)))
        for field, said in fields.items()
    ]
    return make_dataclass(name, written)


def many(class_: Any) -> Any:
    return list[class_]


def named(class_: Any) -> Any:
    return dict[str, class_]


ITEM = a_class("Item", name=str)
ORDER = a_class(id=int, items=many(ITEM))


def why(reader: Any, writer: Any) -> str:
    (ours,), (theirs,) = (
        schemas_of(serdes.json(reader)),
        schemas_of(serdes.json(writer)),
    )
    return why_unreadable(ours, theirs, complete=True)


@pytest.mark.parametrize(
    ("reader", "field"),
    [
        (a_class(id=int, items=many(ITEM), note=str), "note: it is required"),
        (
            a_class(id=str, items=many(ITEM)),
            "id: it may be integer, and is read as string",
        ),
        (
            a_class(id=int, items=many(a_class("Item", name=str, price=float))),
            "items[].price: it is required",
        ),
        (
            a_class(id=int, items=list[int]),
            "items[]: it may be object, and is read as integer",
        ),
        (many(ORDER), "the value: it may be object, and is read as array"),
    ],
)
def test_what_old_rows_lack_or_have_in_another_type_cannot_be_read(
    reader: Any, field: str
) -> None:
    assert field in why(reader, ORDER)
    assert field.partition(":")[0] in why(
        reader | None, ORDER | None
    ) or field.startswith("the value")


class Tall(Enum):
    S = "s"
    L = "l"


class Wide(Enum):
    S = "s"
    XL = "xl"


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (
            a_class(size=Wide),
            a_class(size=Tall),
            'size: it may be "l", which is read no more',
        ),
        (
            a_class(size=Literal["a"]),
            a_class(size=Literal["a", "b", "c"]),
            'size: it may be "b","c", which is read',
        ),
        (
            msgspec.defstruct("Sent", [], tag="s"),
            msgspec.defstruct("Sent", [], tag="sent"),
            'type: it may be "sent"',
        ),
        (
            named(a_class("Item", name=str, price=int)),
            named(ITEM),
            "[].price: it is required",
        ),
    ],
)
def test_rows_with_a_member_that_an_enum_has_lost_cannot_be_read(
    reader: Any, writer: Any, reason: str
) -> None:
    assert reason in why(reader, writer)
    assert why_other(reader, writer)
    assert why(writer, writer) == why_other(writer, writer) == ""


def test_an_enum_may_get_members() -> None:
    fewer, more = a_class(size=Literal["a"]), a_class(size=Literal["a", "b"])
    assert why(more, fewer) == why_other(more, fewer) == ""


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (a_class(id=int, note=(str, "")), a_class(id=int)),
        (a_class(id=int), a_class(id=int, note=str)),
        (a_class(id=int), a_class(id=(int, 0))),
        (a_class(id=float), a_class(id=int)),
        (a_class(id=Decimal), a_class(id=float)),
        (a_class(id=int), a_class(id=int | None)),
        (a_class(id=int | str), a_class(id=int)),
        (a_class(id=Any), a_class(id=int)),
        (a_class(properties=int, anyOf=str), a_class(properties=int, anyOf=str)),
    ],
)
def test_what_can_be_read_or_may_be_is_no_reason(reader: Any, writer: Any) -> None:
    assert why(reader, writer) == ""


class Tree(msgspec.Struct):
    left: Tree | None = None


class Pair(NamedTuple):
    one: int
    other: str


class Entries(TypedDict):
    one: int


TYPES = st.sampled_from(
    [
        int,
        float,
        str,
        bool,
        Decimal,
        bytes,
        list[int],
        dict[str, int],
        Tree,
        Pair,
        Entries,
        ITEM,
    ]
)


@given(st.dictionaries(st.sampled_from(["a", "b", "anyOf", "required"]), TYPES))
def test_a_class_reads_its_own_rows(fields: dict[str, Any]) -> None:
    assert why(a_class(**fields), a_class(**fields)) == ""


VALUES: dict[Any, Any] = {int: 7, float: 0.5, str: "x", bool: True, list[int]: [1]}


@given(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3), st.data())
def test_there_is_a_reason_exactly_if_msgspec_fails(
    types: list[Any], data: st.DataObject
) -> None:
    writer = a_class(**dict(zip("abc", types, strict=False)))
    reader = a_class(
        **data.draw(
            st.dictionaries(st.sampled_from("abcd"), st.sampled_from(list(VALUES)))
        )
    )
    row = serdes.json(writer).serialize(writer(*(VALUES[type_] for type_ in types)))
    try:
        serdes.json(reader).deserialize(row)
    except SerdeError:
        assert why(reader, writer)
    else:
        assert why(reader, writer) == ""


def why_other(now: Any, was: Any) -> str:
    (ours,), (theirs,) = schemas_of(serdes.json(now)), schemas_of(serdes.json(was))
    return why_other_bytes(ours, theirs)


@given(st.dictionaries(st.sampled_from(["a", "b", "anyOf", "required"]), TYPES))
def test_a_class_writes_its_keys_as_before(fields: dict[str, Any]) -> None:
    assert why_other(a_class(**fields), a_class(**fields)) == ""


@pytest.mark.ci
@given(
    st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3),
    st.permutations("abc"),
    st.data(),
)
def test_keys_have_other_bytes_exactly_if_msgspec_writes_other_ones(
    types: list[Any], names: list[str], data: st.DataObject
) -> None:
    fields = dict(zip("abc", types, strict=False))
    changed_to = {
        name: data.draw(st.sampled_from([fields[name], *VALUES]))
        for name in names
        if name in fields
    }
    if data.draw(st.booleans()):
        changed_to["d"] = (str, "x")  # a default is written, too
    was, now = a_class(**fields), a_class(**changed_to)
    row = serdes.json(was).serialize(was(*(VALUES[type_] for type_ in fields.values())))
    values = [VALUES[type_] for name, type_ in changed_to.items() if name != "d"]
    same = serdes.json(now).serialize(now(*values)) == row
    assert (why_other(now, was) == "") is same


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (a_class(id=int, items=many(ITEM), note=(str, "")), "note: it is new"),
        (a_class(id=int), "items: it is gone"),
        (a_class(items=many(ITEM), id=int), "the key: its fields have another order"),
        (a_class(id=float, items=many(ITEM)), "id: it is number, and was integer"),
        (
            a_class(id=int, items=many(a_class("Item", name=str, price=(int, 0)))),
            "items[].price: it is new",
        ),
        (a_class(id=int | None, items=many(ITEM)), ""),
        (a_class(id=(int, 0), items=(many(ITEM), ())), ""),
    ],
)
def test_why_keys_of_a_class_have_other_bytes(now: Any, why: str) -> None:
    assert why_other(now, ORDER) == why


def test_serdes_around_others_have_the_schemas_within_and_others_have_none() -> None:
    inner = serdes.json(ORDER)
    for around in (inner, changed(inner), versions_of(inner)):
        assert schemas_of(around) == schemas_of(inner)
    hooked = msgspec.json.Decoder(
        a_class(at=complex), dec_hook=lambda type_, value: type_(value)
    )
    own = serdes.Serde("own", msgspec.json.encode, hooked.decode)
    assert [
        schemas_of(serde) for serde in (serdes.text, serdes.json, serdes.int64, own)
    ] == [[], [], [], []]


@dataclass(frozen=True)
class Way:
    """A program that keeps values of a class: in a store, or on their way to one."""

    changes_what: str
    name: str

    def program(self, class_: Any) -> StreamsBuilder:
        builder = StreamsBuilder("app")
        stream = builder.stream("in", key=serdes.text, value=serdes.json(class_))
        if self.changes_what == "store":
            stream.to_table(store=self.name)
        else:
            stream.repartition(name="moved").foreach(print)
        return builder


@pytest.mark.parametrize(
    "way", [Way("store", "rows"), Way("repartition topic", "app-moved-repartition")]
)
def test_a_topology_that_cannot_read_its_rows_any_more_is_refused(way: Way) -> None:
    old = outline(way.program(ORDER).build())
    wider, kept = (
        a_class(id=int, items=many(ITEM), note=str),
        a_class(id=int, items=many(ITEM), note=(str, "")),
    )
    found = [
        change
        for change in changes(old, outline(way.program(wider).build()))
        if change.name == way.name
    ]
    assert [(change.what, change.verdict) for change in found] == [
        (way.changes_what, Verdict.UNREADABLE)
    ]
    assert "json(Order), whose class has changed: note: it is required" in found[0].why
    assert "give new fields a default" in found[0].cure
    assert weighed(found, lambda _: False)[0].verdict is Verdict.KEEPS
    for other in (ORDER, kept):
        (same,) = (
            change
            for change in changes(old, outline(way.program(other).build()))
            if change.name == way.name
        )
        assert same.verdict is Verdict.KEEPS


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("store", "rows"),
        ("store", "hours"),
        ("repartition topic", "app-rows-repartition"),
    ],
)
def test_a_topology_whose_keys_have_other_bytes_is_refused(
    what: str, name: str
) -> None:
    """A row of before would never be found again, and the count of its key would begin
    anew.
    """

    def counts(class_: Any) -> StreamsBuilder:
        builder = StreamsBuilder("app")
        orders = builder.stream("in", key=serdes.text, value=serdes.text)
        grouped = orders.group_by(
            lambda _, value: class_(1, []), key=serdes.json(class_), name="rows"
        )
        grouped.count(store="rows")
        grouped.windowed_by(TimeWindows(hours=1)).count(store="hours")
        return builder

    old = outline(counts(ORDER).build())
    wider, same = (
        a_class(id=int, items=many(ITEM), note=(str, "")),
        a_class(id=int, items=many(ITEM)),
    )
    (found,) = (
        change
        for change in changes(old, outline(counts(wider).build()))
        if change.name == name
    )
    assert (found.what, found.verdict) == (what, Verdict.MIXED)
    assert "json(Order)" in found.why
    assert "whose class has changed: note: it is new" in found.why
    assert {
        change.verdict for change in changes(old, outline(counts(same).build()))
    } == {Verdict.KEEPS}


def test_a_description_has_each_schema_once_without_the_words_for_readers() -> None:
    builder = StreamsBuilder("app")
    class_ = a_class(id=int, items=many(ITEM), note=(str, ""))
    class_.__doc__ = "A long text."
    for store in ("one", "other"):
        builder.table(store, key=serdes.text, value=serdes.json(class_), store=store)
    described = builder.build().describe("json")
    assert len(orjson.loads(described)["schemas"]) == 1
    assert "A long text." not in described


def test_a_description_without_schemas_is_compared_without() -> None:
    """As an earlier version of coopstreams wrote it."""
    way = Way("store", "rows")
    described = orjson.loads(way.program(ORDER).build().describe("json"))
    del described["schemas"]
    for part in described["subtopologies"]:
        for store in part["stores"]:
            del store["schemas"]
    wider = outline(way.program(a_class(id=int, items=many(ITEM), note=str)).build())
    (found,) = (
        each
        for each in changes(read_outline(orjson.dumps(described)), wider)
        if each.name == "rows"
    )
    assert found.verdict is Verdict.KEEPS
