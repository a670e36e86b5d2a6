"""A full disk: refused writes are not in the database, accepted ones are, and the
folder can be opened again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.state.test_mixed_engines import ROOT

CHILD = """
import os, resource, subprocess, sys
from pathlib import Path
from coopstreams.topology.keys import ALL_GROUPS
from coopstreams.state.directory import StateDirectory
from coopstreams.state.engine import Change
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.layout import family_of
from coopstreams.topology.errors import StateError
from coopstreams.topology.serdes import raw, text
from coopstreams.topology.stores import StoreSpec

SPEC = StoreSpec("rows", "key_value", text, raw)
how, folder, errors = sys.argv[1], Path(sys.argv[2]), []

def room(mb):
    if how == "tmpfs":
        subprocess.run(["mount", "-o", f"remount,size={mb}m", str(folder)], check=True)
    else:  # no file grows beyond that
        resource.setrlimit(resource.RLIMIT_FSIZE, (mb << 20, resource.RLIM_INFINITY))

def commit(database, number):
    rows = [b"%08d" % number + os.urandom(1000) for _ in range(10)]
    change = Change(family_of("rows"), [b"\\x07%d" % key for key in range(10)], rows)
    database.write([change], {"rows": [Checkpoint(0, 255, number)]})

def stands(database):
    getter = database.getter("rows")
    return {int(getter(b"\\x07%d" % key)[:8]) for key in range(10)} | {database.checkpoints("rows").offset(ALL_GROUPS)}

room(4)
directory = StateDirectory(folder, "app", 0)
database = directory.open(0, 0, [SPEC])
rocks = database._of["rows"]._engine
rocks.create("window/old/1")
rocks.write([Change("window/old/1", [b"key"], [b"value"])])
number = 0
try:
    while number < 100_000:
        number += 1
        commit(database, number)
except StateError as error:
    errors.append(error)  # with its traceback, as whoever reports it has it
assert errors, "there was room for all"
assert stands(database) == {number - 1}, (stands(database), number)
print("refused", number, errors[0])
read = rocks.getter("window/old/1")
if how != "tmpfs":
    room(0)
try:
    rocks.drop("window/old/1")
except StateError as error:
    errors.append(error)
assert len(errors) == 2, "there was room to drop it"
assert "window/old/1" in rocks.families()
assert read(b"key") == b"value"
print("not dropped", errors[1])
room(64)
directory.release(0, 0)
database = directory.open(0, 0, [SPEC])
assert stands(database) == {number - 1}
commit(database, 7)
assert stands(database) == {7}
directory.close()
"""


BEGINNING = """
import resource, subprocess, sys
from pathlib import Path
from coopstreams.state.directory import StateDirectory
from coopstreams.topology.errors import StateError

how, folder = sys.argv[1], Path(sys.argv[2])
StateDirectory(folder, "app", 0).close()
for name in ("format", "process-id"):
    (folder / "app" / "instance-0" / name).unlink()
full = folder / "full"
if how == "tmpfs":
    try:
        with full.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
    except OSError:
        pass
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        StateDirectory(folder, "app", 0)
        raise AssertionError("there was room for all")
    except StateError as error:
        print(error)
if how == "tmpfs":
    full.unlink()
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
StateDirectory(folder, "app", 0).close()
"""


@pytest.fixture(params=["limit", "tmpfs"])
def full(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[str], str]]:
    """Return a function that runs a program on a small disk, and returns its output."""
    how = request.param
    if how == "tmpfs" and (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False
        ).returncode
    ):
        pytest.skip("mounting a file system is not allowed here")

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, how, tmp_path],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    if how == "tmpfs":
        subprocess.run(["umount", tmp_path], check=True)


def test_what_was_refused_is_not_there_and_the_folder_opens_again_in_the_same_process(
    full: Callable[[str], str],
) -> None:
    said = full(CHILD)
    assert "not dropped" in said
    assert re.search(
        r"refused \d+ .*0_0.* cannot be used: .*(No space left on device|File too large)",
        said,
    )


def test_a_start_on_a_full_disk_says_so_and_leaves_the_folder_to_the_next(
    full: Callable[[str], str],
) -> None:
    said = full(BEGINNING).splitlines()
    for line in said:
        assert re.search(
            r"cannot be used: .*(No space left on device|File too large)", line
        )
    assert len(said) == 2
