"""A snapshot has the written state, or is refused: by slice, by file, by byte."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.state import layout, manifest, snapshot
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.manifest import Manifest, Slice, StoreSlices
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import Lease, Publication, SnapshotWriter
from coopstreams.state.sst import read_sst, write_sst
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import SnapshotError
from coopstreams.topology.keys import WHOLE, KeyGroups, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.bounds import TOPIC_ID
from tests.state.conftest import NewEngine
from tests.state.rows import places, rocks

SPEC = StoreSpec("counts", "key_value", text, int64)
WINDOWS = StoreSpec(
    "windows", "window", text, int64, window_ms=60_000, retention_ms=240_000
)
PART = KeyRange.of_groups(80, 127)
"""A few slices of two siblings: verifying a file opens a database, so all slices would
take long.
"""
numbers = count()


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return storages of three kinds: the file system, fsspec's in memory, and a server
    that speaks S3 over HTTP.
    """
    name = f"snapshots-{os.getpid()}-{next(numbers)}"
    match request.param:
        case "folder":
            return f"file://{tmp_path}/{name}"
        case "memory":
            return f"memory://{name}"
        case _:
            return f"{request.getfixturevalue('bucket')}/{name}"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


def fill(database: Database, size: int = 3000) -> None:
    """Put keys into both stores, and checkpoints of two siblings at different offsets."""
    rows = sorted(
        (
            layout.database_key(b"key-%d" % number, b"key-%d" % number),
            layout.TIMESTAMP.pack(number) + b"v%d" % number,
        )
        for number in range(size)
    )
    windows: dict[str, list[tuple[bytes, bytes]]] = {}
    for number in range(size):
        start = number % 5 * 60_000
        segment = layout.segment_family("windows", start // layout.segment_ms(WINDOWS))
        key = layout.database_key(
            b"key-%d" % number, window_key(b"key-%d" % number, start)
        )
        windows.setdefault(segment, []).append(
            (key, layout.TIMESTAMP.pack(number) + b"w")
        )
    changes = [
        Change("store/counts", *_columns(rows)),
        *(Change(family, *_columns(sorted(of))) for family, of in windows.items()),
    ]
    marks = [
        Checkpoint(0, 99, 500, true_ms=7, topic_id=TOPIC_ID),
        Checkpoint(100, 255, 600, true_ms=8, topic_id=TOPIC_ID),
    ]
    database.write(
        changes,
        {
            "counts": marks,
            "windows": [replace(mark, observed=240_000) for mark in marks],
        },
    )


def _columns(rows: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [key for key, _ in rows], [value for _, value in rows]


def taken(
    url: str,
    database: Database,
    spec: StoreSpec,
    key_range: KeyRange = WHOLE,
    run: str = "run-1",
) -> list[Slice]:
    return SnapshotWriter(url, "app", run).export(database, spec, 3, key_range)


def manifest_of(slices: Mapping[str, Sequence[Slice]], run: str = "run-1") -> Manifest:
    shapes = {"counts": manifest.shape_of(SPEC), "windows": manifest.shape_of(WINDOWS)}
    stores = {
        name: StoreSlices(f"app-{name}-changelog", "id", 4, shapes[name], tuple(of))
        for name, of in slices.items()
    }
    return Manifest(
        "app",
        run,
        "rebuild",
        "2026-11-21T00:00:00+00:00",
        stores,
        {"orders": {0: 12}},
        {"orders": {0: 99}},
    )


def rows_of(
    url: str, slices: Sequence[Slice], folder: Path
) -> dict[tuple[str, bytes], bytes]:
    found: dict[tuple[str, bytes], bytes] = {}
    for each in slices:
        for file in each.files:
            for key, value in read_sst(
                snapshot.fetch(Storage(url), "app", file, folder).path
            ):
                assert each.first <= key[0] <= each.last
                found[file.family, key] = value
    return found


def test_the_names_of_runs_sort_by_time() -> None:
    names = []
    for _ in range(5):
        names.append(snapshot.new_run())
        time.sleep(0.01)
    assert names == sorted(names)


@pytest.mark.parametrize("spec", [SPEC, WINDOWS], ids=["plain", "windows"])
def test_what_is_exported_is_what_the_database_has_slice_by_slice(
    spec: StoreSpec, folder: str, new_engine: NewEngine, tmp_path: Path
) -> None:
    database = Database(new_engine(), [SPEC, WINDOWS])
    fill(database)
    slices = taken(folder, database, spec, PART)
    assert places(slices) == [(3, group) for group in range(80, 128)]
    assert [
        (each.offset, each.true_ms)
        for each in slices
        if each.last < 100 or each.first >= 100
    ] == [(500, 7) if each.last < 100 else (600, 8) for each in slices]
    truth = {
        (family, key): value
        for _, families in database.as_of_now(spec.name, PART.groups)
        for family, _, rows in families
        for key, value in rows or ()
    }
    assert len(truth) == sum(
        key_hash(b"key-%d" % number) in PART for number in range(3000)
    )
    assert rows_of(folder, slices, tmp_path) == truth


def test_a_range_is_exported_alone_and_key_groups_without_a_checkpoint_are_not(
    folder: str, tmp_path: Path
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 500)
    one = KeyRange.of_groups(3, 20)
    slices = taken(folder, database, SPEC, one)
    assert [(each.first, each.last) for each in slices] == [(3, 7), (8, 15), (16, 20)]
    assert len(rows_of(folder, slices, tmp_path)) == sum(
        key_hash(b"key-%d" % number) in one for number in range(500)
    )
    assert taken(folder, Database(rocks(tmp_path), [SPEC]), SPEC) == []


@pytest.mark.parametrize("spec", [SPEC, WINDOWS], ids=["plain", "windows"])
def test_a_database_that_ingests_slices_is_the_one_they_came_from(
    spec: StoreSpec, folder: str, new_engine: NewEngine, tmp_path: Path
) -> None:
    origin = Database(new_engine(), [SPEC, WINDOWS])
    fill(origin)
    target = Database(new_engine(), [SPEC, WINDOWS])
    fill(target, 100)  # its rows are in the way, and are deleted
    for each in taken(folder, origin, spec, PART):
        files = [
            snapshot.fetch(Storage(folder), "app", file, tmp_path)
            for file in each.files
        ]
        by_family: dict[str, list[Path]] = {}
        for one in files:
            by_family.setdefault(one.file.family, []).append(one.path)
        target.ingest(spec.name, [each.checkpoint(TOPIC_ID)], by_family)
        assert not any(one.path.exists() for one in files)
    assert list(target.scan(spec.name, range(80, 128), None, None)) == list(
        origin.scan(spec.name, range(80, 128), None, None)
    )
    assert target.checkpoints(spec.name).within(PART.groups) == [
        replace(at, ahead=spec is WINDOWS)
        for at in origin.checkpoints(spec.name).within(PART.groups)
    ]


def test_ingested_state_outlives_the_process(folder: str, tmp_path: Path) -> None:
    origin = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(origin)
    (tmp_path / "target").mkdir()
    target = Database(Rocks(tmp_path / "target"), [SPEC])
    for each in taken(folder, origin, SPEC):
        target.ingest(
            "counts",
            [each.checkpoint(TOPIC_ID)],
            {
                file.family: [
                    snapshot.fetch(Storage(folder), "app", file, tmp_path).path
                ]
                for file in each.files
            },
        )
    target.close()
    again = Database(Rocks(tmp_path / "target"), [SPEC])
    assert len(list(again.scan("counts", range(256), None, None))) == 3000
    assert again.checkpoints("counts") == origin.checkpoints("counts")


def test_files_that_are_none_leave_the_database_usable_and_the_groups_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 500)
    bad = tmp_path / "bad.sst"
    bad.write_bytes(b"no file of RocksDB" * 100)
    with pytest.raises(SnapshotError, match="do not go into"):
        database.ingest("counts", [Checkpoint(8, 15, 1)], {"store/counts": [bad]})
    assert database.checkpoints("counts").offset(KeyGroups(8, 15)) is None
    assert database.checkpoints("counts").offset(KeyGroups(0, 7)) == 500
    fill(database, 500)
    assert len(list(database.scan("counts", range(256), None, None))) == 500


def test_rows_out_of_order_are_refused_and_none_make_no_file(tmp_path: Path) -> None:
    assert write_sst(tmp_path / "empty.sst", iter(())) is None
    with pytest.raises(SnapshotError, match="strict ascending order"):
        write_sst(tmp_path / "unsorted.sst", iter([(b"b", b"1"), (b"a", b"1")]))


def test_nothing_is_seen_before_it_is_published_and_the_newest_publication_counts(
    url: str, tmp_path: Path
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 50)
    first = manifest_of({"counts": taken(url, database, SPEC, PART)})
    assert snapshot.load(url, "app") is None
    snapshot.publish(url, first)
    assert snapshot.load(url, "app") == first
    second = manifest_of(
        {"counts": taken(url, database, SPEC, PART, run="run-2")}, "run-2"
    )
    snapshot.store_manifest(url, second)
    assert snapshot.load(url, "app") == first
    assert snapshot.load(url, "app", "run-2") == second
    snapshot.publish(url, second)
    assert snapshot.current_run(url, "app") == "run-2"
    assert snapshot.runs(url, "app") == ["run-1", "run-2"]


@pytest.mark.parametrize("bit", range(8))
def test_a_manifest_survives_its_file_and_every_flipped_bit_is_noticed(
    bit: int,
) -> None:
    made = manifest_of(
        {
            "counts": [
                Slice(
                    0,
                    0,
                    7,
                    5,
                    -1,
                    9,
                    (manifest.File("store/counts", "n", 1, 2, "ab", "00", "01"),),
                )
            ]
        }
    )
    data = made.to_json()
    assert Manifest.from_json(data) == made
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        try:
            assert (
                Manifest.from_json(flipped) == made
            )  # a blank between words became another one
            assert data[at] in b" \n\t"
        except SnapshotError:
            pass


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no manifest"),
        (b"[]", "no manifest"),
        (b'{"format":2}', "upgrade coopstreams"),
        (b'{"format":1,"sha256":"00"}', "SHA-256 differs"),
        (b'{"format":1}', "no manifest"),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(SnapshotError, match=words):
        Manifest.from_json(data)


def test_a_manifest_in_the_wrong_place_and_a_missing_one_are_refused(url: str) -> None:
    snapshot.store_manifest(url, manifest_of({}, "run-1"))
    Storage(url).write(
        "app/run-2/manifest.json", Storage(url).read("app/run-1/manifest.json") or b""
    )
    with pytest.raises(SnapshotError, match='its manifest is that of "run-1"'):
        snapshot.load(url, "app", "run-2")
    with pytest.raises(SnapshotError, match="snapshots ls"):
        snapshot.load(url, "app", "run-3")
    with pytest.raises(SnapshotError, match="it has no manifest"):
        snapshot.load(url, "app", "../app/run-1")


@pytest.fixture
def published(folder: str, tmp_path: Path) -> tuple[str, Manifest]:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database)
    made = manifest_of(
        {
            "counts": taken(folder, database, SPEC, PART),
            "windows": taken(folder, database, WINDOWS, PART),
        }
    )
    snapshot.publish(folder, made)
    return folder, made


