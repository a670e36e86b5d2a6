"""Partition counts follow from the topology and the existing topics; conflicts are
errors before anything runs.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.errors import TopologyError, UnknownTopicError
from coopstreams.topology.graph.partitions import (
    check_names,
    check_partitions,
    grown,
    unchecked,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.processors import Processor
from coopstreams.topology.records import Record
from coopstreams.topology.windows import TimeWindows
from tests.topology.test_subtopologies import built


def text(builder: StreamsBuilder, *topics: str) -> Any:
    return builder.stream(topics, key=serdes.text, value=serdes.text)


def joined(
    builder: StreamsBuilder, spread: Callable[[Any], Any] = lambda orders: orders
) -> None:
    customers = builder.table(
        "customers", key=serdes.text, value=serdes.text, store="c"
    )
    spread(text(builder, "orders")).join(customers, lambda order, customer: order)


WORDS = built(
    lambda builder: (
        text(builder, "lines")
        .group_by(lambda k, v: v, key=serdes.text)
        .count(store="n")
    )
)


@given(st.integers(1, 1000))
def test_internal_topics_have_as_many_partitions_as_the_topics_above(
    partitions: int,
) -> None:
    resolved = check_partitions(WORDS, {"lines": partitions})
    assert resolved.partitions == {
        "lines": partitions,
        "app-n-repartition": partitions,
        "app-n-changelog": partitions,
    }
    assert resolved.tasks == (partitions, partitions)
    assert [(plan.name, plan.partitions) for plan in resolved.missing] == [
        ("app-n-repartition", partitions),
        ("app-n-changelog", partitions),
    ]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_a_repartition_takes_the_largest_count_above_it_through_any_chain(
    counts: list[int],
) -> None:
    topics = [f"t{number}" for number in range(len(counts))]

    def program(builder: StreamsBuilder) -> None:
        text(builder, *topics).repartition(name="a").repartition(
            name="b"
        ).group_by_key().count(store="n")

    resolved = check_partitions(built(program), dict(zip(topics, counts, strict=True)))
    assert {
        resolved.partitions[f"app-{name}"]
        for name in ("a-repartition", "b-repartition", "n-changelog")
    } == {max(counts)}


def test_a_count_given_by_the_user_counts_downstream_too() -> None:
    topology = built(
        lambda builder: (
            text(builder, "a")
            .repartition(name="wide", partitions=12)
            .repartition(name="next")
        )
    )
    assert check_partitions(topology, {"a": 2}).partitions == {
        "a": 2,
        "app-wide-repartition": 12,
        "app-next-repartition": 12,
    }


def test_a_repartition_that_is_joined_follows_the_topic_beside_it() -> None:
    topology = built(
        lambda builder: joined(
            builder, lambda orders: orders.select_key(lambda k, v: v, key=serdes.text)
        )
    )
    counts = check_partitions(topology, {"orders": 6, "customers": 4}).partitions
    assert counts["app-KSTREAM-KEY-SELECT-0000000003-repartition"] == 4
    assert counts["app-c-changelog"] == 4


def test_two_repartitions_that_are_joined_take_the_larger_count() -> None:
    def program(builder: StreamsBuilder) -> None:
        counts = (
            text(builder, "a")
            .group_by(lambda k, v: v, key=serdes.text, name="a")
            .count(store="n")
        )
        text(builder, "b").select_key(lambda k, v: v).join(
            counts, lambda v, n: n, name="b"
        )

    resolved = check_partitions(built(program), {"a": 3, "b": 5})
    assert (
        resolved.partitions["app-a-repartition"]
        == resolved.partitions["app-b-repartition"]
        == 5
    )


def test_counts_that_differ_under_a_join_are_an_error_that_names_it() -> None:
    message = (
        'join at "orders → join(customers)": "orders" has 6 partitions, "customers" has 4. Add .repartition() before '
        "the join, or align the topics."
    )
    with pytest.raises(TopologyError) as caught:
        check_partitions(built(joined), {"orders": 6, "customers": 4})
    assert str(caught.value) == message


def test_the_cure_that_the_error_names_works() -> None:
    topology = built(
        lambda builder: joined(
            builder, lambda orders: orders.repartition(name="orders")
        )
    )
    assert (
        check_partitions(topology, {"orders": 6, "customers": 4}).partitions[
            "app-orders-repartition"
        ]
        == 4
    )


def test_a_count_given_by_the_user_that_does_not_fit_the_join_is_an_error() -> None:
    topology = built(
        lambda builder: joined(
            builder, lambda orders: orders.repartition(name="orders", partitions=6)
        )
    )
    with pytest.raises(
        TopologyError,
        match='"app-orders-repartition" has 6 partitions, "customers" has 4',
    ):
        check_partitions(topology, {"orders": 6, "customers": 4})


def test_tables_of_several_topics_need_equal_counts() -> None:
    topology = built(
        lambda builder: text(builder, "a", "b").group_by_key().count(store="n")
    )
    assert check_partitions(topology, {"a": 2, "b": 2}).tasks == (2,)
    with pytest.raises(
        TopologyError,
        match=r'table at "a, b → n": "a" has 2 partitions, "b" has 3\. Add \.repartition\(\) before the table',
    ):
        check_partitions(topology, {"a": 2, "b": 3})


def test_streams_that_are_only_merged_may_differ() -> None:
    topology = built(
        lambda builder: text(builder, "a").merge(text(builder, "b")).to("x")
    )
    assert check_partitions(topology, {"a": 2, "b": 3}).tasks == (3,)


def test_topics_that_do_not_exist_are_listed_with_names_that_nearly_fit() -> None:
    with pytest.raises(UnknownTopicError) as caught:
        check_partitions(built(joined), {"order": 6, "unrelated": 1})
    assert str(caught.value) == (
        'there is no topic "customers"; there is no topic "orders" (did you mean "order"?). Create it, or correct the '
        "name in the topology."
    )


def test_internal_topics_of_another_count_are_an_error_with_a_cure() -> None:
    with pytest.raises(
        TopologyError,
        match=r'"app-n-repartition" has 4 partitions, the topology needs 6.* Stop all instances and begin anew with '
        r"`coopstreams reset`",
    ):
        check_partitions(
            WORDS, {"lines": 6, "app-n-repartition": 4, "app-n-changelog": 6}
        )
    with pytest.raises(TopologyError, match='"app-n-changelog" has 4 partitions'):
        check_partitions(WORDS, {"lines": 6, "app-n-changelog": 4})


def cogrouped(
    *, new_keys: bool = False, windows: TimeWindows | None = None
) -> Topology:
    def program(builder: StreamsBuilder) -> None:
        other = text(builder, "more")
        group = (
            other.group_by(lambda k, v: v, key=serdes.text)
            if new_keys
            else other.group_by_key()
        )
        both = (
            text(builder, "some")
            .group_by_key()
            .cogroup(lambda k, v, n: n + 1)
            .cogroup(group, lambda k, v, n: n + 1)
        )
        (both if windows is None else both.windowed_by(windows)).aggregate(
            int, value=serdes.int64, store="n"
        )

    return built(program)


@pytest.mark.parametrize("windows", [None, TimeWindows(hours=1)])
def test_streams_that_are_cogrouped_need_equal_counts(
    windows: TimeWindows | None,
) -> None:
    with pytest.raises(
        TopologyError,
        match=r'table at "some, more → n": "some" has 4 partitions, "more" has 6.',
    ):
        check_partitions(cogrouped(windows=windows), {"some": 4, "more": 6})
    behind = check_partitions(
        cogrouped(new_keys=True, windows=windows), {"some": 4, "more": 6}
    )
    assert (
        behind.partitions["app-n-1-repartition"],
        behind.partitions["app-n-changelog"],
    ) == (4, 4)


def test_a_kept_view_of_several_topics_needs_equal_counts() -> None:
    topology = built(
        lambda builder: (
            text(builder, "a", "b").to_table().filter(lambda k, v: True, store="kept")
        )
    )
    with pytest.raises(
        TopologyError, match=r'table at "a, b → kept": "a" has 4 partitions, "b" has 6.'
    ):
        check_partitions(topology, {"a": 4, "b": 6})


class Looking(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        pass


def test_a_processor_by_key_needs_as_many_partitions_as_the_table_that_it_looks_into() -> (
    None
):
    def program(builder: StreamsBuilder, *, by_key: bool = True) -> None:
        builder.table("rows", key=serdes.text, value=serdes.text, store="rows")
        text(builder, "a").process(Looking, stores=["rows"], by_key=by_key)

    with pytest.raises(
        TopologyError,
        match=r'process at "rows, a → rows": "rows" has 6 partitions, "a" has 4.',
    ):
        check_partitions(built(program), {"rows": 6, "a": 4})
    assert check_partitions(
        built(lambda builder: program(builder, by_key=False)), {"rows": 6, "a": 4}
    ).tasks == (6,)


def test_processors_of_different_topics_may_look_into_one_global_table() -> None:
    def program(builder: StreamsBuilder) -> None:
        builder.global_table("rows", key=serdes.text, value=serdes.text, store="rows")
        for topic in ("a", "b"):
            text(builder, topic).process(Looking, stores=["rows"], by_key=True)

    assert check_partitions(built(program), {"rows": 1, "a": 4, "b": 6}).tasks == (4, 6)


def test_a_source_topic_that_grows_is_told_with_what_the_next_start_does() -> None:
    counts = {"lines": 1, "app-n-repartition": 1, "app-n-changelog": 1}
    assert grown(WORDS, counts, {**counts, "other": 5}) == {}
    (told,) = grown(WORDS, counts, {**counts, "lines": 3}).values()
    assert told.startswith(
        '"lines" has 3 partitions, and had 1 when the application looked: records in the new ones'
    )
    assert (
        'No instance would start again: the internal topic "app-n-repartition" has 1 partitions, the topology'
        in told
    )
    assert 'needs 3, as many as "lines" has' in told
    passed_on = built(lambda builder: text(builder, "lines").to("out"))
    (told,) = grown(passed_on, {"lines": 1}, {"lines": 3, "out": 1}).values()
    assert "Stop all instances, then start them" in told
    dealt = built(
        lambda builder: builder.stream(
            "lines", key=serdes.text, value=serdes.text, order="none"
        ).to("out")
    )
    assert grown(dealt, {"lines": 1}, {"lines": 3, "out": 1}) == {}


def test_a_repartition_topic_that_grows_is_told() -> None:
    counts = {"lines": 1, "app-n-repartition": 1, "app-n-changelog": 1}
    (told,) = grown(
        WORDS, counts, {**counts, "app-n-repartition": 3, "app-n-changelog": 3}
    ).values()
    assert told.startswith('"app-n-repartition" has 3 partitions, and had 1')
    assert "No instance would start again" in told


def test_what_follows_from_a_topic_that_grows_depends_on_what_is_kept_of_it() -> None:
    def program(builder: StreamsBuilder) -> None:
        builder.global_table("names", key=serdes.text, value=serdes.text)
        text(builder, "clicks").group_by_key().count(
            store=Materialized("clicked", logged=False)
        )
        text(builder, "views").group_by_key().count(
            store=Materialized("viewed", logged=False, store_type="in_memory")
        )
        builder.table("pages", key=serdes.text, value=serdes.text, store="pages")

    topology = built(program).optimized("all")
    assert unchecked(topology) == {"clicked": ("clicks",), "pages": ("pages",)}
    counts = dict.fromkeys(topology.source_topics, 1)
    told = grown(topology, counts, dict.fromkeys(counts, 2))
    assert "they begin in the new partitions at their beginning" in told["names"]
    assert (
        "they begin in the new partitions where auto.offset.reset says" in told["views"]
    )
    for topic, store in (("clicks", "clicked"), ("pages", "pages")):
        assert (
            f"No instance would start again: rows of store {store} are in other partitions"
            in told[topic]
        )


def test_internal_topics_that_fit_are_not_made_again() -> None:
    resolved = check_partitions(WORDS, {"lines": 6, "app-n-changelog": 6})
    assert [plan.name for plan in resolved.missing] == ["app-n-repartition"]


def test_no_internal_topic_is_cut_by_the_age_or_the_size_of_its_records() -> None:
    def program(builder: StreamsBuilder) -> None:
        group = text(builder, "a").group_by(lambda k, v: v, key=serdes.text)
        group.count(store="n")
        group.windowed_by(TimeWindows(hours=1)).count(
            store="hourly", retention=timedelta(hours=2)
        )

    configs = {
        plan.name: plan.config
        for plan in check_partitions(built(program), {"a": 1}).internal
    }
    created = {"message.timestamp.type": "CreateTime"}
    assert configs == {
        "app-n-repartition": {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "segment.bytes": "52428800",
            **created,
        },
        "app-n-changelog": {"cleanup.policy": "compact", **created},
        "app-hourly-changelog": {
            "cleanup.policy": "compact,delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            **created,
        },
    }


def test_internal_topics_of_another_version_are_told() -> None:
    counts = {
        "lines": 1,
        "app-n-changelog": 1,
        "app-old-changelog": 1,
        "app-KSTREAM-X-repartition": 1,
        "apple-n-changelog": 1,
        "app-data": 1,
    }
    assert check_partitions(WORDS, counts).orphans == (
        "app-KSTREAM-X-repartition",
        "app-old-changelog",
    )


def test_names_that_somebody_gave_pass() -> None:
    check_names(WORDS)


def test_generated_names_of_internal_topics_are_told_with_the_cure() -> None:
    unnamed = built(
        lambda builder: (
            text(builder, "lines").group_by(lambda k, v: v, key=serdes.text).count()
        )
    )
    with pytest.raises(
        TopologyError,
        match=r"app-KSTREAM-AGGREGATE-STATE-STORE-\d{10}-repartition.*-changelog.*store=",
    ):
        check_names(unnamed)


def test_the_generated_names_of_tables_and_cogroups_are_told_too() -> None:
    def table(builder: StreamsBuilder) -> None:
        rows = builder.table("rows", key=serdes.text, value=serdes.text)
        text(builder, "a").join(rows, lambda a, row: a)

    def cogroup(builder: StreamsBuilder) -> None:
        group = text(builder, "a").group_by(lambda k, v: v, key=serdes.text)
        group.cogroup(lambda k, v, n: n + 1).aggregate(int, value=serdes.int64)

    with pytest.raises(
        TopologyError, match=r"app-rows-STATE-STORE-0000000000-changelog"
    ):
        check_names(built(table))
    with pytest.raises(
        TopologyError,
        match=r"STATE-STORE-\d{10}-repartition, app-COGROUPKSTREAM-.*-changelog",
    ):
        check_names(built(cogroup))
    check_names(built(joined))
