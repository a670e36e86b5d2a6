"""The lists of the pages are complete: settings, metrics, paths, topics, operators,
public names, reasons of bad health.
"""

from __future__ import annotations

import re

import pytest

import coopstreams
from coopstreams import consumer, spark, testing
from coopstreams.consumer import CooperativeConsumer, CooperativeFetch
from coopstreams.query.client import QueryClient
from coopstreams.topology import errors, serdes
from coopstreams.topology.dsl.branches import BranchedKStream
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.cogrouped import CogroupedKStream
from coopstreams.topology.dsl.grouped import KGroupedStream, KGroupedTable
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.topology_builder import TopologyBuilder
from coopstreams.topology.dsl.windowed import (
    SessionWindowedKStream,
    TimeWindowedKStream,
)
from tests.docs import reference
from tests.docs.pages import ROOT, code_words, table_headed, tables

HEALTH = ROOT / "docs" / "reference" / "health.md"
GUIDE = ROOT / "docs" / "guide"
API = ROOT / "docs" / "api.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
OPERATORS = [
    StreamsBuilder,
    KStream,
    BranchedKStream,
    KGroupedStream,
    TimeWindowedKStream,
    SessionWindowedKStream,
    CogroupedKStream,
    KTable,
    KGroupedTable,
]


@pytest.mark.parametrize("name", reference.TABLES)
def test_a_generated_table_is_that_of_the_code(name: str) -> None:
    page, heading, rows = reference.TABLES[name]
    assert table_headed(page, *heading) == rows(), (
        "python -m tests.docs.reference writes it"
    )


@pytest.mark.parametrize("operators", OPERATORS)
def test_the_guide_lists_every_operator_and_no_other(operators: type) -> None:
    rows = table_headed(
        GUIDE / "operators.md", f"`{operators.__name__}`", "callback", "what comes out"
    )
    listed = [name for row in rows for name in code_words(row[0])]
    assert sorted(listed) == sorted(public(operators))


def test_the_guide_lists_every_method_of_the_topology_builder() -> None:
    rows = table_headed(
        GUIDE / "processors.md", "`TopologyBuilder`", "callback", "what it adds"
    )
    assert sorted(name for row in rows for name in code_words(row[0])) == sorted(
        public(TopologyBuilder)
    )


def test_the_guide_lists_every_serde() -> None:
    rows = table_headed(GUIDE / "concepts.md", "serde", "bytes", "Java's counterpart")
    listed = {
        re.split(r"[(\"]", word)[0] for row in rows for word in code_words(row[0])
    }
    known = {
        name for name, value in vars(serdes).items() if isinstance(value, serdes.Serde)
    } | {
        "avro",
        "json_schema",
        "protobuf",
        "session_windowed",
        "windowed",
    }
    assert listed == {f"serdes.{name}" for name in known} | {"Serde"}


def test_every_public_name_has_one_line() -> None:
    listed = {
        module: names_in(table)
        for table in tables(API)
        for module in [code_words(table[0][0])[0]]
    }
    assert listed["coopstreams"] == sorted(coopstreams.__all__)
    assert listed["coopstreams.spark"] == sorted(spark.__all__)
    assert listed["coopstreams.testing"] == sorted(testing.__all__)
    assert listed["errors"] == sorted(
        name for name in vars(errors) if name.endswith("Error")
    )
    assert listed["coopstreams.consumer"] == sorted(consumer.__all__)
    classes = [QueryClient, CooperativeConsumer, CooperativeFetch]
    for described in classes:
        assert listed[described.__name__] == sorted(public(described))
    modules = {
        "coopstreams",
        "coopstreams.consumer",
        "coopstreams.spark",
        "coopstreams.testing",
        "errors",
    }
    assert set(listed) == modules | {described.__name__ for described in classes}


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    words = [
        row[0].strip("*").lower()
        for row in table_headed(GLOSSARY, "word", "means", "Kafka Streams")
    ]
    assert words == sorted(set(words))


def public(kind: type) -> list[str]:
    """Return the public methods of a class, inherited ones too."""
    return [
        name
        for name in dir(kind)
        if callable(getattr(kind, name)) and not name.startswith("_")
    ]


def names_in(table: list[list[str]]) -> list[str]:
    """Return the names of a table's first column."""
    return [name for row in table[1:] for name in code_words(row[0])]
