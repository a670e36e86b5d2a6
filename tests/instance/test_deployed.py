"""The record of an application's last version: which repartition topics may have no positions yet."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.instance.deployed import Deployed
from coopstreams.log.memory.log import MemoryLog

ORDER = make_dataclass("Order", [("id", int)])
WITH_NOTE = make_dataclass("Order", [("id", int), ("note", str, "")])


def version(class_: Any, repartition: str | None) -> Topology:
    """Keep the latest order of each key; with `repartition`, of orders that come through this topic."""
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json(class_))
    (orders if repartition is None else orders.repartition(name=repartition)).to_table(store="latest")
    return builder.build()


def test_topics_that_a_version_begins_with_stay_new_when_the_next_one_changes_nothing_of_them() -> None:
    log = MemoryLog()

    def taken_over(topology: Topology) -> set[str]:
        deployed = Deployed(log, Config.of({"bootstrap.servers": "none"}, "app"))
        deployed.take_over(topology)
        again = Deployed(log, Config.of({"bootstrap.servers": "none"}, "app"))
        again.last()
        assert again.begun == deployed.begun
        return set(deployed.begun)

    assert taken_over(version(ORDER, None)) == set()
    assert taken_over(version(ORDER, "moved")) == {"app-moved-repartition"}
    assert taken_over(version(WITH_NOTE, "moved")) == {"app-moved-repartition"}
