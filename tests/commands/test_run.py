"""`coopstreams run` with several processes: log lines name their process, and SIGTERM
drains them all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coopstreams.commands.run import worker_command
from coopstreams.common.config import Config
from coopstreams.dev.process import wait_until
from coopstreams.topology.errors import ConfigError

APP = """
from coopstreams import StreamsBuilder, serdes

print("loaded")
builder = StreamsBuilder("{application}")
builder.stream("{topic}", key=serdes.text, value=serdes.text).group_by_key().count(store="counts")
topology = builder.build()
"""

DATED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
"""The time of a log line that is not on a terminal."""


@pytest.mark.slow
@pytest.mark.broker
def test_the_lines_of_two_processes_are_told_apart_and_sigterm_ends_both(
    kafka: Any, tmp_path: Path
) -> None:
    program, log = tmp_path / "counting.py", tmp_path / "said.log"
    program.write_text(
        APP.format(application=kafka.unique("counting"), topic=kafka.topic("words"))
    )
    command = [
        sys.executable,
        "-m",
        "coopstreams",
        "run",
        str(program),
        "--bootstrap-servers",
        kafka.bootstrap,
        "--processes",
        "2",
    ]
    with log.open("wb") as file:
        run = subprocess.Popen(
            [*command, "--instance", "5", "--state-dir", str(tmp_path / "state")],
            stdout=file,
            stderr=file,
        )
    try:
        running = [
            re.compile(rf"INFO +worker {number}: task 0_0\[\S+\] runs")
            for number in (5, 6)
        ]
        assert wait_until(
            lambda: all(line.search(log.read_text()) for line in running), 150
        ), log.read_text()
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait(120) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    said = log.read_text()
    assert re.search(r"worker 5: SIGTERM: draining", said)
    assert re.search(r"worker 6: SIGTERM: draining", said)
    # Without a terminal there is no table and no escape sequence: only log lines and
    # the program's output.
    assert "\x1b" not in said
    assert [
        line
        for line in said.splitlines()
        if not re.match(rf"{DATED} [A-Z]+ +|loaded", line)
    ] == []


def test_a_worker_gets_what_was_typed_with_a_number_and_ports_of_its_own() -> None:
    flags = {"bootstrap.servers": "kafka:9092", "http.listen": "0.0.0.0:8080"}
    checked = Config.of(
        flags
        | {
            "application.server": "host-1:80",
            "instance": 4,
            "sasl.password": "of the file",
        },
        "application",
    )
    command = worker_command(
        "app.py", Path("settings.toml"), flags, checked, 6, verbose=True
    )
    assert command[3:] == [
        "run",
        "app.py",
        "--config",
        "settings.toml",
        *command[7:-1],
        "--verbose",
    ]
    given = {
        part.partition("=")[0]: part.partition("=")[2]
        for part in command
        if "=" in part
    }
    assert given == {
        "bootstrap.servers": "kafka:9092",
        "http.listen": "0.0.0.0:8082",
        "application.server": "host-1:82",
        "instance": "6",
    }


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("https://host-1:8080/", "https://host-1:8082/"),
        ("http://host-1:8080/state", "http://host-1:8082/state"),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8082"),
        ("[fd00::1]:8080", "[fd00::1]:8082"),
        ("http://host-1", None),
        ("http://host-1/state", None),
    ],
)
def test_workers_have_addresses_of_their_own_in_whatever_form_the_first_is_given(
    address: str, counted: str | None
) -> None:
    checked = Config.of(
        {"bootstrap.servers": "kafka:9092", "application.server": address},
        "application",
    )
    if counted is None:
        with pytest.raises(
            ConfigError, match=r"application.server = http://host-1.* has no port"
        ):
            worker_command("app.py", None, {}, checked, 2, verbose=False)
    else:
        assert f"application.server={counted}" in worker_command(
            "app.py", None, {}, checked, 2, verbose=False
        )


def test_a_worker_without_queries_or_with_a_free_port_keeps_that() -> None:
    for listen in ("", "127.0.0.1:0"):
        flags = {"bootstrap.servers": "kafka:9092", "http.listen": listen}
        command = worker_command(
            "app.py", None, flags, Config.of(flags, "application"), 1, verbose=False
        )
        assert f"http.listen={listen}" in command