def test_a_whole_snapshot_verifies(published: tuple[str, Manifest]) -> None:
    checked = list(snapshot.verify(*published))
    assert len(checked) == len(list(published[1].files())) > 20
    assert [problem for _, problem in checked if problem] == []


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_byte_and_a_missing_file_are_found(
    where: float, published: tuple[str, Manifest]
) -> None:
    url, made = published
    damaged, missing, *_ = list(made.files())
    path = Path(url) / "app" / damaged.name
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(data)
    (Path(url) / "app" / missing.name).unlink()
    problems = {
        file.name: problem for file, problem in snapshot.verify(url, made) if problem
    }
    assert "is damaged" in problems.pop(damaged.name)
    assert "is missing" in problems.pop(missing.name)
    assert problems == {}


def test_files_that_hold_something_else_than_the_manifest_says_are_found(
    published: tuple[str, Manifest],
) -> None:
    url, made = published
    store = made.stores["counts"]
    first, second, third, fourth, *_ = store.slices
    lies = (
        replace(first, files=(replace(first.files[0], entries=1),)),
        replace(second, files=(replace(second.files[0], first_key="00"),)),
        replace(third, last=third.first),
        replace(fourth, files=(replace(fourth.files[0], family="store/other"),)),
    )
    told = list(
        snapshot.verify(
            url, replace(made, stores={"counts": replace(store, slices=lies)})
        )
    )
    assert [problem.partition(",")[0] for _, problem in told] == [
        f"it has {first.files[0].entries} keys",
        "its first or last key is not what the manifest says",
        f"it has keys outside the key groups {third.first}..{third.first}",
        'it is of family "store/other"',
    ]


