"""Where a source begins in which the group has no position."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import StreamsBuilder, TopologyBuilder, serdes
from coopstreams.common.config import Config
from coopstreams.tasks.resolved_topology import reset_of_topic
from coopstreams.topology.errors import ConfigError, TopologyError
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.offset_resets import (
    duration_ms_of,
    parse_reset,
    reset_of,
)
from coopstreams.topology.graph.topology import Topology

TEXT: dict[str, Any] = {"key": serdes.text, "value": serdes.text}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P7D", 604_800_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:PT0S", 0),
        ("earliest", None),
        ("latest", None),
    ],
)
def test_a_reset_is_a_word_or_an_iso_duration(text: str, ms: int | None) -> None:
    assert duration_ms_of(parse_reset(text)) == ms


@given(
    st.timedeltas(timedelta(0), timedelta(days=1000)).map(
        lambda given: given - given % timedelta(milliseconds=1)
    )
)
def test_a_duration_keeps_its_length(given: timedelta) -> None:
    reset = reset_of(given, "stream()")
    assert reset is not None
    assert duration_ms_of(reset) == given // timedelta(milliseconds=1)
    assert parse_reset(reset) == reset


@pytest.mark.parametrize(
    "reset",
    [
        "first",
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:-PT1H",
        "by_duration:1h",
        "PT1H",
        5,
        True,
    ],
)
def test_anything_else_is_refused_while_building(reset: Any) -> None:
    with pytest.raises(
        TopologyError,
        match=r"stream\(\): reset=.* must be a timedelta, earliest, latest, or by_duration",
    ):
        StreamsBuilder("app").stream("in", **TEXT, reset=reset)
    with pytest.raises(TopologyError, match=r"table\(\): reset=.* must be"):
        StreamsBuilder("app").table("in", **TEXT, reset=reset)
    with pytest.raises(TopologyError, match=r"add_source\(\): reset=.* must be"):
        TopologyBuilder("app").add_source("one", "in", **TEXT, reset=reset)
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        Config.of({"bootstrap.servers": "nowhere:1", "auto.offset.reset": reset}, "app")


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(TopologyError, match="reset must not be negative"):
        StreamsBuilder("app").stream("in", **TEXT, reset=timedelta(seconds=-1))


def program(**reset: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("own", **TEXT, **reset).group_by(
        lambda _, value: value, **TEXT, name="by"
    ).count(store="counts")
    builder.stream("other", **TEXT).to("out")
    return builder.build()


def test_a_source_has_its_own_reset_or_that_of_the_application_and_repartition_topics_have_their_first_record() -> (
    None
):
    config = Config.of(
        {"bootstrap.servers": "nowhere:1", "auto.offset.reset": "by_duration:PT1M"},
        "app",
    )
    topology = program(reset="latest")
    topics = ("own", "other", "app-by-repartition")
    assert [reset_of_topic(topology, config, topic) for topic in topics] == [
        "latest",
        "by_duration:PT60S",
        "earliest",
    ]


def test_another_reset_is_no_other_version_of_the_program() -> None:
    one, other = (
        fingerprints(each, (1, 1, 1))
        for each in (program(), program(reset=timedelta(hours=1)))
    )
    assert one == other


def test_a_table_that_does_not_begin_at_the_first_record_is_not_restored_from_its_topic() -> (
    None
):
    def changelogs(**reset: Any) -> list[str]:
        builder = StreamsBuilder("app")
        builder.table("rows", **TEXT, store="kept", **reset)
        return [
            topic.name for topic in builder.build().optimized("all").internal_topics
        ]

    assert changelogs(reset=timedelta(days=1)) == ["app-kept-changelog"]
    assert changelogs(reset="earliest") == changelogs() == []
