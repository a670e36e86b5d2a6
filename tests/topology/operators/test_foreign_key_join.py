"""Foreign-key joins: each row of one table is joined with the row of another that it
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.foreign_keys import (
    SUBSCRIPTION,
    ForeignKeySubscription,
    Instruction,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.suppression import until_time_limit

Event = tuple[str, str, Any]


@cache
def topology_of(left: bool, store: str | None = None) -> Topology:
    builder = StreamsBuilder("app")
    orders = builder.table("orders", key=serdes.text, value=serdes.json)
    people = builder.table("people", key=serdes.text, value=serdes.json)

    def named(order: str) -> str | None:
        return order.split(",", maxsplit=1)[0] or None

    def pair(order: Any, person: Any) -> list[Any]:
        return [order, person]

    method: Any = orders.left_join if left else orders.join
    method(
        people, pair, foreign_key=named, value=serdes.json, store=store, name="owner"
    ).to_stream().to("out")
    return builder.build()


def joined(
    *events: Event,
    left: bool = False,
    ranges: int = 1,
    partitions: Any = 1,
    caching: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    """Return the outputs after these events, (key, value, timestamp), and the latest
    value of each key.
    """
    with TopologyTestDriver(
        topology_of(left, "kept"), ranges, partitions=partitions, caching=caching
    ) as driver:
        for timestamp, (topic, key, value) in enumerate(events):
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp)
        driver.commit()
        output = driver.output("out", serdes.text, serdes.json)
        assert {
            row.key: row.value for row in driver.store("kept").all()
        } == output.latest()
        return [
            (record.key, record.value, record.timestamp) for record in output.records()
        ], output.latest()


@pytest.mark.parametrize("ranges", [1, 4])
def test_either_side_updates_the_row_and_the_later_timestamp_counts(
    ranges: int,
) -> None:
    events: list[Event] = [
        ("orders", "1", "ann,x"),
        ("people", "ann", "Ann"),
        ("orders", "2", "ann,y"),
        ("people", "ann", "Anna"),
    ]
    out, table = joined(*events, ranges=ranges)
    assert table == {"1": ["ann,x", "Anna"], "2": ["ann,y", "Anna"]}
    assert out[:2] == [("1", ["ann,x", "Ann"], 1), ("2", ["ann,y", "Ann"], 2)]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    "written", [b'["ann", 1]', b' ["ann",1.0e0]', b'["\\u0061nn",1]']
)
def test_a_row_is_joined_however_its_producer_writes_json(
    written: bytes, caching: bool
) -> None:
    builder = StreamsBuilder("app")
    orders = builder.table(
        "orders", key=serdes.text, value=serdes.json(list[str | float])
    )
    people = builder.table("people", key=serdes.text, value=serdes.json)
    orders.join(
        people,
        lambda order, person: [*order, person],
        foreign_key=lambda order: str(order[0]),
        value=serdes.json,
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build(), caching=caching) as driver:
        driver.input("people", serdes.text, serdes.json).send("ann", "Ann", 0)
        driver.input("orders", serdes.text, serdes.raw).send("1", written, 1)
        driver.commit()
        assert driver.output("out", serdes.text, serdes.json).latest() == {
            "1": ["ann", 1, "Ann"]
        }


def test_a_row_that_names_another_leaves_the_first() -> None:
    events: list[Event] = [
        ("people", "ann", "Ann"),
        ("people", "bob", "Bob"),
        ("orders", "1", "ann"),
        ("orders", "1", "bob"),
        ("people", "ann", "?"),
    ]
    assert joined(*events)[0] == [("1", ["ann", "Ann"], 2), ("1", ["bob", "Bob"], 3)]


def test_an_inner_join_loses_the_row_when_either_side_goes() -> None:
    events: list[Event] = [
        ("people", "ann", "Ann"),
        ("orders", "1", "ann"),
        ("people", "ann", None),
        ("people", "ann", "A"),
        ("orders", "1", None),
    ]
    assert [value for _, value, _ in joined(*events)[0]] == [
        ["ann", "Ann"],
        None,
        ["ann", "A"],
        None,
    ]


def test_a_left_join_keeps_rows_that_name_nobody_or_a_stranger() -> None:
    out, table = joined(
        ("orders", "1", ",x"), ("orders", "2", "zoe"), ("orders", "1", None), left=True
    )
    assert out[:2] == [("1", [",x", None], 0), ("2", ["zoe", None], 1)]
    assert table == {"2": ["zoe", None]}


def test_the_two_topics_follow_the_tables_they_go_to() -> None:
    topology = topology_of(left=False)
    topics = {
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    }
    assert topics == {
        "app-owner-subscription-registration-topic",
        "app-owner-subscription-response-topic",
    }
    events: list[Event] = [("people", f"p{n}", n) for n in range(5)]
    events += [("orders", str(n), f"p{n % 5}") for n in range(20)]
    _, table = joined(
        *events, ranges=2, partitions={"orders": 3, "people": 2, "out": 1}
    )
    assert table == {str(n): [f"p{n % 5}", n % 5] for n in range(20)}


def test_the_result_of_a_join_names_rows_of_another_table() -> None:
    builder = StreamsBuilder("app")
    orders, people, countries = (
        builder.table(topic, key=serdes.text, value=serdes.json)
        for topic in ("orders", "people", "countries")
    )
    owned = orders.join(
        people,
        lambda order, person: person,
        foreign_key=lambda order: order,
        value=serdes.json,
        store="owned",
    )
    owned.join(
        countries,
        lambda person, country: [person, country],
        foreign_key=lambda person: person,
        value=serdes.json,
        store="placed",
    )
    owned.to_stream().filter(lambda key, _: key != "").to("owned")
    with TopologyTestDriver(builder.build()) as driver:
        for topic, key, value in [
            ("orders", "1", "ann"),
            ("people", "ann", "fr"),
            ("countries", "fr", "France"),
            ("countries", "de", "Germany"),
        ]:
            driver.input(topic, serdes.text, serdes.json).send(key, value)
        assert driver.store("placed").get("1") == ["fr", "France"]
        driver.input("people", serdes.text, serdes.json).send("ann", "de")
        assert driver.store("placed").get("1") == ["de", "Germany"]


ONE_EVENT = st.tuples(
    st.just("orders"),
    st.sampled_from("123"),
    st.none() | st.sampled_from(["a,1", "a,2", "b,1", ",0"]),
) | st.tuples(st.just("people"), st.sampled_from("ab"), st.none() | st.integers(0, 3))


def relational(events: Iterable[Event], *, left: bool) -> dict[str, Any]:
    """Return the join of the tables that these events leave."""
    tables: dict[str, dict[str, Any]] = {"orders": {}, "people": {}}
    for topic, key, value in events:
        tables[topic].pop(key, None)
        if value is not None:
            tables[topic][key] = value
    rows = {
        key: [order, tables["people"].get(order.split(",")[0])]
        for key, order in tables["orders"].items()
    }
    return {key: row for key, row in rows.items() if left or row[1] is not None}


@pytest.mark.ci
@settings(deadline=None)
@given(
    st.lists(ONE_EVENT, max_size=25),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_the_table_is_the_relational_join_of_both_tables(
    events: list[Event], left: bool, ranges: int, caching: bool
) -> None:
    _, table = joined(*events, left=left, ranges=ranges, caching=caching)
    assert table == relational(events, left=left)


class Interleaved(TopologyTestDriver):
    """A driver whose records wait in their topics until the test delivers them."""

    def __enter__(self) -> Interleaved:
        return self

    def _work(self) -> None:
        self._fetch()

    def deliver(self, topic: str) -> None:
        """Process the next record of a topic, if there is one."""
        for source in sorted(self._at_hand):
            if source.topic == topic:
                self._go_on(source)

    def deliver_all(self) -> None:
        """Process records, and flush, until nothing is left."""
        before = -1
        while self.forwarded != before or self._at_hand:
            before = self.forwarded
            super()._work()
            self.commit()


Step = tuple[Event | str, Any]


def joined_by(
    steps: Iterable[Step], *, left: bool, ranges: int, caching: bool
) -> dict[str, Any]:
    """Return the table after these steps, and after everything that they leave on its
    way.
    """
    with Interleaved(topology_of(left, "kept"), ranges, caching=caching) as driver:
        for what, at in steps:
            if what == "all":
                driver.deliver_all()
            elif what == "deliver":
                driver.deliver(at)
            elif what == "flush":
                driver.commit()
            else:
                assert not isinstance(what, str)
                topic, key, value = what
                driver.input(topic, serdes.text, serdes.json).send(key, value, at)
        driver.deliver_all()
        kept = {row.key: row.value for row in driver.store("kept").all()}
        assert kept == driver.output("out", serdes.text, serdes.json).latest()
        return kept


TOPICS = [
    "orders",
    "people",
    "app-owner-subscription-registration-topic",
    "app-owner-subscription-response-topic",
]
TOLD: list[Step] = [
    *[
        (("orders", "1", order), 1)
        for order in ("a,1", "a,2", "b,1", "b,2", ",1", None)
    ],
    *[(("orders", "2", order), 0) for order in ("a,1", "b,1", None)],
    *[(("people", person, name), 0) for person in "ab" for name in ("x", None)],
]
DELIVERED: list[Step] = [*(("deliver", topic) for topic in TOPICS), ("flush", "")]
BEGIN: list[Step] = [(("people", "a", "x"), 0), (("orders", "1", "a,1"), 0)]


@pytest.mark.ci
@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(TOLD) | st.sampled_from(DELIVERED), min_size=20, max_size=60
    ),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_the_table_is_the_relational_join_however_messages_interleave(
    steps: list[Step], left: bool, ranges: int, caching: bool
) -> None:
    """The first order has its result already."""
    steps = [*BEGIN, ("all", ""), *steps]
    events = [what for what, _ in steps if not isinstance(what, str)]
    table = joined_by(steps, left=left, ranges=ranges, caching=caching)
    assert table == relational(events, left=left)


CHANGES_OF_ORDER: dict[str, list[str | None]] = {
    "to one stranger": ["bob,1", "bob,2"],
    "to two strangers": ["bob", "cy"],
    "to nobody, then to a stranger": ["", "bob"],
    "to nobody": [",1", ",2"],
    "deleted, then to a stranger": [None, "bob"],
    "to a stranger, back, and again": ["bob,1", "ann,1", "bob,2"],
    "to the same row, which goes meanwhile": ["ann,1"],
}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("changes", CHANGES_OF_ORDER)
def test_an_inner_join_keeps_no_result_whose_deletion_was_overtaken(
    changes: str, caching: bool
) -> None:
    """The row has changed again before the answer to its first change has come."""
    topology = topology_of(left=False, store="kept")
    with Interleaved(topology, caching=caching) as driver:
        people = driver.input("people", serdes.text, serdes.json)
        orders = driver.input("orders", serdes.text, serdes.json)
        people.send("ann", "Ann", 0)
        orders.send("1", "ann", 0)
        driver.deliver_all()
        assert driver.store("kept").get("1") == ["ann", "Ann"]
        if "goes meanwhile" in changes:
            people.send("ann", None, 1)
            driver.deliver("people")
        for order in CHANGES_OF_ORDER[changes]:
            orders.send("1", order, 1)
            driver.deliver("orders")
            driver.commit()
        driver.deliver_all()
        assert driver.store("kept").get("1") is None


@pytest.mark.parametrize("ranges", [1, 4])
def test_the_foreign_key_may_come_from_the_key_of_the_row(ranges: int) -> None:
    builder = StreamsBuilder("app")
    orders = builder.table("orders", key=serdes.text, value=serdes.int64)
    people = builder.table("people", key=serdes.text, value=serdes.text)
    orders.join(
        people,
        lambda amount, person: f"{person} {amount}",
        foreign_key_with_key=lambda key, amount: (
            key.partition("/")[0] if amount else None
        ),
        value=serdes.text,
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        driver.input("people").send("ann", "Ann", 0)
        driver.input("orders").send("ann/1", 7, 1)
        driver.input("orders").send("bob/1", 8, 2)
        driver.input("people").send("bob", "Bob", 3)
        driver.input("orders").send("ann/1", 0, 4)
        assert driver.output("out").latest() == {"bob/1": "Bob 8"}


def test_the_foreign_key_comes_from_one_function() -> None:
    builder = StreamsBuilder("app")
    rows = builder.table("rows", key=serdes.text, value=serdes.text)
    both: dict[str, Any] = {
        "foreign_key": str,
        "foreign_key_with_key": lambda key, _: key,
    }
    with pytest.raises(TopologyError, match="give it one function"):
        rows.join(rows, lambda one, other: one, value=serdes.text, **both)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", ["table", "view", "count"])
def test_a_right_row_that_comes_and_goes_between_two_flushes_leaves_no_result(
    right: str, left: bool
) -> None:
    """The subscription comes while the record cache holds the row, whose deletion no
    flush forwards.
    """
    builder = StreamsBuilder("app")
    orders = builder.table(
        "orders",
        key=serdes.text,
        value=serdes.text,
        store=Materialized("orders", cached=False),
    )
    people = builder.table("people", key=serdes.text, value=serdes.text, store="people")
    if right == "view":
        people = people.filter(lambda _, name: name != "")
    if right == "count":
        people = people.group_by(
            lambda key, name: (key, name), key=serdes.text, value=serdes.text
        ).aggregate(
            str,
            lambda _, name, __: name,
            lambda _, __, names: None,
            value=serdes.text,
            store="named",
        )
    method: Any = orders.left_join if left else orders.join
    method(
        people,
        lambda order, person: [order, person],
        foreign_key=str,
        value=serdes.json,
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build(), caching=True) as driver:
        people_input, orders_input = driver.input("people"), driver.input("orders")
        for key, value in (("ann", "Ann"), ("bob", "Bob")):
            people_input.send(key, value)
        driver.commit()
        people_input.send("ann", "Anna")
        people_input.send("cy", "Cy")
        for order in ("ann", "bob", "cy"):
            orders_input.send(order, order)
        people_input.send("bob", "Bobby")
        people_input.send("cy", None)
        driver.commit()
        expected = {"ann": ["ann", "Anna"], "bob": ["bob", "Bobby"]} | (
            {"cy": ["cy", None]} if left else {}
        )
        assert driver.output("out").latest() == expected
        orders_input.send("cy", "bob")
        people_input.send("bob", None)
        driver.commit()
        expected = {"ann": ["ann", "Anna"]} | (
            {"cy": ["bob", None], "bob": ["bob", None]} if left else {}
        )
        assert driver.output("out").latest() == expected


class Order(msgspec.Struct):
    person: str


class NotedOrder(msgspec.Struct):
    person: str
    note: str = "-"


CHANGES: dict[str, Callable[[KTable[str, Any], Any], KTable[str, Any]]] = {
    "itself": lambda orders, _: orders,
    "filtered": lambda orders, _: orders.filter(lambda _, order: order.person != ""),
    "reduced": lambda orders, value: orders.group_by(
        lambda key, order: (key, order), key=serdes.text, value=value
    ).reduce(lambda _, order: order, lambda order, _: order),
    "held": lambda orders, _: orders.suppress(
        until_time_limit(timedelta(milliseconds=5))
    ),
}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("history", [None, timedelta(hours=1)])
@pytest.mark.parametrize("change", CHANGES)
def test_left_rows_of_a_class_with_fewer_fields_are_joined_until_they_change(
    change: str, history: timedelta | None, caching: bool, tmp_path: Path
) -> None:
    """They asked with the hash of other bytes than those that this class writes."""

    def program(order: Any) -> Topology:
        builder = StreamsBuilder("app")
        orders = builder.table(
            "orders", key=serdes.text, value=serdes.json(order), history=history
        )
        people = builder.table("people", key=serdes.text, value=serdes.text)
        CHANGES[change](orders, serdes.json(order)).join(
            people,
            lambda order, person: [getattr(order, "note", None), person],
            foreign_key=lambda order: order.person,
            value=serdes.json,
        ).to_stream().to("out")
        return builder.build()

    with TopologyTestDriver(
        program(Order), state_dir=tmp_path, caching=caching
    ) as driver:
        driver.input("people", serdes.text, serdes.text).send("ann", "Ann", 0)
        driver.input("orders", serdes.text, serdes.json(Order)).send(
            "1", Order("ann"), 1
        )
        driver.input("orders", serdes.text, serdes.json(Order)).send("2", Order(""), 9)
        driver.commit()
        assert driver.output("out", serdes.text, serdes.json).latest() == {
            "1": [None, "Ann"]
        }
    with TopologyTestDriver(
        program(NotedOrder), state_dir=tmp_path, caching=caching
    ) as driver:
        if (
            history is not None and change != "held"
        ):  # the latest version stays, and is written again
            driver.input("orders", serdes.text, serdes.json(Order)).send(
                "1", Order("late"), 0
            )
        driver.input("people", serdes.text, serdes.text).send("ann", "Anna", 11)
        driver.commit()
        assert driver.output("out", serdes.text, serdes.json).latest() == {
            "1": ["-", "Anna"]
        }


@pytest.mark.parametrize("instruction", get_args(Instruction))
def test_each_instruction_is_read_as_it_was_written(instruction: int) -> None:
    asked = ForeignKeySubscription(instruction, bytes(16), b"key")
    assert SUBSCRIPTION.decode(SUBSCRIPTION.encode(asked)) == asked
