"""`stream(re.compile(…))`: every topic with a matching name, present or future."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import KStream, StreamsBuilder, TimeWindows, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.graph.topic_patterns import matched, unmatched
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms

ORDERS = re.compile("orders-.*")


def orders(
    builder: StreamsBuilder, pattern: re.Pattern[str] = ORDERS
) -> KStream[str, int]:
    return builder.stream(pattern, key=serdes.text, value=serdes.int64)


@cache
def counting() -> Topology:
    builder = StreamsBuilder("app")
    orders(builder).group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def send(
    driver: TopologyTestDriver, topic: str, *records: tuple[str, int, int]
) -> None:
    for record in records:
        driver.input(topic, serdes.text, serdes.int64).send(*record)


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("caching", [False, True])
def test_a_topic_is_read_as_soon_as_somebody_writes_to_it_and_state_goes_on(
    ranges: int, caching: bool
) -> None:
    with TopologyTestDriver(counting(), ranges, caching=caching) as driver:
        send(driver, "orders-eu", ("a", 1, 10), ("b", 1, 11))
        send(driver, "orders-us", ("a", 1, 12))
        send(driver, "orders-eu", ("b", 1, 13))
        driver.commit()
        assert {row.key: row.value for row in driver.store("counts").all()} == {
            "a": 2,
            "b": 2,
        }
        assert driver.output("out", serdes.text, serdes.int64).latest() == {
            "a": 2,
            "b": 2,
        }


def test_a_name_that_does_not_match_is_not_read() -> None:
    with TopologyTestDriver(counting()) as driver:
        for topic in ("order-eu", "my-orders-eu", "ORDERS-eu"):
            with pytest.raises(TopologyError, match="reads no topic"):
                driver.input(topic, serdes.text, serdes.int64)


def test_internal_topics_never_match() -> None:
    builder = StreamsBuilder("app")
    changed = orders(builder, re.compile(".*")).select_key(
        lambda _, value: str(value), key=serdes.text
    )
    changed.group_by_key(name="by-value").count(store="counts")
    others = (
        "__consumer_offsets",
        "app-by-value-repartition",
        "app-counts-changelog",
        "app-old-changelog",
    )
    marks = "app-backfill-20261122T022849608407-35596c9f"
    kept = ("app-topology", marks, f"{marks}-rebuild")
    joins = (
        *("app-n-subscription-registration-topic", "app-n-subscription-response-topic"),
        *(
            f"app-KTABLE-FK-JOIN-SUBSCRIPTION-{part}-0000000006-topic"
            for part in ("REGISTRATION", "RESPONSE")
        ),
    )
    topology = matched(
        builder.build(),
        ["a", *others, *kept, *joins, "app-b", "app-b-topic", "app-backfill-b"],
    )
    assert topology.source_topics == ("a", "app-b", "app-b-topic", "app-backfill-b")


def test_new_topics_share_the_stream_time_of_their_task() -> None:
    builder = StreamsBuilder("app")
    orders(builder).group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts", retention=ms(100)
    )
    with TopologyTestDriver(builder.build()) as driver:
        send(driver, "orders-eu", ("a", 1, 5), ("a", 1, 25))
        send(driver, "orders-us", ("a", 1, 26), ("a", 1, 6))
        assert {str(row.key): row.value for row in driver.store("counts").all()} == {
            "[a@0/10]": 1,
            "[a@20/30]": 2,
        }
        assert list(driver.dropped.values()) == [1]


def test_topics_may_differ_in_partitions_where_no_key_has_to_meet_another() -> None:
    builder = StreamsBuilder("app")
    orders(builder).map_values(lambda value: -value, value=serdes.int64).to("out")
    with TopologyTestDriver(
        builder.build(), partitions={"orders-eu": 1, "orders-us": 3}
    ) as driver:
        send(driver, "orders-eu", ("a", 1, 1))
        send(driver, "orders-us", *[(key, 2, 2) for key in "abcdef"])
        assert Counter(record.value for record in driver.outputs()) == {-1: 1, -2: 6}


def test_topics_of_a_table_or_join_must_have_equally_many_partitions() -> None:
    topology = counting()
    assert check_partitions(
        matched(topology, ["orders-eu"]), {"orders-eu": 3, "out": 1}
    ).tasks == (3,)
    with pytest.raises(TopologyError, match='table at "orders-eu, orders-us → counts"'):
        check_partitions(
            matched(topology, ["orders-eu", "orders-us"]),
            {"orders-eu": 3, "orders-us": 4, "out": 1},
        )
    builder = StreamsBuilder("app")
    rates = builder.table("rates", key=serdes.text, value=serdes.int64)
    orders(builder).join(rates, lambda order, rate: order * rate)
    with pytest.raises(
        TopologyError,
        match='join at "orders-eu → join\\(rates\\)": "orders-eu" has 2 partitions, "rates" has 1',
    ):
        check_partitions(
            matched(builder.build(), ["orders-eu", "rates"]),
            {"orders-eu": 2, "rates": 1},
        )


def test_while_nothing_matches_nothing_is_made() -> None:
    builder = StreamsBuilder("app")
    changed = orders(builder).select_key(lambda _, value: str(value), key=serdes.text)
    changed.group_by_key(name="by-value").count(store="counts").to_stream().to("out")
    topology = builder.build()
    waiting = check_partitions(matched(topology, ["out"]), {"out": 1})
    assert (waiting.tasks, waiting.internal, unmatched(matched(topology, ["out"]))) == (
        (0, 0),
        (),
        ["orders-.*"],
    )
    found = check_partitions(
        matched(topology, ["orders-eu"]), {"orders-eu": 2, "out": 1}
    )
    assert (found.tasks, [plan.name for plan in found.missing]) == (
        (2, 2),
        ["app-by-value-repartition", "app-counts-changelog"],
    )
    with TopologyTestDriver(topology) as driver:
        assert driver.store("counts").all() == []
        send(driver, "orders-eu", ("a", 7, 1))
        assert driver.store("counts").get("7") == 1


def test_a_topic_is_read_once() -> None:
    builder = StreamsBuilder("app")
    orders(builder)
    assert orders(builder)._flow.node == orders(builder)._flow.node
    with pytest.raises(
        TopologyError, match=r'"orders-eu" is read twice, in "orders-.\*" and in'
    ):
        builder.stream("orders-eu", key=serdes.text, value=serdes.int64)
    orders(builder, re.compile(".*-eu"))
    with pytest.raises(
        TopologyError, match='"orders-eu" is read by "KSTREAM-SOURCE-0000000000" and by'
    ):
        matched(builder.build(), ["orders-eu"])
    other = StreamsBuilder("app")
    other.global_table("orders-eu", key=serdes.text, value=serdes.int64)
    orders(other)
    with pytest.raises(TopologyError, match="as a global table and as a stream"):
        other.build()


def test_the_pattern_is_part_of_the_picture() -> None:
    assert (
        "Source: KSTREAM-SOURCE-0000000000 (topics: orders-.*)\n"
        in counting().describe()
    )
    assert '(["orders-.*"])' in counting().describe("mermaid")
    assert '"pattern": "orders-.*"' in counting().describe("json")
    numbered = StreamsBuilder("app")
    orders(numbered, re.compile(r"orders-\d"))
    assert r'label="orders-\\d"' in numbered.build().describe("dot"), (
        "a backslash in DOT is two"
    )


def test_a_pattern_of_bytes_is_no_pattern_of_names() -> None:
    wrong: Any = re.compile(b"orders-.*")
    with pytest.raises(TopologyError, match="names of text"):
        orders(StreamsBuilder("app"), wrong)


@pytest.mark.ci
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("abc")), max_size=15),
    st.sampled_from([1, 3]),
)
def test_topics_that_come_one_after_the_other_make_the_same_table_as_one_topic(
    records: list[tuple[str, str]], ranges: int
) -> None:
    with TopologyTestDriver(counting(), ranges) as driver:
        for at, (topic, key) in enumerate(records):
            send(driver, f"orders-{topic}", (key, 1, at))
        assert {row.key: row.value for row in driver.store("counts").all()} == Counter(
            key for _, key in records
        )
