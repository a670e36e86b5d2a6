"""Sources without an order: the allowed operators, and the errors for others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from re import compile as pattern
from typing import Any

import pytest

from coopstreams import StreamsBuilder, TimeWindows, key_value_store, serdes
from coopstreams.common.config import Config
from coopstreams.preflight.checks import unordered_in_transactions
from coopstreams.preflight.facts import Facts
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.changes import Verdict, changes
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.outline import outline
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.processors import Processor

Program = Callable[[Any, StreamsBuilder], object]


async def later(value: str) -> str:
    return value


async def later_of_all(values: list[str]) -> list[str]:
    return values


def built(program: Program, topic: Any = "in", **source: Any) -> Topology:
    builder = StreamsBuilder("app")
    program(
        builder.stream(
            topic,
            **{"key": serdes.text, "value": serdes.text, "order": "none", **source},
        ),
        builder,
    )
    return builder.build()


ALLOWED: dict[str, Program] = {
    "filters and maps": lambda s, _: (
        s.filter(lambda _, v: bool(v))
        .map_values(str.upper, value=serdes.text)
        .to("out")
    ),
    "new keys, many values": lambda s, _: (
        s.map(lambda k, v: (v, k))
        .flat_map_values(str.split)
        .to("out", key=serdes.text, value=serdes.text)
    ),
    "a look": lambda s, _: s.peek(lambda *_: None),
    "calls": lambda s, _: s.map_values_async(later, value=serdes.text, order="none").to(
        "out"
    ),
    "batches of calls": lambda s, _: s.map_batches(
        later_of_all, value=serdes.text, order="none"
    ).to("out"),
    "another such source": lambda s, b: s.merge(
        b.stream("more", key=serdes.text, value=serdes.text, order="none")
    ).to("out"),
    "a topic by a function": lambda s, _: s.to(lambda _key, value: value),
    "a global table": lambda s, b: s.join(
        b.global_table("rows", key=serdes.text, value=serdes.text),
        lambda v, row: v + row,
        on=lambda k, _: k,
    ).to("out", value=serdes.text),
    "what it likes behind a topic": lambda s, _: s.repartition().group_by_key().count(),
    "a grouping by another key": lambda s, _: s.group_by(
        lambda _, v: v, key=serdes.text
    ).count(),
}

REFUSED: dict[str, tuple[Program, str]] = {
    "a count": (
        lambda s, _: s.group_by_key().count(name="counted"),
        r'"in" is read with order="none", but "counted" is a Aggregate, which may depend on earlier records. '
        r"Write .repartition\(\) before it",
    ),
    "windows": (
        lambda s, _: s.group_by_key().windowed_by(TimeWindows(hours=1)).count(),
        "depend on earlier records",
    ),
    "a table of it": (lambda s, _: s.to_table(), "is a TableSource, which may depend"),
    "a processor": (
        lambda s, _: s.process(Processor, by_key=True),
        "is a Processing, which may depend",
    ),
    "calls with state": (
        lambda s, _: s.process_async(
            lambda record, context: None,
            stores=[key_value_store("seen", key=serdes.text, value=serdes.text)],
        ),
        "is a AsyncProcessing, which may depend",
    ),
    "calls in the order of keys": (
        lambda s, _: s.map_values_async(later, value=serdes.text, name="asks"),
        r'"asks" makes its calls with order="key". Say order="none" there, too, or write .repartition\(\) before it',
    ),
    "a source in order": (
        lambda s, b: s.merge(b.stream("more", key=serdes.text, value=serdes.text)).to(
            "out"
        ),
        r'but "more" is not, and the two meet in one sub-topology. Say order="none" for both',
    ),
    "what is behind a topic": (
        lambda s, b: s.merge(
            b.stream("more", key=serdes.text, value=serdes.text).repartition()
        ).to("out"),
        r"but it meets KSTREAM-SOURCE-\d+, which is read in order. Write .repartition\(\) before they meet",
    ),
    "a join with a table": (
        lambda s, b: s.join(
            b.table("rows", key=serdes.text, value=serdes.text), lambda v, row: v + row
        ),
        '"rows" is not, and the two meet',
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_operators_without_state_may_follow(name: str) -> None:
    topology = built(ALLOWED[name])
    first, *others = topology.subtopologies
    assert first.unordered
    assert not any(part.unordered for part in others)
    assert "in" in topology.unordered_topics
    assert (
        '"Sub-topology 0 (no tasks: a share group deals its records'
        in topology.describe("mermaid")
    )


@pytest.mark.parametrize("name", REFUSED)
def test_all_else_is_refused_with_its_name_and_the_cure(name: str) -> None:
    program, message = REFUSED[name]
    with pytest.raises(TopologyError, match=message):
        built(program)


def test_what_a_source_cannot_have() -> None:
    with pytest.raises(
        TopologyError, match=r"order must be .key. or .none., not 'any'"
    ):
        built(lambda s, _: s.to("out"), order="any")
    with pytest.raises(
        TopologyError,
        match=r'topics by pattern \("in-.*"\) are read in order. Name the topics',
    ):
        built(lambda s, _: s.to("out"), pattern("in-.*"))
    with pytest.raises(TopologyError, match="reset= is of positions"):
        built(lambda s, _: s.to("out"), reset="latest")
    with pytest.raises(TopologyError, match="idle_advance= moves stream time"):
        built(lambda s, _: s.to("out"), idle_advance=timedelta(minutes=1))
    with pytest.raises(
        TopologyError, match=r'"in" is read twice with different order='
    ):
        built(lambda s, b: b.stream("in", key=serdes.text, value=serdes.text))


def test_exactly_once_is_refused_with_the_reason() -> None:
    topology = built(lambda s, _: s.to("out"))
    settings = {
        "bootstrap.servers": "nowhere:1",
        "processing.guarantee": "exactly_once_v2",
    }
    facts = Facts(topology, Config.of(settings, "app"), {})
    (found,) = unordered_in_transactions(facts)
    assert (
        '"in" is read with order="none", but processing.guarantee=exactly_once_v2'
        in found
    )
    plain = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
    assert list(unordered_in_transactions(Facts(topology, plain, {}))) == []


def test_another_order_is_another_program_and_its_position_is_not_kept() -> None:
    before, after = (
        built(lambda s, _: s.to("out"), order="key"),
        built(lambda s, _: s.to("out")),
    )
    assert fingerprints(before, [1]) != fingerprints(after, [1])
    for old, new in ((before, after), (after, before)):
        (position,) = (
            each
            for each in changes(outline(old), outline(new))
            if each.what == "position"
        )
        assert position.verdict is Verdict.EMPTY
    (same,) = (
        each
        for each in changes(outline(after), outline(after))
        if each.what == "position"
    )
    assert same.verdict is Verdict.KEEPS
