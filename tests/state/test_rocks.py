"""The families of RocksDB: a new family reuses the column family of a dropped one, also
after a restart.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Rdict

from coopstreams.state import rocks
from coopstreams.state.engine import Change
from coopstreams.state.rocks import Rocks
from coopstreams.topology.errors import StateError, StateLockedError

FAMILIES = ("a/1", "a/2", "b/1", "b/1+1")


def columns(folder: Path) -> set[str]:
    return {
        name
        for name in Rdict.list_cf(str(folder), rocks.options())
        if name != "default"
    }


def test_a_dropped_family_leaves_its_column_family_to_the_next(tmp_path: Path) -> None:
    """A hundred segments come and go, as when an application catches up: RocksDB
    creates one column family.
    """
    engine = Rocks(tmp_path)
    for segment in range(100):
        engine.create(f"windows/{segment}")
        engine.write([Change(f"windows/{segment}", [b"k"], [b"%d" % segment])])
        engine.drop(f"windows/{segment}")
    engine.close()
    assert columns(tmp_path) == {"windows/0"}
    engine = Rocks(tmp_path)
    assert not engine.families()
    engine.close()


def test_a_family_that_has_files_takes_them_along(tmp_path: Path) -> None:
    """If the files stayed, the rows would occupy the disk until a compaction."""
    engine = Rocks(tmp_path)
    engine.create("large")
    engine.write([Change("large", [b"%06d" % n for n in range(1000)], [b"v"] * 1000)])
    engine.close()  # which flushes
    engine = Rocks(tmp_path)
    engine.drop("large")
    engine.create("next")
    engine.close()
    assert columns(tmp_path) == {"next"}


def test_only_a_few_column_families_are_kept(tmp_path: Path) -> None:
    engine = Rocks(tmp_path)
    for segment in range(20):
        engine.create(f"windows/{segment}")
    for segment in range(20):
        engine.drop(f"windows/{segment}")
    engine.close()
    assert columns(tmp_path) == {"windows/0", "windows/1", "windows/2", "windows/3"}


@pytest.mark.ci
@pytest.mark.parametrize("chunk_bytes", [1, rocks._CHUNK_BYTES])  # 1: each row is large
@given(
    keys=st.sets(st.binary(max_size=2), max_size=60),
    bounds=st.lists(
        st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=2)), max_size=6
    ),
    reverse=st.booleans(),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_ranges_that_share_an_iterator_are_read_by_turns_and_see_one_moment(
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    keys: set[bytes],
    bounds: list[tuple[bytes, bytes | None]],
    reverse: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(rocks, "_CHUNK_BYTES", chunk_bytes)
    engine = Rocks(tmp_path_factory.mktemp("shared"))
    engine.create("one")
    engine.write([Change("one", sorted(keys), [b"1"] * len(keys))])
    found = engine.scans("one", bounds, reverse=reverse)
    engine.write([Change("one", [b"new"], [b"2"], [(b"", None)])])
    by_turns = list(itertools.zip_longest(*found))
    for number, (start, end) in enumerate(bounds):
        wanted = sorted(
            (key for key in keys if start <= key and (end is None or key < end)),
            reverse=reverse,
        )
        assert [row[number] for row in by_turns if row[number]] == [
            (key, b"1") for key in wanted
        ]
    engine.close()


def test_a_getter_of_a_dropped_family_does_not_read_the_next_one(
    tmp_path: Path,
) -> None:
    engine = Rocks(tmp_path)
    engine.create("one")
    engine.write([Change("one", [b"k"], [b"1"])])
    get, rows = engine.getter("one"), engine.scan("one", b"", None)
    engine.drop("one")
    engine.create("two")
    engine.write([Change("two", [b"k"], [b"2"])])
    assert get(b"k") is None
    assert list(rows) == [(b"k", b"1")]
    assert engine.getter("two")(b"k") == b"2"
    engine.close()


def test_the_next_family_begins_empty_and_is_itself_after_a_restart(
    tmp_path: Path,
) -> None:
    """Rows of the dropped family would be wrong state; without its name, its own rows
    would be lost.
    """
    engine = Rocks(tmp_path)
    engine.create("one")
    engine.write([Change("one", [b"k"], [b"1"])])
    engine.drop("one")
    engine.create("two")
    assert not list(engine.scan("two", b"", None))
    engine.write([Change("two", [b"other"], [b"2"])])
    engine.close()
    engine = Rocks(tmp_path)
    assert engine.families() == ["two"]
    assert list(engine.scan("two", b"", None)) == [(b"other", b"2")]
    engine.close()
    assert columns(tmp_path) == {"one"}


def test_a_family_whose_name_an_older_column_family_has_gets_one_of_its_own(
    tmp_path: Path,
) -> None:
    engine = Rocks(tmp_path)
    engine.create("one")
    engine.drop("one")
    for family, value in (("two", b"2"), ("one", b"1")):
        engine.create(family)
        engine.write([Change(family, [b"k"], [value])])
    engine.close()
    engine = Rocks(tmp_path)
    assert {family: engine.getter(family)(b"k") for family in engine.families()} == {
        "one": b"1",
        "two": b"2",
    }
    engine.close()
    assert columns(tmp_path) == {"one", "one+1"}


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["create", "drop", "write", "open"]),
            st.sampled_from(FAMILIES),
        ),
        max_size=16,
    )
)
def test_families_have_what_was_written_to_them_since_they_were_made(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """Each family has its own rows in whichever column family, and after any restart."""
    folder = tmp_path_factory.mktemp("families")
    engine, model, numbers = (
        Rocks(folder),
        dict[str, dict[bytes, bytes]](),
        itertools.count(),
    )
    for what, family in [*steps, ("open", "")]:
        if what == "create":
            engine.create(family)
            model.setdefault(family, {})
        elif what == "drop" and family in model:
            engine.drop(family)
            del model[family]
        elif what == "write" and family in model:
            key, value = b"%d" % (next(numbers) % 3), b"%d" % next(numbers)
            engine.write([Change(family, [key], [value])])
            model[family][key] = value
        elif what == "open":
            engine.close()
            engine = Rocks(folder)
        assert {
            name: dict(engine.scan(name, b"", None)) for name in engine.families()
        } == model
    engine.close()


def test_only_a_folder_that_is_in_use_is_called_so(tmp_path: Path) -> None:
    first = Rocks(tmp_path)
    with pytest.raises(StateLockedError, match="is in use"):
        Rocks(tmp_path)
    first.close()
    (tmp_path / "LOCK").unlink()
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(StateError, match=r"cannot be opened.*Is a directory") as error:
        Rocks(tmp_path)
    assert not isinstance(error.value, StateLockedError)


def test_a_quiet_family_keeps_no_log_of_long_ago(tmp_path: Path) -> None:
    """A job that removes old `*.log` leaves the newest. If a quiet family still had its
    rows in an older one, RocksDB would open without them, and say nothing.
    """
    engine = Rocks(tmp_path)
    engine.create("busy")
    engine.create("quiet")
    engine.write([Change("quiet", [b"k"], [b"v"])])
    (first,) = tmp_path.glob("*.log")
    for number in range(
        3000
    ):  # the first of three memtables is flushed, and its log deleted in the background
        engine.write(
            [
                Change(
                    "busy", [b"%d" % number], [b"v" * (rocks.WRITE_BUFFER_BYTES // 100)]
                )
            ]
        )
        if not first.exists():
            break
    assert not first.exists()
    assert list(engine.scan("quiet", b"", None)) == [(b"k", b"v")]
    engine.close()


def test_filter_and_index_of_a_file_are_in_parts_that_the_cache_can_keep(
    tmp_path: Path,
) -> None:
    """A filter in one block may be larger than a shard of the cache: each look-up would
    read it again.
    """
    engine = Rocks(tmp_path)
    engine.create("a")
    keys = [b"%09d" % number for number in range(20_000)]
    engine.write([Change("a", keys, keys)])
    engine.close()
    opened = Rdict(
        str(tmp_path), rocks.options(), column_families={"a": rocks.options()}
    )
    of_a = opened.get_column_family("a")
    of_a.flush()
    properties = of_a.property_value("rocksdb.aggregated-table-properties") or ""
    of_a.close()
    opened.close()
    parts = dict(
        part.strip().split("=", 1) for part in properties.split(";") if "=" in part
    )
    assert int(parts["# index partitions"]) > 4
