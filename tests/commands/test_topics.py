"""`coopstreams topics list` on a real Kafka: the topics of an application with their
kinds, and those that are missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_line import app
from tests.conftest import Kafka

PROGRAM = """
from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("{application}")
lines = builder.stream("{lines}", key=serdes.raw, value=serdes.text)
lines.group_by(lambda _, word: word, key=serdes.text).count(store="counts").to_stream().to("missing-{application}")
topology = builder.build()
"""


@pytest.mark.ci
@pytest.mark.broker
def test_topics_of_an_application_are_listed_with_their_kinds(
    kafka: Kafka, tmp_path: Path
) -> None:
    application = kafka.unique("listed")
    lines = kafka.topic("lines", 2)
    changelog = f"{application}-counts-changelog"

    def rows(*arguments: str) -> dict[str, list[str]]:
        at = ("--bootstrap-servers", kafka.bootstrap)
        result = CliRunner().invoke(
            app, ["topics", *arguments, *at], env={"COLUMNS": "250"}
        )
        assert result.exit_code == 0, result.exception
        found = [line.split() for line in result.stdout.splitlines()]
        return {row[0]: row[1:] for row in found if row}

    rows("create", changelog, "--partitions", "2", "--set", "cleanup.policy=compact")
    file = tmp_path / "app.py"
    file.write_text(PROGRAM.format(application=application, lines=lines))
    listed = rows("list", str(file))
    assert listed[lines][:3] == ["source", "2", "0"]
    assert listed[lines][3] == "delete"
    assert listed[changelog] == ["changelog", "2", "0", "compact"]
    for name, kind in (
        (f"missing-{application}", "sink"),
        (f"{application}-counts-repartition", "repartition"),
        (f"{application}-topology", "topology"),
    ):
        assert listed[name] == [kind, "does", "not", "exist"]
    longest = f"retention.ms={(1 << 63) - 1}"
    rows("create", f"{application}-kept", "--set", longest)
    everything = rows("list")
    assert everything[f"{application}-kept"][-2:] == ["without", "end"]
    assert everything[changelog][:2] == ["2", "0"]
    assert f"{application}-topology" not in everything
