"""The lists of the pages are complete: settings, metrics, paths, topics, operators,
public names, reasons of bad health.
"""

from __future__ import annotations

import re

import pytest

from coopstreams.topology import serdes
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
    assert sorted(listed) == sorted(reference.methods(operators))


def test_the_guide_lists_every_method_of_the_topology_builder() -> None:
    rows = table_headed(
        GUIDE / "processors.md", "`TopologyBuilder`", "callback", "what it adds"
    )
    assert sorted(name for row in rows for name in code_words(row[0])) == sorted(
        reference.methods(TopologyBuilder)
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


def test_the_page_of_public_names_has_no_other_table() -> None:
    assert {code_words(table[0][0])[0] for table in tables(API)} == set(
        reference.SCOPES
    )


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    words = [
        row[0].strip("*").lower()
        for row in table_headed(GLOSSARY, "word", "means", "Kafka Streams")
    ]
    assert words == sorted(set(words))
