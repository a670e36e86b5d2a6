"""The order of mutually dependent sub-topologies: each topic is written once, before it
is read.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    Processor,
    Record,
    StreamsBuilder,
    Topology,
    key_value_store,
    serdes,
)
from coopstreams.spark import plan as planning
from coopstreams.spark.plan import Plan
from coopstreams.spark.rounds import Round, forwarded, round_of, rounds_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.partitions import check_partitions

TEXT: dict[str, Any] = {"key": serdes.text, "value": serdes.text}


def tables_of(builder: StreamsBuilder, count: int) -> list[Any]:
    return [builder.table(f"t{number}", **TEXT) for number in range(count)]


def joined(one: Any, other: Any, name: str) -> Any:
    return one.join(
        other,
        lambda a, b: a + b,
        foreign_key=lambda value: value,
        value=serdes.text,
        store=name,
        name=name,
    )


def said(topology: Topology) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Return sub-topology, round, rounds and topics of each round, without the names of
    the application and the join's topics.
    """
    return [
        (
            round_.part.id,
            round_.round,
            round_.rounds,
            tuple(short(topic) for topic in round_.part.topics),
        )
        for round_ in rounds_of(topology)
    ]


def short(topic: str) -> str:
    return (
        topic.removeprefix("app-")
        .replace("-subscription-registration-topic", "?")
        .replace("-subscription-response-topic", "!")
    )


def check_laws(topology: Topology) -> list[Round]:
    """Check that a topic is read when it is complete and written once, and that the
    last rounds read and keep everything.
    """
    found = rounds_of(topology)
    internal = {topic for part in topology.subtopologies for topic in forwarded(part)}
    written = list[str]()
    for round_ in found:
        assert not (internal - set(written)) & set(round_.part.topics)
        assert set(round_.forwards) == set(forwarded(round_.part)), (
            "whatever a round can write, it is to write"
        )
        assert round_of(topology, round_.part.id, round_.round) == round_
        written += round_.forwards
    assert sorted(written) == sorted(internal)
    for part in topology.subtopologies:
        own = [round_ for round_ in found if round_.part.id == part.id]
        assert [round_.round for round_ in own] == list(range(1, own[0].rounds + 1))
        assert (own[-1].part.topics, own[-1].part.stores) == (part.topics, part.stores)
        assert all(round_.forwards for round_ in own[:-1]), (
            "a round that forwards nothing is of no use"
        )
    return found


def test_the_left_side_asks_and_then_takes_everything_with_the_answers() -> None:
    builder = StreamsBuilder("app")
    orders, people = tables_of(builder, 2)
    clicks = builder.stream("clicks", **TEXT)
    clicks.join(
        joined(orders, people, "owned"),
        lambda click, row: click + row,
        value=serdes.text,
    ).to("seen")
    topology = builder.build()
    assert said(topology) == [
        (0, 1, 2, ("t0",)),
        (1, 1, 1, ("t1", "owned?")),
        (0, 2, 2, ("t0", "clicks", "owned!")),
    ]
    first, other, last = check_laws(topology)
    assert [
        topic
        for round_ in (first, other, last)
        for topic in map(short, round_.forwards)
    ] == ["owned?", "owned!"]
    assert {
        short(topic) for round_ in (first, other, last) for topic in round_.placed
    } == {"owned?", "owned!"}
    assert [store.name for store in first.part.stores] == [
        topology.subtopologies[0].stores[0].name
    ]


def test_a_join_of_a_join_asks_twice() -> None:
    builder = StreamsBuilder("app")
    one, two, three = tables_of(builder, 3)
    joined(joined(one, two, "first"), three, "second")
    assert said(builder.build()) == [
        (0, 1, 3, ("t0",)),
        (1, 1, 1, ("t1", "first?")),
        (0, 2, 3, ("t0", "first!")),
        (2, 1, 1, ("t2", "second?")),
        (0, 3, 3, ("t0", "first!", "second!")),
    ]


def test_a_table_that_is_joined_with_itself_asks_itself() -> None:
    builder = StreamsBuilder("app")
    (people,) = tables_of(builder, 1)
    joined(people, people, "boss")
    assert said(builder.build()) == [
        (0, 1, 3, ("t0",)),
        (0, 2, 3, ("t0", "boss?")),
        (0, 3, 3, ("t0", "boss?", "boss!")),
    ]


