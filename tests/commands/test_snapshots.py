"""`coopstreams rebuild` and `coopstreams snapshots`: arguments, output, files, exit
status.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coopstreams.state import snapshot
from coopstreams.state.manifest import Manifest
from coopstreams.topology.errors import ConfigError, SnapshotError, UnknownTopicError
from tests.broker.counting import PROGRAM, Counting, await_table
from tests.command_line import app
from tests.conftest import Kafka


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140"})


def said(result: Result) -> str:
    """Return the output of a command that must succeed."""
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def program(kafka: Kafka, tmp_path: Path) -> tuple[Counting, Path]:
    """An application that has counted 500 keys, and its program in a file."""
    counting = Counting.make(kafka, 2)
    written = counting.write([f"key-{number}" for number in range(500)])
    with counting.app(tmp_path / "state") as live:
        await_table(live, written)
    file = tmp_path / "counting_program.py"
    file.write_text(counting.program)
    return counting, file


@pytest.mark.ci
@pytest.mark.broker
def test_a_snapshot_is_made_listed_verified_and_cleaned_up_from_the_command_line(
    program: tuple[Counting, Path], kafka: Kafka, tmp_path: Path
) -> None:
    counting, file = program
    url, where = str(tmp_path / "snapshots"), ["--bootstrap-servers", kafka.bootstrap]
    first = said(run("rebuild", str(file), "--snapshots", url, *where))
    assert "1 stores, 500 keys" in first
    second = said(
        run(
            "rebuild",
            str(file),
            "--snapshots",
            url,
            *where,
            "--store",
            "counts",
            "--partitions",
            "1",
            "--groups",
            "0-127",
            "--afresh",
        )
    )
    assert "1 stores, 500 keys" in second
    old, new = first.split()[0], second.split()[0]
    (
        tmp_path / "snapshots" / counting.application / "20200101T000000-unfinished"
    ).mkdir()
    (
        tmp_path
        / "snapshots"
        / counting.application
        / "20200101T000000-unfinished"
        / "x.sst"
    ).write_bytes(b"x")
    listed = said(run("snapshots", "ls", url))
    assert f"{new} *" in listed
    assert f"{old} *" not in listed
    assert (
        f" {old} "
        in CliRunner()
        .invoke(app, ["snapshots", "ls", url], env={"COLUMNS": None})
        .stdout
    ), "a run that is cut short cannot be published"
    assert "unfinished" in listed
    assert "none with a fault" in said(
        run("snapshots", "verify", url, counting.application)
    )

    assert (
        said(run("snapshots", "publish", url, counting.application, old)).strip()
        == f"{old} is published"
    )
    would = said(run("snapshots", "gc", url, counting.application, "--dry-run"))
    assert would.strip().endswith("3 files would be deleted")
    said(run("snapshots", "publish", url, counting.application, new))
    assert "are deleted" in said(run("snapshots", "gc", url, counting.application))
    assert "none with a fault" in said(
        run("snapshots", "verify", url, counting.application)
    )
    assert snapshot.runs(url, counting.application) == [old, new]
    with pytest.raises(SnapshotError, match="it has no manifest"):
        raise (
            run("snapshots", "publish", url, counting.application, old).exception
            or AssertionError
        )

    damaged = next((tmp_path / "snapshots").rglob("*.sst"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    result = run("snapshots", "verify", url, counting.application)
    assert result.exit_code == 1
    assert f"{damaged.name}: " in result.stdout
    assert "is damaged" in result.stdout


@pytest.mark.broker
def test_an_application_that_never_ran_has_nothing_to_rebuild(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting, file = Counting.make(kafka), tmp_path / "never_ran_program.py"
    file.write_text(counting.program)
    result = run(
        "rebuild",
        str(file),
        "--snapshots",
        str(tmp_path / "s"),
        "--bootstrap-servers",
        kafka.bootstrap,
    )
    assert isinstance(result.exception, UnknownTopicError)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--snapshots URL"),
        (["--snapshots", "s", "--partitions", "0,x"], "as 0,3"),
        (["--snapshots", "s", "--groups", "9-3"], "within 0-255"),
        (["--snapshots", "s", "--groups", "0-256"], "within 0-255"),
        (["--snapshots", "s", "--set", "oops"], "NAME=VALUE"),
    ],
)
def test_what_is_typed_wrong_is_said_before_anything_is_contacted(
    options: list[str], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "unused_program.py"
    file.write_text(PROGRAM.format(application="a", source="b", sink="c"))
    result = run("rebuild", str(file), "--bootstrap-servers", "127.0.0.1:1", *options)
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)


def test_where_there_is_nothing_the_commands_say_so(tmp_path: Path) -> None:
    assert said(run("snapshots", "ls", str(tmp_path))).startswith("nothing at")
    result = run("snapshots", "verify", str(tmp_path), "app")
    assert isinstance(result.exception, SnapshotError)
    assert "nothing of app is published" in str(result.exception)


def test_a_damaged_manifest_is_listed_as_that_and_cleaned_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Manifest("app", "run-1", "rebuild", "2026-11-21T00:00:00Z", {})
    snapshot.store_manifest(str(tmp_path), made)
    snapshot.store_manifest(str(tmp_path), replace(made, run="run-2"))
    file = tmp_path / "app" / "run-2" / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"rebuild", b"rebuilt"))
    listed = said(run("snapshots", "ls", str(tmp_path))).splitlines()
    assert [line.split()[2] for line in listed if "run-" in line] == [
        "rebuild",
        "damaged",
    ]
    assert said(run("snapshots", "gc", str(tmp_path), "app")).splitlines() == [
        "run-2/manifest.json",
        "1 files are deleted",
    ]
    assert 'snapshot "run-2" of app' in caplog.text
    assert "It restores nothing" in caplog.text


def test_a_savepoint_is_listed_kept_and_forgotten(tmp_path: Path) -> None:
    url = str(tmp_path)
    made = Manifest("app", "run-1", "savepoint", "2026-11-20T00:00:00Z", {})
    snapshot.name_savepoint(url, made, "before-july")
    for number in (2, 3):
        snapshot.publish(url, replace(made, run=f"run-{number}", kind="running"))
    assert "run-1 before-july" in said(run("snapshots", "ls", url))
    said(run("snapshots", "gc", url, "app"))
    assert snapshot.load_savepoint(url, "app/before-july") == made
    assert "is forgotten" in said(run("snapshots", "forget", url, "app", "before-july"))
    said(run("snapshots", "gc", url, "app"))
    assert snapshot.runs(url, "app") == ["run-3"]
    with pytest.raises(SnapshotError, match='there is no savepoint "before-july"'):
        snapshot.forget_savepoint(url, "app", "before-july")
    with pytest.raises(SnapshotError, match="is no name for a savepoint"):
        snapshot.name_savepoint(url, made, "a/b")
