from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from coopstreams.state.database import Database
from coopstreams.state.directory import FORMAT, StateDirectory
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.state.task_state import TaskState
from coopstreams.topology.errors import StateCorruptError, StateError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec

SPEC = StoreSpec("counts", "key_value", text, int64)
BYTES = 1 << 30


def fill(database: Database, key_range: KeyRange = WHOLE, keys: int = 1000) -> None:
    state = TaskState(database, [SPEC], key_range, BYTES)
    table = state.stores["counts"]
    for key in (b"%d" % number for number in range(keys)):
        if key_hash(key) in key_range:
            entry = table.load(key)
            entry.value = 1
            table.touch(key, entry)
    state.changes()
    state.commit({"counts": keys})


def keys_of(database: Database) -> list[bytes]:
    return [key for key, _ in database.scan("counts", range(256), None, None)]


def test_siblings_share_one_database_and_the_last_one_closes_it(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    one, two = directory.open(0, 3, [SPEC]), directory.open(0, 3, [SPEC])
    assert one is two
    assert (tmp_path / "app" / "instance-0" / "0_3").is_dir()
    fill(one)
    directory.release(0, 3)
    assert len(keys_of(two)) == 1000
    directory.release(0, 3)
    with pytest.raises(StateError, match="closed"):
        keys_of(two)
    assert len(keys_of(directory.open(0, 3, [SPEC]))) == 1000
    directory.close()


def test_who_gives_a_database_back_after_the_directory_was_closed_changes_nothing(
    tmp_path: Path,
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 3, [SPEC]))
    directory.close()
    directory.release(0, 3)
    again = StateDirectory(tmp_path, "app", 0)
    assert len(keys_of(again.open(0, 3, [SPEC]))) == 1000
    again.close()


class Slow(Memory):
    """An engine that opens when it may."""

    opening, may = Event(), Event()

    def __init__(self, folder: Path) -> None:
        super().__init__()
        Slow.opening.set()
        assert Slow.may.wait(60), "somebody waits for it"


def test_who_reads_an_open_database_does_not_wait_for_another_one_to_open(
    tmp_path: Path,
) -> None:
    """Each query pins the database that it reads."""
    directory = StateDirectory(tmp_path, "app", 0)
    database = directory.open(0, 0, [SPEC])
    slow = StoreSpec("slow", "key_value", text, int64, store_type=f"{__name__}:Slow")
    with ThreadPoolExecutor() as threads:
        opened = threads.submit(directory.open, 1, 0, [slow])
        assert Slow.opening.wait(60)
        assert directory.open(0, 0, [SPEC]) is database
        directory.release(0, 0)
        Slow.may.set()
        assert opened.result() is directory.open(1, 0, [slow])
    directory.close()


def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(1, 0, [SPEC]))
    directory.close()
    directory.close()
    again = StateDirectory(tmp_path, "app", 0)
    assert again.process_id == directory.process_id
    assert again.partitions() == [(1, 0)]
    assert len(keys_of(again.open(1, 0, [SPEC]))) == 1000
    again.close()


