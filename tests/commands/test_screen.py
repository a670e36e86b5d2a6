"""`coopstreams run --processes N` on a terminal: a table of the processes, their log
lines above it, and an orderly end by Ctrl-C.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from coopstreams.commands.terminal.processes import WorkerProcess, processes_table
from coopstreams.commands.terminal.screen import Screen
from coopstreams.dev.process import wait_until
from tests.broker.processes import alive

APP = """
import os
from coopstreams import StreamsBuilder, serdes

print("loaded by", os.getpid())
builder = StreamsBuilder("{application}")
builder.stream("{topic}", key=serdes.text, value=serdes.text).group_by_key().count(store="counts")
topology = builder.build()
"""

OWN_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes the terminal that of the session, so that Ctrl-C typed there is a SIGINT, then
becomes the command.
"""

NOW = 1000.0

_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A program on a pseudo-terminal of its own, and everything that it has written
    there.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """The output, without colours and movements of the cursor."""
        return _CODES.sub("", self.written.decode(errors="replace"))

    def rows(self, pattern: str) -> list[str]:
        """Return the lines that match."""
        return [line for line in self.text.splitlines() if re.search(pattern, line)]

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(60)
        os.close(self.master)

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 1 << 16):
                self.written += data
        except OSError:
            return  # the last process at the other end is gone


@pytest.fixture
def started(kafka: Any, tmp_path: Path) -> Iterator[tuple[Terminal, Any]]:
    program, topic = tmp_path / "counting.py", kafka.topic("words")
    program.write_text(APP.format(application=kafka.unique("counting"), topic=topic))
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
    with Terminal(
        [*command, "--state-dir", str(tmp_path / "state")], tmp_path
    ) as terminal:

        def write(count: int) -> None:
            kafka.write(
                topic, ((f"key-{number % 50}", b"x") for number in range(count))
            )

        yield terminal, write


@pytest.mark.ci
@pytest.mark.broker
def test_a_terminal_shows_the_processes_and_ctrl_c_ends_them_in_good_order(
    started: tuple[Terminal, Any],
) -> None:
    terminal, write = started
    halves = [
        rf"^ *{number}  pid \d+ +running +0_0\[{groups}\] +[\d,]+ +0 +0 +0 +- *$"
        for number, groups in ((0, r"\d+..\d+"), (1, r"\d+..\d+"))
    ]
    assert wait_until(lambda: all(terminal.rows(row) for row in halves), 150), (
        terminal.text[-4000:]
    )
    pids = [
        int(re.findall(rf"{number}  pid (\d+)", terminal.text)[-1]) for number in (0, 1)
    ]
    assert all(alive(pid) for pid in pids)
    write(3000)
    busy = r"^ *[01]  pid \d+ +running +0_0\[\S+\] +[1-9][\d,]* +"
    assert wait_until(lambda: bool(terminal.rows(busy)), 120), terminal.text[-4000:]
    for number in (0, 1):
        assert terminal.rows(rf"INFO +worker {number}: task 0_0\[\S+\] runs"), (
            "what workers log is above the table"
        )
    assert len(terminal.rows(r"loaded by \d+")) == 3, (
        "and what they print: the supervisor loads the program, too"
    )
    os.kill(pids[1], signal.SIGKILL)
    assert wait_until(
        lambda: bool(
            terminal.rows("worker 1 was killed by SIGKILL; starting it again")
        ),
        120,
    ), terminal.text[-4000:]
    assert wait_until(
        lambda: any(
            pid not in pids
            for pid in map(int, re.findall(r"1  pid (\d+)", terminal.text))
        ),
        120,
    ), terminal.text[-4000:]
    terminal.type(b"\x03")
    assert terminal.process.wait(120) == 0, terminal.text[-4000:]
    assert terminal.rows("SIGINT: draining")
    assert terminal.rows(r"^ *0  pid \d+ +(draining|ended)")
    assert "Traceback" not in terminal.text
    assert terminal.written.rstrip().endswith(b"\x1b[?25h"), "the cursor is back"
    assert not any(
        alive(pid) for pid in map(int, re.findall(r"[01]  pid (\d+)", terminal.text))
    )


@pytest.mark.slow
@pytest.mark.broker
def test_workers_whose_screen_is_gone_drain_and_end(
    started: tuple[Terminal, Any],
) -> None:
    """Their output is not read any more; that must not block their last commit."""
    terminal, write = started
    assert wait_until(
        lambda: len(terminal.rows(r"^ *[01]  pid \d+ +running +0_0\[\S+\]")) >= 2, 150
    ), terminal.text[-4000:]
    pids = {int(pid) for pid in re.findall(r"[01]  pid (\d+)", terminal.text)}
    write(3000)
    terminal.process.kill()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 120)


