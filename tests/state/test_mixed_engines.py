"""A database whose stores are in several engines: RocksDB, memory, and a user's. Each
store has the checkpoint of its own engine.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state.database import Database
from coopstreams.state.directory import StateDirectory
from coopstreams.state.engines import check_store_types
from coopstreams.state.layout import unpack
from coopstreams.state.restore import Restore
from coopstreams.state.rocks import Rocks
from coopstreams.topology.errors import ConfigError, StateCorruptError, StateError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec
from tests.state.bounds import bounds
from tests.state.mixed import ALL, DISK, OWN, commit
from tests.state.sqlite_engine import NAME, Sqlite
from tests.state.test_restore import Record, feed, fold, some_log

ROOT = Path(__file__).resolve().parents[2]


def values(database: Database, spec: StoreSpec) -> set[int]:
    return {
        int64.deserialize(unpack(data)[0])
        for _, data in database.scan(spec.name, range(256), None, None)
    }


def stands(
    database: Database, specs: Sequence[StoreSpec] = ALL
) -> dict[str, int | None]:
    """Return the checkpoint of each store, and check that its rows are of that commit."""
    found = {
        spec.name: database.checkpoints(spec.name).offset(ALL_GROUPS) for spec in specs
    }
    for spec in specs:
        at = found[spec.name]
        assert values(database, spec) == (set() if at is None else {at})
    return found


def restored(
    database: Database,
    log: Sequence[Record],
    upto: int,
    specs: Sequence[StoreSpec] = ALL,
) -> dict[str, int]:
    """Restore all stores from a changelog; return the number of records read by each."""
    read = {}
    for spec in specs:
        restore = Restore(database, spec, [WHOLE], bounds(upto))
        feed(restore, log, upto, 1000)
        read[spec.name] = restore.progress().read
    return read


def test_after_a_restart_memory_is_restored_and_what_is_on_disk_stands_where_it_stood(
    tmp_path: Path,
) -> None:
    log = some_log(500)
    directory = StateDirectory(tmp_path, "app", 0)
    restored(directory.open(0, 0, ALL), log, 300)
    directory.close()
    directory = StateDirectory(tmp_path, "app", 0)
    database = directory.open(0, 0, ALL)
    assert {
        spec.name: database.checkpoints(spec.name).offset(ALL_GROUPS) for spec in ALL
    } == {
        "disk": 300,
        "heap": None,
        "own": 300,
    }
    assert {spec.name: database.has_keys(spec.name, ALL_GROUPS) for spec in ALL} == {
        "disk": True,
        "heap": False,
        "own": True,
    }
    tail = len([record for record in log if record[0] >= 300])
    assert restored(database, log, 1000) == {
        "disk": tail,
        "heap": len(log),
        "own": tail,
    }
    for spec in ALL:
        assert {
            key: unpack(data)
            for key, data in database.scan(spec.name, range(256), None, None)
        } == fold(log)
    directory.close()


@pytest.mark.ci
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["disk", "heap", "own"]), st.integers(1, 400)),
        max_size=6,
    ),
    st.sampled_from(["restart", "again"]),
)
def test_wherever_each_store_was_left_all_are_the_fold_of_their_changelogs_in_the_end(
    tmp_path: Path, stops: list[Mapping[str, int]], how: str
) -> None:
    log = some_log(150)
    shutil.rmtree(tmp_path / "app", ignore_errors=True)
    directory = StateDirectory(tmp_path, "app", 0)
    for stop in stops:
        database = directory.open(0, 0, ALL)
        for spec in ALL:
            if spec.name in stop:
                restored(
                    database,
                    log,
                    max(
                        stop[spec.name],
                        database.checkpoints(spec.name).offset(ALL_GROUPS) or 0,
                    ),
                    [spec],
                )
        directory.release(0, 0)
        if how == "restart":
            directory.close()
            directory = StateDirectory(tmp_path, "app", 0)
    database = directory.open(0, 0, ALL)
    restored(database, log, 1000)
    for spec in ALL:
        assert {
            key: unpack(data)
            for key, data in database.scan(spec.name, range(256), None, None)
        } == fold(log)
    directory.close()


@pytest.mark.parametrize("first", ["rocks", "sqlite"])
def test_if_one_engine_cannot_write_each_store_still_is_what_its_own_checkpoint_says(
    tmp_path: Path, first: str
) -> None:
    disk, own = Rocks(tmp_path), Sqlite(tmp_path)
    engine, apart = (disk, {"own": own}) if first == "rocks" else (own, {"disk": disk})
    database = Database(engine, [DISK, OWN], apart=apart)
    commit(database, 1, specs=[DISK, OWN])
    pages = own._db.execute("PRAGMA page_count").fetchone()[0]
    own._db.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
    with pytest.raises(StateError, match="full"):
        commit(database, 2, keys=20_000, specs=[DISK, OWN])
    assert stands(database, [DISK, OWN]) == {
        "disk": 2 if first == "rocks" else 1,
        "own": 1,
    }
    database.close()
    again = Database(Rocks(tmp_path), [DISK, OWN], apart={"own": Sqlite(tmp_path)})
    assert stands(again, [DISK, OWN]) == {
        "disk": 2 if first == "rocks" else 1,
        "own": 1,
    }
    again.close()


CHILD = """
import sys
from coopstreams.state.directory import StateDirectory
from coopstreams.topology.keys import ALL_GROUPS
from tests.state.mixed import ALL, commit
database = StateDirectory(sys.argv[1], "app", 0).open(0, 0, ALL)
number = database.checkpoints("disk").offset(ALL_GROUPS) or 0
while True:
    number += 1
    commit(database, number)
    print(number, flush=True)
