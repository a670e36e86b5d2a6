"""`coopstreams dev`: arguments, output, exit status."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.command_line import app


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that ends: what it starts goes on running."""
    command = [sys.executable, "-m", "coopstreams", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120
    )


def coopstreams(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments, env=environment)


@pytest.mark.ci
@pytest.mark.broker
def test_dev_starts_finds_and_stops_one_broker(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    try:
        first = in_a_process("dev", *data)
        assert first.returncode == 0, first.stdout + first.stderr
        address = re.search(r"is up at (127\.0\.0\.1:\d+)", first.stdout)
        assert address is not None, first.stdout

        again = coopstreams("dev", *data)
        assert f"was already running at {address[1]}" in again.stdout

        status = coopstreams("dev", "status", *data)
        assert (status.exit_code, f"answers at {address[1]}" in status.stdout) == (
            0,
            True,
        )
    finally:
        stopped = coopstreams("dev", "stop", *data)
    assert "Kafka is stopped" in stopped.stdout

    status = coopstreams("dev", "status", *data)
    assert (status.exit_code, "no broker runs on" in status.stdout) == (1, True)
    assert "no broker runs on" in coopstreams("dev", "stop", *data).stdout


@pytest.mark.broker
@pytest.mark.slow
def test_dev_secure_starts_a_broker_that_its_settings_file_can_use(
    tmp_path: Path,
) -> None:
    data = ("--data", str(tmp_path / "data"))
    try:
        done = in_a_process("dev", *data, "--secure")
        assert done.returncode == 0, done.stdout + done.stderr
        (address,) = re.findall(r"is up at (127\.0\.0\.1:\d+)", done.stdout)
        (config,) = re.findall(r"super user: --config (\S+)", done.stdout)
        assert f"coopstreams dev {' '.join(data)} --secure stop" in done.stdout
        assert coopstreams("dev", *data, "status").exit_code == 0
        described = coopstreams(
            "group",
            "describe",
            "nobody",
            "--bootstrap-servers",
            address,
            "--config",
            config,
        )
        assert (described.exit_code, "Dead" in described.stdout + described.stderr) == (
            0,
            True,
        ), described
    finally:
        assert (
            "Kafka is stopped" in coopstreams("dev", *data, "--secure", "stop").stdout
        )
    assert oct((tmp_path / "data" / "security").stat().st_mode)[-3:] == "700"


def test_dev_without_java_prints_an_error_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = coopstreams(
        "dev",
        "--data",
        str(tmp_path),
        environment={
            "JAVA_HOME": str(tmp_path),
            "PATH": "",
            "COOPSTREAMS_CACHE": str(tmp_path),
        },
    )
    assert done.exit_code == 1
    assert "error: no usable Java: JAVA_HOME" in done.stdout
    assert isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", [[], ["stop"], ["status"]])
def test_a_folder_that_cannot_be_written_is_an_error_and_no_traceback(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "file").touch()
    done = coopstreams("dev", "--data", str(tmp_path / "file" / "data"), *command)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"error: Not a directory: {tmp_path}/file")
    assert "--data" in done.stdout
    assert done.stderr == ""


def test_help_names_the_commands() -> None:
    assert "Apache Kafka" in coopstreams("--help").stdout
    assert {"stop", "status"} <= set(coopstreams("dev", "--help").stdout.split())