def test_a_worker_may_go_on_to_print_when_the_terminal_is_gone() -> None:
    master, slave = pty.openpty()
    terminal = open(slave, "w")  # noqa: SIM115 it cannot be flushed at the end
    screen = Screen(Console(file=terminal, force_terminal=True), "shop")
    os.close(master)
    prints = "for _ in range(4000): print('more than fits into a pipe')"
    assert screen.spawn(0, [sys.executable, "-c", prints], os.environ, ()).wait() == 0
    screen.handler().handle(logging.makeLogRecord({"msg": "and so may the supervisor"}))
    with suppress(OSError):
        terminal.close()


def shown(*processes: WorkerProcess, width: int = 100) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 closed with the test
    console.print(processes_table("shop", processes, NOW))
    return [
        line.rstrip() for line in console.export_text().splitlines() if line.strip()
    ]


def task(
    id_: str, state: str = "running", rate: float | None = 10.0, lag: int | None = 5
) -> dict[str, Any]:
    done = {
        "written": {"out": 15, "other": 5},
        "dropped": [{"node": "join", "reason": "null-key", "records": 1}],
        "behind_ms": 3000,
    }
    return {
        "id": id_,
        "state": state,
        "rate": rate,
        "lag": lag,
        "shared": "0..255" not in id_,
        **done,
    }


def report(
    *tasks: dict[str, Any],
    state: str = "running",
    reasons: tuple[str, ...] = (),
    live: bool = True,
) -> dict[str, Any]:
    return {
        "state": state,
        "live": live,
        "reasons": [{"code": code} for code in reasons],
        "tasks": list(tasks),
    }


def test_the_table_has_a_row_for_each_process_and_one_for_all() -> None:
    one = WorkerProcess(
        0,
        100,
        "",
        report(
            task("0_0[0..127]", rate=1200.4, lag=7),
            task("1_0[0..255]", rate=0.0, lag=0),
        ),
    )
    other = WorkerProcess(
        1, 101, "", report(task("0_0[128..255]", rate=800.0, lag=2000))
    )
    title, heading, _, *rows = shown(one, other)
    assert title == "shop"
    assert heading.split("  ")[0].strip() == "process"
    assert [re.split(r"\s{2,}", row.strip()) for row in rows if "─" not in row] == [
        [
            "0",
            "pid 100",
            "running",
            "0_0[0..127], 1_0[0..255]",
            "1,200",
            "40",
            "2",
            "≤7",
            "3 s",
        ],
        ["1", "pid 101", "running", "0_0[128..255]", "800", "20", "1", "≤2,000", "3 s"],
        ["together", "3 tasks", "2,000", "60", "3", "≤2,007", "3 s"],
    ]


def test_what_is_not_known_is_not_a_figure() -> None:
    opening = {"id": "0_0[0..255]", "state": "restoring", "rate": 0.0, "lag": None}
    rows = shown(
        WorkerProcess(0, 100),
        WorkerProcess(1, 101, "", report(opening, state="rebalancing")),
    )
    assert re.search(r"starting( +-){5}$", rows[3])
    assert re.search(r"rebalancing +0_0\[0\.\.255\] restoring +0 +- +- +- +-$", rows[4])
    assert re.search(r"together +1 task +0 +- +- +- +-$", rows[-1])


def test_a_process_that_ended_has_no_tasks_any_more() -> None:
    rows = shown(WorkerProcess(0, 100, "ended", report(task("0_0[0..255]"))))
    assert re.search(r"ended( +-){5}$", rows[3])


def test_reasons_are_named_and_many_tasks_are_counted() -> None:
    stalled = WorkerProcess(
        0,
        100,
        "",
        report(
            *(task(f"0_{n}[0..255]") for n in range(9)),
            reasons=("no-progress", "no-progress"),
            live=False,
        ),
    )
    text = " ".join(shown(stalled, width=200))
    assert "running: no-progress " in text
    assert "0_5[0..255], and 3 more" in text
    waiting = WorkerProcess(
        1, 101, "", report(state="waiting", reasons=("another-version",))
    )
    assert "waiting: another-version " in " ".join(shown(waiting, width=160))


def test_a_process_that_is_started_again_says_when_and_why_and_how_often() -> None:
    ended = WorkerProcess(
        0,
        100,
        "ended",
        report(task("0_0[0..255]")),
        restarts=2,
        last_end="ended with status 1: LogError: gone",
        again_at=NOW + 4,
    )
    rows = shown(
        ended,
        WorkerProcess(1, 101, "", report(task("0_0[0..255]")), restarts=1),
        width=160,
    )
    assert re.search(
        r"again in 4 s: ended with status 1: LogError: gone( +-){5}$", rows[3]
    )
    assert re.search(r"running, 1 restart +0_0", rows[4])


def test_the_last_report_of_a_process_that_is_killed_may_be_cut_off() -> None:
    process = WorkerProcess(0, 1)
    Screen._reports(BytesIO(b'{"state": "running"}\n{"state": "run'), process)
    assert process.report == {"state": "running"}
