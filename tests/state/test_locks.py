"""The lock of a state folder: one instance has it, and nothing of it outlives its
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from coopstreams.state.directory import StateDirectory
from coopstreams.topology.errors import StateLockedError

HOLD = """
import sys
from coopstreams.state.directory import FORMAT, StateDirectory
directory = StateDirectory(sys.argv[1], "app", 0)
print("held", flush=True)
sys.stdin.read()
"""
HOLD_AND_FORK = """
import os, signal, sys
from coopstreams.state.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "app", 0)
if os.fork() == 0:
    os.write(1, b"forked\\n")
    sys.stdin.read()
    directory.close()
    os.write(1, b"ended\\n")
    os._exit(0)
os.write(1, b"held\\n")
signal.pause()
"""


def started(
    program: str, folder: Path
) -> tuple[subprocess.Popen[str], IO[str], IO[str]]:
    """Return a process of this program, what it reads, and what it writes."""
    command = [sys.executable, "-c", program, str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, process.stdin, process.stdout


def test_a_folder_in_use_by_another_process_names_folder_process_and_cure(
    tmp_path: Path,
) -> None:
    holder, told, tells = started(HOLD, tmp_path)
    try:
        assert tells.readline() == "held\n"
        with pytest.raises(StateLockedError) as caught:
            StateDirectory(tmp_path, "app", 0)
        message = str(caught.value)
        assert str(tmp_path / "app" / "instance-0") in message
        assert f"process {holder.pid}" in message
        assert "another instance number or state.dir" in message
        StateDirectory(tmp_path, "app", 1).close()
    finally:
        told.close()
        holder.wait(30)
    StateDirectory(tmp_path, "app", 0).close()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder, _, tells = started(HOLD, tmp_path)
    assert tells.readline() == "held\n"
    holder.kill()
    holder.wait(30)
    tells.close()
    StateDirectory(tmp_path, "app", 0).close()


def test_the_same_process_cannot_open_a_folder_twice_either(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    with pytest.raises(
        StateLockedError,
        match=rf"in use by another instance in this process \({os.getpid()}\): ",
    ):
        StateDirectory(tmp_path, "app", 0)
    directory.close()


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_process(
    tmp_path: Path,
) -> None:
    """The worker of a `multiprocessing.Pool` outlives a killed parent, and so may a
    child that a library forked.
    """
    holder, told, tells = started(HOLD_AND_FORK, tmp_path)
    assert {tells.readline(), tells.readline()} == {"forked\n", "held\n"}
    with pytest.raises(StateLockedError, match=f"in use by process {holder.pid}:"):
        StateDirectory(tmp_path, "app", 0)
    holder.kill()
    holder.wait(30)
    StateDirectory(tmp_path, "app", 0).close()
    told.close()  # ends the child
    assert tells.read() == "ended\n"
    tells.close()
