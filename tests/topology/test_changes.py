"""Compatibility of two versions of a topology: laws over pairs of programs, and each
incompatible change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.testing.memory_sink import MemorySink
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.graph.changes import (
    TopologyChange,
    Verdict,
    changes,
    severity,
    weighed,
    word_of,
)
from coopstreams.topology.graph.outline import Outline, outline, read_outline
from coopstreams.topology.graph.topic_patterns import matched
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.suppression import until_time_limit
from coopstreams.topology.windows import SessionWindows, TimeWindows
from tests.topology.test_fingerprint import DIFFERENT, joined, text, windowed

Program = Callable[[StreamsBuilder], object]

KEEPS, NEW, EMPTY, ORPHANED, LOST, MIXED, UNREADABLE = Verdict
MINUTE = timedelta(minutes=1)


@cache
def of(
    program: Program, application: str = "app", optimization: str = "none"
) -> Outline:
    builder = StreamsBuilder(application)
    program(builder)
    return outline(builder.build().optimized(optimization))


def between(old: Program, new: Program) -> dict[str, Verdict]:
    """Return the verdict on each store, topic and position, by name."""
    return {change.name: change.verdict for change in changes(of(old), of(new))}


def counts(
    store: str | None = "counts", topic: str = "in", key: Any = None, **group: Any
) -> Program:
    """A count by the key, or with `key` behind a repartition topic."""

    def program(b: StreamsBuilder) -> None:
        stream = text(b, topic)
        grouped = (
            stream.group_by_key()
            if key is None
            else stream.group_by(lambda _, v: v, key=key, **group)
        )
        grouped.count(store=store).to_stream().to("out")

    return program


def both(*programs: Program) -> Program:
    return lambda b: [program(b) for program in programs]


def looking(b: StreamsBuilder) -> None:
    text(b, "before").peek(print).to("there")


def table(b: StreamsBuilder) -> None:
    b.table("in", key=serdes.text, value=serdes.text, store="rows")


ANY = st.sampled_from(
    [
        *DIFFERENT.values(),
        counts(key=serdes.text),
        counts(None),
        counts(None, key=serdes.text),
        both(looking, counts()),
    ]
)


@given(ANY)
def test_a_program_followed_by_itself_keeps_everything(program: Program) -> None:
    again = of.__wrapped__(program)
    found = changes(of(program), again)
    assert {change.verdict for change in found} <= {KEEPS}
    assert not any(change.why or change.cure for change in found)
    assert of(program) == again


@given(ANY, ANY)
def test_everything_that_either_version_has_is_told_of_once(
    one: Program, other: Program
) -> None:
    old, new = of(one), of(other)
    found = changes(old, new)
    names = [(change.what, change.name) for change in found]
    assert len(names) == len(set(names))
    renamed = {change.now for change in found if change.now}
    assert {name for what, name in names if what == "store"} == (
        old.stores.keys() | new.stores.keys()
    ) - renamed
    assert {
        name for what, name in names if what == "repartition topic"
    } == old.repartitions.keys()
    assert {name for what, name in names if what == "position"} >= old.sources
    assert all(change.cure for change in found if change.verdict.severity == 2)
    assert all(change.why for change in found if change.verdict.severity)


@given(ANY, ANY)
def test_where_nothing_is_in_any_topic_nothing_can_be_lost(
    one: Program, other: Program
) -> None:
    empty = weighed(changes(of(one), of(other)), lambda change: False)
    assert all(change.verdict.severity < 2 or change.topic is None for change in empty)


STEPS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda stream: stream.filter(lambda k, v: True),
    "map_values": lambda stream: stream.map_values(str.upper, value=serdes.text),
    "peek": lambda stream: stream.peek(print),
    "merge": lambda stream: stream.merge(stream.filter(lambda k, v: False)),
}


@pytest.mark.ci
@given(
    st.lists(st.sampled_from(sorted(STEPS))), st.lists(st.sampled_from(sorted(STEPS)))
)
def test_with_names_operators_may_come_and_go_in_front(
    before: list[str], after: list[str]
) -> None:
    def program(steps: list[str]) -> Program:
        def build(b: StreamsBuilder) -> None:
            stream: Any = text(b)
            for step in steps:
                stream = STEPS[step](stream)
            grouped = stream.group_by(lambda _, v: v, key=serdes.text, name="by-value")
            grouped.count(store="counts").to_stream().to("out")
            grouped.windowed_by(TimeWindows(minutes=1)).count(store="hourly")

        return build

    assert set(between(program(before), program(after)).values()) == {KEEPS}


def test_generated_names_shift_and_the_state_behind_them_is_lost_with_what_is_on_its_way() -> (
    None
):
    old, new = (
        counts(None, key=serdes.text),
        both(looking, counts(None, key=serdes.text)),
    )
    store = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    found = {change.name: change for change in changes(of(old), of(new))}
    assert {name: change.verdict for name, change in found.items()} == {
        store: LOST,
        f"app-{store}-repartition": LOST,
        "in": KEEPS,
        "before": NEW,
    }
    assert found[store].now == "KSTREAM-AGGREGATE-STATE-STORE-0000000005"
    assert found[store].cure == f'name it as it was: store="{store}"'
    cured = both(looking, counts(store, key=serdes.text))
    assert set(between(old, cured).values()) == {KEEPS, NEW}, (
        "the cure that is told is one"
    )


def test_a_generated_name_that_another_operator_has_now_is_not_the_same_store() -> None:
    old = both(counts(None, "a"), counts(None, "b"))
    new = both(counts(None, "b"), counts(None, "a"))
    assert between(old, new)["KSTREAM-AGGREGATE-STATE-STORE-0000000001"] is MIXED


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (DIFFERENT["an aggregate"], DIFFERENT["a count"], MIXED),
        (DIFFERENT["a reduce"], DIFFERENT["a count"], MIXED),
        (windowed(TimeWindows(minutes=1)), windowed(TimeWindows(minutes=2)), MIXED),
        (
            windowed(TimeWindows(minutes=2)),
            windowed(TimeWindows(minutes=2, advance=MINUTE)),
            MIXED,
        ),
        (
            windowed(TimeWindows(minutes=2)),
            windowed(TimeWindows(minutes=2, grace=MINUTE)),
            KEEPS,
        ),
        (
            windowed(SessionWindows(gap=MINUTE)),
            windowed(SessionWindows(gap=2 * MINUTE)),
            MIXED,
        ),
        (
            windowed(SessionWindows(gap=MINUTE)),
            windowed(TimeWindows(minutes=1)),
            UNREADABLE,
        ),
        (DIFFERENT["a count"], windowed(TimeWindows(minutes=1)), UNREADABLE),
        (DIFFERENT["windows of a user"], DIFFERENT["longer windows of a user"], MIXED),
        (DIFFERENT["windows of a zone"], DIFFERENT["windows of another zone"], MIXED),
        (counts(), counts(topic="other"), MIXED),
        (
            counts(),
            lambda b: (
                b.stream(["in", "other"], key=serdes.text, value=serdes.text)
                .group_by_key()
                .count(store="counts")
            ),
            KEEPS,
        ),
        (counts(key=serdes.text), counts(key=serdes.json), MIXED),
        (counts(), counts("numbers"), LOST),
        (counts(), both(looking), ORPHANED),
        (counts(), both(looking, counts()), KEEPS),
    ],
)
def test_a_store(old: Program, new: Program, verdict: Verdict) -> None:
    assert between(old, new)["counts"] is verdict


def test_a_store_whose_value_serde_is_another_cannot_be_read() -> None:
    def folded(value: Any) -> Program:
        return lambda b: (
            text(b)
            .group_by_key()
            .aggregate(int, lambda k, v, n: n + 1, value=value, store="counts")
        )

    assert between(folded(serdes.int64), folded(serdes.json))["counts"] is UNREADABLE


def test_a_new_store_begins_empty_where_its_source_was_read_before_and_else_with_its_source() -> (
    None
):
    assert between(counts(), both(counts(), counts("more")))["more"] is EMPTY
    assert between(counts(), both(counts(), counts("more", "other")))["more"] is NEW
    assert (
        between(both(looking), both(looking, counts("more", "before")))["more"] is EMPTY
    )


def test_the_sides_of_a_join_are_not_swapped() -> None:
    def swapped(b: StreamsBuilder) -> None:
        text(b, "other").join(
            text(b),
            str.__add__,
            windows=JoinWindows(MINUTE),
            value=serdes.text,
            store="pairs",
        ).to("out")

    def straight(b: StreamsBuilder) -> None:
        text(b).join(
            text(b, "other"),
            str.__add__,
            windows=JoinWindows(MINUTE),
            value=serdes.text,
            store="pairs",
        ).to("out")

    found = between(straight, swapped)
    assert [found[f"pairs-{side}-join-store"] for side in ("this", "other")] == [
        MIXED,
        MIXED,
    ]


def test_a_join_may_look_further() -> None:
    assert set(
        between(joined(JoinWindows(MINUTE)), joined(JoinWindows(2 * MINUTE))).values()
    ) == {KEEPS}


def test_a_table_may_come_to_be_restored_from_its_topic_but_not_back() -> None:
    own, reused = of(table), of(table, optimization="all")
    (there, *_), (back, *_) = changes(own, reused), changes(reused, own)
    assert (there.verdict, back.verdict, back.topic) == (KEEPS, LOST, "in")
    assert "reuse.ktable.source.topics" in back.cure


def test_a_join_of_a_stream_with_itself_misses_pairs_once_each_side_has_a_store_again() -> (
    None
):
    def pairs(b: StreamsBuilder) -> None:
        one = text(b)
        one.join(
            one,
            str.__add__,
            windows=JoinWindows(MINUTE),
            value=serdes.text,
            store="pairs",
        ).to("out")

    two, one = of(pairs), of(pairs, optimization="single.store.self.join")
    there = {change.name: change for change in changes(two, one)}
    assert (
        there["pairs-this-join-store"].verdict,
        there["pairs-other-join-store"].verdict,
    ) == (KEEPS, ORPHANED)
    found = changes(one, two)
    back = {change.name: change for change in found}["pairs-other-join-store"]
    assert (back.verdict, back.topic) == (LOST, "app-pairs-this-join-store-changelog")
    assert "topology.optimization=single.store.self.join" in back.cure
    assert severity(weighed(found, lambda _: True)) == 2
    assert severity(weighed(found, lambda _: False)) == 0, "there were no records yet"


def test_a_store_without_a_changelog_survives_only_where_it_is() -> None:
    def kept(logged: bool) -> Program:
        return lambda b: (
            text(b).group_by_key().count(store=Materialized("counts", logged=logged))
        )

    assert between(kept(False), kept(False))["counts"] is KEEPS
    assert between(kept(False), both(looking, kept(False)))["counts"] is EMPTY, (
        "local state lies in folders with numbers of sub-topologies"
    )
    assert between(kept(True), kept(False))["counts"] is EMPTY
    assert between(kept(False), kept(True))["counts"] is EMPTY
    found = changes(of(kept(False)), of(kept(True)))
    again = {
        change.name: change
        for change in weighed(
            found, lambda change: change.topic == "app-counts-changelog"
        )
    }
    assert again["counts"].verdict is MIXED, (
        "an earlier version had a changelog, which misses what came since"
    )

    def rows(logged: bool) -> Program:
        return lambda b: b.table(
            "in",
            key=serdes.text,
            value=serdes.text,
            store=Materialized("rows", logged=logged),
        )

    (restored, _) = changes(of(rows(False)), of(rows(True), optimization="all"))
    assert (restored.verdict, restored.topic) == (KEEPS, None), (
        "its topic is its changelog"
    )


def test_subscribers_that_one_row_had_are_not_read_and_nothing_but_a_new_beginning_makes_them_again() -> (
    None
):
    """Before 27 November 2026 a foreign-key join kept all subscribers of a right row in
    one row.
    """
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.text)
        for topic in ("left", "right")
    )
    left.join(
        right, lambda one, _: one, foreign_key=str, value=serdes.text, name="named"
    )
    described = builder.build().describe("json")
    before = re.sub(
        '"suffix_bytes": ?8',
        '"suffix_bytes":0',
        described.replace('"subscribers"', '"key_value"'),
    )
    (change,) = (
        each
        for each in changes(read_outline(before), read_outline(described))
        if each.verdict is not KEEPS
    )
    assert (change.name, change.verdict) == ("named-subscription-store", UNREADABLE)
    assert "`coopstreams reset`" in change.cure
    assert "rebuild" not in change.cure


def test_a_suppression_reads_what_it_has_held() -> None:
    def held(value: Any) -> Program:
        def program(b: StreamsBuilder) -> None:
            sizes = (
                text(b)
                .group_by_key()
                .count(store="counts")
                .map_values(lambda n: n, value=value)
            )
            sizes.suppress(until_time_limit(MINUTE), name="later").to_stream().to("out")

        return program

    assert between(held(serdes.int64), held(serdes.int64))["later-store"] is KEEPS
    assert (
        between(held(serdes.int64), held(serdes.float64))["later-store"] is UNREADABLE
    )


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_a_left_join_of_tables_whose_sides_change_places_has_rows_for_other_keys(
    kind: str,
) -> None:
    def program(first: str, second: str) -> Program:
        def build(b: StreamsBuilder) -> None:
            one, two = (
                b.table(name, key=serdes.text, value=serdes.text, store=name)
                for name in (first, second)
            )
            getattr(one, kind)(
                two, lambda a, b: [a, b], value=serdes.json, store="both"
            )

        return build

    found = {
        change.name: change
        for change in changes(of(program("a", "b")), of(program("b", "a")))
    }
    assert found["a"].verdict == found["b"].verdict == KEEPS
    assert found["both"].verdict == (MIXED if kind == "left_join" else KEEPS)
    assert (
        kind != "left_join"
        or "a row for each row of b, and had one for each row of a" in found["both"].why
    )


def test_a_foreign_key_join_that_becomes_a_left_join_lacks_the_rows_without_a_match() -> (
    None
):
    def owners(left: bool) -> Program:
        def program(b: StreamsBuilder) -> None:
            orders, people = (
                b.table(name, key=serdes.text, value=serdes.text)
                for name in ("orders", "people")
            )
            join = orders.left_join if left else orders.join
            join(
                people,
                lambda one, _: one,
                foreign_key=str,
                value=serdes.text,
                name="owner",
                store="owned",
            )

        return program

    for left in (False, True):
        assert between(owners(left), owners(left))["owned"] is KEEPS
        assert between(owners(left), owners(not left))["owned"] is MIXED


def test_rows_that_come_to_expire_are_restored_once_and_another_ttl_changes_nothing() -> (
    None
):
    def kept(ttl: timedelta | None, *, logged: bool = True) -> Program:
        return lambda b: (
            text(b)
            .group_by_key()
            .count(store=Materialized("counts", ttl=ttl, logged=logged))
        )

    (to, *_), (fro, *_), (longer, *_) = (
        changes(of(kept(one)), of(kept(other)))
        for one, other in [(None, MINUTE), (MINUTE, None), (MINUTE, 2 * MINUTE)]
    )
    assert (to.verdict, fro.verdict, longer.verdict, longer.why) == (
        KEEPS,
        KEEPS,
        KEEPS,
        "",
    )
    assert to.why == "its rows expire now: it is restored from its changelog, once"
    assert (
        between(kept(None, logged=False), kept(MINUTE, logged=False))["counts"] is EMPTY
    )


def test_a_repartition_topic_of_another_name_loses_what_is_in_it_if_anything_is() -> (
    None
):
    found = changes(
        of(counts(key=serdes.text, name="one")), of(counts(key=serdes.text, name="two"))
    )
    lost = next(change for change in found if change.what == "repartition topic")
    assert (lost.name, lost.verdict) == ("app-one-repartition", LOST)
    assert 'name="one"' in lost.cure
    drained = next(
        change
        for change in weighed(found, lambda _: False)
        if change.what == "repartition topic"
    )
    assert (drained.verdict, drained.cure) == (KEEPS, "")


def test_the_cure_for_a_topic_in_front_of_a_join_of_streams_is_one() -> None:
    def joining(*, longer: bool, cure: str | None = None) -> Program:
        def program(b: StreamsBuilder) -> None:
            source = text(b).peek(lambda _, value: None) if longer else text(b)
            changed = source.select_key(lambda _, value: value, key=serdes.text)
            moved = changed if cure is None else changed.repartition(name=cure)
            near = JoinWindows(minutes=1)
            moved.join(
                text(b, "others"),
                str.__add__,
                windows=near,
                value=serdes.text,
                store="s",
            ).to("out")

        return program

    found = changes(of(joining(longer=False)), of(joining(longer=True)))
    [lost] = [change for change in found if change.verdict is LOST]
    (name,) = re.findall(r'\.repartition\(name="(.*?)"\)', lost.cure)
    assert set(
        between(joining(longer=False), joining(longer=True, cure=name)).values()
    ) == {KEEPS}


@pytest.mark.parametrize("name", ["by-item", None])
def test_the_topics_of_a_join_by_foreign_key_are_kept_by_the_name_of_the_join(
    name: str | None,
) -> None:
    def joining(name: str | None) -> Program:
        def program(b: StreamsBuilder) -> None:
            rows, others = (
                b.table(topic, key=serdes.text, value=serdes.text, store=topic)
                for topic in ("in", "others")
            )
            rows.join(
                others,
                lambda row, _: row,
                foreign_key=str,
                value=serdes.text,
                name=name,
            ).to_stream().to("out")

        return program

    lost = [
        change
        for change in changes(of(joining(name)), of(joining("other")))
        if change.verdict is LOST
    ]
    assert {change.what for change in lost} == {"repartition topic", "store"}
    assert all(
        "keep the store= or name= of its operator; if it had none" in change.cure
        for change in lost
    )
    assert not any('name="' in change.cure for change in lost)


def test_a_repartition_topic_goes_with_what_was_made_from_it() -> None:
    assert (
        between(counts(key=serdes.text, name="one"), looking)["app-one-repartition"]
        is ORPHANED
    )
    assert (
        between(counts(key=serdes.text, name="one"), counts())["app-one-repartition"]
        is LOST
    ), "the store is still there"


@pytest.mark.parametrize(
    "behind",
    [
        lambda stream, name: stream.repartition(name=name).to(lambda _, value: value),
        lambda stream, name: stream.repartition(name=name).foreach(print),
        lambda stream, name: (
            stream.repartition(name=name).repartition(name="next").foreach(print)
        ),
        lambda stream, name: stream.to_sink(MemorySink(), name=name),
    ],
)
def test_a_repartition_topic_of_another_name_is_lost_whatever_its_records_go_to(
    behind: Callable[[Any, str], object],
) -> None:
    found = between(lambda b: behind(text(b), "one"), lambda b: behind(text(b), "two"))
    assert found["app-one-repartition"] is LOST


def test_a_repartition_topic_of_another_width_serde_or_source() -> None:
    def by_value(
        partitions: int | None, topic: str = "in", value: Any = serdes.text
    ) -> Program:
        def program(b: StreamsBuilder) -> None:
            stream = text(b, topic).map_values(lambda v: v, value=value)
            stream.repartition(name="wide", partitions=partitions).to("out")

        return program

    assert between(by_value(4), by_value(4))["app-wide-repartition"] is KEEPS
    assert between(by_value(4), by_value(8))["app-wide-repartition"] is UNREADABLE
    assert (
        between(by_value(4), by_value(4, value=serdes.json))["app-wide-repartition"]
        is UNREADABLE
    )
    assert between(by_value(4), by_value(4, "other"))["app-wide-repartition"] is MIXED


def test_positions_of_topics_that_a_pattern_reads_too() -> None:
    def pattern(b: StreamsBuilder) -> None:
        b.stream(
            re.compile("in.*"), key=serdes.text, value=serdes.text
        ).group_by_key().count(store="counts").to_stream().to("out")

    assert between(counts(), pattern) == {"counts": KEEPS, "in": KEEPS}
    assert between(pattern, counts()) == {"counts": KEEPS, "in.*": KEEPS}
    assert between(pattern, counts(topic="other"))["counts"] is MIXED
    assert between(counts(), looking)["in"] is ORPHANED


def test_a_pattern_matches_with_its_flags() -> None:
    def pattern(b: StreamsBuilder) -> None:
        b.stream(
            re.compile("IN.*", re.IGNORECASE), key=serdes.text, value=serdes.text
        ).group_by_key().count(store="counts").to_stream().to("out")

    assert between(counts(), pattern) == {"counts": KEEPS, "in": KEEPS}
    assert between(pattern, counts()) == {"counts": KEEPS, "IN.*": KEEPS}
    assert of(pattern).reads("in-a")


def test_topics_that_match_a_pattern_now_are_no_change() -> None:
    builder = StreamsBuilder("app")
    builder.stream(
        re.compile("in.*"), key=serdes.text, value=serdes.text
    ).group_by_key().count(store="counts")
    built = builder.build()
    assert outline(matched(built, [])) == outline(matched(built, ["in-a", "in-b"]))


def test_another_application_id_is_another_application() -> None:
    (found,) = changes(of(counts()), of(counts(), "other"))
    assert (found.what, found.verdict) == ("application", EMPTY)


def test_a_program_with_nothing_of_the_one_before_is_another_one_under_its_id() -> None:
    def foreign(b: StreamsBuilder) -> None:
        text(b, "elsewhere").group_by_key().count(store="theirs")

    found = {
        (change.what, change.name): change
        for change in changes(of(counts()), of(foreign))
    }
    assert found["application", "app"].verdict is MIXED
    assert "an id of its own" in found["application", "app"].cure
    for related in (
        both(counts("more"), foreign),
        both(counts(), looking),
        counts("theirs"),
    ):
        assert ("application", "app") not in {
            (change.what, change.name) for change in changes(of(counts()), of(related))
        }


def test_an_old_changelog_is_not_taken_for_the_state_of_a_store_that_was_left_out() -> (
    None
):
    found = changes(of(counts()), of(both(counts(), counts("more"))))
    weighed_ = {
        change.name: change
        for change in weighed(
            found, lambda change: change.topic == "app-more-changelog"
        )
    }
    assert weighed_["more"].verdict is MIXED
    assert "delete app-more-changelog" in weighed_["more"].cure


def _is_of(topics: set[str], change: TopologyChange) -> bool:
    return change.topic in topics


def test_a_store_that_gets_a_former_name_back_is_not_said_to_start_empty() -> None:
    found = changes(of(counts("tried")), of(counts("counts")))
    first, again = (
        next(change for change in weighed(found, partial(_is_of, full)) if change.now)
        for full in (
            {"app-tried-changelog"},
            {"app-tried-changelog", "app-counts-changelog"},
        )
    )
    assert (first.verdict, again.verdict) == (LOST, LOST)
    assert first.why == 'the same store is named "counts" now, which starts empty'
    assert (
        "app-counts-changelog has rows of an earlier version, and misses what was processed since"
        in again.why
    )
    assert (
        again.cure
        == f"{first.cure}; or delete app-counts-changelog, and it starts empty"
    )


@given(ANY, ANY, ANY)
def test_a_change_is_accepted_by_its_own_word_alone(
    one: Program, other: Program, third: Program
) -> None:
    def told(found: list[TopologyChange]) -> set[tuple[str, str, Verdict, str]]:
        return {
            (change.what, change.name, change.verdict, change.why)
            for change in found
            if change.verdict.severity
        }

    a, b = changes(of(one), of(other)), changes(of(one), of(third))
    assert (word_of(a) == word_of(b)) == (told(a) == told(b))


def test_a_second_change_of_the_same_windows_has_another_word() -> None:
    one, two, four = (
        of(windowed(SessionWindows(gap=minutes * MINUTE))) for minutes in (1, 2, 4)
    )
    assert (
        len(
            {
                word_of(changes(old, new))
                for old, new in ((one, two), (two, four), (two, one))
            }
        )
        == 3
    )


def test_the_worst_counts() -> None:
    assert [
        severity(changes(of(counts()), of(new)))
        for new in (counts(), both(counts(), counts("more")), counts("numbers"))
    ] == [0, 1, 2]
