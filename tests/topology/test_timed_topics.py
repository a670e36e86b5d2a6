"""Which repartition topics carry births and time marks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.topology.graph.timed_topics import timed_topics, writers_of

HOURS = TimeWindows(hours=1, grace=timedelta(0))


def by_first(key: str, value: str) -> str:
    return value[:1]


def source(builder: StreamsBuilder, topic: str = "in") -> KStream[str, str]:
    return builder.stream(topic, key=serdes.text, value=serdes.text)


def renamed(stream: KStream[str, str], name: str, **more: Any) -> KStream[str, str]:
    by_new_key = stream.select_key(by_first, key=serdes.text)
    return by_new_key.repartition(name=name, key=serdes.text, value=serdes.text, **more)


def windows(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).windowed_by(HOURS).count(
        store="hours"
    )


def final_windows(builder: StreamsBuilder) -> None:
    counts = renamed(source(builder), "first").group_by_key().windowed_by(HOURS)
    counts.count(store="hours").suppress(until_window_closes(), name="held")


def windows_of_looked_up_records(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text)
    joined = source(builder).join(table, lambda left, _: left)
    joined.group_by(by_first, key=serdes.text).windowed_by(HOURS).count(store="hours")


def windows_of_records_joined_behind_the_topic(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text)
    joined = renamed(source(builder), "first").join(table, lambda left, _: left)
    joined.group_by_key().windowed_by(HOURS).count(store="hours")


def windows_of_updates_of_a_table(builder: StreamsBuilder) -> None:
    """Their time is that of the table's topic as well."""
    table = builder.table("table", key=serdes.text, value=serdes.text)
    both = renamed(source(builder), "first").merge(table.to_stream())
    both.group_by_key().windowed_by(HOURS).count(store="hours")


def two_topics_in_a_row(builder: StreamsBuilder) -> None:
    between = renamed(source(builder), "first").filter(lambda _, value: bool(value))
    renamed(between, "second").group_by_key().windowed_by(HOURS).count(store="hours")


def counts(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).count(store="counts")


def counts_behind_windows(builder: StreamsBuilder) -> None:
    hours = source(builder).group_by_key().windowed_by(HOURS).count(store="hours")
    by_hour = hours.to_stream().map_values(str, value=serdes.text)
    by_hour.group_by(lambda _, value: value, key=serdes.text).windowed_by(HOURS).count(
        store="again"
    )


def sessions(builder: StreamsBuilder) -> None:
    idle = SessionWindows(minutes=5, grace=timedelta(0))
    source(builder).group_by(by_first, key=serdes.text).windowed_by(idle).count(
        store="sessions"
    )


def rows_with_a_time_to_live(builder: StreamsBuilder) -> None:
    source(builder).group_by(by_first, key=serdes.text).count(
        store=Materialized("counts", ttl=timedelta(hours=1))
    )


def a_stream_join(builder: StreamsBuilder) -> None:
    within = JoinWindows(milliseconds=10, grace=timedelta(0))
    left = source(builder, "left").select_key(by_first, key=serdes.text)
    left.join(source(builder, "right"), by_first, windows=within, store="pairs")


def a_join_of_new_keys(builder: StreamsBuilder) -> None:
    within = JoinWindows(milliseconds=10, grace=timedelta(0))
    left = renamed(source(builder, "in"), "left")
    right = renamed(source(builder, "other"), "right")
    left.join(right, by_first, windows=within, store="pairs")


def updates_until_a_limit(builder: StreamsBuilder) -> None:
    counts = renamed(source(builder), "first").group_by_key().count(store="counts")
    counts.suppress(until_time_limit(timedelta(seconds=1)), name="held")


def a_merge_behind_the_topic(builder: StreamsBuilder) -> None:
    both = renamed(source(builder), "first").merge(source(builder, "other"))
    both.group_by_key().windowed_by(HOURS).count(store="hours")


def a_merge_with_what_the_application_writes(builder: StreamsBuilder) -> None:
    """There the order of records is that of their arrival."""
    source(builder).to("other")
    a_merge_behind_the_topic(builder)


def a_merge_behind_the_topic_beside_a_table(builder: StreamsBuilder) -> None:
    table = builder.table("table", key=serdes.text, value=serdes.text)
    both = renamed(source(builder), "first").merge(source(builder, "other"))
    joined = both.join(table, lambda left, _: left)
    joined.group_by_key().windowed_by(HOURS).count(store="hours")


def a_silence_of_its_own(builder: StreamsBuilder) -> None:
    stream = renamed(source(builder), "first", idle_advance=timedelta(seconds=1))
    stream.group_by_key().windowed_by(HOURS).count(store="hours")


@pytest.mark.parametrize(
    ("write", "timed"),
    [
        (windows, {"app-hours-repartition"}),
        (final_windows, {"app-first-repartition"}),
        (windows_of_looked_up_records, {"app-hours-repartition"}),
        (windows_of_records_joined_behind_the_topic, {"app-first-repartition"}),
        (windows_of_updates_of_a_table, set()),
        (
            two_topics_in_a_row,
            {"app-first-repartition", "app-second-repartition"},
        ),
        (counts, set()),
        (counts_behind_windows, set()),
        (sessions, {"app-sessions-repartition"}),
        (rows_with_a_time_to_live, {"app-counts-repartition"}),
        (a_join_of_new_keys, {"app-left-repartition", "app-right-repartition"}),
        (updates_until_a_limit, set()),
        (a_stream_join, {"app-KSTREAM-KEY-SELECT-0000000001-repartition"}),
        (a_merge_behind_the_topic, {"app-first-repartition"}),
        (a_merge_with_what_the_application_writes, set()),
        (a_merge_behind_the_topic_beside_a_table, set()),
        (a_silence_of_its_own, set()),
    ],
)
def test_topics_in_front_of_what_depends_on_time(
    write: Callable[[StreamsBuilder], None], timed: set[str]
) -> None:
    builder = StreamsBuilder("app")
    write(builder)
    parts = builder.build().subtopologies
    assert timed_topics(parts) == timed
    tasks = [3 + part.id for part in parts]
    assert writers_of(frozenset(timed), parts, tasks).keys() == timed


def test_the_writers_of_a_topic_are_the_tasks_in_front_of_it() -> None:
    builder = StreamsBuilder("app")
    two_topics_in_a_row(builder)
    counts_of_tasks = [4, 2, 3]
    parts = builder.build().subtopologies
    assert writers_of(timed_topics(parts), parts, counts_of_tasks) == {
        "app-first-repartition": 4,
        "app-second-repartition": 2,
    }