"""


@pytest.mark.ci
def test_after_a_kill_each_store_is_what_its_own_checkpoint_says(
    tmp_path: Path,
) -> None:
    moments = random.Random(3)
    reached = [0]
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(moments.randint(3, 12))]
        child.kill()
        child.wait(30)
        child.stdout.close()
        directory = StateDirectory(tmp_path, "app", 0)
        found = stands(directory.open(0, 0, ALL))
        directory.close()
        assert found["heap"] is None
        assert found["disk"] is not None
        assert found["own"] is not None
        assert (
            found["disk"] >= found["own"] >= told[-1]
        )  # the committed rows were there; the last one may be only in the first store
        assert found["disk"] - found["own"] in (0, 1)
        reached.append(found["own"])
    assert all(now > then for then, now in pairwise(reached))


def test_a_range_that_moves_away_goes_from_every_engine_and_its_folders_when_nothing_is_left(
    tmp_path: Path,
) -> None:
    left, right = KeyRange.split(2)
    directory = StateDirectory(tmp_path, "app", 0)
    commit(directory.open(0, 3, ALL), 7)
    directory.drop(0, 3, [left], ALL)  # while a sibling is there
    database = directory.open(0, 3, ALL)
    for spec in ALL:
        assert [(run.first, run.last) for run in database.checkpoints(spec.name)] == [
            (128, 255)
        ]
        assert {
            key_hash(key) in right
            for key, _ in database.scan(spec.name, range(256), None, None)
        } == {True}
    directory.release(0, 3)
    directory.release(0, 3)
    assert {path.name for path in directory.folder.iterdir() if path.is_dir()} == {
        "0_3",
        "0_3.tests.state.sqlite_engine-Sqlite",
    }
    directory.drop(0, 3, [right], ALL)  # while no process runs
    assert directory.partitions() == []
    assert [path.name for path in directory.folder.iterdir() if path.is_dir()] == []
    directory.close()


def test_a_store_that_changes_its_engine_begins_anew_there_and_goes_on_where_it_stood_when_it_comes_back(
    tmp_path: Path,
) -> None:
    log = some_log(500)

    def reads(specs: Sequence[StoreSpec], upto: int) -> int:
        directory = StateDirectory(tmp_path, "app", 0)
        read = restored(directory.open(0, 0, specs), log, upto, specs)["disk"]
        directory.close()
        return read

    until_400, until_600 = (
        len([each for each in log if each[0] < upto]) for upto in (400, 600)
    )
    assert reads([DISK, OWN], 400) == until_400
    assert reads([replace(DISK, store_type=NAME), OWN], 600) == until_600
    assert reads([DISK, OWN], 600) == until_600 - until_400


def test_of_several_engines_only_the_damaged_one_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    commit(directory.open(0, 0, ALL), 5)
    directory.close()
    folder = directory.folder / "0_0.tests.state.sqlite_engine-Sqlite"
    for file in folder.iterdir():
        file.write_bytes(b"this was a database once" * 1000)
    directory = StateDirectory(tmp_path, "app", 0)
    with pytest.raises(StateCorruptError, match="may be deleted"):
        directory.open(0, 0, ALL)
    database = directory.open(0, 0, ALL, wipe_corrupt=True)
    assert "Deleting it" in caplog.text
    assert stands(database) == {"disk": 5, "heap": None, "own": None}
    directory.close()


@pytest.mark.parametrize(
    ("store_type", "words"),
    [
        ("no.such.module:Engine", "No module named 'no'"),
        ("tests.state.sqlite_engine:Nothing", "Nothing"),
        ("sys:path", "cannot be called"),
    ],
)
def test_an_engine_that_is_not_there_is_said_before_anything_starts(
    store_type: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_store_types(
            [StoreSpec("own", "key_value", text, int64, store_type=store_type)],
            "rocksDB",
        )
    with pytest.raises(ConfigError, match=words):
        check_store_types([DISK], store_type)
