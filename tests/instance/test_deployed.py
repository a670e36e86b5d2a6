"""The record of an application's last version: repartition topics that may have no positions yet, partition counts."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

import pytest

from coopstreams import Materialized, StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.instance.deployed import Deployed
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.errors import TopologyChangedError

ORDER = make_dataclass("Order", [("id", int)])
WITH_NOTE = make_dataclass("Order", [("id", int), ("note", str, "")])


def version(class_: Any, repartition: str | None) -> Topology:
    """Keep the latest order of each key; with `repartition`, of orders that come through this topic."""
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json(class_))
    (orders if repartition is None else orders.repartition(name=repartition)).to_table(
        store="latest"
    )
    return builder.build()


def test_topics_that_a_version_begins_with_stay_new_when_the_next_one_changes_nothing_of_them() -> (
    None
):
    log = MemoryLog()

    def taken_over(topology: Topology) -> set[str]:
        deployed = Deployed(log, Config.of({"bootstrap.servers": "none"}, "app"))
        deployed.take_over(topology, {"orders": 1})
        again = Deployed(log, Config.of({"bootstrap.servers": "none"}, "app"))
        again.last()
        assert again.begun == deployed.begun
        return set(deployed.begun)

    assert taken_over(version(ORDER, None)) == set()
    assert taken_over(version(ORDER, "moved")) == {"app-moved-repartition"}
    assert taken_over(version(WITH_NOTE, "moved")) == {"app-moved-repartition"}


def test_state_without_a_changelog_is_of_one_life_of_the_topic_that_keeps_the_topology() -> (
    None
):
    def taken_over(log: MemoryLog, *, logged: bool) -> str:
        builder = StreamsBuilder("app")
        numbers = builder.stream("in", key=serdes.text, value=serdes.text)
        numbers.group_by_key().count(store=Materialized("kept", logged=logged))
        return Deployed(log, Config.of({"bootstrap.servers": "none"}, "app")).take_over(
            builder.build(), {"in": 1}
        )

    log = MemoryLog()
    assert taken_over(log, logged=True) == "", "a changelog has a topic id of its own"
    first = taken_over(log, logged=False)
    assert first
    assert taken_over(log, logged=False) == first
    log.delete_topics(["app-topology"])
    after_a_reset = taken_over(log, logged=False)
    assert len({"", first, after_a_reset, taken_over(MemoryLog(), logged=False)}) == 4


@pytest.mark.parametrize("reused", [False, True])
def test_rows_that_no_changelog_fixes_to_partitions_are_not_mixed_when_their_topic_grows(
    reused: bool,
) -> None:
    builder = StreamsBuilder("app")
    if reused:
        builder.table("in", key=serdes.text, value=serdes.text, store="kept")
    else:
        numbers = builder.stream("in", key=serdes.text, value=serdes.text)
        numbers.group_by_key().count(store=Materialized("kept", logged=False))
    topology, log = builder.build().optimized("all"), MemoryLog()

    def start(partitions: int, accepted: str = "") -> None:
        settings = {"bootstrap.servers": "none"} | (
            {"topology.change.accepted": accepted} if accepted else {}
        )
        deployed = Deployed(log, Config.of(settings, "app"))
        deployed.check(topology, {"in": partitions})
        deployed.take_over(topology, {"in": partitions})

    start(1)
    start(1)
    with pytest.raises(
        TopologyChangedError,
        match="store kept is mixed: in has 2 partitions, and had 1",
    ) as refused:
        start(2)
    start(2, str(refused.value).rpartition("=")[2])
    start(2)
