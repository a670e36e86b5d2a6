"""A process is killed in the middle of its commits: at any moment, state and
checkpoints agree.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from coopstreams.state.database import Database
from coopstreams.state.layout import unpack
from coopstreams.state.rocks import Rocks
from coopstreams.topology.errors import StateCorruptError
from coopstreams.topology.keys import KeyRange, key_group, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, split_window_key

COUNTS = StoreSpec("counts", "key_value", text, int64)
SIZE = 60_000
WINDOWS = StoreSpec(
    "windows", "window", text, int64, window_ms=SIZE, retention_ms=4 * SIZE
)
RANGES = [key_range.groups for key_range in KeyRange.split(3)]
KEYS_OF = Counter(
    groups.first
    for key in range(300)
    for groups in RANGES
    if key_group(key_hash(b"%d" % key)) in groups.numbers
)

CHILD = """
import sys
from pathlib import Path
from coopstreams.state.database import Database
from coopstreams.state.rocks import Rocks
from coopstreams.state.task_state import TaskState
from coopstreams.topology.errors import StateCorruptError
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key

COUNTS = StoreSpec("counts", "key_value", text, int64)
WINDOWS = StoreSpec("windows", "window", text, int64, window_ms=60_000, retention_ms=240_000)
database = Database(Rocks(Path(sys.argv[1])), [COUNTS, WINDOWS])
begin = max((run.offset for run in database.checkpoints("counts")), default=0)
tasks = [(key_range, TaskState(database, [COUNTS, WINDOWS], key_range, 50_000)) for key_range in KeyRange.split(3)]
number = begin
while True:
    number += 1
    if number == begin + 10:
        print("running", flush=True)
    for key_range, state in tasks:  # all keys of a range get the number of the commit
        counts, windows = state.stores["counts"], state.stores["windows"]
        for key in (b"%d" % key for key in range(300)):
            if key_hash(key) in key_range:
                for table, at in ((counts, key), (windows, window_key(key, number * 60_000))):
                    entry = table.load(at)
                    entry.value, entry.timestamp = number, number
                    table.touch(at, entry)
        windows.advance(number * 60_000)
        state.changes()
        state.commit({"counts": number, "windows": number})
"""


def kill_midway(folder: Path, after_s: float) -> None:
    """Run the child on a folder and kill it, after nine commits at least."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    time.sleep(after_s)  # any moment for the kill will do
    child.kill()
    child.wait(60)
    child.stdout.close()


def commits_in_step(folder: Path, *, dropped_since: bool = False) -> list[int]:
    """Return the number of each range's commit, and check that all its keys in all its
    stores have that number.

    `dropped_since`: segments that were dropped after that commit may be missing. A
    restore to the end of the changelog passes them.
    """
    database = Database(Rocks(folder), [COUNTS, WINDOWS])
    reached = []
    for groups in RANGES:
        commit = database.checkpoints("counts").offset(groups)
        assert commit == database.checkpoints("windows").offset(groups)
        rows = list(database.scan("counts", groups.numbers, None, None))
        if commit is None:  # killed before its first commit
            assert not rows
            continue
        assert {int64.deserialize(unpack(data)[0]) for _, data in rows} == {commit}
        assert len(rows) == KEYS_OF[groups.first]
        windows = [
            split_window_key(key)[1] // SIZE
            for key, _ in database.scan("windows", groups.numbers, None, None)
        ]
        assert max(windows, default=0) <= commit
        assert windows.count(commit) in (
            {0, len(rows)} if dropped_since else {len(rows)}
        )
        reached.append(commit)
    database.close()
    return reached


@pytest.mark.ci
def test_after_a_kill_each_range_stands_where_its_checkpoint_says(
    tmp_path: Path,
) -> None:
    moments = random.Random(7)
    reached: list[int] = []
    for _ in range(6):
        kill_midway(tmp_path, moments.uniform(0.05, 0.4))
        before, reached = reached, commits_in_step(tmp_path)
        assert all(now >= then for now, then in zip(reached, before, strict=False))
    assert len(reached) == 3
    assert min(reached) > 20


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_write_ahead_log_that_was_cut_short_is_an_older_moment_in_step(
    tmp_path: Path, keep: float
) -> None:
    kill_midway(tmp_path, 0.3)
    newest = max(tmp_path.glob("*.log"), key=lambda file: int(file.stem))
    assert newest.stat().st_size > 10_000
    with newest.open("r+b") as file:
        file.truncate(int(newest.stat().st_size * keep))
    assert min(commits_in_step(tmp_path, dropped_since=True)) > 0


def test_a_folder_that_has_lost_its_write_ahead_log_is_damaged(tmp_path: Path) -> None:
    """Whoever tidies up may take its files for logs: rows that no file has yet would be
    missing, in silence.
    """
    kill_midway(tmp_path, 0.05)
    for file in tmp_path.glob("*.log"):
        file.unlink()
    with pytest.raises(StateCorruptError, match="its write-ahead log"):
        Rocks(tmp_path)
