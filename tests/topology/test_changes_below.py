"""What is made from a store that is mixed is mixed as well, and has one cure with it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.graph.changes import Verdict, changes, weighed
from coopstreams.topology.graph.outline import outline, read_outline
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import key_value_store
from coopstreams.topology.suppression import until_window_closes
from coopstreams.topology.windows import SessionWindows, TimeWindows
from tests.topology.test_changes import Program, between, of
from tests.topology.test_fingerprint import Passing, text

KEEPS, MIXED, UNREADABLE = Verdict.KEEPS, Verdict.MIXED, Verdict.UNREADABLE
MINUTE = timedelta(minutes=1)


def closed(windows: Any, **counted: Any) -> Program:
    """The final counts of windows, and below them what is made of these: kept, behind a
    repartition topic, joined.
    """

    def program(b: StreamsBuilder) -> None:
        grouped = text(b).group_by_key().windowed_by(windows)
        open_ = grouped.count(store=Materialized("open", **counted))
        last = open_.suppress(until_window_closes(), name="last")
        open_.filter(lambda _, number: number > 1, store="kept")
        plain = last.to_stream().map(
            lambda key, number: (key.key, str(number)),
            key=serdes.text,
            value=serdes.text,
            name="plain",
        )
        plain.group_by_key(name="again").count(store="moved")
        rows = b.table("beside", key=serdes.text, value=serdes.text, store="rows")
        text(b, "beside-too").join(
            rows, str.__add__, value=serdes.text
        ).group_by_key().count(store="others")

    return program


def test_what_is_made_from_a_mixed_store_is_mixed_with_it_and_cured_with_it() -> None:
    found = {
        change.name: change
        for change in changes(
            of(closed(SessionWindows(gap=MINUTE))),
            of(closed(SessionWindows(gap=2 * MINUTE))),
        )
        if change.what == "store"
    }
    below = {"last-store", "kept", "moved"}
    assert {name for name, change in found.items() if change.verdict is MIXED} == {
        "open"
    } | below
    assert {name for name, change in found.items() if change.verdict is KEEPS} == {
        "rows",
        "others",
    }
    assert all("it is made from store open," in found[name].why for name in below)
    asked = {
        name: re.findall(r"--store (\S+?)[`, ]", found[name].cure + " ")
        for name in {"open"} | below
    }
    assert {frozenset(stores) for stores in asked.values()} == {
        frozenset({"open"} | below)
    }
    assert found["open"].cure.startswith(
        "give it and last-store, kept, moved other names (then they start empty), or "
    )
    assert found["kept"].topic == "app-kept-changelog"


def test_other_windows_in_a_store_that_cannot_be_read_are_in_what_is_made_from_it_too() -> (
    None
):
    found = between(closed(SessionWindows(gap=MINUTE)), closed(TimeWindows(minutes=1)))
    assert (found["open"], found["moved"]) == (UNREADABLE, MIXED)


def test_of_an_old_description_the_stores_above_are_not_needed() -> None:
    builder = StreamsBuilder("app")
    closed(TimeWindows(minutes=1))(builder)
    drawn = orjson.loads(builder.build().describe("json"))
    for part in drawn["subtopologies"]:
        for store in part["stores"]:
            del store["stores_above"]
    old, same, new = (
        read_outline(orjson.dumps(drawn)),
        of(closed(TimeWindows(minutes=1))),
        of(closed(TimeWindows(minutes=2))),
    )
    assert old == same, (
        "no process takes an upgrade of coopstreams for another version of the program"
    )
    assert (
        next(
            change for change in changes(old, new) if change.name == "last-store"
        ).verdict
        is MIXED
    )


def test_the_result_of_a_join_is_made_from_the_table_and_the_records_that_wait_for_it_are_not() -> (
    None
):
    def program(topic: str) -> Program:
        def build(b: StreamsBuilder) -> None:
            rows = b.table(
                topic,
                key=serdes.text,
                value=serdes.text,
                store="rows",
                history=10 * MINUTE,
            )
            joined_ = text(b, "asking").join(
                rows, str.__add__, value=serdes.text, grace=MINUTE, name="waiting"
            )
            joined_.group_by_key().count(store="results")

        return build

    assert [
        between(program("one"), program("another"))[name]
        for name in ("rows", "waiting-Buffer", "results")
    ] == [
        MIXED,
        KEEPS,
        MIXED,
    ]


def test_the_past_of_a_store_that_had_it_in_its_rows_is_not_missed() -> None:
    builder = StreamsBuilder("app")
    builder.table(
        "in", key=serdes.text, value=serdes.text, store="rows", history=MINUTE
    ).to_stream().to("out")
    now = outline(builder.build())
    before = replace(now, stores={"rows": now.stores["rows"]})
    assert {change.name: change.verdict for change in changes(before, now)} == {
        "rows": KEEPS,
        "rows-history": Verdict.NEW,
        "in": KEEPS,
    }


def kept(
    history: timedelta | None, value: Any = serdes.text, topic: str = "in"
) -> Program:
    """A table whose rows are kept, with their past or without."""
    return lambda b: b.table(
        topic, key=serdes.text, value=value, history=history, store="rows"
    )


@pytest.mark.parametrize(("was", "now"), [(None, MINUTE), (MINUTE, None)])
def test_rows_with_versions_and_without_do_not_read_each_other_whatever_is_accepted(
    was: timedelta | None, now: timedelta | None
) -> None:
    found = {change.name: change for change in changes(of(kept(was)), of(kept(now)))}
    assert found["rows"].verdict is UNREADABLE
    assert found["rows"].cure == (
        "give it another name (then it starts empty), or have its rows made again: stop all instances, "
        "`coopstreams rebuild NEW --from source --store rows`, and accept the change"
    )


def test_a_past_that_was_left_when_a_table_had_none_is_not_taken_up_again() -> None:
    """Its versions are not in the rows of the version since, so it has a gap."""
    found = weighed(changes(of(kept(None)), of(kept(MINUTE))), lambda _: True)
    assert {
        change.name: change.verdict for change in found if change.what == "store"
    } == {
        "rows": UNREADABLE,
        "rows-history": MIXED,
    }


def test_the_cure_of_a_past_is_that_of_its_store() -> None:
    for program, verdict in (
        (kept(MINUTE, serdes.int64), UNREADABLE),
        (kept(MINUTE, topic="another"), MIXED),
    ):
        found = {
            change.name: change for change in changes(of(kept(MINUTE)), of(program))
        }
        assert found["rows"].verdict is found["rows-history"].verdict is verdict
        assert "rows-history" not in found["rows"].cure
        assert found["rows-history"].cure.endswith(
            "that of store rows, with which it is named and made again"
        )


def test_the_sides_of_a_join_of_streams_are_made_from_what_is_above_them_alone() -> (
    None
):
    def program(minutes: int) -> Program:
        def build(b: StreamsBuilder) -> None:
            counted = (
                text(b)
                .group_by_key()
                .windowed_by(TimeWindows(minutes=minutes))
                .count(store="counts")
            )
            told = counted.to_stream().map(
                lambda key, n: (key.key, str(n)), key=serdes.text, value=serdes.text
            )
            told.repartition(name="moved").left_join(
                text(b, "other"),
                lambda one, _: one,
                windows=JoinWindows(MINUTE),
                value=serdes.text,
                store="pairs",
            ).to("out")

        return build

    found = {
        name: verdict
        for name, verdict in between(program(1), program(2)).items()
        if "store" in name
    }
    assert found == {
        "pairs-this-join-store": MIXED,
        "pairs-outer-other-join-store": KEEPS,
        "pairs-left-shared-join-store": MIXED,
    }


def test_a_store_without_a_changelog_is_not_rebuilt() -> None:
    one, other = (
        of(closed(TimeWindows(minutes=minutes), logged=False)) for minutes in (1, 2)
    )
    found = {change.name: change.cure for change in changes(one, other)}
    for name in ("open", "kept"):
        assert "--store open" not in found[name]
        assert found[name].endswith(
            "`coopstreams rebuild NEW --from source --store last-store --store kept --store moved`, and accept the "
            "change, with other names for open, which no rebuild writes"
        )


def test_a_processor_makes_its_rows_from_the_stores_that_it_names() -> None:
    def program(topic: str) -> Program:
        def build(b: StreamsBuilder) -> None:
            rows = b.table(topic, key=serdes.text, value=serdes.text, store="first")
            rows.map_values(str.upper, value=serdes.text, store="rows")
            own = key_value_store("own", key=serdes.text, value=serdes.text)
            named = text(b, "asking").process(
                Passing,
                key=serdes.text,
                value=serdes.text,
                stores=[own, "rows"],
                by_key=False,
            )
            named.group_by_key().count(store="results")

        return build

    found = between(program("one"), program("another"))
    assert [found[name] for name in ("first", "rows", "own", "results")] == [MIXED] * 4
