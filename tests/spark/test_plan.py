"""The plan of a backfill: stages in order, tasks, refusals; and its JSON form."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException

from coopstreams import (
    KStream,
    Processor,
    Serde,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    field,
    serdes,
    until_window_closes,
)
from coopstreams.spark import plan as planning
from coopstreams.spark import rounds
from coopstreams.spark.execution import error_of_task
from coopstreams.spark.history.sources import first_ms
from coopstreams.spark.native.sql_eligibility import translated
from coopstreams.spark.plan import Plan
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.graph.topic_patterns import matched
from tests.broker import law

TOPICS = law.Topics("law", "orders", "customers", "running", "windows", "cities")
REPARTITION = "law-KSTREAM-KEY-SELECT-0000000016-repartition"


def plan_of(topology: Topology, counts: dict[str, int], ranges: int) -> Plan:
    cut = {"orders": {0: (5, 30), 1: (0, 7)}, "customers": {0: (0, 0), 1: (0, 9)}}
    return Plan(
        "r",
        topology.application_id,
        planning.digest(topology),
        cut,
        planning.stages(topology, counts, ranges),
        counts,
        ("customers",),
    )


def test_stages_come_after_what_they_read_and_their_tasks_are_numbered_through() -> (
    None
):
    topology = law.law_topology(TOPICS)
    (repartition,) = rounds.forwarded(topology.subtopologies[0])
    counts = {"orders": 2, "customers": 2, repartition: 3}
    first, second = planning.stages(topology, counts, 4)
    assert (first.topics, first.tasks, first.first) == (("customers", "orders"), 8, 0)
    assert (second.topics, second.tasks, second.first) == ((repartition,), 12, 8)
    assert first.forwarded == ((repartition, 3),)
    plan = plan_of(topology, counts, 4)
    assert plan.tasks == 20
    assert plan.records == 32, "what comes from a table is not in Kafka"
    assert Plan.from_json(plan.to_json()) == plan
    assert "orders: 0: 5..30, 1: 0..7" in str(plan)
    assert "customers: from a table; a live application goes on at 0: 0, 1: 9" in str(
        plan
    )


@pytest.mark.parametrize(
    ("until", "wanted"),
    [
        (
            datetime(1987, 5, 16, 20, 56, 45, 527_000, UTC),
            548_197_005_527,
        ),  # as a float ...526.9999
        (datetime(2026, 1, 31, 0, 0, 0, 500, UTC), 1_769_817_600_001),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC), 0),
    ],
)
def test_a_cut_by_time_has_all_that_is_older(until: datetime, wanted: int) -> None:
    assert first_ms(until) == wanted


def test_a_live_application_goes_on_at_the_ends_with_their_stream_times() -> None:
    topology = law.law_topology(TOPICS)
    (repartition,) = rounds.forwarded(topology.subtopologies[0])
    plan = plan_of(topology, {"orders": 2, "customers": 2, repartition: 1}, 1)
    found = planning.positions(
        plan, {("orders", 0): 77, (repartition, 0): 70}, {repartition: {0: 0}}
    )
    assert found == {
        ("orders", 0): (30, 77),
        ("orders", 1): (7, -1),
        ("customers", 0): (0, -1),
        ("customers", 1): (9, -1),
        (repartition, 0): (0, 70),
    }


@pytest.mark.parametrize(
    ("results", "missing"),
    [([0, 1, 2], []), ([0, 2], [1]), ([0, 1, 1, 2], [1]), ([], [0, 1, 2])],
)
def test_a_task_without_a_result_is_noticed(
    results: list[int], missing: list[int]
) -> None:
    (stage,) = planning.stages(counting("orders"), {"orders": 1}, 3)
    assert planning.gaps(stage, results) == missing


def counting(topic: str, application: str = "app") -> Topology:
    builder = StreamsBuilder(application)
    builder.stream(topic, key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    return builder.build()


def test_the_digest_tells_topologies_apart_and_is_the_same_for_the_same() -> None:
    assert planning.digest(counting("orders")) == planning.digest(counting("orders"))
    assert planning.digest(counting("orders")) != planning.digest(counting("others"))


@pytest.mark.parametrize(
    ("held", "ranges", "expected"),
    [
        (False, None, [1, 4]),
        (False, 1, [1, 1]),
        (False, 3, [3, 3]),
        (True, None, [4, 4]),
    ],
)
def test_a_partition_is_not_divided_where_that_would_call_punctuations_late_unless_ranges_are_given(
    *, held: bool, ranges: int | None, expected: list[int]
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("orders", key=serdes.text, value=serdes.text)
    stream.process(
        Processor[str, str, str, str], key=serdes.text, value=serdes.text, by_key=True
    ).to("out")
    # a punctuation waits for the next record of the task's keys in a live application,
    # too
    if held:
        stream.group_by_key().windowed_by(DAY).count().suppress(until_window_closes())
    builder.stream("others", key=serdes.text, value=serdes.text).group_by_key().count()
    topology, counts = builder.build(), {"orders": 2, "others": 2}
    made = planning.stages(topology, counts, ranges)
    assert [stage.ranges for stage in made] == expected
    text = str(Plan("r", "app", planning.digest(topology), {}, made, counts))
    assert ("may be called by stream time; --ranges N divides it" in text) is (
        expected[0] == 1
    )
    late = planning.called_late(made, "leave out --ranges")
    assert [text.partition(":")[0] for text in late] == [
        "sub-topology 0 has 3 key ranges a partition"
    ] * (ranges == 3)


def by_patterns() -> Topology:
    builder = StreamsBuilder("app")
    for name in ("orders", "returns"):
        stream = builder.stream(
            re.compile(f"{name}-.*"), key=serdes.text, value=serdes.text
        )
        stream.repartition(name=name, partitions=3).group_by_key().count(store=name)
    return builder.build()


def test_a_pattern_that_nothing_matches_is_no_stage_and_without_any_topic_there_is_no_history() -> (
    None
):
    topology = matched(by_patterns(), ["orders-eu"])
    planning.check(topology)
    made = planning.stages(
        topology, check_partitions(topology, {"orders-eu": 2}).partitions, 1
    )
    assert [(stage.topics, stage.tasks) for stage in made] == [
        (("orders-eu",), 2),
        (("app-orders-repartition",), 3),
        (("app-returns-repartition",), 3),
    ], (
        "a topic with so many partitions as the program says is there all the same, and empty"
    )
    assert [stage.first for stage in made] == [0, 2, 5]
    with pytest.raises(
        TopologyError,
        match=r'no topic matches "orders-\.\*" or "returns-\.\*": there is no history',
    ):
        planning.check(by_patterns())


def test_the_digest_knows_what_patterns_match_and_how_stores_are_kept() -> None:
    orders = {
        planning.digest(matched(by_patterns(), names))
        for names in ([], ["orders-eu"], ["orders-eu", "orders-us"])
    }
    assert len(orders) == 3
    builder = StreamsBuilder("app")
    builder.table("people", key=serdes.text, value=serdes.text, store="people")
    topology = builder.build()
    assert (
        planning.digest(topology.optimized("all"))
        != planning.digest(topology)
        == planning.digest(topology.optimized("none"))
    )


def reading(
    build: Callable[[KStream[str, Any]], object], values: Serde[Any] = serdes.json
) -> SubTopology:
    builder = StreamsBuilder("app")
    build(builder.stream("orders", key=serdes.text, value=values))
    return builder.build().subtopologies[0]


DAY = TimeWindows(days=1)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (
            lambda orders: orders.filter(lambda _, value: value).group_by_key().count(),
            "a condition as field",
        ),
        (
            lambda orders: (
                orders.map_values(len, value=serdes.int64).group_by_key().count()
            ),
            r'calls a Python function; field\("..."\) could be read',
        ),
        (
            lambda orders: orders.group_by_key().reduce(lambda one, other: one + other),
            "calls a Python function; reduce",
        ),
        (
            lambda orders: orders.group_by_key().aggregate(
                int, lambda _, value, total: total + value, value=serdes.int64
            ),
            "calls a Python function",
        ),
        (
            lambda orders: orders.group_by_key().reduce(
                operator.add, value=serdes.text
            ),
            "keeps values as text",
        ),
        (
            lambda orders: (
                orders.map_values(field('a"b'), value=serdes.int64)
                .group_by_key()
                .reduce(max)
            ),
            "which JSON may write in several ways",
        ),
        (
            lambda orders: (
                orders.group_by_key()
                .windowed_by(SessionWindows(milliseconds=5))
                .count()
            ),
            "has windows that follow the records",
        ),
        (
            lambda orders: (
                orders.group_by_key()
                .windowed_by(DAY)
                .emit_strategy("on_window_close")
                .count()
            ),
            "is told once a window closes",
        ),
        (
            lambda orders: (
                orders.group_by_key()
                .windowed_by(DAY)
                .count()
                .suppress(until_window_closes())
            ),
            "is a Suppress|says what a row was before",
        ),
        (
            lambda orders: (
                orders.group_by_key()
                .count()
                .to_stream()
                .map_values(str, value=serdes.text)
                .to("out")
            ),
            "calls a Python function",
        ),
        (
            lambda orders: (
                orders.group_by_key().count().to_stream().to("out", value=serdes.json)
            ),
            "writes rows with other serdes",
        ),
        (
            lambda orders: (
                orders.group_by_key()
                .count()
                .to_stream()
                .to("out", partitioner=lambda *_: 0)
            ),
            "chooses partitions by a Python function",
        ),
        (lambda orders: orders.to_table(store="orders"), "has no translation"),
        (lambda orders: orders.to("out"), "it has no store to fold into"),
    ],
)
def test_what_sql_may_not_do_as_python_does_stays_in_python(
    build: Callable[[KStream[str, Any]], object], why: str
) -> None:
    found = translated(reading(build))
    assert isinstance(found, str)
    assert re.search(why, found), found


def test_typed_values_timestamps_of_functions_and_outputs_stay_in_python() -> None:
    typed = reading(
        lambda orders: (
            orders.map_values(field("amount"), value=serdes.int64)
            .group_by_key()
            .reduce(max)
        ),
        serdes.json(dict[str, int]),
    )
    assert "folds values of json(dict[str, int])" in str(translated(typed))
    builder = StreamsBuilder("app")
    builder.stream(
        "orders",
        key=serdes.text,
        value=serdes.json,
        timestamp=lambda record: record.timestamp,
    ).group_by_key().count()
    assert "takes timestamps by a Python function" in str(
        translated(builder.build().subtopologies[0])
    )
    counted = reading(lambda orders: orders.group_by_key().count())
    assert not isinstance(translated(counted), str)
    assert "outputs are wanted" in str(translated(counted, "topic"))


def test_a_plan_says_what_sql_folds_and_why_not_the_rest() -> None:
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    orders.select_key(field("city"), key=serdes.text).group_by_key().count(
        store="per-city"
    )
    topology = builder.build()
    (repartition,) = rounds.forwarded(topology.subtopologies[0])
    counts = {"orders": 1, repartition: 1}
    for native in (False, True):
        made = planning.stages(topology, counts, 2, native=native)
        plan = Plan(
            "r", "app", planning.digest(topology), {"orders": {0: (0, 9)}}, made, counts
        )
        assert Plan.from_json(plan.to_json()) == plan
        assert ("    in Python: it has no store to fold into" in str(plan)) is native
        assert (
            "    in Spark SQL, if all its records are understood there" in str(plan)
        ) is native


@pytest.mark.parametrize(
    "stack",
    [
        "",
        "\n\tat org.apache.spark.api.python.PythonException\n\n",
        "\n\nJVM stacktrace:\nx",
    ],
)
@pytest.mark.parametrize(
    "message",
    ["gone", "1 validation error\namount\n  Input should be a number. Mend the data"],
)
def test_the_error_of_a_task_has_all_lines_of_its_message_and_nothing_of_spark_s(
    message: str, stack: str
) -> None:
    cause = "Traceback (most recent call last):\ncoopstreams.topology.errors.SerdeError: no JSON\n\nThe above exception"
    told = f"{cause} was the direct cause\n\ncoopstreams.topology.errors.ProcessingError: {message}\n{stack}"
    error = error_of_task(PySparkException(f"Job aborted: {told}"))
    assert (type(error), str(error)) == (ProcessingError, message)