@pytest.mark.ci
def test_a_sweep_leaves_what_counts_and_what_may_be_at_work(
    url: str, tmp_path: Path
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 500)
    old = manifest_of(
        {"counts": taken(url, database, SPEC, PART, run="run-1")}, "run-1"
    )
    snapshot.publish(url, old)
    half = KeyRange.of_groups(80, 103)
    newer = taken(url, database, SPEC, half, run="run-3")
    mixed = manifest_of(
        {"counts": manifest.merged(old.stores["counts"].slices, newer)}, "run-3"
    )
    taken(url, database, SPEC, half, run="run-2")  # was given up
    taken(url, database, SPEC, half, run="run-3")  # an attempt that ran twice
    snapshot.publish(url, mixed)
    taken(url, database, SPEC, half, run="run-4")  # still running
    said = snapshot.sweep(url, "app", doing=False)
    assert Storage(url).names("app/run-2") != []
    assert snapshot.sweep(url, "app") == said
    assert {name.partition("/")[0] for name in said} == {
        "published",
        "run-1",
        "run-2",
        "run-3",
    }
    assert [problem for _, problem in snapshot.verify(url, mixed) if problem] == []
    assert [
        Storage(url).names(f"app/{run}") != []
        for run in ("run-1", "run-2", "run-3", "run-4")
    ] == [
        True,
        False,
        True,
        True,
    ]
    assert snapshot.sweep(url, "app") == []


