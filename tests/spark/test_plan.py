"""What a backfill decides before it runs: stages in order, tasks, what it cannot do, and that a plan is the same when it is read again."""

from __future__ import annotations

import re

import pytest

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.spark import plan as planning
from coopstreams.spark.plan import Plan
from coopstreams.topology.errors import TopologyError
from tests.broker import law

TOPICS = law.Topics("law", "orders", "customers", "running", "windows", "cities")
REPARTITION = "law-KSTREAM-KEY-SELECT-0000000016-repartition"


def plan_of(topology: Topology, counts: dict[str, int], ranges: int) -> Plan:
    cut = {"orders": {0: (5, 30), 1: (0, 7)}, "customers": {0: (0, 0), 1: (0, 9)}}
    return Plan("r", topology.application_id, planning.digest(topology), cut, planning.stages(topology, counts, ranges), counts, ("customers",))


def test_stages_come_after_what_they_read_and_their_tasks_are_numbered_through() -> None:
    topology = law.law_topology(TOPICS)
    (repartition,) = planning.forwarded(topology.subtopologies[0])
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
    assert "customers: from a table; a live application goes on at 0: 0, 1: 9" in str(plan)


def test_a_live_application_goes_on_at_the_ends_with_their_stream_times() -> None:
    topology = law.law_topology(TOPICS)
    (repartition,) = planning.forwarded(topology.subtopologies[0])
    plan = plan_of(topology, {"orders": 2, "customers": 2, repartition: 1}, 1)
    found = planning.positions(plan, {("orders", 0): 77, (repartition, 0): 70}, {repartition: {0: 0}})
    assert found == {
        ("orders", 0): (30, 77),
        ("orders", 1): (7, -1),
        ("customers", 0): (0, -1),
        ("customers", 1): (9, -1),
        (repartition, 0): (0, 70),
    }


@pytest.mark.parametrize(("results", "missing"), [([0, 1, 2], []), ([0, 2], [1]), ([0, 1, 1, 2], [1]), ([], [0, 1, 2])])
def test_a_task_without_a_result_is_noticed(results: list[int], missing: list[int]) -> None:
    (stage,) = planning.stages(counting("orders"), {"orders": 1}, 3)
    assert planning.gaps(stage, results) == missing


def counting(topic: str, application: str = "app") -> Topology:
    builder = StreamsBuilder(application)
    builder.stream(topic, key=serdes.text, value=serdes.text).group_by_key().count(store="counts")
    return builder.build()


def test_subtopologies_that_wait_for_each_other_are_refused() -> None:
    builder = StreamsBuilder("foreign")
    left = builder.table("left", key=serdes.text, value=serdes.text, store="left")
    right = builder.table("right", key=serdes.text, value=serdes.text, store="right")
    left.join(right, lambda one, other: one + other, foreign_key=lambda value: value, value=serdes.text, store="joined")
    with pytest.raises(TopologyError, match="each wait for records of another"):
        planning.check(builder.build())


def test_the_digest_tells_topologies_apart_and_is_the_same_for_the_same() -> None:
    assert planning.digest(counting("orders")) == planning.digest(counting("orders"))
    assert planning.digest(counting("orders")) != planning.digest(counting("others"))


def test_topics_by_pattern_are_refused() -> None:
    builder = StreamsBuilder("app")
    builder.stream(re.compile("orders-.*"), key=serdes.text, value=serdes.text).to("out")
    with pytest.raises(TopologyError, match="by pattern"):
        planning.check(builder.build())


def test_partitioners_are_refused() -> None:
    builder = StreamsBuilder("app")
    builder.stream("orders", key=serdes.text, value=serdes.text).to("out", partitioner=lambda _topic, _key, _value, _partitions: 0)
    with pytest.raises(TopologyError, match="partitioner="):
        planning.check(builder.build())
