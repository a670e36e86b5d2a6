"""Two applications whose internal topics have the same names, on a real Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, serdes
from tests.broker.counting import Counting, await_running, failure_of, table
from tests.broker.waiting import eventually
from tests.command_line import app as commands
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def counting(kafka: Kafka, application: str, store: str) -> Counting:
    """Return an application that counts a topic of its own."""
    source = kafka.topic("in")
    builder = StreamsBuilder(application)
    records = builder.stream(source, key=serdes.text, value=serdes.raw)
    records.group_by_key().count(store=store)
    return Counting(kafka, application, source, source, builder.build())


@pytest.mark.ci
def test_an_application_that_would_share_a_changelog_with_another_is_refused_and_its_reset_leaves_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    name = kafka.unique("q")
    first, second = (
        counting(kafka, name, "counts-of"),
        counting(kafka, f"{name}-counts", "of"),
    )
    shared = f"{name}-counts-of-changelog"
    with first.app(tmp_path / "first") as app:
        await_running([app])
        refused = str(failure_of(second.app(tmp_path / "second")))
        assert f'{shared} is an internal topic of application "{name}", too' in refused
        written = first.write(["a", "b", "a"])
        counted(app, written)
    (tmp_path / "app.py").write_text(
        f"""
from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("{second.application}")
records = builder.stream("{second.source}", key=serdes.text, value=serdes.raw)
records.group_by_key().count(store="of")
topology = builder.build()
"""
    )
    reset = CliRunner().invoke(
        commands,
        [
            *f"reset {tmp_path / 'app.py'} --yes --bootstrap-servers".split(),
            kafka.bootstrap,
        ],
        env={"COLUMNS": "250"},
    )
    assert reset.exit_code == 0, reset.output
    assert f"stays: topic {shared}, which application {name} has, too" in reset.output
    with first.app(tmp_path / "elsewhere") as app:
        counted(app, written)


def counted(app: CoopStreams, written: dict[str, int]) -> None:
    """Return when the store has these counts."""
    eventually(
        lambda: table(app, "counts-of") == written,
        60,
        lambda: str(table(app, "counts-of")),
    )