def damage(url: str, run: str) -> None:
    name = f"app/{run}/{snapshot.MANIFEST}"
    Storage(url).write(
        name, (Storage(url).read(name) or b"").replace(b'"rebuild"', b'"rebuilt"')
    )


def test_a_damaged_manifest_is_not_kept_but_its_files_are_where_another_one_names_them(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 500)
    half = KeyRange.of_groups(80, 103)
    old = manifest_of(
        {"counts": taken(url, database, SPEC, PART, run="run-1")}, "run-1"
    )
    newer = taken(url, database, SPEC, half, run="run-2")
    mixed = manifest_of(
        {"counts": manifest.merged(old.stores["counts"].slices, newer)}, "run-2"
    )
    snapshot.publish(url, mixed)
    snapshot.publish(url, replace(old, run="run-3", stores={}))
    snapshot.publish(url, old)
    damage(url, "run-1")
    damage(url, "run-3")
    mentioned = {file.name for file in mixed.files()}
    said = snapshot.sweep(url, "app", doing=False)
    assert said == snapshot.sweep(url, "app")
    assert set(said) == {file.name for file in old.files()} - mentioned | {
        "published/0000000001",
        "published/0000000002",
        "run-1/manifest.json",
        "run-3/manifest.json",
    }
    assert [problem for _, problem in snapshot.verify(url, mixed) if problem] == []
    for run in ("run-1", "run-3"):
        assert (
            f'snapshot "{run}" of app at {url}: its bytes are not those that were written'
            in caplog.text
        )


@pytest.mark.parametrize("typed", ["", ".", "..", "app/", "other/../app", "/app"])
def test_what_is_no_application_id_is_refused_before_anything_is_read_or_deleted(
    url: str, typed: str
) -> None:
    for application in ("app", "other"):
        snapshot.publish(
            url, replace(manifest_of({}, "run-1"), application=application)
        )
    before = Storage(url).names()
    for ask in (snapshot.sweep, snapshot.load, snapshot.runs, snapshot.current_run):
        with pytest.raises(
            SnapshotError, match=r"the application id .* is not a legal name"
        ):
            ask(url, typed)
    assert Storage(url).names() == before
    assert snapshot.applications(url) == ["app", "other"]


def test_a_sweep_deletes_no_files_but_those_of_snapshots(url: str) -> None:
    strange = [
        "app/main.py",
        "app/notes/text.md",
        "app/src/main.py",
        "app/instance-0/lock",
    ]
    left = [
        f"app/published/.{'0' * 10}-{'0' * 32}",
        f"app/run-1/.manifest.json-{'0' * 32}",
    ]  # by a crash
    for name in [*strange, *left]:
        Storage(url).write(name, b"x")
    for run in ("run-1", "run-2", "run-3"):
        snapshot.publish(url, manifest_of({}, run))
    assert sorted(snapshot.sweep(url, "app")) == sorted(
        [
            *(name.removeprefix("app/") for name in left),
            "published/0000000001",
            "published/0000000002",
            "run-1/manifest.json",
            "run-2/manifest.json",
        ]
    )
    assert Storage(url).names() == sorted(
        [*strange, "app/published/0000000003", "app/run-3/manifest.json"]
    )


