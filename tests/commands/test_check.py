"""`coopstreams check`: arguments, output, exit status; and `run`, which refuses the
same changes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from coopstreams.commands.processes.restarts import WRONG, exit_status
from coopstreams.commands.topology_target import load_topology
from coopstreams.topology.errors import (
    ConfigError,
    CoopStreamsError,
    TopologyChangedError,
    TopologyError,
)
from tests.broker.counting import Counting, await_table
from tests.command_line import app
from tests.conftest import Kafka

PROGRAM = """
from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("{application}")
stream = builder.stream("{topic}", key=serdes.text, value=serdes.raw)
{counts}
topology = builder.build()
"""
COUNTS = 'stream.group_by_key().count(store="{}")'


def program(
    folder: Path, name: str, *stores: str, application: str = "app", topic: str = "in"
) -> str:
    """Write a program that counts into these stores; return its file."""
    file = folder / f"{name}.py"
    file.write_text(
        PROGRAM.format(
            application=application,
            topic=topic,
            counts="\n".join(map(COUNTS.format, stores)),
        )
    )
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("stores", "status", "said"),
    [
        (["counts"], 0, ["store counts: keeps", "position in: keeps"]),
        (
            ["counts", "more"],
            1,
            [
                "store counts: keeps",
                "store more: starts empty",
                "  in was read before the store existed: its earlier records are not in the store",
            ],
        ),
        (
            ["numbers"],
            2,
            ["store counts: lost", '  cure: name it as it was: store="counts"'],
        ),
    ],
    ids=["the same", "one more", "another name"],
)
def test_the_exit_status_says_how_bad_it_is(
    tmp_path: Path, stores: list[str], status: int, said: list[str]
) -> None:
    old, new = program(tmp_path, "old", "counts"), program(tmp_path, "new", *stores)
    result = run("check", old, new)
    assert result.exit_code == status
    assert set(said) <= set(result.stdout.splitlines())
    assert ("--set topology.change.accepted=" in result.stdout) is (status == 2)
    shown = orjson.loads(run("check", old, new, "--json").stdout)
    assert shown["severity"] == status
    assert (shown["accept"] is None) is (status < 2)
    assert [
        f"{change['what']} {change['name']}: {change['verdict']}"
        for change in shown["changes"]
    ] == [
        line for line in result.stdout.splitlines() if not line.startswith((" ", "`"))
    ]


def test_each_version_has_the_modules_of_its_own_folder(tmp_path: Path) -> None:
    files = []
    for version in ("old", "new"):
        package = tmp_path / version / "names"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "stores.py").write_text(f'STORE = "{version}"')
        files.append(Path(program(package.parent, "app", "counts")))
        text = files[-1].read_text().replace('"counts"', "STORE")
        files[-1].write_text(f"from names.stores import STORE\n{text}")
    before = {*sys.modules}
    result = run("check", *map(str, files))
    assert (result.exit_code, result.stdout.splitlines()[0]) == (2, "store old: lost")
    assert not {"app", "names", "names.stores"} & (sys.modules.keys() - before)


def test_the_old_version_may_be_what_was_described_of_it(tmp_path: Path) -> None:
    old, described = program(tmp_path, "old", "counts"), tmp_path / "old.json"
    described.write_text(run("describe", old, "--format", "json").stdout)
    assert run("check", str(described), old).exit_code == 0
    assert (
        run("check", str(described), program(tmp_path, "new", "numbers")).exit_code == 2
    )
    described.write_text(run("describe", old).stdout)
    assert isinstance(run("check", str(described), old).exception, TopologyError)
    missing = run("check", str(tmp_path / "none.json"), old).exception
    assert isinstance(missing, ConfigError)
    assert "none.json: No such file" in str(missing)


def test_versions_are_compared_as_they_run(tmp_path: Path) -> None:
    table = 'builder.table("rows", key=serdes.text, value=serdes.text, store="rows")'
    file = tmp_path / "app.py"
    file.write_text(PROGRAM.format(application="app", topic="in", counts=table))
    described = tmp_path / "old.json"
    described.write_text(
        run("describe", str(file), "--format", "json", "--optimization", "all").stdout
    )
    assert (
        run("check", str(described), str(file), "--optimization", "all").exit_code == 0
    )
    back = run("check", str(described), str(file))
    assert (back.exit_code, "store rows: lost" in back.stdout) == (2, True)
    assert "--optimization sometimes: must be none, all" in str(
        run("check", str(file), str(file), "--optimization", "sometimes").exception
    )


def test_versions_that_cannot_be_compared_are_not_taken_for_ones_that_fit(
    tmp_path: Path,
) -> None:
    (tmp_path / "new.py").write_text(
        "raise ConnectionRefusedError(111, 'a service that the program asks')"
    )
    refused = run(
        "check", program(tmp_path, "old", "a"), str(tmp_path / "new.py")
    ).exception
    assert isinstance(refused, CoopStreamsError)
    assert exit_status(refused) == WRONG
    assert re.match(
        r"nothing could be compared: .*new.py cannot be loaded", str(refused)
    )


def test_two_versions_are_enough(tmp_path: Path) -> None:
    file = program(tmp_path, "old", "counts")
    assert "two versions" in run("check", file, file, file).output


def test_a_refused_start_is_not_tried_again() -> None:
    assert exit_status(TopologyChangedError("no")) == WRONG


@pytest.mark.ci
@pytest.mark.broker
def test_a_version_alone_is_compared_with_the_one_that_ran_last_and_run_refuses_what_is_told(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    at, state = (
        ["--bootstrap-servers", kafka.bootstrap],
        ["--state-dir", str(tmp_path / "state")],
    )
    old = program(
        tmp_path,
        "old",
        "counts",
        application=counting.application,
        topic=counting.source,
    )
    new = program(
        tmp_path,
        "new",
        "numbers",
        application=counting.application,
        topic=counting.source,
    )
    unknown = run("check", old, *at).exception
    assert isinstance(unknown, ConfigError)
    assert f"the cluster has no topic {counting.application}-topology" in str(unknown)
    with counting.app(tmp_path / "state") as running:
        await_table(running, counting.write(["a", "b"]))
    assert load_topology(old).application_id == counting.application
    assert run("check", old, *at).exit_code == 0
    told = run("check", new, *at)
    assert (told.exit_code, "store counts: lost" in told.stdout) == (2, True)
    refused = run("run", new, *at, *state).exception
    assert isinstance(refused, TopologyChangedError)
    assert (
        told.stdout.splitlines()[-1].rpartition(" ")[2]
        == str(refused).rpartition(" ")[2]
    ), "the word is the same"
    kafka.delete(counting.changelog)
    assert run("check", new, *at).exit_code == 0, "there is nothing that could be lost"
