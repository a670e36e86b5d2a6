"""The ACLs of an application: the output of the command equals the table of the page
on security.
"""

from __future__ import annotations

import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coopstreams import StreamsBuilder, serdes
from coopstreams.admin.needed_acls import RULES, needed, unknown
from coopstreams.common.acl_errors import Acl
from coopstreams.common.config import Config
from coopstreams.topology.errors import ConfigError
from tests.command_line import app
from tests.docs.pages import ROOT, code_words, table_headed

PROGRAM = """
from coopstreams import StreamsBuilder, serdes
builder = StreamsBuilder("orders")
builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(store="c").to_stream().to("out")
topology = builder.build()
"""


GUARANTEES = ("at_least_once", "exactly_once_v2")


def run(tmp_path: Path, *words: str) -> str:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    result = CliRunner().invoke(app, ["acls", str(program), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def config(**settings: object) -> Config:
    return Config.of(
        {
            "bootstrap.servers": "nowhere:1",
            **{k.replace("_", "."): v for k, v in settings.items()},
        },
        "app",
    )


def test_the_table_of_the_page_on_security_is_that_of_the_code() -> None:
    page = ROOT / "docs" / "operating" / "secure.md"
    table = table_headed(page, "resource", "name", "operations", "without it")
    shown = [
        (resource, *code_words(name), operations)
        for resource, name, operations, _ in table
    ]
    assert shown == [
        (
            f"{rule.kind}, prefixed" if rule.prefixed else rule.kind,
            rule.name,
            ", ".join(rule.operations),
        )
        for rule in RULES
    ]


def test_the_commands_are_the_json(tmp_path: Path) -> None:
    given = ("--principal", "User:me", "--set", "processing.guarantee=exactly_once_v2")
    rows = json.loads(run(tmp_path, *given, "--format", "json"))["acls"]
    found = set()
    for line in run(tmp_path, *given, "--bootstrap-servers", "kafka:9093").splitlines():
        words = shlex.split(line)
        assert words[:6] == [
            "kafka-acls.sh",
            "--bootstrap-server",
            "kafka:9093",
            "--add",
            "--allow-principal",
            "User:me",
        ]
        options = list(zip(words[6::2], words[7::2], strict=True))
        ((kind, name),) = [
            (o[2:].replace("-", " "), v)
            for o, v in options
            if o in ("--topic", "--group", "--transactional-id")
        ]
        pattern = dict(options).get("--resource-pattern-type", "literal")
        found |= {(kind, name, pattern, v) for o, v in options if o == "--operation"}
    assert found == {
        (row["resource"], row["name"], row["pattern"], row["operation"]) for row in rows
    }
    assert {(row["principal"], row["host"]) for row in rows} == {("User:me", "*")}
    assert ("transactional id", "orders-", "prefixed", "Write") in found


def test_the_principal_is_the_user_of_the_settings(tmp_path: Path) -> None:
    login = (
        "security.protocol=SASL_SSL",
        "sasl.mechanism=PLAIN",
        "sasl.username=ann",
        "sasl.password=p",
    )
    assert "--allow-principal User:ann " in run(
        tmp_path, *(word for each in login for word in ("--set", each))
    )
    with pytest.raises(ConfigError, match="--principal User:NAME"):
        run(tmp_path)


def test_only_transactions_need_the_acl_for_them() -> None:
    topology = StreamsBuilder("app")
    topology.stream("in", key=serdes.raw, value=serdes.raw).to("out")
    kinds = [
        {
            acl.kind
            for acl in needed(topology.build(), config(processing_guarantee=each))
        }
        for each in GUARANTEES
    ]
    assert kinds == [{"topic", "group"}, {"topic", "group", "transactional id"}]


def test_only_a_source_without_an_order_needs_those_of_a_share_group() -> None:
    topology = StreamsBuilder("app")
    topology.stream("in", key=serdes.raw, value=serdes.raw, order="none").to("out")
    acls = {
        (acl.kind, acl.name, acl.operation)
        for acl in needed(topology.build(), config())
    }
    assert {
        ("group", "app-share", "Read"),
        ("group", "app-share", "AlterConfigs"),
    } <= acls


def test_dead_letters_and_the_time_of_silent_topics_are_written() -> None:
    builder = StreamsBuilder("app")
    builder.stream(
        "in", key=serdes.raw, value=serdes.raw, idle_advance=timedelta(seconds=1)
    ).to("out")
    settings = {"errors_dead_letter_queue_topic_name": "dead"}
    acls = needed(builder.build(), config(**settings))
    assert {acl.name for acl in acls if acl.operation == "Write" and not acl.prefixed} == {
        "in", "out", "dead", "__individual_commit_offsets",
    }  # fmt: skip
    assert Acl("topic", "in", "Read") in acls


def test_what_the_topology_does_not_name_is_said() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream(re.compile("eu-.*"), key=serdes.raw, value=serdes.raw)
    stream.to(lambda *_: "somewhere")
    builder.stream(
        re.compile("us-.*"),
        key=serdes.raw,
        value=serdes.raw,
        idle_advance=timedelta(seconds=9),
    ).to("out")
    patterns, marked, dynamic = unknown(builder.build())
    assert patterns.endswith(
        "the topics that match eu-.*: allow Read and DescribeConfigs on each"
    )
    assert marked.endswith(
        "match us-.*: allow Read and DescribeConfigs on each, and Write for its time marks"
    )
    assert dynamic.endswith(
        "its function names: allow Write and DescribeConfigs on each"
    )