def test_streams_that_are_exchanged_go_in_rounds_as_well() -> None:
    builder = StreamsBuilder("app")
    one, two = (builder.stream(topic, **TEXT) for topic in ("s0", "s1"))
    for number, (here, there) in enumerate([(one, two), (two, one)]):
        moved = there.select_key(lambda _, value: value, key=serdes.text).repartition(
            name=f"moved-{number}"
        )
        here.merge(moved).group_by_key().count(store=f"count-{number}")
    topology = builder.build()
    found = check_laws(topology)
    assert [(round_.part.id, round_.round, round_.rounds) for round_ in found] == [
        (0, 1, 2),
        (1, 1, 1),
        (0, 2, 2),
    ]
    assert [len(round_.part.stores) for round_ in found] == [0, 1, 1]
    assert not any(round_.placed for round_ in found), "nobody answers"


class Remembering(Processor[str, str, str, str]):
    """Forwards the earlier records."""

    def process(self, record: Record[str, str]) -> None:
        store = self.context.store("memory")
        self.context.forward(
            Record(record.key, store.get("it") or "", record.timestamp)
        )
        store.put("it", record.value)


def test_what_shares_a_store_with_a_question_must_be_there_when_it_is_asked() -> None:
    builder = StreamsBuilder("app")
    memory = key_value_store("memory", key=serdes.text, value=serdes.text)
    lines, others = (builder.stream(topic, **TEXT) for topic in ("lines", "others"))
    orders = lines.process_values(
        Remembering, stores=[memory], value=serdes.text, by_key=False
    ).to_table()
    others.process(Remembering, stores=[memory], by_key=False, **TEXT).to("told")
    (people,) = tables_of(builder, 1)
    joined(orders, people, "owned")
    found = check_laws(builder.build())
    assert [[short(topic) for topic in round_.part.topics] for round_ in found] == [
        ["lines", "others"],
        ["t0", "owned?"],
        ["lines", "others", "owned!"],
    ]


def test_a_topic_that_is_written_because_of_its_own_records_is_refused() -> None:
    builder = StreamsBuilder("app")
    memory = key_value_store("memory", key=serdes.text, value=serdes.text)
    lines = builder.stream("lines", **TEXT)
    orders = lines.process_values(
        Remembering, stores=[memory], value=serdes.text, by_key=False
    ).to_table()
    (people,) = tables_of(builder, 1)
    joined(orders, people, "owned").to_stream().process(
        Remembering, stores=[memory], by_key=False, **TEXT
    ).to("told")
    with pytest.raises(
        TopologyError,
        match="wait for records that come of their own: start the application live",
    ):
        planning.check(builder.build())


@pytest.mark.ci
@given(st.data())
def test_any_joins_of_joins_come_to_an_end(data: st.DataObject) -> None:
    builder = StreamsBuilder("app")
    tables = tables_of(builder, data.draw(st.integers(1, 3)))
    for number in range(data.draw(st.integers(1, 4))):
        one, other = (
            data.draw(st.sampled_from(tables)),
            data.draw(st.sampled_from(tables)),
        )
        if one is not other and data.draw(st.booleans()):
            tables.append(
                one.left_join(
                    other, lambda a, _: a, value=serdes.text, store=f"j{number}"
                )
            )
        else:
            tables.append(joined(one, other, f"j{number}"))
    for number, table in enumerate(
        data.draw(st.lists(st.sampled_from(tables), max_size=2))
    ):
        table.group_by(
            lambda key, value: (value, key), key=serdes.text, value=serdes.text
        ).count(store=f"c{number}")
    topology = builder.build()
    found = check_laws(topology)
    assert len(found) <= len(topology.subtopologies) + sum(
        len(forwarded(part)) for part in topology.subtopologies
    )


def test_a_plan_says_which_round_only_asks() -> None:
    builder = StreamsBuilder("app")
    one, two = tables_of(builder, 2)
    joined(one, two, "owned")
    topology = builder.build()
    counts = check_partitions(topology, {"t0": 2, "t1": 3}).partitions
    made = planning.stages(topology, counts, 2, native=True)
    assert [
        (stage.name, stage.partitions, stage.first, stage.is_last) for stage in made
    ] == [
        ("sub-topology 0, round 1 of 2", 2, 0, False),
        ("sub-topology 1", 3, 4, True),
        ("sub-topology 0, round 2 of 2", 2, 10, True),
    ]
    plan = Plan(
        "r",
        "app",
        planning.digest(topology),
        {"t0": {0: (0, 7), 1: (0, 2)}, "t1": dict.fromkeys(range(3), (0, 5))},
        made,
        counts,
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.records == 24, "what is read twice is counted once"
    text = str(plan)
    assert (
        "sub-topology 0, round 1 of 2: 2 partitions x 2 key ranges; only asks, by "
        "app-owned-subscription-registration-topic" in text
    )
    assert "sub-topology 0, round 2 of 2: 2 partitions x 2 key ranges; stores " in text
    assert "in Python: it runs in rounds" in text
