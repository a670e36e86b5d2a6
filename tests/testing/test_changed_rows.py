"""A row that a function changes in place is an error of the test, not a surprise in
production.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    Processor,
    Record,
    StreamsBuilder,
    key_value_store,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError, StateError
from coopstreams.topology.graph.topology import Topology


def mark(row: Any) -> Any:
    """Change a row in place."""
    row["marked"] = True
    return row


def below_a_table(builder: StreamsBuilder) -> None:
    builder.table(
        "left", key=serdes.text, value=serdes.json, store="rows"
    ).to_stream().map_values(mark).to("out", value=serdes.json)


def beside_a_reduce(builder: StreamsBuilder) -> None:
    stream = builder.stream("left", key=serdes.text, value=serdes.json)
    stream.group_by_key().reduce(lambda _, new: new, store="rows")
    stream.map_values(mark).to("out", value=serdes.json)


def below_an_aggregate(builder: StreamsBuilder) -> None:
    counts = (
        builder.stream("left", key=serdes.text, value=serdes.json)
        .group_by_key()
        .aggregate(dict, counted, value=serdes.json, store="rows")
    )
    counts.to_stream().map_values(mark).to("out", value=serdes.json)


def in_a_join_with_a_table(builder: StreamsBuilder) -> None:
    table = builder.table("left", key=serdes.text, value=serdes.json, store="rows")
    builder.stream("right", key=serdes.text, value=serdes.json).join(
        table, lambda _, row: mark(row)
    ).to("out", value=serdes.json)


def in_a_join_with_a_versioned_table(builder: StreamsBuilder) -> None:
    table = builder.table(
        "left", key=serdes.text, value=serdes.json, history=timedelta(minutes=1)
    )
    builder.stream("right", key=serdes.text, value=serdes.json).join(
        table, lambda _, row: mark(row)
    ).to("out", value=serdes.json)


def in_a_join_with_a_global_table(builder: StreamsBuilder) -> None:
    table = builder.global_table(
        "left", key=serdes.text, value=serdes.json, store="rows"
    )
    joined = builder.stream("right", key=serdes.text, value=serdes.json).join(
        table, lambda _, row: mark(row), on=lambda key, _: key
    )
    joined.to("out", value=serdes.json)


def in_a_join_of_tables(builder: StreamsBuilder) -> None:
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.json, store=topic)
        for topic in ("left", "right")
    )
    left.join(right, lambda row, _: mark(row)).to_stream().to("out", value=serdes.json)


def in_a_join_of_streams(builder: StreamsBuilder) -> None:
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.json)
        for topic in ("left", "right")
    )
    windows = JoinWindows(timedelta(seconds=10))
    left.join(right, lambda row, _: mark(row), windows=windows).to(
        "out", value=serdes.json
    )


def in_a_processor(builder: StreamsBuilder) -> None:
    builder.stream("left", key=serdes.text, value=serdes.json).process(
        Forgetful,
        stores=[key_value_store("rows", key=serdes.text, value=serdes.json)],
        by_key=True,
    )


def counted(_: Any, __: Any, total: Any) -> Any:
    total["n"] = total.get("n", 0) + 1
    return total


class Forgetful(Processor[str, Any, str, Any]):
    """Does not put what it has changed, from the second record on."""

    def process(self, record: Record[str, Any]) -> None:
        rows = self.context.store("rows")
        if (row := rows.get(record.key)) is None:
            rows.put(record.key, {})
        else:
            mark(row)


CHANGING = [
    below_a_table,
    beside_a_reduce,
    below_an_aggregate,
    in_a_join_with_a_table,
    in_a_join_with_a_versioned_table,
    in_a_join_with_a_global_table,
    in_a_join_of_tables,
    in_a_join_of_streams,
    in_a_processor,
]


def program(write: Callable[[StreamsBuilder], None]) -> Topology:
    builder = StreamsBuilder("changed")
    write(builder)
    return builder.build()


def run(topology: Topology, *, caching: bool) -> None:
    read = {*topology.source_topics, *(table.topic for table in topology.global_tables)}
    with TopologyTestDriver(topology, caching=caching) as driver:
        for topic in ("left", "right", "left"):
            if topic in read:
                driver.input(topic, serdes.text, serdes.json).send(
                    "k", {}, timestamp=1_000
                )
        driver.commit()


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("write", CHANGING)
def test_a_function_that_changes_a_row_is_an_error_that_names_store_row_and_cure(
    write: Callable[[StreamsBuilder], None], caching: bool
) -> None:
    with pytest.raises(
        StateError,
        match=r"a function has changed the row of key b'k.*marked.*return a new value",
    ):
        run(program(write), caching=caching)


def test_a_function_that_changes_a_version_of_before_is_an_error_too() -> None:
    with TopologyTestDriver(program(in_a_join_with_a_versioned_table)) as driver:
        for value, timestamp in (({}, 1_000), ({"new": True}, 2_000)):
            driver.input("left", serdes.text, serdes.json).send(
                "k", value, timestamp=timestamp
            )
        with pytest.raises(
            StateError, match=r'-history": a function has changed the row of key'
        ):
            driver.input("right", serdes.text, serdes.json).send(
                "k", {}, timestamp=1_500
            )


class Careful(Processor[str, Any, str, Any]):
    """Puts what it has changed."""

    def process(self, record: Record[str, Any]) -> None:
        rows = self.context.store("rows")
        rows.put(record.key, counted(None, None, rows.get(record.key) or {}))


@pytest.mark.parametrize("caching", [False, True])
def test_an_aggregator_may_change_its_aggregate_and_a_processor_put_what_it_has_changed(
    caching: bool,
) -> None:
    builder = StreamsBuilder("changed")
    stream = builder.stream("left", key=serdes.text, value=serdes.json)
    stream.group_by_key().aggregate(dict, counted, value=serdes.json, store="counts")
    stream.process(
        Careful,
        stores=[key_value_store("rows", key=serdes.text, value=serdes.json)],
        by_key=True,
    )
    with TopologyTestDriver(builder.build(), caching=caching) as driver:
        for _ in range(3):
            driver.input("left").send("k", {})
        assert (
            driver.store("counts").get("k") == driver.store("rows").get("k") == {"n": 3}
        )


def test_an_aggregator_that_fails_behind_a_change_is_not_told_with_the_next_record() -> (
    None
):
    def failing(_: Any, value: Any, total: Any) -> Any:
        total["n"] = total.get("n", 0) + 1
        return total | value["more"]

    builder = StreamsBuilder("changed")
    stream = builder.stream("left", key=serdes.text, value=serdes.json)
    stream.group_by_key().aggregate(dict, failing, value=serdes.json, store="rows")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("left").send("k", {"more": {}})
        with pytest.raises(ProcessingError, match="KeyError: 'more'"):
            driver.input("left").send("k", {})
        driver.input("left").send("other", {"more": {}})
