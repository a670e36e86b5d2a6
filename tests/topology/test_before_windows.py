"""Which sub-topologies feed windows through a topic: their partitions are not cut by
key range.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from coopstreams.topology.graph.subtopologies import before_windows
from coopstreams.topology.graph.timed_topics import timed_topics

HOURS = TimeWindows(milliseconds=3_600_000, grace=timedelta(0))
IDLE = SessionWindows(minutes=5, grace=timedelta(0))


def by_first(key: str, value: str) -> str:
    return value[:1]


def source(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.stream(topic, key=serdes.text, value=serdes.text)


def windows_of_new_keys(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).windowed_by(HOURS).count(
        store="hours"
    )


def sessions_of_new_keys(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).windowed_by(IDLE).count(
        store="sessions"
    )


def windows_of_the_same_keys(builder: StreamsBuilder) -> None:
    source(builder).group_by_key().windowed_by(HOURS).count(store="hours")


def counts_of_new_keys(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).count(store="counts")


def windows_behind_another_topic(builder: StreamsBuilder) -> None:
    renamed = (
        source(builder)
        .select_key(by_first)
        .repartition(name="first", key=serdes.text, value=serdes.text)
    )
    renamed.group_by(by_first, key=serdes.text).windowed_by(HOURS).count(store="hours")


def sessions_behind_another_topic(builder: StreamsBuilder) -> None:
    renamed = (
        source(builder)
        .select_key(by_first)
        .repartition(name="first", key=serdes.text, value=serdes.text)
    )
    renamed.group_by(by_first, key=serdes.text).windowed_by(IDLE).count(
        store="sessions"
    )


def a_join_with_new_keys(builder: StreamsBuilder) -> None:
    left = source(builder, "left").select_key(by_first, key=serdes.text)
    within = JoinWindows(milliseconds=10, grace=timedelta(0))
    left.join(source(builder, "right"), by_first, windows=within, store="pairs")


def rows_with_a_time_to_live(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).count(
        store=Materialized("counts", ttl=timedelta(hours=1))
    )


def windows_behind_a_topic_of_the_user(builder: StreamsBuilder) -> None:
    source(builder).to("between")
    source(builder, "between").group_by_key().windowed_by(HOURS).count(store="hours")


def a_foreign_key_join_beside_windows(builder: StreamsBuilder) -> None:
    within = JoinWindows(milliseconds=10, grace=timedelta(0))
    orders = source(builder, "orders")
    orders.join(source(builder, "payments"), by_first, windows=within, store="paid")
    customers = builder.table("customers", key=serdes.text, value=serdes.text)
    counts = orders.group_by_key().count(store="counts")
    counts.join(customers, by_first, foreign_key=str, value=serdes.text).to_stream().to(
        "out"
    )


def a_foreign_key_join_into_windows(builder: StreamsBuilder) -> None:
    customers = builder.table("customers", key=serdes.text, value=serdes.text)
    orders = builder.table("orders", key=serdes.text, value=serdes.text)
    joined = orders.join(customers, by_first, foreign_key=str, value=serdes.text)
    joined.to_stream().group_by_key().windowed_by(HOURS).count(store="hours")


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (windows_of_new_keys, {}),
        (sessions_of_new_keys, {}),
        (windows_of_the_same_keys, {}),
        (counts_of_new_keys, {}),
        (windows_behind_another_topic, {}),
        (sessions_behind_another_topic, {}),
        (a_join_with_new_keys, {}),
        (rows_with_a_time_to_live, {}),
        (windows_behind_a_topic_of_the_user, {0: {"hours"}}),
        (a_foreign_key_join_beside_windows, {}),
        (a_foreign_key_join_into_windows, {0: {"hours"}, 1: {"hours"}}),
    ],
)
def test_those_that_feed_rows_that_expire_through_a_topic(
    write: Callable[[StreamsBuilder], None], found: dict[int, set[str]]
) -> None:
    builder = StreamsBuilder("app")
    write(builder)
    parts = builder.build().subtopologies
    assert before_windows(parts, timed_topics(parts)) == found