def test_of_several_publishers_that_follow_one_publication_only_one_succeeds(
    url: str,
) -> None:
    for run in ("run-1", "run-2"):
        snapshot.publish(url, manifest_of({}, run))
    last = snapshot.published(url, "app")
    assert last == Publication(2, "run-2")
    assert snapshot.publish_behind(url, manifest_of({}, "run-3"), last)
    assert not snapshot.publish_behind(url, manifest_of({}, "run-4"), last)
    assert snapshot.current_run(url, "app") == "run-3"
    # The number behind a publication of long ago is free again.
    snapshot.sweep(url, "app")
    assert not snapshot.publish_behind(
        url, manifest_of({}, "run-5"), Publication(1, "run-1")
    )
    assert Storage(url).names("app/published") == ["app/published/0000000003"]
    assert snapshot.runs(url, "app") == ["run-3"]


def test_a_leased_run_is_not_swept_until_its_lease_is_over(url: str) -> None:
    now_ms = 1000
    snapshot.publish(url, manifest_of({}, "run-1"))
    Storage(url).write("app/run-0/counts/file.sst", b"is being written")
    reader, writer = (Lease(url, "app", lambda: now_ms) for _ in range(2))
    reader.take("run-1", for_ms=100)
    writer.take("run-0", for_ms=500)
    for run in ("run-2", "run-3"):
        snapshot.publish(url, manifest_of({}, run))

    def swept() -> list[str]:
        return snapshot.sweep(url, "app", now_ms=lambda: now_ms)

    assert "run-1/manifest.json" not in swept()
    now_ms = 1200
    gone = swept()
    assert ("run-1/manifest.json" in gone, len(gone)) == (True, 2)
    assert "app/run-0/counts/file.sst" in Storage(url).names("app")
    writer.give_back()
    assert swept() == ["run-0/counts/file.sst"]


def test_a_name_is_created_once(url: str) -> None:
    storage = Storage(url)
    assert [storage.create("folder/name", data) for data in (b"a", b"b")] == [
        True,
        False,
    ]
    assert (storage.read("folder/name"), storage.names()) == (b"a", ["folder/name"])


def test_a_copy_has_the_bytes_of_its_original(url: str) -> None:
    storage = Storage(url)
    storage.write("app/run/file.sst", b"rows")
    storage.copy("app/run/file.sst", "other/run/file.sst")
    assert storage.read("other/run/file.sst") == b"rows"
    with pytest.raises(SnapshotError, match='cannot copy "app/none"'):
        storage.copy("app/none", "other/none")


def test_records_between_tasks_are_read_as_they_were_written_or_refused(
    folder: str,
) -> None:
    records = [
        snapshot.InFlightRecord(b"key", None, 7, [("name", b"value"), ("none", None)]),
        snapshot.InFlightRecord(None, b"", -1, []),
    ]
    written = snapshot.write_in_flight(folder, "app", "run", "topic", 3, records)
    assert snapshot.read_in_flight(folder, "app", written) == records
    made = replace(manifest_of({}, "run"), kind="savepoint", in_flight=(written,))
    assert Manifest.from_json(made.to_json()) == made
    snapshot.name_savepoint(folder, made, "name")
    for number in (1, 2):
        snapshot.publish(folder, manifest_of({}, f"run-{number}"))
    snapshot.sweep(folder, "app")
    assert snapshot.read_in_flight(folder, "app", written) == records
    Storage(folder).write(f"app/{written.name}", b"damaged")
    with pytest.raises(SnapshotError, match="missing or damaged"):
        snapshot.read_in_flight(folder, "app", written)


