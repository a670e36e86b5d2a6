"""`distinct`: the first record of each key, or of each id of a key, within a time."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import StreamsBuilder, Topology, field, serdes
from coopstreams.topology.errors import ProcessingError, TopologyError
from tests.durations import ms
from tests.topology.operators.results import Event, outputs, results

Id: TypeAlias = int | str | None


@cache
def topology(by: bool, rekeyed: bool = False) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    if rekeyed:
        stream = stream.select_key(lambda _, value: value["key"], key=serdes.text)
    distinct: Any = (
        stream.distinct(ms(10), by="id", store="seen")
        if by
        else stream.distinct(ms(10), store="seen")
    )
    distinct.to("out")
    return builder.build()


def passed(by: bool, *records: tuple[str | None, Any, int]) -> list[Any]:
    events = [("in", key, {"id": id_, "at": at}, at) for key, id_, at in records]
    found = outputs(topology(by), *events)
    return [(key, value["id"], value["at"]) for key, value, _ in found]


def test_the_first_record_of_a_key_passes_and_the_next_when_the_time_is_over() -> None:
    assert passed(
        False, ("a", 1, 0), ("a", 2, 9), ("b", 3, 9), ("a", 4, 10), ("a", 5, 19)
    ) == [("a", 1, 0), ("b", 3, 9), ("a", 4, 10)]


def test_an_earlier_record_that_comes_later_is_a_duplicate() -> None:
    assert passed(False, ("a", 1, 9), ("a", 2, 0)) == [("a", 1, 9)]


def test_ids_are_those_of_their_key() -> None:
    assert passed(
        True,
        ("a", 1, 0),
        ("a", "1", 1),
        ("b", 1, 2),
        ("a", 1, 9),
        ("a", None, 9),
        ("a", None, 9),
        ("a", 1, 10),
    ) == [
        ("a", 1, 0),
        ("a", "1", 1),
        ("b", 1, 2),
        ("a", None, 9),
        ("a", None, 9),
        ("a", 1, 10),
    ]


def test_a_record_without_a_key_does_not_pass() -> None:
    assert passed(False, (None, 1, 0)) == passed(True, (None, 1, 0)) == []


def test_ids_that_are_over_are_forgotten() -> None:
    events: list[Event] = [("in", "a", {"id": at}, 5 * at) for at in range(30)]
    _, stores = results(topology(True), events, ["seen"])
    (row,) = stores["seen"]
    assert row.value == {at: 5 * at for at in range(26, 30)}


RECORDS = st.lists(
    st.tuples(
        st.just("in"),
        st.sampled_from("abcd"),
        st.fixed_dictionaries(
            {"id": st.sampled_from([1, 2, "x", None]), "key": st.sampled_from("ab")}
        ),
        st.integers(0, 60),
    ),
    max_size=25,
)


@pytest.mark.parametrize("by", [False, True])
@settings(max_examples=25, deadline=None)
@given(RECORDS, st.sampled_from([1, 3]))
def test_what_passes_does_not_depend_on_ranges_and_commits(
    by: bool, records: list[Event], every: int
) -> None:
    expected = results(topology(by), records, [])[0]
    for ranges in (2, 7):
        assert results(topology(by), records, [], ranges)[0] == expected
    assert results(topology(by), records, [], 3, commit_every=every)[0] == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 4)), max_size=20))
def test_in_order_of_time_a_record_passes_if_none_of_its_id_did_for_that_long(
    steps: list[tuple[int, int]],
) -> None:
    now, records = 0, []
    for id_, step in steps:
        now += step
        records.append(("a", id_, now))
    latest: dict[Id, int] = {}
    expected = []
    for key, id_, at in records:
        if at >= latest.get(id_, -10) + 10:
            latest[id_] = at
            expected.append((key, id_, at))
    assert passed(True, *records) == expected


def test_new_keys_go_through_a_topic_and_kept_keys_need_none_behind_it() -> None:
    names = [topic.name for topic in topology(False, True).internal_topics]
    assert any("repartition" in name for name in names)
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.distinct(ms(10), by=field("id")).group_by_key().count()
    assert len(builder.build().subtopologies) == 1


def test_an_id_is_a_number_or_a_text() -> None:
    with pytest.raises(
        ProcessingError, match=r"distinct\(by=\) keeps a number, a text"
    ):
        passed(True, ("a", [1], 0))


def test_what_has_no_ids_is_refused_while_building() -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
    wrong: Any = 3
    with pytest.raises(
        TopologyError, match=r"distinct\(by=\) takes the name of a part"
    ):
        stream.distinct(ms(10), by=wrong)
