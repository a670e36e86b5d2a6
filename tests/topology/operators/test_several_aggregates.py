"""`aggregate` with aggregates by name: one table with several of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    KGroupedStream,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    count,
    count_distinct,
    first,
    last,
    max_,
    mean,
    quantile,
    serdes,
    sum_,
    top_,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.changes import Verdict, changes
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.outline import outline
from tests.durations import ms
from tests.topology.operators.results import Event, outputs, results

Groups: TypeAlias = KGroupedStream[str, dict[str, Any]]
Write: TypeAlias = Callable[[Groups], KTable[Any, dict[str, Any]]]

SEVERAL: dict[str, Any] = {
    "n": count(),
    "total": sum_("amount"),
    "average": mean("amount"),
    "most": max_("amount"),
    "p50": quantile("amount", 0.5),
    "users": count_distinct("user"),
    "best": top_("amount", 2, of="user"),
    "last_user": last("user"),
}
YEAR = timedelta(days=365)

TABLES: dict[str, Write] = {
    "without windows": lambda group: group.aggregate(**SEVERAL, store="rows"),
    "tumbling": lambda group: group.windowed_by(
        TimeWindows(milliseconds=10, grace=ms(20))
    ).aggregate(**SEVERAL, store="rows", retention=YEAR),
    "hopping": lambda group: group.windowed_by(
        TimeWindows(milliseconds=10, advance=ms(5), grace=ms(20))
    ).aggregate(**SEVERAL, store="rows", retention=YEAR),
    "sliding": lambda group: group.windowed_by(
        SlidingWindows(milliseconds=10, grace=ms(20))
    ).aggregate(**SEVERAL, store="rows", retention=YEAR),
    "sessions": lambda group: group.windowed_by(
        SessionWindows(milliseconds=5, grace=ms(20))
    ).aggregate(**SEVERAL, store="rows", retention=YEAR),
    "closed": lambda group: (
        group.windowed_by(TimeWindows(milliseconds=10, grace=ms(20)))
        .emit_strategy("on_window_close")
        .aggregate(**SEVERAL, store="rows", retention=YEAR)
    ),
    "cogrouped": lambda group: group.cogroup(**SEVERAL).aggregate(store="rows"),
}


@cache
def topology(name: str) -> Topology:
    builder = StreamsBuilder("app")
    group = builder.stream("in", key=serdes.text, value=serdes.json).group_by_key()
    TABLES[name](group).to_stream().to("out")
    return builder.build()


ORDERS = st.lists(
    st.tuples(
        st.just("in"),
        st.sampled_from("abcd"),
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "amount": st.one_of(st.none(), st.integers(-9, 9)),
                    "user": st.one_of(st.none(), st.sampled_from("xyz")),
                }
            ),
        ),
        st.integers(0, 60),
    ),
    max_size=20,
)


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=8, deadline=None)
@given(ORDERS, st.sampled_from([1, 3]))
def test_rows_and_updates_do_not_depend_on_ranges_and_commits(
    name: str, orders: list[Event], every: int
) -> None:
    expected = results(topology(name), orders, ["rows"])
    for ranges in (2, 7):
        assert results(topology(name), orders, ["rows"], ranges) == expected
    committed = results(topology(name), orders, ["rows"], 3, commit_every=every)
    assert committed == expected


@pytest.mark.parametrize("name", TABLES)
def test_the_record_cache_changes_no_row(name: str) -> None:
    orders = [
        ("in", "ab"[number % 2], {"amount": number, "user": "xyz"[number % 3]}, number)
        for number in range(40)
    ]
    plain = results(topology(name), orders, ["rows"])[1]
    cached = results(topology(name), orders, ["rows"], caching=True, commit_every=7)
    assert cached[1] == plain


FIRST: dict[str, Any] = {"amount": 3, "user": "x"}
SECOND: dict[str, Any] = {"amount": 4, "user": "x"}


def test_the_table_has_finished_values_in_the_order_of_their_names() -> None:
    found = outputs(
        topology("without windows"),
        ("in", "a", FIRST, 0),
        ("in", "a", SECOND, 1),
        ("in", "a", {"amount": None, "user": None}, 2),
    )
    row = {
        "n": 3,
        "total": 7,
        "average": 3.5,
        "most": 4,
        "p50": pytest.approx(3, rel=0.01),
        "users": 1,
        "best": [[4, "x"], [3, "x"]],
        "last_user": "x",
    }
    assert found[-1] == ("a", row, 2)
    assert list(found[-1][1]) == list(SEVERAL)


def test_sessions_that_merge_have_the_aggregates_of_both() -> None:
    found = outputs(
        topology("sessions"),
        ("in", "a", FIRST, 0),
        ("in", "a", SECOND, 8),
        ("in", "a", {"amount": 1, "user": "y"}, 4),
    )
    key, row, _ = found[-1]
    assert key == "[a@0/8]"
    assert (row["n"], row["total"], row["users"]) == (3, 8, 2)
    assert row["best"] == [[4, "x"], [3, "x"]]


def test_records_without_a_value_count_in_windows() -> None:
    found = outputs(topology("tumbling"), ("in", "a", None, 0), ("in", "a", FIRST, 1))
    assert (found[0][1]["n"], found[0][1]["total"], found[0][1]["users"]) == (
        1,
        None,
        0,
    )
    assert (found[1][1]["n"], found[1][1]["total"], found[1][1]["users"]) == (2, 3, 1)


@cache
def cogrouped(windows: Any) -> Topology:
    builder = StreamsBuilder("app")
    streams = [
        builder.stream(topic, key=serdes.text, value=serdes.json).group_by_key()
        for topic in ("orders", "clicks")
    ]
    cut: Any = streams[0].cogroup(total=sum_("amount"), users=count_distinct("user"))
    cut = cut.cogroup(streams[1], clicks=count(), users=count_distinct("user"))
    if windows is not None:
        cut = cut.windowed_by(windows)
    cut.aggregate(store="rows").to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize(
    "windows",
    [
        None,
        TimeWindows(milliseconds=10),
        SlidingWindows(milliseconds=10),
        SessionWindows(milliseconds=10),
    ],
)
def test_streams_of_a_cogroup_have_aggregates_of_their_own_and_in_common(
    windows: Any,
) -> None:
    found = outputs(
        cogrouped(windows),
        ("orders", "a", {"amount": 5, "user": "x"}, 20),
        ("clicks", "a", {"user": "y"}, 20),
        ("clicks", "a", {"user": "x"}, 20),
    )
    assert found[-1][1] == {"total": 5, "users": 2, "clicks": 2}


@cache
def of_table() -> Topology:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.json)
    table.group_by(
        lambda _key, value: (value["city"], value), key=serdes.text, value=serdes.json
    ).aggregate(
        n=count(),
        total=sum_("amount"),
        average=mean("amount"),
        p50=quantile("amount", 0.5),
        store="rows",
    ).to_stream().to("out")
    return builder.build()


ROWS_OF_TABLE = st.lists(
    st.tuples(
        st.just("in"),
        st.sampled_from("abcd"),
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "amount": st.one_of(st.none(), st.integers(1, 9)),
                    "city": st.sampled_from("xy"),
                }
            ),
        ),
        st.integers(0, 60),
    ),
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(ROWS_OF_TABLE, st.sampled_from([1, 3]), st.booleans())
def test_aggregates_of_a_table_are_those_of_its_rows_now(
    updates: list[Event], ranges: int, caching: bool
) -> None:
    _, tables = results(of_table(), updates, ["rows"], ranges, caching=caching)
    latest = {key: value for _, key, value, _ in updates}
    for row in tables["rows"]:
        rows = [value for value in latest.values() if value]
        here = [value["amount"] for value in rows if value["city"] == row.key]
        known = [amount for amount in here if amount is not None]
        assert row.value["n"] == len(here)
        assert row.value["total"] == (sum(known) if known else None)
        mean_of = sum(known) / len(known) if known else None
        assert row.value["average"] == pytest.approx(mean_of)
        assert (row.value["p50"] is None) == (not known)


def test_a_failing_record_changes_no_row() -> None:
    orders = [
        FIRST,
        {"amount": "many", "user": "y"},
        {"amount": 1, "user": ["y"]},
        {"user": "y"},
        SECOND,
    ]
    config = {"processing.exception.handler": "continue"}
    with TopologyTestDriver(topology("without windows"), config=config) as driver:
        for order in orders:
            driver.input("in").send("a", order)
        row = driver.store("rows").get("a")
    assert (row["n"], row["total"], row["users"]) == (2, 7, 1)
    assert row["p50"] == pytest.approx(3, rel=0.01)


def test_what_is_no_number_fails_its_record_with_the_name_of_the_aggregate() -> None:
    with pytest.raises(ProcessingError, match=r"sum_\('amount'\) is of numbers"):
        outputs(
            topology("without windows"), ("in", "a", {"amount": "3", "user": "x"}, 0)
        )


def grouped(builder: StreamsBuilder) -> Groups:
    return builder.stream("in", key=serdes.text, value=serdes.json).group_by_key()


def of_cities(builder: StreamsBuilder) -> Any:
    return builder.table("in", key=serdes.text, value=serdes.json).group_by(
        lambda key, value: (key, value), key=serdes.text, value=serdes.json
    )


MISTAKES: dict[str, tuple[Callable[[StreamsBuilder], object], str]] = {
    "nothing": (
        lambda b: grouped(b).aggregate(),
        "give an initializer and an aggregator, or aggregates by name",
    ),
    "a function that is not called": (
        lambda b: grouped(b).aggregate(n=count),  # type: ignore[call-overload]
        r"n= must be an aggregate, not <function count .* Write n=count\(…\)",
    ),
    "no aggregate": (
        lambda b: grouped(b).aggregate(n="amount"),  # type: ignore[call-overload]
        r"n= must be an aggregate, not 'amount'\. Write n=sum_\(\"amount\"\)",
    ),
    "an aggregate that is named as an option": (
        lambda b: grouped(b).aggregate(name=count()),  # type: ignore[call-overload]
        r"name= is an argument of its own\. Give the aggregate count\(\) another name",
    ),
    "a name that is no identifier": (
        lambda b: grouped(b).aggregate(**{"a-b": count()}),  # type: ignore[call-overload]
        "an aggregate needs a name of letters",
    ),
    "a name that begins with _": (
        lambda b: grouped(b).aggregate(_n=count()),
        "an aggregate needs a name of letters",
    ),
    "functions and aggregates": (
        lambda b: grouped(b).aggregate(  # type: ignore[call-overload]
            int, lambda k, v, a: a, value=serdes.int64, n=count()
        ),
        r"with functions \(initializer=\) or with aggregates by name \(n=\), not with both",
    ),
    "an aggregate with a serde": (
        lambda b: grouped(b).aggregate(value=serdes.json, n=count()),  # type: ignore[call-overload]
        r"with functions \(value=\) or with aggregates by name \(n=\), not with both",
    ),
    "no aggregator": (
        lambda b: grouped(b).aggregate(int, value=serdes.int64),  # type: ignore[call-overload]
        "aggregator= is missing",
    ),
    "sessions without a merger": (
        lambda b: (
            grouped(b)
            .windowed_by(SessionWindows(seconds=1))
            .aggregate(int, lambda k, v, a: a, value=serdes.int64)  # type: ignore[call-overload]
        ),
        "merger= is missing",
    ),
    "a table's largest value": (
        lambda b: of_cities(b).aggregate(most=max_("amount")),
        r"most=max_\('amount'\) cannot take back the old value .* \.to_stream\(\)\.group_by",
    ),
    "a table's distinct values": (
        lambda b: of_cities(b).aggregate(users=count_distinct("user")),
        "cannot take back the old value",
    ),
    "a cogroup of both kinds": (
        lambda b: (
            grouped(b)
            .cogroup(n=count())
            .cogroup(grouped(b), lambda key, value, total: total)
            .aggregate()
        ),
        "some streams have aggregates by name, and others an aggregator",
    ),
    "a cogroup with an initializer too many": (
        lambda b: grouped(b).cogroup(n=count()).aggregate(dict, value=serdes.json),
        "so it takes no initializer=",
    ),
    "a cogroup whose streams mean different things": (
        lambda b: (
            grouped(b).cogroup(n=count()).cogroup(grouped(b), n=first("user"))
        ).aggregate(),
        r"n is count\(\) of one stream and first\('user'\) of another",
    ),
    "a time to live of windows": (
        lambda b: (
            grouped(b)
            .windowed_by(TimeWindows(seconds=1))
            .aggregate(n=count(), store=Materialized("s", ttl=YEAR))
        ),
        "windows expire by themselves",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_while_building(name: str) -> None:
    write, message = MISTAKES[name]
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder("app"))


def version(**given: Any) -> Any:
    builder = StreamsBuilder("app")
    grouped(builder).aggregate(**given, store="rows").to_stream().to("out")
    return outline(builder.build())


def verdict(old: Any, new: Any) -> tuple[Verdict, str]:
    (store,) = [
        change
        for change in changes(old, new)
        if (change.what, change.name) == ("store", "rows")
    ]
    return store.verdict, store.why


def test_versions_may_add_and_remove_aggregates_and_change_no_kind() -> None:
    was = version(n=count(), total=sum_("amount"))
    assert verdict(was, version(total=sum_("ms"), most=max_("ms")))[0] == Verdict.KEEPS
    found, why = verdict(was, version(n=count(), total=mean("amount")))
    assert found == Verdict.UNREADABLE
    assert 'total: it may be "sum", which is read no more' in why


def test_versions_with_other_aggregates_have_other_fingerprints() -> None:
    def prints(**given: Any) -> Any:
        builder = StreamsBuilder("app")
        grouped(builder).aggregate(**given, store="rows")
        return fingerprints(builder.build(), [1])

    assert prints(n=count()) == prints(n=count())
    assert prints(n=count()) != prints(n=count(), total=sum_("amount"))