def test_only_what_has_changed_since_is_written_again(
    folder: str, tmp_path: Path
) -> None:
    database = Database(rocks(tmp_path), [SPEC, WINDOWS])
    fill(database, 500)
    written = snapshot.Written()

    def export(run: str) -> dict[str, list[Slice]]:
        writer = SnapshotWriter(folder, "app", run)
        return {
            spec.name: writer.export(database, spec, 3, PART, written)
            for spec in (SPEC, WINDOWS)
        }

    def rows() -> dict[tuple[str, bytes], bytes]:
        return {
            (family, key): value
            for spec in (SPEC, WINDOWS)
            for _, families in database.as_of_now(spec.name, PART.groups)
            for family, _, of in families
            for key, value in of or ()
        }

    def fresh(run: str) -> list[str]:
        """Export, check what the slices hold, and return the files of this run."""
        found = [each for slices in export(run).values() for each in slices]
        assert rows_of(folder, found, tmp_path) == rows()
        names = [file.name for each in found for file in each.files]
        return [name for name in names if name.startswith(run)]

    assert len(fresh("run-1")) > 10
    assert fresh("run-2") == []
    key = next(b"key-%d" % n for n in range(500) if key_hash(b"key-%d" % n) in PART)
    place = layout.database_key(key, key)
    database.write([Change("store/counts", [place], [b"12345678new"])], {})
    (again,) = fresh("run-3")
    assert again.startswith(f"run-3/counts/3/{place[0] // 8 * 8:03}-")
    database.write([Change("store/counts", [place], [None])], {})
    database.drop(KeyGroups(120, 127))
    assert {name.split("/")[1] for name in fresh("run-4")} <= {"counts"}
    written.keep(())
    assert len(fresh("run-5")) > 10


def test_a_savepoint_that_may_not_be_named_so_leaves_nothing(folder: str) -> None:
    made = replace(manifest_of({}, "run"), kind="savepoint")
    snapshot.name_savepoint(folder, made, "name")
    before = Storage(folder).names()
    for name, words in (("name", 'a savepoint "name" of app'), ("a/b", "is no name")):
        with pytest.raises(SnapshotError, match=words):
            snapshot.check_savepoint_name(folder, "app", name)
        with pytest.raises(SnapshotError, match=words):
            snapshot.name_savepoint(folder, replace(made, run="again"), name)
    assert Storage(folder).names() == before


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 255), max_size=4, unique=True),
            st.none() | st.tuples(st.integers(0, 255), st.integers(0, 255)),
        ),
        max_size=8,
    )
)
def test_equal_versions_mean_equal_rows(
    changes: list[tuple[list[int], tuple[int, int] | None]],
) -> None:
    database = Database(Memory(), [SPEC])
    seen: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    database.write([], {"counts": [Checkpoint(0, 255, 1)]})
    for number, (groups, dropped) in enumerate(changes):
        keys = [bytes([group]) + b"key" for group in sorted(groups)]
        values = [b"%08d" % number] * len(keys)
        database.write([Change("store/counts", keys, values)], {})
        if dropped is not None:
            database.drop(KeyGroups(min(dropped), max(dropped)))
            database.write([], {"counts": [Checkpoint(0, 255, 1)]})
        for piece in manifest.pieces(KeyGroups(0, 255)):
            ((_, ((_, version, rows),)),) = database.as_of_now("counts", piece)
            now = list(rows or ())
            assert seen.setdefault((piece.first, version), now) == now


def test_a_segment_that_is_made_anew_has_versions_of_its_own() -> None:
    database = Database(Memory(), [WINDOWS])
    segment = layout.segment_family("windows", 0)
    first, last = (bytes([group]) + b"key" for group in (0, 255))
    hour_ms = 3_600_000

    def found() -> dict[int, list[tuple[bytes, bytes]]]:
        """Return the rows of the first slice, by version."""
        ((_, families),) = database.as_of_now("windows", KeyGroups(0, 7))
        return {version: list(rows or ()) for _, version, rows in families}

    database.write(
        [Change(segment, [first, last], [b"row", b"row"])],
        {"windows": [Checkpoint(0, 255, 1, 0)]},
    )
    (before,) = found()
    database.write([], {"windows": [Checkpoint(0, 255, 2, hour_ms)]})
    assert found() == {}, "it has expired"
    database.drop(KeyGroups(0, 255))  # the task leaves, and begins at an older snapshot
    database.write(
        [Change(segment, [last], [b"row"])],
        {"windows": [Checkpoint(0, 255, 1, 0)]},
    )
    ((after, rows),) = found().items()
    assert rows == []
    assert after != before