def test_a_range_that_moved_away_leaves_no_key_behind_and_an_empty_folder_goes(
    tmp_path: Path,
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    ranges = KeyRange.split(4)
    fill(directory.open(0, 0, [SPEC]))
    directory.release(0, 0)
    directory.drop(0, 0, ranges[1:3], [SPEC])
    database = directory.open(0, 0, [SPEC])
    assert set(keys_of(database)) == {
        b"%d" % n
        for n in range(1000)
        if any(key_hash(b"%d" % n) in ranges[part] for part in (0, 3))
    }
    assert [(run.first, run.last) for run in database.checkpoints("counts")] == [
        (0, 63),
        (192, 255),
    ]
    directory.drop(0, 0, [ranges[0], ranges[3]], [SPEC])
    assert directory.partitions() == [(0, 0)]  # it is still open
    directory.release(0, 0)
    assert directory.partitions() == []
    directory.drop(0, 0, ranges, [SPEC])  # now it is gone
    directory.close()


def test_only_the_key_ranges_that_are_kept_stay(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    ranges = KeyRange.split(4)
    for partition in (0, 1):
        fill(directory.open(0, partition, [SPEC]))
    fill(directory.open(2, 0, [SPEC]))
    directory.release(0, 1)
    directory.release(2, 0)
    directory.keep({(0, 0): ranges[1:3], (2, 0): [WHOLE]})
    assert directory.partitions() == [(0, 0), (2, 0)]
    database = directory.open(0, 0, [SPEC])
    assert {
        key_hash(key) in ranges[1] or key_hash(key) in ranges[2]
        for key in keys_of(database)
    } == {True}
    assert [(run.first, run.last) for run in database.checkpoints("counts")] == [
        (64, 191)
    ]
    assert len(keys_of(directory.open(2, 0, [SPEC]))) == 1000
    directory.close()


def test_a_folder_that_never_got_a_key_goes_when_it_is_released(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    directory.open(0, 0, [SPEC])
    directory.release(0, 0)
    assert directory.partitions() == []
    directory.close()


def test_two_instances_have_folders_and_names_of_their_own(tmp_path: Path) -> None:
    one, two = StateDirectory(tmp_path, "app", 0), StateDirectory(tmp_path, "app", 1)
    assert one.folder != two.folder
    assert UUID(one.process_id) != UUID(two.process_id)
    one.close()
    two.close()


def test_a_folder_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    directory.close()
    (directory.folder / "format").write_text(f"{FORMAT + 1}\n")
    with pytest.raises(
        StateError,
        match=rf"has format {FORMAT + 1}, this coopstreams knows up to {FORMAT}: upgrade coopstreams",
    ):
        StateDirectory(tmp_path, "app", 0)
    (directory.folder / "format").write_text(f"{FORMAT}\n")
    StateDirectory(tmp_path, "app", 0).close()


def test_state_of_a_format_that_does_not_name_its_changelogs_is_emptied_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 3, [SPEC]))
    directory.close()
    own = directory.folder / "0_3.tests.state.sqlite_engine-Sqlite"
    own.mkdir()
    (own / "rows.db").write_bytes(b"an engine of the user's")
    (directory.folder / "format").write_text("1\n")
    with caplog.at_level(logging.WARNING):
        again = StateDirectory(tmp_path, "app", 0)
    assert "was of format 1: it is emptied once" in caplog.text
    assert again.process_id == directory.process_id, (
        "transactions that it left open are ended under the ids made of it"
    )
    assert again.partitions() == []
    assert not own.exists()
    again.close()
    assert (again.folder / "format").read_text() == f"{FORMAT}\n"


def test_a_format_that_has_not_reached_the_disk_is_no_reason_to_refuse_each_start(
    tmp_path: Path,
) -> None:
    """A machine that dies soon after the first start may leave the file empty: no file
    is waited for.
    """
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 0, [SPEC]))
    directory.close()
    (directory.folder / "format").write_text("")
    again = StateDirectory(tmp_path, "app", 0)
    assert again.partitions() == []
    again.close()
    assert (again.folder / "format").read_text() == f"{FORMAT}\n"


