"""A reader of a page: runs its commands in order, in terminals, and compares their
output with the page.

`…` in what is shown stands for anything. Lines may come in any order, and within a time
limit, because a running application may need a moment. In a terminal with a name a
command is left running; before the next one there, the reader presses Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from coopstreams.dev.process import free_port, port_is_free
from tests.docs.pages import Block

PATIENCE_S = 120.0
AGAIN_S = 0.3


class Reader:
    """Types commands in a folder. `addresses` replaces parts of any text for this
    machine; `environment` is for all commands. `cd` holds for all terminals.
    """

    def __init__(
        self, folder: Path, addresses: dict[str, str], environment: dict[str, str]
    ) -> None:
        self._folder = folder
        self._here = folder
        self._addresses = addresses
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "80",
            **environment,
        }
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, block: Block) -> None:
        """Run the commands of a console block, each to its end; or save the file of a
        Python block.
        """
        if block.file is not None:
            (self._here / block.file).write_text(self._put(block.text))
        terminal = next(
            (word for word in block.words if word.startswith("terminal-")), None
        )
        for command, shown in block.commands if block.language == "console" else ():
            wanted = [self._put(line) for line in shown if line.strip("… ")]
            typed = self._put(command)
            if typed.startswith("cd "):
                self._here /= typed.removeprefix("cd ")
            elif terminal is not None:
                self._begin(f"{block}", terminal, typed, wanted)
            else:
                self._run(f"{block}", typed, wanted)

    def close(self) -> None:
        """Send Ctrl-C to all programs; kill those that do not end."""
        for terminal in list(self._terminals):
            self._end(terminal)

    def log(self, terminal: str) -> str:
        """Return the output of a terminal since its last command."""
        return (self._folder / f"{terminal}.log").read_text(errors="replace")

    def _put(self, text: str) -> str:
        for said, right in self._addresses.items():
            text = text.replace(said, right)
        return text

    def _run(self, where: str, command: str, wanted: list[str]) -> None:
        printed: list[str] = []

        def prints() -> str:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self._here,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_S,
                check=False,
            )
            printed[:] = [done.stdout.decode(errors="replace")]
            if not wanted:
                assert done.returncode == 0, f"{where}: $ {command}\n{printed[0]}"
            return printed[0]

        if not _soon(wanted, prints):
            logs = "\n".join(
                f"--- {terminal}\n{self.log(terminal)}" for terminal in self._terminals
            )
            raise AssertionError(
                f"{where}: $ {command}\nshould print\n{os.linesep.join(wanted)}\nbut prints\n{printed[0]}\n{logs}"
            )

    def _begin(
        self, where: str, terminal: str, command: str, wanted: list[str]
    ) -> None:
        self._end(terminal)
        with (self._folder / f"{terminal}.log").open("wb") as log:
            self._terminals[terminal] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._here,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert _soon(wanted, lambda: self.log(terminal)), (
            f"{where}: $ {command}\nshould print\n{os.linesep.join(wanted)}\nbut prints\n{self.log(terminal)}"
        )

    def _end(self, terminal: str) -> None:
        process = self._terminals.pop(terminal, None)
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(
                f"{terminal} did not end after Ctrl-C\n{self.log(terminal)}"
            ) from None


def free_ports(count: int) -> int:
    """Return the first of some neighbouring free ports."""
    while True:
        first = free_port()
        if all(port_is_free(first + i) for i in range(count)):
            return first


def matches(shown: str, printed: str) -> bool:
    """Whether a line matches the shown one, except for spaces at the end."""
    return (
        re.fullmatch(
            ".*".join(map(re.escape, shown.rstrip().split("…"))), printed.rstrip()
        )
        is not None
    )


def _soon(wanted: list[str], printed: Callable[[], str]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lines = printed().splitlines()
        if all(any(matches(line, found) for found in lines) for line in wanted):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(AGAIN_S)