def test_a_manifest_of_a_newer_coopstreams_is_not_swept(url: str) -> None:
    for run in ("run-1", "run-2"):
        snapshot.publish(url, manifest_of({}, run))
    Storage(url).write("app/run-2/manifest.json", b'{"format":2}')
    before = Storage(url).names()
    with pytest.raises(SnapshotError, match=r'"run-2" of app at .*upgrade coopstreams'):
        snapshot.sweep(url, "app")
    assert Storage(url).names() == before


ranges = st.tuples(st.integers(0, 3), st.integers(0, 255), st.integers(0, 255)).map(
    lambda of: (of[0], min(of[1:]), max(of[1:]))
)


def disjoint(found: Sequence[tuple[int, int, int]], offset: int) -> Iterator[Slice]:
    taken: set[tuple[int, int]] = set()
    for partition, first, last in found:
        groups = {(partition, group) for group in range(first, last + 1)}
        if not groups & taken:
            taken |= groups
            yield Slice(partition, first, last, offset)


@given(st.lists(ranges), st.lists(ranges))
def test_merged_slices_never_overlap_and_the_newer_ones_are_all_there(
    older: list[tuple[int, int, int]], newer: list[tuple[int, int, int]]
) -> None:
    new = list(disjoint(newer, 2))
    result = manifest.merged(disjoint(older, 1), new)
    assert set(new) <= set(result)
    groups = [
        (each.partition, group)
        for each in result
        for group in range(each.first, each.last + 1)
    ]
    assert len(groups) == len(set(groups))


@given(st.integers(0, 255), st.integers(0, 255))
def test_cut_checkpoints_tile_what_was_cut_and_cross_no_bound(a: int, b: int) -> None:
    run = Checkpoint(min(a, b), max(a, b), 5, 6, 7)
    pieces = list(manifest.cut([run]))
    assert [
        group for piece in pieces for group in range(piece.first, piece.last + 1)
    ] == list(range(run.first, run.last + 1))
    assert all(
        piece.first // manifest.SLICE_GROUPS == piece.last // manifest.SLICE_GROUPS
        for piece in pieces
    )
    assert all(
        (piece.offset, piece.observed, piece.true_ms) == (5, 6, 7) for piece in pieces
    )


def test_a_place_that_cannot_be_is_refused_in_words(
    bucket: str, tmp_path: Path
) -> None:
    with pytest.raises(
        SnapshotError, match=r'"nosuch://\[hidden\]@host" is no storage for snapshots'
    ) as refused:
        Storage("nosuch://me:hunter2@host")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(
        SnapshotError, match='cannot write "name" at s3://nobody-made-it'
    ):
        Storage("s3://nobody-made-it").write("name", b"data")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SnapshotError, match='cannot write "name"'):
        Storage(str(tmp_path / "file")).write("name", b"data")


def test_a_place_has_what_was_put_there_and_nothing_else(
    url: str, tmp_path: Path
) -> None:
    storage = Storage(url)
    assert storage.read("a/b") is None
    assert not storage.download("a/b", tmp_path / "copy")
    assert storage.names() == storage.names("a") == []
    storage.write("a/b", b"1")
    storage.write("a/b", b"2")
    (tmp_path / "local").write_bytes(b"3")
    storage.upload(tmp_path / "local", "a/c/d")
    assert storage.names() == storage.names("a") == ["a/b", "a/c/d"]
    assert storage.names("a/c") == ["a/c/d"]
    assert [storage.read(name) for name in storage.names()] == [b"2", b"3"]
    assert storage.download("a/b", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"2"
    storage.delete("a/b")
    storage.delete("a/b")
    assert Storage(url).names() == ["a/c/d"]


def test_hadoops_name_for_s3_is_understood(bucket: str) -> None:
    Storage(f"{bucket}/hadoop").write("name", b"data")
    assert Storage(f"{bucket.replace('s3:', 's3a:')}/hadoop").read("name") == b"data"


def test_slices_are_placed_by_their_partition() -> None:
    placed = manifest.placed(
        [Slice(0, 0, 7, observed=3), Slice(2, 8, 15)], {0: 10, 1: 11, 2: 12}, 99
    )
    assert placed == (Slice(0, 0, 7, 10, 3, 99), Slice(2, 8, 15, 12, true_ms=99))