def test_a_folder_that_was_copied_from_another_application_is_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of a store without a changelog name no topic from which they came."""
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 0, [SPEC]))
    directory.close()
    shutil.copytree(tmp_path / "app", tmp_path / "other")
    with caplog.at_level(logging.WARNING):
        other = StateDirectory(tmp_path, "other", 0)
    assert 'was one of application "app": it is emptied' in caplog.text
    assert other.partitions() == []
    fill(other.open(0, 0, [SPEC]), keys=3)
    other.close()
    for application, keys in ("other", 3), ("app", 1000):
        again = StateDirectory(tmp_path, application, 0)
        assert len(keys_of(again.open(0, 0, [SPEC]))) == keys
        again.close()
    assert caplog.text.count("it is emptied") == 1


def test_a_folder_of_before_it_named_its_application_is_kept(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 0, [SPEC]))
    directory.close()
    (directory.folder / "application").unlink()
    again = StateDirectory(tmp_path, "app", 0)
    assert again.partitions() == [(0, 0)]
    again.close()


def test_rows_from_before_a_reset_or_from_another_cluster_are_not_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def partitions_at(topic_id: str, *, opens: bool = False) -> list[tuple[int, int]]:
        directory = StateDirectory(tmp_path, "app", 0)
        if opens:
            directory.open(0, 0, [SPEC])
        directory.begin(topic_id)
        found = directory.partitions()
        fill(directory.open(0, 0, [SPEC]))
        directory.close()
        return found

    assert partitions_at("one") == []
    assert partitions_at("one") == [(0, 0)]
    assert partitions_at("") == [(0, 0)], "brokers that give topics no ids"
    assert "it is emptied" not in caplog.text
    assert partitions_at("two") == []
    assert (
        "from before the application was reset, or from another cluster: it is emptied"
        in caplog.text
    )
    assert partitions_at("three", opens=True) == [(0, 0)], (
        "the topic was deleted beside this process, whose rows stay"
    )
    assert partitions_at("three") == [(0, 0)]
    (tmp_path / "app" / "instance-0" / "topology-topic-id").unlink()
    assert partitions_at("four") == [(0, 0)], "an older coopstreams had the folder"
    assert partitions_at("five") == []


def test_a_process_id_that_is_no_id_is_made_anew(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    directory.close()
    (directory.folder / "process-id").write_text("torn")
    again = StateDirectory(tmp_path, "app", 0)
    assert again.process_id != directory.process_id
    again.close()


def test_a_state_dir_that_cannot_be_used_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot be used.*Set state\.dir"):
        StateDirectory(tmp_path / "file", "app", 0)


def test_what_was_being_deleted_when_the_process_died_is_deleted_at_the_next_start(
    tmp_path: Path,
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 0, [SPEC]))
    directory.close()
    (directory.folder / "0_0").rename(directory.folder / "0_0.deleted")
    again = StateDirectory(tmp_path, "app", 0)
    assert again.partitions() == []
    assert not (again.folder / "0_0.deleted").exists()
    again.close()


def test_stores_in_memory_leave_nothing_on_disk(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app", 0, store_type="in_memory")
    fill(directory.open(0, 0, [SPEC]))
    directory.close()


def test_a_task_without_stores_has_no_database_on_disk_and_leaves_that_of_an_earlier_version(
    tmp_path: Path,
) -> None:
    """Each opened a RocksDB, which takes a tenth of a second and seven files."""
    directory = StateDirectory(tmp_path, "app", 0)
    directory.open(0, 1, [])
    assert directory.partitions() == []
    directory.release(0, 1)
    fill(directory.open(0, 0, [SPEC]))
    directory.release(0, 0)
    directory.open(0, 0, [])
    directory.release(0, 0)
    assert len(keys_of(directory.open(0, 0, [SPEC]))) == 1000
    directory.close()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a folder with a closed database of 20 000 keys, and its copy."""
    directory = StateDirectory(tmp_path, "app", 0)
    database = directory.open(0, 0, [SPEC])
    fill(database, keys=20_000)
    directory.close()
    folder = directory.folder / "0_0"
    shutil.copytree(folder, tmp_path / "copy")
    return folder


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "flipped":
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(
            byte ^ 0xFF for byte in data[middle : middle + 8]
        )
    else:
        del data[len(data) // 2 :]
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["flipped", "truncated"])
@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_a_damaged_database_is_an_error_or_an_empty_start_but_never_half_the_truth(
    tmp_path: Path, written: Path, pattern: str, how: str
) -> None:
    for file in sorted(written.glob(pattern)):
        shutil.rmtree(written)
        shutil.copytree(tmp_path / "copy", written)
        damage(file, how)
        directory = StateDirectory(tmp_path, "app", 0)
        said, found, checkpoint = "", list[bytes](), None
        try:
            database = directory.open(0, 0, [SPEC])
            checkpoint = database.checkpoints("counts").offset(ALL_GROUPS)
            found = keys_of(database)
        except StateCorruptError as error:
            said = str(error)
        directory.close()
        if said:
            assert str(written) in said
            assert "may be deleted: changelogs restore it" in said
        else:  # a truncated manifest is an older state: here the one before any write
            assert (found, checkpoint) == ([], None)


