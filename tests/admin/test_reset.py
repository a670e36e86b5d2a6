"""Plans of a reset of an application: the topics and offsets it deletes, and those that
stay.
"""

from __future__ import annotations

import re

from coopstreams.admin.application_reset import plan_reset
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.outline import outline
from coopstreams.topology.graph.topology import Topology


def counting() -> Topology:
    builder = StreamsBuilder("app")
    countries = builder.global_table("countries", key=serdes.text, value=serdes.text)
    joined = builder.stream("in", key=serdes.text, value=serdes.text).join(
        countries, lambda one, _: one, on=lambda _, code: code
    )
    joined.group_by(lambda _, code: code, key=serdes.text).count(
        store="n"
    ).to_stream().to("out")
    return builder.build()


def test_only_what_the_topology_names_is_deleted_and_what_it_reads_is_read_again() -> (
    None
):
    there = {
        "in": 2,
        "countries": 1,
        "out": 2,
        "app-n-repartition": 2,
        "app-n-changelog": 2,
        "app-topology": 1,
        "app-2-n-changelog": 1,
        "app-older-repartition": 1,
    }
    marks = "app-backfill-20261122T022849608407-35596c9f"
    there |= {
        marks: 8,
        f"{marks}-rebuild": 8,
        "app-backfill-changelog": 1,
        "app-2-backfill-20261122T022849608407-35596c9f": 8,
    }
    plan = plan_reset(counting(), there)
    assert plan.changelogs == ("app-n-changelog",)
    deleted = ("app-n-repartition", marks, f"{marks}-rebuild", "app-topology")
    assert plan.topics == deleted, "the last one refuses a start before the end"
    assert plan.sources == (TopicPartition("in", 0), TopicPartition("in", 1)), (
        "a global table has no offsets"
    )
    assert plan.begun_anew == (
        TopicPartition("app-n-repartition", 0),
        TopicPartition("app-n-repartition", 1),
    )
    assert plan.left == (
        "app-2-n-changelog",
        "app-backfill-changelog",
        "app-older-repartition",
    )


def test_the_version_that_ran_last_is_reset_too() -> None:
    """Its rows and positions would be there, and no record of it, if it were started
    next.
    """
    other = StreamsBuilder("app")
    other.stream(
        re.compile("clicks-.*|app-.*|__.*"), key=serdes.text, value=serdes.text
    ).group_by(lambda _, code: code, key=serdes.text).count(store="codes")
    other.table(
        "rows", key=serdes.text, value=serdes.text, store="rows"
    ).to_stream().to("out")
    other.stream("mails", key=serdes.text, value=serdes.text, order="none").to("out")
    there = {
        "in": 1,
        "rows": 1,
        "mails": 1,
        "clicks-eu": 2,
        "out": 1,
        "__consumer_offsets": 50,
        "app-topology": 1,
        "app-codes-repartition": 2,
        "app-codes-changelog": 2,
        "app-2-n-changelog": 1,
    }
    last = outline(other.build().optimized("all"))
    plan = plan_reset(counting(), there, last)
    assert plan.changelogs == ("app-codes-changelog",), "not a source topic"
    assert set(plan.topics) == {"app-topology", "app-codes-repartition"}
    assert {str(at) for at in plan.sources} == {
        "in-0",
        "rows-0",
        "clicks-eu-0",
        "clicks-eu-1",
    }
    assert {str(at) for at in plan.begun_anew} == {
        "app-codes-repartition-0",
        "app-codes-repartition-1",
    }
    assert plan.left == ("app-2-n-changelog",)
    assert plan.share_group == "app-share"


def test_what_is_not_there_has_no_part_in_it() -> None:
    plan = plan_reset(counting(), {"in": 1, "app-n-changelog": 3})
    assert (plan.changelogs, plan.topics, plan.sources, plan.begun_anew, plan.left) == (
        ("app-n-changelog",),
        (),
        (TopicPartition("in", 0),),
        (),
        (),
    )
