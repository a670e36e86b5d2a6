"""Bytes that outlive a process: this release writes those of the golden file, and reads
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coopstreams.commit.record import Committed, decode_key, decode_value, encode_key
from coopstreams.log import clocks, time_marks
from coopstreams.log.clocks import Mark, clock_marks_in
from coopstreams.state.directory import StateDirectory
from coopstreams.state.manifest import Manifest
from coopstreams.status.format_table import FORMATS, Format
from coopstreams.topology.compile import births
from coopstreams.topology.compile.births import births_in
from coopstreams.topology.errors import (
    GroupError,
    LogError,
    SnapshotError,
    StateError,
    TopologyError,
)
from coopstreams.topology.graph.outline import read_outline
from tests.formats.golden import golden, has_grown
from tests.formats.samples import KEY, SAMPLES, mark_columns

GOLDEN = golden()
EACH_VERSION = [
    pytest.param(each.name, version, id=f"{each.name} {version}")
    for each in FORMATS
    for version in each.versions
]


def test_each_format_of_the_table_has_a_sample_and_golden_bytes_of_each_version() -> (
    None
):
    versions = {each.name: list(each.versions) for each in FORMATS}
    assert {name: list(kept) for name, kept in GOLDEN.items()} == versions, (
        "python -m tests.formats.golden adds what is missing"
    )
    assert SAMPLES.keys() == versions.keys()


@pytest.mark.parametrize(("name", "version"), EACH_VERSION)
def test_what_is_written_is_what_the_version_says(name: str, version: int) -> None:
    written = SAMPLES[name].write(version)
    kept = GOLDEN[name][version]
    if not written:
        assert version < newest(name).version, "the newest version is not written"
        return
    assert written.keys() == kept.keys()
    changed = [part for part in kept if not has_grown(part, written[part], kept[part])]
    assert changed == [], (
        f"the bytes of {name} have changed: give them a new version (docs/internals/formats.md), or leave them"
    )


@pytest.mark.parametrize(("name", "version"), EACH_VERSION)
def test_what_was_written_is_read(name: str, version: int) -> None:
    sample = SAMPLES[name]
    assert sample.read(GOLDEN[name][version]) == sample.means(version)


def newest(name: str) -> Format:
    return next(each for each in FORMATS if each.name == name)


HALF_MARK = Mark(0, 0, 127, 1700).headers[0][1]


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: decode_key(b"\2" + encode_key(KEY)[1:]), LogError),
        (lambda: decode_value(b"\4\0\1", KEY.key_range), LogError),
        (lambda: Committed.parse(40, "ic2 1700 5"), LogError),
        (
            lambda: clock_marks_in(mark_columns([(f"{clocks.HEADER}.2", HALF_MARK)])),
            LogError,
        ),
        (lambda: births_in([[(f"{births.HEADER}.2", b"")]], [1]), LogError),
        (lambda: Manifest.from_json(b'{"format": 2}'), SnapshotError),
        (lambda: read_outline('{"format": 9}'), TopologyError),
    ],
)
def test_a_later_version_is_refused_by_a_sentence_that_names_the_newer_release(
    read: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"newer|upgrade|this coopstreams reads"):
        read()


def test_a_mark_of_a_later_version_in_a_topic_of_the_user_is_a_record() -> None:
    later = mark_columns([(f"{time_marks.HEADER}.2", b"1700")])
    assert time_marks.marks_in(later) == []


def test_a_state_folder_of_a_later_version_is_refused_with_the_cure(
    tmp_path: Path,
) -> None:
    with closing(StateDirectory(tmp_path, "app", 0)) as directory:
        (directory.folder / "format").write_text("3")
    with pytest.raises(StateError, match="knows up to 2: upgrade coopstreams"):
        StateDirectory(tmp_path, "app", 0)


@pytest.mark.parametrize("name", ["group metadata", "assignment"])
def test_a_member_of_a_later_version_is_refused_with_the_cure(name: str) -> None:
    parts = GOLDEN[name][newest(name).version] | {"head": b"CS9"}
    with pytest.raises(GroupError, match="b'9' of the group format"):
        SAMPLES[name].read(parts)