def test_a_point_read_of_a_damaged_block_is_reported_and_remembered(
    tmp_path: Path, written: Path
) -> None:
    damage(max(written.glob("*.sst"), key=lambda file: file.stat().st_size), "flipped")
    directory = StateDirectory(tmp_path, "app", 0)
    table = TaskState(directory.open(0, 0, [SPEC]), [SPEC], WHOLE, BYTES).stores[
        "counts"
    ]

    def read_all() -> None:
        for number in range(20_000):
            table.load(b"%d" % number)

    with pytest.raises(StateCorruptError, match="may be deleted"):
        read_all()
    directory.close()
    # Opening alone would not find it: without a mark, a restarted process would fail at
    # the same key for ever.
    again = StateDirectory(tmp_path, "app", 0)
    with pytest.raises(StateCorruptError, match="block checksum mismatch"):
        again.open(0, 0, [SPEC])
    assert keys_of(again.open(0, 0, [SPEC], wipe_corrupt=True)) == []
    again.close()


def flip_in_first_block(file: Path) -> None:
    """Flip the bits of a byte."""
    data = bytearray(file.read_bytes())
    data[3] ^= 0xFF
    file.write_bytes(data)


def test_damage_among_the_names_of_the_families_is_found_at_the_opening(
    tmp_path: Path,
) -> None:
    directory = StateDirectory(tmp_path, "app", 0)
    database = directory.open(0, 0, [SPEC])
    engine = database._of["counts"]._engine
    assert isinstance(engine, Rocks)
    engine._db.flush()
    (names,) = (directory.folder / "0_0").glob("*.sst")
    fill(database)
    directory.close()
    flip_in_first_block(names)
    again = StateDirectory(tmp_path, "app", 0)
    with pytest.raises(StateCorruptError, match="may be deleted"):
        again.open(0, 0, [SPEC])
    assert keys_of(again.open(0, 0, [SPEC], wipe_corrupt=True)) == []
    again.close()


def test_damage_among_the_checkpoints_is_found_at_the_opening(tmp_path: Path) -> None:
    """They are scanned there. The error must not keep the iterator: the folder would be
    locked by this very process.
    """
    directory = StateDirectory(tmp_path, "app", 0)
    fill(directory.open(0, 0, [SPEC]))
    directory.close()
    files = (directory.folder / "0_0").glob("*.sst")
    (checkpoints,) = [
        file for file in files if b"checkpoint/counts" in file.read_bytes()
    ]
    flip_in_first_block(checkpoints)
    again = StateDirectory(tmp_path, "app", 0)
    with pytest.raises(StateCorruptError, match="block checksum mismatch"):
        again.open(0, 0, [SPEC])
    (directory.folder / "0_0" / "DAMAGED").unlink()  # found anew, and not by the mark
    assert keys_of(again.open(0, 0, [SPEC], wipe_corrupt=True)) == []
    again.close()


def test_a_folder_that_is_deleted_under_its_database_is_an_error_of_the_machine_and_no_damage(
    tmp_path: Path,
) -> None:
    rocks = Rocks(tmp_path / "0_0")
    shutil.rmtree(tmp_path / "0_0")
    with pytest.raises(StateError, match=r"cannot be used: .*No such file") as error:
        rocks.create("counts")
    assert not isinstance(error.value, StateCorruptError)


def test_a_damaged_database_can_be_replaced_by_an_empty_one_with_a_word_in_the_log(
    tmp_path: Path, written: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(next(written.glob("*.sst")), "truncated")
    directory = StateDirectory(tmp_path, "app", 0)
    with caplog.at_level(logging.WARNING):
        database = directory.open(0, 0, [SPEC], wipe_corrupt=True)
    assert "is damaged and may be deleted" in caplog.text
    assert keys_of(database) == []
    assert database.checkpoints("counts").offset(ALL_GROUPS) is None
    directory.close()


def test_dropping_a_range_of_a_damaged_database_deletes_it(
    tmp_path: Path, written: Path
) -> None:
    damage(next(written.glob("*.sst")), "truncated")
    directory = StateDirectory(tmp_path, "app", 0)
    directory.drop(0, 0, KeyRange.split(2)[:1], [SPEC])
    assert directory.partitions() == []
    directory.close()
